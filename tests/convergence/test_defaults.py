"""What is recommended must pass; limits are documented, and hide nothing; the table of defaults is made from a result."""
import json
import tempfile
import unittest
from pathlib import Path

import suite  # noqa: F401  first: it makes the next imports possible
from tightwire.convergence import __main__ as command
from tightwire.convergence import defaults, report, tiers
from tightwire.convergence.judging import AS_GOOD, UNDECIDED, WORSE, Metric, Verdict
from tightwire.convergence.running import Job, Keys, Run
from tightwire.convergence.statistics import estimate
from tightwire.convergence.study import Arm, Comparison, Pair, Rules, Study

ROOT = Path(__file__).resolve().parents[2]
METRIC = Metric("loss", 0.1)


def arm(name):
    return Arm(name, lambda seed: Job(name, ("true",)))


def run(value, sent):
    return Run("run", "key", [{"step": 1, "loss": value, "bytes": sent, "metric": value}], Keys())


def compared(verdict, by=(), task="task", name="int8", **more):
    deficits = [0.01, 0.02, 0.03, 0.02, 0.01]
    return Comparison(Pair(task, arm(name), arm("exact"), METRIC, **more), [run(1 + d, 100) for d in deficits],
                      [run(1.0, 400)] * 5, Verdict(verdict, ["because"], list(by), estimate(deficits, 0.1)))


def status(*comparisons, undecided_fails=False):
    study = Study("test", [c.pair for c in comparisons], range(1, 6), Rules(undecided_fails=undecided_fails))
    return study.status(comparisons)


class Limits(unittest.TestCase):
    def test_documented_limit_excuses_a_worse_metric_only(self):
        self.assertEqual(status(compared(WORSE, ["metric"])), 1)
        self.assertEqual(status(compared(WORSE, ["metric"], limit="late")), 0)
        for by in (["lost"], ["replicas"], ["lost", "metric"], []):
            self.assertEqual(status(compared(WORSE, by, limit="late")), 1, by)

    def test_limit_that_is_none_is_told(self):
        good = compared(AS_GOOD, limit="late")
        self.assertEqual(status(good), 1)
        pair = report.as_json(Study("test", [good.pair], range(1, 6)), [good])["comparisons"][0]
        self.assertEqual(report.mark(pair), "NOT AS DOCUMENTED")
        self.assertIn("<failure", report.as_junit({"study": "test", "comparisons": [pair]}))

    def test_recommended_must_be_shown_to_be_good(self):
        self.assertEqual(status(compared(AS_GOOD), compared(UNDECIDED)), 0)
        self.assertEqual(status(compared(AS_GOOD), compared(UNDECIDED), undecided_fails=True), 3)
        self.assertEqual(status(compared(AS_GOOD), compared(UNDECIDED, recommended=True)), 3)
        self.assertEqual(status(compared(AS_GOOD, recommended=True), compared(UNDECIDED)), 0)

    def test_nothing_decided_is_no_success(self):
        self.assertEqual(status(compared(UNDECIDED), compared(UNDECIDED)), 3)

    def test_undecided_control_is_no_success(self):
        good = compared(AS_GOOD)
        for expected in (AS_GOOD, WORSE):
            control = compared(UNDECIDED, kind="negative control", expected=expected)
            self.assertEqual(status(good, control), 3)
            pair = report.as_json(Study("test", [control.pair], range(1, 6)), [control])["comparisons"][0]
            self.assertIn("<failure", report.as_junit({"study": "test", "comparisons": [pair]}))
        self.assertEqual(status(compared(WORSE, expected=AS_GOOD), compared(UNDECIDED, expected=WORSE)), 1)

    def test_too_few_runs_may_be_what_is_expected(self):
        expected = compared(UNDECIDED, expected=UNDECIDED)
        self.assertEqual(status(expected, undecided_fails=True), 0)
        self.assertEqual(status(compared(WORSE, expected=UNDECIDED)), 1)
        pair = report.as_json(Study("test", [expected.pair], range(1, 6)), [expected])["comparisons"][0]
        suite = report.as_junit({"study": "test", "comparisons": [pair]})
        self.assertNotIn("<failure", suite)
        self.assertNotIn("<skipped", suite)

    def test_codec_by_name_is_what_the_tier_has(self):
        study = tiers.tier_study("quick", tiers.Trainer("trainer"), codecs=["powersgd:rank=4", "int2"], controls=False)
        recommended = {pair.arm.name for pair in study.pairs if pair.recommended}
        self.assertEqual(recommended, {"powersgd:rank=4"})
        self.assertEqual([pair.limit for pair in study.pairs if pair.task == "quadratic"], [tiers.LATE_FOR_THE_RATE, ""])
        self.assertTrue(study.rules.undecided_fails)  # who names a codec asks what becomes of it

    def test_judging_a_study_tells_of_its_limits(self):
        class Ran:
            def run(self, jobs):
                return [run(0.01 * i % 0.06 + (2.0 if job.title == "late" else 1.0), 100) for i, job in enumerate(jobs)]

        for name, limit, words in (("late", "it is late", "documented: it is late"),
                                   ("early", "it is late", "take this limit out of the tier"), ("late", "", "margin")):
            study = Study("test", [Pair("task", arm(name), arm("exact"), METRIC, limit=limit)], range(1, 7))
            self.assertIn(words, study.run(Ran())[0].verdict.reasons[-1])

    def test_every_limit_of_a_tier_is_of_a_pair_in_it_and_in_the_docs(self):
        pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
        for name, tier in tiers.TIERS.items():
            study = tiers.tier_study(name, tiers.Trainer("trainer"))
            pairs = {(pair.task, pair.arm.name) for pair in study.pairs if pair.kind == "scheme"}
            for key, reason in tier.limits.items():
                self.assertIn(key, pairs)
                self.assertIn(reason, pages)

    def test_what_is_recommended_is_in_the_quick_tier_on_every_task(self):
        pairs = [pair for pair in tiers.tier_study("quick", tiers.Trainer("trainer")).pairs if pair.recommended]
        for task in tiers.TASKS:
            names = [pair.arm.name for pair in pairs if pair.task == task]
            self.assertEqual({name.split(":")[0] for name in names}, {"int8", "int4", "powersgd", "topk"}, task)


