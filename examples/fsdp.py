# FSDP with compressed communication: gradients scattered in int8 with error feedback, weights gathered in int8.
# Runs under torchrun --nproc-per-node 4, on PyTorch 2.
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
import tightwire.torch

options = tightwire.torch.ProcessGroupOptions(threshold=1024, reduce_scatter="int8:block=256", all_gather="int8:block=256")
dist.init_process_group("tightwire", pg_options=options)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
fsdp = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(fsdp.parameters(), lr=0.1)
losses = []
for step in range(20):
    optimizer.zero_grad()
    x = torch.randn(64, 32)
    loss = torch.nn.functional.cross_entropy(fsdp(x), x[:, :10].argmax(1))
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
sent, given = dist.distributed_c10d._get_default_group().sent_bytes()
assert 0 < sent < 0.5 * given and losses[-1] < 0.9 * losses[0], "compressed, and it learns"
if dist.get_rank() == 0:
    print(f"sent {sent} bytes instead of {given}")
