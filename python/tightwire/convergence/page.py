"""The result as one HTML page that needs no network: verdicts, figures and curves. Everything in it is in result.json; each
part says where."""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence

from . import charts
from .charts import Pairs
from .judging import UNDECIDED
from .report import bounds, mark, repetitions
from .running import Json
from .statistics import rarest_seen

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; width: 100%; font-size: 0.86rem; }
th, td { text-align: left; padding: 0.25rem 0.6rem; border-bottom: 1px solid #e4e4e4; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; } td.number { white-space: nowrap; }
.verdict { font-weight: 600; white-space: nowrap; } .good { color: #11663a; } .worse { color: #a11b1b; }
.open { color: #7a5a00; } tr.wrong, td.wrong { background: #fde8e8; } tr.task td { font-weight: 600; background: #f4f4f4; }
table.matrix { font-size: 0.8rem; } table.matrix td { white-space: nowrap; } .source { color: #777; font-size: 0.78rem; }
td.words { min-width: 14em; } td.short { white-space: nowrap; } code { font-size: 0.92em; } svg { width: 100%; height: auto; }
@media print { body { max-width: none; margin: 0; font-size: 11px; } h2 { break-after: avoid; }
  tr, figure { break-inside: avoid; } figure { margin: 0; } table { font-size: 9px; } th, td { padding: 2px 4px; } }
"""
CLASSES = {"as good": "good", "worse": "worse"}


def as_html(result: Json) -> str:
    """The page."""
    pairs = list(enumerate(result["comparisons"]))
    schemes = [(i, p) for i, p in pairs if p["kind"] == "scheme"]
    controls = [(i, p) for i, p in pairs if p["kind"] != "scheme"]
    tasks: dict[str, list[tuple[int, Json]]] = {}
    for i, pair in schemes or controls:
        tasks.setdefault(pair["task"], []).append((i, pair))
    parts = [f"<h1>Convergence: {_text(result['study'])}</h1>", _summary(result, schemes, controls)]
    parts += ["<h2>At a glance</h2>", *([_matrix(tasks)] if schemes else []), f"<figure>{charts.deficits(dict(tasks))}</figure>",
              "<p class=source>Points are mean deficits, lines their bounds, green: as good, red: worse, brown: not enough runs; "
              "an arrow, with how far, points to what is farther. <code>comparisons[i].estimate</code> by "
              "<code>comparisons[i].metric.margin</code> of result.json.</p>"]
    if schemes:
        parts += ["<h2>Schemes</h2>", _verdicts(schemes), "<h2>Figures</h2>", _figures(schemes)]
    if controls:
        parts += ["<h2>Controls</h2>", "<p>Negative controls are broken on purpose and must be found worse, positive ones are "
                  "sound and must be found as good. The wrong rate was measured by judging samples of these runs, drawn "
                  "with replacement: how often a positive control would be found worse (false alarm), or a negative one "
                  f"would not be (miss). Over all controls: false alarms {_format(result['false_alarm_rate'], '.1%')}, misses "
                  f"{_format(result['miss_rate'], '.1%')} (<code>false_alarm_rate</code>, <code>miss_rate</code>)."
                  f"{_told_of_repetitions(controls)}</p>",
                  _verdicts(controls, True)]
    for task, members in tasks.items():
        members = [(i, pair) for i, pair in members if pair.get("curves")]
        if members:
            parts += [f"<h2>Curves: {_text(task)}</h2>", f"<figure>{charts.curves(members)}</figure>",
                      f"<p class=source>Means over seeds; <code>comparisons[{members[0][0]}..{members[-1][0]}].curves</code> of "
                      "result.json.</p>"]
    body = "\n".join(parts)
    return ("<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<title>Convergence: {_text(result['study'])}</title><style>{STYLE}</style></head><body>\n{body}\n</body></html>\n")


def _summary(result: Json, schemes: Pairs, controls: Pairs) -> str:
    counts: dict[str, int] = {}
    for _, pair in schemes:
        counts[pair["verdict"]] = counts.get(pair["verdict"], 0) + 1
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "none"
    right = sum(pair["right"] for _, pair in controls)
    facts = "".join(f"<tr><td>{_text(key)}</td><td><code>{_text(value)}</code></td></tr>"
                    for key, value in result["facts"].items())
    rules = result["rules"]
    seeds = [len(pair["runs"]) for _, pair in schemes or controls] or [len(result["seeds"])]
    fewest, most = min(seeds), max(seeds)
    return (f"<p>{_text(result['date'])}. {fewest if fewest == most else f'{fewest} to {most}'} seeds. Schemes: {told}. Controls: {right} of {len(controls)} "
            f"judged as they must be.</p><p>Every arm is compared with full-precision training of the same seed, data order and "
            f"first weights. <em>As good</em>: the mean deficit is below the margin; <em>worse</em>: it is above, or ranks "
            f"differ, or updates were lost that no residual holds; each with less than {rules['alpha']:.0%} risk for all "
            f"comparisons together (Holm), where deficits are nearly normal. What happens to fewer than "
            f"{rarest_seen(fewest, rules['alpha']):.0%} of trainings, {fewest} seeds likely do not "
            f"show at all. Bounds are one-sided, {1 - rules['alpha']:.0%} each.</p><table>{facts}</table>")


def _matrix(tasks: dict[str, list[tuple[int, Json]]]) -> str:
    """Arms by tasks: the deficit, coloured by the verdict."""
    arms: dict[str, dict[str, tuple[int, Json]]] = {}
    for task, pairs in tasks.items():
        for i, pair in pairs:
            arms.setdefault(pair["arm"], {})[task] = (i, pair)
    margins = {task: pairs[0][1]["metric"]["margin"] for task, pairs in tasks.items()}
    head = ["arm", "times fewer bytes", *(f"{task} (margin {margin:g})" for task, margin in margins.items())]
    rows = []
    for arm, by_task in arms.items():
        fewer = [pair["figures"]["times_fewer_bytes"] for _, pair in by_task.values() if pair.get("figures")]
        known = [times for times in fewer if times]
        cells = [f"<td><code>{_text(arm)}</code></td>",
                 _number(f"{min(known):.1f} to {max(known):.1f}" if known else "-")]
        for task in tasks:
            if task not in by_task:
                cells.append("<td></td>")
                continue
            i, pair = by_task[task]
            deficit = f" {round(pair['estimate']['mean'], 3) + 0.0:+.3f}" if pair["estimate"] else ""
            told = {"as good": "good", UNDECIDED: "open"}.get(pair["verdict"], pair["verdict"])
            cells.append(f"<td class='number {CLASSES.get(pair['verdict'], 'open')}{'' if pair['right'] else ' wrong'}' "
                         f"title='comparisons[{i}]'>{_text(told)}{deficit}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return _rows(head, rows, range(1, len(head))).replace("<table>", "<table class=matrix>")


def _verdicts(pairs: Pairs, controls: bool = False) -> str:
    repeated = any(pair["repetitions"] for _, pair in pairs)
    head = ["arm", "verdict"] + (["must be", "found by"] if controls else []) + [
        "deficit (bounds)", "margin", "seeds", "seeds for power", "besides"] + (["wrong rate"] if controls else []) + (
        ["right repetitions"] if repeated else [])
    rows = []
    for n, (i, pair) in enumerate(pairs):
        rows += _task_row(pairs, n, len(head))
        by, shown = pair["verdict"], pair["estimate"]
        cells = [_cell(pair["arm"]),
                 f"<td class='verdict {CLASSES.get(by, 'open')}'>{_text(by)}</td>"]
        if controls:
            cells += [_cell(pair["expected"], "short"), _cell(", ".join(pair["found_by"]) or "-")]
        cells += [_number(bounds(pair)),
                  _number(f"{pair['metric']['margin']:g}"), _number(str(shown["runs"]) if shown else "-"),
                  _number(str(pair["seeds_for_power"] or "-")), _cell("; ".join(_besides(pair)), "words")]
        if controls:
            rate = pair["wrong_verdict_rate"]
            cells.append(_number("-" if rate is None else f"{rate:.1%}"))
        if repeated:
            cells.append(_number(repetitions(pair)))
        rows.append(f"<tr class='{'' if pair['right'] else 'wrong'}' title='comparisons[{i}]'>{''.join(cells)}</tr>")
    first = 4 if controls else 2
    return (_rows(head, rows, [*range(first, first + 4), first + 5, first + 6]) + f"<p class=source><code>comparisons[{pairs[0][0]}..{pairs[-1][0]}]</code> of result.json, a row "
            "each: <code>verdict, estimate, metric, seeds_for_power, reasons, found_by, wrong_verdict_rate, repetitions</code>.</p>")


def _told_of_repetitions(controls: Pairs) -> str:
    """What the last column is, where controls were repeated, and the count over all of them."""
    counts = [pair["repetitions"] for _, pair in controls if pair["repetitions"]]
    if not counts:
        return ""
    right, number = sum(one["right"] for one in counts), sum(one["number"] for one in counts)
    return (f" Besides, controls were repeated, each time with seeds of their own, and judged as a study of their own: {right} of "
            f"{number} repetitions gave the verdict that they must (<code>comparisons[i].repetitions</code>).")


def _besides(pair: Json) -> list[str]:
    """What is to be said of the verdict, and the reasons but for that of the metric, which has columns of its own."""
    told = [] if pair["expected"] or not mark(pair) else [mark(pair)]
    return told + [reason for reason in pair["reasons"]
                   if not (pair["estimate"] and reason.startswith(pair["metric"]["name"]))]


def _task_row(pairs: Pairs, n: int, columns: int) -> list[str]:
    """A heading where the task changes."""
    task = pairs[n][1]["task"]
    return [] if n and pairs[n - 1][1]["task"] == task else [f"<tr class=task><td colspan={columns}>{_text(task)}</td></tr>"]


def _figures(pairs: Pairs) -> str:
    head = ["arm", "times fewer bytes", "steps to target (exact)", "mean loss (exact)", "update error", "lost",
            "parameter distance", "flushed to zero", "norm ratio"]
    rows = []
    for n, (i, pair) in enumerate(pairs):
        rows += _task_row(pairs, n, len(head))
        figures = pair.get("figures")
        if not figures:
            continue
        arm, base = figures["arm"], figures["baseline"]
        rows.append(f"<tr title='comparisons[{i}].figures'>" + _cell(pair["arm"]) + "".join(
            _number(text) for text in (
                _format(figures["times_fewer_bytes"], ".2f"),
                f"{_format(arm['steps_to_target'], '.0f')} ({_format(base['steps_to_target'], '.0f')})",
                f"{_format(arm['mean_loss'], '.4g')} ({_format(base['mean_loss'], '.4g')})",
                _format(arm["update_error"], ".2g"), _format(arm["lost"], ".1g"),
                _format(figures["parameter_distance"], ".3f"), _format(arm["flushed_share"], ".1%"),
                _format(arm["norm_ratio"], ".3f"))) + "</tr>")
    return _rows(head, rows, range(1, len(head))) + (
        "<p class=source><code>comparisons[i].figures</code> of result.json. Update error: distance of the sum of all updates "
        "from that of the true means, in its lengths; lost: the part of it that no residual holds. Parameter distance: from "
        "the exact run of the same seed, in lengths of its way. Norm ratio: lengths of results by lengths of true means.</p>")


def _rows(head: Sequence[str], rows: Sequence[str], numbers: Collection[int]) -> str:
    """A table; of which columns are numbers, and stand to the right."""
    names = "".join(f"<th{' class=number' if i in numbers else ''}>{_text(name)}</th>" for i, name in enumerate(head))
    return f"<table><thead><tr>{names}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _format(value: float | None, pattern: str) -> str:
    return "-" if value is None else format(value, pattern)


def _cell(text: str, kind: str = "") -> str:
    return f"<td{f' class={kind}' if kind else ''}>{_text(text)}</td>"


def _number(text: str) -> str:
    return f"<td class=number>{_text(text)}</td>"


def _text(value: object) -> str:
    return html.escape(str(value))
