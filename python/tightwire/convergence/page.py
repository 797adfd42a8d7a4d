"""The result as one HTML page that needs no network: verdicts, figures and curves. Everything in it is in result.json; each
part says where."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence

import matplotlib  # type: ignore[import]  # Debian's has no types

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402  after the backend is chosen

from .running import Json  # noqa: E402

Pairs = Sequence[tuple[int, Json]]  # with their places in the result

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; width: 100%; font-size: 0.86rem; }
th, td { text-align: left; padding: 0.25rem 0.6rem; border-bottom: 1px solid #e4e4e4; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; } td.number { white-space: nowrap; }
.verdict { font-weight: 600; white-space: nowrap; } .good { color: #11663a; } .worse { color: #a11b1b; }
.open { color: #7a5a00; } .wrong { background: #fde8e8; } .source { color: #777; font-size: 0.78rem; }
code { font-size: 0.92em; } svg { width: 100%; height: auto; }
@media print { body { max-width: none; margin: 0; font-size: 11px; } h2 { break-after: avoid; }
  tr, figure { break-inside: avoid; } figure { margin: 0; } }
"""
CLASSES = {"as good": "good", "worse": "worse"}


def as_html(result: Json) -> str:
    """The page."""
    pairs = list(enumerate(result["comparisons"]))
    schemes = [(i, p) for i, p in pairs if p["kind"] == "scheme"]
    controls = [(i, p) for i, p in pairs if p["kind"] != "scheme"]
    parts = [f"<h1>Convergence: {_text(result['study'])}</h1>", _summary(result, schemes, controls)]
    if schemes:
        parts += ["<h2>Schemes</h2>", _verdicts(schemes), "<h2>Figures</h2>", _figures(schemes)]
    if controls:
        parts += ["<h2>Controls</h2>", "<p>Negative controls are broken on purpose and must be found worse, positive ones are "
                  "sound and must be found as good. The last column was measured by judging samples of these runs, drawn "
                  "with replacement: how often a positive control would be found worse (false alarm), or a negative one "
                  f"would not be (miss). Over all controls: false alarms {_format(result['false_alarm_rate'], '.1%')}, misses "
                  f"{_format(result['miss_rate'], '.1%')} (<code>false_alarm_rate</code>, <code>miss_rate</code>).</p>",
                  _verdicts(controls, True)]
    tasks: dict[str, list[tuple[int, Json]]] = {}
    for i, pair in schemes or controls:
        tasks.setdefault(pair["task"], []).append((i, pair))
    for task, members in tasks.items():
        members = [(i, pair) for i, pair in members if pair.get("curves")]
        if members:
            parts += [f"<h2>Curves: {_text(task)}</h2>", f"<figure>{_curves(members)}</figure>",
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
    return (f"<p>{_text(result['date'])}. {len(result['seeds'])} seeds. Schemes: {told}. Controls: {right} of {len(controls)} "
            f"judged as they must be.</p><p>Every arm is compared with full-precision training of the same seed, data order and "
            f"first weights. <em>As good</em>: the mean deficit is below the margin; <em>worse</em>: it is above, or ranks "
            f"differ, or updates were lost that no residual holds; each with less than {rules['alpha']:.0%} risk for all "
            f"comparisons together (Holm). Bounds are one-sided, {1 - rules['alpha']:.0%} each.</p><table>{facts}</table>")


def _verdicts(pairs: Pairs, controls: bool = False) -> str:
    head = ["task", "arm", "verdict"] + (["must be", "found by"] if controls else []) + [
        "deficit (bounds)", "margin", "seeds", "seeds for power", "besides"] + (["wrong rate"] if controls else [])
    rows = []
    for i, pair in pairs:
        shown, by = pair["estimate"], pair["verdict"]
        cells = [_cell(pair["task"]), _cell(pair["arm"]),
                 f"<td class='verdict {CLASSES.get(by, 'open')}'>{_text(by)}</td>"]
        if controls:
            cells += [_cell(pair["expected"]), _cell(", ".join(pair["found_by"]) or "-")]
        cells += [_number(f"{shown['mean']:.3g} ({shown['lower']:.3g} … {shown['upper']:.3g})" if shown else "-"),
                  _number(f"{pair['metric']['margin']:g}"), _number(str(shown["runs"]) if shown else "-"),
                  _number(str(pair["seeds_for_power"] or "-")), _cell("; ".join(_besides(pair)))]
        if controls:
            rate = pair["wrong_verdict_rate"]
            cells.append(_number("-" if rate is None else f"{rate:.1%}"))
        rows.append(f"<tr class='{'' if pair['right'] else 'wrong'}' title='comparisons[{i}]'>{''.join(cells)}</tr>")
    return (_rows(head, rows) + f"<p class=source><code>comparisons[{pairs[0][0]}..{pairs[-1][0]}]</code> of result.json, a row "
            "each: <code>verdict, estimate, metric, seeds_for_power, reasons, found_by, wrong_verdict_rate</code>.</p>")


def _besides(pair: Json) -> list[str]:
    """The reasons but for that of the metric, which has columns of its own."""
    return [reason for reason in pair["reasons"] if not (pair["estimate"] and reason.startswith(pair["metric"]["name"]))]


def _figures(pairs: Pairs) -> str:
    head = ["task", "arm", "times fewer bytes", "steps to target (exact)", "mean loss (exact)", "update error", "lost",
            "parameter distance", "flushed to zero", "norm ratio"]
    rows = []
    for i, pair in pairs:
        figures = pair.get("figures")
        if not figures:
            continue
        arm, base = figures["arm"], figures["baseline"]
        rows.append(f"<tr title='comparisons[{i}].figures'>" + _cell(pair["task"]) + _cell(pair["arm"]) + "".join(
            _number(text) for text in (
                _format(figures["times_fewer_bytes"], ".2f"),
                f"{_format(arm['steps_to_target'], '.0f')} ({_format(base['steps_to_target'], '.0f')})",
                f"{_format(arm['mean_loss'], '.4g')} ({_format(base['mean_loss'], '.4g')})",
                _format(arm["update_error"], ".2g"), _format(arm["lost"], ".1g"),
                _format(figures["parameter_distance"], ".3f"), _format(arm["flushed_share"], ".1%"),
                _format(arm["norm_ratio"], ".3f"))) + "</tr>")
    return _rows(head, rows, 2) + (
        "<p class=source><code>comparisons[i].figures</code> of result.json. Update error: distance of the sum of all updates "
        "from that of the true means, in its lengths; lost: the part of it that no residual holds. Parameter distance: from "
        "the exact run of the same seed, in lengths of its way. Norm ratio: lengths of results by lengths of true means.</p>")


def _curves(members: Pairs) -> str:
    figure, grid = pyplot.subplots(2, 3, figsize=(13, 7.2))
    base = members[0][1]["curves"]["baseline"]
    colors = matplotlib.colormaps["tab20"]
    lines = [("exact", base, "black", "-")] + [(pair["arm"], pair["curves"]["arm"], colors(n % 20), "-" if n < 20 else "--")
                                               for n, (_, pair) in enumerate(members)]
    metric = members[0][1]["metric"]["name"]
    panels = ((grid[0][0], "loss", "loss over steps", False), (grid[0][1], "loss", "loss over bytes sent by a rank", True),
              (grid[0][2], "metric", f"{metric} over steps", False), (grid[1][0], "metric", f"{metric} over bytes", True),
              (grid[1][1], "update_error", "cumulative update error", False),
              (grid[1][2], "parameter_distance", "distance of parameters from the exact run", False))
    for axes, name, title, over_bytes in panels:
        for label, curves, color, style in lines:
            points = curves.get(name) or []
            if over_bytes:
                sent = {step: value for step, value in curves["bytes"]}
                points = [(sent[step], value) for step, value in points if sent.get(step)]
            if name in ("update_error", "parameter_distance") and label == "exact":
                continue
            if points:
                axes.plot(*zip(*points, strict=True), label=label, color=color, linestyle=style, linewidth=1.2)
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
        if over_bytes:
            axes.set_xscale("log")
        if name == "loss" or name in ("update_error", "parameter_distance"):
            axes.set_yscale("symlog" if name != "loss" else "log", **({"linthresh": 1e-6} if name != "loss" else {}))
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=5, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.04 + 0.028 * (len(labels) // 5 + 1), 1, 1))
    text = io.StringIO()
    figure.savefig(text, format="svg")
    pyplot.close(figure)
    svg = text.getvalue()
    return svg[svg.index("<svg"):]


def _rows(head: Sequence[str], rows: Sequence[str], first_number: int = 99) -> str:
    names = "".join(f"<th{' class=number' if i >= first_number else ''}>{_text(name)}</th>" for i, name in enumerate(head))
    return f"<table><thead><tr>{names}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _format(value: float | None, pattern: str) -> str:
    return "-" if value is None else format(value, pattern)


def _cell(text: str) -> str:
    return f"<td>{_text(text)}</td>"


def _number(text: str) -> str:
    return f"<td class=number>{_text(text)}</td>"


def _text(value: object) -> str:
    return html.escape(str(value))
