"""Tensors that come one at a time, without a name: each through a Session of its own, found again by what all ranks know."""

import ctypes
import os
import queue
import threading
from collections.abc import Hashable
from typing import Optional

import torch

from ._arrivals import abort, joined
from ._c import Error, Status
from ._session import Communicator, Session
from ._work import Work

NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class Slot:
    """A Session of one buffer."""

    def __init__(self, session: Session, like: torch.Tensor, feedback: bool, scratch: Optional[torch.Tensor]) -> None:
        self.session, self.feedback = session, feedback
        self.over_nodes = False  # ranks of a node have the same residual of what comes back to it: they keep or drop it together
        self.count, self.dtype = like.numel(), like.dtype
        self.scratch = scratch  # what is reduced where the caller's own tensor must stay as it is
        self.pointers = (ctypes.c_void_p * 1)()
        self.address = 0  # of the tensor that it was last used for
        self.open = False  # it was used in this step
        self.idle = threading.Event()
        self.idle.set()


class Slots:
    """The Sessions of a communicator, made when first needed: in the same order on every rank, which is the caller's promise."""

    def __init__(self, communicator: Communicator, timeout: float) -> None:
        self.communicator = communicator
        self.error: Optional[Error] = None
        self.forgotten = 0  # times that residuals were dropped, as another tensor came
        self._timeout = timeout
        self._slots: dict[Hashable, Slot] = {}
        self._started: "queue.SimpleQueue[Optional[tuple[Slot, Work]]]" = queue.SimpleQueue()
        self._worker: Optional[threading.Thread] = None

    def slot(self, key: Hashable, tensor: torch.Tensor, operation: str, specification: str, scratch: bool = False) -> Slot:
        """The slot of this key. `tensor` is the whole buffer; of a sharded operation, every rank's part."""
        slot = self._slots.get(key)
        if slot is not None:
            if (slot.count, slot.dtype) != (tensor.numel(), tensor.dtype):
                raise self.refused(
                    Status.INVALID_ARGUMENT,
                    f"{key} was first used with {slot.count} elements of {slot.dtype}, and now with {tensor.numel()} of "
                    f"{tensor.dtype}",
                )
            return slot
        self._check()
        feedback = "feedback=off" not in specification.split()
        session = Session(self.communicator, f"{specification} small=compressed timeout={self._timeout}")
        size = self.communicator.size
        shape = (tensor.numel(),) if operation == "all_reduce" else (size, tensor.numel() // size)
        session.add(str(key), shape, NAMES[tensor.dtype], operation)
        session.seal()
        slot = Slot(session, tensor, feedback, torch.empty(tensor.numel(), dtype=tensor.dtype) if scratch else None)
        slot.over_nodes = specification.startswith("hier(")
        self._slots[key] = slot
        return slot

    def start(self, slot: Slot, data: torch.Tensor, identity: Optional[int], work: Work) -> None:
        """Starts it on `data`, in place; a thread of ours ends `work`. Where the tensor whose address is `identity` is
        another one than before, what is left of that one is dropped and not added to this one."""
        self._check()
        self.await_idle(slot)
        if slot.open and not slot.feedback:
            slot.session.commit()
            slot.open = False
        if slot.feedback and identity is not None:
            if slot.address != 0 and not slot.open and self._is_another(slot, identity):
                slot.session.scale_residuals(0.0)
                self.forgotten += 1
            slot.address = identity
        slot.pointers[0] = data.data_ptr()
        try:
            slot.session.start_pointers(0, slot.pointers)
        except Error as error:
            self.fail(error)
            raise
        slot.idle.clear()
        slot.open = True
        if self._worker is None:
            self._worker = threading.Thread(target=_complete, args=(self, self._started), name="tightwire", daemon=True)
            self._worker.start()
        self._started.put((slot, work))

    def _is_another(self, slot: Slot, identity: int) -> bool:
        """Whether another tensor came, on this rank; over nodes on any, which costs a small message to every rank."""
        if not slot.over_nodes:
            return identity != slot.address
        try:
            return any(self.communicator.gather(int(identity != slot.address), self._timeout))
        except Error as error:
            self.fail(error)
            raise

    def await_idle(self, slot: Slot) -> None:
        if not slot.idle.wait(2 * self._timeout):  # the Session's own limit comes first
            raise Error(Status.TIMEOUT, f"rank {self.communicator.rank}: an earlier reduction has not ended")

    def end_step(self, keep: bool = True) -> bool:
        """Keeps what was dropped since the last call for the next step, or undoes it all: if not `keep`, or where some rank met
        a NaN or an infinity. The same on every rank."""
        used = [slot for slot in self._slots.values() if slot.open]
        for slot in used:
            self.await_idle(slot)
        self._check()
        keep = keep and all(slot.session.statistics("this step").nonfinite == 0 for slot in used if slot.feedback)
        for slot in used:
            if keep or not slot.feedback:
                slot.session.commit()
            else:
                slot.session.rollback()
            slot.open = False
        return keep

    def sent(self) -> tuple[int, int]:
        """Bytes that this rank sent in all steps that ended, and bytes of the tensors that they were for."""
        all_steps = [slot.session.statistics("all steps") for slot in self._slots.values()]
        return sum(each.sent_bytes for each in all_steps), sum(each.gradient_bytes for each in all_steps)

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    def refused(self, status: Status, text: str) -> Error:
        """What to raise where this rank cannot take part. The others, who would wait for it, get it too."""
        error = Error(status, f"rank {self.communicator.rank}: {text}")
        self.fail(error)
        return error

    def fail(self, error: Error) -> None:
        self.error = self.error or error
        abort(self.communicator, str(error))

    def close(self) -> None:
        """Ends it, after what is under way, or without where that takes long: then on every rank with an Error."""
        self._started.put(None)
        if self._worker is not None and not joined(self._worker, self.communicator):
            return
        for slot in self._slots.values():
            slot.session.close()
        self._slots.clear()
        self.communicator.close()


def close_own(owner: int, slots: Slots) -> None:
    """For finalizers: a child of fork() closes nothing."""
    if os.getpid() == owner:
        slots.close()


def _complete(slots: Slots, started: "queue.SimpleQueue[Optional[tuple[Slot, Work]]]") -> None:
    while (entry := started.get()) is not None:
        slot, work = entry
        failure: Optional[Error] = None
        try:
            slot.session.wait(0)
            work.fetch()  # before anyone may use the slot again
        except Exception as error:
            failure = error if isinstance(error, Error) else Error(Status.INTERNAL, repr(error))
            slots.fail(failure)
        slot.idle.set()
        work.done(failure)
        del entry, slot, work
