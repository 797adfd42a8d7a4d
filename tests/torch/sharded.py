"""Sharded training (ZeRO, FSDP): compressed reduce_scatter_tensor and all_gather_into_tensor, in a group and by name."""

from collections.abc import Callable
from typing import Any, Optional

import torch
import torch.distributed as dist

import harness
from harness import flat, loss_of, model, raises, same_on_all_ranks
from tightwire import Error
from tightwire.torch import ProcessGroupOptions, Sharded

PART = 20_000
OPTIONS = ProcessGroupOptions(threshold=1024, reduce_scatter="int8:block=64", all_gather="int8:block=64", timeout=20.0)


def part_of(whole: torch.Tensor) -> torch.Tensor:
    return whole.view(harness.size(), -1)[harness.rank()]


def random(seed: int, count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def test_operations_by_name() -> None:
    size, rank = harness.size(), harness.rank()
    gradients = [random(other, size * PART) for other in range(size)]
    mean = torch.stack(gradients).mean(0)
    sharded = Sharded(gradients="int4:block=64", weights="int8:block=64", timeout=20.0)
    mine, total = torch.empty(PART), torch.zeros(PART)
    before = gradients[rank].clone()
    for _ in range(30):
        sharded.reduce_scatter(mine, gradients[rank], "layer")
        assert sharded.commit()
        total += mine
    assert torch.equal(gradients[rank], before), "what comes in stays as it is"
    once, often = (mine - part_of(mean)).abs().max(), (total / 30 - part_of(mean)).abs().max()
    assert once > 0.02 and often < once / 8, f"{once} in one step, {often} over 30"
    work = sharded.reduce_scatter(mine, gradients[rank], "layer", average=False, async_op=True)
    assert work is not None and work.wait()
    assert (mine - size * part_of(mean)).abs().max() < 0.7 * size

    whole, kept = torch.empty(size * PART), gradients[rank][:PART].clone()
    for _ in range(2):
        sharded.all_gather(whole, kept, "layer")
        assert same_on_all_ranks(whole)
        error = (whole - torch.cat([gradient[:PART] for gradient in gradients])).abs().max()
        assert 0 < error < 0.03, error
    assert torch.equal(kept, gradients[rank][:PART]), "the weights that are trained are not rounded"
    sharded.commit()
    sent, given = sharded.sent_bytes()
    assert sent < 0.3 * given * max(1, size - 1)
    sharded.close()


def test_a_name_is_for_a_type() -> None:
    """As many elements of another type are another thing, whose memory is half as large."""
    size, rank = harness.size(), harness.rank()
    sharded = Sharded(gradients="int8:block=64", timeout=20.0)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        wholes = [random(other, size * PART).to(dtype) for other in range(size)]
        mine, gathered = torch.empty(PART, dtype=dtype), torch.empty(size * PART, dtype=dtype)
        sharded.reduce_scatter(mine, wholes[rank], "layer")
        assert (mine - part_of(torch.stack(wholes).float().mean(0))).abs().max() < 0.1
        sharded.all_gather(gathered, wholes[rank][:PART], "layer")
        assert (gathered - torch.cat([whole[:PART] for whole in wholes])).abs().max() < 0.05
    slots = sharded._slots
    with raises(Error, "first used with 40 elements of torch.float32", "40 of torch.bfloat16"):
        for dtype in (torch.float32, torch.bfloat16):
            slots.slot("key", torch.empty(40, dtype=dtype), "all_reduce", "int8")
    sharded.close()


def test_autograd_has_no_part_in_it() -> None:
    size = harness.size()
    sharded = Sharded(timeout=20.0)
    weights, whole = torch.ones(PART, requires_grad=True), torch.empty(size * PART)
    sharded.all_gather(whole, weights * 1, "layer")
    sharded.all_gather(whole, weights, "layer")
    gradient, leaf = torch.ones(size * PART, requires_grad=True), torch.empty(PART, requires_grad=True)
    sharded.reduce_scatter(leaf, gradient, "layer")
    assert not whole.requires_grad and weights.is_leaf and leaf.is_leaf and (leaf - 1).abs().max() < 0.02
    sharded.close()


def zero(sharded: Optional[Sharded], steps: int) -> torch.Tensor:
    """ZeRO by hand: every rank keeps and trains its part of the parameters, and gathers all for a step."""
    net = model()
    start = flat(net)
    count = (start.numel() + harness.size() - 1) // harness.size()
    whole = torch.zeros(count * harness.size())
    whole[: start.numel()] = start
    mine = part_of(whole).clone()
    for step in range(steps):
        if sharded is None:
            dist.all_gather(list(whole.view(harness.size(), -1)), mine)
        else:
            sharded.all_gather(whole, mine, "all")
            assert same_on_all_ranks(whole)
        torch.nn.utils.vector_to_parameters(whole[: start.numel()].clone(), net.parameters())
        net.zero_grad()
        loss_of(net, step).backward()
        gradient = torch.zeros_like(whole)
        gradient[: start.numel()] = torch.cat([p.grad.reshape(-1) for p in net.parameters()])
        shard = torch.empty_like(mine)
        if sharded is None:
            dist.all_reduce(gradient)
            shard.copy_(part_of(gradient) / harness.size())
        else:
            sharded.reduce_scatter(shard, gradient, "all")
            assert sharded.commit()
        mine -= 0.2 * shard
    dist.all_gather(list(whole.view(harness.size(), -1)), mine)
    return whole[: start.numel()]


def test_zero_trains_as_without() -> None:
    exact = zero(None, 8)
    sharded = Sharded(gradients="int8:block=64", weights="int8:block=64", timeout=20.0)
    result = zero(sharded, 8)
    way = (exact - flat(model())).norm()
    assert 0 < (result - exact).norm() <= 0.05 * way, (result - exact).norm() / way
    sharded.close()


def test_a_step_is_undone() -> None:
    sharded = Sharded(gradients="int4:block=64", timeout=20.0)
    gradient = random(harness.rank(), harness.size() * PART)
    mine, first, again = torch.empty(PART), torch.empty(PART), torch.empty(PART)
    sharded.reduce_scatter(mine, gradient, "a")
    sharded.commit()
    sharded.reduce_scatter(first, gradient, "a")
    sharded.rollback()
    sharded.reduce_scatter(again, gradient, "a")
    assert torch.equal(first, again), "as if the step had not happened"
    spoiled = gradient.clone()
    if harness.rank() == 0:
        spoiled[5] = float("nan")
    sharded.rollback()
    sharded.reduce_scatter(mine, spoiled, "a")
    assert not sharded.commit(), "every rank undoes it"
    sharded.reduce_scatter(again, gradient, "a")
    assert torch.equal(first, again)
    sharded.close()


def in_backward(body: Any) -> None:
    leaf = torch.zeros(1, requires_grad=True)
    leaf.register_hook(lambda gradient: body())
    leaf.sum().backward()


def test_the_group_compresses_both() -> None:
    """As FSDP calls them: gradients in the backward pass, weights before it."""
    size, rank = harness.size(), harness.rank()
    ours = dist.distributed_c10d._get_default_group()
    gradients = [random(other, size * PART) for other in range(size)]
    total = torch.stack(gradients).sum(0)
    mine, gathered = torch.empty(PART), torch.zeros(PART)
    for _ in range(20):
        in_backward(lambda: dist.reduce_scatter_tensor(mine, gradients[rank].clone()))
        gathered += mine
    ours.end_step()
    once, often = (mine - part_of(total)).abs().max(), (gathered / 20 - part_of(total)).abs().max()
    assert once > 0 and often < once / 6, f"{once} in one step, {often} over 20"
    whole = torch.empty(size * PART)
    works = []
    for _ in range(3):  # under way at once
        whole = torch.empty(size * PART)
        works.append((dist.all_gather_into_tensor(whole, gradients[rank][:PART], async_op=True), whole))
    for work, each in works:
        work.wait()
        assert same_on_all_ranks(each)
        assert 0 < (each - torch.cat([gradient[:PART] for gradient in gradients])).abs().max() < 0.03
    pieces = torch.empty(size * PART)
    dist.all_gather(list(pieces.chunk(size)), gradients[rank][:PART])
    assert torch.equal(pieces, works[0][1]), "all_gather into pieces of one tensor is the same"
    apart = [torch.empty(PART) for _ in range(size)]
    dist.all_gather(apart, gradients[rank][:PART])
    assert all(torch.equal(piece, gradient[:PART]) for piece, gradient in zip(apart, gradients)), "others are exact"
    assert ours.forgotten == 0


def test_misuse_is_refused() -> None:
    """Of one rank alone, and every other one hears of it at once."""
    size = harness.size()
    odd = harness.rank() == size - 1
    whole, part = torch.zeros(size * PART), torch.empty(PART)
    wrongs: dict[str, Callable[[Sharded], object]] = {
        "the input is part of the output": lambda sharded: sharded.all_gather(whole, part_of(whole), "a"),
        f"a part of 7 elements of torch.float32, for a whole of {size * PART}": lambda sharded: sharded.reduce_scatter(
            torch.empty(7), whole, "a"
        ),
        "torch.float64": lambda sharded: sharded.reduce_scatter(part.double(), whole.double(), "a"),
        "torch.complex64": lambda sharded: sharded.reduce_scatter(part + 0j, whole + 0j, "a"),
        "torch.sparse_coo": lambda sharded: sharded.reduce_scatter(part, whole.to_sparse(), "a"),
        "on meta": lambda sharded: sharded.all_gather(whole, part.to("meta"), "a"),
        "both must be contiguous": lambda sharded: sharded.reduce_scatter(part, torch.zeros(size * PART, 2)[:, 0], "a"),
    }
    for text, wrong in wrongs.items():
        sharded = Sharded(timeout=20.0)
        with raises(Error, f"rank {size - 1}: ", text, within=5):
            if odd:
                wrong(sharded)
            else:
                sharded.reduce_scatter(part, whole, "a")
        sharded.close()
    with raises(Error, "the input is part of the output"):
        ours = dist.new_group(backend="tightwire", pg_options=OPTIONS)
        dist.all_gather_into_tensor(whole, part_of(whole), group=ours)
    with raises(Error, "different", "int4:block=32"):
        Sharded(gradients="int4:block=32" if odd else "int8", timeout=20.0)
    with raises(Error, "int99"):
        Sharded(weights="int99", timeout=20.0).all_gather(whole, torch.zeros(PART), "a")


if __name__ == "__main__":
    harness.run(harness.cases_of(globals()), "tightwire", pg_options=OPTIONS)
