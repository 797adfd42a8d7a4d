"""What a collective operation of torch.distributed returns."""

from typing import Any, Optional

import torch
from torch.futures import Future

from ._c import Error

_BaseWork: Any = torch._C._distributed_c10d.Work


class Work(_BaseWork):  # type: ignore[misc]
    """What a caller waits for."""

    def __init__(self, result: list[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = result
        self._error: Optional[Error] = None
        self._ended: Future[None] = Future()
        # Not set_exception, whose exception a reader in C++, as DistributedDataParallel, would take for the result.
        self._future: Future[list[torch.Tensor]] = self._ended.then(self._deliver)

    def _deliver(self, _: Future[None]) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._tensors

    def done(self, error: Optional[Error], copy: Optional[tuple[torch.Tensor, torch.Tensor]] = None) -> None:
        self._error = error
        if error is None and copy is not None:
            copy[0].copy_(copy[1])
        self._ended.set_result(None)

    def wait(self, timeout: Any = None) -> bool:
        try:
            self._future.wait()
        except RuntimeError:
            if self._error is None:
                raise
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> Future[list[torch.Tensor]]:
        return self._future

    def is_completed(self) -> bool:
        return bool(self._future.done())

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[Error]:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def synchronize(self) -> None:
        self.wait()
