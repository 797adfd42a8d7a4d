"""What the hook costs beyond codec and wire: a transformer of 25 million parameters under DistributedDataParallel, without a hook
and with ours. Ends with 1 where the hook's own time, of some codec, is above the share of a step that --most says.

    PYTHONPATH=python:tests/torch TIGHTWIRE_LIBRARY=build/dev/bindings/c/libtightwire.so \\
        python3 tests/torch/launch.py 2 bench/python/ddp_hook.py [--most 5] [STEPS]
"""

import argparse
import statistics
import sys
import time
from typing import Optional

import torch
import torch.distributed as dist

import tightwire.torch

WIDTH, LAYERS, WORDS = 384, 12, 5000


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, dropout=0.0, batch_first=True)
    return torch.nn.Sequential(
        torch.nn.Embedding(WORDS, WIDTH), torch.nn.TransformerEncoder(layer, LAYERS), torch.nn.Linear(WIDTH, WORDS)
    )


def measure(codec: Optional[str], steps: int) -> float:
    """The hook's own share of a step, the median of so many, on rank 0."""
    ddp = torch.nn.parallel.DistributedDataParallel(model())
    sync = None if codec is None else tightwire.torch.attach(ddp, codec)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    seconds, hook = [], []
    for step in range(steps + 2):
        words = torch.randint(WORDS, (4, 65), generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
        dist.barrier()
        began, hook_began = time.perf_counter(), sync.hook_seconds if sync else 0.0
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()).backward()
        optimizer.step()
        if step >= 2:  # DDP has its buckets
            seconds.append(time.perf_counter() - began)
            hook.append(sync.hook_seconds - hook_began if sync else 0.0)
    if dist.get_rank() != 0:
        return 0.0
    step_seconds, hook_seconds = statistics.median(seconds), statistics.median(hook)
    parameters = list(ddp.parameters())
    line = f"{codec or 'no hook':18} {sum(p.numel() for p in parameters) / 1e6:.1f} M in {len(parameters)}: step {step_seconds * 1e3:.0f} ms"
    if sync:
        s = sync.statistics()
        line += (
            f", hook {hook_seconds * 1e3:.2f} ms = {hook_seconds / step_seconds:.2%}; codec "
            f"{(s.encode_seconds + s.combine_seconds + s.decode_seconds) * 1e3:.0f} ms, sent {s.sent_bytes / 1e6:.1f} MB "
            f"of {s.gradient_bytes / 1e6:.1f}"
        )
    print(line, flush=True)
    return hook_seconds / step_seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=int, nargs="?", default=8, help="that are measured of every codec")
    parser.add_argument("--most", type=float, default=5.0, help="percent of a step that the hook itself may take")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    shares = {}
    for codec in (None, "exact", "int8", "int4"):
        shares[codec] = measure(codec, options.steps)
        dist.barrier()
    above = [f"{codec}: {share:.2%}" for codec, share in shares.items() if 100 * share > options.most]
    if above:
        sys.exit(f"the hook itself takes more than {options.most:g} % of a step: {', '.join(above)}")
