"""resuming.py begin|resume FOLDER: a run that is interrupted and resumed from its checkpoint, in other processes, equals the one that
was not, bit for bit. On other numbers of ranks nothing is lost."""

import pathlib
import sys
from typing import Any, Optional

import torch
import torch.distributed as dist

import harness
import tightwire.torch
from harness import attach, flat, loss_of, model, same_on_all_ranks, wrap
from tightwire import Error
from training import Scaler

FOLDER = pathlib.Path(sys.argv[2])
BEFORE, AFTER = 3, 4  # steps
CODECS = {
    "int8": "int8:block=64",
    "int8, accumulated and scaled": "int8:block=64",
    "int4 rounded at random": "int4:block=32,round=stochastic small=compressed seed=7",
    "top-k": "topk:ratio=0.05+int8:block=64",
    "random-k": "randomk:ratio=0.1",
    "PowerSGD": "powersgd:rank=2,start=2",
}

SCALED = "int8, accumulated and scaled"
DRAINED = ("int8", "int4 rounded at random", "top-k")  # others give little in each step of what they hold back


def train_scaled(sync: tightwire.torch.Sync, ddp: Any, optimizer: torch.optim.Optimizer, scaler: Scaler, steps: range) -> None:
    """Two parts to a step, whose loss is scaled; the second step has an infinity on one rank, and is skipped on all."""
    for step in steps:
        with ddp.no_sync():
            scaler.scale(loss_of(ddp, step, 0)).backward()
        loss = loss_of(ddp, step, 1) * (float("inf") if step == 1 and harness.rank() == 0 else 1.0)
        scaler.scale(loss).backward()
        assert sync.step(optimizer, scaler) == (step != 1)
        optimizer.zero_grad()


def train(ddp: torch.nn.Module, optimizer: torch.optim.Optimizer, first: int, count: int) -> None:
    for step in range(first, first + count):
        loss_of(ddp, step).backward()
        optimizer.step()
        optimizer.zero_grad()


def checkpoint(name: str, rank: int) -> pathlib.Path:
    return FOLDER / f"{name}.{rank}.pt"


