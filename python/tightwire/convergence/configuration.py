"""A study of someone else's trainer, from a TOML file. docs/convergence.md has the reference."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .judging import AS_GOOD, UNDECIDED, WORSE, Metric
from .running import Job, Keys, library_here
from .study import Arm, Pair, Rules, Study


class ConfigurationError(Exception):
    """The file says something that makes no sense; the message names file and key."""


_KNOWN = {
    "": {"name", "command", "environment", "folder", "files", "timeout", "workers", "seeds", "baseline", "codecs", "arms",
         "metric", "lines", "judge"},
    "metric": {"name", "margin", "higher_is_better", "worst", "target", "deviation"},
    "lines": {"step", "loss", "bytes", "metric"},
    "judge": {"alpha", "power", "undecided"},
    "arms": {"name", "codec", "command", "environment", "expect"},
}


class _Table:
    """A table of the file, which knows its place in it for messages."""

    def __init__(self, path: Path, place: str, values: object) -> None:
        self.where = f"{path}: " + (f"[{place}]: " if place else "")
        if not isinstance(values, Mapping):
            raise ConfigurationError(f"{self.where}must be a table")
        self.values = values
        if unknown := sorted(set(values) - _KNOWN[place]):
            raise ConfigurationError(f"{self.where}unknown: {', '.join(unknown)}; known: {', '.join(sorted(_KNOWN[place]))}")

    def get(self, key: str, kind: type | tuple[type, ...], otherwise: object = None, needed: bool = False) -> Any:
        """The value of a key, of the right type."""
        if key not in self.values:
            if needed:
                raise ConfigurationError(f"{self.where}\"{key}\" is missing")
            return otherwise
        value = self.values[key]
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join(k.__name__ for k in kinds)
            raise ConfigurationError(f"{self.where}\"{key}\" must be {names}, got {value!r}")
        if isinstance(value, (int, float)) and not abs(value) <= sys.float_info.max:  # not so of NaN
            raise ConfigurationError(f"{self.where}\"{key}\" must be finite, got {value!r}")
        return value

    def positive(self, key: str, kind: type | tuple[type, ...], otherwise: object = None, needed: bool = False) -> Any:
        """A number above 0."""
        value = self.get(key, kind, otherwise, needed)
        if value <= 0:
            raise ConfigurationError(f"{self.where}\"{key}\" must be above 0, got {value:g}")
        return value

    def texts(self, key: str, needed: bool = False) -> list[str]:
        """A list of strings."""
        values: list[str] = self.get(key, list, [], needed)
        if not all(isinstance(value, str) for value in values) or (needed and not values):
            raise ConfigurationError(f"{self.where}\"{key}\" must be a list of strings, got {values!r}")
        return values


def _seeds(top: _Table) -> list[int]:
    given = top.get("seeds", (int, list), 8)
    seeds: list[int] = list(range(1, given + 1)) if isinstance(given, int) else given
    if not seeds or not all(isinstance(seed, int) for seed in seeds) or len(set(seeds)) != len(seeds):
        raise ConfigurationError(f"{top.where}\"seeds\" must be a number above 0, or a list of different numbers")
    return seeds


def _environment(table: _Table) -> dict[str, str]:
    values: dict[str, str] = table.get("environment", dict, {})
    if not all(isinstance(value, str) for value in values.values()):
        raise ConfigurationError(f"{table.where}values of \"environment\" must be strings")
    return values


def _metric(path: Path, top: _Table) -> tuple[Metric, Keys, float | None]:
    metric = _Table(path, "metric", top.get("metric", dict, needed=True))
    lines = _Table(path, "lines", top.get("lines", dict, {}))
    margin = float(metric.positive("margin", (int, float), needed=True))
    bounds = {key: None if (value := metric.get(key, (int, float))) is None else float(value) for key in ("worst", "target")}
    keys = Keys(*(lines.get(key, str, key) for key in ("step", "loss", "bytes", "metric")))
    deviation = metric.get("deviation", (int, float))
    if deviation is not None and deviation < 0:
        raise ConfigurationError(f"{metric.where}\"deviation\" must not be below 0, got {deviation:g}")
    return (Metric(metric.get("name", str, keys.metric), margin, metric.get("higher_is_better", bool, False), **bounds), keys,
            deviation)


def _rules(path: Path, top: _Table) -> Rules:
    judge = _Table(path, "judge", top.get("judge", dict, {}))
    undecided = judge.get("undecided", str, "fail")
    alpha, power = float(judge.get("alpha", float, 0.05)), float(judge.get("power", float, 0.9))
    if undecided not in ("fail", "pass"):
        raise ConfigurationError(f"{judge.where}\"undecided\" must be \"fail\" or \"pass\", got \"{undecided}\"")
    if not (0 < alpha < 0.5 and 0 < power < 1):
        raise ConfigurationError(f"{judge.where}\"alpha\" must be between 0 and 0.5, \"power\" between 0 and 1")
    return Rules(alpha, power, undecided == "fail")


def _filled(text: str, codec: str, seed: int) -> str:
    return text.replace("{codec}", codec).replace("{seed}", str(seed))


def read(path: Path) -> Study:
    """Throws ConfigurationError that names the file and what is wrong in it."""
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is no TOML: {error}") from error
    top = _Table(path, "", values)
    metric, keys, deviation = _metric(path, top)
    name, folder = top.get("name", str, path.stem), (path.parent / top.get("folder", str, ".")).resolve()
    files = tuple(str(folder / file) for file in top.texts("files"))
    timeout = float(top.positive("timeout", (int, float), 3600))
    library = library_here(Path(__file__).resolve().parents[1])

    def arm(arm_name: str, codec: str, command: Sequence[str], environment: Mapping[str, str]) -> Arm:
        if not any("{seed}" in text for text in (*command, *environment.values())):
            raise ConfigurationError(f"{path}: neither command nor environment has {{seed}}; all runs would be the same")

        def job(seed: int) -> Job:
            return Job(f"{name}, {arm_name}, seed {seed}", tuple(_filled(part, codec, seed) for part in command),
                       {key: _filled(value, codec, seed) for key, value in environment.items()}, files, keys, timeout,
                       str(folder), library=library)

        return Arm(arm_name, job)

    command, environment = top.texts("command", needed=True), _environment(top)
    reference = top.get("baseline", str, "exact")
    baseline = arm(reference, reference, command, environment)
    pairs = [Pair(name, arm(codec, codec, command, environment), baseline, metric, deviation=deviation)
             for codec in top.texts("codecs")]
    for values in top.get("arms", list, []):
        table = _Table(path, "arms", values)
        codec = table.get("codec", str, reference)
        expect = table.get("expect", str, "")
        if expect not in ("", AS_GOOD, WORSE, UNDECIDED):
            raise ConfigurationError(f"{table.where}\"expect\" must be \"{AS_GOOD}\" or \"{WORSE}\", got \"{expect}\"")
        pairs.append(Pair(name, arm(table.get("name", str, codec), codec, table.texts("command") or command,
                                    {**environment, **_environment(table)}), baseline, metric, expected=expect,
                          deviation=deviation))
    if not pairs:
        raise ConfigurationError(f"{path}: nothing to compare with \"{reference}\"; give \"codecs\" or [[arms]]")
    warnings = () if files else (f"{path}: \"files\" is empty; what was run before is taken again, whatever changed in the trainer "
                                 "but for files that its command names",)
    return Study(name, pairs, _seeds(top), _rules(path, top), {"configuration": str(path)}, top.positive("workers", int, 1),
                 warnings)
