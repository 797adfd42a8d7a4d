"""Known answers, and what the intervals are for: how often they are right."""
import math
import unittest

import numpy
import suite  # noqa: F401  first: it makes the next imports possible
from tightwire.convergence.judging import AS_GOOD, UNDECIDED, WORSE, Evidence, Metric, judge, wrong_verdicts
from tightwire.convergence.statistics import estimate, holm, rarest_seen, seeds_needed, student_cdf, student_quantile


class Student(unittest.TestCase):
    def test_quantiles_are_those_of_the_tables(self):
        for probability, freedom, quantile in ((0.95, 1, 6.3138), (0.95, 4, 2.1318), (0.975, 9, 2.2622), (0.999, 5, 5.8934)):
            self.assertAlmostEqual(student_quantile(probability, freedom), quantile, 3)
            self.assertAlmostEqual(student_quantile(1 - probability, freedom), -quantile, 3)

    def test_distribution_has_its_ends(self):
        self.assertEqual(student_cdf(0, 3), 0.5)
        self.assertEqual(student_cdf(math.inf, 3), 1.0)
        self.assertLess(student_cdf(-100, 5), 1e-8)


class Interval(unittest.TestCase):
    def coverage(self, draw, true_mean, runs):
        """Shares of 400 samples whose bounds lie on the wrong side of the mean."""
        random, too_low, too_high = numpy.random.default_rng(1), 0, 0
        for trial in range(400):
            shown = estimate(draw(random, runs), 1.0, seed=trial)
            too_low += shown.upper < true_mean
            too_high += shown.lower > true_mean
        return too_low / 400, too_high / 400

    def test_bounds_of_normal_samples_err_in_five_percent(self):
        for runs in (5, 8):
            for wrong in self.coverage(lambda random, n: random.normal(0.3, 2, n), 0.3, runs):
                self.assertLess(wrong, 0.075)  # 5 % and 2.3 standard deviations of 400 trials
        # and not by being wide beyond reason
        self.assertGreater(sum(self.coverage(lambda random, n: random.normal(0.3, 2, n), 0.3, 8)), 0.03)

    def test_bounds_of_skewed_samples_err_in_ten_percent_at_most(self):
        wrong = self.coverage(lambda random, n: random.exponential(1, n), 1.0, 12)
        self.assertLess(max(wrong), 0.125)

    def test_known_sample(self):
        shown = estimate([1.0, 2.0, 3.0, 4.0, 5.0], 10.0)
        self.assertEqual((shown.runs, shown.mean), (5, 3.0))
        self.assertAlmostEqual(shown.deviation, math.sqrt(2.5))
        # No narrower than Student's: 3 +- 2.1318 * 1.5811 / sqrt(5).
        self.assertLessEqual(shown.lower, 3 - 1.5074)
        self.assertGreaterEqual(shown.upper, 3 + 1.5074)
        self.assertAlmostEqual(shown.p_not_below, 1 - student_cdf(7 / math.sqrt(0.5), 4), 6)

    def test_equal_values_have_no_spread(self):
        shown = estimate([0.0] * 5, 0.1)
        self.assertEqual((shown.lower, shown.upper, shown.p_not_below, shown.p_not_above), (0, 0, 0, 1))

    def test_no_spread_is_no_certainty(self):
        for value, below, above in ((0.05, 2**-5, 1), (0.2, 1, 2**-5), (0.1, 1, 1)):
            shown = estimate([value] * 5, 0.1)
            self.assertEqual((shown.deviation, shown.p_not_below, shown.p_not_above), (0, below, above))

    def test_what_is_not_finite_is_refused(self):
        with self.assertRaisesRegex(ValueError, "finite"):
            estimate([1.0, math.nan], 1)
        for margin in (math.nan, math.inf):
            with self.assertRaisesRegex(ValueError, "margin must be finite"):
                estimate([0.0, 0.1], margin)

    def test_what_overflows_shows_nothing(self):
        with numpy.errstate(all="ignore"):
            shown = estimate([1.7e308] * 4 + [1.6e308], 0.1)
        self.assertEqual((shown.p_not_below, shown.p_not_above), (1, 1))


class Holm(unittest.TestCase):
    def test_known_adjustment(self):
        self.assertEqual(holm([0.01, 0.04, 0.03, 0.5]), [0.04, 0.09, 0.09, 0.5])
        self.assertEqual(holm([]), [])

    def test_many_equal_arms_raise_no_more_alarms_than_one(self):
        random, alarms, metric = numpy.random.default_rng(3), 0, Metric("loss", 0.5)
        for _ in range(100):
            pairs = [Evidence(list(random.normal(0.5, 0.3, 8))) for _ in range(10)]  # all exactly at the margin
            alarms += any(verdict.verdict != UNDECIDED for verdict in judge(pairs, [metric] * 10))
        self.assertLessEqual(alarms, 18)  # 10 % for two directions, and 2.7 standard deviations


class Power(unittest.TestCase):
    def test_number_of_seeds_is_that_of_the_textbook(self):
        # One-sided t test, 5 %, power 90 %, margin of one deviation: 10 or 11 by the noncentral distribution.
        self.assertIn(seeds_needed(1.0, 1.0), (10, 11))
        self.assertGreater(seeds_needed(2.0, 1.0), 3 * seeds_needed(1.0, 1.0))

    def test_rarest_that_is_seen(self):
        self.assertAlmostEqual(rarest_seen(5), 0.4507, 4)
        self.assertAlmostEqual((1 - rarest_seen(20)) ** 20, 0.05)

    def test_told_number_does_reach_the_power(self):
        random, shown, runs, metric = numpy.random.default_rng(5), 0, seeds_needed(0.1, 0.12), Metric("loss", 0.12)
        for _ in range(200):
            shown += judge([Evidence(list(random.normal(0, 0.1, runs)))], [metric])[0].verdict == AS_GOOD
        self.assertGreater(shown / 200, 0.85)
        self.assertLess(shown / 200, 0.98)  # nor are far too many seeds asked for


