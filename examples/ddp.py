# Ten lines around your DistributedDataParallel. Runs under torchrun --nproc-per-node 4.
import torch
import torch.distributed as dist
import tightwire.torch

dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 512), torch.nn.LayerNorm(512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
ddp = torch.nn.parallel.DistributedDataParallel(model)
sync = tightwire.torch.attach(ddp, "int8:block=256", exact=["*.bias", "1.*"])  # that is all: backward is compressed now

optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    x = torch.randn(64, 32)
    torch.nn.functional.cross_entropy(ddp(x), x[:, :10].argmax(1)).backward()
    optimizer.step()  # or sync.step(optimizer, scaler), which undoes a step that a gradient scaler skips
checkpoint = {"model": model.state_dict(), "sync": sync.state_dict()}  # residuals are training state, one per rank
if dist.get_rank() == 0:
    sent = sync.statistics()
    print(f"sent {sent.sent_bytes} bytes per step instead of {sent.gradient_bytes}")
