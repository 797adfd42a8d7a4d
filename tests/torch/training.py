"""A model trained with every kind of codec, in every situation that a trainer can bring about, beside the same model trained
without our hook."""

import contextlib
import functools
from typing import Any, Optional

import torch
import torch.distributed as dist

import harness
from harness import attach, flat, loss_of, model, same_on_all_ranks, wrap

STEPS = 8
LONG, MARGIN = 150, 0.05  # steps; of a loss on other data, as for the transformer's in docs/convergence.md
# A codec, and how far its parameters may be from those without a hook, as part of the way that these went: about half as far
# again as they are where they are farthest.
CODECS = {
    "exact": 2e-6,
    "dense small=compressed": 2e-6,
    "int8:block=64": 0.0024,
    "int4:block=32": 0.02,
    "topk:ratio=0.25": 0.17,
    "powersgd:rank=4": 0.3,
}
# The same without error feedback, which those bounds must tell apart.
FORGETFUL = {
    "int8:block=64": "int8:block=64,round=nearest feedback=off",
    "int4:block=32": "int4:block=32,round=nearest feedback=off",
    "topk:ratio=0.25": "topk:ratio=0.25,without-feedback feedback=off",
    "powersgd:rank=4": "powersgd:rank=4,without-feedback feedback=off",
}


class Scaler:
    """What torch.amp.GradScaler("cpu") does, which torch has from 2.3 on."""

    def __init__(self) -> None:
        self.factor, self.found = 2.0**16, False

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.factor

    def get_scale(self) -> float:
        return self.factor

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for gradient in gradients:
            gradient.mul_(1 / self.factor)
        self.found = not all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        if not self.found:
            optimizer.step()

    def update(self) -> None:
        if self.found:
            self.factor /= 2


class Run:
    """One training, with or without our hook."""

    def __init__(self, codec: Optional[str], branch: bool = False, group: Any = None, **options: Any) -> None:
        self.module = model(branch)
        self.start = flat(self.module)
        self.ddp = wrap(self.module, process_group=group, **options)
        self.sync = None if codec is None else attach(self.ddp, codec, exact=["*.bias", "norm*"], timeout=harness.TIMEOUT)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.05, momentum=0.9)

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def plain(run: Run) -> None:
    for step in range(STEPS):
        loss_of(run.ddp, step).backward()
        run.step()


def accumulation(run: Run) -> None:
    for step in range(STEPS):
        with run.ddp.no_sync():
            loss_of(run.ddp, step, 0).backward()
            loss_of(run.ddp, step, 1).backward()
        loss_of(run.ddp, step, 2).backward()
        run.step()


def clipping(run: Run) -> None:
    for step in range(STEPS):
        loss_of(run.ddp, step).backward()
        norm = torch.nn.utils.clip_grad_norm_(run.module.parameters(), 0.5)
        assert norm > 0
        run.step()


def unused(run: Run) -> None:
    for step in range(STEPS):  # ranks differ in what they use, and in some steps nobody uses the branch
        loss_of(run.ddp, step, use_branch=step % 3 == harness.rank() % 2).backward()
        run.step()


def mixed_precision(run: Run) -> None:
    scaler = torch.amp.GradScaler("cpu") if hasattr(torch.amp, "GradScaler") else Scaler()
    for step in range(STEPS):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(run.ddp, step)
        if step == 3 and harness.rank() == harness.size() - 1:
            loss = loss * float("inf")  # on one rank; all must skip the step
        scaler.scale(loss).backward()
        if run.sync is None:
            scaler.step(run.optimizer)
            scaler.update()
        else:
            taken = run.sync.step(run.optimizer, scaler)
            assert taken == (step != 3), step
        run.optimizer.zero_grad()
    assert scaler.get_scale() == 2.0**15, "one step was to be skipped"


class DoublingScaler:
    """Doubles its scale every third step."""

    def __init__(self, doubles: bool) -> None:
        self.factor, self.doubles, self.steps = 1024.0, doubles, 0

    def get_scale(self) -> float:
        return self.factor

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad /= self.factor
        optimizer.step()

    def update(self) -> None:
        self.steps += 1
        if self.doubles and self.steps % 3 == 0:
            self.factor *= 2


