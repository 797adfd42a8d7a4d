#!/usr/bin/env bash
# Builds the fuzzers of the decoders with clang, AddressSanitizer and UndefinedBehaviorSanitizer, and runs them on every codec,
# and on sections of sparse frames with some of them, from the golden files and fuzz/corpus on.
#
#   scripts/fuzz.sh [seconds per target] [target...]    10 seconds, all of them; what it finds stays in build/fuzz/found
#   scripts/fuzz.sh 120 int8 section-int8               the decoder of a codec; sections with values in it
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-10}
[[ $seconds =~ ^[0-9]+$ ]] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
shift || true

scripts/setup.sh test
cmake --preset fuzz >/dev/null
cmake --build build/fuzz --target decode_fuzzer section_fuzzer
programs=build/fuzz/bin
targets=("$@")
if [[ ${#targets[@]} == 0 ]]; then
  # All codecs of blocks: top-k and what follows it are none.
  read -ra targets < <("$programs"/decode_fuzzer 2>&1 | sed -n 's/.*must be one of exact, //; s/, topk.*//; s/,//gp') || true
  [[ ${#targets[@]} -gt 0 ]] || { echo "fuzz.sh: decode_fuzzer names no codecs:" >&2; "$programs"/decode_fuzzer >&2 || true; exit 1; }
  targets+=(section-dense section-int8 section-int4)
fi
mkdir -p build/fuzz/found

run() { # program, codec, target
  local program=$1 codec=$2 target=$3 told status=0 executed folders=(build/fuzz/corpus/"$3")
  [[ -d fuzz/corpus/$target ]] && folders+=(fuzz/corpus/"$target")
  echo "== $target"
  told=$(TIGHTWIRE_FUZZ_CODEC=$codec "$programs/$program" -max_total_time="$seconds" -max_len=8192 -verbosity=0 -print_final_stats=1 \
    -artifact_prefix=build/fuzz/found/"$target"- "${folders[@]}" 2>&1) || status=$?
  grep -E "number_of_executed_units|ERROR|SUMMARY|Test unit written" <<<"$told" || true
  [[ -z $(find build/fuzz/found -name "$target-*" -print -quit) ]] || { echo "fuzz.sh: $target: see build/fuzz/found" >&2; exit 1; }
  executed=$(sed -n 's/.*number_of_executed_units: *//p' <<<"$told")
  [[ $status == 0 && ${executed:-0} -gt 0 ]] || { printf 'fuzz.sh: %s: the fuzzer did not run (status %s):\n%s\n' "$target" "$status" "$told" >&2; exit 1; }
}

for target in "${targets[@]}"; do
  # The golden files, behind two bytes for the number of elements: 1,000 of a section, 333 of a codec.
  codec=${target#section-} program=decode_fuzzer count='\x4d\x01' golden=(tests/golden/"$target"_block*.wire)
  [[ $target != section-* ]] || program=section_fuzzer count='\xe8\x03' golden=(tests/golden/section_*_"$codec".wire)
  corpus=build/fuzz/corpus/$target
  mkdir -p "$corpus"
  for file in "${golden[@]}"; do
    [[ ! -e $file ]] || { printf '%b' "$count"; cat "$file"; } >"$corpus/$(basename "$file")"
  done
  run "$program" "$codec" "$target"
done
