#!/usr/bin/python3
"""Runs the smoke tier from nothing, and asserts of every control what the suite must say, and by what it must find it."""
import json
import shutil
import subprocess
import sys
from pathlib import Path

tool, folder = sys.argv[1], Path(sys.argv[2])
shutil.rmtree(folder, ignore_errors=True)
status = subprocess.run([tool, "converge", "--tier", "smoke", "--folder", str(folder)], check=False).returncode
pairs = json.loads((folder / "result.json").read_text())["comparisons"]

# By the law that must find it, not by chance: a fault that moves the metric little must be seen by other means.
FOUND_BY = {
    "feedback-off, sign": "lost", "feedback-off, topk:ratio=0.05": "lost", "feedback-twice, topk:ratio=0.05": "lost",
    "momentum-twice": "metric", "replicas-differ, int8": "replicas", "sum-not-mean": "lost",
    "stale-residual, topk:ratio=0.05": "lost", "shared-noise": "metric", "dropped-contribution, int8": "lost",
    "unscaled-rate": "metric",
}
problems = []
for pair in pairs:
    if pair["kind"] == "negative control" and FOUND_BY[pair["arm"]] not in pair["found_by"]:
        problems.append(f"{pair['arm']}: not found by {FOUND_BY[pair['arm']]}")
    expected = {"scheme": "as good", "positive control": "as good", "negative control": "worse"}[pair["kind"]]
    if pair["verdict"] != expected:
        problems.append(f"{pair['task']}, {pair['arm']}: {pair['verdict']}, and must be {expected}: {pair['reasons']}")
kinds = [pair["kind"] for pair in pairs]
if kinds.count("positive control") < 3 or kinds.count("negative control") < len(FOUND_BY):
    problems.append(f"too few controls: {kinds}")
for name in ("report.html", "junit.xml"):
    if (folder / name).stat().st_size < 1000:
        problems.append(f"{name} is nearly empty")
if status != 0 and not problems:
    problems.append(f"exit status {status}")
sys.exit("\n".join(problems) or 0)
