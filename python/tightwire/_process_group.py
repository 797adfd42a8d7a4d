"""The backend "tightwire" of torch.distributed: a gloo group, of which some tensors go compressed."""

import contextlib
import dataclasses
import inspect
import os
import re
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Optional

import torch
import torch.distributed as dist

from ._c import Error, Status
from ._meeting import meet_in_store
from ._sharded import all_gather, is_part, reduce_scatter
from ._slots import NAMES, Slots, close_own
from ._work import Work

_SUMS = {"SUM": "sum", "AVG": "mean"}


@dataclasses.dataclass(frozen=True)
class ProcessGroupOptions:
    """What the backend "tightwire" compresses: for init_process_group or new_group, as `pg_options`. The same on every rank.

    codec: for sums (ReduceOp.SUM or AVG) of float32, bfloat16 or float16 within a backward pass, which are gradients; over nodes
        "hier(inside=bf16, across=int4)".
    threshold: bytes of a tensor from which on; smaller ones are exact.
    everywhere: sums outside of a backward pass as well; those have no error feedback, as nothing says which repeats which.
    reduce_scatter: the codec of reduce_scatter_tensor, of gradients; None: as the wrapped group does it.
    all_gather: the codec of all_gather_into_tensor, and of all_gather into pieces of one tensor, as FSDP gathers on CPUs: of
        weights, without error feedback; None: exact.
    timeout: seconds without progress after which a wait ends in an exception.
    """

    codec: str = "int8:block=256"
    threshold: int = 65536
    everywhere: bool = False
    reduce_scatter: Optional[str] = None
    all_gather: Optional[str] = None
    timeout: float = 60.0

    @classmethod
    def from_environment(cls) -> "ProcessGroupOptions":
        """TIGHTWIRE_CODEC and TIGHTWIRE_THRESHOLD, where they are set."""
        threshold = os.environ.get("TIGHTWIRE_THRESHOLD", str(cls.threshold))
        if not threshold.isdigit():
            raise Error(Status.INVALID_ARGUMENT, f'TIGHTWIRE_THRESHOLD="{threshold}": must be a number of bytes')
        return cls(codec=os.environ.get("TIGHTWIRE_CODEC", cls.codec), threshold=int(threshold))

    def complaint(self) -> Optional[str]:
        for name in ("codec", "reduce_scatter", "all_gather"):
            codec = getattr(self, name)
            if codec is None:
                continue
            kind = _kind(codec)
            if kind is None:
                return f'{name}={codec!r}: must be one codec, as "int8:block=256"'
            if name != "codec" and codec.startswith("hier("):
                return f"{name}={codec!r}: what is scattered or gathered goes to every rank by one way; hier() is for sums"
            if kind == "powersgd" or (name != "codec" and kind in ("topk", "randomk")):
                return f"{name}={codec!r}: not for tensors without a shape or of a part; attach() has it for gradients"
        if self.everywhere and _kind(self.codec) in ("topk", "randomk"):
            return f"everywhere with codec={self.codec!r}: what it does not send would be lost"
        if self.threshold < 0 or not self.timeout > 0:
            return f"threshold={self.threshold}, timeout={self.timeout}: must be positive"
        return None


def _kind(codec: Any) -> Optional[str]:
    """The name of a codec; of "hier(inside=bf16, across=int4)" that of the one between nodes. None for what is not one codec."""
    if not isinstance(codec, str):
        return None
    brackets = re.fullmatch(r"hier\((.*)\)", codec)
    if brackets is not None:
        across = [word.strip()[len("across=") :] for word in brackets[1].split(",") if word.strip().startswith("across=")]
        return across[0].split(":")[0] if across and "(" not in brackets[1] else None
    return codec.split(":")[0] if len(codec.split()) == 1 and "=" not in codec.split(":")[0] else None


class _Place(NamedTuple):
    """What all ranks know of a tensor: the how-manieth of its kind it is in the backward pass. Outside of one, two take
    turns."""

    kind: str
    dtype: torch.dtype
    elements: int
    operation: str
    backward: bool
    number: int


@contextlib.contextmanager
def _told_of(place: _Place) -> Iterator[None]:
    """Says of a rank that did not come why it may not have."""
    try:
        yield
    except Error as error:
        if error.status not in (Status.TIMEOUT, Status.PEER_LOST):
            raise
        raise Error(
            error.status,
            f"{error}; this was {place.kind} of {place.elements} elements of {place.dtype}"
            f"{' in a backward pass' if place.backward else ''}: a rank whose tensor is of another type or size, sparse, or on "
            "another device goes another way",
        ) from error


