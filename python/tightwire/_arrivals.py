"""Gradients on their way: from buckets of DistributedDataParallel to buckets of a Session, and back."""

import ctypes
import os
import queue
import threading
import time
import weakref
from typing import Optional

import torch
from torch.futures import Future

from ._c import Error, Status
from ._session import Communicator, Session


class Bucket:
    """A bucket of the Session: parameters that are reduced by one call."""

    def __init__(self, number: int, count: int) -> None:
        self.number = number
        self.pointers = (ctypes.c_void_p * count)()
        self.missing = count  # gradients that have not arrived in this step
        self.waiting: list["Arrival"] = []  # what cannot be completed before this bucket is


class Arrival:
    """A bucket of DDP under way. DDP groups parameters by its own lights and regroups them after the first step; ours stay."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self.buffer = buffer
        self.future: Future[None] = Future()
        self.left = 0  # buckets of ours that hold parameters of it
        self.errors: list[Error] = []  # what its buckets ended with

    def result(self) -> Future[torch.Tensor]:
        buffer, errors = self.buffer, self.errors  # and not self, or the future would hold itself if it never ended

        def deliver(_: Future[None]) -> torch.Tensor:
            if errors:
                raise errors[0]
            return buffer

        return self.future.then(deliver)


class Place:
    """Where the gradient of a parameter belongs."""

    def __init__(self, name: str, parameter: torch.nn.Parameter, bucket: Bucket, position: int) -> None:
        self.name, self.bucket, self.position = name, bucket, position
        self.parameter = weakref.ref(parameter)
        self.count, self.dtype = parameter.numel(), parameter.dtype


class Outcome:
    """What a Sync shares with the thread that waits for it, which must not keep it alive."""

    def __init__(self) -> None:
        self.error: Optional[Error] = None  # what ended the synchronization, if something did
        self.seconds = 0.0  # spent on completing what DDP waits for

    def note(self, error: Error) -> None:
        self.error = self.error or error


def complete(
    session: Session,
    communicator: Communicator,
    started: "queue.SimpleQueue[Optional[Bucket]]",
    outcome: Outcome,
) -> None:
    """Waits for buckets in the order of their start and completes what DDP waits for. Runs on a thread of its own."""
    while (bucket := started.get()) is not None:
        error: Optional[Error] = None
        try:
            session.wait(bucket.number)
        except Exception as failure:
            error = failure if isinstance(failure, Error) else Error(Status.INTERNAL, repr(failure))
            if error.status != Status.NONFINITE:  # which all ranks know of; anything else they must hear of
                outcome.note(error)
                abort(communicator, str(error))
        began = time.perf_counter()
        waiting, bucket.waiting = bucket.waiting, []
        bucket.missing = len(bucket.pointers)  # before DDP goes on: the next step may begin at once
        for arrival in waiting:
            arrival.errors += [error] if error is not None else []
            arrival.left -= 1
            if arrival.left == 0:
                arrival.future.set_result(None)
        waiting.clear()
        outcome.seconds += time.perf_counter() - began


PATIENCE = 5.0  # seconds that closing waits for what is under way


def joined(worker: threading.Thread, communicator: Communicator) -> bool:
    """Waits for a thread that ends after what is under way, and gives that up, on every rank, where it takes long. False where
    the thread stays nevertheless: what it uses must stay with it."""
    if worker is threading.current_thread():
        return True
    worker.join(PATIENCE)
    if worker.is_alive():
        abort(communicator, "it was closed with reductions under way")
        worker.join(PATIENCE)
    return not worker.is_alive()


def abort(communicator: Communicator, reason: str) -> None:
    try:
        communicator.abort(reason)
    except Error:
        pass  # it is closed already, or this is a child of fork()


def close(
    owner: int,
    session: Session,
    communicator: Communicator,
    started: "queue.SimpleQueue[Optional[Bucket]]",
    worker: threading.Thread,
) -> None:
    if os.getpid() != owner:
        return
    started.put(None)
    if not joined(worker, communicator):
        return
    session.close()
    communicator.close()
