"""tightwire: an all-reduce for training that sends a fraction of the bytes and ends with the same bits on every rank.

For PyTorch's DistributedDataParallel: `import tightwire.torch`. For any other trainer: Communicator and Session, here.
"""

from . import _c
from ._c import Error, Status
from ._session import Communicator, Session, Statistics

__version__: str = _c.ask("version")


def info() -> str:
    """Version, CPU level, transports and codecs, line by line, for people."""
    return str(_c.ask("info"))


__all__ = ["Communicator", "Error", "Session", "Statistics", "Status", "__version__", "info"]