class _Pass:
    """A backward pass. The engine holds it until that ends, and calls it if it ends well."""

    over = False

    def __call__(self) -> None:
        self.over = True


class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A group of gloo's, of which sums of gradients go compressed. Made by init_process_group("tightwire")."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any, settings: ProcessGroupOptions) -> None:
        super().__init__(rank, size)
        self.settings = settings
        self._size = size
        self._exact = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        communicator = meet_in_store(store, rank, size, repr(settings), settings.complaint(), settings.timeout)
        self._slots = Slots(communicator, settings.timeout)
        self._group_name = ""
        self._pass: Callable[[], Optional[_Pass]] = lambda: None
        self._seen: Counter[_Place] = Counter()  # tensors of a kind, at number 0; in this step where in a backward pass
        self._works: dict[_Place, Work] = {}  # of which DistributedDataParallel, in C++, holds no more than half
        self._forgotten_before = 0  # the last step
        self._forgetful = False  # the last step was
        self._warned = False
        self._finalizer = weakref.finalize(self, close_own, os.getpid(), self._slots)

    def getBackendName(self) -> str:
        return "tightwire"

    def name(self) -> str:
        return "tightwire"

    # PyTorch 2 keeps the name with backends in C++, of which this group has none.
    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    @property
    def group_name(self) -> str:
        return self._group_name

    @property
    def error(self) -> Optional[Error]:
        """What ended compressed communication, if something did."""
        return self._slots.error

    @property
    def forgotten(self) -> int:
        """How often a gradient came in the place of another one, so that what was left of that one was dropped."""
        return self._slots.forgotten

    def sent_bytes(self) -> tuple[int, int]:
        """Bytes that this rank sent in all steps that ended, and bytes of the tensors that they were for."""
        return self._slots.sent()

    def allreduce(self, tensors: Any, options: Any = None) -> Any:
        given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        options = options if options is not None else dist.AllreduceOptions()
        operation = _operation(options.reduceOp)
        if len(given) != 1 or operation is None or not self._is_large(given[0]):
            return self._exact.allreduce(given, options)
        backward = self._enter_backward()
        if not backward and not self.settings.everywhere:
            return self._exact.allreduce(given, options)
        tensor = given[0].detach()
        dense = tensor.contiguous()  # itself, unless this rank happens to have it strided
        words = f"{self.settings.codec} operation={operation}"
        place = self._place(backward, "all_reduce", tensor, operation)
        with _told_of(place):
            slot = self._slots.slot(place, tensor, "all_reduce", words if backward else f"{words} feedback=off")
        work = self._works[place] = Work(given, None if dense is tensor else (tensor, dense))
        self._slots.start(slot, dense, tensor.data_ptr() if backward else None, work)
        return work

    def _reduce_scatter_base(self, output: torch.Tensor, whole: torch.Tensor, options: Any = None) -> Any:
        options = options if options is not None else dist.ReduceScatterOptions()
        operation = _operation(options.reduceOp)
        codec = self.settings.reduce_scatter
        if codec is None or operation is None or not self._is_large(whole) or not is_part(output, whole, self._size):
            return self._exact._reduce_scatter_base(output, whole, options)
        backward = self._enter_backward()
        words = f"{codec} operation={operation}" + ("" if backward else " feedback=off")
        place = self._place(backward, "reduce_scatter", whole, operation)
        with _told_of(place):
            return reduce_scatter(self._slots, place, words, output, whole)

    def _allgather_base(self, whole: torch.Tensor, part: torch.Tensor, options: Any = None) -> Any:
        codec = self.settings.all_gather
        if codec is None or not self._is_large(whole) or not whole.is_contiguous() or not is_part(part, whole, self._size):
            return self._exact._allgather_base(whole, part)
        place = self._place(False, "all_gather", whole, "")
        with _told_of(place):
            return all_gather(self._slots, place, f"{codec} feedback=off", whole, part)

    def allgather(self, outputs: Any, inputs: Any, options: Any = None) -> Any:
        """FSDP gathers so on CPUs: into pieces of one tensor."""
        whole = _joined(outputs[0]) if self.settings.all_gather is not None and len(outputs) == 1 else None
        if whole is not None and inputs[0].numel() * self._size == whole.numel() and self._is_large(whole):
            return self._allgather_base(whole, inputs[0])
        return self._exact.allgather(outputs, inputs, *([] if options is None else [options]))

    def _is_large(self, tensor: torch.Tensor) -> bool:
        return (
            self._size > 1
            and tensor.dtype in NAMES
            and tensor.layout == torch.strided
            and tensor.device.type == "cpu"
            and tensor.numel() * tensor.element_size() >= max(self.settings.threshold, 1)
        )

    def _place(self, backward: bool, kind: str, tensor: torch.Tensor, operation: str) -> _Place:
        first = _Place(kind, tensor.dtype, tensor.numel(), operation, backward, 0)
        number = self._seen[first]
        self._seen[first] += 1
        return first._replace(number=number if backward else number % 2)

    def _enter_backward(self) -> bool:
        """Whether a backward pass is under way on this thread; its first call ends the step of the one before."""
        earlier = self._pass()  # None where an exception ended it
        now = earlier if earlier is not None and not earlier.over else _Pass()
        try:
            torch.autograd.Variable._execution_engine.queue_callback(now)
        except RuntimeError:  # "Final callbacks can only be installed during backward pass"
            return False
        if now is not earlier:
            self._pass = weakref.ref(now)
            self.end_step()
        return True

    def end_step(self, keep: bool = True) -> bool:
        """Ends the step of the last backward pass, as the next one does by itself: keeps what was dropped for the next step, or
        undoes it, if not `keep` or where some rank met a NaN or an infinity. The same on every rank."""
        kept = self._slots.end_step(keep)
        seen = [place for place in self._seen if place.backward]
        for place in seen:
            del self._seen[place]
        self._works = {place: work for place, work in self._works.items() if not place.backward}
        if seen:
            self._watch_what_is_forgotten()
        return kept

    def _watch_what_is_forgotten(self) -> None:
        """A step may forget when DDP regroups its buckets; to go on forgetting is to have no error feedback."""
        forgetful = self.forgotten > self._forgotten_before
        if forgetful and self._forgetful and not self._warned:
            self._warned = True
            warnings.warn(
                f"tightwire: in two steps one after the other gradients came in the place of others ({self.forgotten} so far), "
                "so that what compression dropped of them is lost. That happens with backward passes within a backward pass "
                "(torch.utils.checkpoint: give it use_reentrant=False), with tensors that are made anew in every step, and "
                "with models that take turns. tightwire.torch.attach knows parameters by name and loses nothing",
                stacklevel=2,
            )
        self._forgetful, self._forgotten_before = forgetful, self.forgotten


