"""Communicators and Sessions: the C interface with Python's types."""

import ctypes
import dataclasses
import math
import os
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

from . import _c
from ._c import Error, Status

DTYPES = {"float32": (0, 4), "bfloat16": (1, 2), "float16": (2, 2)}
OPERATIONS = {"all_reduce": 0, "reduce_scatter": 1, "all_gather": 2, "broadcast": 3}
_SCOPES = {"this step": 0, "last step": 1, "all steps": 2}

Gradient = Union[int, Any]
"""An address, or an object with a writable, contiguous buffer: array.array, a NumPy array."""


@dataclasses.dataclass(frozen=True)
class Statistics:
    """What reductions did, as they measured it; bytes are of this rank, times in seconds."""

    calls: int
    gradient_bytes: int
    sent_bytes: int
    received_bytes: int
    encode_seconds: float
    combine_seconds: float
    decode_seconds: float
    wire_seconds: float
    blocked_seconds: float
    step_seconds: float
    nonfinite: int


def _milliseconds(timeout: float) -> int:
    """For the C interface, which refuses what is not above 0."""
    return max(1, round(min(timeout, 2.0**50) * 1000)) if timeout > 0 else -1


class _Owner:
    """Holds a handle of the C interface until it is closed."""

    _close_with = ""
    _handle = ctypes.c_void_p()  # until there is one, so that what was refused can be closed

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p()

    def close(self) -> None:
        """Gives everything back. Twice is harmless; in a child of fork() nothing happens."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            _c.ask(self._close_with, handle)

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[types.TracebackType],
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Communicator(_Owner):
    """The ranks of a job. Opening one is collective: it works on every rank, or raises on every rank within the time limit."""

    _close_with = "communicator_close"

    @classmethod
    def from_environment(cls) -> "Communicator":
        """Joins the job that `tightwire run`, torchrun, mpirun or srun describes; alone without any of them."""
        communicator = cls()
        _c.call("communicator_from_environment", ctypes.byref(communicator._handle))
        return communicator

    @classmethod
    def join(cls, rank: int, size: int, address: str, key: str, timeout: float = 60.0) -> "Communicator":
        """Joins `size` ranks that meet at `address` ("tcp://host:port", "file:///path", "local:///path") and all know `key`.

        `timeout`, in seconds, limits joining and every later wait.
        """
        communicator = cls()
        rendezvous = _c.Rendezvous(
            ctypes.sizeof(_c.Rendezvous), rank, size, _c.text("address", address), _c.text("key", key), _milliseconds(timeout)
        )
        _c.call("communicator_join", ctypes.byref(rendezvous), ctypes.byref(communicator._handle))
        return communicator

    @classmethod
    def in_process(cls, size: int) -> list["Communicator"]:
        """`size` ranks as threads of this process, one communicator for each."""
        handles = (ctypes.c_void_p * max(size, 0))()
        _c.call("communicator_in_process", size, handles)
        communicators = []
        for handle in handles:
            communicators.append(cls())
            communicators[-1]._handle = ctypes.c_void_p(handle)
        return communicators

    @property
    def rank(self) -> int:
        """-1 once closed."""
        return int(_c.ask("communicator_rank", self._handle))

    @property
    def size(self) -> int:
        """-1 once closed."""
        return int(_c.ask("communicator_size", self._handle))

    @property
    def description(self) -> str:
        """The mode in force: "ucx 1.13.1: posix cma"."""
        return str(_c.ask("communicator_description", self._handle))

    def gather(self, value: int, timeout: float = 60.0) -> list[int]:
        """Every rank's value, from 0 to 2**64 - 1, by rank. Collective."""
        if not 0 <= value < 1 << 64:
            raise Error(Status.INVALID_ARGUMENT, f"rank {self.rank}: gather: {value} is not from 0 to 2**64 - 1")
        values = (ctypes.c_uint64 * max(self.size, 0))()
        _c.call("communicator_gather", self._handle, value, _milliseconds(timeout), values)
        return list(values)

    def compare(
        self,
        step: int,
        equal: Mapping[str, Any],
        differ: Optional[Mapping[str, Any]] = None,
        timeout: float = 60.0,
    ) -> None:
        """Finds ranks that have drifted apart: what is in `equal` must be the same on every rank, and of what is in `differ`
        (seeds of augmentation) no two ranks may have the same. By name, arrays with a contiguous buffer, or texts and numbers,
        which are shown; the same names in the same order on every rank, causes first. Every 100 steps or so. Collective.

        Raises Error(MISMATCH) with the same text on every rank: the first difference, and what each rank has.
        """
        pairs = [(name, value, 0) for name, value in equal.items()] + [(n, v, 1) for n, v in (differ or {}).items()]
        views = [_bytes_of(name, value) for name, value, _ in pairs]
        replicas = (_c.Replica * len(pairs))()
        for replica, view, (name, _, must_differ) in zip(replicas, views, pairs):
            address = ctypes.addressof(view) if len(view) else 0
            replica.struct_size, replica.name = ctypes.sizeof(_c.Replica), _c.text("name", name)
            replica.bytes, replica.size, replica.must_differ = address, len(view), must_differ
        _c.call("communicator_compare", self._handle, step, replicas, len(pairs), _milliseconds(timeout))

    def abort(self, reason: str) -> None:
        """Gives up: every rank that waits for this one, now or later, gets an Error with this reason at once."""
        _c.call("communicator_abort", self._handle, reason.replace("\0", " ").encode())


