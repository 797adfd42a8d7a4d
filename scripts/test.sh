#!/usr/bin/env bash
# Installs what is needed, builds, and passes the tests.
#
#   scripts/test.sh            in one process, between processes, packages, a short convergence suite; decoders and frames under
#                              AddressSanitizer with UndefinedBehaviorSanitizer. This is what CI runs.
#   scripts/test.sh --all      besides: all tests in one process under these sanitizers, and under ThreadSanitizer; clang-tidy, every
#                              header alone, every float through every conversion, longer trainings. Before what touches threads,
#                              memory or arithmetic is submitted.
#   scripts/test.sh --nightly  besides all that the trainings on which the accuracies of the README rest; more seeds by TIGHTWIRE_SEEDS
#   scripts/test.sh --quick    the inner loop: unit tests alone
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1-}
[[ -z $mode || $mode == --quick || $mode == --all || $mode == --nightly ]] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }

began=$SECONDS
stage() { echo "== $((SECONDS - began)) s: $*"; }
# Some tests kill processes and bound how soon others notice; a machine that stalls for a second gets a second try, and only one.
# Not so under the sanitizers: what they see once in two runs is there.
retry="--repeat until-pass:2"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1  # CI is root

stage "installing what is missing"
if [[ -z $mode ]]; then  # what the decoders need; the rest while they are built
  scripts/setup.sh decoders
  scripts/setup.sh test &
  rest=$!
else
  scripts/setup.sh test
fi

if [[ $mode == --quick ]]; then
  cmake --preset dev >/dev/null
  cmake --build --preset dev
  exec ctest --test-dir build/dev -L unit -j "$(nproc)" --output-on-failure --no-tests=error
fi

sanitized() {
  stage "$1: building"
  cmake --preset "$1" >/dev/null
  cmake --build --preset "$1"
  stage "$1: testing"
  ctest --test-dir "build/$1" -L unit -j "$(nproc)" --output-on-failure --no-tests=error
}
if [[ -z $mode ]]; then
  sanitized decoders
  wait "$rest"
else
  sanitized asan  # has what decoders has
  sanitized tsan
fi

stage "format, layers, types"
scripts/format.sh --check
/usr/bin/python3 scripts/check_layers.py --self-test
/usr/bin/python3 scripts/check_layers.py
/usr/bin/python3 scripts/check_readme.py
/usr/bin/mypy --python-executable /usr/bin/python3
(cd python && /usr/bin/mypy --config-file= --strict --python-version 3.11 --python-executable /usr/bin/python3 -p tightwire.convergence)

stage "building"
cmake --preset dev >/dev/null
cmake --build --preset dev
if [[ -n $mode ]]; then
  stage "headers alone"
  scripts/check_syntax.py
  stage "clang-tidy"
  scripts/tidy.sh
fi
stage "testing"
case $mode in
  --nightly) leave_out= ;;
  --all) leave_out="-LE nightly" ;;
  *) leave_out="-LE nightly|exhaustive|long" ;;
esac
ctest --test-dir build/dev -j "$(nproc)" --output-on-failure --no-tests=error $leave_out $retry
stage "all passed"
