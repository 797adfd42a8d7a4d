"""What cannot work is a clear exception on all ranks, in time."""

import gc
import os
import threading
import types
import weakref

import torch
import torch.distributed as dist
import torch.utils.data

import harness
import tightwire
import tightwire.torch
from harness import TIMEOUT, attach, flat, loss_of, model, raises, same_on_all_ranks, wrap
from tightwire import Error, Status

LAST = -1  # the rank that errs, counted from the last


def errs() -> bool:
    return harness.rank() == harness.size() + LAST


def test_not_a_distributed_model() -> None:
    with raises(Error, "attach needs a DistributedDataParallel, got Net"):
        attach(model())


def test_wrong_dtype_on_one_rank() -> None:
    """Every rank learns which rank has what."""
    ddp = wrap(model())
    if errs():
        ddp.module.register_parameter("odd", torch.nn.Parameter(torch.zeros(3, dtype=torch.float64)))
    with raises(Error, f"rank {harness.size() - 1}:", '"odd" is torch.float64'):
        attach(ddp)


def test_complex_numbers() -> None:
    """On all ranks, and on one, of which the others are told."""
    for every in (True, False):
        ddp = wrap(model())  # which takes none by itself here
        if every or errs():
            ddp.module.register_parameter("phase", torch.nn.Parameter(torch.zeros(4, dtype=torch.complex64)))
        with raises(Error, f"rank {0 if every else harness.size() - 1}:", '"phase" is torch.complex64', within=5):
            attach(ddp)


def test_sparse_gradients() -> None:
    for every in (True, False):
        ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Embedding(8, 4, sparse=True)))
        ddp.module[0].sparse = every or errs()
        with raises(Error, f"rank {0 if every else harness.size() - 1}:", '"0" makes sparse gradients', within=5):
            attach(ddp)


def test_another_device() -> None:
    """PyTorch has one here that has no memory, which does for a parameter that is not in ours."""
    ddp = wrap(model())
    if errs():
        ddp.module.register_parameter("far", torch.nn.Parameter(torch.empty(2, device="meta")))
    with raises(Error, f"rank {harness.size() - 1}:", '"far" is on meta', within=5):
        attach(ddp)


def test_options_that_cannot_be() -> None:
    ddp = wrap(model())
    for codec, text in (("int9", "not known; known are exact"), ("int8 colour=red", '"colour=red": not known')):
        with raises(Error, text):
            attach(ddp, codec)
    with raises(Error, "must be propagate, skip_step or error"):
        attach(ddp, nonfinite="ignore")
    attach(ddp).close()  # it is still possible


def test_a_pattern_is_no_list_of_letters() -> None:
    """One pattern may be told as it is; by letters, "*" would be among them, and everything exact."""
    texts = []
    for exact in ("head.*", ["head.*"]):
        sync = attach(wrap(model()), "int8 small=compressed", exact=exact)
        texts.append(sync.description)
        sync.close()
    assert texts[0] == texts[1]
    lines = [line for line in texts[0].splitlines() if ".weight" in line or ".bias" in line]
    assert ["exact" in line for line in lines] == ["head." in line for line in lines], texts[0]


def test_arguments_that_make_no_sense() -> None:
    """On one rank alone, so that others must be told."""
    last = harness.size() - 1
    for exact in ("head.* stem.*", ["head.*", "a\tb"], "", [""], [7]):
        with raises(Error, f"rank {last}: attach: exact=", "is no pattern of names", within=5):
            attach(wrap(model()), exact=exact if errs() else ["head.*"])
    for size in (0, -1, 1.5, "1M", True, None, float("nan"), float("inf")):
        with raises(Error, f"rank {last}: attach: bucket_bytes must be a whole number above 0", within=5):
            attach(wrap(model()), bucket_bytes=size if errs() else 1 << 20)
    attach(wrap(model()), bucket_bytes=1e6).close()


