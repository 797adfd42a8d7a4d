"""What is told of runs besides the metric that is judged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from .judging import Metric
from .running import Run, number


def most_lost(run: Run) -> float | None:
    """The largest part of the updates that no residual held at an evaluation; None where the trainer does not tell. Not
    finite counts as all."""
    values = [number(line["lost"]) for line in run.lines if "lost" in line]
    if not values:
        return None
    return max(1.0 if value is None else value for value in values)


def first_difference(run: Run) -> int | None:
    """The step at which ranks first held different bits; -1: never; None where the trainer does not tell."""
    values = [(line.get(run.keys.step, 0), line["differing_ranks"]) for line in run.lines if "differing_ranks" in line]
    if not values:
        return None
    return min((int(step) for step, differing in values if differing), default=-1)


def mean_curve(curves: Sequence[Sequence[tuple[float, float | None]]]) -> list[list[float]]:
    """Mean over runs, at the steps that all of them have; up to where one diverged."""
    if not curves or not all(curves):
        return []
    common = set.intersection(*(set(step for step, _ in curve) for curve in curves))
    points = []
    for step in sorted(common):
        mean = _mean([dict(curve)[step] for curve in curves])
        if mean is None:
            break
        points.append([step, mean])
    return points


def mean_of_last(runs: Sequence[Run], name: str) -> float | None:
    """Mean over runs of the last value of a figure."""
    values = []
    for run in runs:
        lines = [line for line in run.lines if name in line]
        values.append(number(lines[-1][name]) if lines else None)
    return _mean(values)


def _mean(values: Sequence[float | None]) -> float | None:
    """None where there are none, or one of them is none."""
    known = [value for value in values if value is not None]
    return float(numpy.mean(known)) if known and len(known) == len(values) else None


def steps_to(run: Run, metric: Metric) -> float | None:
    """The first evaluated step at which the target is reached."""
    if metric.target is None:
        return None
    for step, value in run.curve(run.keys.metric):
        if value is not None and (value >= metric.target if metric.higher_is_better else value <= metric.target):
            return step
    return None


def mean_steps_to(runs: Sequence[Run], metric: Metric) -> float | None:
    """Mean over runs; None where one does not reach it."""
    return _mean([steps_to(run, metric) for run in runs])


def area(runs: Sequence[Run]) -> float | None:
    """Mean loss over a training: the area under its curve by its length."""
    curve = mean_curve([run.curve(run.keys.loss) for run in runs])
    return float(numpy.mean([value for _, value in curve])) if curve else None


def parameter_distance(baseline: Sequence[Run], arm: Sequence[Run]) -> list[float] | None:
    """By evaluation, the distance of an arm's parameters from those of the baseline with the same seed, in lengths of the way
    that the baseline went in all. Mean over seeds, of the sample that the trainer wrote."""
    distances = []
    for base, other in zip(baseline, arm, strict=True):
        if base.sample is None or other.sample is None or not (base.sample.exists() and other.sample.exists()):
            return None
        times = len({step for step, _ in base.curve(base.keys.metric)})
        if times == 0:
            return None
        a, b = (numpy.fromfile(sample, dtype=numpy.float32).astype(float) for sample in (base.sample, other.sample))
        if a.size != b.size or a.size % times:
            return None
        a, b = a.reshape(times, -1), b.reshape(times, -1)
        way = float(numpy.linalg.norm(a[-1] - a[0]))
        distances.append(numpy.linalg.norm(a - b, axis=1) / way if way > 0 else numpy.zeros(times))
    mean = numpy.mean(distances, axis=0)
    return [float(d) for d in mean] if numpy.isfinite(mean).all() else None
