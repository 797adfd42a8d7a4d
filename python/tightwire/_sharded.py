"""Sharded training (FSDP, ZeRO): gradients summed and scattered with error feedback, weights gathered without."""

import os
import weakref
from collections.abc import Hashable
from typing import Optional

import torch
import torch.distributed as dist

from ._c import Status
from ._meeting import meet
from ._slots import NAMES, Slots, close_own
from ._work import Work


def _part(whole: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    shard = whole.numel() // size
    return whole.view(-1)[rank * shard : (rank + 1) * shard]


def is_part(part: torch.Tensor, whole: torch.Tensor, size: int) -> bool:
    """Whether it can be one of `size` parts of the whole."""
    return bool(part.dtype == whole.dtype and part.device == whole.device and part.numel() * size == whole.numel())


def reduce_scatter(slots: Slots, key: Hashable, words: str, output: torch.Tensor, whole: torch.Tensor) -> Work:
    """Starts it. What comes in stays as it is."""
    target, whole = output.detach(), whole.detach()  # whoever trains them, autograd has no part in this
    rank, size = slots.communicator.rank, slots.communicator.size
    slot = slots.slot(key, whole, "reduce_scatter", words, scratch=True)
    slots.await_idle(slot)
    assert slot.scratch is not None
    slot.scratch.copy_(whole.reshape(-1))
    work = Work([output], (target, _part(slot.scratch, rank, size).view_as(target)))
    slots.start(slot, slot.scratch, None, work)
    return work


def all_gather(slots: Slots, key: Hashable, words: str, whole: torch.Tensor, part: torch.Tensor) -> Work:
    """Starts it. Our own part of the result is what the others get of it, so that all have the same bits."""
    target, part = whole.detach(), part.detach()
    rank, size = slots.communicator.rank, slots.communicator.size
    ours = _part(target, rank, size)
    first, last = whole.data_ptr(), whole.data_ptr() + whole.numel() * whole.element_size()
    if first < part.data_ptr() + part.numel() * part.element_size() and part.data_ptr() < last:
        raise slots.refused(
            Status.INVALID_ARGUMENT,
            "all_gather: the input is part of the output, and would be rounded with it; keep the weights that are trained in a "
            "tensor of their own",
        )
    slot = slots.slot(key, whole, "all_gather", words)
    slots.await_idle(slot)
    ours.copy_(part.reshape(-1))
    work = Work([whole])
    slots.start(slot, target, None, work)
    return work


class Sharded:
    """Compressed operations of sharded training for the ranks of a process group of any backend. Collective.

        sharded = tightwire.torch.Sharded(gradients="int8:block=256", weights="int8:block=256")
        sharded.all_gather(all_weights, my_weights, "layer1")
        sharded.reduce_scatter(my_gradient, all_gradients, "layer1")
        sharded.commit()

    What is summed under a name is the same thing in every step: what was dropped of it is added to it in the next. A step ends
    with `commit`, or `rollback`. An Error on one rank is one on all of them, and the end of it. Tensors are dense, contiguous, in
    host memory, float32, bfloat16 or float16; names are first used in the same order on every rank.
    """

    def __init__(
        self,
        group: Optional[dist.ProcessGroup] = None,
        *,
        gradients: str = "int8:block=256",
        weights: str = "int8:block=256",
        timeout: float = 60.0,
        address: Optional[str] = None,
    ) -> None:
        self._gradients, self._weights = gradients, weights
        group = group if group is not None else dist.group.WORLD
        description = f"gradients {gradients}\nweights {weights}"
        self._slots = Slots(meet(group, description, None, address, timeout), timeout)
        self._finalizer = weakref.finalize(self, close_own, os.getpid(), self._slots)

    def reduce_scatter(
        self, output: torch.Tensor, whole: torch.Tensor, name: str, *, average: bool = True, async_op: bool = False
    ) -> Optional[Work]:
        """Our part of the mean (or sum) over ranks of `whole`, of which rank r's part is number r. `whole` stays as it is."""
        self._check("reduce_scatter", output, whole)
        words = f"{self._gradients} operation={'mean' if average else 'sum'}"
        key = ("reduce_scatter", name, average, whole.numel(), NAMES[whole.dtype])
        return _returned(reduce_scatter(self._slots, key, words, output, whole), async_op)

    def all_gather(self, whole: torch.Tensor, part: torch.Tensor, name: str, *, async_op: bool = False) -> Optional[Work]:
        """Every rank's `part` into `whole`, rounded alike on all ranks; `part`, the weights that are trained, stays exact."""
        self._check("all_gather", part, whole)
        words = f"{self._weights} feedback=off"
        key = ("all_gather", name, whole.numel(), NAMES[whole.dtype])
        return _returned(all_gather(self._slots, key, words, whole, part), async_op)

    def _check(self, call: str, part: torch.Tensor, whole: torch.Tensor) -> None:
        size = self._slots.communicator.size
        for tensor in (part, whole):
            if tensor.dtype not in NAMES or tensor.layout != torch.strided or tensor.device.type != "cpu":
                raise self._slots.refused(
                    Status.UNSUPPORTED,
                    f"{call}: a tensor is {tensor.dtype}, {tensor.layout}, on {tensor.device}; it must be "
                    f"{', '.join(map(str, NAMES))}, dense, in host memory",
                )
        if not whole.is_contiguous() or not part.is_contiguous() or not is_part(part, whole, size):
            raise self._slots.refused(
                Status.INVALID_ARGUMENT,
                f"{call}: a part of {part.numel()} elements of {part.dtype}, for a whole of {whole.numel()} of {whole.dtype} on "
                f"{size} ranks, with strides {part.stride()} and {whole.stride()}; both must be contiguous",
            )

    def commit(self) -> bool:
        """Ends the step. False where it was undone, on every rank alike, since some rank met a NaN or an infinity."""
        return self._slots.end_step()

    def rollback(self) -> None:
        """Ends the step as if it had not happened. Every rank must do the same."""
        self._slots.end_step(False)

    def sent_bytes(self) -> tuple[int, int]:
        """Bytes that this rank sent in all steps that ended, and bytes of the tensors that they were for."""
        return self._slots.sent()

    def close(self) -> None:
        """Gives connections and memory back."""
        self._finalizer()


def _returned(work: Work, async_op: bool) -> Optional[Work]:
    if async_op:
        return work
    work.wait()
    return None
