"""The result of a study as JSON, which everything else is made from, and as JUnit XML for CI."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from . import measuring
from .judging import FAILED, UNDECIDED
from .running import Json
from .statistics import seeds_needed
from .study import Comparison, Study, today

FILES = ("result.json", "junit.xml", "report.html")


def as_json(study: Study, comparisons: Sequence[Comparison]) -> Json:
    """Everything a report shows: per pair its verdict, why, figures and curves, and every run's final value by seed."""
    return {
        "study": study.name,
        "date": today(),
        "facts": study.facts,
        "seeds": list(study.seeds),
        "rules": dataclasses.asdict(study.rules),
        "status": study.status(comparisons),
        "false_alarm_rate": _mean_rate(comparisons, "positive control"),
        "miss_rate": _mean_rate(comparisons, "negative control"),
        "comparisons": [_comparison(study, comparison, len(comparisons)) for comparison in comparisons],
    }


def _mean_rate(comparisons: Sequence[Comparison], kind: str) -> float | None:
    """Of wrong verdicts on samples of the runs of controls, over all controls of a kind."""
    rates = [c.wrong_rate for c in comparisons if c.pair.kind == kind and c.wrong_rate is not None]
    return sum(rates) / len(rates) if rates else None


def _comparison(study: Study, comparison: Comparison, count: int) -> Json:
    pair, verdict = comparison.pair, comparison.verdict
    result: Json = {
        "task": pair.task, "arm": pair.arm.name, "baseline": pair.baseline.name, "kind": pair.kind,
        "verdict": verdict.verdict, "expected": pair.expected, "right": comparison.right,
        "reasons": verdict.reasons, "found_by": verdict.by, "recommended": pair.recommended, "limit": pair.limit,
        "metric": dataclasses.asdict(pair.metric),
        "estimate": dataclasses.asdict(verdict.estimate) if verdict.estimate else None,
        "p_as_good": verdict.p_as_good, "p_worse": verdict.p_worse,
        "seeds_for_power": None, "wrong_verdict_rate": comparison.wrong_rate,
        "repetitions": _repetitions(comparison) if comparison.repeated else None,
        "runs": [{"arm": arm.key, "baseline": base.key, "cached": [base.cached, arm.cached], "seed": seed}
                 for seed, base, arm in zip(study.seeds_of(pair), comparison.baseline_runs, comparison.arm_runs, strict=True)],
    }
    if verdict.estimate:
        result["seeds_for_power"] = seeds_needed(verdict.estimate.deviation, pair.metric.margin, study.rules.alpha / count,
                                                 study.rules.power)
    if verdict.verdict != FAILED:
        for run, base, arm in zip(result["runs"], comparison.baseline_runs, comparison.arm_runs, strict=True):
            run.update(baseline_metric=base.metric(), arm_metric=arm.metric())
        result["figures"] = _figures(comparison)
        result["curves"] = _curves(comparison)
    return result


def _repetitions(comparison: Comparison) -> Json:
    """How many there are, how many were judged as they must be, and what the others were found."""
    return {"number": len(comparison.repeated), "seeds_each": len(comparison.arm_runs) // len(comparison.repeated),
            "right": comparison.right_repetitions,
            "wrong": [{"repetition": i, "verdict": verdict.verdict, "reasons": verdict.reasons}
                      for i, verdict in enumerate(comparison.repeated) if verdict.verdict != comparison.pair.expected]}


def _figures(comparison: Comparison) -> Json:
    figures: Json = {}
    for name, runs in (("baseline", comparison.baseline_runs), ("arm", comparison.arm_runs)):
        figures[name] = {"bytes": measuring.mean_of_last(runs, runs[0].keys.bytes),
                         "steps_to_target": measuring.mean_steps_to(runs, comparison.pair.metric),
                         "mean_loss": measuring.area(runs)}
        for key in ("update_error", "lost", "flushed_share", "norm_ratio"):
            figures[name][key] = measuring.mean_of_last(runs, key)
    sent, whole = figures["arm"]["bytes"], figures["baseline"]["bytes"]
    figures["times_fewer_bytes"] = whole / sent if sent and whole else None
    distance = measuring.parameter_distance(comparison.baseline_runs, comparison.arm_runs)
    figures["parameter_distance"] = distance[-1] if distance else None
    return figures


