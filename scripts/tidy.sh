#!/usr/bin/env bash
# clang-tidy over the library and the tool, and with --all over tests, examples and benchmarks too (many minutes). It sees the
# files as build/dev compiles them, several in one, which reads the headers they share once. Warnings are left to the compilers.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset dev >/dev/null
folders=(src cuda transports bindings tools)
[[ ${1-} == --all ]] && folders+=(tests bench examples convergence)
mkdir -p build/tidy
# clang would take g++'s precompiled headers for its own.
sed -E 's/-Winvalid-pch -include [^ ]*cmake_pch\.hxx//' build/dev/compile_commands.json > build/tidy/compile_commands.json
/usr/bin/python3 - "${folders[@]}" <<'PYTHON' | xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 -p build/tidy --quiet --extra-arg=-w --checks=-bugprone-suspicious-include
import json, pathlib, re, sys

root = pathlib.Path.cwd()
for entry in json.load(open("build/tidy/compile_commands.json")):
    file = pathlib.Path(entry["file"])
    unity = re.search(r"/Unity/unity_\d+_cxx\.cxx$", entry["file"])
    parts = re.findall(r'^#include "(.*)"$', file.read_text(), re.MULTILINE) if unity else [entry["file"]]
    if file.suffix in (".cpp", ".cxx") and any(part.startswith(f"{root}/{folder}/") for part in parts for folder in sys.argv[1:]):
        sys.stdout.write(entry["file"] + "\0")
PYTHON
