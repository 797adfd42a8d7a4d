#!/usr/bin/python3
"""What the comparisons with peers keep, and refuse to keep; how peers are measured; what network.sh refuses."""
import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench/peers")]
import compare  # noqa: E402


class FakeMachine(compare.Machine):
    """Whose programs all take a millisecond a MiB, and whose last link fails if it is told so."""

    def __init__(self, foreign_load: float = 0.01, fails: str = "") -> None:
        self.bin, self.ranks, self.foreign_load, self.fails = pathlib.Path("bin"), 2, foreign_load, fails

    def run(self, link, command):
        if link == self.fails:
            sys.exit("the link is down")
        if "--json" in command and "/usr/bin/python3" in command:  # a training
            path = pathlib.Path(command[command.index("--json") + 1])
            path.write_text("[]" if "torch_hooks.py" in command[1] else json.dumps([TRAINING]))
            return []
        size = int(command[2] if "gloo" in command[1] else command[command.index("--from") + 1])
        codecs = ["gloo fp32"] if "gloo" in command[1] else ["exact", "int8", "auto (int8)"]
        return [{"bytes": size, "codec": codec, "seconds": size * 1e-9, "low_seconds": size * 9e-10, "high_seconds": size * 2e-9}
                for codec in codecs]

    def mpi(self, link, command):
        return [{"foreign_load": self.foreign_load, "contenders": [{"name": "Open MPI fp32", "median_us": 9, "best_us": 8}]}]


TRAINING = {"scheme": "int8", "step_seconds": 0.01, "split_seconds": {"compute": 0.005, "optimizer": 0.001, "wire": 0.004},
            "points": [[0.0, 0.1], [1.0, 0.9]], "target": 0.85, "seconds_to_target": 1.0, "final_accuracy": 0.9}


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "docs").mkdir()
        root = unittest.mock.patch.object(compare, "ROOT", self.folder)
        root.start()
        self.addCleanup(root.stop)

    def options(self, **more):
        return types.SimpleNamespace(**{
            "bin": str(self.folder), "ranks": 2, "links": ["memory", "2500"], "sizes": ["4K", "1M"], "codecs": ["exact"], "iterations": 3,
            "longest": 2, "training": False, "training_links": ["1000", "300"], "steps": 5, "json": str(self.folder / "compare.json"),
            "plots": None, "redraw": None, "write": False, **more})

    def run_with(self, machine, load=0.01, **more):
        with contextlib.redirect_stdout(io.StringIO()), unittest.mock.patch.object(
                compare, "about", lambda options, load: {"date": "now", "cpu": "it", "cores": 2, "kernel": "6", "versions": {}, "ranks": 2,
                                                         "rounds": 3, "other_load": load}):
            compare.run(machine, self.options(**more), load)

    def kept(self):
        return json.loads((self.folder / "compare.json").read_text())

    def test_rates_without_a_name_are_told_as_they_are(self):
        self.run_with(FakeMachine(), training=True)
        self.assertEqual({row["link"] for row in self.kept()["rows"]}, {"memory", "2500"})
        self.assertEqual(list(self.kept()["training"]["accuracy"]), ["1000", "300"])
        self.assertIn("2.5 Gbit/s", compare.table(self.kept()["rows"]))
        self.assertIn("Fashion-MNIST over 0.3 Gbit/s", compare.training_tables(self.kept()["training"]))

    def test_failure_of_the_last_link_loses_no_other(self):
        with self.assertRaises(SystemExit):
            self.run_with(FakeMachine(fails="2500"))
        self.assertEqual({row["link"] for row in self.kept()["rows"]}, {"memory"})
        with self.assertRaises(SystemExit):
            self.run_with(FakeMachine(fails="300"), training=True)
        self.assertEqual({row["link"] for row in self.kept()["rows"]}, {"memory", "2500"})
        self.assertEqual(list(self.kept()["training"]["accuracy"]), ["1000"])

    def test_figures_of_a_busy_machine_are_not_written_to_docs(self):
        for machine, load, words in ((FakeMachine(), 0.2, "20.0 % of the CPU before the run"),
                                     (FakeMachine(0.3), 0.01, "30.0 % of the CPU over shared memory, at 4096 bytes")):
            with self.assertRaisesRegex(SystemExit, words):
                self.run_with(machine, load, write=True)
            self.assertFalse((self.folder / "docs/benchmarks.md").exists())
            argv = ["compare.py", "--redraw", str(self.folder / "compare.json"), "--write"]  # nor later
            with unittest.mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(io.StringIO()):
                with self.assertRaisesRegex(SystemExit, words):
                    compare.main()
            self.assertFalse((self.folder / "docs/benchmarks.md").exists())

    def test_figures_of_an_idle_machine_are(self):
        self.run_with(FakeMachine(), training=True, write=True)
        page = (self.folder / "docs/benchmarks.md").read_text()
        self.assertIn("and up to 1.0 % beside a measurement", page)
        self.assertTrue((self.folder / "docs/figures/training-step-300.png").exists())
        by_hand = compare.BY_HAND + "\n\nWhy.\n"
        (self.folder / "docs/benchmarks.md").write_text(page + "\n" + by_hand)
        self.run_with(FakeMachine(), training=True, write=True)
        self.assertEqual((self.folder / "docs/benchmarks.md").read_text(), page + "\n" + by_hand)

    def test_plots_do_without_exact(self):
        rows = [{"link": link, "bytes": 1024, "scheme": "int8", "seconds": 1e-3} for link in ("100", "1000")]
        self.assertEqual(compare.draw_all(self.folder / "plots", rows, {}, {}), ["time-100.png", "time-1000.png"])


