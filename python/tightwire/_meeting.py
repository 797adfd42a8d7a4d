"""Brings the ranks of a process group of PyTorch together in a communicator of our own."""

import contextlib
import dataclasses
import datetime
import json
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch.distributed as dist

from ._c import Error, Status
from ._session import Communicator


@dataclasses.dataclass(frozen=True)
class _Card:
    """What a rank tells all others before they connect."""

    description: str  # of what is to be synchronized; must be equal
    error: Optional[str]  # why this rank cannot go on
    machine: str
    key: str
    local_address: str
    network_address: str


def _machine() -> str:
    """Equal for ranks that can meet on loopback: not across containers or namespaces of networks."""
    with open("/proc/sys/kernel/random/boot_id") as boot_id:
        network = os.readlink("/proc/self/ns/net")
        return f"{socket.gethostname()} {boot_id.read().strip()} {os.getuid()} {network}"


def _own_host() -> str:
    """Where others reach this machine: its address on the way to MASTER_ADDR, which all of them can reach; else its name."""
    master = os.environ.get("MASTER_ADDR", "")
    try:
        family, _, _, _, target = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0] if master else (0, 0, 0, "", ())
        if family != socket.AF_INET:  # addresses with colons are not for "tcp://host:port"
            return socket.gethostname()
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing
            host = str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
    return socket.gethostname() if host.startswith("127.") else host


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"tcp://{_own_host()}:{probe.getsockname()[1]}"


@contextlib.contextmanager
def _folder(wanted: bool) -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="tightwire-") if wanted else ""
    try:
        yield path
    finally:
        if wanted:
            shutil.rmtree(path, ignore_errors=True)


def _first_difference(mine: str, theirs: str) -> str:
    ours, other = mine.splitlines(), theirs.splitlines()
    for a, b in zip(ours + ["nothing more"], other + ["nothing more"]):
        if a != b:
            return f"{a}; and {b}"
    return "the number of lines"


def _check(cards: list[_Card], rank: int) -> None:
    """Raises the same on all ranks: where one cannot go on, or where two differ."""
    for other, card in enumerate(cards):
        if card.error is not None:
            raise Error(Status.INVALID_ARGUMENT, f"rank {other}: {card.error}")
    for other, card in enumerate(cards):
        if card.description != cards[0].description:
            difference = _first_difference(cards[0].description, card.description)
            raise Error(Status.MISMATCH, f"rank {rank}: ranks 0 and {other} have different models or options: {difference}")


def meet(
    group: dist.ProcessGroup, description: str, error: Optional[str], address: Optional[str], timeout: float
) -> Communicator:
    """A communicator of the ranks of `group`, once all of them describe the same and none has an error.

    Collective over `group`, which carries one small object per rank. Rank 0 of the group listens at `address`, or, without
    one, where all ranks on its machine (a socket file's folder), else where those that know its host name, can reach it.

    Over gloo, and the backend "tightwire", which is gloo's as well, a rank that does not come is an Error after `timeout`;
    over other backends after the limit that they have of their own.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    exact = getattr(group, "_exact", None)  # the group of gloo's in one of ours
    if exact is not None or dist.get_backend(group) == "gloo":  # which waits half an hour for a rank that does not come
        limit = datetime.timedelta(seconds=timeout)
        try:
            if exact is not None:
                exact.monitored_barrier(limit, wait_all_ranks=False)
            else:
                dist.monitored_barrier(group, timeout=limit)
        except RuntimeError as lost:
            raise Error(Status.TIMEOUT, f"rank {rank}: not every rank of the group attached: {lost}") from lost

    def exchange(card: _Card) -> list[_Card]:
        cards: list[Optional[_Card]] = [None] * size
        dist.all_gather_object(cards, card, group=group)
        return [each for each in cards if each is not None]

    return _join(rank, size, exchange, (description, error), address, timeout)


def meet_in_store(
    store: Any, rank: int, size: int, description: str, error: Optional[str], timeout: float
) -> Communicator:
    """The same for a process group in the making, through its store."""

    def exchange(card: _Card) -> list[_Card]:
        store.set(f"tightwire/{rank}", json.dumps(dataclasses.asdict(card)))
        cards = []
        for other in range(size):
            try:
                store.wait([f"tightwire/{other}"], datetime.timedelta(seconds=timeout))
            except RuntimeError as late:
                raise Error(Status.TIMEOUT, f"rank {rank}: rank {other} did not come in {timeout} s: {late}") from late
            cards.append(_Card(**json.loads(store.get(f"tightwire/{other}"))))
        return cards

    return _join(rank, size, exchange, (description, error), None, timeout)


def _join(
    rank: int,
    size: int,
    exchange: Callable[[_Card], list[_Card]],
    state: tuple[str, Optional[str]],
    address: Optional[str],
    timeout: float,
) -> Communicator:
    description, error = state
    with _folder(rank == 0 and address is None) as folder:
        network = address or (_free_address() if rank == 0 else "")
        card = _Card(
            description, error, _machine(), secrets.token_hex(32), f"local://{folder}/meeting" if folder else "", network
        )
        known = exchange(card)
        _check(known, rank)
        first = known[0]
        on_one_machine = all(each.machine == first.machine for each in known)
        where = first.local_address if on_one_machine and first.local_address else first.network_address
        return Communicator.join(rank, size, where, first.key, timeout)