def residuals_follow_the_loss_scale() -> None:
    """Powers of two change no bit, if residuals are in the unit of the gradient that they are added to."""
    results = []
    for doubles in (False, True):
        ddp = wrap(model())
        sync = attach(ddp, "int4:block=32")
        optimizer, scaler = torch.optim.SGD(ddp.parameters(), lr=0.2), DoublingScaler(doubles)
        for step in range(STEPS):
            optimizer.zero_grad()
            (loss_of(ddp, step) * scaler.get_scale()).backward()
            assert sync.step(optimizer, scaler)
        results.append(flat(ddp.module))
        sync.close()
    assert torch.equal(results[0], results[1])


def closing(run: Run) -> None:
    """Every step ended by hand."""
    for step in range(STEPS):
        loss_of(run.ddp, step).backward()
        if run.sync is not None:
            assert run.sync.step(run.optimizer)
        else:
            run.optimizer.step()
        run.optimizer.zero_grad()


SITUATIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (plain, {}),
    "steps ended by hand": (closing, {}),
    "accumulation without synchronization": (accumulation, {}),
    "gradients as views of buckets": (plain, {"gradient_as_bucket_view": True}),
    "accumulation, gradients as views": (accumulation, {"gradient_as_bucket_view": True}),
    "static graph": (plain, {"static_graph": True}),
    "unused parameters": (unused, {"find_unused_parameters": True, "branch": True}),
    "one bucket": (plain, {"bucket_cap_mb": 25}),
    "clipped gradients": (clipping, {}),
    "mixed precision with loss scaling": (mixed_precision, {}),
}


@functools.lru_cache(maxsize=None)
def reference(situation: str) -> torch.Tensor:
    body, options = SITUATIONS[situation]
    run = Run(None, **options)
    body(run)
    return flat(run.module)


def distance_of(run: Run, expected: torch.Tensor) -> float:
    """From where training without a hook ends, as part of the way there."""
    return float((flat(run.module) - expected).norm() / (expected - run.start).norm())


def check(run: Run, expected: torch.Tensor, codec: str, group: Any = None) -> None:
    assert run.sync is not None
    trained = flat(run.module)
    assert same_on_all_ranks(trained, group), "ranks have different parameters"
    way, distance = (expected - run.start).norm(), distance_of(run, expected)
    lossless = CODECS[codec] < 1e-4
    assert way > 0.1 and distance < CODECS[codec], f"{distance} of the way from where training without a hook ends"
    assert lossless or distance > 1e-6, "nothing was compressed"
    run.sync.commit()
    total = run.sync.statistics("all steps")
    assert total.calls >= STEPS and total.gradient_bytes == STEPS * 4 * trained.numel()
    ranks = dist.get_world_size(group)
    if ranks > 1:
        whole = total.gradient_bytes * (ranks - 1)  # of buckets as small as these, everyone's goes to everyone
        assert 0 < total.sent_bytes < (1.1 if lossless else 0.7) * whole, (total.sent_bytes, whole)


def is_told_from(codec: str) -> None:
    """Bounds that broken training keeps as well would show nothing."""
    for sabotaged, factor in ((FORGETFUL[codec], 1.0), (codec, 0.5)):
        run = Run(sabotaged)
        for step in range(STEPS):
            (loss_of(run.ddp, step) * factor).backward()
            run.step()
        distance = distance_of(run, reference("plain"))
        assert distance > CODECS[codec], f"{sabotaged}, gradients times {factor}: {distance}"
        run.sync.close()


def held_out_loss(module: torch.nn.Module) -> float:
    x = torch.randn(2048, 32, generator=torch.Generator().manual_seed(99))
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(module(x), (x[:, :10] * 2).argmax(1)))


@functools.lru_cache(maxsize=None)
def trained_for_long(codec: Optional[str]) -> float:
    run = Run(codec)
    for step in range(LONG):
        loss_of(run.ddp, step).backward()
        run.step()
    if run.sync is not None:
        run.sync.close()
    return held_out_loss(run.module)


def learns_as_well(codec: str) -> None:
    """To the same loss on data that it has not seen, which PowerSGD that forgets what it dropped does not reach."""
    without, ours = trained_for_long(None), trained_for_long(codec)
    assert ours < without + MARGIN, f"a loss of {ours}, and {without} without a hook"
    if codec == "powersgd:rank=4":
        assert trained_for_long(FORGETFUL[codec]) > without + MARGIN


def in_situation(codec: str, situation: str) -> None:
    body, options = SITUATIONS[situation]
    run = Run(codec, **options)
    body(run)
    check(run, reference(situation), codec)
    run.sync.close()


