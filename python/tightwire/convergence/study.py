"""A study: pairs of an arm and its baseline over the same seeds, run and judged."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from . import measuring
from .judging import AS_GOOD, FAILED, UNDECIDED, WORSE, Evidence, Metric, Verdict, judge, wrong_verdicts
from .running import Job, Run, Runner
from .statistics import seeds_needed

Value = TypeVar("Value")


@dataclass(frozen=True)
class Arm:
    """One way to train: seed -> job."""

    name: str
    job: Callable[[int], Job]


@dataclass(frozen=True)
class Pair:
    """An arm, what it is compared with, and what the verdict must be where that is known."""

    task: str
    arm: Arm
    baseline: Arm
    metric: Metric
    kind: str = "scheme"  # scheme, positive control, negative control
    expected: str = ""
    judges_lost: bool = True
    recommended: bool = False  # too few runs to tell are not enough then
    limit: str = ""  # why it is documented to be worse; that it is not, or is for another reason, is then wrong
    deviation: float | None = None  # of paired differences, as far as is known before anything ran
    seeds: int = 0  # how many, from the study's first on; 0: the study's
    repetitions: int = 1  # of a control: judged so many times, each with so many seeds of its own


@dataclass(frozen=True)
class Rules:
    """How sure the verdicts are, and what is done with what stays undecided."""

    alpha: float = 0.05
    power: float = 0.9
    undecided_fails: bool = True


@dataclass
class Comparison:
    """A pair with its runs and its verdict."""

    pair: Pair
    arm_runs: list[Run]
    baseline_runs: list[Run]
    verdict: Verdict
    evidence: Evidence | None = None
    wrong_rate: float | None = None  # measured for controls: false alarms of positive ones, misses of negative ones
    repeated: list[Verdict] = field(default_factory=list)  # of a control that is repeated: of each repetition by itself

    @property
    def right_repetitions(self) -> int:
        """How many had the verdict that is expected."""
        return sum(verdict.verdict == self.pair.expected for verdict in self.repeated)

    @property
    def right(self) -> bool:
        """Whether the verdict, and that of every repetition, is what was expected; of a scheme of which nothing is expected, whether
        it is not worse. A limit that is documented excuses a worse metric, and never ranks that differ or updates that are lost."""
        if self.pair.expected:
            return self.verdict.verdict == self.pair.expected and self.right_repetitions == len(self.repeated)
        if self.pair.limit and self.verdict.verdict == WORSE:
            return self.verdict.by == ["metric"]
        if self.pair.limit and self.verdict.verdict == AS_GOOD:
            return False
        return self.verdict.verdict not in (WORSE, FAILED)

    @property
    def open(self) -> bool:
        """Whether runs were too few to tell, where that is not what was expected."""
        return self.verdict.verdict == UNDECIDED and self.pair.expected != UNDECIDED


@dataclass
class Study:
    """Everything to be run."""

    name: str
    pairs: Sequence[Pair]
    seeds: Sequence[int]
    rules: Rules = Rules()
    facts: dict[str, str] = field(default_factory=dict)  # for the report: machine, trainer, tier
    workers: int = 0  # trainings at a time, where nobody says otherwise; 0: as many as cores
    warnings: tuple[str, ...] = ()  # what may make its results others than they seem

    def seeds_of(self, pair: Pair) -> Sequence[int]:
        """Those a pair is trained with, one repetition's after the other's."""
        if not pair.seeds and pair.repetitions == 1:
            return self.seeds
        first = self.seeds[0]
        return range(first, first + (pair.seeds or len(self.seeds)) * pair.repetitions)

    def jobs(self) -> list[Job]:
        """All trainings, those of baselines first, so that an interrupted study has them all."""
        baselines = [pair.baseline.job(seed) for pair in self.pairs for seed in self.seeds_of(pair)]
        return baselines + [pair.arm.job(seed) for pair in self.pairs for seed in self.seeds_of(pair)]

    def power(self, runner: Runner) -> list[str]:
        """What is known before the run of how many seeds are needed: from pairs that earlier runs have."""
        told, unknown = [], 0
        expected: dict[tuple[str, float, float, int], int] = {}
        for pair in self.pairs:
            seeds = self.seeds_of(pair)
            known = [(base, arm) for seed in seeds
                     if (base := runner.cached(pair.baseline.job(seed))) and (arm := runner.cached(pair.arm.job(seed)))]
            if pair.kind == "negative control":
                continue
            if len(known) < 3:
                if pair.deviation is None:
                    unknown += 1
                else:
                    key = (pair.task, pair.deviation, pair.metric.margin, len(seeds))
                    expected[key] = expected.get(key, 0) + 1
                continue
            try:
                deficits = pair.metric.deficits([base.metric() for base, _ in known], [arm.metric() for _, arm in known])
            except ValueError as error:
                told.append(f"{pair.task}, {pair.arm.name}: of {len(known)} earlier seeds {error}")
                continue
            mean = sum(deficits) / len(deficits)
            deviation = math.sqrt(sum((d - mean) ** 2 for d in deficits) / (len(deficits) - 1))
            told.append(f"{pair.task}, {pair.arm.name}: paired differences of {len(known)} earlier seeds deviate by "
                        f"{deviation:.3g}; {self._need(deviation, pair.metric.margin, len(seeds))}")
        for (task, deviation, margin, seeds_there), count in expected.items():
            told.append(f"{task}, {count} pairs: paired differences are taken to deviate by {deviation:.3g}; "
                        f"{self._need(deviation, margin, seeds_there)}")
        if unknown:
            told.append(f"of {unknown} pairs fewer than 3 earlier runs are known, so that the seeds they need are not; "
                        f"they get {len(self.seeds)}")
        return told

    def _need(self, deviation: float, margin: float, seeds: int) -> str:
        need = seeds_needed(deviation, margin, self.rules.alpha / len(self.pairs), self.rules.power)
        return f"{need} seeds show a margin of {margin:g} with power {self.rules.power:g}, and there are {seeds}"

    def run(self, runner: Runner) -> list[Comparison]:
        """Runs what is missing and judges all pairs together."""
        runs = runner.run(self.jobs())
        baselines, arms = iter(runs[: len(runs) // 2]), iter(runs[len(runs) // 2:])
        comparisons = []
        for pair in self.pairs:
            count = len(self.seeds_of(pair))
            comparison = Comparison(pair, list(itertools.islice(arms, count)), list(itertools.islice(baselines, count)),
                                    Verdict(UNDECIDED))
            failures = [run for run in comparison.baseline_runs + comparison.arm_runs if run.error]
            if failures:
                comparison.verdict = Verdict(FAILED, [f"{run.title}: {run.error}" for run in failures[:3]])
            else:
                try:
                    comparison.evidence = _evidence(comparison)
                except ValueError as error:  # of this pair alone: what else was found is worth telling
                    comparison.verdict = Verdict(FAILED, [str(error)])
            comparisons.append(comparison)
        judged = [(c, c.evidence) for c in comparisons if c.evidence]
        verdicts = judge([evidence for _, evidence in judged], [c.pair.metric for c, _ in judged], self.rules.alpha)
        for (comparison, evidence), verdict in zip(judged, verdicts, strict=True):
            comparison.verdict = verdict
            if comparison.pair.limit:
                verdict.reasons.append(_about_limit(comparison))
            if comparison.pair.kind != "scheme":
                comparison.wrong_rate = wrong_verdicts(evidence, comparison.pair.metric, comparison.pair.expected,
                                                       len(judged), self.rules.alpha)
        self._repeat([(c, evidence) for c, evidence in judged if c.pair.repetitions > 1])
        return comparisons

    def _repeat(self, controls: Sequence[tuple[Comparison, Evidence]]) -> None:
        """Judges each repetition of the controls by itself: as strict as if they alone were a study."""
        for number in range(max((c.pair.repetitions for c, _ in controls), default=0)):
            parts = []
            for comparison, evidence in controls:
                if number < comparison.pair.repetitions:
                    seeds = len(evidence.deficits) // comparison.pair.repetitions
                    parts.append((comparison, evidence.of(range(number * seeds, (number + 1) * seeds))))
            verdicts = judge([part for _, part in parts], [c.pair.metric for c, _ in parts], self.rules.alpha)
            for (comparison, _), verdict in zip(parts, verdicts, strict=True):
                comparison.repeated.append(verdict)

    def status(self, comparisons: Sequence[Comparison]) -> int:
        """0: all as it should be; 1: some scheme is worse, or a control was judged wrongly, or a documented limit is none; 2:
        trainings failed, or gave nothing to judge; 3: too few runs for something that must be known, or for anything at all."""
        if any(c.verdict.verdict == FAILED for c in comparisons):
            return 2
        undecided = [c for c in comparisons if c.open]
        if any(not c.right for c in comparisons if not c.open):
            return 1
        if undecided and len(undecided) == len(comparisons):
            return 3
        return 3 if any(self.rules.undecided_fails or c.pair.recommended or c.pair.expected for c in undecided) else 0


def _about_limit(comparison: Comparison) -> str:
    limit = comparison.pair.limit
    if comparison.verdict.verdict == AS_GOOD:
        return f"documented to be worse, and is as good: take this limit out of the tier and out of the docs ({limit})"
    return f"documented: {limit}" if comparison.right else f"documented is only a worse metric: {limit}"


def _evidence(comparison: Comparison) -> Evidence:
    pair = comparison.pair
    deficits = pair.metric.deficits([run.metric() for run in comparison.baseline_runs],
                                    [run.metric() for run in comparison.arm_runs])
    lost = _all_known([measuring.most_lost(run) for run in comparison.arm_runs])
    return Evidence(deficits, lost if pair.judges_lost else (),
                    _all_known([measuring.first_difference(run) for run in comparison.arm_runs]))


def _all_known(values: Sequence[Value | None]) -> list[Value]:
    """None of them where one is not known."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []


def expected_of(kind: str) -> str:
    """The verdict a control must get."""
    return {"positive control": AS_GOOD, "negative control": WORSE}.get(kind, "")


def today() -> str:
    """As it goes into reports."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
