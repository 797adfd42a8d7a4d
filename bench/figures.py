"""The plots of docs/benchmarks.md, from what compare.py measured."""
import math
import pathlib
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

STAGES = {"compute": "#9a9a9a", "optimizer": "#cfcfcf", "encode": "#1f77b4", "combine": "#2ca02c", "decode": "#17becf",
          "wire": "#d62728"}


def save(figure: Any, folder: pathlib.Path, name: str) -> str:
    figure.savefig(folder / name, dpi=110, bbox_inches="tight")
    pyplot.close(figure)
    return name


def time_against_size(folder: pathlib.Path, rows: list[dict[str, Any]], link: str, name: str) -> str:
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for scheme in dict.fromkeys(row["scheme"] for row in rows):
        points = sorted((row["bytes"], row["seconds"]) for row in rows if row["link"] == link and row["scheme"] == scheme)
        if points:
            axes.loglog([b / (1 << 20) for b, _ in points], [1e3 * s for _, s in points], marker="o", ms=3, label=scheme)
    axes.set(xlabel="MiB of fp32", ylabel="ms", title=f"all-reduce over {name}")
    axes.legend(fontsize=8)
    return save(figure, folder, f"time-{link}.png")


def speedup_against_rate(folder: pathlib.Path, rows: list[dict[str, Any]]) -> list[str]:
    """Of the largest size that all rates have; where a line crosses 1, compression stops paying."""
    rates = sorted({row["link"] for row in rows if row["link"].isdigit()}, key=int)
    sizes = [{row["bytes"] for row in rows if row["link"] == rate and row["scheme"] == "exact"} for rate in rates]
    if len(rates) < 2 or not set.intersection(*sizes):
        return []
    size = max(set.intersection(*sizes))
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for scheme in dict.fromkeys(row["scheme"] for row in rows):
        points = []
        for rate in rates:
            here = {row["scheme"]: row["seconds"] for row in rows if row["link"] == rate and row["bytes"] == size}
            if scheme in here and scheme != "exact":
                points.append((int(rate) / 1000, here["exact"] / here[scheme]))
        if not points:
            continue
        line = axes.loglog([x for x, _ in points], [y for _, y in points], marker="o", ms=3, label=scheme)[0]
        for (x0, y0), (x1, y1) in zip(points, points[1:]):
            if (y0 - 1) * (y1 - 1) < 0:  # straight in logarithms
                at = math.log(y0) / (math.log(y0) - math.log(y1))
                axes.plot([x0 * (x1 / x0) ** at], [1], "x", ms=9, color=line.get_color())
    axes.axhline(1, color="gray", lw=0.8)
    axes.set(xlabel="Gbit/s", ylabel="times as fast as exact", title=f"{size / (1 << 20):g} MiB; x: where it stops paying")
    axes.legend(fontsize=8)
    return [save(figure, folder, "speedup.png")]


def accuracy_against_time(folder: pathlib.Path, rows: list[dict[str, Any]], link: str, name: str) -> str:
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for row in rows:
        axes.plot([seconds for seconds, _ in row["points"]], [100 * accuracy for _, accuracy in row["points"]], marker="o", ms=2,
                  label=row["scheme"])
    axes.axhline(100 * rows[0]["target"], color="gray", lw=0.8)
    axes.set(xlabel="seconds", ylabel="% of test images right", title=f"Fashion-MNIST over {name}", ylim=(60, None))
    axes.legend(fontsize=8)
    return save(figure, folder, f"training-accuracy-{link}.png")


def split_of_step(folder: pathlib.Path, rows: list[dict[str, Any]], link: str, name: str) -> str:
    figure, axes = pyplot.subplots(figsize=(7, 3.5))
    for at, row in enumerate(rows):
        left = 0.0
        for stage, color in STAGES.items():
            length = 1e3 * row["split_seconds"].get(stage, 0.0)
            axes.barh(at, length, left=left, color=color, label=stage if at == 0 else None)
            left += length
    axes.set_yticks(range(len(rows)), [row["scheme"] for row in rows])
    axes.invert_yaxis()
    axes.set(xlabel="ms", title=f"a training step over {name}")
    axes.legend(fontsize=8)
    return save(figure, folder, f"training-step-{link}.png")


def draw_all(folder: pathlib.Path, rows: list[dict[str, Any]], training: dict[str, Any], names: dict[str, str]) -> list[str]:
    """Names of the files it wrote into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    links = dict.fromkeys(row["link"] for row in rows)
    drawn = [time_against_size(folder, rows, link, names.get(link, link)) for link in links] + speedup_against_rate(folder, rows)
    for link, trainings in training.get("accuracy", {}).items():
        drawn.append(accuracy_against_time(folder, trainings, link, names.get(link, link)))
        drawn.append(split_of_step(folder, trainings, link, names.get(link, link)))
    return drawn
