"""Runs trainings, each once: what was run before with the same command, environment, folder and files is taken from where it is
kept."""

from __future__ import annotations

import hashlib
import importlib.machinery
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .processes import RunError, execute

Json = dict[str, Any]  # an object, as it is read and written
HASHED_WHOLE = 1 << 28  # bytes; of longer files, which are data, size and time of the last change stand for the contents


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
    timeout: float = 600  # seconds
    folder: str = "."  # where it runs
    sample: bool = False  # "{parameters}" in the command stands for a file that the trainer writes
    library: str = ""  # which tightwire it finds; see library_here

    def key(self, hashes: Callable[[str], str]) -> str:
        """Equal for jobs with equal results: of all that is inherited, variables of tightwire and OpenMP count, no others."""
        inherited = {name: value for name, value in os.environ.items()
                     if name.startswith(("TIGHTWIRE_", "OMP_")) and name != "TIGHTWIRE_CONVERGENCE_TRAINER"}
        text = json.dumps([self.command, sorted({**inherited, **self.environment}.items()), str(Path(self.folder).resolve()),
                           [(name, hashes(name)) for name in self.files], [hashes(word) for word in self._words()],
                           vars(self.keys), self.library])
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def _words(self) -> list[str]:
        """Those of the command that are files: programs, scripts, settings."""
        words = [os.path.join(self.folder, word) for word in self.command]
        if self.command and "/" not in self.command[0]:
            words.insert(0, shutil.which(self.command[0], path=self.environment.get("PATH")) or "")
        return [word for word in words if os.path.isfile(word)]


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
        return number(_last_metric(self.lines, self.keys))

    def curve(self, name: str, over: str | None = None) -> list[tuple[float, float | None]]:
        """(step, value) of every line that has both."""
        step = over or self.keys.step
        return [(float(line[step]), number(line[name])) for line in self.lines
                if isinstance(line.get(step), (int, float)) and name in line and "final" not in line]


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) <= sys.float_info.max else None


def _last_metric(lines: Sequence[Json], keys: Keys) -> object:
    return [line for line in lines if keys.metric in line][-1][keys.metric]


def _nothing_to_judge(lines: Sequence[Json], keys: Keys) -> str:
    """Why there is no metric among these lines; empty where there is one. What is null or not finite is that of a run which
    diverged; a text, a list or true is a mistake of the trainer."""
    if not any(keys.metric in line for line in lines):
        return f"printed {len(lines)} JSON lines, and none has \"{keys.metric}\""
    value = _last_metric(lines, keys)
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return ""
    return f"metric is no number: \"{keys.metric}\" is {json.dumps(value)[:80]}"


def library_here(package: Path) -> str:
    """Which tightwire a trainer in Python finds, without loading it: a hash of the library that TIGHTWIRE_LIBRARY names, of the
    package that this Python finds, or else of `package`, and of the library in it."""
    found = importlib.machinery.PathFinder.find_spec("tightwire")
    folder = Path(found.origin).parent if found and found.origin else package
    libraries = [os.environ.get("TIGHTWIRE_LIBRARY", ""), str(folder / "lib" / "libtightwire.so")]
    files = [*libraries, *sorted(str(path) for path in folder.glob("*.py"))]
    return hashlib.sha256("".join(file_hash(path) for path in files if os.path.isfile(path)).encode()).hexdigest()[:24]


def file_hash(path: str) -> str:
    """Of the contents. Throws RunError that names a file which cannot be read."""
    try:
        state = os.stat(path)
        if state.st_size > HASHED_WHOLE:
            return f"{state.st_size} bytes, changed {state.st_mtime_ns}"
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error


class Runner:
    """Runs jobs, several at a time, and keeps their results in a folder. A job that failed is run again next time."""

    def __init__(self, folder: Path, workers: int = 0, tell: Callable[[str], None] = lambda text: None) -> None:
        self.folder = folder.resolve()  # trainings may run elsewhere
        self.workers = workers or os.cpu_count() or 1
        self._tell = tell
        self._hashes: dict[str, str] = {}
        self._lock = threading.Lock()
        self._stopping = False
        (self.folder / "runs").mkdir(parents=True, exist_ok=True)

    def cached(self, job: Job) -> Run | None:
        """What an earlier run of this job gave, if it did."""
        key = job.key(self._hash)
        try:
            stored = json.loads(self._path(key).read_text())
            lines, other_lines = stored["lines"], int(stored["other_lines"])
            if _nothing_to_judge(lines, job.keys):
                return None  # as an earlier version took it
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
                self._stopping = True  # the pool waits for its threads: each ends what it runs, and starts nothing more
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
            output, errors, status = execute(command, job.folder, job.environment, job.timeout, lambda: self._stopping)
        except RunError as error:
            return Run(job.title, key, [], job.keys, error=str(error))
        lines, other_lines = parse_lines(output)
        run = Run(job.title, key, lines, job.keys, other_lines, sample=sample)
        if status != 0:
            how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            run.error = f"{how}; its last words: {_last_words(errors or output)}"
        else:
            run.error = _nothing_to_judge(lines, job.keys)
        if not run.error:
            _write(self._path(key), json.dumps({"title": job.title, "command": job.command, "other_lines": other_lines,
                                                "lines": lines}))
        return run

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
