#!/usr/bin/python3
"""What an all-reduce costs a rank against ranks, as a table: time, messages, bytes and memory. Measured between 2 to 16 processes of this machine by
`tightwire bench`, beyond planned by the code that plans a Session (`tightwire plan --memory`).

    bench/cost_by_ranks.py --tool build/dev/bin/tightwire --bytes 4M --codecs exact int8
"""
import argparse
import json
import subprocess


def run(command: list[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"cost_by_ranks.py: {' '.join(command)} ended with {done.returncode}")
    return done.stdout


def measured(options: argparse.Namespace, ranks: int) -> list[dict]:
    lines = run([options.tool, "bench", "-n", str(ranks), "--from", options.bytes, "--to", options.bytes, "--json", "--iterations",
                 str(options.iterations), "--codecs", *options.codecs]).splitlines()
    return [json.loads(line) for line in lines]


def planned(options: argparse.Namespace, ranks: list[int]) -> list[dict]:
    # Rates are no matter here: times are left out.
    return json.loads(run([options.tool, "plan", "--bytes", options.bytes, "--across-gbit", "10", "--per-node", "1", "--memory", "--json", "--ranks",
                           ",".join(str(r) for r in ranks), "--codecs", *options.codecs]))


def row(ranks: int, codec: str, time: str, messages: float, sent: float, frames: float) -> str:
    return f"| {ranks:,} | {codec} | {time} | {messages:,.0f} | {sent / 1e6:.2f} | {frames / 1e6:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default="build/release/bin/tightwire", help="tightwire")
    parser.add_argument("--bytes", default="4M", help="of the fp32 gradient, one bucket")
    parser.add_argument("--codecs", nargs="+", default=["exact", "int8"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4, 8, 16], help="processes to measure with")
    parser.add_argument("--beyond", nargs="*", type=int, default=[64, 256, 1024, 4096, 16384], help="ranks to plan for")
    parser.add_argument("--iterations", type=int, default=11, help="rounds that count")
    options = parser.parse_args()
    print("| ranks | codec | ms | messages | MB sent | MB of frames |\n|---|---|---|---|---|---|")
    for ranks in options.ranks:
        for of in measured(options, ranks):
            shared = f", {of['ranks_per_core']} to a core" if of["ranks_per_core"] > 1 else ""
            print(row(ranks, of["codec"], f"{1e3 * of['seconds']:.2f}{shared}", of["messages"], of["wire_bytes"], of["frame_bytes"]), flush=True)
    for of in planned(options, options.beyond) if options.beyond else []:
        for scheme in of["schemes"]:
            print(row(of["ranks"], scheme["codec"], "", scheme["messages"], scheme["rank_bytes"], scheme["frame_bytes"]), flush=True)


if __name__ == "__main__":
    main()
