"""Figures of a report, as SVG to stand in a page."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import matplotlib  # type: ignore[import]  # Debian's has no types

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402  after the backend is chosen

from .judging import AS_GOOD, WORSE  # noqa: E402
from .running import Json  # noqa: E402

Pairs = Sequence[tuple[int, Json]]  # with their places in the result

COLORS = {AS_GOOD: "#11663a", WORSE: "#a11b1b"}
OPEN = "#b07d00"
FARTHEST = 3.0  # in margins, that a deficit is shown; beyond it an arrow


def deficits(tasks: dict[str, Pairs]) -> str:
    """Every arm's deficit with its bounds in margins of its task, a panel for each task: left of the line at 1 is as good."""
    tasks = {task: [(i, pair) for i, pair in pairs if pair["estimate"]] for task, pairs in tasks.items()}
    arms = list(dict.fromkeys(pair["arm"] for pairs in tasks.values() for _, pair in pairs))
    figure, grid = pyplot.subplots(1, len(tasks), figsize=(2.6 + 1.9 * len(tasks), 1.1 + 0.24 * len(arms)), sharey=True,
                                   squeeze=False)
    for axes, (task, pairs) in zip(grid[0], tasks.items(), strict=True):
        axes.axvspan(1, FARTHEST * 1.1, color="#fbeaea")
        axes.axvline(0, color="#999", linewidth=0.8)
        axes.axvline(1, color="#a11b1b", linewidth=1)
        for _, pair in pairs:
            _deficit(axes, arms.index(pair["arm"]), pair)
        axes.set_xlim(-FARTHEST / 2, FARTHEST * 1.1)
        axes.set_xticks([-1, 0, 1, 2, 3])
        axes.set_title(task, fontsize=9)
        axes.grid(axis="y", alpha=0.25)
        axes.tick_params(labelsize=8, length=2)
    grid[0][0].set_yticks(range(len(arms)), arms)
    grid[0][0].set_ylim(len(arms) - 0.5, -0.5)
    figure.supxlabel("deficit, in margins of the task (beyond 1: worse by more than the margin)", fontsize=8)
    figure.tight_layout()
    return _svg(figure)


def _deficit(axes: matplotlib.axes.Axes, row: int, pair: Json) -> None:
    margin, shown = pair["metric"]["margin"], pair["estimate"]
    mean, lower, upper = (shown[name] / margin for name in ("mean", "lower", "upper"))
    color = COLORS.get(pair["verdict"], OPEN)
    low, high = -FARTHEST / 2, FARTHEST
    axes.plot([max(lower, low), min(upper, high)], [row, row], color=color, linewidth=1.6, solid_capstyle="butt")
    if low <= mean <= high:
        axes.plot([mean], [row], "o", color=color, markersize=4.5)
    else:
        axes.plot([min(max(mean, low * 0.95), high)], [row], ">" if mean > 0 else "<", color=color, markersize=5.5)
        axes.annotate(f"{mean:.0f}", (high - 0.3 if mean > 0 else low + 0.3, row), fontsize=7, color=color, va="center",
                      ha="right" if mean > 0 else "left", backgroundcolor="#ffffffc0")


def curves(members: Pairs) -> str:
    """Loss and metric over steps and over bytes, update error, distance of parameters: a line per arm, means over seeds. Arms that
    are not as good are thick."""
    figure, grid = pyplot.subplots(3, 2, figsize=(12, 12.5))
    base = members[0][1]["curves"]["baseline"]
    palette = matplotlib.colormaps["tab20"]
    lines = [("exact", base, {"color": "black", "linewidth": 1.8})]
    for n, (_, pair) in enumerate(members):
        good = pair["verdict"] == AS_GOOD
        style = {"color": palette(n % 20), "linestyle": "-" if n < 20 else "--", "linewidth": 1.1 if good else 2.4,
                 "alpha": 0.8 if good else 1.0}
        lines.append((pair["arm"] + ("" if good else f" ({pair['verdict']})"), pair["curves"]["arm"], style))
    metric = members[0][1]["metric"]["name"]
    panels = (("loss", "loss over steps", "step"), ("loss", "loss over bytes that a rank sent", "bytes"),
              ("metric", f"{metric} over steps", "step"), ("metric", f"{metric} over bytes that a rank sent", "bytes"),
              ("update_error", "distance of the sum of all updates from the exact one", "step"),
              ("parameter_distance", "distance of parameters from the exact run", "step"))
    for axes, (name, title, over) in zip(grid.flat, panels, strict=True):
        for label, of_arm, style in lines:
            points = of_arm.get(name) or []
            if over == "bytes":
                sent = {step: value for step, value in of_arm["bytes"]}
                points = [(sent[step], value) for step, value in points if sent.get(step)]
            if points and not (label == "exact" and name in ("update_error", "parameter_distance")):
                axes.plot(*zip(*points, strict=True), label=label, **style)
        _scales(axes, name, over)
        axes.set_title(title, fontsize=10)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0.02 + 0.017 * math.ceil(len(labels) / 4), 1, 1))
    return _svg(figure)


def _scales(axes: matplotlib.axes.Axes, name: str, over: str) -> None:
    axes.grid(alpha=0.3)
    axes.set_xlabel(over, fontsize=8)
    axes.tick_params(labelsize=8)
    if over == "bytes":
        axes.set_xscale("log")
    if name == "loss":
        axes.set_yscale("log")
    elif name != "metric":
        axes.set_yscale("symlog", linthresh=1e-6)
        _, top = axes.get_ylim()
        axes.set_ylim(0, top)
        axes.yaxis.set_major_locator(matplotlib.ticker.SymmetricalLogLocator(base=10, linthresh=1e-6, subs=[1.0]))


def _svg(figure: matplotlib.figure.Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg")
    pyplot.close(figure)
    svg = text.getvalue()
    return svg[svg.index("<svg"):]
