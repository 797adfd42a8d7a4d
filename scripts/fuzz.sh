#!/usr/bin/env bash
# Builds the fuzzer of the decoders with clang, AddressSanitizer and UndefinedBehaviorSanitizer, and runs it on every codec,
# from the golden files on.
#
#   scripts/fuzz.sh [seconds per codec] [codec...]      10 seconds, all codecs; what it finds stays in build/fuzz/found
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-10}
[[ $seconds =~ ^[0-9]+$ ]] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
shift || true

scripts/setup.sh test
cmake --preset fuzz >/dev/null
cmake --build build/fuzz --target decode_fuzzer
fuzzer=build/fuzz/bin/decode_fuzzer
codecs=("$@")
if [[ ${#codecs[@]} == 0 ]]; then
  read -ra codecs < <("$fuzzer" 2>&1 | sed -n 's/.*must be one of exact, //p' | tr -d ,)
fi
mkdir -p build/fuzz/found
for codec in "${codecs[@]}"; do
  corpus=build/fuzz/corpus/$codec
  mkdir -p "$corpus"
  # 333 elements, in two bytes before the payload
  for golden in tests/golden/"$codec"_block*.wire; do
    [[ -e $golden ]] && { printf '\x4d\x01'; cat "$golden"; } >"$corpus/$(basename "$golden")"
  done
  echo "== $codec"
  TIGHTWIRE_FUZZ_CODEC=$codec "$fuzzer" -max_total_time="$seconds" -max_len=8192 -verbosity=0 -print_final_stats=1 \
    -artifact_prefix=build/fuzz/found/"$codec"- "$corpus" 2>&1 | grep -E "number_of_executed_units|ERROR|SUMMARY|Test unit written" || true
  [[ -z $(find build/fuzz/found -name "$codec-*" -print -quit) ]] || { echo "fuzz.sh: $codec: see build/fuzz/found" >&2; exit 1; }
done
