#!/usr/bin/env bash
# Runs the tests with the label torch on a PyTorch from PyPI instead of Debian's, and the examples of Lightning and Accelerate. Needs
# PyPI (some gigabytes, where its PyTorch brings packages for GPUs) and a build of the preset dev; not part of scripts/test.sh.
#
#   scripts/test_torch.sh 2.4.1
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $# == 1 ]] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
scripts/setup.sh python
environment=$PWD/build/torch-$1
if [[ ! -e $environment/complete ]]; then
  rm -rf "$environment"
  /usr/bin/python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet "torch==$1" numpy lightning accelerate
  touch "$environment/complete"
fi
cmake --preset dev -DTIGHTWIRE_TORCH_PYTHON="$environment/bin/python" >/dev/null
trap 'cmake --preset dev -UTIGHTWIRE_TORCH_PYTHON >/dev/null' EXIT
cmake --build --preset dev --target tightwire_c
ctest --test-dir build/dev -L torch --output-on-failure --no-tests=error
