"""What the hook costs beyond codec and wire: a transformer of 25 million parameters under DistributedDataParallel, without a hook
and with ours.

    PYTHONPATH=python:tests/torch TIGHTWIRE_LIBRARY=build/dev/bindings/c/libtightwire.so \\
        python3 tests/torch/launch.py 2 bench/python/ddp_hook.py [steps]
"""

import statistics
import sys
import time
from typing import Optional

import torch
import torch.distributed as dist

import tightwire.torch

WIDTH, LAYERS, WORDS = 384, 12, 5000
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 8


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, dropout=0.0, batch_first=True)
    return torch.nn.Sequential(
        torch.nn.Embedding(WORDS, WIDTH), torch.nn.TransformerEncoder(layer, LAYERS), torch.nn.Linear(WIDTH, WORDS)
    )


def measure(codec: Optional[str]) -> None:
    ddp = torch.nn.parallel.DistributedDataParallel(model())
    sync = None if codec is None else tightwire.torch.attach(ddp, codec)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    seconds, hook = [], []
    for step in range(STEPS + 2):
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
        return
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for codec in (None, "exact", "int8", "int4"):
        measure(codec)
        dist.barrier()
