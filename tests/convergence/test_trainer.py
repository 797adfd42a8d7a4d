"""The trainer itself: levels that exact training reaches, what makes runs repeatable, and the options of a training."""
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import suite  # noqa: F401  first: it makes the next imports possible
from tightwire.convergence.tiers import TASKS
from tightwire.convergence.tiers import Trainer as OurTrainer

TRAINER = os.environ["TIGHTWIRE_CONVERGENCE_TRAINER"]
TOOL = Path(TRAINER).parent / "tightwire"


def run(*options):
    """Status, JSON lines, standard error."""
    done = subprocess.run([TRAINER, *options], capture_output=True, text=True, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def last(*options):
    """The final line of a training that must end well, but for its time."""
    status, lines, errors = run(*options)
    if status != 0:
        raise AssertionError(errors)
    lines[-1].pop("seconds")
    return lines[-1]


class Trainer(unittest.TestCase):
    def test_exact_training_reaches_the_known_level(self):
        for name, task in TASKS.items():
            metric = last("--task", name)["metric"]
            reached = metric >= task.metric.target if task.metric.higher_is_better else metric <= task.metric.target
            self.assertTrue(reached, f"{name}: {metric}, target {task.metric.target}")

    def test_steps_are_those_that_the_suite_takes_them_for(self):
        told = json.loads(subprocess.run([TRAINER, "--list"], capture_output=True, text=True, check=True).stdout)
        self.assertEqual({task["name"]: task["steps"] for task in told["tasks"]}, {n: t.steps for n, t in TASKS.items()})

    def test_same_seed_same_bits(self):
        options = ("--task", "least-squares", "--codec", "int4", "--steps", "100")
        self.assertEqual(last(*options), last(*options))
        self.assertNotEqual(last(*options)["metric"], last(*options, "--seed", "2")["metric"])

    def test_accumulated_batches_are_as_those_of_more_ranks(self):
        options = ("--task", "least-squares", "--steps", "100", "--ranks")
        four, two = last(*options, "4"), last(*options, "2", "--accumulate", "2")
        self.assertAlmostEqual(four["metric"], two["metric"], 5)
        self.assertNotAlmostEqual(four["metric"], last(*options, "2")["metric"], 5)

    def test_every_optimizer_trains(self):
        for optimizer, rate in (("sgd", "0.2"), ("momentum", "0.02"), ("nesterov", "0.02"), ("adam", "0.05"), ("adamw", "0.05")):
            end = last("--task", "least-squares", "--codec", "int8", "--optimizer", optimizer, "--learning-rate", rate,
                       "--steps", "200")
            self.assertLess(end["metric"], -1, optimizer)
            self.assertLess(end["lost"], 1e-6)

    def test_clipping_and_decay_change_the_training(self):
        options = ("--task", "least-squares", "--steps", "50")
        plain = last(*options)["metric"]
        self.assertGreater(last(*options, "--clip-norm", "0.1")["metric"], plain + 0.5)
        self.assertNotEqual(last(*options, "--weight-decay", "0.1")["metric"], plain)

    def test_momentum_correction_trains(self):
        end = last("--task", "least-squares", "--codec", "topk:ratio=0.05", "--momentum-correction", "0.9")
        self.assertLess(end["metric"], -2)
        self.assertNotIn("lost", end)  # masking drops momentum on purpose

    def test_launched_ranks_give_the_same_bits(self):
        if not os.access(TOOL, os.X_OK):
            self.skipTest(f"{TOOL} is not built")
        for codec, control in (("int4", "none"), ("topk:ratio=0.05", "rebuilt")):
            options = ("--task", "least-squares", "--steps", "30", "--ranks", "3", "--codec", codec, "--control", control)
            with tempfile.TemporaryDirectory() as folder:
                samples = [Path(folder) / name for name in ("threads", "processes")]
                threads = last(*options, "--parameters", str(samples[0]))
                launched = OurTrainer(TRAINER, True).command((*options, "--parameters", str(samples[1])))
                processes = subprocess.run(launched, capture_output=True, text=True, check=False)
                self.assertEqual(processes.returncode, 0, processes.stderr)
                lines = [json.loads(line) for line in processes.stdout.splitlines()]
                lines[-1].pop("seconds")
                self.assertEqual(threads, lines[-1])  # metric, bytes, what was lost, update error: all of it
                self.assertEqual(samples[0].read_bytes(), samples[1].read_bytes())
                self.assertEqual(sum("loss" in line for line in lines), 30)  # of one rank

    def test_launched_ranks_are_as_many_as_said(self):
        done = subprocess.run([TRAINER, "--task", "quadratic", "--launched"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, "--ranks is 4, and the launcher started 1|no UCX")

    def test_mistakes_name_what_is_known(self):
        for options, words in ((("--task", "nothing"), "known are least-squares, logistic"),
                               (("--task", "quadratic", "--codec", "int9"), "not known"),
                               (("--task", "quadratic", "--control", "x"), "known are none, reversed-sum"),
                               (("--task", "quadratic", "--optimizer", "adam"), "--learning-rate must be given"),
                               (("--task", "quadratic", "--momentum-correction", "0.9"), "sgd has none")):
            status, _, errors = run(*options)
            self.assertEqual(status, 2)
            self.assertIn(words, errors)


if __name__ == "__main__":
    unittest.main()
