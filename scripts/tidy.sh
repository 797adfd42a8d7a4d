#!/usr/bin/env bash
# clang-tidy over the library and the tool, and with --all over tests, examples and benchmarks too (many minutes).
# Warnings are left to the compilers.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset dev >/dev/null
# clang would take g++'s precompiled headers for its own.
mkdir -p build/tidy
sed -E 's/-Winvalid-pch -include [^ ]*cmake_pch\.hxx//' build/dev/compile_commands.json > build/tidy/compile_commands.json
folders=(src cuda transports bindings tools)
[[ ${1-} == --all ]] && folders+=(tests bench examples convergence)
git -c safe.directory="$PWD" ls-files -z "${folders[@]/%//*.cpp}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 -p build/tidy --quiet --extra-arg=-w
