"""The C interface (bindings/c/tightwire/tightwire.h), by ctypes, which lets other Python threads run during every call."""

import ctypes
import enum
import os
import pathlib
from typing import Any

ABI_VERSION = 1


class Status(enum.IntEnum):
    """Why a call failed."""

    OK = 0
    INVALID_ARGUMENT = 1
    MISMATCH = 2
    TIMEOUT = 3
    PEER_LOST = 4
    TRANSPORT = 5
    CORRUPT = 6
    NONFINITE = 7
    UNSUPPORTED = 8
    NO_MEMORY = 9
    DEVICE = 10
    INTERNAL = 11


class Error(RuntimeError):
    """The one exception of tightwire. Its text names the rank and, of a disagreement, both sides; `status` tells its kind."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


class Rendezvous(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("address", ctypes.c_char_p),
        ("key", ctypes.c_char_p),
        ("timeout_ms", ctypes.c_int64),
    ]


class Buffer(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("dimensions", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("operation", ctypes.c_int),
        ("root", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


class Replica(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("bytes", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("must_differ", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


class CStatistics(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("calls", ctypes.c_uint64),
        ("gradient_bytes", ctypes.c_uint64),
        ("sent_bytes", ctypes.c_uint64),
        ("received_bytes", ctypes.c_uint64),
        ("encode_seconds", ctypes.c_double),
        ("combine_seconds", ctypes.c_double),
        ("decode_seconds", ctypes.c_double),
        ("wire_seconds", ctypes.c_double),
        ("blocked_seconds", ctypes.c_double),
        ("step_seconds", ctypes.c_double),
        ("nonfinite", ctypes.c_uint64),
    ]


_handle = ctypes.c_void_p
_handles = ctypes.POINTER(ctypes.c_void_p)
_size = ctypes.c_size_t
_sizes = ctypes.POINTER(ctypes.c_size_t)
_uint64s = ctypes.POINTER(ctypes.c_uint64)

_ARGUMENTS: dict[str, list[Any]] = {
    "require_abi": [ctypes.c_uint32],
    "communicator_from_environment": [_handles],
    "communicator_join": [ctypes.POINTER(Rendezvous), _handles],
    "communicator_in_process": [ctypes.c_int32, _handles],
    "communicator_gather": [_handle, ctypes.c_uint64, ctypes.c_int64, _uint64s],
    "communicator_compare": [_handle, ctypes.c_uint64, ctypes.POINTER(Replica), _size, ctypes.c_int64],
    "communicator_abort": [_handle, ctypes.c_char_p],
    "session_open": [_handle, ctypes.c_char_p, _handles],
    "session_open_file": [_handle, ctypes.c_char_p, _handles],
    "session_add_buffer": [_handle, ctypes.POINTER(Buffer), _sizes],
    "session_bucket_of": [_handle, _size, _sizes],
    "session_add_bucket": [_handle, _sizes, _size, _sizes],
    "session_set_priority": [_handle, _size, ctypes.c_int32],
    "session_seal": [_handle],
    "session_start": [_handle, _size, _handles, _size],
    "session_wait": [_handle, _size],
    "session_all_reduce": [_handle, _handles, _size],
    "session_commit": [_handle, ctypes.POINTER(ctypes.c_int32)],
    "session_rollback": [_handle],
    "session_scale_residuals": [_handle, ctypes.c_float],
    "session_save": [_handle, _handles, _sizes],
    "session_restore": [_handle, ctypes.c_char_p, _size],
    "session_restore_ranks": [_handle, ctypes.POINTER(ctypes.c_char_p), _sizes, _size],
    "session_statistics": [_handle, ctypes.c_int, ctypes.POINTER(CStatistics)],
    "session_description": [_handle, ctypes.POINTER(ctypes.c_char_p)],
    "session_counts": [_handle, _sizes, _sizes, _uint64s, _sizes],
    "session_bucket": [_handle, _size, _sizes, _size, _sizes],
}


def _load() -> ctypes.CDLL:
    """The library beside this package, or the one that TIGHTWIRE_LIBRARY names."""
    path = os.environ.get("TIGHTWIRE_LIBRARY") or str(pathlib.Path(__file__).parent / "lib" / "libtightwire.so")
    library = ctypes.CDLL(path)
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, "tightwire_" + name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    for name in ("version", "info", "last_error"):
        function = getattr(library, "tightwire_" + name)
        function.argtypes, function.restype = [], ctypes.c_char_p
    for name in ("communicator_rank", "communicator_size"):
        function = getattr(library, "tightwire_" + name)
        function.argtypes, function.restype = [_handle], ctypes.c_int32
    library.tightwire_communicator_description.argtypes = [_handle]
    library.tightwire_communicator_description.restype = ctypes.c_char_p
    for name in ("communicator_close", "session_close"):
        function = getattr(library, "tightwire_" + name)
        function.argtypes, function.restype = [_handle], None
    return library


_library = _load()


def call(name: str, *arguments: Any) -> None:
    """Calls tightwire_<name>; what fails becomes an Error."""
    status = getattr(_library, "tightwire_" + name)(*arguments)
    if status != 0:
        raise Error(Status(status), _library.tightwire_last_error().decode(errors="replace"))


def ask(name: str, *arguments: Any) -> Any:
    """Calls tightwire_<name>, which cannot fail, and returns what it returns; texts decoded."""
    answer = getattr(_library, "tightwire_" + name)(*arguments)
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


def text(what: str, value: str) -> bytes:
    """For a parameter of type char*. Raises Error where C would read but a part of it."""
    if "\0" in value:
        raise Error(Status.INVALID_ARGUMENT, f"{what} {value!r} has a NUL in it")
    return value.encode(errors="surrogateescape")  # as paths have what is no UTF-8


call("require_abi", ABI_VERSION)
