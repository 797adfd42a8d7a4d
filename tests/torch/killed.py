"""A rank that is killed in the midst of training: the others get an exception that names it, in time.
With the argument "group", over the process group and not through the hook."""

import os
import signal
import sys
import time

import torch.distributed as dist

import harness
from harness import attach, loss_of, model, raises, wrap
from tightwire.torch import ProcessGroupOptions

if __name__ == "__main__":
    over_group = sys.argv[1:] == ["group"]
    if over_group:
        dist.init_process_group("tightwire", pg_options=ProcessGroupOptions(threshold=1024, timeout=15.0))
    else:
        dist.init_process_group("gloo")
    ddp = wrap(model())
    sync = dist.distributed_c10d._get_default_group() if over_group else attach(ddp, timeout=15.0)
    last = harness.size() - 1
    for step in range(2):  # after which DDP has no more to say to other ranks by itself
        loss_of(ddp, step).backward()
    if harness.rank() == last:
        os.kill(os.getpid(), signal.SIGKILL)
    with raises(RuntimeError, f"rank {last}", within=5):
        for step in range(2, 100):
            loss_of(ddp, step).backward()
            time.sleep(0.01)
    assert sync.error is not None
    print(f"rank {harness.rank()}: 1 passed, 0 failed", flush=True)
    os._exit(0)  # gloo's own teardown waits for the lost rank
