#!/usr/bin/python3
"""Step times of DistributedDataParallel with our hook beside none and torch's own, in one run on the same gradients.

    build/dev/bin/tightwire run -n 2 -- bench/peers/torch_hooks.py                             loopback
    bench/network.sh 2 1000 -- bench/peers/torch_hooks.py --schemes none fp16 int8 int4        1 Gbit/s

Gradients are the same in every step: a matrix of rank 3 that all ranks share, and noise of their own, for every shape of
the model. All schemes take turns in every round; what is told is the median over rounds, of the slowest rank.

    step ms     backward pass with synchronization
    sync ms     that less the same pass without synchronization (no_sync)
    error       of the sum of all results, against steps times the exact mean: |sum - steps * mean| / |steps * mean|
    one step    the same of the last step alone: what error feedback cannot help

Below them stands by what factor a step of int4 is shorter than one of the best of torch's own schemes. With --demand 2 the exit
status is 1 where that is less than 2.

torch's powerSGD_hook has one bucket for all: its reductions of several buckets start each other from callbacks, in orders that
differ between ranks, and gloo, which matches by order, then aborts (torch 1.13). PyTorch's hooks run over gloo, whose all-reduce is exact; ours over UCX. One thread per rank.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time
from typing import Optional

import torch
import torch.distributed as dist

from ddp_schemes import HELP, synchronized
from gloo_job import join, network_host, slowest


def resnet50() -> list[tuple[int, ...]]:
    """Shapes of the parameters of a residual network of 25.6 million (He et al., 2016)."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    width_in = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            for shape in ((width, width_in, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                shapes += [shape, shape[:1], shape[:1]]
            if block == 0:
                shapes += [(4 * width, width_in, 1, 1), (4 * width,), (4 * width,)]
            width_in = 4 * width
    return shapes + [(1000, 2048), (1000,)]


MODELS = {
    "resnet50": resnet50(),
    "transformer": [(512, 512), (512, 512), (512, 512), (512, 512), (2048, 512), (512, 2048), (512,), (512,)] * 6,
    "matrix": [(2560, 2560)],
}


