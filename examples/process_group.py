# A script that only names its backend: gradients of DistributedDataParallel go compressed, everything else as gloo has it.
# Runs under torchrun --nproc-per-node 4.
import torch
import torch.distributed as dist
import tightwire.torch  # which is where the backend comes from

dist.init_process_group("tightwire")  # int8:block=256 from 64 KiB on; TIGHTWIRE_CODEC=int4:block=64, or pg_options, say otherwise
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
ddp = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    x = torch.randn(64, 32)
    torch.nn.functional.cross_entropy(ddp(x), x[:, :10].argmax(1)).backward()
    optimizer.step()
if dist.get_rank() == 0:
    sent, given = dist.distributed_c10d._get_default_group().sent_bytes()
    print(f"sent {sent} bytes instead of {given}")
