#!/usr/bin/env bash
# Builds the fuzzers of the decoders with clang, AddressSanitizer and UndefinedBehaviorSanitizer, and runs them on every codec,
# and on sections of sparse frames with some of them, from the golden files on.
#
#   scripts/fuzz.sh [seconds per codec] [codec...]      10 seconds, all codecs; what it finds stays in build/fuzz/found
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-10}
[[ $seconds =~ ^[0-9]+$ ]] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
shift || true

scripts/setup.sh test
cmake --preset fuzz >/dev/null
cmake --build build/fuzz --target decode_fuzzer section_fuzzer
fuzzer=build/fuzz/bin/decode_fuzzer
codecs=("$@")
if [[ ${#codecs[@]} == 0 ]]; then
  read -ra codecs < <("$fuzzer" 2>&1 | sed -n 's/.*must be one of exact, //; s/, topk, randomk, powersgd$//; s/,//gp') || true
  [[ ${#codecs[@]} -gt 0 ]] || { echo "fuzz.sh: $fuzzer names no codecs:" >&2; "$fuzzer" >&2 || true; exit 1; }
fi
mkdir -p build/fuzz/found

run() { # fuzzer, codec, name, corpus
  echo "== $3"
  local told status=0 executed
  told=$(TIGHTWIRE_FUZZ_CODEC=$2 "$1" -max_total_time="$seconds" -max_len=8192 -verbosity=0 -print_final_stats=1 \
    -artifact_prefix=build/fuzz/found/"$3"- "$4" 2>&1) || status=$?
  grep -E "number_of_executed_units|ERROR|SUMMARY|Test unit written" <<<"$told" || true
  [[ -z $(find build/fuzz/found -name "$3-*" -print -quit) ]] || { echo "fuzz.sh: $3: see build/fuzz/found" >&2; exit 1; }
  executed=$(sed -n 's/.*number_of_executed_units: *//p' <<<"$told")
  [[ $status == 0 && ${executed:-0} -gt 0 ]] || { printf 'fuzz.sh: %s: the fuzzer did not run (status %s):\n%s\n' "$3" "$status" "$told" >&2; exit 1; }
}

for codec in "${codecs[@]}"; do
  corpus=build/fuzz/corpus/$codec
  mkdir -p "$corpus"
  # 333 elements, in two bytes before the payload
  for golden in tests/golden/"$codec"_block*.wire; do
    [[ -e $golden ]] && { printf '\x4d\x01'; cat "$golden"; } >"$corpus/$(basename "$golden")"
  done
  run "$fuzzer" "$codec" "$codec" "$corpus"
done
for codec in dense int8 int4; do
  corpus=build/fuzz/corpus/section-$codec
  mkdir -p "$corpus"
  # 1,000 elements
  for golden in tests/golden/section_*_"$codec".wire; do
    [[ -e $golden ]] && { printf '\xe8\x03'; cat "$golden"; } >"$corpus/$(basename "$golden")"
  done
  run build/fuzz/bin/section_fuzzer "$codec" "section-$codec" "$corpus"
done
