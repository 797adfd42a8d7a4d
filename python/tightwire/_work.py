"""What a collective operation of torch.distributed returns."""

import datetime
import threading
from typing import Any, Optional

import torch
from torch.futures import Future

from ._c import Error, Status

_BaseWork: Any = torch._C._distributed_c10d.Work


class _Result:
    """What the future of a Work delivers. It holds no future, which would hold itself for ever if its operation never ended."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self.error: Optional[Error] = None

    def deliver(self, _: Future[None]) -> list[torch.Tensor]:
        if self.error is not None:
            raise self.error
        return self.tensors


class Work(_BaseWork):  # type: ignore[misc]
    """What a caller waits for. Where the result comes about elsewhere, `copy` is where it goes and where it then is."""

    def __init__(self, result: list[torch.Tensor], copy: Optional[tuple[torch.Tensor, torch.Tensor]] = None) -> None:
        super().__init__()
        self._result = _Result(result)
        self._copy = copy
        self._over = threading.Event()
        self._ended: Future[None] = Future()
        # Not set_exception, whose exception a reader in C++, as DistributedDataParallel, would take for the result.
        self._future: Future[list[torch.Tensor]] = self._ended.then(self._result.deliver)

    def fetch(self) -> None:
        """Puts the result where the caller wants it."""
        if self._copy is not None:
            self._copy[0].copy_(self._copy[1])

    def done(self, error: Optional[Error]) -> None:
        """Ends the wait. Callbacks of the future run in it, and may start what comes next."""
        self._result.error, self._copy = error, None
        self._over.set()
        self._ended.set_result(None)

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        """Raises what ended the operation, or Error(TIMEOUT) where that takes longer than `timeout`, which ends nothing."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0  # which is PyTorch's word for no limit as well
        if seconds > 0 and not self._over.wait(seconds):
            raise Error(Status.TIMEOUT, f"the operation is under way after {seconds} s")
        try:
            self._future.wait()
        except RuntimeError:
            if self._result.error is None:
                raise
        if self._result.error is not None:
            raise self._result.error
        return True

    def get_future(self) -> Future[list[torch.Tensor]]:
        return self._future

    def is_completed(self) -> bool:
        return bool(self._future.done())

    def is_success(self) -> bool:
        return self.is_completed() and self._result.error is None

    def exception(self) -> Optional[Error]:
        return self._result.error

    def result(self) -> list[torch.Tensor]:
        return self._result.tensors

    def synchronize(self) -> None:
        self.wait()