def _operation(given: Any) -> Optional[str]:
    for name, word in _SUMS.items():
        known = getattr(dist.ReduceOp, name, None)
        if known is not None and given == known:
            return word
    return None


def _joined(parts: list[torch.Tensor]) -> Optional[torch.Tensor]:
    """The tensor that these are equal parts of, one behind the other; None where there is none."""
    first, bytes_of_part = parts[0], parts[0].numel() * parts[0].element_size()
    for number, part in enumerate(parts):
        in_line = part.data_ptr() == first.data_ptr() + number * bytes_of_part
        if not in_line or part.numel() != first.numel() or part.dtype != first.dtype or not part.is_contiguous():
            return None
    end = (first.storage_offset() + len(parts) * first.numel()) * first.element_size()
    storage = first.untyped_storage() if hasattr(first, "untyped_storage") else first.storage()
    return first.as_strided((len(parts) * first.numel(),), (1,)) if end <= storage.nbytes() else None


def _delegate(name: str) -> Any:
    def method(self: ProcessGroup, *arguments: Any, **named: Any) -> Any:
        return getattr(self._exact, name)(*arguments, **named)

    method.__name__ = name
    return method


for _name in (
    "_end_coalescing _get_sequence_number_for_group _set_sequence_number_for_group _start_coalescing "
    "allgather_coalesced allreduce_coalesced alltoall alltoall_base barrier broadcast gather monitored_barrier recv "
    "recv_anysource reduce reduce_scatter scatter send"
).split():
    if hasattr(dist.ProcessGroupGloo, _name):
        setattr(ProcessGroup, _name, _delegate(_name))


def _create(given: Any, options: Any) -> ProcessGroup:
    if options is None:
        options = ProcessGroupOptions.from_environment()
    if not isinstance(options, ProcessGroupOptions):
        raise Error(
            Status.INVALID_ARGUMENT, f"pg_options must be tightwire.torch.ProcessGroupOptions, got {type(options).__name__}"
        )
    return ProcessGroup(given.store, given.group_rank, given.group_size, given.timeout, options)


def register() -> None:
    if not hasattr(dist.Backend, "TIGHTWIRE"):
        register_backend = dist.Backend.register_backend
        devices = {"devices": ["cpu"]} if "devices" in inspect.signature(register_backend).parameters else {}
        register_backend("tightwire", _create, extended_api=True, **devices)
