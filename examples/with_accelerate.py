# Hugging Face's Accelerate: what it prepares is a DistributedDataParallel. Runs under accelerate launch, torchrun.
import torch
from accelerate import Accelerator
import tightwire.torch

accelerator = Accelerator(cpu=True)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
sync = tightwire.torch.attach(model, "int8:block=256")  # before the first backward pass
for step in range(20):
    optimizer.zero_grad()
    x = torch.randn(64, 32)
    accelerator.backward(torch.nn.functional.cross_entropy(model(x), x[:, :10].argmax(1)))
    optimizer.step()
sync.commit()
sent = sync.statistics()
assert sent.sent_bytes < 0.6 * sent.gradient_bytes, "compressed"
if accelerator.is_main_process:
    print(f"sent {sent.sent_bytes} bytes per step instead of {sent.gradient_bytes}")
accelerator.end_training()
