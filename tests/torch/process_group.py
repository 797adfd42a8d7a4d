"""Scripts that only name their backend: what is a gradient goes compressed, everything else as gloo has it."""

import contextlib
import datetime
import gc
import os
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, Optional

import torch
import torch.distributed as dist
import torch.utils.checkpoint

import harness
import sharded
import under_way
from harness import flat, loss_of, model, raises, same_on_all_ranks, wrap
from tightwire import Error
from tightwire._work import Work
from tightwire.torch import ProcessGroup, ProcessGroupOptions

STEPS = 8
LARGE = 50_000
OPTIONS = sharded.OPTIONS
# A codec, and how far its parameters may be from gloo's, as part of the way that these went.
CODECS = {"exact": 2e-6, "int8:block=64": 0.03, "int4:block=32": 0.35, "topk:ratio=0.25": 0.8}


@contextlib.contextmanager
def group(codec: str = "int8:block=64", ranks: Any = None, **options: Any) -> Iterator[Any]:
    made = dist.new_group(
        ranks, backend="tightwire", pg_options=ProcessGroupOptions(**{"codec": codec, "threshold": 1024, **options})
    )
    yield made
    if made is not dist.GroupMember.NON_GROUP_MEMBER:
        dist.barrier(made)
        dist.destroy_process_group(made)


