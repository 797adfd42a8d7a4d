"""Tensors that come one at a time, without a name: each through a Session of its own, found again by what all ranks know."""

import ctypes
import queue
import threading
from collections.abc import Callable, Hashable
from typing import Optional

import torch

from ._arrivals import abort
from ._c import Error, Status
from ._session import Communicator, Session

NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class Slot:
    """A Session of one buffer."""

    def __init__(self, session: Session, count: int, feedback: bool, scratch: Optional[torch.Tensor]) -> None:
        self.session, self.count, self.feedback = session, count, feedback
        self.scratch = scratch  # what is reduced where the caller's own tensor must stay as it is
        self.pointers = (ctypes.c_void_p * 1)()
        self.address = 0  # of the tensor that it was last used for
        self.open = False  # it was used in this step
        self.idle = threading.Event()
        self.idle.set()


Done = Callable[[Optional[Error]], None]


class Slots:
    """The Sessions of a communicator, made when first needed: in the same order on every rank, which is the caller's promise."""

    def __init__(self, communicator: Communicator, timeout: float) -> None:
        self.communicator = communicator
        self.error: Optional[Error] = None
        self.forgotten = 0  # times that residuals were dropped, as another tensor came
        self._timeout = timeout
        self._slots: dict[Hashable, Slot] = {}
        self._started: "queue.SimpleQueue[Optional[tuple[Slot, Done]]]" = queue.SimpleQueue()
        self._worker: Optional[threading.Thread] = None

    def slot(self, key: Hashable, tensor: torch.Tensor, operation: str, specification: str, scratch: bool = False) -> Slot:
        """The slot of this key. `tensor` is the whole buffer; of a sharded operation, every rank's part."""
        slot = self._slots.get(key)
        if slot is not None:
            return slot
        self._check()
        feedback = "feedback=off" not in specification.split()
        session = Session(self.communicator, f"{specification} small=compressed timeout={self._timeout}")
        size = self.communicator.size
        shape = (tensor.numel(),) if operation == "all_reduce" else (size, tensor.numel() // size)
        session.add(str(key), shape, NAMES[tensor.dtype], operation)
        session.seal()
        slot = Slot(session, tensor.numel(), feedback, torch.empty(tensor.numel(), dtype=tensor.dtype) if scratch else None)
        self._slots[key] = slot
        return slot

    def start(self, slot: Slot, data: torch.Tensor, identity: Optional[int], done: Done) -> None:
        """Starts it on `data`, in place; `done` is called from a thread of ours. Where the tensor whose address is `identity` is
        another one than before, what is left of that one is dropped and not added to this one."""
        self._check()
        self.await_idle(slot)
        if slot.open and not slot.feedback:
            slot.session.commit()
            slot.open = False
        if slot.feedback and identity is not None and identity != slot.address:
            if slot.address != 0 and not slot.open:
                slot.session.scale_residuals(0.0)
                self.forgotten += 1
            slot.address = identity
        slot.idle.clear()
        slot.open = True
        slot.pointers[0] = data.data_ptr()
        slot.session.start_pointers(0, slot.pointers)
        if self._worker is None:
            self._worker = threading.Thread(target=_complete, args=(self, self._started), name="tightwire", daemon=True)
            self._worker.start()
        self._started.put((slot, done))

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

    def fail(self, error: Error) -> None:
        self.error = self.error or error
        abort(self.communicator, str(error))

    def close(self) -> None:
        self._started.put(None)
        if self._worker is not None and self._worker is not threading.current_thread():
            self._worker.join(timeout=5)
        for slot in self._slots.values():
            slot.session.close()
        self._slots.clear()
        self.communicator.close()


def _complete(slots: Slots, started: "queue.SimpleQueue[Optional[tuple[Slot, Done]]]") -> None:
    while (entry := started.get()) is not None:
        slot, done = entry
        failure: Optional[Error] = None
        try:
            slot.session.wait(0)
        except Error as error:
            failure = error
            slots.fail(error)
        slot.idle.set()
        done(failure)
        del entry, slot, done
