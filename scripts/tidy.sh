#!/usr/bin/env bash
# clang-tidy over the library and the tool, and with --all over tests, examples and benchmarks too (many minutes). It sees all files
# of a target in one, which reads the headers they share once. Warnings are left to the compilers.
set -euo pipefail
cd "$(dirname "$0")/.."
folders=(src cuda transports bindings tools)
only=(-DTIGHTWIRE_BUILD_TESTS=OFF -DTIGHTWIRE_BUILD_BENCH=OFF -DTIGHTWIRE_BUILD_EXAMPLES=OFF)
[[ ${1-} == --all ]] && folders+=(tests bench examples convergence) && only=()
cmake --preset dev -B build/tidy -DCMAKE_UNITY_BUILD_BATCH_SIZE=0 -DTIGHTWIRE_TORCH=OFF "${only[@]}" >/dev/null
# clang would take g++'s precompiled headers for its own. The longest come first.
sed -i -E 's/-Winvalid-pch -include [^ ]*cmake_pch\.hxx//' build/tidy/compile_commands.json
/usr/bin/python3 - "${folders[@]}" <<'PYTHON' | xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 -p build/tidy --quiet --extra-arg=-w --checks=-bugprone-suspicious-include
import json, pathlib, re, sys

root = pathlib.Path.cwd()
found = {}
for entry in json.load(open("build/tidy/compile_commands.json")):
    file = pathlib.Path(entry["file"])
    unity = re.search(r"/Unity/unity_\d+_cxx\.cxx$", entry["file"])
    parts = re.findall(r'^#include "(.*)"$', file.read_text(), re.MULTILINE) if unity else [entry["file"]]
    if file.suffix in (".cpp", ".cxx") and any(part.startswith(f"{root}/{folder}/") for part in parts for folder in sys.argv[1:]):
        found[entry["file"]] = len(parts)
for file in sorted(found, key=found.get, reverse=True):
    sys.stdout.write(file + "\0")
PYTHON
