#!/usr/bin/env bash
# The main job: installs what is needed, builds, and trains a small network on Fashion-MNIST on 4 local processes with exact,
# int8 and int4 synchronization, each with error feedback. Ends with a table. Arguments go to the program: --help lists them.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh quickstart
cmake --preset release -DTIGHTWIRE_TORCH=ON -DTIGHTWIRE_UCX=ON -DTIGHTWIRE_BUILD_BENCH=OFF >/dev/null
cmake --build --preset release --target tightwire_tool quickstart
exec build/release/bin/tightwire run -n 4 -- build/release/bin/quickstart "$@"
