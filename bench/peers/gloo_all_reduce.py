#!/usr/bin/python3
"""gloo's all-reduce, by torch.distributed: a JSON line per size, as `tightwire bench --json` has it. By tightwire run or network.sh.

    build/release/bin/tightwire run -n 2 -- bench/peers/gloo_all_reduce.py 1048576 26214400

Measured as `tightwire bench` measures: medians over rounds of the slowest rank's time from a common start, a round of small buffers
is many calls, every rank is bound to a core.
"""
import argparse
import json
import os
import statistics
import sys
import time
from typing import Callable

import torch
import torch.distributed as dist
from gloo_job import join, slowest


SHORTEST_ROUND, MOST_CALLS = 2e-4, 100  # seconds, and calls: those of `tightwire bench`


def calls_per_round(once: float) -> int:
    """How many calls make a round, where one takes so many seconds."""
    return int(min(max(SHORTEST_ROUND / once, 1), MOST_CALLS))


def bind(rank: int) -> bool:
    """Binds this thread, and all that it begins from now on, to the next of its cores, as `tightwire bench` does. Those that gloo
    has by then stay free: on the same core they would wait for each other. Whether the system lets it."""
    cores = sorted(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    except OSError:
        return False
    return True


def together(calls: int, call: Callable[[], object]) -> float:
    """Seconds per call of the slowest rank, from a common start."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return slowest(time.perf_counter() - began) / calls


def measure(size: int, iterations: int, warm_up: int) -> dict[str, object]:
    gradient = torch.randn(max(1, size // 4), generator=torch.Generator().manual_seed(dist.get_rank())) * 2.0**-10
    buffer = torch.empty_like(gradient)
    seconds = []
    alone = []
    for _ in range(4):
        buffer.copy_(gradient)
        alone.append(together(1, lambda: dist.all_reduce(buffer)))
    calls = calls_per_round(statistics.median(alone[1:]))  # the first connects; the same on all ranks, as these times are
    for turn in range(-warm_up, iterations):
        buffer.copy_(gradient)
        took = together(calls, lambda: dist.all_reduce(buffer))
        if turn >= 0:
            seconds.append(took)
    seconds.sort()
    quarter = len(seconds) // 4
    return {"bytes": size, "codec": "gloo fp32", "calls": calls, "seconds": statistics.median(seconds),
            "low_seconds": seconds[quarter], "high_seconds": seconds[-1 - quarter]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", type=int, nargs="+", help="bytes of fp32")
    parser.add_argument("--iterations", type=int, default=11)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--port", type=int, default=29641)
    parser.add_argument("--no-pin", action="store_true", help="do not bind ranks to cores")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank = join(options.port)
    if not options.no_pin and not bind(rank):
        print(f"gloo_all_reduce.py: rank {rank} cannot be bound to a core", file=sys.stderr)
    for size in options.sizes:
        row = measure(size, options.iterations, options.warm_up)
        if rank == 0:
            print(json.dumps(row), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
