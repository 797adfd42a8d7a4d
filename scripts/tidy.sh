#!/usr/bin/env bash
# clang-tidy over the library and the tool, and with --all over tests, examples and benchmarks too (many minutes).
# Warnings are left to the compilers.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset dev >/dev/null
folders=(src cuda transports bindings tools)
[[ ${1-} == --all ]] && folders+=(tests bench examples convergence)
git ls-files -z "${folders[@]/%//*.cpp}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 -p build/dev --quiet --extra-arg=-w
