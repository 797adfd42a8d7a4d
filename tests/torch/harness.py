"""What the cases share: a model, its data, and what all ranks must have alike."""

import contextlib
import hashlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tightwire.torch

Case = Callable[[], None]
TIMEOUT = 20.0


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def run(cases: list[tuple[str, Case]], backend: str = "gloo", **options: object) -> None:
    """Runs the cases one after the other on every rank. The first that fails ends the job."""
    torch.set_num_threads(1)
    dist._DEFAULT_FIRST_BUCKET_BYTES = 4096  # DDP's first bucket has a MiB otherwise, and the model here would be one bucket
    dist.init_process_group(backend, **options)
    for name, case in cases:
        began = time.perf_counter()
        try:
            case()
        except BaseException:
            print(f"rank {rank()}: FAILED {name}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            os._exit(1)
        dist.barrier()
        if rank() == 0:
            print(f"ok {name} ({time.perf_counter() - began:.2f} s)", flush=True)
    if rank() == 0:
        print(f"{len(cases)} passed, 0 failed", flush=True)


def cases_of(names: dict[str, object]) -> list[tuple[str, Case]]:
    """The functions test_*, in the order in which they are written."""
    return [(name, value) for name, value in names.items() if name.startswith("test_") and callable(value)]


class Net(torch.nn.Module):
    """Weights, biases and norms; a branch that some steps leave out; layers used in another order than they are listed."""

    def __init__(self, branch: bool = False) -> None:
        super().__init__()
        self.head = torch.nn.Linear(48, 10)
        self.body = torch.nn.Linear(64, 48)
        self.norm = torch.nn.LayerNorm(64)
        self.stem = torch.nn.Linear(32, 64)
        self.branch = torch.nn.Linear(64, 48) if branch else None

    def forward(self, x: torch.Tensor, use_branch: bool = True) -> torch.Tensor:
        hidden = torch.tanh(self.norm(self.stem(x).float()))
        body = self.body(hidden)
        if self.branch is not None and use_branch:
            body = body + self.branch(hidden)
        return self.head(torch.tanh(body))


def model(branch: bool = False, seed: int = 1) -> Net:
    torch.manual_seed(seed)
    return Net(branch)


def batch(step: int, part: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's, and no other's."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * part + dist.get_rank())
    x = torch.randn(16, 32, generator=generator)
    return x, (x[:, :10] * 2).argmax(1)


def flat(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).clone()


def same_on_all_ranks(values: torch.Tensor, group: object = None) -> bool:
    mine = hashlib.sha256(values.numpy().tobytes()).hexdigest()
    theirs = [None] * dist.get_world_size(group)
    dist.all_gather_object(theirs, mine, group=group)
    return all(each == mine for each in theirs)


def wrap(module: torch.nn.Module, **options: object) -> DistributedDataParallel:
    """Several buckets, which DDP makes anew after the first step."""
    return DistributedDataParallel(module, **{"bucket_cap_mb": 0.01, **options})


@contextlib.contextmanager
def raises(kind: type, *texts: str, within: float = TIMEOUT) -> Iterator[None]:
    """The block raises this, with these texts in it, in time."""
    began = time.perf_counter()
    try:
        yield
    except kind as error:
        for text in texts:
            assert text in str(error), f'"{text}" is not in: {error}'
        took = time.perf_counter() - began
        assert took < within, f"it took {took:.1f} s"
        return
    raise AssertionError(f"nothing was raised, instead of {kind.__name__} with {texts}")


def loss_of(ddp: torch.nn.Module, step: int, part: int = 0, **inputs: object) -> torch.Tensor:
    x, y = batch(step, part)
    return torch.nn.functional.cross_entropy(ddp(x, **inputs), y)


attach = tightwire.torch.attach
