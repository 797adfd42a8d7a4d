"""Judging a training that is a Python function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .judging import AS_GOOD, Evidence, Metric, Verdict, judge

Outcome = float | Mapping[str, float]


@dataclass(frozen=True)
class Compared:
    """The verdict on one codec, with the values it rests on, by seed."""

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
    counts as `worst`. Five seeds are the least that can give a verdict.
    """
    chosen = list(range(1, seeds + 1)) if isinstance(seeds, int) else list(seeds)
    judged_by = Metric(metric, margin, higher_is_better, worst)

    def values(codec: str) -> list[float]:
        outcomes = (train(codec, seed) for seed in chosen)
        return [float(outcome[metric] if isinstance(outcome, Mapping) else outcome) for outcome in outcomes]

    reference = values(baseline)
    trained = {codec: values(codec) for codec in codecs}
    evidence = [Evidence([judged_by.deficit(a, b) for a, b in zip(reference, own, strict=True)]) for own in trained.values()]
    verdicts = judge(evidence, [judged_by] * len(evidence), alpha)
    return {codec: Compared(codec, verdict, reference, own)
            for (codec, own), verdict in zip(trained.items(), verdicts, strict=True)}
