"""The ways to synchronize that the peers' scripts compare: torch's own hooks, and ours."""
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gloo_job import use_build_tree

use_build_tree()
import tightwire.torch  # noqa: E402

HELP = "none, fp16, torch-bf16 (gloo has it from PyTorch 2 on), torch-powersgd:RANK are torch's; all others are codecs of ours"


def synchronized(
    make: Callable[[], torch.nn.Module], scheme: str, address: Optional[str]
) -> tuple[DistributedDataParallel, Any]:
    """A model under DDP with a scheme, and our sync, or None where the scheme is torch's."""
    kind, _, value = scheme.partition(":")
    first_bucket = dist._DEFAULT_FIRST_BUCKET_BYTES
    if kind == "torch-powersgd":  # in one bucket: over gloo it aborts or hangs with several
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 32
    ddp = DistributedDataParallel(make(), bucket_cap_mb=4096 if kind == "torch-powersgd" else 25)
    dist._DEFAULT_FIRST_BUCKET_BYTES = first_bucket
    if kind == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif kind == "torch-bf16":
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif kind == "torch-powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=int(value or 4), start_powerSGD_iter=2, min_compression_rate=2
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif kind != "none":
        return ddp, tightwire.torch.attach(ddp, scheme, address=address)
    return ddp, None
