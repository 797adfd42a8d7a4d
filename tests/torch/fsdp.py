"""FSDP over the process group. Skipped where PyTorch's FSDP does not work on CPUs, as Debian's 1.13."""

import sys

import torch
import torch.distributed as dist

import harness
from harness import flat, loss_of, model, same_on_all_ranks, wrap
from tightwire.torch import ProcessGroupOptions

if int(torch.__version__.split(".")[0]) < 2:
    print("FSDP of this PyTorch does not work on CPUs")
    sys.exit(77)

from torch.distributed.fsdp import FullyShardedDataParallel  # noqa: E402

STEPS = 8
EXACT = ProcessGroupOptions(threshold=1024, reduce_scatter="exact", timeout=20.0)


def train(process_group: object, sharded: bool) -> torch.Tensor:
    net = model()
    if sharded:
        policy = torch.distributed.fsdp.wrap.ModuleWrapPolicy({torch.nn.Linear})
        net = FullyShardedDataParallel(
            net, process_group=process_group, device_id=torch.device("cpu"), auto_wrap_policy=policy
        )
    else:
        net = wrap(net, process_group=process_group)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, step).backward()
        optimizer.step()
    if not sharded:
        return flat(net.module)
    with FullyShardedDataParallel.summon_full_params(net):
        return flat(net)


def test_trains_as_ddp_does() -> None:
    exact = train(dist.new_group(backend="gloo"), sharded=False)
    way = (exact - flat(model())).norm()
    ours = dist.distributed_c10d._get_default_group()
    result = train(ours, sharded=True)
    assert (result - exact).norm() <= 1e-5 * way, f"exact: {(result - exact).norm() / way}"
    for options, bound in (({"reduce_scatter": "int8:block=64"}, 0.03), ({"all_gather": "int8:block=64"}, 0.1)):
        given = ProcessGroupOptions(**{"threshold": 1024, "reduce_scatter": "exact", "timeout": 20.0, **options})
        group = dist.new_group(backend="tightwire", pg_options=given)
        result = train(group, sharded=True)
        # `result` itself was gathered, and rounded with what all_gather gives.
        assert same_on_all_ranks(result), options
        assert 1e-5 * way < (result - exact).norm() <= bound * way, f"{options}: {(result - exact).norm() / way}"
        group.end_step()
        assert group.forgotten == 0 and group.sent_bytes()[1] > 0


if __name__ == "__main__":
    harness.run(harness.cases_of(globals()), "tightwire", pg_options=EXACT)
