#!/usr/bin/env bash
# Installs what is needed, builds, and proves that training still converges: tasks x codecs x seeds against exact training.
#
#   scripts/converge.sh [--tier smoke|quick|full] [options]     see tightwire converge --help
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh convergence
cmake --preset release >/dev/null
cmake --build --preset release --target tightwire_tool convergence_trainer
exec build/release/bin/tightwire converge "$@"
