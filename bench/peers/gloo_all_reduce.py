#!/usr/bin/python3
"""gloo's all-reduce, by torch.distributed: a JSON line per size, as `tightwire bench --json` has it. By tightwire run or network.sh.

    build/release/bin/tightwire run -n 2 -- bench/peers/gloo_all_reduce.py 1048576 26214400
"""
import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist
from gloo_job import join, slowest


def measure(size: int, iterations: int, warm_up: int) -> dict[str, object]:
    gradient = torch.randn(max(1, size // 4), generator=torch.Generator().manual_seed(dist.get_rank())) * 2.0**-10
    buffer = torch.empty_like(gradient)
    seconds = []
    for turn in range(-warm_up, iterations):
        buffer.copy_(gradient)
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(buffer)
        took = slowest(time.perf_counter() - began)
        if turn >= 0:
            seconds.append(took)
    seconds.sort()
    quarter = len(seconds) // 4
    return {"bytes": size, "codec": "gloo fp32", "seconds": statistics.median(seconds),
            "low_seconds": seconds[quarter], "high_seconds": seconds[-1 - quarter]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", type=int, nargs="+", help="bytes of fp32")
    parser.add_argument("--iterations", type=int, default=11)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--port", type=int, default=29641)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank = join(options.port)
    for size in options.sizes:
        row = measure(size, options.iterations, options.warm_up)
        if rank == 0:
            print(json.dumps(row), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
