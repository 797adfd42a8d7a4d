"""The command `tightwire converge`."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from . import report
from .configuration import ConfigurationError, read
from .defaults import TableError, write_table
from .processes import RunError
from .running import Runner
from .study import Study
from .tiers import TASKS, TIERS, Trainer, tier_study

WRONG_USAGE = 64


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """With a status that does not stand for trainings that failed."""
        self.print_usage(sys.stderr)
        self.exit(WRONG_USAGE, f"{self.prog}: {message}\n")


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, got \"{text}\"")
    return value


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(
        "tightwire converge", description="Trains with compressed gradients and with exact ones, over the same seeds, and "
        "judges whether the former are as good. Exit status: 0 all as it should be, 1 something is worse or a control was "
        "judged wrongly, 2 trainings failed or gave nothing to judge, 3 too few runs, 64 wrong usage.")
    parser.add_argument("file", nargs="?", type=Path, help="TOML file of a trainer of your own (docs/convergence.md)")
    parser.add_argument("--tier", choices=sorted(TIERS), help="part of the suite (default: quick; full is for a night)")
    parser.add_argument("--task", action="append", default=[], choices=sorted(TASKS), help="this task only; repeatable")
    parser.add_argument("--codec", action="append", default=[], help="this codec instead of the tier's; repeatable")
    parser.add_argument("--no-controls", action="store_true", help="leave the controls out")
    parser.add_argument("--seeds", type=_positive, default=0, help="how many, instead of the tier's")
    parser.add_argument("--folder", type=Path, default=Path("convergence-results"),
                        help="for runs, which are taken from there next time, and reports")
    parser.add_argument("--workers", type=_positive, default=0, help="trainings at a time (default: cores; of a file, what it says)")
    parser.add_argument("--launch", action="store_true", help="ranks are processes, by tightwire run over UCX, and not threads of "
                        "one: the same results, slower")
    parser.add_argument("--trainer", default=os.environ.get("TIGHTWIRE_CONVERGENCE_TRAINER", ""), help=argparse.SUPPRESS)
    parser.add_argument("--no-html", action="store_true", help="no report.html (needs no matplotlib)")
    parser.add_argument("--write-table", type=Path, metavar="PAGE", help="only write the table of recommended defaults into this "
                        "page (docs/codecs.md), from the last result in --folder")
    parser.add_argument("--plan", action="store_true", help="only tell what would run, and how many seeds are needed")
    return parser.parse_args(argv)


def _study(arguments: argparse.Namespace) -> Study:
    if arguments.file:
        if arguments.tier or arguments.task or arguments.codec or arguments.launch:
            raise ConfigurationError("a file and --tier, --task, --codec or --launch do not go together")
        study = read(arguments.file)
        if arguments.seeds:
            study.seeds = range(1, 1 + arguments.seeds)
        return study
    if not arguments.trainer:
        raise ConfigurationError("the trainer is missing: build the target convergence_trainer (it needs libtorch-dev), or "
                                 "name it in TIGHTWIRE_CONVERGENCE_TRAINER")
    if not os.access(arguments.trainer, os.X_OK):
        raise ConfigurationError(f"the trainer {arguments.trainer} is not there; build the target convergence_trainer")
    trainer = Trainer(str(Path(arguments.trainer).resolve()), arguments.launch)
    return tier_study(arguments.tier or "quick", trainer, arguments.seeds, arguments.task, arguments.codec,
                      not arguments.no_controls)


class _Progress:
    """Lines at most once a second, and those of failures always."""

    def __init__(self) -> None:
        self._told = 0.0
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now - self._told > 1 or ":" in text:
            self._told = now
            print(f"[{now - self._began:5.0f} s] {text}", file=sys.stderr, flush=True)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status."""
    arguments = _arguments(sys.argv[1:] if argv is None else argv)
    if arguments.write_table:
        try:
            write_table(arguments.folder / "result.json", arguments.write_table)
        except TableError as error:
            print(f"tightwire converge: {error}", file=sys.stderr)
            return WRONG_USAGE
        return 0
    signal.signal(signal.SIGTERM, _interrupt)  # trainings are in process groups of their own, and end with us
    try:
        study = _study(arguments)
        for warning in study.warnings:
            print(f"tightwire converge: {warning}", file=sys.stderr)
        if not arguments.plan:
            report.discard(arguments.folder)
        runner = Runner(arguments.folder, arguments.workers or study.workers, _Progress())
        jobs = {(job.command, tuple(job.environment.items())) for job in study.jobs()}
        print(f"{study.name}: {len(study.pairs)} pairs, {len(study.seeds)} seeds, {len(jobs)} trainings")
        for line in study.power(runner):
            print(line)
        if arguments.plan:
            return 0
        began = time.monotonic()
        comparisons = study.run(runner)
    except (ConfigurationError, RunError, ValueError) as error:
        print(f"tightwire converge: {error}", file=sys.stderr)
        return WRONG_USAGE
    except KeyboardInterrupt:
        print("tightwire converge: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    study.facts.update(command=shlex.join(["tightwire", "converge", *(sys.argv[1:] if argv is None else argv)]))
    study.facts.update(machine=f"{platform.machine()}, {os.cpu_count()} cores", seconds=f"{time.monotonic() - began:.0f}")
    result = report.as_json(study, comparisons)
    print(report.table(result))
    for path in report.write(result, arguments.folder, not arguments.no_html):
        print(path)
    return int(result["status"])


if __name__ == "__main__":
    sys.exit(main())
