"""Whether ranks still train the same model: what optimizers hold, compared between ranks."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable, Union

import torch

from ._session import Communicator

Value = Union[str, int, float, Callable[[], Any]]
"""Of a setting or a seed, or what tells it when asked."""


class ConsistencyCheck:
    """Compares parameters, optimizer state, step counters, settings and seeds between ranks. Made by `Sync.check_consistency`."""

    def __init__(
        self,
        communicator: Communicator,
        optimizers: Iterable[torch.optim.Optimizer],
        names: Mapping[int, str],
        every: int,
        equal: Mapping[str, Value],
        differ: Mapping[str, Value],
        timeout: float,
    ) -> None:
        self._communicator, self._optimizers = communicator, list(optimizers)
        self._names, self._every, self._timeout = names, every, timeout
        self._equal, self._differ = equal, differ
        self._steps = 0

    def step_begins(self) -> None:
        """Once per step, on every rank, while nothing changes what is compared."""
        if self._steps % self._every == 0:
            self.compare()
        self._steps += 1

    def compare(self) -> None:
        """Now. Collective. Raises Error(MISMATCH) on every rank that names the first difference and what each rank has."""
        equal = {name: _told(value) for name, value in self._equal.items()}
        equal.update(replica for part in (self._settings, self._state, self._parameters) for replica in part())
        differ = {name: _told(value) for name, value in self._differ.items()}
        self._communicator.compare(self._steps, equal, differ, self._timeout)

    def _groups(self) -> Iterator[tuple[str, torch.optim.Optimizer, dict[str, Any]]]:
        for number, optimizer in enumerate(self._optimizers):
            for index, group in enumerate(optimizer.param_groups):
                place = f"optimizer {number}, " if len(self._optimizers) > 1 else ""
                yield f"{place}group {index}", optimizer, group

    def _named(self) -> Iterator[tuple[str, torch.optim.Optimizer, torch.Tensor]]:
        for place, optimizer, group in self._groups():
            for index, parameter in enumerate(group["params"]):
                yield self._names.get(id(parameter), f"{place}, parameter {index}"), optimizer, parameter

    def _settings(self) -> Iterator[tuple[str, Any]]:
        for place, _, group in self._groups():
            for key in sorted(group):
                if key != "params":
                    yield f"{place}: {key}", _shown(group[key])

    def _state(self) -> Iterator[tuple[str, Any]]:
        """Counters before momenta, which they spoil."""
        found = [
            (f"{name}: {key}", value)
            for name, optimizer, parameter in self._named()
            for key, value in sorted(optimizer.state.get(parameter, {}).items(), key=lambda item: str(item[0]))
        ]
        yield from ((name, _shown(value)) for name, value in found if _is_small(value))
        yield from ((name, _array(value)) for name, value in found if not _is_small(value))

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        for name, _, parameter in self._named():
            yield name, _array(parameter)


def _told(value: Value) -> Any:
    return value() if callable(value) else value


def _is_small(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.numel() == 1


def _shown(value: Any) -> str:
    """As it is compared. Of tensors and arrays inside lists, tuples and dicts a hash of the bytes: `repr` leaves out what is in the middle."""
    if isinstance(value, torch.Tensor):
        if value.numel() == 1:
            return repr(value.item())
        value = _array(value)
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):  # an array of NumPy
        return f"{value.dtype} {value.shape} of hash {hashlib.sha256(value.tobytes()).hexdigest()[:16]}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_shown(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        text = ", ".join(map(_shown, value))
        return f"[{text}]" if isinstance(value, list) else f"({text})"
    return repr(value)


def _array(tensor: torch.Tensor) -> Any:
    """Its bytes, uncopied where it lies in host memory in one piece."""
    dense = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
    return dense.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
