#!/usr/bin/python3
"""Our all-reduce beside Open MPI's and gloo's: the same ranks, buffers and links of this machine, one after the other in one run.

    bench/compare.py                                               shared memory, loopback TCP, 10, 1 and 0.1 Gbit/s; needs root
    bench/compare.py --links memory 1000 --sizes 1M 25M --iterations 5
    bench/compare.py --training                                    and trainings with torch: hooks of DDP, time to accuracy
    bench/compare.py --training --write                            and docs/benchmarks.md with its plots
    bench/compare.py --redraw build/compare.json --plots plots     table and plots of an earlier run

Writes build/compare.json after each link and prints the table. Figures mean something on an idle machine only: the share of CPU time
that others took, before the run and beside every size, is told, and above 5 % nothing is written to docs, nor by --redraw.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable

from figures import draw_all

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODECS = ["exact", "bf16", "int8", "int4", "topk:ratio=0.01", "powersgd:rank=4", "auto"]
NAMES = {"memory": "shared memory", "loopback": "loopback TCP", "10000": "10 Gbit/s", "1000": "1 Gbit/s", "100": "0.1 Gbit/s"}


MOST_LOAD = 0.05  # of the CPU, by others


def name_of(link: str) -> str:
    """For people; links of other rates than ours have no name of their own."""
    return NAMES.get(link) or (f"{int(link) / 1000:g} Gbit/s" if link.isdigit() else link)


def too_loaded(facts: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Why these figures are not for keeping; empty where they are."""
    loads = [("before the run", facts.get("other_load", 1.0))]  # what was not looked at is not known to be little
    loads += [(f"over {name_of(row['link'])}, at {row['bytes']} bytes", row["foreign_load"]) for row in rows if "foreign_load" in row]
    when, most = max(loads, key=lambda load: load[1])
    return "" if most <= MOST_LOAD else f"other processes took {100 * most:.1f} % of the CPU {when}: too much for figures that shall be kept"


def bytes_of(size: str) -> int:
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1], 1)
    return int(size[:-1] if unit > 1 else size) * unit


class Machine:
    """Runs programs as ranks over a link."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.bin, self.ranks = pathlib.Path(options.bin), options.ranks

    def run(self, link: str, command: list[str]) -> list[dict[str, object]]:
        """The JSON lines that a program prints."""
        environment = dict(os.environ)
        if link == "loopback":
            environment |= {"TIGHTWIRE_TRANSPORT": "ucx", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}
        launcher = [str(self.bin / "tightwire"), "run", "-n", str(self.ranks), "--quiet", "--"]
        if link not in ("memory", "loopback"):
            launcher = [str(ROOT / "bench/network.sh"), str(self.ranks), link, "--"]
        return self.lines(launcher + command, environment)

    def mpi(self, link: str, command: list[str]) -> list[dict[str, object]]:
        # Or it faults its buffer in for every call.
        tuned = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_TOP_PAD_": "67108864"}
        if link.isdigit():
            exports = [f"{name}={value}" for name, value in tuned.items()]  # they do not reach the other namespace by themselves
            return self.lines([str(ROOT / "bench/network.sh"), "--mpirun", str(self.ranks), link, "--", "env", *exports, *command],
                              dict(os.environ))
        over = ["--mca", "pml", "ob1", "--mca", "btl", "vader,self" if link == "memory" else "tcp,self"]
        root = ["--allow-run-as-root", "--oversubscribe"]
        return self.lines(["mpirun", *root, *over, "-np", str(self.ranks), *command], dict(os.environ) | tuned)

    @staticmethod
    def lines(command: list[str], environment: dict[str, str]) -> list[dict[str, object]]:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode != 0:
            sys.exit(f"compare.py: {' '.join(command)}\n{done.stdout}{done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def train(machine: Machine, options: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Steps of DDP with 25.6 million parameters, and trainings on Fashion-MNIST, by link. `keep` gets all there is after each."""
    told: dict[str, Any] = {"hooks": {}, "accuracy": {}}
    for link in options.training_links:
        for name, program, arguments in (("hooks", "torch_hooks.py", ["--rounds", str(options.iterations)]),
                                         ("accuracy", "time_to_accuracy.py", ["--steps", str(options.steps)])):
            if name == "hooks" and int(link) < 1000:
                continue  # minutes per round
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                machine.run(link, ["/usr/bin/python3", str(ROOT / "bench/peers" / program), *arguments, "--json", file.name])
                told[name][link] = json.loads(pathlib.Path(file.name).read_text())
            print(f"{program} over {name_of(link)}: done", flush=True)
            keep(told)
    return told


