"""The suite's own studies: which tasks, schemes and controls a tier runs, and with which margins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .judging import Metric
from .running import Job
from .study import Arm, Pair, Rules, Study, expected_of


@dataclass(frozen=True)
class Task:
    """A task of the trainer with what it is judged by."""

    metric: Metric
    steps: int  # of a training whose options do not say
    deviation: float | None = None  # of paired differences of sound schemes, as measured in the quick tier


# Excess losses are judged by their logarithm: 0.15 is 1.4 times as far from the optimum. The other margins are about what
# another seed of exact training changes. docs/convergence.md says more.
TASKS = {
    "least-squares": Task(Metric("log10 of excess loss", 0.15, worst=2.0, target=-2.0), 400, 0.01),
    "logistic": Task(Metric("log10 of excess loss", 0.15, worst=2.0, target=-1.3), 400, 0.01),
    "quadratic": Task(Metric("log10 of excess loss", 0.15, worst=2.0, target=-2.0), 500, 0.01),
    "fashion": Task(Metric("accuracy", 0.02, higher_is_better=True, worst=0.1, target=0.75), 150, 0.005),
    "transformer": Task(Metric("validation loss", 0.05, worst=5.0, target=2.4), 250, 0.002),
    "embedding": Task(Metric("test error", 0.05, worst=5.0, target=0.5), 300, 0.003),
}


@dataclass(frozen=True)
class Scheme:
    """A codec with what belongs to it; "{fifth}" stands for a fifth of the steps. Nothing is promised of `lost` where feedback is
    off on purpose, or where the trainer cannot see all residuals."""

    name: str
    options: tuple[str, ...]
    tasks: tuple[str, ...] = ()  # empty: all of the tier
    sees_residuals: bool = True
    recommended: bool = False  # must be shown to be as good, or its limit be documented; is in the table of docs/codecs.md


def codec(spec: str, *options: str, recommended: bool = False) -> Scheme:
    """A scheme named by its specification."""
    return Scheme(" ".join((spec, *options)), ("--codec", spec, *options), recommended=recommended)


SCHEMES = (
    codec("bf16"), codec("fp8-e4m3"), codec("int8", recommended=True),
    codec("int4", recommended=True), codec("hadamard:32+int4:block=32"),
    codec("mxfp4"), codec("nvfp4"), codec("int2"), codec("hadamard:4096+lloyd2"), codec("hadamard:4096+sign"),
    codec("topk:ratio=0.05"), codec("topk:ratio=0.05+int8"), codec("randomk:ratio=0.1"), codec("powersgd:rank=4", recommended=True),
)
# Two nodes of two ranks. What a node keeps of its sum is in no list of residuals that a trainer can ask for.
HIERARCHY = Scheme("hier(across=int4, levels=node:2)", ("--codec", "hier(across=int4, levels=node:2)"), sees_residuals=False)
MORE_SCHEMES = (
    codec("fp16"), codec("int6"), codec("int3"), codec("int8-affine"), codec("mxfp8-e4m3"), codec("fp4"), codec("ternary"),
    codec("sign"), codec("hadamard:4096+lloyd4"), codec("hadamard:4096+eden2", "--no-error-feedback"),
    codec("qsgd8", "--no-error-feedback"), codec("int4:round=stochastic", "--no-error-feedback"),
    codec("topk:ratio=0.01"), codec("powersgd:rank=1"), codec("powersgd:rank=2"),
    codec("powersgd:rank=8", recommended=True), codec("powersgd:rank=4+int8"), codec("powersgd:rank=4,start=50"),
)
# 1 % needs longer trainings than those of the quick tier; docs/sparse.md says how long, and how momentum correction wants its learning
# rate.
TOP_K = Scheme("topk:ratio=0.05, warm-up of a fifth", ("--codec", "topk:ratio=0.05,warm-up={fifth}"), recommended=True)
TOP_K_10 = Scheme("topk:ratio=0.1, warm-up of a fifth", ("--codec", "topk:ratio=0.1,warm-up={fifth}"))
MOMENTUM_TASKS = ("least-squares", "logistic", "fashion")
TOP_K_1 = Scheme("topk:ratio=0.01, warm-up of a fifth", ("--codec", "topk:ratio=0.01,warm-up={fifth}"), recommended=True)
CORRECTED_1 = Scheme("topk:ratio=0.01, warm-up of a fifth, momentum correction",
                     ("--codec", "topk:ratio=0.01,warm-up={fifth}", "--momentum-correction", "0.9"), MOMENTUM_TASKS, recommended=True)
CORRECTED = Scheme("topk:ratio=0.05 with momentum correction",
                   ("--codec", "topk:ratio=0.05", "--momentum-correction", "0.9"), MOMENTUM_TASKS)


@dataclass(frozen=True)
class Control:
    """A change of a training that must be found worse (negative), or as good."""

    name: str
    negative: bool
    task: str
    options: tuple[str, ...]
    seeds_apart: int = 0  # the arm takes other seeds than the baseline


def _control(name: str, negative: bool, task: str, spec: str = "exact", *options: str) -> Control:
    return Control(name if spec == "exact" else f"{name}, {spec}", negative, task,
                   ("--codec", spec, "--control", name, *options))


POSITIVE = (
    _control("reversed-sum", False, "least-squares"),
    _control("rebuilt", False, "least-squares", "topk:ratio=0.05"),
    Control("another seed", False, "least-squares", ("--codec", "exact"), seeds_apart=1000),
    _control("independent-noise", False, "quadratic", "exact", "--ranks", "8"),
    _control("reversed-sum", False, "fashion"),
)
NEGATIVE = (
    _control("feedback-off", True, "least-squares", "sign"),
    _control("feedback-off", True, "least-squares", "topk:ratio=0.05"),
    _control("feedback-twice", True, "least-squares", "topk:ratio=0.05"),
    _control("momentum-twice", True, "least-squares"),
    _control("replicas-differ", True, "least-squares", "int8"),
    _control("sum-not-mean", True, "least-squares"),
    _control("stale-residual", True, "least-squares", "topk:ratio=0.05"),
    _control("shared-noise", True, "quadratic", "exact", "--ranks", "8"),
    _control("dropped-contribution", True, "least-squares", "int8"),
    _control("unscaled-rate", True, "least-squares"),
)


@dataclass(frozen=True)
class Tier:
    """How much is run. `options` shorten the tasks."""

    tasks: tuple[str, ...]
    schemes: tuple[Scheme, ...]
    controls: tuple[Control, ...]
    seeds: int
    other_seeds: int = 0  # of schemes that are not recommended; 0: as many
    repetitions: int = 1  # of the controls, each with seeds of its own
    control_seeds: int = 0  # of a repetition; 0: as many
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    limits: dict[tuple[str, str], str] = field(default_factory=dict)  # task, scheme: why it is worse; in the docs, word by word


# Of the quick tier, whose trainings are short. A scheme that turns out to be as good in spite of one is told, too.
LATE = "an element waits for ten steps in the mean, which the learning rate of a short training does not bear"
MASKED = "masking takes momentum from elements that are sent often, so that at this ratio the learning rate must be twice as high"
LATE_FOR_THE_RATE = "what rank 4 brings late is too much for the learning rate of 0.5: at a quarter of that, or with rank 8, it is as good"
FEW_FOR_ADAMW = "too few for AdamW over 1,000 steps, and 10 % hardly enough: int4 or rank 8 is as good"
LOW_FOR_ADAMW = "too little for AdamW over 1,000 steps: rank 8 is as good"
LIMITS = {
    **{(task, "randomk:ratio=0.1"): LATE for task in TASKS},
    ("least-squares", CORRECTED.name): MASKED,
    ("quadratic", "powersgd:rank=4"): LATE_FOR_THE_RATE,
}

FULL_LIMITS = {
    ("transformer", "powersgd:rank=4"): LOW_FOR_ADAMW,
    ("transformer", TOP_K.name): FEW_FOR_ADAMW,
    ("transformer", TOP_K_1.name): FEW_FOR_ADAMW,
}

# The full tier sees a codec that ruins one training in seven, of what is recommended. Eight seeds for the others, and for a repetition of a
# control as in the smoke tier, make it some four hours on two cores and not a day.
TIERS = {
    "smoke": Tier(("least-squares", "fashion"), (codec("int8"), codec("int4")), POSITIVE[:4] + NEGATIVE, 8,
                  options={"fashion": ("--steps", "60")}),
    "quick": Tier(tuple(TASKS), (*SCHEMES, HIERARCHY, TOP_K, CORRECTED), POSITIVE + NEGATIVE, 6, limits=LIMITS),
    "full": Tier(tuple(TASKS), (*SCHEMES, HIERARCHY, *MORE_SCHEMES, TOP_K, CORRECTED, TOP_K_10, TOP_K_1, CORRECTED_1), POSITIVE + NEGATIVE, 20, other_seeds=8,
                 repetitions=20, control_seeds=8,
                 options={"fashion": ("--steps", "500"), "transformer": ("--steps", "1000"), "embedding": ("--steps", "1000"),
                          "least-squares": ("--steps", "2000"), "logistic": ("--steps", "2000"), "quadratic": ("--steps", "2000")},
                 limits=FULL_LIMITS),
}
RANKS = "4"  # of a training whose options do not say
LIMIT = 3600  # seconds for a training: the longest take half a minute on a core that is free

# Of the full tier, with exact as with int8, int4 and top-k: what a training can be besides.
VARIANTS = (
    ("fashion", "Nesterov, weight decay", ("--optimizer", "nesterov", "--learning-rate", "0.05", "--weight-decay", "5e-4")),
    ("fashion", "Adam", ("--optimizer", "adam", "--learning-rate", "2e-3")),
    ("fashion", "AdamW", ("--optimizer", "adamw", "--learning-rate", "2e-3", "--weight-decay", "0.01")),
    ("fashion", "clipping", ("--clip-norm", "1")),
    ("fashion", "accumulation of 4", ("--accumulate", "4")),
    ("fashion", "2 ranks", ("--ranks", "2")),
    ("fashion", "8 ranks", ("--ranks", "8")),
)


@dataclass(frozen=True)
class Trainer:
    """Our own, and whether its ranks are processes, which `tightwire run` beside it launches, or threads."""

    path: str
    launched: bool = False

    def command(self, options: Sequence[str]) -> tuple[str, ...]:
        """Everything up to the options of the training, and those."""
        if not self.launched:
            return (self.path, *options)
        ranks = options[options.index("--ranks") + 1] if "--ranks" in options else RANKS
        return (str(Path(self.path).parent / "tightwire"), "run", "--quiet", "-n", ranks, "--", self.path, "--launched", *options)


def _arm(trainer: Trainer, name: str, task: str, options: Sequence[str], seeds_apart: int = 0) -> Arm:
    def job(seed: int) -> Job:
        command = trainer.command(("--task", task, *options, "--seed", str(seed + seeds_apart), "--parameters", "{parameters}"))
        return Job(f"{task}, {name}, seed {seed}", command, files=(trainer.path,), timeout=LIMIT, sample=True,
                   environment={"OMP_NUM_THREADS": "1"}, folder=str(Path(trainer.path).parent))  # the same from wherever it is called

    return Arm(name, job)


def _scheme_pair(trainer: Trainer, task: str, scheme: Scheme, tier: Tier, variant: str = "",
                 options: Sequence[str] = ()) -> Pair:
    title = f"{task}: {variant}" if variant else task
    options = (*tier.options.get(task, ()), *options)
    seeds = tier.seeds if scheme.recommended else tier.other_seeds
    steps = int(options[options.index("--steps") + 1]) if "--steps" in options else TASKS[task].steps
    arm = (*(option.replace("{fifth}", str(steps // 5)) for option in scheme.options), *options)
    return Pair(title, _arm(trainer, scheme.name, task, arm),
                _arm(trainer, "exact", task, options), TASKS[task].metric,
                judges_lost=scheme.sees_residuals and "--no-error-feedback" not in scheme.options, recommended=scheme.recommended,
                limit=tier.limits.get((title, scheme.name), ""), deviation=TASKS[task].deviation, seeds=seeds)


def _control_pair(trainer: Trainer, control: Control, tier: Tier, options: Sequence[str]) -> Pair:
    kind = "negative control" if control.negative else "positive control"
    ranks = [part for i, part in enumerate(control.options) if "--ranks" in control.options[max(0, i - 1):i + 1]]
    return Pair(control.task, _arm(trainer, control.name, control.task, (*control.options, *options), control.seeds_apart),
                _arm(trainer, "exact", control.task, (*ranks, *options)), TASKS[control.task].metric, kind, expected_of(kind),
                judges_lost=not control.name.startswith(("independent-noise", "shared-noise")),
                seeds=tier.control_seeds, repetitions=tier.repetitions)


def tier_study(name: str, trainer: Trainer, seeds: int = 0, tasks: Sequence[str] = (), codecs: Sequence[str] = (),
               controls: bool = True) -> Study:
    """A tier, or a part of it. `seeds`, if not 0, is the number for all but controls that are repeated; a codec that is named here
    gets as many as what is recommended."""
    tier = TIERS[name]
    if seeds or codecs:
        tier = replace(tier, seeds=seeds or tier.seeds, other_seeds=0)
    chosen = tuple(tasks) or tier.tasks
    listed = {scheme.name: scheme for scheme in tier.schemes}
    schemes = tuple(listed.get(spec) or codec(spec) for spec in codecs) or tier.schemes
    pairs = [_scheme_pair(trainer, task, scheme, tier)
             for task in chosen for scheme in schemes if not scheme.tasks or task in scheme.tasks]
    if name == "full" and not codecs:
        pairs += [_scheme_pair(trainer, task, codec(spec), tier, variant, options)
                  for task, variant, options in VARIANTS if task in chosen
                  for spec in ("int8", "int4", "topk:ratio=0.05")]
    if controls:
        # A control shows what the suite can see; more steps than a tier of short trainings has make it see no more.
        pairs += [_control_pair(trainer, control, tier, tier.options.get(control.task, ()) if name == "smoke" else ())
                  for control in tier.controls if control.task in chosen or not tasks]
    return Study(f"{name} tier", pairs, range(1, 1 + tier.seeds),
                 Rules(undecided_fails=name == "smoke" or bool(codecs)),  # who names a codec asks what becomes of it
                 {"trainer": trainer.path, "ranks are": "processes over UCX" if trainer.launched else "threads of a process"})