def _bytes_of(name: str, value: Any) -> "ctypes.Array[ctypes.c_char]":
    """The bytes of an array, uncopied where it is writable, or of a value's text."""
    try:
        view = memoryview(value)
    except TypeError:
        view = memoryview(str(value).encode())
    if not view.c_contiguous:
        raise Error(Status.INVALID_ARGUMENT, f'"{name}" is not contiguous')
    kind = ctypes.c_char * view.nbytes
    if view.readonly or view.nbytes == 0:
        return kind.from_buffer_copy(view.cast("B") if view.nbytes else b"")
    return kind.from_buffer(view)


def _state(value: Any) -> bytes:
    """Empty for what is none, which every rank then learns: an exception of this rank alone would leave the others waiting."""
    try:
        return bytes(memoryview(value))
    except TypeError:
        return b""


class Session(_Owner):
    """Keeps the gradients of a model in step on all ranks.

    `specification` is a codec and options: "int8:block=256 exact=*.bias feedback=on timeout=60" (docs/python.md lists them); or
    the path of a file of TOML that has them as its keys.
    One thread may wait while another one starts; anything else is for one thread at a time.
    """

    _close_with = "session_close"

    def __init__(self, communicator: Communicator, specification: Union[str, "os.PathLike[str]"] = "int8:block=256") -> None:
        super().__init__()
        self._bytes: list[int] = []
        self._buckets: list[list[int]] = []
        self._under_way: dict[int, list[Any]] = {}  # what keeps their gradients where they are
        if isinstance(specification, str):
            if specification.endswith(".toml"):
                raise Error(
                    Status.INVALID_ARGUMENT, f'"{specification}" is no codec; for a file give pathlib.Path("{specification}")'
                )
            _c.call("session_open", communicator._handle, _c.text("specification", specification), ctypes.byref(self._handle))
        else:
            path = _c.text("path", os.fsdecode(specification))
            _c.call("session_open_file", communicator._handle, path, ctypes.byref(self._handle))

    def add(
        self, name: str, shape: Iterable[int], dtype: str = "float32", operation: str = "all_reduce", root: int = 0
    ) -> int:
        """Adds a parameter of dtype float32, bfloat16 or float16 and returns its number. The same on every rank.

        For another operation than all_reduce, a buffer of the shape of the whole, with a bucket of its own (`bucket_of`): of
        reduce_scatter and all_gather rank r's part is part number r of it, in place; a broadcast comes from `root`.
        """
        if dtype not in DTYPES:
            raise Error(Status.INVALID_ARGUMENT, f'"{name}" is {dtype}; known are {", ".join(DTYPES)}')
        if operation not in OPERATIONS:
            raise Error(Status.INVALID_ARGUMENT, f'"{name}" is for {operation}; known are {", ".join(OPERATIONS)}')
        extents = list(shape)
        number = ctypes.c_size_t()
        code, width = DTYPES[dtype]
        c_shape = (ctypes.c_int64 * len(extents))(*extents)
        size = ctypes.sizeof(_c.Buffer)
        buffer = _c.Buffer(size, _c.text("name", name), c_shape, len(extents), code, OPERATIONS[operation], root)
        _c.call("session_add_buffer", self._handle, ctypes.byref(buffer), ctypes.byref(number))
        self._bytes.append(math.prod(extents) * width)
        return number.value

    def bucket_of(self, parameter: int) -> int:
        """The bucket that a parameter is in, once sealed."""
        bucket = ctypes.c_size_t()
        _c.call("session_bucket_of", self._handle, parameter, ctypes.byref(bucket))
        return bucket.value

    def add_bucket(self, parameters: Sequence[int]) -> int:
        """Declares that these parameters are reduced by one `start`, and returns the bucket's number."""
        number = ctypes.c_size_t()
        c_parameters = (ctypes.c_size_t * len(parameters))(*parameters)
        _c.call("session_add_bucket", self._handle, c_parameters, len(parameters), ctypes.byref(number))
        return number.value

    def set_priority(self, parameter: int, priority: int) -> None:
        """Buckets that were started go on in the order of their parameters' addition, as the next forward pass needs them,
        but those of a higher priority first; of a bucket its most urgent parameter counts. Before `seal`; 0 by default."""
        _c.call("session_set_priority", self._handle, parameter, priority)

    def seal(self) -> None:
        """Plans, takes all memory and agrees with the other ranks. Collective. Ranks that differ all get an Error."""
        _c.call("session_seal", self._handle)
        count = ctypes.c_size_t()
        _c.call("session_counts", self._handle, None, ctypes.byref(count), None, None)
        self._buckets = [self._read_bucket(bucket) for bucket in range(count.value)]

    def _read_bucket(self, bucket: int) -> list[int]:
        parameters = (ctypes.c_size_t * max(len(self._bytes), 1))()
        count = ctypes.c_size_t()
        _c.call("session_bucket", self._handle, bucket, parameters, len(self._bytes), ctypes.byref(count))
        return list(parameters)[: count.value]

    @property
    def buckets(self) -> list[list[int]]:
        """The parameters of every bucket, in the order in which `start` wants them. Known once sealed."""
        return [list(bucket) for bucket in self._buckets]

    def _pointers(self, gradients: Sequence[Gradient], parameters: Sequence[int]) -> tuple[Any, list[Any]]:
        """Their addresses, and what keeps the buffers where they are: an array under way cannot grow, nor be freed."""
        if len(gradients) != len(parameters):
            raise Error(Status.INVALID_ARGUMENT, f"got {len(gradients)} gradients for {len(parameters)} parameters")
        exports = [None if isinstance(g, int) else self._export(g, p) for g, p in zip(gradients, parameters)]
        addresses = [g if e is None else ctypes.addressof(e) for g, e in zip(gradients, exports)]
        return (ctypes.c_void_p * len(gradients))(*addresses), exports

    def _export(self, gradient: Any, parameter: int) -> Any:
        with memoryview(gradient) as view:
            if view.readonly or not view.c_contiguous or view.nbytes != self._bytes[parameter]:
                raise Error(
                    Status.INVALID_ARGUMENT,
                    f"the gradient of parameter {parameter} must be writable, contiguous and of {self._bytes[parameter]} "
                    f"bytes; got {view.nbytes}{', read-only' if view.readonly else ''}"
                    f"{'' if view.c_contiguous else ', not contiguous'}",
                )
        return ctypes.c_char.from_buffer(gradient) if self._bytes[parameter] else ctypes.c_char()

    def start(self, bucket: int, gradients: Sequence[Gradient]) -> None:
        """Starts the mean over ranks, in place. The gradients are the Session's until `wait`; addresses stay valid so long."""
        if not 0 <= bucket < len(self._buckets):
            self.start_pointers(bucket, (ctypes.c_void_p * len(gradients))())  # which says what is wrong
        pointers, exports = self._pointers(gradients, self._buckets[bucket])
        self.start_pointers(bucket, pointers)
        self._under_way[bucket] = [gradients, exports]

    def start_pointers(self, bucket: int, pointers: Any) -> None:
        """As `start`, from a ctypes array of addresses, which is copied. For callers that count microseconds."""
        _c.call("session_start", self._handle, bucket, pointers, len(pointers))

    def wait(self, bucket: int) -> None:
        """Returns when the bucket holds the result: the same bytes on every rank. Raises what ended the reduction."""
        _c.call("session_wait", self._handle, bucket)
        self._under_way.pop(bucket, None)

    def all_reduce(self, gradients: Sequence[Gradient]) -> None:
        """Reduces all parameters in place, in order of addition."""
        pointers, exports = self._pointers(gradients, range(len(self._bytes)))
        _c.call("session_all_reduce", self._handle, pointers, len(pointers))
        del exports

    def commit(self) -> bool:
        """Ends the step and keeps its residuals. False where the policy skip_step rolled it back, on every rank alike."""
        kept = ctypes.c_int32()
        _c.call("session_commit", self._handle, ctypes.byref(kept))
        return bool(kept.value)

    def rollback(self) -> None:
        """Ends the step as if it had not happened. Every rank must do the same."""
        _c.call("session_rollback", self._handle)

    def scale_residuals(self, factor: float) -> None:
        """Multiplies what is left of earlier steps, for gradients that from now on come in another unit, as when a loss scale
        changes; with 0 it is forgotten. Between steps, on every rank alike: where ranks differ, over nodes or with
        momentum correction, the next reduction raises Error(MISMATCH)."""
        _c.call("session_scale_residuals", self._handle, factor)

    def save(self) -> bytes:
        """Everything of this rank that later steps depend on, apart from the model. Between steps."""
        data = ctypes.c_void_p()
        size = ctypes.c_size_t()
        _c.call("session_save", self._handle, ctypes.byref(data), ctypes.byref(size))
        state = ctypes.string_at(data, size.value)
        _c.call("session_save", self._handle, None, None)
        return state

    def restore(self, own: bytes) -> None:
        """Takes up what this rank saved in a job of as many ranks; training goes on bit for bit. Collective.

        On failure every rank gets an Error and nothing is changed: what is no state is refused by all of them together.
        """
        state = _state(own)
        _c.call("session_restore", self._handle, state, len(state))

    def restore_ranks(self, states: Sequence[bytes]) -> None:
        """The same from what all ranks of a job of any number of ranks saved, in any order, so that nothing is lost."""
        known = [_state(each) for each in states]
        pointers = (ctypes.c_char_p * len(known))(*known)
        sizes = (ctypes.c_size_t * len(known))(*map(len, known))
        _c.call("session_restore_ranks", self._handle, pointers, sizes, len(known))

    def statistics(self, scope: str = "last step") -> Statistics:
        """Of "this step", the "last step" or "all steps" that ended."""
        if scope not in _SCOPES:
            raise Error(Status.INVALID_ARGUMENT, f'there is no scope "{scope}"; known are {", ".join(_SCOPES)}')
        measured = _c.CStatistics(struct_size=ctypes.sizeof(_c.CStatistics))
        _c.call("session_statistics", self._handle, _SCOPES[scope], ctypes.byref(measured))
        return Statistics(**{field.name: getattr(measured, field.name) for field in dataclasses.fields(Statistics)})

    @property
    def description(self) -> str:
        """What is in force, line by line: equal on all ranks."""
        text = ctypes.c_char_p()
        _c.call("session_description", self._handle, ctypes.byref(text))
        return (text.value or b"").decode(errors="replace")

    @property
    def residual_bytes(self) -> int:
        """Memory for residuals."""
        size = ctypes.c_size_t()
        _c.call("session_counts", self._handle, None, None, None, ctypes.byref(size))
        return size.value