class CostByRanks(unittest.TestCase):
    def test_measures_then_plans(self):
        import cost_by_ranks

        def run(command):
            if "bench" in command:
                return json.dumps({"ranks_per_core": int(command[3]), "codec": "int8", "seconds": 0.002, "messages": 6, "wire_bytes": 2e6,
                                   "frame_bytes": 3e6}) + "\n"
            return json.dumps([{"ranks": 64, "schemes": [{"codec": "int8", "messages": 1126, "rank_bytes": 4e6, "frame_bytes": 5e6}]}])

        argv = ["cost_by_ranks.py", "--codecs", "int8", "--ranks", "1", "2", "--beyond", "64"]
        with unittest.mock.patch.object(cost_by_ranks, "run", run), unittest.mock.patch.object(sys, "argv", argv), \
                contextlib.redirect_stdout(io.StringIO()) as out:
            cost_by_ranks.main()
        self.assertEqual(out.getvalue().splitlines()[2:], ["| 1 | int8 | 2.00 | 6 | 2.00 | 3.0 |", "| 2 | int8 | 2.00, 2 to a core | 6 | 2.00 | 3.0 |",
                                                           "| 64 | int8 |  | 1,126 | 4.00 | 5.0 |"])


class Peers(unittest.TestCase):
    def test_gloo_is_measured_as_ours(self):
        import gloo_all_reduce as gloo

        self.assertEqual([gloo.calls_per_round(once) for once in (1e-9, 1e-6, 1e-5, 9e-5, 3e-4, 5.0)], [100, 100, 20, 2, 1, 1])
        with unittest.mock.patch("os.sched_getaffinity", lambda pid: {3, 5, 8}), \
                unittest.mock.patch("os.sched_setaffinity") as bound:
            self.assertTrue(all(gloo.bind(rank) for rank in range(4)))
        self.assertEqual([call.args for call in bound.call_args_list], [(0, {3}), (0, {5}), (0, {8}), (0, {3})])

    def test_a_round_is_many_calls_of_the_slowest_rank(self):
        import gloo_all_reduce as gloo

        calls = []
        with unittest.mock.patch.object(gloo.dist, "barrier"), unittest.mock.patch.object(gloo, "slowest", lambda seconds: 7.0):
            self.assertEqual(gloo.together(14, lambda: calls.append(1)), 0.5)
        self.assertEqual(len(calls), 14)

    def test_optimizer_is_no_part_of_the_wire(self):
        import time_to_accuracy as training

        split = training.split_of(0.010, 0.004, {"optimizer": 0.002, "encode": 0.001})
        self.assertEqual((split["optimizer"], split["encode"]), (0.002, 0.001))
        self.assertAlmostEqual(split["wire"], 0.003)
        self.assertEqual(set(split), {"compute", "optimizer", "encode", "wire"})

        steps = []
        one = training.Training.__new__(training.Training)
        one.spent = {"optimizer": 0.0, "encode": 0.0, "combine": 0.0, "decode": 0.0}
        one.ddp = training.nn.Linear(2, 2)
        one.optimizer = types.SimpleNamespace(zero_grad=lambda set_to_none: None, step=lambda: (steps.append(1), training.time.sleep(0.01)))
        spent = types.SimpleNamespace(encode_seconds=1.0, combine_seconds=2.0, decode_seconds=3.0)
        x, y = training.torch.zeros(3, 2), training.torch.zeros(3, dtype=training.torch.int64)
        for taken in (None, True, False):  # by DDP alone; by ours, taken and undone
            one.sync = None if taken is None else types.SimpleNamespace(commit=lambda taken=taken: taken, statistics=lambda: spent)
            one.step(x, y)
        self.assertEqual(len(steps), 2)
        self.assertGreaterEqual(one.spent["optimizer"], 0.02)
        self.assertEqual(one.spent["decode"], 6.0)


class Network(unittest.TestCase):
    def test_what_makes_no_sense_is_refused(self):
        for arguments in (["0", "1000"], ["2", "0"], ["00", "1000"], ["--mpirun", "0", "1000"], ["--per-node", "2", "0", "1000"],
                          ["--per-node", "2", "3", "1000"], ["-1", "1000"], ["two", "1000"]):
            done = subprocess.run([str(ROOT / "bench/network.sh"), *arguments, "--", "true"], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn("network.sh RANKS RATE_MBIT", done.stderr)


if __name__ == "__main__":
    unittest.main()
