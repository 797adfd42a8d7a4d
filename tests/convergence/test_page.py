"""The report as a page."""
import json
import tempfile
import unittest
from pathlib import Path

import suite  # noqa: F401  first: it makes the next imports possible
from tightwire.convergence import report
from tightwire.convergence.judging import Metric
from tightwire.convergence.running import Job, Runner
from tightwire.convergence.study import Arm, Pair, Study, expected_of

TRAIN = """
import json, sys
seed, worse = int(sys.argv[1]), float(sys.argv[2])
for step in range(5):
    print(json.dumps({"step": step, "loss": 1 / (step + 1) + worse, "bytes": 100 * step, "metric": seed + worse * (1 + 0.01 * seed)}))
"""


def arm(name, worse):
    return Arm(name, lambda seed: Job(name, ("/usr/bin/python3", "-c", TRAIN, str(seed), str(worse))))


class Page(unittest.TestCase):
    def test_needs_no_network_and_shows_what_the_json_has(self):
        metric, exact = Metric("a & b", 0.1), arm("exact", 0)
        pairs = [Pair("task", arm("<good>", 0.01), exact, metric),
                 Pair("task", arm("broken", 0.5), exact, metric, "negative control", expected_of("negative control")),
                 Pair("task", arm("not caught", 0.0), exact, metric, "negative control", expected_of("negative control"))]
        study = Study("pages", pairs, range(1, 6))
        with tempfile.TemporaryDirectory() as folder:
            comparisons = study.run(Runner(Path(folder)))
            result = report.as_json(study, comparisons)
            report.write(result, Path(folder))
            page = (Path(folder) / "report.html").read_text()
            self.assertEqual(json.loads((Path(folder) / "result.json").read_text()), result)
        self.assertEqual(study.status(comparisons), 1)  # a broken arm that was not found
        for pair in result["comparisons"]:
            shown = pair["estimate"]
            self.assertIn(f"{shown['mean']:.3f} ({shown['lower']:.3f} to {shown['upper']:.3f})", page)
        self.assertIn("&lt;good&gt;", page)
        self.assertIn("where deficits are nearly normal. What happens to fewer than 45% of trainings, 5 seeds", page)
        self.assertEqual(page.count("<tr class='wrong'"), 1)
        self.assertEqual((result["false_alarm_rate"], result["miss_rate"]), (None, 0.5))
        self.assertEqual(page.count("<svg"), 2)  # at a glance, and the curves of the task
        for outside in ("<script", "<link", "<img", "@import", "href=\"http", "src="):
            self.assertNotIn(outside, page)


if __name__ == "__main__":
    unittest.main()