def train(process_group: Any, steps: int = STEPS, dtype: torch.dtype = torch.float32, **options: Any) -> torch.Tensor:
    ddp = wrap(model().to(dtype) if dtype != torch.float32 else model(), process_group=process_group, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(ddp, step).backward()
        optimizer.step()
    return flat(ddp.module)


def test_the_default_group_is_ours() -> None:
    assert dist.get_backend() == "tightwire"
    ours = dist.distributed_c10d._get_default_group()
    assert isinstance(ours, ProcessGroup) and ours.settings == OPTIONS and ours.error is None


def test_trains_as_gloo_does() -> None:
    exact = train(dist.new_group(backend="gloo"))
    way = (exact - flat(model())).norm()
    for codec, bound in CODECS.items():
        with group(codec) as ours:
            result = train(ours)
            assert same_on_all_ranks(result), codec
            assert (result - exact).norm() <= bound * way, f"{codec}: {(result - exact).norm() / way}"
            assert codec == "exact" or not torch.equal(result, exact), f"{codec} compressed nothing"
            ours.end_step()
            sent, given = ours.sent_bytes()
            assert given > 0 and (codec == "exact" or harness.size() > 2 or sent < 0.6 * given), (codec, sent, given)
            assert ours.forgotten == 0, f"{codec}: {ours.forgotten} gradients were taken for others"


def test_situations_of_ddp() -> None:
    exact = train(dist.new_group(backend="gloo"))
    bound = CODECS["int8:block=64"] * (exact - flat(model())).norm()
    for options in ({"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True}):
        with group() as ours:
            result = train(ours, **options)
            assert same_on_all_ranks(result), options
            assert 0 < (result - exact).norm() <= bound, options


def test_gradients_are_accumulated() -> None:
    def gradients(process_group: Any) -> torch.Tensor:
        ddp, all_steps = wrap(model(), process_group=process_group), []
        for step in range(3):
            with ddp.no_sync():
                loss_of(ddp, step, 0).backward()
            loss_of(ddp, step, 1).backward()
            all_steps.append(torch.cat([p.grad.view(-1) for p in ddp.parameters()]))
            ddp.zero_grad()
        return torch.cat(all_steps)

    exact = gradients(dist.new_group(backend="gloo"))
    with group() as ours:
        result = gradients(ours)
        assert same_on_all_ranks(result)
        assert 0 < (result - exact).norm() <= 0.02 * exact.norm(), (result - exact).norm() / exact.norm()


def constant_gradient(process_group: Any, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean over steps of the gradient that the same loss has in each of them; and the exact one."""
    generator = torch.Generator().manual_seed(harness.rank())
    wanted = torch.randn(LARGE, generator=generator)
    exact = wanted.clone()
    dist.all_reduce(exact, group=dist.group.WORLD)
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.zeros(LARGE))
    layer.forward = lambda x: (layer.weight * x).sum()
    ddp = wrap(layer, process_group=process_group)
    total = torch.zeros(LARGE)
    for _ in range(steps):
        ddp.zero_grad()
        ddp(wanted).backward()
        total += layer.weight.grad
    return total / steps, exact / harness.size()


def test_what_is_dropped_comes_with_the_next_step() -> None:
    over_nodes = f"hier(inside=bf16, across=int4:block=64, levels=node:2{'+1' * (harness.size() - 2)})"
    for codec in ("int4:block=64", over_nodes):
        with group(codec) as ours:
            first, exact = constant_gradient(ours, 1)
        with group(codec) as ours:
            # DDP regroups after the first step, whose remainder is then lost: one part in 40.
            mean, _ = constant_gradient(ours, 40)
            assert ours.forgotten <= 1
            goes = next(iter(ours._slots._slots.values())).session.description
            assert codec != over_nodes or ("hierarchy of nodes 0 1" in goes and (harness.size() == 2 or "over 2 nodes of 2+1" in goes)), goes
        assert same_on_all_ranks(mean)
        one, many = (first - exact).abs().max(), (mean - exact).abs().max()
        assert one > 0.05 and many < one / 10, f"{codec}: {one} after one step, {many} after 40"


def test_everything_else_is_exact() -> None:
    rank, size = harness.rank(), harness.size()
    integers = torch.arange(LARGE) + rank
    dist.all_reduce(integers)
    assert torch.equal(integers, torch.arange(LARGE) * size + sum(range(size)))
    floats = torch.arange(LARGE).float() + rank
    dist.all_reduce(floats)  # not in a backward pass
    assert torch.equal(floats, torch.arange(LARGE).float() * size + sum(range(size)))
    most = torch.arange(LARGE).float() * (rank + 1)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    assert torch.equal(most, torch.arange(LARGE).float() * size)
    values = torch.rand(LARGE) if rank == 0 else torch.empty(LARGE)
    dist.broadcast(values, 0)
    assert same_on_all_ranks(values)
    parts = [torch.empty(LARGE) for _ in range(size)]
    dist.all_gather(parts, floats + rank)
    assert all(torch.equal(part, floats + other) for other, part in enumerate(parts))
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(size)]
    said: list[Any] = ["from 0" if rank == 0 else None]
    dist.broadcast_object_list(said, 0)
    assert said == ["from 0"]
    received = torch.empty(LARGE)
    if rank == 0:
        dist.send(floats, 1)
    elif rank == 1:
        dist.recv(received, 0)
        assert torch.equal(received, floats)
    dist.reduce(floats, 0)
    assert rank != 0 or torch.equal(floats, (torch.arange(LARGE).float() * size + sum(range(size))) * size)
    theirs: Optional[list[Any]] = [None] * size if rank == 0 else None
    dist.gather_object({"rank": rank}, theirs, 0)
    assert theirs is None or theirs == [{"rank": other} for other in range(size)]
    own: list[Any] = [None]
    dist.scatter_object_list(own, [f"for {other}" for other in range(size)] if rank == 0 else None, 0)
    assert own == [f"for {rank}"]
    swapped = torch.empty(size * LARGE)
    dist.all_to_all_single(swapped, torch.arange(size).repeat_interleave(LARGE).float() + 10 * rank)
    assert torch.equal(swapped, 10 * torch.arange(size).repeat_interleave(LARGE).float() + rank)
    if rank == 0:
        senders = set()
        for _ in range(size - 1):
            senders.add(dist.recv(received))  # from whoever it is
            assert float(received[7]) == 7.0
        assert senders == set(range(1, size))
    else:
        dist.send(torch.arange(LARGE).float(), 0)
    phases = torch.full((LARGE,), 1 + 2j) * (rank + 1)
    dist.all_reduce(phases)
    assert torch.equal(phases, torch.full((LARGE,), 1 + 2j) * sum(range(1, size + 1)))
    gathered = [torch.empty(3) for _ in range(size)] if rank == 0 else None
    dist.gather(torch.full((3,), float(rank)), gathered, 0)
    assert gathered is None or [int(each[0]) for each in gathered] == list(range(size))
    mine = torch.empty(2)
    dist.scatter(mine, [torch.full((2,), float(other)) for other in range(size)] if rank == 0 else None, 0)
    assert int(mine[1]) == rank
    dist.barrier()


def in_backward(
    tensor: torch.Tensor, process_group: Any, operation: Any = dist.ReduceOp.SUM, buffer: Optional[torch.Tensor] = None
) -> torch.Tensor:
    """What becomes of a tensor that a hook reduces in a backward pass, in `buffer` or where it happens to lie."""
    results = []

    def reduce(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient if buffer is None else buffer.copy_(gradient)
        work = dist.all_reduce(gradient, op=operation, group=process_group, async_op=True)
        work.wait()
        assert work.is_completed()
        results.append(gradient.clone())
        return gradient

    leaf = torch.zeros_like(tensor, requires_grad=True)
    leaf.register_hook(reduce)
    leaf.backward(tensor.clone())
    return results[0]


def test_the_rule_of_what_is_compressed() -> None:
    values = torch.randn(LARGE, generator=torch.Generator().manual_seed(harness.rank()))
    exact = values.clone()
    dist.all_reduce(exact)
    with group("int4:block=64") as ours:
        assert not torch.equal(in_backward(values, ours), exact)
        doubles = values.double()
        dist.all_reduce(doubles)
        assert torch.equal(in_backward(values.double(), ours), doubles)
        most = in_backward(values, ours, dist.ReduceOp.MAX)
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
        assert torch.equal(most, values)
        assert torch.equal(in_backward(torch.ones(255), ours), torch.full((255,), float(harness.size())))
    values = torch.randn(LARGE, generator=torch.Generator().manual_seed(harness.rank()))
    with group("int4:block=64", everywhere=True) as ours:
        for _ in range(3):  # no feedback: the same every time
            reduced = values.clone()
            dist.all_reduce(reduced, group=ours)
            assert not torch.equal(reduced, exact) and (reduced - exact).abs().max() < 3 and same_on_all_ranks(reduced)


def test_strided_tensors_are_compressed_as_others() -> None:
    """Strides are this rank's own affair: of ranks that had them, and ranks that had not, some would wait for others."""
    values = torch.randn(LARGE, generator=torch.Generator().manual_seed(harness.rank()))
    exact = values.clone()
    dist.all_reduce(exact)
    last = harness.rank() == harness.size() - 1
    with group("int4:block=64,round=nearest", everywhere=True) as ours:
        expected = values.clone()
        dist.all_reduce(expected, group=ours)
        for strided in (True, last):
            memory = torch.full((LARGE, 2), 5.0)
            reduced = memory[:, 0] if strided else torch.empty(LARGE)
            dist.all_reduce(reduced.copy_(values), group=ours)
            assert torch.equal(reduced, expected) and not torch.equal(reduced, exact)
            assert torch.equal(memory[:, 1], torch.full((LARGE,), 5.0)), "what lies between its elements is not its own"


def test_a_rank_with_another_tensor_is_missed_in_time() -> None:
    """It goes another way, in which nobody meets it. Every rank gets an exception, and those that wait for it learn why."""
    odd = {"another type": torch.zeros(LARGE).double(), "sparse": torch.zeros(LARGE).to_sparse(), "small": torch.zeros(8)}
    for what, tensor in odd.items():
        limit = datetime.timedelta(seconds=2)
        ours = dist.new_group(
            backend="tightwire", timeout=limit, pg_options=ProcessGroupOptions(threshold=1024, everywhere=True, timeout=1.0)
        )
        if harness.rank() == harness.size() - 1:
            with raises(RuntimeError, within=10):
                dist.all_reduce(tensor, group=ours)
        else:
            reason = f"all_reduce of {LARGE} elements of torch.float32: a rank whose tensor is of another type or size"
            with raises(Error, reason, f"rank {harness.size() - 1}", within=10):
                dist.all_reduce(torch.zeros(LARGE), group=ours)
        dist.barrier()


def test_a_fork_takes_no_part() -> None:
    with group("int8:block=64", everywhere=True) as ours:
        dist.all_reduce(torch.zeros(LARGE), group=ours)
        child = os.fork()
        if child == 0:
            try:
                dist.all_reduce(torch.zeros(LARGE), group=ours)
            except RuntimeError as error:
                os._exit(0 if "is a fork" in str(error) else 2)
            os._exit(3)
        assert os.waitpid(child, 0)[1] == 0
        dist.all_reduce(torch.zeros(LARGE), group=ours)


def test_a_work_that_never_ends_is_let_go() -> None:
    tensor = torch.zeros(8)
    gone = weakref.ref(Work([tensor]))
    gc.collect()
    assert gone() is None


def test_another_tensor_does_not_get_what_was_left() -> None:
    with group("int4:block=64") as ours:
        ones, kept = torch.randn(LARGE), []
        kept.append(in_backward(ones, ours))
        kept.append(torch.empty(3 * LARGE))  # so that the next one lies elsewhere
        layer = torch.zeros(LARGE, requires_grad=True)
        layer.register_hook(lambda gradient: dist.all_reduce(gradient, group=ours))
        layer.backward(torch.zeros(LARGE))
        assert layer.grad is not None and layer.grad.abs().max() == 0, "the gradient of one tensor reached another"
        assert ours.forgotten == 1
    # Over nodes it is forgotten on every rank, though it lies elsewhere on one alone.
    with group(f"hier(across=int4:block=64, levels=node:2{'+1' * (harness.size() - 2)})") as ours:
        buffers = [torch.empty(LARGE), torch.empty(LARGE)]
        in_backward(torch.randn(LARGE), ours, buffer=buffers[0])
        reduced = in_backward(torch.zeros(LARGE), ours, buffer=buffers[1 if harness.rank() == 0 else 0])
        assert reduced.abs().max() == 0 and ours.forgotten == 1


def test_a_step_with_infinities_is_undone() -> None:
    values = torch.randn(LARGE, generator=torch.Generator().manual_seed(harness.rank()))

    def sound_steps(spoiled: list[bool]) -> list[torch.Tensor]:
        buffer, results = torch.empty(LARGE), []
        with group("int4:block=64") as ours:
            for this_one in spoiled:
                gradient = values.clone()
                if this_one and harness.rank() == 0:
                    gradient[17] = float("inf")
                reduced = in_backward(gradient, ours, buffer=buffer)
                assert ours.end_step() != this_one, "all ranks undo it, or none"
                if not this_one:
                    assert same_on_all_ranks(reduced)
                    results.append(reduced)
            assert ours.forgotten == 0
        return results

    undisturbed, disturbed = sound_steps([False, False]), sound_steps([False, True, False])
    assert not torch.equal(undisturbed[0], undisturbed[1]), "there is feedback"
    assert all(torch.equal(a, b) for a, b in zip(undisturbed, disturbed)), "as if the step had not been"


def test_a_backward_pass_that_raises_is_over() -> None:
    with group("int4:block=64") as ours:
        values = torch.randn(LARGE, generator=torch.Generator().manual_seed(harness.rank()))
        exact = values.clone()
        dist.all_reduce(exact)
        buffer, leaf = torch.empty(LARGE), torch.zeros(LARGE, requires_grad=True)
        fails = [False, True, False, True, True, False]

        def reduce(gradient: torch.Tensor) -> None:
            dist.all_reduce(buffer.copy_(gradient), group=ours)
            if fails[0]:
                raise ValueError("in a hook")

        leaf.register_hook(reduce)
        while fails:
            with raises(ValueError, "in a hook") if fails[0] else contextlib.nullcontext():
                leaf.backward(values)
            assert not torch.equal(buffer, exact) and same_on_all_ranks(buffer)
            outside = values.clone()
            dist.all_reduce(outside, group=ours)
            assert torch.equal(outside, exact), "what is no gradient is exact"
            fails.pop(0)
        ours.end_step()
        assert ours.forgotten == 0 and len(ours._slots._slots) == 1, "every pass is a step"


def test_what_is_forgotten_again_and_again_is_said() -> None:
    """A checkpoint's backward pass is one of its own within the other, where it is reentrant."""

    def warned(reentrant: bool) -> list[str]:
        weights = [torch.ones(LARGE, requires_grad=True) for _ in range(2)]
        buffers = [torch.empty(LARGE) for _ in range(2)]
        with group("int4:block=64") as ours, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for weight, buffer in zip(weights, buffers):
                weight.register_hook(lambda gradient, at=buffer: dist.all_reduce(at.copy_(gradient), group=ours))
            for _ in range(4):
                x = random_input.clone().requires_grad_()
                for weight in weights:  # not an argument, or its gradient would come in the pass without
                    x = torch.utils.checkpoint.checkpoint(weight.__mul__, x, use_reentrant=reentrant)
                x.sum().backward()
            ours.end_step()
            assert (ours.forgotten > 0) == reentrant, ours.forgotten
        return [str(each.message) for each in caught if "tightwire" in str(each.message)]

    random_input = torch.randn(LARGE, generator=torch.Generator().manual_seed(harness.rank()))
    assert warned(False) == []
    (only,) = warned(True)
    assert "gradients came in the place of others" in only and "use_reentrant=False" in only


def test_works_are_let_go() -> None:
    with group() as ours:
        for _ in range(2):
            in_backward(torch.ones(LARGE), ours)
            ours.end_step()
        assert not ours._works and not ours._seen, "no gradient is kept beyond its step"


def test_16_bit_gradients() -> None:
    with group() as ours:
        for dtype in (torch.bfloat16, torch.float16):
            reduced = in_backward(torch.full((LARGE,), float(harness.rank() + 1), dtype=dtype), ours)
            total = sum(range(1, harness.size() + 1))
            assert reduced.dtype == dtype and (reduced - total).abs().max() < 0.02 * total
        ours.end_step()
        assert ours.sent_bytes()[1] == 2 * 2 * LARGE, "both went compressed"


def test_parts_of_the_ranks() -> None:
    if harness.size() < 3:
        return
    with group(ranks=[0, 2]) as ours:
        if harness.rank() == 1:
            return
        layer = torch.nn.Linear(64, 64, bias=False)
        ddp = wrap(layer, process_group=ours)
        ddp(torch.full((1, 64), float(harness.rank()))).sum().backward()
        assert (layer.weight.grad - 1).abs().max() < 0.02


def test_misuse_is_refused_on_all_ranks() -> None:
    def make(**options: Any) -> None:
        dist.new_group(backend="tightwire", pg_options=ProcessGroupOptions(**{"timeout": 10.0, **options}))

    odd = harness.rank() == harness.size() - 1
    with raises(Error, "different", "int4:block=32", "int8:block=64"):
        make(codec="int4:block=32" if odd else "int8:block=64")
    with raises(Error, f"rank {harness.size() - 1}", "must be one codec"):
        make(codec="int8 small=compressed" if odd else "int8")
    for codec in ("powersgd:rank=4", "hier(inside=bf16, across=powersgd:rank=4)"):
        with raises(Error, "powersgd", "attach"):
            make(codec=codec)
    with raises(Error, "reduce_scatter=", "hier() is for sums"):
        make(reduce_scatter="hier(across=int4)")
    with raises(Error, "must be one codec"):
        make(codec="hier(across=int4) seed=7")
    with raises(Error, "would be lost"):
        make(codec="topk:ratio=0.1", everywhere=True)
    with raises(Error, "ProcessGroupOptions, got dict"):
        dist.new_group(backend="tightwire", pg_options={"codec": "int8"})
    with group("int99") as ours:
        with raises(RuntimeError, "int99"):
            in_backward(torch.ones(LARGE), ours)


def test_attach_works_over_it() -> None:
    with group() as ours:
        ddp = wrap(model(), process_group=ours)
        sync = harness.attach(ddp, "int8:block=64")
        loss_of(ddp, 0).backward()
        assert sync.commit() and ours.sent_bytes() == (0, 0), "gradients go through the hook, and not twice"
        sync.close()


def test_a_rank_that_does_not_come_is_missed_in_time() -> None:
    for backend in ("tightwire", "gloo"):
        left_alone = dist.new_group(backend=backend)
        ddp = wrap(model(), process_group=left_alone)
        if harness.rank() != harness.size() - 1:
            with raises(Error, "not every rank", within=10):
                harness.attach(ddp, timeout=1.0)
        dist.barrier()
        left_alone = dist.new_group(backend=backend)
        if harness.rank() != harness.size() - 1:
            with raises(Error, "not every rank", within=10):
                sharded.Sharded(group=left_alone, timeout=1.0)
        dist.barrier()


if __name__ == "__main__":
    # Those of other files go along, as to import PyTorch takes longer than all of them.
    cases = [case for names in (globals(), vars(sharded), vars(under_way)) for case in harness.cases_of(names)]
    harness.run(cases, "tightwire", pg_options=OPTIONS)