def several_models(codec: str) -> None:
    first, second = Run(codec), Run(codec)
    for step in range(STEPS):
        losses = loss_of(first.ddp, step) + loss_of(second.ddp, step)
        losses.backward()
        first.step()
        second.step()
    for run in (first, second):
        check(run, reference("plain"), codec)
        run.sync.close()


def several_groups(codec: str) -> None:
    """One model in all ranks, one in the first two, one in each rank alone."""
    everyone, pair = dist.new_group(), dist.new_group([0, 1])
    alone = [dist.new_group([each]) for each in range(harness.size())][harness.rank()]
    groups = [everyone, alone] + ([pair] if harness.rank() < 2 else [])
    runs = [(Run(codec, group=group), Run(None, group=group), group) for group in groups]
    for run, without, _ in runs:
        plain(run)
        plain(without)
    for run, without, group in runs:
        check(run, flat(without.module), codec, group)
        run.sync.close()


def buckets_made_anew() -> None:
    """DDP does make its buckets anew after the first step, or the cases above would not show what they are for."""
    seen: list[list[int]] = []
    run = Run("int8")
    arrived = run.sync._arrived
    run.sync._arrived = lambda bucket: (seen.append([p.numel() for p in bucket.parameters()]), arrived(bucket))[1]
    plain(run)
    assert len(seen) > STEPS + 1 and seen[0] not in seen[1:], seen
    run.sync.close()


def whatever_the_buckets_of_ddp() -> None:
    """How DDP groups parameters does not show in a single bit."""

    def train(**options: Any) -> torch.Tensor:
        ddp = wrap(model(), **options)
        sync = attach(ddp, "int4:block=32,round=stochastic", bucket_bytes=8000)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(ddp, step).backward()
            optimizer.step()
        sync.close()
        return flat(ddp.module)

    expected = train()
    for options in ({"bucket_cap_mb": 25}, {"static_graph": True}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.02}):
        assert torch.equal(train(**options), expected), options


def overlapping() -> None:
    """Backward goes on while buckets are under way: the first rank has handed over all of its own before the others begin."""
    ddp = wrap(model())
    sync = attach(ddp, timeout=10.0)
    loss_of(ddp, 0).backward()  # DDP has several buckets from here on
    token, loss = torch.zeros(1), loss_of(ddp, 1)
    if harness.rank() == 0:
        arrived, left = sync._arrived, len(list(ddp.parameters()))

        def arrive(bucket: dist.GradBucket) -> Any:
            nonlocal left
            future = arrived(bucket)
            left -= len(bucket.parameters())
            assert not future.done()
            if left == 0:
                for peer in range(1, harness.size()):
                    dist.send(token, peer)
            return future

        sync._arrived = arrive
    else:
        dist.recv(token, 0)
    loss.backward()
    assert same_on_all_ranks(ddp.module.body.weight.grad)
    sync.close()


def patterns() -> None:
    ddp = wrap(model())
    sync = attach(ddp, "int8:block=64 rule=head.*=bf16", exact=["stem*", "*.bias"], small="compressed", seed=9, feedback=False)
    lines = ['"stem.weight" [64,32] fp32 exact', '"body.weight" [48,64] fp32 int8:block=64', '"body.bias" [48] fp32 exact']
    lines += ['"norm.weight" [64] fp32 int8:block=64', '"head.weight" [10,48] fp32 bf16', "seed 9", "error feedback off"]
    for line in [*lines, "operation mean", "non-finite policy skip_step", "bucket 1 "]:
        assert line in sync.description, f"{line} is not in:\n{sync.description}"
    sync.close()


CASES = [(f"{codec}: {situation}", functools.partial(in_situation, codec, situation)) for situation in SITUATIONS for codec in CODECS]
CASES += [(f"{codec}: is told from broken training", functools.partial(is_told_from, codec)) for codec in FORGETFUL]
CASES += [(f"{codec}: learns as well", functools.partial(learns_as_well, codec)) for codec in FORGETFUL]
CASES += [(f"{codec}: several models", functools.partial(several_models, codec)) for codec in CODECS]
CASES += [(f"{codec}: several process groups", functools.partial(several_groups, codec)) for codec in CODECS]
CASES += [
    ("buckets made anew", buckets_made_anew),
    ("whatever the buckets of DDP", whatever_the_buckets_of_ddp),
    ("overlapping backward", overlapping),
    ("patterns", patterns),
    ("residuals follow the loss scale", residuals_follow_the_loss_scale),
]

if __name__ == "__main__":
    harness.run(CASES)
