#!/usr/bin/env bash
# Installs what is needed, builds, and passes the tests: in one process, between processes, packages, the long ones, then
# those in one process under AddressSanitizer with UndefinedBehaviorSanitizer, and under ThreadSanitizer.
#
#   scripts/test.sh            all of it
#   scripts/test.sh --nightly  and the trainings on which the accuracies of the README rest; more seeds by TIGHTWIRE_SEEDS
#   scripts/test.sh --quick    the inner loop: unit tests alone
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1-}
[[ -z $mode || $mode == --quick || $mode == --nightly ]] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }

began=$SECONDS
stage() { echo "== $((SECONDS - began)) s: $*"; }
# Some tests kill processes and bound how soon others notice; a machine that stalls for a second gets a second try, and only one.
# Not so under the sanitizers: what they see once in two runs is there.
retry="--repeat until-pass:2"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1  # CI is root

stage "installing what is missing"
scripts/setup.sh test

if [[ $mode == --quick ]]; then
  cmake --preset dev >/dev/null
  cmake --build --preset dev
  exec ctest --test-dir build/dev -L unit -j "$(nproc)" --output-on-failure --no-tests=error
fi

stage "format, layers, types"
scripts/format.sh --check
/usr/bin/python3 scripts/check_layers.py --self-test
/usr/bin/python3 scripts/check_layers.py
/usr/bin/python3 scripts/check_readme.py
/usr/bin/mypy --python-executable /usr/bin/python3
(cd python && /usr/bin/mypy --config-file= --strict --python-version 3.11 --python-executable /usr/bin/python3 -p tightwire.convergence)

for preset in asan tsan; do
  stage "$preset: building"
  cmake --preset $preset >/dev/null
  cmake --build --preset $preset
  stage "$preset: testing"
  ctest --test-dir build/$preset -L unit -j "$(nproc)" --output-on-failure --no-tests=error
done

stage "building"
cmake --preset dev >/dev/null
cmake --build --preset dev
stage "headers alone"
scripts/check_syntax.py
stage "clang-tidy"
scripts/tidy.sh
stage "testing"
leave_out="-LE nightly"
[[ $mode == --nightly ]] && leave_out=
ctest --test-dir build/dev -j "$(nproc)" --output-on-failure --no-tests=error $leave_out $retry
stage "all passed"
