"""resuming.py begin|resume FOLDER: a run that is interrupted and resumed from its checkpoint, in other processes, equals the one that
was not, bit for bit. On other numbers of ranks nothing is lost."""

import pathlib
import sys

import torch
import torch.distributed as dist

import harness
from harness import attach, flat, loss_of, model, same_on_all_ranks, wrap

FOLDER = pathlib.Path(sys.argv[2])
BEFORE, AFTER = 3, 4  # steps
CODECS = {
    "int8": "int8:block=64",
    "int4 rounded at random": "int4:block=32,round=stochastic small=compressed seed=7",
    "top-k": "topk:ratio=0.05+int8:block=64",
    "random-k": "randomk:ratio=0.1",
    "PowerSGD": "powersgd:rank=2,start=2",
}


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
    train(ddp, optimizer, 0, BEFORE)
    saved = {"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict(), "sync": sync.state_dict()}
    torch.save(saved, checkpoint(name, harness.rank()))
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
        train(ddp, optimizer, BEFORE, AFTER)
        sync.close()
        return flat(ddp.module)

    assert torch.equal(go_on(True), expected)
    assert not torch.equal(go_on(False), expected), "the state makes no difference"


def other_world_size(name: str) -> None:
    """The states of all ranks, taken up by one rank fewer."""
    states = [torch.load(checkpoint(name, rank)) for rank in range(harness.size())]
    fewer = harness.size() - 1
    group = dist.new_group(list(range(fewer)))
    if harness.rank() >= fewer:
        return
    ddp = wrap(model(), process_group=group)
    ddp.module.load_state_dict(states[0]["model"])
    sync = attach(ddp, CODECS[name])
    sync.load_state_dict([state["sync"] for state in reversed(states)])
    assert len(sync.session.save()) > 4 * 48 * 64
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    train(ddp, optimizer, BEFORE, AFTER)
    assert same_on_all_ranks(flat(ddp.module), group)
    sync.close()


if __name__ == "__main__":
    import functools

    bodies = {"begin": [begin], "resume": [resume, other_world_size]}[sys.argv[1]]
    harness.run([(f"{body.__name__}: {name}", functools.partial(body, name)) for body in bodies for name in CODECS])