def test_ranks_with_different_options() -> None:
    with raises(Error, "different models or options", "int8", "int4") as _:
        attach(wrap(model()), "int4" if errs() else "int8")


def test_ranks_with_different_memory_orders() -> None:
    """Gradients lie as parameters do; reduced element by element, ranks that differ would mix rows and columns."""
    ddp = wrap(model())
    if errs():
        ddp.module.stem.weight.data = ddp.module.stem.weight.data.t().contiguous().t()
    with raises(Error, '"stem.weight" (64, 32) torch.float32 strides (32, 1)', "strides (1, 64)"):
        attach(ddp)


def test_attached_twice() -> None:
    ddp = wrap(model())
    sync = attach(ddp)
    with raises(Error, "attached to already"):
        attach(ddp)
    loss_of(ddp, 0).backward()  # the first goes on
    other = wrap(model())
    with raises(Error, f"rank {harness.size() - 1}:", "attached to already", within=5):
        attach(ddp if errs() else other)
    loss_of(ddp, 1).backward()
    sync.close()


def test_another_hook() -> None:
    ddp = wrap(model())
    ddp.register_comm_hook(None, lambda state, bucket: None)
    with raises(Error, "takes one hook"):
        attach(ddp)


def test_a_rank_that_does_not_attach() -> None:
    group = dist.new_group()
    ddp = wrap(model(), process_group=group)
    if not errs():
        with raises(Error, "not every rank", within=10):
            attach(ddp, timeout=2.0)


def stop_in_the_midst(error_of_one: str, spoil: object, timeout: float = TIMEOUT, seen: str = "") -> None:
    """One rank errs in a step; every other one gets an exception from backward that says so, in time."""
    ddp = wrap(model())
    sync = attach(ddp, timeout=timeout)
    loss_of(ddp, 0).backward()
    if errs():
        spoil(sync, ddp)
        with raises(Exception, error_of_one):
            loss_of(ddp, 1).backward()
        with raises(Error, error_of_one):
            raise sync.error
    else:
        with raises(RuntimeError, "rank", seen or error_of_one, within=timeout + 5 if seen else 5):
            loss_of(ddp, 1).backward()
    sync.close()


def test_a_parameter_that_was_not_there() -> None:
    def spoil(sync: tightwire.torch.Sync, ddp: torch.nn.Module) -> None:
        del sync._places[id(ddp.module.head.weight)]

    stop_in_the_midst("the model changed after attaching: a parameter of shape (10, 48)", spoil)


def test_a_parameter_that_was_frozen() -> None:
    """DDP calls no hook then, and backward leaves every rank with its own gradients; no optimizer may step with them."""
    for every in (True, False):
        ddp = wrap(model())
        sync = attach(ddp)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for step in range(2):
            optimizer.zero_grad()
            loss_of(ddp, step).backward()
            assert sync.step(optimizer)
        before = flat(ddp.module)
        dist.barrier()  # or a rank that gives up may end another's last step as well
        frozen = every or errs()
        if frozen:
            ddp.module.head.weight.requires_grad_(False)
        with raises(Exception, "the model changed after attaching", '"head.weight" had a gradient then', within=5):
            optimizer.zero_grad()
            loss_of(ddp, 2).backward()
            assert frozen, "backward was to fail on a rank that has all gradients, and wait for those of the one that has not"
            sync.step(optimizer)
        assert torch.equal(flat(ddp.module), before) and same_on_all_ranks(before) and sync.error is not None
        sync.close()


