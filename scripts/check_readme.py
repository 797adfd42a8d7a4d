#!/usr/bin/python3
"""Fails where a code block of README.md, or of a page in docs/, is not, to the letter, the example that the comment before it
names; or where docs/codecs.md has no row for a codec that has a golden file, as every codec has (tests/unit/golden_test.cpp).
--write copies the examples in."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- example: (\S+) -->\n```(?:cpp|c|python)\n)(.*?)(```)", re.S)


def current(match):
    return match[1] + (ROOT / match[2]).read_text() + match[4]


pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
total = 0
for page in pages:
    text = page.read_text()
    fresh, count = BLOCK.subn(current, text)
    total += count
    if page.name == "README.md" and count == 0:
        sys.exit("check_readme.py: README.md shows no example")
    if "--write" in sys.argv:
        page.write_text(fresh)
    elif fresh != text:
        sys.exit(f"check_readme.py: an example in {page.name} differs from its file; run scripts/check_readme.py --write")

table = (ROOT / "docs" / "codecs.md").read_text()
golden = (path.name.split("_block_")[0] for path in (ROOT / "tests" / "golden").glob("*_block_*.wire"))
codecs = sorted({name for name in golden if not name.startswith(("stochastic_", "hadamard_"))})
missing = [name for name in codecs if f"\n| `{name}:block=" not in table]
if missing or not codecs:
    sys.exit(f"check_readme.py: docs/codecs.md has no row for {', '.join(missing) or 'any codec'}")
print(f"check_readme.py: {total} example(s) as in their files, {len(codecs)} codecs with a row")