def cpu_seconds() -> tuple[float, float]:
    """Of all cores since the machine started: of processes and other machines, and in all."""
    fields = [float(value) for value in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return sum(fields[:3]) + fields[7], sum(fields)


def foreign_share(seconds: float = 3.0) -> float:
    """Part of the CPU that others take while we wait."""
    busy, total = cpu_seconds()
    time.sleep(seconds)
    busy_then, total_then = cpu_seconds()
    return (busy_then - busy) / max(total_then - total, 1e-9)


def measure(machine: Machine, link: str, options: argparse.Namespace) -> list[dict[str, object]]:
    rows = []
    rounds = ["--iterations", str(options.iterations)]
    for size in map(bytes_of, options.sizes):
        if link.isdigit() and size * 8e-6 / int(link) > options.longest:
            continue
        ours = machine.run(link, [str(machine.bin / "tightwire"), "bench", "--json", "--from", str(size), "--to", str(size),
                                  "--factor", "2", *rounds, "--codecs", *options.codecs])
        for row in ours:
            rows.append({"link": link, "library": "tightwire"} | row)
        gloo = machine.run(link, ["/usr/bin/python3", str(ROOT / "bench/peers/gloo_all_reduce.py"), str(size), *rounds])
        rows += [{"link": link, "library": "gloo"} | row for row in gloo]
        mpi = machine.mpi(link, [str(machine.bin / "all_reduce_bench"), "--json", "--sizes", str(size / (1 << 20)), "--rounds",
                                 str(max(3, options.iterations)), "--codecs", "exact"])
        for result in mpi:
            for contender in result["contenders"]:
                if contender["name"].startswith("Open MPI"):
                    rows.append({"link": link, "library": "Open MPI", "codec": contender["name"], "bytes": size,
                                 "seconds": 1e-6 * contender["median_us"], "low_seconds": 1e-6 * contender["best_us"],
                                 "foreign_load": result["foreign_load"]})
    return rows


def kind(row: dict[str, object]) -> str:
    return "auto" if str(row["codec"]).startswith("auto") else str(row["codec"])


def size_text(size: int) -> str:
    return f"{size} B" if size < 1 << 10 else f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"


def spreads(rows: list[dict[str, object]]) -> list[float]:
    """Distances of the quartiles, by the medians, in order."""
    return sorted((row["high_seconds"] - row["low_seconds"]) / row["seconds"] for row in rows if "high_seconds" in row)


def table(rows: list[dict[str, object]]) -> str:
    """Per link and size: ms of everyone, what auto costs beside the best that loses nothing and beside bf16, and how far apart quartiles
    are, by the median, of the row's middle figure."""
    columns = list(dict.fromkeys(kind(row) for row in rows))
    lines = ["| link | fp32 | " + " | ".join(columns) + " | auto / best of exact and peers | auto / bf16 | quartiles apart |",
             "|---" * (len(columns) + 5) + "|"]
    for link in dict.fromkeys(str(row["link"]) for row in rows):
        for size in dict.fromkeys(row["bytes"] for row in rows if row["link"] == link):
            here = {kind(row): row for row in rows if row["link"] == link and row["bytes"] == size}
            cells = [f"{1e3 * here[c]['seconds']:.3g}" if c in here else "-" for c in columns]
            plain = [here[c]["seconds"] for c in here if c == "exact" or "fp32" in c]
            harm = f"{here['auto']['seconds'] / min(plain):.2f}" if "auto" in here and plain else "-"
            beside_bf16 = f"{here['auto']['seconds'] / here['bf16']['seconds']:.2f}" if "auto" in here and "bf16" in here else "-"
            apart = spreads(list(here.values()))
            middle = f"{100 * apart[len(apart) // 2]:.0f} %" if apart else "-"
            lines.append(f"| {name_of(link)} | {size_text(size)} | " + " | ".join(cells) + f" | {harm} | {beside_bf16} | {middle} |")
    return "\n".join(lines)


def about(options: argparse.Namespace, load: float) -> dict[str, object]:
    cpu = next((line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.processor())
    versions = {"tightwire": [str(pathlib.Path(options.bin) / "tightwire"), "--version"], "Open MPI": ["mpirun", "--version"],
                "torch": ["/usr/bin/python3", "-c", "import torch; print(torch.__version__)"]}
    tell = {name: subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()[:1]
            for name, command in versions.items()}
    return {"date": datetime.date.today().isoformat(), "cpu": cpu, "cores": os.cpu_count(), "kernel": platform.release(),
            "versions": {name: lines[0] if lines else "none" for name, lines in tell.items()}, "ranks": options.ranks,
            "rounds": options.iterations, "other_load": round(load, 3)}


def training_tables(told: dict[str, Any]) -> str:
    lines = []
    for link, rows in told.get("hooks", {}).items():
        lines += [f"A step of DDP's backward pass, 25.6 million parameters, over {name_of(link)} (`bench/peers/torch_hooks.py`). Error: of the sum "
                  "of all results, against the exact mean.", "", "| hook | step ms | synchronization ms | error |", "|---|---|---|---|"]
        lines += [f"| {row['scheme']} | {row['step_ms']:.0f} | {row['sync_ms']:.0f} | {row['error']:.2g} |" for row in rows] + [""]
    for link, rows in told.get("accuracy", {}).items():
        target = 100 * rows[0]["target"]
        lines += [f"Fashion-MNIST over {name_of(link)} (`bench/peers/time_to_accuracy.py`; `none`, `fp16` and `torch-powersgd` are torch's).", "",
                  f"| hook | step ms | seconds to {target:g} % | accuracy at the end |", "|---|---|---|---|"]
        for row in rows:
            reached = f"{row['seconds_to_target']:.1f}" if row["seconds_to_target"] is not None else "not reached"
            lines.append(f"| {row['scheme']} | {1e3 * row['step_seconds']:.1f} | {reached} | {100 * row['final_accuracy']:.2f} % |")
        lines.append("")
    return "\n".join(lines)


BY_HAND = "## Aims, and what falls short"  # what follows in docs/benchmarks.md is kept


def page(facts: dict[str, object], rows: list[dict[str, object]], told: dict[str, Any], names: list[str], before: str) -> str:
    spread = spreads(rows)
    beside = max((row["foreign_load"] for row in rows if "foreign_load" in row), default=0.0)
    versions = ", ".join(version if version.startswith(name) else f"{name} {version}" for name, version in facts["versions"].items())
    return (
        "# All-reduce beside its peers\n\nMade by `bench/compare.py --training --write`; [method](../bench/METHOD.md). "
        f"{facts['date']}, {facts['cpu']}, {facts['cores']} cores, Linux {facts['kernel']}; {versions}; {facts['ranks']} "
        f"ranks, medians of {facts['rounds']}, ms; other processes took {100 * facts['other_load']:.1f} % of the CPU before the run, and up to {100 * beside:.1f} % beside a measurement; half "
        f"of the figures have quartiles within {100 * spread[len(spread) // 2]:.0f} % of each other. Open MPI is tuned "
        "(`MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=67108864`). Links by rate are "
        "network namespaces (`bench/network.sh`); all ranks run on this machine's cores.\n\n"
        + table(rows) + "\n\n" + "\n".join(f"![{name}](figures/{name})" for name in names if not name.startswith("train"))
        + "\n\n## Training\n\n" + training_tables(told) + "\n"
        + "\n".join(f"![{name}](figures/{name})" for name in names if name.startswith("train")) + "\n"
        + ("\n" + before[before.index(BY_HAND):] if BY_HAND in before else "")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin"), help="folder of tightwire and all_reduce_bench")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--links", nargs="+", default=["memory", "loopback", "10000", "1000", "100"], help="Mbit/s, or these two")
    parser.add_argument("--sizes", nargs="+", default=["8", "512", "4K", "64K", "1M", "4M", "16M", "64M", "256M"])
    parser.add_argument("--codecs", nargs="+", default=CODECS)
    parser.add_argument("--iterations", type=int, default=7)
    parser.add_argument("--longest", type=float, default=2, help="seconds; sizes that take a link longer in fp32 are left out")
    parser.add_argument("--training", action="store_true", help="bench/peers/torch_hooks.py and time_to_accuracy.py, too")
    parser.add_argument("--training-links", nargs="+", default=["1000", "100"], help="Mbit/s")
    parser.add_argument("--steps", type=int, default=400, help="of a training")
    parser.add_argument("--json", default=str(ROOT / "build/compare.json"))
    parser.add_argument("--plots", help="folder for plots")
    parser.add_argument("--redraw", metavar="JSON", help="measure nothing: table and plots of an earlier run")
    parser.add_argument("--write", action="store_true", help="docs/benchmarks.md and its plots")
    options = parser.parse_args()
    if options.redraw:
        was = json.loads(pathlib.Path(options.redraw).read_text())
        write(options, was["about"], was["rows"], was["training"])
        return
    load = foreign_share()
    print(f"other processes take {100 * load:.1f} % of the CPU", flush=True)
    if options.write and load > MOST_LOAD:
        sys.exit("compare.py: too much for figures that shall be kept; wait, or leave out --write")
    run(Machine(options), options, load)


def run(machine: Machine, options: argparse.Namespace, load: float) -> None:
    """Measures, and keeps what there is after each link: a failure of the last one costs no more than that."""
    facts, rows = about(options, load), []

    def keep(training: dict[str, Any]) -> None:
        pathlib.Path(options.json).write_text(json.dumps({"about": facts, "rows": rows, "training": training}, indent=1) + "\n")

    for link in options.links:
        rows += measure(machine, link, options)
        keep({})
        print(table([row for row in rows if row["link"] == link]), flush=True)
    training = train(machine, options, keep) if options.training else {}
    keep(training)
    write(options, facts, rows, training)


def write(options: argparse.Namespace, facts: dict[str, object], rows: list[dict[str, object]], training: dict[str, Any]) -> None:
    print(table(rows))
    print(training_tables(training))
    if options.write and (why := too_loaded(facts, rows)):
        sys.exit(f"compare.py: {why}")
    folder = ROOT / "docs/figures" if options.write else pathlib.Path(options.plots) if options.plots else None
    labelled = [row | {"scheme": kind(row)} for row in rows]
    links = {row["link"]: name_of(row["link"]) for row in rows}
    links |= {link: name_of(link) for link in training.get("accuracy", {})}
    names = draw_all(folder, labelled, training, links) if folder else []
    if options.write:
        kept = ROOT / "docs/benchmarks.md"
        kept.write_text(page(facts, rows, training, names, kept.read_text() if kept.exists() else ""))


if __name__ == "__main__":
    main()