def test_a_step_without_a_backward_pass() -> None:
    ddp = wrap(model())
    sync = attach(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    loss_of(ddp, 0).backward()
    assert sync.step(optimizer)
    with ddp.no_sync():
        loss_of(ddp, 1).backward()
    with raises(Error, "no gradient has been reduced since the last one"):
        sync.step(optimizer)
    loss_of(ddp, 1).backward()  # which goes on as if nothing had been
    assert sync.step(optimizer) and same_on_all_ranks(flat(ddp.module))
    sync.close()


def test_a_layer_that_was_exchanged() -> None:
    """DDP waits for the parameters of the old one for ever; those of the new one are nobody's."""
    ddp = wrap(model())
    sync = attach(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    loss_of(ddp, 0).backward()
    assert sync.step(optimizer)
    optimizer.zero_grad()
    ddp.module.head = torch.nn.Linear(48, 10)
    with raises(Exception):
        loss_of(ddp, 1).backward()
        sync.step(optimizer)
    sync.close()


def test_a_gradient_elsewhere() -> None:
    def spoil(sync: tightwire.torch.Sync, ddp: torch.nn.Module) -> None:
        place = sync._place
        sync._place = lambda parameter, gradient: place(parameter, gradient.to("meta"))

    stop_in_the_midst("on meta; it must be dense, in host memory", spoil)


def test_a_gradient_of_another_size() -> None:
    def spoil(sync: tightwire.torch.Sync, ddp: torch.nn.Module) -> None:
        sync._places[id(ddp.module.head.weight)].count += 1

    stop_in_the_midst('the gradient of "head.weight" has 480 elements', spoil)


def test_a_sparse_gradient_in_a_bucket() -> None:
    def spoil(sync: tightwire.torch.Sync, ddp: torch.nn.Module) -> None:
        place = sync._place
        sync._place = lambda parameter, gradient: place(parameter, gradient.to_sparse())

    stop_in_the_midst("is torch.sparse_coo on cpu", spoil)


def test_a_rank_that_closes() -> None:
    """It has taken its leave, so that the others cannot but wait for it, as long as they said."""
    stop_in_the_midst("was closed", lambda sync, ddp: sync.close(), 2.0, "no progress")


def test_nonfinite_under_the_policy_that_forbids_it() -> None:
    ddp = wrap(model())
    sync = attach(ddp, nonfinite="error")
    scale = float("nan") if errs() else 1.0
    with raises(RuntimeError, "non-finite"):
        (loss_of(ddp, 0) * scale).backward()
    sync.close()


def test_a_step_that_is_not_complete() -> None:
    ddp = wrap(model())
    sync = attach(ddp)
    parameters = [ddp.module.head.weight]
    bucket = types.SimpleNamespace(
        parameters=lambda: parameters, gradients=lambda: parameters, buffer=lambda: parameters[0].data
    )
    tightwire.torch._hook(sync, bucket)
    with raises(Error, "gradients have not arrived"):
        sync.commit()
    sync.close()


def test_fork_after_use() -> None:
    ddp = wrap(model())
    sync = attach(ddp)
    loss_of(ddp, 0).backward()
    child = os.fork()
    if child == 0:
        # Not by a backward pass, for which PyTorch itself waits for ever in a fork.
        bucket = sync._buckets[0]
        for use in (sync.commit, lambda: sync.session.start_pointers(bucket.number, bucket.pointers), sync.session.save):
            try:
                use()
            except Error as error:
                if error.status != Status.UNSUPPORTED or "is a fork" not in str(error):
                    os._exit(2)
            else:
                os._exit(3)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert sync.commit()
    loss_of(ddp, 1).backward()
    sync.close()


def test_workers_of_a_data_loader() -> None:
    """They are forks, and end as such, amid training."""
    ddp = wrap(model())
    sync = attach(ddp)
    data = torch.utils.data.TensorDataset(torch.randn(32, 32, generator=torch.Generator().manual_seed(harness.rank())))
    for (x,) in torch.utils.data.DataLoader(data, batch_size=8, num_workers=2):
        ddp(x).square().mean().backward()
    assert sync.commit() and same_on_all_ranks(ddp.module.body.weight.grad)
    sync.close()


def test_states_that_are_none() -> None:
    ddp = wrap(model())
    sync = attach(ddp, "int4:block=32 small=compressed")
    for step in range(2):
        loss_of(ddp, step).backward()
    state = sync.state_dict()
    before = sync.session.save()
    cut = {**state, "state": state["state"][:-3]}
    odd = [torch.zeros(8), torch.zeros(8, dtype=torch.uint8, device="meta"), torch.zeros(8, dtype=torch.uint8).to_sparse(), b"bytes",
           None]
    wrongs = [{}, {"tightwire": 99, "state": state["state"]}, {"tightwire": torch.ones(2), "state": state["state"]}, cut, [],
              None, 7, "text", {1, 2}, [None], *({**state, "state": each} for each in odd)]
    for wrong in wrongs:
        with raises(Error):
            sync.load_state_dict(wrong)
    for wrong in wrongs:  # of one rank alone: no other waits for it
        lists = not isinstance(wrong, dict)
        with raises(Error, within=5):
            sync.load_state_dict(wrong if errs() else [state] * harness.size() if lists else state)
    if errs():
        with raises(Error):
            sync.load_state_dict(cut)
    else:
        with raises(Error, f"rank {harness.size() - 1}"):
            sync.load_state_dict(state)
    assert sync.session.save() == before
    sync.load_state_dict(state)
    sync.close()


def test_nothing_is_left_behind() -> None:
    """Models made and dropped one after the other: threads, descriptors and models are gone."""

    def one() -> "weakref.ref[torch.nn.Module]":
        module = model()
        ddp = wrap(module)
        sync = attach(ddp)
        for step in range(2):
            loss_of(ddp, step).backward()
        sync.close()
        return weakref.ref(module)

    one()
    gc.collect()
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    tasks = len(os.listdir("/proc/self/task"))
    left = [one() for _ in range(4)]
    gc.collect()
    assert [ref() for ref in left] == [None] * 4
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/task")) == tasks
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_dropped_without_closing() -> None:
    ddp = wrap(model())
    dropped = weakref.ref(attach(ddp))
    loss_of(ddp, 0).backward()
    assert dropped() is not None  # the hook holds it
    del ddp
    gc.collect()
    assert dropped() is None


def test_undone_steps() -> None:
    """A step in which one rank has an infinity is undone on all; so is one rolled back by hand: the rest goes on as if they had
    not been, to the bit."""

    def train(spoil: object) -> torch.Tensor:
        ddp = wrap(model())
        sync = attach(ddp, "int4:block=32", small="compressed")
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for step in range(5):
            loss_of(ddp, step).backward()
            assert sync.step(optimizer)
            assert sync.commit()  # asked again: the same answer
            optimizer.zero_grad()
            if step == 2:
                spoil(sync, ddp, optimizer)
                optimizer.zero_grad()
        sync.close()
        return flat(ddp.module)

    def infinity(sync: tightwire.torch.Sync, ddp: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        (loss_of(ddp, 99) * (float("inf") if errs() else 1.0)).backward()
        assert not sync.step(optimizer)
        assert sync.statistics("last step").nonfinite > 0

    def by_hand(sync: tightwire.torch.Sync, ddp: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        loss_of(ddp, 99).backward()
        sync.rollback()

    def scaler(sync: tightwire.torch.Sync, ddp: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        loss_of(ddp, 99).backward()  # nothing wrong here; the scaler skips for a reason of its own
        scales = [4.0, 2.0]
        skipping = types.SimpleNamespace(get_scale=lambda: scales[0], step=lambda _: None, update=lambda: scales.pop(0))
        assert not sync.step(optimizer, skipping)
        sync.session.scale_residuals(4.0 / 2.0)  # the losses here follow no scale; residuals did

    def unended(sync: tightwire.torch.Sync, ddp: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        (loss_of(ddp, 99) * (float("inf") if errs() else 1.0)).backward()  # left to the next backward pass to end

    undisturbed = train(lambda sync, ddp, optimizer: None)
    assert same_on_all_ranks(undisturbed)
    for spoil in (infinity, by_hand, scaler, unended):
        assert torch.equal(train(spoil), undisturbed), spoil.__name__


if __name__ == "__main__":
    harness.run(harness.cases_of(globals()))