def _curves(comparison: Comparison) -> Json:
    curves: Json = {}
    for name, runs in (("baseline", comparison.baseline_runs), ("arm", comparison.arm_runs)):
        keys = runs[0].keys
        curves[name] = {"loss": measuring.mean_curve([run.curve(keys.loss) for run in runs]),
                        "metric": measuring.mean_curve([run.curve(keys.metric) for run in runs]),
                        "bytes": measuring.mean_curve([run.curve(keys.bytes) for run in runs]),
                        "update_error": measuring.mean_curve([run.curve("update_error") for run in runs])}
    distance = measuring.parameter_distance(comparison.baseline_runs, comparison.arm_runs)
    if distance:
        steps = [step for step, _ in curves["arm"]["metric"]]
        curves["arm"]["parameter_distance"] = [list(point) for point in zip(steps, distance, strict=False)]
    return curves


def as_junit(result: Json) -> str:
    """One test case per pair: failed where the verdict is not what it should be, of a control also where runs are too few to
    tell; an error where trainings failed, skipped where runs are too few otherwise."""
    suite = ElementTree.Element("testsuite", name=f"tightwire convergence: {result['study']}",
                                tests=str(len(result["comparisons"])))
    counts = {"failure": 0, "error": 0, "skipped": 0}
    for pair in result["comparisons"]:
        case = ElementTree.SubElement(suite, "testcase", classname=pair["task"], name=f"{pair['arm']} ({pair['kind']})")
        kind = ("error" if pair["verdict"] == FAILED else "failure" if not pair["right"]
                else "skipped" if pair["verdict"] == UNDECIDED and not pair["expected"] else "")
        text = f"{pair['verdict']}: {'; '.join(pair['reasons'])}"
        if kind:
            counts[kind] += 1
            ElementTree.SubElement(case, kind, message=text)
        ElementTree.SubElement(case, "system-out").text = text
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    suite.set("skipped", str(counts["skipped"]))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def mark(pair: Json) -> str:
    """What is to be said of a verdict besides itself."""
    if pair["expected"]:
        told = f", {repetitions(pair)} times" if pair["repetitions"] else ""
        return (f"as it must be{told}" if pair["right"] else f"MUST BE {pair['expected']}{told}")
    if pair["limit"] and pair["verdict"] != UNDECIDED:
        return "documented limit" if pair["right"] else "NOT AS DOCUMENTED"
    return "recommended" if pair["recommended"] else ""


def repetitions(pair: Json) -> str:
    """How many of a control's were judged as they must be, and of how many; "-" where there are none."""
    told = pair["repetitions"]
    return f"{told['right']} of {told['number']}" if told else "-"


def bounds(pair: Json) -> str:
    """The deficit with its bounds, to a hundredth of the margin or so; result.json has all digits."""
    shown = pair["estimate"]
    if not shown:
        return "-"
    digits = max(0, 2 - math.floor(math.log10(pair["metric"]["margin"])))
    mean, lower, upper = (f"{round(shown[name], digits) + 0.0:.{digits}f}" for name in ("mean", "lower", "upper"))
    return f"{mean} ({lower} to {upper})"


def table(result: Json) -> str:
    """For a terminal: a line per pair."""
    rows = [("task", "arm", "verdict", "", "fewer bytes", "why")]
    for pair in result["comparisons"]:
        fewer = (pair.get("figures") or {}).get("times_fewer_bytes")
        rows.append((pair["task"], pair["arm"], pair["verdict"], mark(pair), f"{fewer:.2f}x" if fewer else "-",
                     "; ".join(pair["reasons"])))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join("  ".join([row[i].ljust(widths[i]) for i in range(5)] + [row[5]]) for row in rows) + "\n"


def discard(folder: Path) -> None:
    """Removes the reports of an earlier run, so that nobody takes them for those of one that ends before it has its own."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


def write(result: Json, folder: Path, html: bool = True) -> list[Path]:
    """result.json, junit.xml and report.html."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"result.json": json.dumps(result, indent=1, allow_nan=False) + "\n", "junit.xml": as_junit(result)}
    if html:
        from .page import as_html

        files["report.html"] = as_html(result)
    for name, text in files.items():
        (folder / name).write_text(text)
    return [folder / name for name in files]