class Model(torch.nn.Module):
    """Parameters whose gradients are given."""

    def __init__(self, shapes: list[tuple[int, ...]], rank: int) -> None:
        super().__init__()
        shared, own = torch.Generator().manual_seed(1), torch.Generator().manual_seed(100 + rank)
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(shape)) for shape in shapes)
        self.given = []
        for shape in shapes:
            rows = shape[0]
            columns = max(1, int(torch.tensor(shape).prod()) // rows)
            low = torch.randn(rows, 3, generator=shared) @ torch.randn(3, columns, generator=shared)
            self.given.append((low + 0.5 * torch.randn(rows, columns, generator=own)).reshape(shape))

    def forward(self) -> torch.Tensor:
        return sum((weight * given).sum() for weight, given in zip(self.weights, self.given))


class Scheme:
    """One way to synchronize, with a model of its own."""

    def __init__(self, name: str, options: argparse.Namespace, rank: int, address: Optional[str]) -> None:
        self.name = name
        self.ddp, self.sync = synchronized(lambda: Model(MODELS[options.model], rank), name, address)
        self.total: list[torch.Tensor] = []
        self.last: list[torch.Tensor] = []
        self.steps = 0
        self.seconds: list[float] = []

    def step(self, count: bool) -> None:
        self.ddp.zero_grad(set_to_none=False)
        loss = self.ddp()
        dist.barrier()
        began = time.perf_counter()
        loss.backward()
        took = time.perf_counter() - began
        if self.sync is not None:
            self.sync.commit()
        if not count:
            return
        self.seconds.append(took)
        self.steps += 1
        gradients = [weight.grad.double() for weight in self.ddp.module.weights]
        self.total = [a + b for a, b in zip(self.total, gradients)] if self.total else gradients
        self.last = gradients

    def without(self) -> float:
        self.ddp.zero_grad(set_to_none=False)
        with self.ddp.no_sync():
            loss = self.ddp()
            began = time.perf_counter()
            loss.backward()
            return time.perf_counter() - began

    def errors(self, exact: list[torch.Tensor]) -> tuple[float, float]:
        def norm(tensors: list[torch.Tensor]) -> float:
            return float(sum((tensor**2).sum() for tensor in tensors)) ** 0.5

        of_sum = norm([t / self.steps - e for t, e in zip(self.total, exact)]) / norm(exact)
        return of_sum, norm([a - b for a, b in zip(self.last, exact)]) / norm(exact)


def exact_mean(model: Model) -> list[torch.Tensor]:
    mean = []
    for given in model.given:
        total = given.double()
        dist.all_reduce(total)
        mean.append(total / dist.get_world_size())
    return mean


def measure(options: argparse.Namespace, rank: int) -> list[dict[str, object]]:
    host = network_host()
    schemes = []
    for number, name in enumerate(options.schemes, start=1):
        address = f"tcp://{host}:{options.port + number}" if host else None
        schemes.append(Scheme(name, options, rank, address))
    exact = exact_mean(schemes[0].ddp.module)
    for _ in range(options.warm_up):
        for scheme in schemes:
            scheme.step(count=False)
    without = []
    for turn in range(options.rounds):
        for place in range(len(schemes)):
            schemes[(turn + place) % len(schemes)].step(count=True)
        without.append(slowest(schemes[0].without()))
    alone = statistics.median(without)
    results = []
    for scheme in schemes:
        seconds = sorted(slowest(took) for took in scheme.seconds)
        of_sum, one_step = scheme.errors(exact)
        results.append(
            {
                "scheme": scheme.name,
                "step_ms": 1e3 * statistics.median(seconds),
                "quartiles_ms": [1e3 * seconds[len(seconds) // 4], 1e3 * seconds[3 * len(seconds) // 4]],
                "sync_ms": 1e3 * max(0.0, statistics.median(seconds) - alone),
                "error": of_sum,
                "error_of_one_step": one_step,
            }
        )
    return results


def factor_to_best_peer(results: list[dict[str, object]]) -> Optional[tuple[float, str]]:
    """Step time of the fastest of torch's schemes over that of int4, and that scheme; None without one of either."""
    int4 = [r for r in results if str(r["scheme"]).partition(":")[0] == "int4"]
    peers = [r for r in results if r["scheme"] in ("none", "fp16") or str(r["scheme"]).startswith("torch-")]
    if not int4 or not peers:
        return None
    best = min(peers, key=lambda r: float(str(r["step_ms"])))
    return float(str(best["step_ms"])) / min(float(str(r["step_ms"])) for r in int4), str(best["scheme"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="resnet50")
    parser.add_argument(
        "--schemes",
        nargs="+",
        default=["none", "fp16", "torch-powersgd:4", "exact", "int8", "int4", "powersgd:rank=4"],
        help=HELP,
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--warm-up", type=int, default=4)
    parser.add_argument("--port", type=int, default=29611, help="of gloo")
    parser.add_argument("--json", help="file to write")
    parser.add_argument("--demand", type=float, help="the least factor of int4 to the best of torch's schemes")
    options = parser.parse_args()
    if options.demand is not None and not factor_to_best_peer([{"scheme": name, "step_ms": 1} for name in options.schemes]):
        parser.error("--demand compares int4 with torch's schemes: name both")
    torch.set_num_threads(1)
    rank = join(options.port)
    results = measure(options, rank)
    found = factor_to_best_peer(results)
    if rank == 0:
        elements = sum(int(torch.tensor(shape).prod()) for shape in MODELS[options.model])
        print(f"{options.model}: {elements:,} parameters, {dist.get_world_size()} ranks, torch {torch.__version__}")
        print(f"{'scheme':<22}{'step ms':>9}{'quartiles':>18}{'sync ms':>9}{'error':>11}{'one step':>11}")
        for result in results:
            low, high = result["quartiles_ms"]
            print(
                f"{result['scheme']:<22}{result['step_ms']:>9.1f}{f'{low:.1f} .. {high:.1f}':>18}{result['sync_ms']:>9.1f}"
                f"{result['error']:>11.2e}{result['error_of_one_step']:>11.2e}"
            )
        if found:
            print(f"int4: a step is {found[0]:.2f} times as fast as with {found[1]}, the best of torch's schemes")
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0 and found and options.demand is not None and found[0] < options.demand:
        sys.exit(f"int4 is {found[0]:.2f} times as fast as {found[1]}; {options.demand:g} were demanded")


if __name__ == "__main__":
    main()
