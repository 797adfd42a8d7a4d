"""What was started and has not ended: one after the other, failing on a thread of ours, waited for and closed."""

import datetime
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import harness
from harness import attach, loss_of, model, raises, wrap
from sharded import PART, part_of, random
from tightwire import Error, Status, _arrivals
from tightwire.torch import Sharded


def started(sharded: Sharded, seed: int) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A sum of this seed's gradients under way, where it goes, and what it must be."""
    wholes = [random(100 * seed + other, harness.size() * PART) for other in range(harness.size())]
    mine = torch.empty(PART)
    work = sharded.reduce_scatter(mine, wholes[harness.rank()], "layer", async_op=True)
    return work, mine, part_of(torch.stack(wholes).mean(0))


def only_slot(sharded: Sharded) -> Any:
    (slot,) = sharded._slots._slots.values()
    return slot


def test_one_after_the_other_of_one_name() -> None:
    sharded = Sharded(gradients="exact", timeout=20.0)
    started(sharded, 0)[0].wait()
    slot = only_slot(sharded)
    become_idle = slot.idle.set

    def slowly() -> None:
        become_idle()
        time.sleep(0.05)  # in which the next one may be started

    slot.idle.set = slowly
    under_way = [started(sharded, seed) for seed in range(1, 4)]
    for work, mine, mean in under_way:
        work.wait()
        assert torch.allclose(mine, mean, atol=1e-5), (mine - mean).abs().max()
    sharded.commit()
    sharded.close()


def test_a_failure_on_our_thread_reaches_who_waits() -> None:
    sharded = Sharded(gradients="int8:block=64", timeout=20.0)
    started(sharded, 0)[0].wait()

    def wait(bucket: int) -> None:
        raise MemoryError("none left")

    only_slot(sharded).session.wait = wait
    work, _, _ = started(sharded, 1)
    with raises(Error, "MemoryError", "none left", within=5):
        work.wait()
    assert work.exception().status == Status.INTERNAL and not work.is_success()
    with raises(Error, "none left", within=5):
        sharded.commit()
    sharded.close()


def test_what_cannot_be_started_is_not_waited_for() -> None:
    sharded = Sharded(gradients="int8:block=64", timeout=20.0)
    started(sharded, 0)[0].wait()

    def start_pointers(bucket: int, pointers: object) -> None:
        raise Error(Status.TRANSPORT, "it cannot start")

    only_slot(sharded).session.start_pointers = start_pointers
    for _ in range(2):
        with raises(Error, "it cannot start", within=5):
            started(sharded, 1)
    with raises(Error, "it cannot start", within=5):
        sharded.commit()
    sharded.close()


def test_a_wait_has_a_limit_of_its_own() -> None:
    sharded = Sharded(gradients="int8:block=64", timeout=20.0)
    started(sharded, 0)[0].wait()
    last = harness.rank() == harness.size() - 1
    if not last:
        work, mine, mean = started(sharded, 1)
        with raises(Error, "is under way after 0.2 s", within=5):
            work.wait(datetime.timedelta(seconds=0.2))
        assert not work.is_completed()
    dist.barrier()
    if last:
        work, mine, mean = started(sharded, 1)
    assert work.wait(datetime.timedelta(seconds=10)) and work.wait(datetime.timedelta(0)) and work.wait()
    assert (mine - mean).abs().max() < 0.1
    sharded.commit()
    sharded.close()


def closed_early(what: Any) -> None:
    """Closed with less patience than others have to take, in less time than it waits for a rank."""
    patience, _arrivals.PATIENCE = _arrivals.PATIENCE, 0.2
    try:
        began = time.monotonic()
        what.close()
        assert time.monotonic() - began < 5
    finally:
        _arrivals.PATIENCE = patience


def reported(failures: list[BaseException], call: Callable[..., None], *arguments: Any) -> None:
    """For a thread, whose exceptions nobody gets."""
    try:
        call(*arguments)
    except BaseException as failure:
        failures.append(failure)


def test_closing_gives_up_what_does_not_end() -> None:
    """One rank never comes: what waits for it ends before the memory that it uses does."""
    sharded = Sharded(gradients="int8:block=64", timeout=60.0)
    started(sharded, 0)[0].wait()
    if harness.rank() != harness.size() - 1:
        work, _, _ = started(sharded, 1)
        worker = sharded._slots._worker
        closed_early(sharded)
        assert not worker.is_alive()
        with raises(Error, "closed with reductions under way", within=5):
            work.wait()
    dist.barrier()
    sharded.close()


def test_closing_amid_a_backward_pass() -> None:
    ddp = wrap(model())
    sync = attach(ddp, timeout=60.0)
    for step in range(2):  # after the first DDP regroups its buckets, for which it waits for all ranks
        loss_of(ddp, step).backward()
    if harness.rank() != harness.size() - 1:
        failures: list[BaseException] = []
        closing = threading.Timer(0.3, reported, [failures, closed_early, sync])
        closing.start()
        with raises(RuntimeError, "closed", within=5):
            loss_of(ddp, 2).backward()
        closing.join()
        assert not failures and not sync._worker.is_alive(), failures
    dist.barrier()
    sync.close()


if __name__ == "__main__":
    harness.run(harness.cases_of(globals()), "tightwire")
