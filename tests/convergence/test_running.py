"""The runner, and studies of a trainer that is not ours."""
import json
import os
import tempfile
import time
import unittest
from pathlib import Path
from xml.etree import ElementTree

import suite  # noqa: F401  first: it makes the next imports possible
from tightwire.convergence import __main__ as command
from tightwire.convergence import compare, report
from tightwire.convergence.configuration import ConfigurationError, read
from tightwire.convergence.judging import AS_GOOD, FAILED, UNDECIDED, WORSE
from tightwire.convergence.running import Job, Keys, Runner

TOY = Path(__file__).resolve().parent / "toy_trainer.py"
KEYS = Keys("iteration", "train_loss", "sent", "test_loss")
STUDY = f"""
name = "toy"
command = ["/usr/bin/python3", "{TOY}", "--seed", "{{seed}}"]
environment = {{ CODEC = "{{codec}}", LOG = "LOGFILE" }}
files = ["{TOY}"]
seeds = 5
metric = {{ margin = 0.001, worst = 10.0 }}
lines = {{ step = "iteration", loss = "train_loss", bytes = "sent", metric = "test_loss" }}
"""
ARMS = """
codecs = ["sign"]
[[arms]]
name = "sign without feedback"
codec = "sign"
environment = { FAULT = "no-feedback" }
expect = "worse"
"""


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.log = self.folder / "log"

    def started(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    def job(self, seed=1, fault="", **more):
        return Job(f"toy {seed}", ("/usr/bin/python3", str(TOY), "--seed", str(seed)),
                   {"CODEC": "exact", "FAULT": fault, "LOG": str(self.log)}, keys=KEYS, **more)

    def study(self, arms=ARMS, **changes):
        text = STUDY.replace("LOGFILE", str(self.log)) + arms
        for old, new in changes.items():
            text = text.replace(old, new)
        path = self.folder / "toy.toml"
        path.write_text(text)
        return path


class Running(InFolder):
    def test_second_time_nothing_runs(self):
        first = Runner(self.folder).run([self.job(1), self.job(2), self.job(1)])
        self.assertEqual(len(self.started()), 2)
        again = Runner(self.folder).run([self.job(1), self.job(2)])
        self.assertEqual(len(self.started()), 2)
        self.assertEqual([run.metric() for run in again], [run.metric() for run in first[:2]])
        self.assertEqual([run.cached for run in first + again], [False] * 3 + [True] * 2)
        self.assertEqual((first[0].other_lines, len(first[0].curve("train_loss"))), (2, 10))

    def test_changed_file_or_environment_runs_again(self):
        watched = self.folder / "watched"
        watched.write_text("1")
        Runner(self.folder).run([self.job(files=(str(watched),))])
        watched.write_text("2")
        Runner(self.folder).run([self.job(files=(str(watched),))])
        self.assertEqual(len(self.started()), 2)
        self.assertEqual(Runner(self.folder).cached(self.job(fault="diverged", files=(str(watched),))), None)

    def test_half_written_result_is_not_taken(self):
        run = Runner(self.folder).run([self.job()])[0]
        path = self.folder / "runs" / f"{run.key}.json"
        path.write_text(path.read_text()[:40])
        self.assertFalse(Runner(self.folder).run([self.job()])[0].cached)

    def test_failures_say_what_happened_and_are_tried_again(self):
        for fault, words, more in (("exit", "exit status 1; its last words: the toy gave up", {}),
                                   ("signal", "killed by SIGSEGV", {}), ("silent", "none has \"test_loss\"", {}),
                                   ("sleep", "was not done after 0.5 s", {"timeout": 0.5})):
            run = Runner(self.folder).run([self.job(fault=fault, **more)])[0]
            self.assertIn(words, run.error)
            self.assertIsNone(Runner(self.folder).cached(self.job(fault=fault, **more)), fault)

    def test_program_that_is_not_there(self):
        run = Runner(self.folder).run([Job("nothing", ("/no/such/program",))])[0]
        self.assertEqual(run.error, "/no/such/program cannot be started: No such file or directory")

    def test_interruption_stops_what_runs_and_starts_nothing_more(self):
        def tell(text):
            if text.startswith("1/"):
                raise KeyboardInterrupt

        jobs = [self.job(1), self.job(2, fault="sleep")] + [self.job(seed) for seed in range(3, 20)]
        began = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            Runner(self.folder, 2, tell).run(jobs)
        self.assertLess(time.monotonic() - began, 30)  # the second would sleep for a minute
        self.assertLess(len(self.started()), 10)
        self.assertIsNotNone(Runner(self.folder).cached(self.job(1)))

    def test_diverged_is_a_result(self):
        self.assertIsNone(Runner(self.folder).run([self.job(fault="diverged")])[0].metric())


class ForeignTrainer(InFolder):
    def test_sound_arm_passes_and_broken_one_is_caught(self):
        status = command.main([str(self.study()), "--folder", str(self.folder), "--no-html"])
        result = json.loads((self.folder / "result.json").read_text())
        self.assertEqual([pair["verdict"] for pair in result["comparisons"]], [AS_GOOD, WORSE])
        self.assertEqual((status, result["status"]), (0, 0))
        self.assertEqual(result["comparisons"][0]["figures"]["times_fewer_bytes"], 16)
        self.assertEqual(len(self.started()), 15)
        # A gate: the same broken arm, not expected to be.
        broken = self.study(ARMS.replace('expect = "worse"', ""))
        self.assertEqual(command.main([str(broken), "--folder", str(self.folder), "--no-html"]), 1)
        self.assertEqual(len(self.started()), 15)  # all of it was there
        suite = ElementTree.parse(self.folder / "junit.xml").getroot()
        self.assertEqual((suite.get("tests"), suite.get("failures"), suite.get("errors")), ("2", "1", "0"))

    def test_interrupted_study_goes_on(self):
        study = read(self.study())
        Runner(self.folder).run(study.jobs()[:7])
        done = len(self.started())
        comparisons = study.run(Runner(self.folder))
        self.assertEqual(len(self.started()), 15)
        self.assertLess(done, 8)
        self.assertEqual(comparisons[0].verdict.verdict, AS_GOOD)

    def test_power_is_told_once_runs_are_known(self):
        study = read(self.study())
        self.assertIn("are not", study.power(Runner(self.folder))[0])
        guessed = read(self.study(**{"margin = 0.001": "margin = 0.001, deviation = 0.001"}))
        self.assertIn("toy, 2 pairs: paired differences are taken to deviate by 0.001", guessed.power(Runner(self.folder))[0])
        study.run(Runner(self.folder))
        self.assertRegex(study.power(Runner(self.folder))[0], r"deviate by .*; \d+ seeds show a margin of 0.001 with power 0.9")

    def test_crash_is_neither_good_nor_worse(self):
        path = self.study('[[arms]]\ncodec = "sign"\nenvironment = { FAULT = "exit" }\n')
        self.assertEqual(command.main([str(path), "--folder", str(self.folder), "--no-html"]), 2)
        pair = json.loads((self.folder / "result.json").read_text())["comparisons"][0]
        self.assertEqual(pair["verdict"], FAILED)
        self.assertIn("the toy gave up", pair["reasons"][0])
        self.assertIn("<error", (self.folder / "junit.xml").read_text())

    def test_diverged_runs_are_worse(self):
        path = self.study('[[arms]]\ncodec = "sign"\nenvironment = { FAULT = "diverged" }\n')
        self.assertEqual(command.main([str(path), "--folder", str(self.folder), "--no-html"]), 1)

    def test_too_few_runs_fail_or_pass_as_asked(self):
        path = self.study('codecs = ["sign"]\n', **{"seeds = 5": "seeds = 3"})
        self.assertEqual(command.main([str(path), "--folder", str(self.folder), "--no-html"]), 3)
        path.write_text(path.read_text() + '[judge]\nundecided = "pass"\n')
        self.assertEqual(command.main([str(path), "--folder", str(self.folder), "--no-html"]), 0)
        result = json.loads((self.folder / "result.json").read_text())
        self.assertEqual(result["comparisons"][0]["verdict"], UNDECIDED)
        self.assertIn(UNDECIDED, report.table(result))


class Configuration(InFolder):
    def test_mistakes_are_named(self):
        for changes, words in (({"name = ": "nam = "}, "unknown: nam; known: arms"),
                               ({"margin = 0.001, ": ""}, "[metric]: \"margin\" is missing"),
                               ({"margin = 0.001": "margin = -1"}, "\"margin\" must be above 0"),
                               ({"seeds = 5": "seeds = [1, 1]"}, "\"seeds\" must be"),
                               ({"seeds = 5": "seeds = \"5\""}, "\"seeds\" must be int or list"),
                               ({"{seed}": "1"}, "all runs would be the same"),
                               ({"seeds = 5": "seeds ="}, "is no TOML"),
                               ({"codecs = [\"sign\"]": "", "[[arms]]": "[environment2]"}, "unknown: environment2")):
            with self.assertRaises(ConfigurationError) as caught:
                read(self.study(**changes))
            self.assertIn(words, str(caught.exception))
        with self.assertRaisesRegex(ConfigurationError, "cannot be read"):
            read(self.folder / "none.toml")

    def test_trainer_that_is_missing_is_named(self):
        os.environ.pop("TIGHTWIRE_CONVERGENCE_TRAINER", None)
        self.assertEqual(command.main(["--folder", str(self.folder)]), command.WRONG_USAGE)


class Functions(unittest.TestCase):
    def test_compare(self):
        def train(codec, seed):
            return {"loss": seed + (0.5 if codec == "bad" else 0.001 * (seed % 3))}

        found = compare(train, ["good", "bad"], 6, margin=0.1, metric="loss")
        self.assertTrue(found["good"].as_good)
        self.assertEqual(found["bad"].verdict.verdict, WORSE)
        self.assertEqual(found["bad"].baseline[2], 3)


if __name__ == "__main__":
    unittest.main()
