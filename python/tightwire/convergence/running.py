"""Runs trainings, each once: what was run before with the same command, environment and files is taken from the folder."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]  # an object, as it is read and written


class RunError(Exception):
    """A training that gave nothing to judge; the message says which and why."""


@dataclass(frozen=True)
class Keys:
    """How a trainer calls what it prints."""

    step: str = "step"
    loss: str = "loss"
    bytes: str = "bytes"
    metric: str = "metric"


@dataclass(frozen=True)
class Job:
    """One training: a command, and what its result depends on besides."""

    title: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()  # whose contents the result depends on
    keys: Keys = Keys()
    timeout: float = 600
    folder: str = "."  # where it runs
    sample: bool = False  # "{parameters}" in the command stands for a file that the trainer writes

    def key(self, hashes: Callable[[str], str]) -> str:
        """Equal for jobs with equal results."""
        text = json.dumps([self.command, sorted(self.environment.items()), [hashes(f) for f in self.files], vars(self.keys)])
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass
class Run:
    """What a training printed: its JSON lines. `error` says why there is nothing to judge."""

    title: str
    key: str
    lines: list[Json]
    keys: Keys
    other_lines: int = 0
    error: str = ""
    cached: bool = False
    sample: Path | None = None

    def metric(self) -> float | None:
        """The last value of the metric; None where it was not finite."""
        return number([line for line in self.lines if self.keys.metric in line][-1][self.keys.metric])

    def curve(self, name: str, over: str | None = None) -> list[tuple[float, float | None]]:
        """(step, value) of every line that has both."""
        step = over or self.keys.step
        return [(float(line[step]), number(line[name])) for line in self.lines
                if isinstance(line.get(step), (int, float)) and name in line and "final" not in line]


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < float("inf") else None


def file_hash(path: str) -> str:
    """Of the contents. Throws RunError that names a file which cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error


class Runner:
    """Runs jobs, several at a time, and keeps their results in a folder. A job that failed is run again next time."""

    def __init__(self, folder: Path, workers: int = 0, tell: Callable[[str], None] = lambda text: None) -> None:
        self.folder = folder
        self.workers = workers or os.cpu_count() or 1
        self._tell = tell
        self._hashes: dict[str, str] = {}
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopping = False
        (folder / "runs").mkdir(parents=True, exist_ok=True)

    def cached(self, job: Job) -> Run | None:
        """What an earlier run of this job gave, if it did."""
        key = job.key(self._hash)
        try:
            stored = json.loads(self._path(key).read_text())
            lines, other_lines = stored["lines"], int(stored["other_lines"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # not there, or not written to its end
        sample = self._path(key, ".f32")
        if job.sample and not sample.exists():
            return None
        return Run(job.title, key, lines, job.keys, other_lines, cached=True, sample=sample if job.sample else None)

    def run(self, jobs: Sequence[Job]) -> list[Run]:
        """The results, in the order of the jobs. Equal jobs run once."""
        keys = [job.key(self._hash) for job in jobs]
        results: dict[str, Run] = {}
        left: dict[str, Job] = {}
        for key, job in zip(keys, jobs, strict=True):
            if key in results or key in left:
                continue
            run = self.cached(job)
            if run:
                results[key] = run
            else:
                left[key] = job
        if results:
            self._tell(f"{len(results)} of {len(results) + len(left)} trainings are there from before")
        done = 0

        def work(key: str, job: Job) -> None:
            nonlocal done
            run = self._run(key, job)
            with self._lock:
                results[key] = run
                done += 1
                if self._stopping:
                    return
                self._tell(f"{done}/{len(left)} {job.title}" + (f": {run.error}" if run.error else ""))

        with ThreadPoolExecutor(self.workers) as pool:
            try:
                for future in [pool.submit(work, key, job) for key, job in left.items()]:
                    future.result()
            except BaseException:
                self._stop()  # the pool waits for its threads, which must have nothing left to do
                raise
        return [results[key] for key in keys]

    def _hash(self, path: str) -> str:
        if path not in self._hashes:
            self._hashes[path] = file_hash(path)
        return self._hashes[path]

    def _path(self, key: str, suffix: str = ".json") -> Path:
        return self.folder / "runs" / (key + suffix)

    def _run(self, key: str, job: Job) -> Run:
        if self._stopping:
            return Run(job.title, key, [], job.keys, error="interrupted")
        sample = self._path(key, ".f32") if job.sample else None
        command = [part.replace("{parameters}", str(sample)) for part in job.command]
        try:
            output, errors, status = self._execute(command, job)
        except RunError as error:
            return Run(job.title, key, [], job.keys, error=str(error))
        lines, other_lines = parse_lines(output)
        run = Run(job.title, key, lines, job.keys, other_lines, sample=sample)
        if status != 0:
            how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            run.error = f"{how}; its last words: {_last_words(errors or output)}"
        elif not any(job.keys.metric in line for line in lines):
            run.error = f"printed {len(lines)} JSON lines, and none has \"{job.keys.metric}\""
        if not run.error:
            _write(self._path(key), json.dumps({"title": job.title, "command": job.command, "other_lines": other_lines,
                                                "lines": lines}))
        return run

    def _execute(self, command: Sequence[str], job: Job) -> tuple[str, str, int]:
        try:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=job.folder,
                                       env={**os.environ, **job.environment}, text=True, errors="replace",
                                       start_new_session=True)
        except OSError as error:
            raise RunError(f"{command[0]} cannot be started: {error.strerror}") from error
        with self._lock:
            self._running.add(process)
        try:
            output, errors = process.communicate(timeout=job.timeout)
            return output, errors, process.returncode
        except subprocess.TimeoutExpired as expired:
            _kill(process)
            process.communicate()  # closes the pipes
            raise RunError(f"was not done after {job.timeout:g} s, and was stopped") from expired
        finally:
            _kill(process)
            with self._lock:
                self._running.discard(process)

    def _stop(self) -> None:
        self._stopping = True
        with self._lock:
            for process in self._running:
                _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    """The process and what it started: a launcher's ranks shall not outlive it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "none"


def parse_lines(output: str) -> tuple[list[Json], int]:
    """The JSON objects among the lines, and how many other lines there were."""
    lines, other = [], 0
    for text in output.splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if isinstance(line, dict):
            lines.append(line)
        elif text.strip():
            other += 1
    return lines, other


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)
