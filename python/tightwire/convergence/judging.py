"""From the runs of two arms to a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy

from .statistics import FEWEST_RUNS, Estimate, estimate, holm

AS_GOOD, WORSE, UNDECIDED, FAILED = "as good", "worse", "not enough runs", "failed"

# What error feedback may lose of the sum of all updates: nothing but rounding, which is 1e-6 and less.
MOST_LOST = 1e-4


@dataclass(frozen=True)
class Metric:
    """What is judged, and by how much an arm may be worse. Throws ValueError where `margin` is no number above 0, or another
    figure is not finite."""

    name: str
    margin: float
    higher_is_better: bool = False
    worst: float | None = None  # stands for a run that diverged; for others a bound
    target: float | None = None  # a level to be reached, for "steps to reach it"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.margin) and self.margin > 0):
            raise ValueError(f"the margin of the metric \"{self.name}\" must be a number above 0, got {self.margin!r}")
        for key, value in (("worst", self.worst), ("target", self.target)):
            if value is not None and not math.isfinite(value):
                raise ValueError(f"`{key}` of the metric \"{self.name}\" must be finite, got {value!r}")

    def deficit(self, baseline: float | None, arm: float | None) -> float:
        """How much worse `arm` is; an arm that diverged counts as the worst there is. Throws ValueError where the baseline
        diverged: nothing is known to be good then."""
        if self.diverged(baseline):
            raise ValueError(f"the baseline diverged: its \"{self.name}\" is {_shown(baseline)}{self._bound()}")
        base, other = self._bounded(baseline), self._bounded(arm)
        return base - other if self.higher_is_better else other - base

    def deficits(self, baseline: Sequence[float | None], arm: Sequence[float | None]) -> list[float]:
        """By seed. Throws ValueError where nothing can be judged: a baseline diverged, or all seeds gave it the same value. That
        may be only where the arm, too, gave that value with every seed."""
        told = sum(self.diverged(value) for value in baseline)
        if told:
            first = next(value for value in baseline if self.diverged(value))
            raise ValueError(f"the baseline diverged in {told} of {len(baseline)} runs: \"{self.name}\" {_shown(first)}"
                             f"{self._bound()}; there is nothing to be as good as")
        if len(baseline) >= FEWEST_RUNS and len(set(baseline)) == 1 and list(baseline) != list(arm):
            raise ValueError(f"seeds change nothing: \"{self.name}\" of all {len(baseline)} runs of the baseline is "
                             f"{_shown(baseline[0])}; does the seed reach the trainer?")
        return [self.deficit(base, other) for base, other in zip(baseline, arm, strict=True)]

    def diverged(self, value: float | None) -> bool:
        """Whether this is no better than what a run that failed to train has."""
        if value is None or not math.isfinite(value):
            return True
        return self.worst is not None and (value <= self.worst if self.higher_is_better else value >= self.worst)

    def _bound(self) -> str:
        return "" if self.worst is None else f", and {self.worst:g} is `worst`"

    def _bounded(self, value: float | None) -> float:
        if value is None or not math.isfinite(value):
            if self.worst is None:
                raise ValueError(f"a run diverged, and the metric \"{self.name}\" has no `worst` to count it as")
            return self.worst
        if self.worst is None:
            return value
        return max(value, self.worst) if self.higher_is_better else min(value, self.worst)


def _shown(value: float | None) -> str:
    return "not finite" if value is None or not math.isfinite(value) else f"{value:g}"


@dataclass
class Verdict:
    """Why, in `reasons`, in words and numbers."""

    verdict: str
    reasons: list[str] = field(default_factory=list)
    by: list[str] = field(default_factory=list)  # metric, replicas, lost: what found it worse
    estimate: Estimate | None = None
    p_as_good: float = 1.0  # adjusted for the number of comparisons
    p_worse: float = 1.0


@dataclass(frozen=True)
class Evidence:
    """All that the verdict on one pair rests on; lists are by seed."""

    deficits: Sequence[float]
    lost: Sequence[float] = ()  # the most that a run lost; empty where nothing is promised
    differing: Sequence[int] = ()  # steps at which ranks first differed, -1 where never

    def of(self, indices: Sequence[int]) -> Evidence:
        return Evidence([self.deficits[i] for i in indices], [self.lost[i] for i in indices] if self.lost else (),
                        [self.differing[i] for i in indices] if self.differing else ())


def judge(evidence: Sequence[Evidence], metrics: Sequence[Metric], alpha: float = 0.05) -> list[Verdict]:
    """One verdict per pair, corrected for their number: where deficits are nearly normal, the chance of any wrong "as good", and
    of any wrong "worse", stays below alpha. What is rare is seen by many seeds only: see `rarest_seen`."""
    verdicts, judged = [], []
    if not 0 < alpha < 0.5:  # not so of NaN
        raise ValueError(f"alpha must be between 0 and 0.5, got {alpha!r}")
    for one, metric in zip(evidence, metrics, strict=True):
        verdict = Verdict(UNDECIDED)
        verdicts.append(verdict)
        if len(one.deficits) < 2:
            continue
        verdict.estimate = estimate(one.deficits, metric.margin, alpha)
        if len(one.deficits) >= FEWEST_RUNS:
            judged.append((verdict, verdict.estimate))
    for (verdict, _), p in zip(judged, holm([e.p_not_below for _, e in judged]), strict=True):
        verdict.p_as_good = p
    for (verdict, _), p in zip(judged, holm([e.p_not_above for _, e in judged]), strict=True):
        verdict.p_worse = p
    for verdict, one, metric in zip(verdicts, evidence, metrics, strict=True):
        _decide(verdict, one, metric, alpha)
    return verdicts


def _decide(verdict: Verdict, evidence: Evidence, metric: Metric, alpha: float) -> None:
    first = [step for step in evidence.differing if step >= 0]
    if first:
        verdict.by.append("replicas")
        verdict.reasons.append(f"ranks differ in {len(first)} of {len(evidence.differing)} runs, first at step {min(first)}")
    lost = [share for share in evidence.lost if not share <= MOST_LOST]
    if lost:
        verdict.by.append("lost")
        verdict.reasons.append(f"up to {max(lost):.2%} of the updates were lost, and no residual holds them")
    shown = verdict.estimate
    if shown is None or shown.runs < FEWEST_RUNS:
        told = f", worse by {shown.mean:.4g} in the mean" if shown else ""
        verdict.reasons.append(f"{len(evidence.deficits)} runs are too few{told}; {FEWEST_RUNS} are the least")
    else:
        bounds = f"{metric.name} worse by {shown.mean:.4g} ({shown.lower:.4g} to {shown.upper:.4g}), margin {metric.margin:g}"
        if verdict.p_worse <= alpha:
            verdict.by.append("metric")
        if not first and not lost and verdict.p_as_good <= alpha:
            verdict.verdict = AS_GOOD
        verdict.reasons.append(bounds)
        if not any(evidence.deficits):
            verdict.reasons.append("every run has the metric of its baseline, to the bit")
    if verdict.by:
        verdict.verdict = WORSE


def wrong_verdicts(evidence: Evidence, metric: Metric, right: str, comparisons: int, alpha: float = 0.05,
                   repetitions: int = 200, seed: int = 7) -> float:
    """How often the verdict is not the right one, measured by judging samples of the runs at hand, drawn with replacement. For
    "as good", a false alarm is "worse"; for "worse", a miss is anything else. As strict as for `comparisons` pairs."""
    random = numpy.random.default_rng(seed)
    runs, wrong = len(evidence.deficits), 0
    for _ in range(repetitions):
        sample = evidence.of([int(i) for i in random.integers(0, runs, runs)])
        verdict = judge([sample], [metric], alpha / comparisons)[0].verdict
        wrong += verdict == WORSE if right == AS_GOOD else verdict != WORSE
    return wrong / repetitions
