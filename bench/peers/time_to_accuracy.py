#!/usr/bin/python3
"""Time to accuracy on Fashion-MNIST: DistributedDataParallel with our hook, with none and with torch's own, one after the other.

    bench/network.sh 2 100 -- bench/peers/time_to_accuracy.py --json build/time_to_accuracy.json          0.1 Gbit/s

Same first weights, same order of the images, same learning rates in every training. The clock stops while accuracy is
measured. PyTorch's hooks run over gloo, ours over UCX; one thread per rank.

    step ms     mean over all steps, of rank 0
    compute     the same without synchronization (no_sync), median of 20 steps
    optimizer   its step, mean over all steps
    encode, combine, decode     as the Session measured them; on one core per rank they delay the rest
    wire        what remains: the wire, gloo's own work, and waiting for the other ranks
    to TARGET   seconds until accuracy on the test images first reached it
"""
import argparse
import gzip
import json
import pathlib
import statistics
import sys
import time
from typing import Any, Optional

import numpy
import torch
import torch.distributed as dist
from torch import nn

from ddp_schemes import HELP, synchronized
from gloo_job import join, network_host

IMAGES = pathlib.Path("/usr/share/datasets/fashion-mnist")  # Debian's dataset-fashion-mnist
SCHEMES = ["none", "fp16", "torch-powersgd:4", "int8", "int4", "powersgd:rank=4"]


def images(part: str) -> tuple[torch.Tensor, torch.Tensor]:
    def content(name: str, header: int) -> numpy.ndarray:
        (path,) = IMAGES.rglob(f"{part}-{name}*.gz") if IMAGES.exists() else (None,)
        if path is None:
            sys.exit("time_to_accuracy.py: Fashion-MNIST is missing (apt-get install dataset-fashion-mnist)")
        return numpy.frombuffer(gzip.decompress(path.read_bytes()), numpy.uint8, offset=header)

    pixels = torch.from_numpy(content("images", 16).astype(numpy.float32)).reshape(-1, 1, 28, 28)
    return (pixels / 255 - 0.2860) / 0.3530, torch.from_numpy(content("labels", 8).astype(numpy.int64))


def network() -> nn.Module:
    """That of the quickstart: 422,000 parameters, most of them in one matrix."""
    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))


class Training:
    """One training of its own, from the same start."""

    def __init__(self, scheme: str, options: argparse.Namespace, rank: int, address: Optional[str]) -> None:
        torch.manual_seed(options.seed)
        self.ddp, self.sync = synchronized(network, scheme, address)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=options.learning_rate, momentum=0.9)
        self.options, self.rank = options, rank
        self.spent = {"optimizer": 0.0, "encode": 0.0, "combine": 0.0, "decode": 0.0}

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(self.ddp(x), y).backward()
        if self.sync is None or self.sync.commit():  # which is what Sync.step does, but that this has its time
            began = time.perf_counter()
            self.optimizer.step()
            self.spent["optimizer"] += time.perf_counter() - began
        if self.sync is None:
            return
        spent = self.sync.statistics()
        for stage in ("encode", "combine", "decode"):
            self.spent[stage] += getattr(spent, f"{stage}_seconds")

    def compute_seconds(self, x: torch.Tensor, y: torch.Tensor) -> float:
        taken = []
        for _ in range(20):
            began = time.perf_counter()
            with self.ddp.no_sync():
                self.ddp.zero_grad(set_to_none=False)
                nn.functional.cross_entropy(self.ddp(x), y).backward()
            taken.append(time.perf_counter() - began)
        return statistics.median(taken)

    def accuracy(self, test: tuple[torch.Tensor, torch.Tensor]) -> float:
        part = slice(self.rank, None, dist.get_world_size())
        with torch.no_grad():
            right = sum((self.ddp.module(x).argmax(1) == y).sum()
                        for x, y in zip(test[0][part].split(500), test[1][part].split(500)))
        dist.all_reduce(right)
        return float(right) / len(test[1])


def split_of(step: float, compute: float, stages: dict[str, float]) -> dict[str, float]:
    """Where the seconds of a step went; "wire" is what is in no other stage."""
    split = {"compute": compute, **stages}
    return split | {"wire": max(0.0, step - sum(split.values()))}


def train(scheme: str, options: argparse.Namespace, rank: int, address: Optional[str], data: Any, test: Any) -> dict[str, Any]:
    training = Training(scheme, options, rank, address)
    order = torch.randperm(len(data[1]), generator=torch.Generator().manual_seed(options.seed))
    clock, points, per_step = 0.0, [(0.0, training.accuracy(test))], options.batch * dist.get_world_size()
    for step in range(options.steps):
        at = (step * per_step) % (len(order) - per_step) + rank * options.batch
        mine = order[at:at + options.batch]
        if step % options.evaluate == 0:
            dist.barrier()
        began = time.perf_counter()
        for group in training.optimizer.param_groups:  # up to 50 steps of warm-up, then down to zero in a straight line
            group["lr"] = options.learning_rate * min((step + 1) / 50, 1 - step / options.steps)
        training.step(data[0][mine], data[1][mine])
        clock += time.perf_counter() - began
        if (step + 1) % options.evaluate == 0:
            points.append((clock, training.accuracy(test)))
            if rank == 0:
                print(f"{scheme}: step {step + 1}, {clock:.1f} s, {100 * points[-1][1]:.2f} %", file=sys.stderr, flush=True)
    split = split_of(clock / options.steps, training.compute_seconds(data[0][mine], data[1][mine]),
                     {stage: seconds / options.steps for stage, seconds in training.spent.items()})
    reached = next((seconds for seconds, accuracy in points if accuracy >= options.target), None)
    return {"scheme": scheme, "step_seconds": clock / options.steps, "split_seconds": split, "points": points,
            "target": options.target, "seconds_to_target": reached, "final_accuracy": points[-1][1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemes", nargs="+", default=SCHEMES, help=HELP)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64, help="images per rank and step")
    parser.add_argument("--evaluate", type=int, default=50, help="steps between measurements of accuracy")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--target", type=float, default=0.85)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=29711, help="of gloo")
    parser.add_argument("--json", help="file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank = join(options.port)
    data, test, host = images("train"), images("t10k"), network_host()
    results = []
    for number, scheme in enumerate(options.schemes, start=1):
        address = f"tcp://{host}:{options.port + number}" if host else None
        results.append(train(scheme, options, rank, address, data, test))
        if rank == 0:
            result = results[-1]
            spent = ", ".join(f"{stage} {1e3 * seconds:.2f}" for stage, seconds in result["split_seconds"].items())
            reached = result["seconds_to_target"]
            print(f"{scheme:<20} step {1e3 * result['step_seconds']:.1f} ms ({spent}); {100 * result['final_accuracy']:.2f} %; "
                  f"to {100 * options.target:g} %: {f'{reached:.1f} s' if reached is not None else 'not reached'}", flush=True)
    if rank == 0 and options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
