"""How peers that run over gloo find each other where tightwire's launchers have put them, and all of them our library."""
import datetime
import os
import pathlib
import sys
import urllib.parse
from typing import Optional

import torch
import torch.distributed as dist

ROOT = pathlib.Path(__file__).resolve().parents[2]


def use_build_tree() -> None:
    """Makes `import tightwire` take the package of this checkout, with the library of build/release, or else build/dev."""
    sys.path.insert(0, str(ROOT / "python"))
    for preset in ("release", "dev"):
        library = ROOT / "build" / preset / "bindings/c/libtightwire.so"
        if library.exists():
            os.environ.setdefault("TIGHTWIRE_LIBRARY", str(library))


def network_host() -> Optional[str]:
    """Where rank 0 is on the network that the launcher has put us on, if it has."""
    meeting = urllib.parse.urlparse(os.environ.get("TIGHTWIRE_RENDEZVOUS", ""))
    return meeting.hostname if meeting.scheme == "tcp" else None


def join(port: int) -> int:
    """Joins gloo where the launcher has put us."""
    rank, size = int(os.environ["TIGHTWIRE_RANK"]), int(os.environ["TIGHTWIRE_WORLD_SIZE"])
    host = network_host() or "127.0.0.1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if host == "127.0.0.1" else "eth1")
    timeout = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=rank, world_size=size, timeout=timeout)
    return rank


def slowest(seconds: float) -> float:
    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value)
