#!/usr/bin/python3
"""Compares what `tightwire plan` predicts with what `tightwire bench` measures, over links of chosen rates (network.sh).

    bench/check_plan.py                                   72 settings: 2 to 4 ranks, 0.1, 1 and 10 Gbit/s; needs root
    bench/check_plan.py --ranks 2 --rates 1000 --sizes 25M --codecs exact int8

For every number of ranks and every rate one job calibrates and other jobs measure sizes of which none was calibrated with.
Returns 1 where a prediction is off by more than --tolerance.
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default=str(ROOT / "build/release/bin/tightwire"))
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--rates", type=int, nargs="+", default=[100, 1000, 10000], help="Mbit/s; 0: shared memory")
    parser.add_argument("--sizes", nargs="+", default=["3M", "12M"])
    parser.add_argument("--codecs", nargs="+", default=["exact", "int8", "int4", "topk:ratio=0.01"])
    parser.add_argument("--iterations", type=int, default=7)
    parser.add_argument("--tolerance", type=float, default=0.15)
    parser.add_argument("--json", help="file to write")
    options = parser.parse_args()
    options.codecs = ["exact"] + [codec for codec in options.codecs if codec != "exact"]  # the order in which bench tells them
    rows = []
    print(f"{'ranks':>5} {'Mbit/s':>7} {'size':>6} {'codec':<20}{'measured ms':>12}{'predicted ms':>14}{'error':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for ranks in options.ranks:
            for rate in options.rates:
                tool = [options.tool, "bench", "--iterations", str(options.iterations), "--codecs", *options.codecs]
                job = [options.tool, "run", "-n", str(ranks), "--quiet", "--"] if rate == 0 else [
                    str(ROOT / "bench/network.sh"), str(ranks), str(rate), "--"]
                calibration = os.path.join(folder, f"{ranks}-{rate}.json")
                run([*job, *tool, "--calibrate", calibration])
                for size in options.sizes:
                    lines = run([*job, *tool, "--warm-up", "1", "--from", size, "--to", size, "--json"]).splitlines()
                    plan = json.loads(run([options.tool, "plan", "--bytes", size, "--calibration", calibration, "--json",
                                           "--ranks", str(ranks), "--per-node", str(ranks if rate == 0 else 1), "--bucket-bytes", "1G",
                                           "--codecs", *options.codecs]))[0]
                    told = [json.loads(line) for line in lines]
                    if [row["codec"].split(":")[0] for row in told] != [row["codec"].split(":")[0] for row in plan["schemes"]]:
                        sys.exit(f"check_plan.py: bench tells of {told}, plan of {plan['schemes']}")
                    for measured, predicted in zip(told, plan["schemes"]):
                        seconds, forecast = measured["seconds"], predicted["communication_seconds"]
                        error = forecast / seconds - 1
                        rows.append({"ranks": ranks, "mbit": rate, "bytes": bytes_of(size), "codec": measured["codec"],
                                     "measured_seconds": seconds, "predicted_seconds": forecast, "error": error})
                        print(f"{ranks:>5} {rate:>7} {size:>6} {measured['codec']:<20}{1e3 * seconds:>12.2f}"
                              f"{1e3 * forecast:>14.2f}{100 * error:>+8.1f}%", flush=True)
    off = [row for row in rows if abs(row["error"]) > options.tolerance]
    errors = sorted(abs(row["error"]) for row in rows)
    print(f"{len(rows)} settings: median error {100 * errors[len(errors) // 2]:.1f} %, largest {100 * errors[-1]:.1f} %, "
          f"{len(off)} off by more than {100 * options.tolerance:.0f} %")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(1 if off else 0)


if __name__ == "__main__":
    main()
