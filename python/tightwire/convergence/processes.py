"""Commands that end: in time, when interrupted, and with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

GRACE = 5.0  # seconds that a launcher has to end its ranks, which may be in sessions of their own where we do not find them
LAST_OUTPUT = 2.0  # seconds for what is left in the pipes once all that we can end has ended
LOOK = 0.2  # seconds between looks at whether to stop


class RunError(Exception):
    """A training that gave nothing to judge; the message says which and why."""


def execute(command: Sequence[str], folder: str, environment: Mapping[str, str], timeout: float,
            stopping: Callable[[], bool]) -> tuple[str, str, int]:
    """Standard output, standard error and status. Throws RunError where it cannot be started, is not done in `timeout` seconds, or
    `stopping` says so; it, its process group and what a launcher ends when asked to have ended then."""
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder,
                                   env={**os.environ, **environment}, text=True, errors="replace", start_new_session=True)
    except OSError as error:
        missing = error.filename or command[0]  # which may be the folder
        raise RunError(f"{missing} cannot be started: {error.strerror}" if missing == command[0]
                       else f"{command[0]} cannot be started in {missing}: {error.strerror}") from error
    deadline = time.monotonic() + timeout
    try:
        while True:
            try:
                output, errors = process.communicate(timeout=min(LOOK, max(deadline - time.monotonic(), 0)))
                return output, errors, process.returncode
            except subprocess.TimeoutExpired:
                if stopping():
                    raise RunError("interrupted") from None
                if time.monotonic() >= deadline:
                    raise RunError(f"was not done after {timeout:g} s, and was stopped") from None
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """The process and what it started: a launcher's ranks shall not outlive it, and shall not keep us waiting."""
    started: list[tuple[int, str]] = []
    if process.poll() is None:
        started = _descendants(process.pid)
        _signal(process, signal.SIGTERM)
        _drain(process, GRACE)
    _signal(process, signal.SIGKILL)
    for pid, born in started:
        if _stat(pid)[1:] == [born]:  # and not another that has its number now
            _kill(pid)
    _drain(process, LAST_OUTPUT)
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()  # whoever escaped may still hold the other end
    try:
        process.wait(LAST_OUTPUT)
    except subprocess.TimeoutExpired:
        pass  # in the kernel, where no signal reaches it


def _drain(process: subprocess.Popen[str], seconds: float) -> None:
    """Reads on, since who writes into a full pipe cannot end."""
    if process.stdout and process.stdout.closed:
        return  # all of it was read
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        pass


def _stat(pid: int) -> list[str]:
    """Parent and time of birth; empty where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return []
    return [fields[1], fields[19]]


def _descendants(ancestor: int) -> list[tuple[int, str]]:
    """Number and time of birth of what it started, in whatever session, as long as who started them is there."""
    of_parent: dict[int, list[tuple[int, str]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _stat(int(name))):
            of_parent.setdefault(int(stat[0]), []).append((int(name), stat[1]))
    found = list(of_parent.get(ancestor, []))
    for pid, _ in found:  # which grows
        found += of_parent.get(pid, [])
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _signal(process: subprocess.Popen[str], number: int) -> None:
    """To the group, which may outlive its first process."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        pass
