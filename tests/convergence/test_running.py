"""The runner, and studies of a trainer that is not ours."""
import contextlib
import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path
from xml.etree import ElementTree

import suite  # noqa: F401  first: it makes the next imports possible
from tightwire.convergence import __main__ as command
from tightwire.convergence import compare, report
from tightwire.convergence.configuration import ConfigurationError, read
from tightwire.convergence.judging import AS_GOOD, FAILED, UNDECIDED, WORSE
from tightwire.convergence.running import Job, Keys, Runner, file_hash, library_here

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

    def test_key_has_whatever_results_depend_on(self):
        script, other = self.folder / "train.py", self.folder / "other"
        script.write_text("1")
        other.mkdir()
        (other / "a").write_text("same")
        (other / "b").write_text("same")
        base = Job("job", ("python3", "train.py"), {"A": "1"}, folder=str(self.folder), files=(str(other / "a"),))

        def key(job=base, **environment):
            with unittest.mock.patch.dict(os.environ, environment):
                return job.key(file_hash)

        plain = key()
        self.assertEqual(key(), plain)
        self.assertEqual(key(UNRELATED="1"), plain)
        self.assertEqual(key(dataclasses.replace(base, folder=f"{other}/..")), plain)  # the same folder
        for name, changed in (("name of a file", key(dataclasses.replace(base, files=(str(other / "b"),)))),
                              ("library", key(dataclasses.replace(base, library="2"))),
                              ("inherited", key(TIGHTWIRE_CPU_LEVEL="scalar")), ("threads", key(OMP_NUM_THREADS="3"))):
            self.assertNotEqual(changed, plain, name)
        wordless = dataclasses.replace(base, command=("python3",))
        self.assertNotEqual(key(dataclasses.replace(wordless, folder=str(other))), key(wordless))
        script.write_text("2")
        self.assertNotEqual(key(), plain, "a word of the command that is a file")

    def test_library_is_that_which_trainers_find(self):
        (self.folder / "lib").mkdir()
        library = self.folder / "lib" / "libtightwire.so"
        library.write_text("1")
        with unittest.mock.patch.dict(os.environ), unittest.mock.patch.object(sys, "path", [str(self.folder / "nothing")]):
            os.environ.pop("TIGHTWIRE_LIBRARY", None)
            before = library_here(self.folder)
            library.write_text("2")
            after = library_here(self.folder)
            self.assertNotEqual(before, after)
            named = self.folder / "named.so"
            named.write_text("3")
            os.environ["TIGHTWIRE_LIBRARY"] = str(named)
            self.assertNotEqual(library_here(self.folder), after)
            found = self.folder / "site" / "tightwire"  # as a wheel is installed
            found.mkdir(parents=True)
            for change in ("__init__.py", "lib/libtightwire.so"):
                before = library_here(self.folder)
                (found / change).parent.mkdir(exist_ok=True)
                (found / change).write_text("4")
                sys.path[:] = [str(found.parent)]
                self.assertNotEqual(library_here(self.folder), before)

    def test_metric_that_is_no_number_is_no_divergence(self):
        for value, right in (('"0.91"', False), ("true", False), ("[0.5]", False), ("{}", False), ('"nan"', False),
                             ("null", True), ("NaN", True), ("-Infinity", True), ("3", True), ("1" + "0" * 400, True)):
            job = Job(value, ("echo", f'{{"metric": {value}}}'))
            for _ in range(2):  # nor is it kept
                run = Runner(self.folder).run([job])[0]
                self.assertEqual(run.error == "", right, value)
            if not right:
                self.assertIn('metric is no number: "metric" is ', run.error)
            elif value != "3":
                self.assertIsNone(run.metric())

    def test_ranks_in_sessions_of_their_own_do_not_keep_us_waiting(self):
        """Launchers start them so; they hold the pipes, and no signal to the group reaches them. They end all the same."""
        for deaf in ("", "trap '' TERM; "):
            marked = f"40.{os.getpid()}"
            command = ("bash", "-c", f"{deaf}setsid sleep {marked} & wait; sleep {marked}")
            began = time.monotonic()
            run = Runner(self.folder).run([Job("launcher", command, timeout=0.5)])[0]
            self.assertIn("was not done after 0.5 s", run.error)
            self.assertLess(time.monotonic() - began, 15)
            self.assertEqual(subprocess.run(["pgrep", "-f", f"sleep {marked}"], stdout=subprocess.PIPE, check=False).stdout, b"")

    def test_launcher_is_asked_to_end_its_ranks_before_it_is_killed(self):
        script = f"import signal, sys, time; signal.signal(15, lambda *_: (open({str(self.log)!r}, 'w').write('asked'), sys.exit(1)))"
        script += f"; open({str(self.log)!r}, 'w').write('ready'); time.sleep(40)"
        began = time.monotonic()
        Runner(self.folder).run([Job("launcher", ("/usr/bin/python3", "-c", script), timeout=2)])
        self.assertEqual(self.log.read_text(), "asked")
        self.assertLess(time.monotonic() - began, 6)  # and what has ended is not waited for

    def test_interruption_waits_for_no_rank(self):
        """As by Ctrl-C: the command ends in time, though a rank holds its pipes."""
        study = self.folder / "detached.toml"
        study.write_text(f'''command = ["bash", "-c", "touch {self.log}; setsid sleep 40 & wait # {{seed}}"]
codecs = ["int8"]
metric = {{ margin = 1 }}''')
        main = Path(__file__).resolve().parent
        process = subprocess.Popen([sys.executable, "-c", f"import sys; sys.path.insert(0, {str(main)!r}); import suite; "
                                    "from tightwire.convergence import __main__ as c; sys.exit(c.main(sys.argv[1:]))",
                                    str(study), "--folder", str(self.folder)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.addCleanup(process.stderr.close)
        end = time.monotonic() + 30
        while not self.log.exists() and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(20), 130)

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
        self.assertEqual(command.main([str(path), "--folder", str(self.folder), "--no-html"]), 3)  # nothing at all is known
        result = json.loads((self.folder / "result.json").read_text())
        self.assertEqual(result["comparisons"][0]["verdict"], UNDECIDED)
        self.assertIn(UNDECIDED, report.table(result))

    def test_diverged_baseline_is_a_failure_and_tells_why(self):
        """Where both fail to train, the arm is not as good."""
        path = self.study('codecs = ["sign"]\n', **{"environment = {": 'environment = { FAULT = "diverged", '})
        self.assertEqual(command.main([str(path), "--folder", str(self.folder), "--no-html"]), 2)
        pair = json.loads((self.folder / "result.json").read_text())["comparisons"][0]
        self.assertEqual(pair["verdict"], FAILED)
        self.assertIn("the baseline diverged in 5 of 5 runs", pair["reasons"][0])

    def test_divergence_without_a_worst_fails_its_pair_alone(self):
        path = self.study('[[arms]]\ncodec = "sign"\nenvironment = { FAULT = "diverged" }\n[[arms]]\nname = "sound"\ncodec = "sign"\n',
                          **{", worst = 10.0": ""})
        arguments = [str(path), "--folder", str(self.folder), "--no-html"]
        self.assertEqual(command.main(arguments), 2)
        first, second = json.loads((self.folder / "result.json").read_text())["comparisons"]
        self.assertEqual((first["verdict"], second["verdict"]), (FAILED, AS_GOOD))
        self.assertIn("has no `worst`", first["reasons"][0])
        told = read(path).power(Runner(self.folder))  # of what is there now
        self.assertIn("has no `worst`", told[0])
        self.assertIn("seeds show a margin", told[1])
        self.assertEqual(command.main([*arguments, "--plan"]), 0)

    def test_reports_of_an_earlier_run_do_not_outlive_the_next(self):
        path = self.study('codecs = ["sign"]\n')
        arguments = [str(path), "--folder", str(self.folder), "--no-html"]
        (self.folder / "report.html").write_text("old")
        self.assertEqual(command.main(arguments), 0)
        self.assertFalse((self.folder / "report.html").exists())
        path.write_text(path.read_text().replace('files = ["', 'files = ["/no/such/file", "'))
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(command.main(arguments), command.WRONG_USAGE)
        self.assertEqual([name for name in report.FILES if (self.folder / name).exists()], [])

    def test_seeds_that_do_not_reach_the_trainer_are_found(self):
        path = self.study('codecs = ["sign"]\n', **{'"--seed", "{seed}"': '"--seed", "7", "{seed}"'})
        self.assertEqual(command.main([str(path), "--folder", str(self.folder), "--no-html"]), 2)
        self.assertIn("seeds change nothing", json.loads((self.folder / "result.json").read_text())["comparisons"][0]["reasons"][0])

    def test_one_training_at_a_time_unless_the_file_says_more(self):
        self.assertEqual(read(self.study()).workers, 1)
        self.assertEqual(read(self.study(**{"seeds = 5": "seeds = 5\nworkers = 3"})).workers, 3)

    def test_no_files_is_told(self):
        told = read(self.study(**{f'files = ["{TOY}"]': ""})).warnings
        self.assertIn('"files" is empty', told[0])
        self.assertEqual(read(self.study()).warnings, ())


class Configuration(InFolder):
    def test_mistakes_are_named(self):
        for changes, words in (({"name = ": "nam = "}, "unknown: nam; known: arms"),
                               ({"margin = 0.001, ": ""}, "[metric]: \"margin\" is missing"),
                               ({"margin = 0.001": "margin = -1"}, "\"margin\" must be above 0"),
                               ({"margin = 0.001": "margin = nan"}, "\"margin\" must be finite"),
                               ({"worst = 10.0": "worst = inf"}, "\"worst\" must be finite"),
                               ({"worst = 10.0": "worst = 10.0, target = -inf"}, "\"target\" must be finite"),
                               ({"worst = 10.0": "deviation = nan"}, "\"deviation\" must be finite"),
                               ({"seeds = 5": "seeds = 5\ntimeout = nan"}, "\"timeout\" must be finite"),
                               ({"seeds = 5": "seeds = 5\ntimeout = 0"}, "\"timeout\" must be above 0"),
                               ({"seeds = 5": "seeds = 5\nworkers = 0"}, "\"workers\" must be above 0"),
                               ({"codecs = [": "judge = { alpha = nan }\ncodecs = ["}, "\"alpha\" must be finite"),
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

    def test_numbers_of_seeds_and_workers_that_make_no_sense(self):
        for option in ("--seeds", "--workers"):
            for value in ("0", "-3", "1.5", "x", ""):
                with self.assertRaises(SystemExit) as caught, contextlib.redirect_stderr(io.StringIO()) as told:
                    command.main([f"{option}={value}"])
                self.assertEqual(caught.exception.code, command.WRONG_USAGE)  # and not that of trainings that failed
                self.assertIn("must be a whole number above 0", told.getvalue())

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

    def test_baseline_that_diverged(self):
        found = compare(lambda codec, seed: float("nan"), ["int8"], 6, margin=0.1, worst=5.0)
        self.assertFalse(found["int8"].as_good)
        self.assertEqual(found["int8"].verdict.verdict, FAILED)
        self.assertIn("the baseline diverged in 6 of 6 runs", found["int8"].verdict.reasons[0])

    def test_divergence_without_a_worst_fails_its_codec_alone(self):
        def train(codec, seed):
            return float("inf") if codec == "bad" and seed == 3 else seed + 0.001 * (codec == "good")

        found = compare(train, ["bad", "good"], 6, margin=0.1)
        self.assertEqual([one.verdict.verdict for one in found.values()], [FAILED, AS_GOOD])
        self.assertEqual(list(found), ["bad", "good"])

    def test_what_makes_no_sense_is_refused_before_anything_is_trained(self):
        def train(codec, seed):
            raise AssertionError("trained")

        nan = float("nan")
        for words, seeds, more in (("different", [1, 2, 3, 4, 4], {}), ("above 0", 0, {}), ("above 0", [], {}),
                                   ("margin", 5, {"margin": nan}), ("margin", 5, {"margin": 0}), ("alpha", 5, {"alpha": nan}),
                                   ("alpha", 5, {"alpha": 0.7}), ("worst", 5, {"worst": nan})):
            with self.assertRaisesRegex(ValueError, words):
                compare(train, ["int8"], seeds, **{"margin": 0.1, **more})

    def test_metric_that_is_no_number(self):
        for value in ("0.91", True, None):
            with self.assertRaisesRegex(TypeError, 'codec "exact", seed 1, is no number'):
                compare(lambda codec, seed, value=value: value, ["int8"], 5, margin=0.1)


if __name__ == "__main__":
    unittest.main()
