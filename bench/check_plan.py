#!/usr/bin/python3
"""Compares what `tightwire plan` predicts with what `tightwire bench` measures, over links of chosen rates (network.sh).

    bench/check_plan.py                                   72 settings: 2 to 4 ranks, 0.1, 1 and 10 Gbit/s; needs root
    bench/check_plan.py --ranks 2 --rates 1000 --sizes 25M --codecs exact int8
    bench/check_plan.py --per-node 2 --ranks 4 --rates 1000 --sizes 25M --codecs exact int8 int4
                                                          flat, by levels and, of 16 bits and more, in a ring: nodes of two ranks

For every number of ranks and every rate one job calibrates and other jobs measure sizes of which none was calibrated with.
With several ranks per node two jobs calibrate: one rank in each node for the link across and the codecs, which share cores there as
they will, and the ranks of one node for memory. Returns 1 where a prediction is off by more than --tolerance.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"check_plan.py: {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def bytes_of(size: str) -> int:
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1], 1)
    return int(size[:-1] if unit > 1 else size) * unit


def form_of(scheme: dict) -> str:
    return "by levels" if scheme["by_levels"] else "ring" if scheme["ring"] else "flat"


def goes(codec: str, form: str) -> bool:
    """Whether a codec has such a form of its own."""
    if form == "ring":
        return codec in ("exact", "bf16", "fp16")
    return form == "flat" or codec.split(":")[0] not in ("topk", "randomk", "powersgd")


class Cluster:
    """Ranks behind links of one rate (0: in shared memory), and what `plan` is told of them."""

    def __init__(self, options: argparse.Namespace, ranks: int, rate: int, folder: str):
        self.options, self.ranks, self.rate = options, ranks, rate
        self.per_node = ranks if rate == 0 else options.per_node
        self.tool = [options.tool, "bench", "--iterations", str(options.iterations), "--codecs"]
        calibration = os.path.join(folder, f"{ranks}-{rate}.json")
        if rate == 0 or self.per_node == 1:
            run([*self.job(ranks, 1), *self.tool, *options.codecs, "--calibrate", calibration])
            self.costs = ["--calibration", calibration]
            return
        # Ranks of a node have a core each, which they share with those of other nodes: so do the ranks that calibrate.
        cores = sorted(os.sched_getaffinity(0))
        nodes = ranks // self.per_node
        beside = -(-ranks // len(cores))
        share = ["taskset", "-c", ",".join(str(core) for core in cores[:max(1, nodes // beside)])]
        run([*self.job(nodes, 1), *share, *self.tool, *options.codecs, "--calibrate", calibration])
        inside = os.path.join(folder, f"{ranks}-inside.json")
        run([options.tool, "run", "-n", str(self.per_node), "--quiet", "--", *self.tool, "exact", "--calibrate", inside])
        link = json.loads(pathlib.Path(inside).read_text())["link"]
        self.costs = ["--calibration", calibration, "--inside-gbit", str(link["gbit_per_s"]), "--inside-latency-us",
                      str(link["latency_us"]), "--inside-message-us", str(link["message_us"]), "--inside-overlap", str(link["overlap"])]

    def job(self, ranks: int, per_node: int) -> list[str]:
        if self.rate == 0:
            return [self.options.tool, "run", "-n", str(ranks), "--quiet", "--"]
        nodes = ["--per-node", str(per_node)] if per_node > 1 else []
        return [str(ROOT / "bench/network.sh"), *nodes, str(ranks), str(self.rate), "--"]

    def measured(self, size: str, form: str) -> dict[str, float]:
        """Seconds by codec."""
        how = {"flat": ["--algorithm", "two_shot"], "by levels": ["--over-nodes"], "ring": ["--algorithm", "ring"]}[form]
        codecs = [codec for codec in self.options.codecs if goes(codec, form)]
        lines = run([*self.job(self.ranks, self.per_node), *self.tool, *codecs, *(how if self.per_node > 1 and self.rate else []),
                     "--warm-up", "1", "--from", size, "--to", size, "--json"]).splitlines()
        told = [json.loads(line) for line in lines]
        return dict(zip(codecs, (row["seconds"] for row in told), strict=True))

    def predicted(self, size: str) -> list[dict]:
        plan = json.loads(run([self.options.tool, "plan", "--bytes", size, *self.costs, "--json", "--ranks", str(self.ranks), "--per-node",
                               str(self.per_node), "--bucket-bytes", "1G", "--codecs", *self.options.codecs]))[0]
        return plan["schemes"]

    def rows(self, size: str):
        forms: dict[str, list[dict]] = {}
        for scheme in self.predicted(size):
            forms.setdefault(form_of(scheme), []).append(scheme)
        for form, schemes in forms.items():
            for (codec, seconds), scheme in zip(self.measured(size, form).items(), schemes, strict=True):
                if codec.split(":")[0] != scheme["codec"].split(":")[0]:
                    sys.exit(f"check_plan.py: bench tells of {codec}, plan of {scheme['codec']}")
                forecast = scheme["communication_seconds"]
                yield {"ranks": self.ranks, "per_node": self.per_node, "mbit": self.rate, "bytes": bytes_of(size), "codec": codec,
                       "form": form, "measured_seconds": seconds, "predicted_seconds": forecast, "error": forecast / seconds - 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default=str(ROOT / "build/release/bin/tightwire"))
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--per-node", type=int, default=1, help="ranks that share a link")
    parser.add_argument("--rates", type=int, nargs="+", default=[100, 1000, 10000], help="Mbit/s; 0: shared memory")
    parser.add_argument("--sizes", nargs="+", default=["3M", "12M"])
    parser.add_argument("--codecs", nargs="+", default=["exact", "int8", "int4", "topk:ratio=0.01"])
    parser.add_argument("--iterations", type=int, default=7)
    parser.add_argument("--tolerance", type=float, default=0.15)
    parser.add_argument("--json", help="file to write")
    options = parser.parse_args()
    options.codecs = ["exact"] + [codec for codec in options.codecs if codec != "exact"]  # the order in which bench tells them
    rows = []
    print(f"{'ranks':>5} {'a node':>6} {'Mbit/s':>7} {'size':>6} {'codec':<17}{'form':<10}{'measured ms':>12}{'predicted ms':>14}{'error':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for ranks in options.ranks:
            for rate in options.rates:
                cluster = Cluster(options, ranks, rate, folder)
                for size in options.sizes:
                    for row in cluster.rows(size):
                        rows.append(row)
                        print(f"{ranks:>5} {row['per_node']:>6} {rate:>7} {size:>6} {row['codec']:<17}{row['form']:<10}"
                              f"{1e3 * row['measured_seconds']:>12.2f}{1e3 * row['predicted_seconds']:>14.2f}{100 * row['error']:>+8.1f}%",
                              flush=True)
    off = [row for row in rows if abs(row["error"]) > options.tolerance]
    errors = sorted(abs(row["error"]) for row in rows)
    print(f"{len(rows)} settings: median error {100 * errors[len(errors) // 2]:.1f} %, largest {100 * errors[-1]:.1f} %, "
          f"{len(off)} off by more than {100 * options.tolerance:.0f} %")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(1 if off else 0)


if __name__ == "__main__":
    main()
