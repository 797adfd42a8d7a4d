#!/usr/bin/python3
"""Shows the report of `tightwire converge` in headless Chromium, without network: a picture of each section, and the page as it is
printed. To be looked at by whoever changed the page. Needs Debian's chromium.

    scripts/report_screenshots.py convergence-results/report.html /tmp/screenshots
"""
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WIDTH, MOST_HEIGHT = 1300, 6000


def chromium(*arguments: str) -> None:
    """Throws CalledProcessError with what it said where it fails."""
    program = shutil.which("chromium")
    if not program:
        sys.exit("report_screenshots.py: chromium is missing: apt-get install chromium")
    # No name is resolved: whatever the page would fetch is an error on the picture.
    subprocess.run([program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND",
                    *arguments], check=True, capture_output=True, timeout=120)


def sections(page: str) -> list[tuple[str, str]]:
    """(name, page with this section alone)."""
    head, body = page.split("<body>", 1)
    body = body.split("</body>")[0]
    parts = re.split(r"(?=<h2>)", body)
    names = ["summary"] + [re.sub(r"\W+", "-", re.match(r"<h2>(.*?)</h2>", part).group(1)).strip("-").lower() for part in parts[1:]]
    return [(name, f"{head}<body>{part}</body></html>") for name, part in zip(names, parts, strict=True)]


def height_of(path: Path) -> int:
    """Of the page, as Chromium lays it out."""
    measured = path.with_suffix(".measured.html")
    measured.write_text(path.read_text().replace(
        "</body>", "<script>document.title = 'height ' + document.documentElement.offsetHeight</script></body>"))
    program = shutil.which("chromium") or ""
    dumped = subprocess.run([program, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={WIDTH},100", "--dump-dom", measured.as_uri()],
                            check=True, capture_output=True, text=True, timeout=120).stdout
    found = re.search(r"<title>height (\d+)", dumped)
    if not found:
        sys.exit(f"report_screenshots.py: {path.name} has no height; is it a report?")
    return min(int(found.group(1)) + 60, MOST_HEIGHT)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    report, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    chromium(f"--print-to-pdf={folder.resolve() / 'printed.pdf'}", report.as_uri())
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, page) in enumerate(sections(report.read_text())):
            path = Path(scratch) / f"{name}.html"
            path.write_text(page)
            picture = folder.resolve() / f"{number}-{name}.png"
            chromium(f"--window-size={WIDTH},{height_of(path)}", f"--screenshot={picture}", path.as_uri())
            print(picture)
    print(folder / "printed.pdf")


if __name__ == "__main__":
    main()
