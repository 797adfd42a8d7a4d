#!/usr/bin/python3
"""launch.py [--last-is-killed] [--needs MODULE] RANKS PROGRAM [ARGUMENT...]: runs a program of cases on so many processes of
this machine, as torchrun would, and tells how it went. Ends with 77 where PyTorch or the module cannot be imported, or the program
says that it cannot run on this PyTorch, which ctest shows as skipped."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

LIMIT = 110.0  # seconds
HERE = pathlib.Path(__file__).resolve().parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    words = sys.argv[1:]
    last_is_killed = words[0] == "--last-is-killed"
    words = words[1:] if last_is_killed else words
    needed = "torch.distributed"
    if words[0] == "--needs":
        needed, words = words[1], words[2:]
    if subprocess.run([sys.executable, "-c", f"import {needed}"], stderr=subprocess.DEVNULL).returncode != 0:
        print(f"launch.py: {sys.executable} cannot import {needed} (Debian: python3-torch; PyPI: scripts/test_torch.sh)")
        return 77
    size, program, *arguments = words
    ranks_wanted = int(size)
    expected = [0] * (ranks_wanted - 1) + [-signal.SIGKILL if last_is_killed else 0]
    environment = {
        **os.environ,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "TORCHELASTIC_RUN_ID": "none",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(HERE)]),
    }
    command = [sys.executable, "-u", program, *arguments]
    ranks = [subprocess.Popen(command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks_wanted)]
    until = time.monotonic() + LIMIT
    while any(rank.poll() is None for rank in ranks):
        if time.monotonic() > until or any(rank.poll() not in (None, end, 77) for rank, end in zip(ranks, expected)):
            time.sleep(1)  # for the others to say what they saw
            for rank in ranks:
                if rank.poll() is None:
                    rank.send_signal(signal.SIGKILL)
        time.sleep(0.02)
    statuses = [rank.wait() for rank in ranks]
    print(f"launch.py: {size} ranks ended with {statuses}{', out of time' if time.monotonic() > until else ''}")
    if set(statuses) == {77}:
        return 77  # the program cannot run on this PyTorch
    return 0 if statuses == expected else 1


if __name__ == "__main__":
    sys.exit(main())