class Repetitions(unittest.TestCase):
    @staticmethod
    def judged(missed):
        """A negative control, three repetitions of six seeds: as good as exact with those of the repetition `missed`."""
        def job(name):
            return Arm(name, lambda seed: Job(name, ("true", str(seed))))

        class Ran:
            def run(self, jobs):
                def worse(seed):
                    return 0.02 if (seed - 1) // 6 == missed else 2.0

                return [run(1.0 + 0.01 * (seed % 7) + (worse(seed) if job.title == "broken" else 0.0), 100)
                        for job, seed in ((job, int(job.command[1])) for job in jobs)]

        pairs = [Pair("task", job("sound"), job("exact"), METRIC),
                 Pair("task", job("broken"), job("exact"), METRIC, "negative control", WORSE, seeds=6, repetitions=3)]
        study = Study("test", pairs, range(1, 9))
        return study, study.run(Ran())

    def test_each_is_judged_by_itself_and_all_must_be_right(self):
        for missed, right in ((-1, 3), (1, 2)):
            study, comparisons = self.judged(missed)
            self.assertEqual([len(c.arm_runs) for c in comparisons], [8, 18])
            self.assertEqual(comparisons[1].verdict.verdict, WORSE)  # of all seeds, in spite of the one that was missed
            self.assertEqual(study.status(comparisons), 0 if right == 3 else 1)
            result = report.as_json(study, comparisons)
            self.assertIsNone(result["comparisons"][0]["repetitions"])
            told = result["comparisons"][1]["repetitions"]
            self.assertEqual((told["number"], told["seeds_each"], told["right"]), (3, 6, right))
            self.assertEqual([wrong["repetition"] for wrong in told["wrong"]], [1] * (3 - right))
            self.assertIn(f"{right} of 3", report.table(result))
            self.assertEqual([r["seed"] for r in result["comparisons"][1]["runs"]], list(range(1, 19)))

    def test_full_tier_repeats_every_control_twenty_times(self):
        study = tiers.tier_study("full", tiers.Trainer("trainer"))
        controls = [pair for pair in study.pairs if pair.kind != "scheme"]
        self.assertEqual(len(controls), len(tiers.POSITIVE) + len(tiers.NEGATIVE))
        self.assertEqual({(pair.repetitions, len(study.seeds_of(pair))) for pair in controls}, {(20, 160)})
        for pair in study.pairs:
            if pair.kind == "scheme":
                self.assertEqual(len(study.seeds_of(pair)), 20 if pair.recommended else 8)


class Table(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.page = self.folder / "codecs.md"
        self.page.write_text((ROOT / "docs" / "codecs.md").read_text())  # which has the marks

    def result(self, *comparisons):
        study = Study("quick tier", [c.pair for c in comparisons], range(1, 6), facts={"command": "tightwire converge --tier quick"})
        (self.folder / "result.json").write_text(json.dumps(report.as_json(study, comparisons)))

    def write(self):
        return command.main(["--write-table", str(self.page), "--folder", str(self.folder)])

    def test_table_says_what_was_measured_when_and_how(self):
        self.result(compared(AS_GOOD, recommended=True), compared(WORSE, ["metric"], "other", recommended=True, limit="late"),
                    compared(AS_GOOD, name="sign"))
        self.assertEqual(self.write(), 0)
        text = self.page.read_text()
        table = text[text.index(defaults.BEGIN):text.index(defaults.END)]
        self.assertIn("| `int8` | `task` | 8.0 | 75% | 0.018 (0.010 to 0.026) | 0.1 | as good |", table)
        self.assertIn("| 0.1 | as good |", table)
        self.assertIn("| 0.1 | **worse** |", table)
        self.assertIn("- `int8` on `other`: late.", table)
        self.assertNotIn("sign", table)
        for words in ("quick tier", "UTC", "`tightwire converge --tier quick`", "5 seeds"):
            self.assertIn(words, table)
        whole = (ROOT / "docs" / "codecs.md").read_text()
        self.assertEqual(text.partition(defaults.BEGIN)[0], whole.partition(defaults.BEGIN)[0])
        self.assertEqual(text.partition(defaults.END)[2], whole.partition(defaults.END)[2])
        self.assertEqual(self.write(), 0)
        self.assertEqual(self.page.read_text(), text, "written twice it is the same")

    def test_nothing_to_write_or_no_place_changes_nothing(self):
        before = self.page.read_text()
        self.assertEqual(self.write(), command.WRONG_USAGE)  # there is no result
        self.result(compared(AS_GOOD))
        self.assertEqual(self.write(), command.WRONG_USAGE)  # nothing recommended is in it
        self.assertEqual(self.page.read_text(), before)
        self.result(compared(AS_GOOD, recommended=True))
        self.page.write_text("no marks")
        self.assertEqual(self.write(), command.WRONG_USAGE)
        self.assertEqual(self.page.read_text(), "no marks")


if __name__ == "__main__":
    unittest.main()
