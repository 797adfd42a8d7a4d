#!/usr/bin/python3
"""Every public header compiles alone, and so does every benchmark: checks, and generates no code for, what CMake has prepared
for that in build/dev.

    scripts/check_syntax.py              after cmake --preset dev
    scripts/check_syntax.py codec/       those whose path contains that
"""
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

BUILD = pathlib.Path(__file__).resolve().parent.parent / "build/dev"


def check(entry: dict[str, str]) -> str:
    """What the compiler says."""
    command = re.sub(r" -o \S+", "", entry["command"]).replace(" -c ", " -fsyntax-only ")
    done = subprocess.run(command, shell=True, cwd=entry["directory"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr + f"\n{entry['file']}: the compiler failed\n"


def main() -> None:
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    alone = [entry for entry in entries
             if re.search(r"(verify_interface_header_sets|/bench)/.*" + re.escape(part), entry["file"]) and not entry["file"].endswith(".cu")]
    if not alone:
        sys.exit(f"check_syntax.py: nothing to check in {BUILD}; is it configured?")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        complaints = [complaint for complaint in pool.map(check, alone) if complaint]
    print("".join(complaints) + f"{len(alone)} files, {len(complaints)} do not compile alone")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
