"""Compressed synchronization for PyTorch's DistributedDataParallel.

    ddp = DistributedDataParallel(model)
    sync = tightwire.torch.attach(ddp, "int8:block=256", exact=["*.bias", "*norm*"])
"""

import os
import queue
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ._arrivals import Arrival, Bucket, Outcome, Place, abort, close, complete
from ._c import Error, Status
from ._consistency import ConsistencyCheck, Value
from ._meeting import meet
from ._process_group import ProcessGroup, ProcessGroupOptions, register
from ._session import Communicator, Session, Statistics
from ._sharded import Sharded
from ._slots import NAMES

# No deferred annotations in this file: DistributedDataParallel looks at those of its hook.

_FORMAT = 1  # of state_dict()


class Sync:
    """Synchronizes the gradients of one DistributedDataParallel. Made by `attach`.

    A step is a transaction: what the codec drops is added to the next step once this one counts. It counts as soon as the next
    backward pass begins, or `commit`, `step` or `state_dict` is called; `rollback` undoes it instead. A step in which some rank
    met a NaN or an infinity is undone on all ranks alike, as gradient scalers skip it.
    """

    def __init__(self, session: Session, communicator: Communicator, buckets: list[Bucket], places: dict[int, Place]):
        self.session = session
        self.communicator = communicator
        self._hook_seconds = 0.0
        self._buckets, self._places = buckets, places
        self._missing = len(places)  # gradients of this step
        self._kept = True  # what became of the last step that ended
        self._open = False  # a step has begun and not been ended
        self._arrived_since_step = False
        self._started: "queue.SimpleQueue[Optional[Bucket]]" = queue.SimpleQueue()
        self._outcome = Outcome()
        self._check: Optional[ConsistencyCheck] = None
        arguments = (session, communicator, self._started)
        self._worker = threading.Thread(target=complete, args=(*arguments, self._outcome), name="tightwire", daemon=True)
        self._worker.start()
        self._finalizer = weakref.finalize(self, close, os.getpid(), *arguments, self._worker)

    @property
    def error(self) -> Optional[Error]:
        """What ended the synchronization, if something did. DDP shows it as a RuntimeError from backward."""
        return self._outcome.error

    @property
    def hook_seconds(self) -> float:
        """Time that the hook itself has taken: on the thread that runs backward, and on the one that completes its futures.
        Codecs and the wire work meanwhile, and are not in it; `statistics` has theirs."""
        return self._hook_seconds + self._outcome.seconds

    def _arrived(self, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        """A bucket of DDP holds its gradients."""
        if self.error is not None:
            raise self.error
        if self._missing == len(self._places):
            if self._open:
                self.commit()
            if self._check is not None:
                self._compare(self._check)
            self._open = True
        self._arrived_since_step = True
        buffer = bucket.buffer()
        arrival = Arrival(buffer)
        touched: dict[int, Bucket] = {}
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
            place = self._place(parameter, gradient)
            place.bucket.pointers[place.position] = gradient.data_ptr()
            place.bucket.missing -= 1
            touched[place.bucket.number] = place.bucket
        self._missing -= len(bucket.parameters())
        arrival.left = len(touched)
        for ours in touched.values():
            ours.waiting.append(arrival)
        for ours in touched.values():
            if ours.missing == 0:
                self.session.start_pointers(ours.number, ours.pointers)
                self._started.put(ours)
        if self._missing == 0:
            self._missing = len(self._places)
        return arrival.result()

    def _place(self, parameter: torch.Tensor, gradient: torch.Tensor) -> Place:
        place = self._places.get(id(parameter))
        if place is None:
            raise Error(
                Status.INVALID_ARGUMENT,
                f"rank {self.communicator.rank}: the model changed after attaching: a parameter of shape "
                f"{tuple(parameter.shape)} was not there then",
            )
        if gradient.numel() != place.count or gradient.dtype != place.dtype:
            raise Error(
                Status.INVALID_ARGUMENT,
                f'rank {self.communicator.rank}: the model changed after attaching: the gradient of "{place.name}" has '
                f"{gradient.numel()} elements of {gradient.dtype}; it had {place.count} of {place.dtype}",
            )
        if gradient.layout != torch.strided or gradient.device.type != "cpu":
            raise Error(
                Status.UNSUPPORTED,
                f'rank {self.communicator.rank}: the gradient of "{place.name}" is {gradient.layout} on {gradient.device}; '
                "it must be dense, in host memory",
            )
        if place.bucket.missing == 0:
            raise Error(
                Status.INVALID_ARGUMENT,
                f'rank {self.communicator.rank}: the gradient of "{place.name}" came twice in a step',
            )
        return place

    def _fail(self, failure: BaseException) -> None:
        """No rank may wait for this one any more."""
        self._outcome.note(failure if isinstance(failure, Error) else Error(Status.INTERNAL, repr(failure)))
        abort(self.communicator, str(failure))

    def _end(self, keep: bool) -> bool:
        if self._missing != len(self._places):
            raise self._without(f"the step cannot end: {self._missing} gradients have not arrived")
        if self._open:
            self._open = False
            if keep:
                self._kept = self.session.commit()
            else:
                self.session.rollback()
                self._kept = False
        return self._kept

    def _without(self, text: str) -> Error:
        """What to raise where gradients did not come. For some that cannot come any more, other ranks must not wait."""
        parameters = [(place.name, place.parameter()) for place in self._places.values()]
        frozen = [f'"{name}"' for name, each in parameters if each is None or not each.requires_grad]
        if frozen:
            text += f"; the model changed after attaching: {', '.join(frozen)} had a gradient then"
        error = Error(Status.INVALID_ARGUMENT, f"rank {self.communicator.rank}: {text}")
        if frozen:
            self._fail(error)
        return error

    def commit(self) -> bool:
        """Ends the step, so that what it dropped is added to the next one. False where it was undone, on every rank alike,
        since some rank met a NaN or an infinity: do not use its gradients then. Once ended, says again what became of it."""
        return self._end(True)

    def rollback(self) -> None:
        """Ends the step as if it had not happened: what was to be added to it will be added to the next. For a step whose
        gradients are thrown away. Every rank must do the same."""
        self._end(False)

    def step(self, optimizer: torch.optim.Optimizer, scaler: Optional[Any] = None) -> bool:
        """Ends the step and takes the optimizer's, or skips both alike on all ranks; true if it was taken.

        With a gradient scaler: `scaler.step(optimizer)` and `scaler.update()`. A step that it skips is undone, and residuals
        follow its scale.

        Raises Error where no gradient has come since the last call: the model would go on with those of this rank alone.
        """
        if not self._arrived_since_step:
            if self.error is not None:
                raise self.error
            raise self._without("step: no gradient has been reduced since the last one: backward did not run, or within no_sync")
        self._arrived_since_step = False
        if scaler is None:
            taken = self.commit()
            if taken:
                optimizer.step()
            return taken
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        after = scaler.get_scale()
        taken = after >= before  # how a scaler tells that it skipped the step
        if taken:
            taken = self.commit()
        else:
            self.rollback()
        if after != before:  # residuals are in units of the scaled loss
            self.session.scale_residuals(after / before)
        return taken

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on where it is, apart from model and optimizer: save one for each rank. Ends the step."""
        self.commit()
        state = torch.frombuffer(bytearray(self.session.save()), dtype=torch.uint8)
        return {
            "tightwire": _FORMAT,
            "rank": self.communicator.rank,
            "world_size": self.communicator.size,
            "state": state,
        }

    def load_state_dict(self, state: Union[dict[str, Any], Sequence[dict[str, Any]]]) -> None:
        """Goes on from this rank's state of a job of as many ranks, bit for bit; or from those of all ranks of a job of any
        number, in any order, so that nothing is lost. Collective: on failure every rank gets an Error, and nothing changes."""
        self._end(True)
        # What is no state is refused by restoring, and so by all ranks together: an exception of this one alone would leave the
        # others waiting for it.
        if isinstance(state, dict):
            self.session.restore(_state_bytes(state))
        else:
            states = state if isinstance(state, Sequence) and not isinstance(state, (str, bytes)) else []
            self.session.restore_ranks([_state_bytes(each) for each in states])

    def check_consistency(
        self,
        optimizer: Union[torch.optim.Optimizer, Iterable[torch.optim.Optimizer]],
        every: int = 100,
        *,
        equal: Optional[Mapping[str, Value]] = None,
        differ: Optional[Mapping[str, Value]] = None,
        timeout: float = 60.0,
    ) -> ConsistencyCheck:
        """Compares ranks from now on, as the next step and every `every`-th after it begin: the optimizer's settings, step
        counters, momenta and parameters, by hash. Every rank calls it. Finds momentum that was not summed, steps that one rank
        skipped, learning rates that differ. Backward then fails on every rank, and `error` names the first difference and what
        each rank has; the synchronization is over.

        equal: settings and seeds that must be the same on every rank: {"sampler seed": 7, "epoch": lambda: epoch}.
        differ: seeds of which no two ranks may have the same: {"augmentation seed": seed}.
        The result's `compare()` compares at once, and leaves the synchronization as it is.
        """
        if every < 1 or timeout <= 0:
            raise Error(
                Status.INVALID_ARGUMENT,
                f"rank {self.communicator.rank}: check_consistency: every must be 1 or more and timeout above 0, got {every} "
                f"and {timeout}",
            )
        optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else optimizer
        names = {key: place.name for key, place in self._places.items()}
        self._check = ConsistencyCheck(self.communicator, optimizers, names, every, equal or {}, differ or {}, timeout)
        return self._check

    def _compare(self, check: ConsistencyCheck) -> None:
        try:
            check.step_begins()
        except Error as failure:
            if failure.status == Status.MISMATCH:  # which every rank knows: nobody waits for another
                self._outcome.note(failure)
            raise

    def statistics(self, scope: str = "last step") -> Statistics:
        """Bytes and times of "this step", the "last step" or "all steps" that ended."""
        return self.session.statistics(scope)

    @property
    def description(self) -> str:
        """What is in force: every parameter with its codec, every bucket; equal on all ranks."""
        return self.session.description

    def close(self) -> None:
        """Gives connections and memory back. The model cannot run backward any more, since DDP keeps its hook."""
        self._outcome.note(Error(Status.INVALID_ARGUMENT, "tightwire.torch: this synchronization was closed"))
        self._finalizer()


def _state_bytes(state: Any) -> bytes:
    """Empty for what is none."""
    if not isinstance(state, dict) or not isinstance(state.get("tightwire"), int) or state["tightwire"] != _FORMAT:
        return b""
    saved = state.get("state")
    if not isinstance(saved, torch.Tensor) or saved.dtype != torch.uint8 or saved.layout != torch.strided or saved.device.type != "cpu":
        return b""
    return bytes(saved.detach().numpy().tobytes())


def _hook(sync: Sync, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    began = time.perf_counter()
    try:
        return sync._arrived(bucket)
    except BaseException as failure:
        if failure is not sync.error:
            sync._fail(failure)
        raise
    finally:
        sync._hook_seconds += time.perf_counter() - began


def _parameters(ddp: DistributedDataParallel) -> list[tuple[str, torch.nn.Parameter]]:
    """What DDP reduces, in the order of the model."""
    ignored = set(getattr(ddp, "parameters_to_ignore", ()))
    return [(n, p) for n, p in ddp.module.named_parameters() if p.requires_grad and n not in ignored]


def _complaint(ddp: Any, parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> Optional[str]:
    """Why this model cannot be attached to, on this rank."""
    if getattr(ddp, "_tightwire_attached", False):
        return "this model is attached to already; DistributedDataParallel takes one hook"
    for name, parameter in parameters:
        if parameter.dtype not in NAMES:
            return f'"{name}" is {parameter.dtype}; known are {", ".join(map(str, NAMES))}. Leave it to the model\'s own care'
        if parameter.device.type != "cpu":
            return f'"{name}" is on {parameter.device}; this version reduces in host memory'
        if parameter.layout != torch.strided:
            return f'"{name}" is {parameter.layout}; it must be dense'
    for name, module in ddp.module.named_modules():
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse:
            return f'"{name}" makes sparse gradients, which are not supported; give it sparse=False'
    return None


def _patterns(exact: Union[str, Iterable[str]]) -> list[str]:
    """Those of the argument `exact`, of which a single one may be told as it is."""
    patterns = [exact] if isinstance(exact, str) else list(exact)
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern or any(c.isspace() for c in pattern):
            raise Error(
                Status.INVALID_ARGUMENT,
                f"attach: exact={exact!r}: {pattern!r} is no pattern of names; give one, or a list of them, without spaces",
            )
    return patterns


def _words(codec: str, exact: Iterable[str], timeout: float, options: dict[str, Any]) -> str:
    """The specification of a Session."""
    words = [codec, f"timeout={timeout}"]
    words += [f"exact={pattern}" for pattern in exact]
    options = {"nonfinite": "skip_step", **options}
    for name, value in options.items():
        text = {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value
        words.append(f"{name.replace('_', '-')}={text}")
    return " ".join(words)


def _bucket_bytes(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = 0
    if isinstance(value, bool) or number != value or number < 1:
        raise Error(Status.INVALID_ARGUMENT, f"attach: bucket_bytes must be a whole number above 0, got {value!r}")
    return number


def _group(parameters: list[tuple[str, torch.nn.Parameter]], first: int, most: int) -> list[list[int]]:
    """Buckets of one type each, of at most so many bytes, from the last parameter to the first, which is about the order in
    which backward makes gradients; the first bucket smaller, so that it starts early. As DDP makes them, but for good."""
    groups: list[list[int]] = []
    open_groups: dict[torch.dtype, tuple[list[int], int]] = {}
    for index in reversed(range(len(parameters))):
        parameter = parameters[index][1]
        group, size = open_groups.get(parameter.dtype, ([], 0))
        if not group:
            groups.append(group)
        group.append(index)
        size += parameter.numel() * parameter.element_size()
        full = size >= (first if group is groups[0] else most)
        open_groups[parameter.dtype] = ([], 0) if full else (group, size)
    return groups


def _describe(ddp: Any, parameters: Iterable[tuple[str, torch.nn.Parameter]], specification: str) -> str:
    lines = [f"options {specification}"]
    lines += [f'"{name}" {tuple(p.shape)} {p.dtype} strides {p.stride()}' for name, p in parameters]
    return "\n".join(lines)


def attach(
    ddp: DistributedDataParallel,
    codec: str = "int8:block=256",
    *,
    exact: Union[str, Iterable[str]] = (),
    timeout: float = 60.0,
    address: Optional[str] = None,
    **options: Any,
) -> Sync:
    """Has `ddp` reduce its gradients by tightwire from now on. Collective over its process group, before the first backward.

    codec: which codec, and further words of a Session's specification: "int4:block=64 rule=head.*=bf16" (docs/python.md).
    exact: pattern, or patterns, of the names of parameters that are sent whole: ["*.bias", "head.*"]; those of one dimension or
        under 1,024 elements always are.
    timeout: seconds without progress after which a wait ends in an Error, on every rank.
    address: "tcp://host:port" at which rank 0 of the group listens; by itself it finds one.
    options: further options of the specification: feedback=False, nonfinite="error", seed=7, bucket_bytes=1 << 20.

    Raises Error on every rank where one cannot go on, or where ranks differ, within `timeout`.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise Error(Status.INVALID_ARGUMENT, f"attach needs a DistributedDataParallel, got {type(ddp).__name__}")
    parameters = _parameters(ddp)
    error = _complaint(ddp, parameters)
    most, patterns = 1, []
    try:  # What this rank alone has wrong is told to the others, who would wait for it.
        most = _bucket_bytes(options.pop("bucket_bytes", max(1, getattr(ddp, "bucket_bytes_cap", 25 << 20))))
        patterns = _patterns(exact)
    except Error as mistake:
        error = error or str(mistake)
    specification = _words(codec, patterns, timeout, options)
    description = _describe(ddp, parameters, specification)
    communicator = meet(ddp.process_group, description, error, address, timeout)
    session = Session(communicator, specification)
    buckets: list[Bucket] = []
    places: dict[int, Place] = {}
    numbers = [session.add(name, p.shape, NAMES[p.dtype]) for name, p in parameters]
    for indices in _group(parameters, min(most, getattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 1 << 20)), most):
        bucket = Bucket(session.add_bucket([numbers[index] for index in indices]), len(indices))
        buckets.append(bucket)
        for position, index in enumerate(indices):
            name, parameter = parameters[index]
            places[id(parameter)] = Place(name, parameter, bucket, position)
    session.seal()
    sync = Sync(session, communicator, buckets, places)
    try:
        ddp.register_comm_hook(sync, _hook)
    except RuntimeError as failure:
        sync._fail(failure)
        raise Error(Status.INVALID_ARGUMENT, f"DistributedDataParallel takes one hook: {failure}") from failure
    object.__setattr__(ddp, "_tightwire_attached", True)
    return sync


register()

__all__ = ["ConsistencyCheck", "Error", "ProcessGroup", "ProcessGroupOptions", "Sharded", "Sync", "attach"]
