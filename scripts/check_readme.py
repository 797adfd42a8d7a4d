#!/usr/bin/python3
"""Fails where a code block of README.md is not, to the letter, the example that the comment before it names. --write copies the
examples into the README."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- example: (\S+) -->\n```(?:cpp|c|python)\n)(.*?)(```)", re.S)


def current(match):
    return match[1] + (ROOT / match[2]).read_text() + match[4]


readme = ROOT / "README.md"
text = readme.read_text()
fresh, count = BLOCK.subn(current, text)
if count == 0:
    sys.exit("check_readme.py: README.md shows no example")
if "--write" in sys.argv:
    readme.write_text(fresh)
elif fresh != text:
    sys.exit("check_readme.py: an example in README.md differs from its file; run scripts/check_readme.py --write")
print(f"check_readme.py: {count} example(s) as in their files")
