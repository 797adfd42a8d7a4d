"""Judging a training that is a Python function."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .judging import AS_GOOD, FAILED, Evidence, Metric, Verdict, judge

Outcome = float | Mapping[str, float]


@dataclass(frozen=True)
class Compared:
    """The verdict on one codec, with the values it rests on, by seed. "failed" where there was nothing to judge: the reason
    tells why."""

    codec: str
    verdict: Verdict
    baseline: list[float]
    values: list[float]

    @property
    def as_good(self) -> bool:
        """Whether it was shown to be as good as the baseline."""
        return self.verdict.verdict == AS_GOOD


def compare(train: Callable[[str, int], Outcome], codecs: Sequence[str], seeds: Iterable[int] | int, *, margin: float,
            baseline: str = "exact", metric: str = "metric", higher_is_better: bool = False, worst: float | None = None,
            alpha: float = 0.05) -> dict[str, Compared]:
    """Trains with every codec and every seed, and judges each codec against the baseline with the same seeds.

    `train(codec, seed)` returns the metric, or a mapping that has it under the name `metric`. A value that is not finite
    counts as `worst`. Five seeds are the least that can give a verdict. Raises ValueError, before anything is trained, where
    `seeds` are none or not different, or `margin`, `worst` or `alpha` make no sense; TypeError where a metric is no number.
    """
    chosen = list(range(1, seeds + 1)) if isinstance(seeds, int) else [operator.index(seed) for seed in seeds]
    if not chosen or len(set(chosen)) != len(chosen):
        raise ValueError(f"seeds must be a number above 0, or different numbers, got {seeds if isinstance(seeds, int) else chosen}")
    judged_by = Metric(metric, margin, higher_is_better, worst)
    judge([], [], alpha)  # throws where alpha makes no sense

    def values(codec: str) -> list[float]:
        return [_number(train(codec, seed), codec, seed, metric) for seed in chosen]

    reference = values(baseline)
    trained = {codec: values(codec) for codec in codecs}
    evidence, verdicts = {}, {}
    for codec, own in trained.items():
        try:
            evidence[codec] = Evidence(judged_by.deficits(reference, own))
        except ValueError as error:
            verdicts[codec] = Verdict(FAILED, [str(error)])
    judged = judge(list(evidence.values()), [judged_by] * len(evidence), alpha)
    verdicts.update(zip(evidence, judged, strict=True))
    return {codec: Compared(codec, verdicts[codec], reference, own) for codec, own in trained.items()}


def _number(outcome: Outcome, codec: str, seed: int, metric: str) -> float:
    value = outcome[metric] if isinstance(outcome, Mapping) else outcome
    # A bool or a text that looks like a number is a mistake; numbers of NumPy and tensors of one element are none.
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"the \"{metric}\" of codec \"{codec}\", seed {seed}, is no number: {value!r}")
    return float(value)
