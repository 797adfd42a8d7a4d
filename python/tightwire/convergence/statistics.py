"""The statistics of the suite: paired, one-sided, with few runs.

A deficit is how much worse an arm is than the baseline with the same seed. An arm is as good when the mean deficit is surely
below the margin, worse when it is surely above, and undecided in between. Small samples make the plain bootstrap too sure of
itself, so its quantiles are expanded as for Student's t (Hesterberg 2015), and the wider of both answers counts.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy

FEWEST_RUNS = 5  # with four, no sample could show anything at 5 % by signs alone
RESAMPLES = 4000

_NORMAL = NormalDist()


def student_cdf(t: float, freedom: float) -> float:
    """Probability that Student's t with these degrees of freedom is at most `t`, by Simpson's rule."""
    if math.isinf(t):
        return 1.0 if t > 0 else 0.0
    if abs(t) > 1e6:
        t = math.copysign(1e6, t)
    # With t = sqrt(freedom) tan(angle) the density is a power of the cosine: smooth, on a finite range.
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    angles = numpy.linspace(0.0, math.atan(abs(t) / math.sqrt(freedom)), 401)
    values = numpy.cos(angles) ** (freedom - 1)
    step = angles[1] - angles[0]
    area = step / 3 * (values[0] + values[-1] + 4 * values[1:-1:2].sum() + 2 * values[2:-1:2].sum())
    return 0.5 + math.copysign(min(scale * float(area), 0.5), t)


@functools.cache
def student_quantile(probability: float, freedom: float) -> float:
    """The inverse of `student_cdf`, by bisection."""
    if not 0 < probability < 1:
        raise ValueError(f"a probability is between 0 and 1, got {probability}")
    low, high = -1e6, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        if student_cdf(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@dataclass(frozen=True)
class Estimate:
    """The mean of paired deficits with one-sided bounds, and how sure it is that it lies below or above the margin."""

    runs: int
    mean: float
    deviation: float
    lower: float
    upper: float
    p_not_below: float  # of data like these if the mean were at the margin, against "below"
    p_not_above: float  # the same against "above"


def estimate(deficits: Sequence[float], margin: float, alpha: float = 0.05, seed: int = 1) -> Estimate:
    """Bounds of confidence 1 - alpha each, and p-values against `margin`. At least two deficits, all finite. Where they have no
    spread, only their signs are evidence, of p-value 2^-runs; but for deficits of 0 to the bit, which are no estimate."""
    values = numpy.asarray(deficits, dtype=float)
    runs = len(values)
    if runs < 2:
        raise ValueError(f"two runs or more are needed, got {runs}")
    if not numpy.isfinite(values).all():
        raise ValueError("deficits must be finite; replace those of diverged runs by the worst of the task")
    if not math.isfinite(margin):
        raise ValueError(f"a margin must be finite, got {margin!r}")
    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    if deviation < 1e-12 * max(abs(mean), abs(margin), 1e-300):
        least = 2.0**-runs if values.any() else 0.0
        return Estimate(runs, mean, 0.0, mean, mean, least if mean < margin else 1.0, least if mean > margin else 1.0)
    random = numpy.random.default_rng(seed)
    means = numpy.sort(values[random.integers(0, runs, (RESAMPLES, runs))].mean(axis=1))
    error = deviation / math.sqrt(runs)
    quantile = student_quantile(1 - alpha, runs - 1)
    expanded = _NORMAL.cdf(-math.sqrt(runs / (runs - 1)) * quantile)
    lower = min(float(numpy.quantile(means, expanded)), mean - quantile * error)
    upper = max(float(numpy.quantile(means, 1 - expanded)), mean + quantile * error)
    return Estimate(
        runs, mean, deviation, lower, upper,
        _less_sure(_expanded_p(float((means >= margin).mean()), runs), 1 - student_cdf((margin - mean) / error, runs - 1)),
        _less_sure(_expanded_p(float((means <= margin).mean()), runs), 1 - student_cdf((mean - margin) / error, runs - 1)),
    )


def _less_sure(one: float, other: float) -> float:
    """The larger p-value; what is no number shows nothing."""
    return 1.0 if math.isnan(one) or math.isnan(other) else max(one, other)


def _expanded_p(share: float, runs: int) -> float:
    """The p-value that belongs to a share of resampled means beyond the margin. Where none is, all runs are on one side, of
    which resampling knows no more: Student's t alone counts then."""
    if share <= 0:
        return 0.0
    if share >= 1:
        return 1.0
    return 1 - student_cdf(-_NORMAL.inv_cdf(share) / math.sqrt(runs / (runs - 1)), runs - 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted so that all of them may be compared with alpha: the chance of any false one stays below it (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, so_far = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        so_far = max(so_far, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = so_far
    return adjusted


def rarest_seen(runs: int, alpha: float = 0.05) -> float:
    """The smallest share of runs that go wrong of which at least one is among so many seeds, with probability 1 - alpha: what
    happens less often is likely not seen at all, and no verdict speaks of it."""
    return 1 - float(alpha ** (1 / runs))


def seeds_needed(deviation: float, margin: float, alpha: float = 0.05, power: float = 0.9, most: int = 10_000) -> int:
    """How many seeds show, with this probability, that an arm that truly equals the baseline is within the margin."""
    if margin <= 0 or deviation < 0:
        raise ValueError(f"margin must be above 0 and deviation no less than 0, got {margin} and {deviation}")

    def suffice(runs: int) -> bool:
        # Student's t shifted by what the margin is in standard errors stands for the noncentral one.
        quantile = student_quantile(1 - alpha, runs - 1)
        return deviation == 0 or student_cdf(margin * math.sqrt(runs) / deviation - quantile, runs - 1) >= power

    return bisect.bisect_left(range(most), True, lo=FEWEST_RUNS, key=suffice)