class Verdicts(unittest.TestCase):
    METRIC = Metric("loss", 0.1, worst=3.0)

    def verdict(self, deficits, **more):
        return judge([Evidence(deficits, **more)], [self.METRIC])[0]

    def test_three_verdicts(self):
        self.assertEqual(self.verdict([0.01, -0.02, 0.0, 0.02, -0.01]).verdict, AS_GOOD)
        self.assertEqual(self.verdict([0.5, 0.6, 0.55, 0.52, 0.6]).verdict, WORSE)
        self.assertEqual(self.verdict([0.0, 0.2, 0.05, 0.15, 0.12]).verdict, UNDECIDED)

    def test_four_runs_never_suffice(self):
        self.assertEqual(self.verdict([0.0] * 4).verdict, UNDECIDED)
        self.assertEqual(self.verdict([9.0] * 4).verdict, UNDECIDED)

    def test_ranks_that_differ_once_are_worse_whatever_the_metric(self):
        verdict = self.verdict([0.0] * 5, differing=[-1, -1, 40, -1, -1])
        self.assertEqual((verdict.verdict, verdict.by), (WORSE, ["replicas"]))
        self.assertIn("1 of 5 runs, first at step 40", verdict.reasons[0])

    def test_lost_updates_are_worse_whatever_the_metric(self):
        self.assertEqual(self.verdict([0.0] * 5, lost=[1e-7] * 5).verdict, AS_GOOD)
        verdict = self.verdict([0.0] * 5, lost=[1e-7, 0.01, 0, 0, 0])
        self.assertEqual((verdict.verdict, verdict.by), (WORSE, ["lost"]))
        self.assertEqual(self.verdict([0.0] * 5, lost=[math.nan, 0, 0, 0, 0]).verdict, WORSE)

    def test_higher_may_be_better_and_diverged_is_worst(self):
        accuracy = Metric("accuracy", 0.02, higher_is_better=True, worst=0.1)
        self.assertAlmostEqual(accuracy.deficit(0.8, 0.7), 0.1)
        self.assertAlmostEqual(accuracy.deficit(0.8, None), 0.7)
        self.assertAlmostEqual(self.METRIC.deficit(1.0, math.inf), 2.0)
        with self.assertRaisesRegex(ValueError, "worst"):
            Metric("loss", 0.1).deficit(1.0, math.nan)

    def test_baseline_that_diverged_is_nothing_to_be_as_good_as(self):
        accuracy = Metric("accuracy", 0.02, higher_is_better=True, worst=0.1)
        for metric, bad in ((self.METRIC, math.nan), (self.METRIC, None), (self.METRIC, 3.0), (self.METRIC, math.inf),
                            (accuracy, 0.1), (accuracy, 0.05), (Metric("loss", 0.1), math.inf)):
            with self.assertRaisesRegex(ValueError, "the baseline diverged"):
                metric.deficit(bad, bad)
            with self.assertRaisesRegex(ValueError, "the baseline diverged in 1 of 5 runs"):
                metric.deficits([0.5, 0.6, bad, 0.7, 0.8], [0.5, 0.6, bad, 0.7, 0.8])
        self.assertEqual(len(accuracy.deficits([0.11, 0.2, 0.3, 0.4, 0.5], [0.1] * 5)), 5)  # an arm may

    def test_seeds_that_change_nothing_show_nothing(self):
        with self.assertRaisesRegex(ValueError, "seeds change nothing: .* 5 runs of the baseline is 0.5"):
            self.METRIC.deficits([0.5] * 5, [0.5, 0.51, 0.5, 0.5, 0.5])
        same = self.METRIC.deficits([0.5] * 5, [0.5] * 5)  # nothing random in it, and the arm is the baseline, to the bit
        verdict = judge([Evidence(same)], [self.METRIC])[0]
        self.assertEqual(verdict.verdict, AS_GOOD)
        self.assertIn("to the bit", verdict.reasons[-1])

    def test_margins_and_levels_that_make_no_sense(self):
        for margin in (0, -1, math.nan, math.inf):
            with self.assertRaisesRegex(ValueError, "margin"):
                Metric("loss", margin)
        with self.assertRaisesRegex(ValueError, "worst"):
            Metric("loss", 0.1, worst=math.nan)
        for alpha in (0, 0.5, math.nan):
            with self.assertRaisesRegex(ValueError, "alpha"):
                judge([], [], alpha)

    def test_wrong_rates_are_low_where_it_is_clear_and_high_where_not(self):
        clear, unclear = Evidence([0.5, 0.6, 0.55, 0.52, 0.6, 0.5]), Evidence([0.0, 0.2, 0.05, 0.15, 0.12, 0.1])
        self.assertLess(wrong_verdicts(clear, self.METRIC, WORSE, 1, repetitions=50), 0.05)
        self.assertGreater(wrong_verdicts(unclear, self.METRIC, WORSE, 1, repetitions=50), 0.5)


if __name__ == "__main__":
    unittest.main()
