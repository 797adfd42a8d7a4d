# Sharded training by hand, as ZeRO and FSDP do it: every rank trains its part of the weights. Gradients are summed and
# scattered in int8 with error feedback, weights gathered in int8 without. Runs under torchrun --nproc-per-node 4.
import torch
import torch.distributed as dist
import tightwire.torch

dist.init_process_group("gloo")
sharded = tightwire.torch.Sharded(gradients="int8:block=256", weights="int8:block=256")
torch.manual_seed(1)
teacher = torch.randn(dist.get_world_size() * 4096)
weights, gradients = torch.zeros_like(teacher), torch.zeros_like(teacher)
mine = weights.chunk(dist.get_world_size())[dist.get_rank()].clone()  # what this rank trains, exact
my_gradient = torch.zeros_like(mine)
torch.manual_seed(dist.get_rank())
for step in range(60):
    sharded.all_gather(weights, mine, "weights")  # the same bits on every rank
    gradients.copy_(weights - teacher + 0.1 * torch.randn_like(weights))  # of (weights - teacher)^2 / 2, with noise of this rank
    sharded.reduce_scatter(my_gradient, gradients, "gradients")
    sharded.commit()
    mine -= 0.2 * my_gradient
sharded.all_gather(weights, mine, "weights")
if dist.get_rank() == 0:
    sent, given = sharded.sent_bytes()
    print(f"error {(weights - teacher).abs().mean():.3f}, sent {sent} bytes instead of {given}")