def begin(name: str) -> None:
    ddp = wrap(model())
    sync = attach(ddp, CODECS[name])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    scaler = Scaler()
    if name == SCALED:
        train_scaled(sync, ddp, optimizer, scaler, range(BEFORE))
        assert scaler.factor == 2.0**15
    else:
        train(ddp, optimizer, 0, BEFORE)
    saved = {"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict(), "sync": sync.state_dict()}
    torch.save({**saved, "scale": scaler.factor}, checkpoint(name, harness.rank()))
    if name == SCALED:
        train_scaled(sync, ddp, optimizer, scaler, range(BEFORE, BEFORE + AFTER))
    else:
        train(ddp, optimizer, BEFORE, AFTER)
    assert same_on_all_ranks(flat(ddp.module))
    torch.save(flat(ddp.module), checkpoint(name + ".uninterrupted", harness.rank()))
    sync.close()


def resume(name: str) -> None:
    saved = torch.load(checkpoint(name, harness.rank()))
    expected = torch.load(checkpoint(name + ".uninterrupted", harness.rank()))

    def go_on(with_residuals: bool) -> torch.Tensor:
        ddp = wrap(model(seed=5))
        ddp.module.load_state_dict(saved["model"])
        sync = attach(ddp, CODECS[name])
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        optimizer.load_state_dict(saved["optimizer"])
        if with_residuals:
            sync.load_state_dict(saved["sync"])
        if name == SCALED:
            scaler = Scaler()
            scaler.factor = saved["scale"]
            train_scaled(sync, ddp, optimizer, scaler, range(BEFORE, BEFORE + AFTER))
        else:
            train(ddp, optimizer, BEFORE, AFTER)
        sync.close()
        return flat(ddp.module)

    assert torch.equal(go_on(True), expected)
    assert not torch.equal(go_on(False), expected), "the state makes no difference"


def left_over(states: list[dict[str, Any]], ranks: int, name: str) -> Optional[torch.Tensor]:
    """What comes out of the states of all ranks of some job, taken up by the first `ranks` of this one, when nothing more goes in:
    the mean over the ranks of that job of what they held back. None on other ranks."""
    group = dist.new_group(list(range(ranks)))
    if harness.rank() >= ranks:
        return None
    ddp = wrap(model(), process_group=group)
    ddp.module.load_state_dict(states[0]["model"])
    sync = attach(ddp, CODECS[name])
    sync.load_state_dict([state["sync"] for state in reversed(states)])
    total = torch.zeros_like(flat(ddp.module))
    for step in range(60):
        ddp.zero_grad()
        (loss_of(ddp, step) * 0.0).backward()
        assert sync.commit()
        total += torch.cat([p.grad.reshape(-1) for p in ddp.parameters()])
    assert same_on_all_ranks(total, group)
    sync.close()
    return total


def other_world_sizes(name: str) -> None:
    """The states of all ranks, taken up by as many, by fewer, by one, and those of fewer by more: nothing is lost."""
    states = [torch.load(checkpoint(name, rank)) for rank in range(harness.size())]
    expected = left_over(states, harness.size(), name)
    assert expected is not None
    assert float(expected.abs().max()) > 1e-6, "nothing was held back"
    for ranks in range(1, harness.size()):
        check(left_over(states, ranks, name), expected)
    states = states_of_two(name)
    expected = left_over(states, harness.size(), name)
    assert expected is not None and float(expected.abs().max()) > 1e-6
    check(left_over(states, 2, name), expected)


def check(total: Optional[torch.Tensor], expected: torch.Tensor) -> None:
    most = float(expected.abs().max())
    assert total is None or float((total - expected).abs().max()) < 0.01 * most, ((total - expected).abs().max(), most)


def states_of_two(name: str) -> list[dict[str, Any]]:
    """Of a job of the first two ranks, as every rank of this one would read them from files."""
    group = dist.new_group([0, 1])
    mine: dict[str, Any] = {}
    if harness.rank() < 2:
        ddp = wrap(model(), process_group=group)
        sync = attach(ddp, CODECS[name])
        train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), 0, BEFORE)
        mine = {"model": ddp.module.state_dict(), "sync": sync.state_dict()}
        sync.close()
    states: list[Any] = [None] * harness.size()
    dist.all_gather_object(states, mine)
    return states[:2]


def train_with_any_number_of_ranks(name: str) -> None:
    """Taken up by one rank fewer, training goes on, alike on all ranks. One rank's state alone is not enough."""
    states = [torch.load(checkpoint(name, rank)) for rank in range(harness.size())]
    fewer = harness.size() - 1
    group = dist.new_group(list(range(fewer)))
    if harness.rank() >= fewer:
        return
    ddp = wrap(model(), process_group=group)
    ddp.module.load_state_dict(states[0]["model"])
    sync = attach(ddp, CODECS[name])
    if fewer > 1:
        with harness.raises(Error, "states of all"):
            sync.load_state_dict(states[harness.rank()]["sync"])
    sync.load_state_dict([state["sync"] for state in reversed(states)])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    train(ddp, optimizer, BEFORE, AFTER)
    assert same_on_all_ranks(flat(ddp.module), group)
    sync.close()


if __name__ == "__main__":
    import functools

    bodies = {"begin": [begin], "resume": [resume, train_with_any_number_of_ranks]}[sys.argv[1]]
    cases = [(f"{body.__name__}: {name}", functools.partial(body, name)) for body in bodies for name in CODECS]
    if sys.argv[1] == "resume":
        cases += [(f"other_world_sizes: {name}", functools.partial(other_world_sizes, name)) for name in DRAINED]
    harness.run(cases)
