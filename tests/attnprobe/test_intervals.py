from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attnprobe.errors import InputError
from attnprobe.intervals import (
    Interval,
    bootstrap_t_interval,
    end_log_ratios,
    mean_interval,
    median_interval,
    ratio_interval,
    simultaneous_band,
)

LOGS = np.array([0.9, 1.4, 0.7, 1.1, 1.6, 0.2, 1.0])


def bounds(interval: Interval) -> tuple[float, float]:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


def test_mean_and_ratio_are_students_t() -> None:
    expected = stats.ttest_1samp(LOGS, 0).confidence_interval(0.9)
    found = mean_interval(LOGS, level=0.9)
    assert (found.estimate, *bounds(found)) == pytest.approx((LOGS.mean(), *expected), rel=1e-12)
    ratio = ratio_interval(LOGS, level=0.9)
    assert (ratio.estimate, *bounds(ratio)) == pytest.approx(np.exp([LOGS.mean(), *expected]), rel=1e-12)
    assert (ratio.n, ratio.level, ratio.reason) == (7, 0.9, None)


@pytest.mark.parametrize("make", [ratio_interval, mean_interval, median_interval, bootstrap_t_interval])
def test_four_questions_have_an_estimate_and_no_interval(make: Any) -> None:
    found = make(LOGS[:4])
    assert found.estimate is not None
    assert (found.low, found.high, found.n) == (None, None, 4)
    needed = 6 if make is median_interval else 5
    assert found.reason == f"4 questions; an interval needs at least {needed}"
    assert make([]).estimate is None
    assert make([]).n == 0
    assert make(LOGS[:6]).low is not None


def test_undefined_questions_are_left_out_and_counted() -> None:
    found = ratio_interval([*LOGS, math.nan])
    assert bounds(found) == bounds(ratio_interval(LOGS))
    assert (found.n, found.reason) == (7, "1 of 8 questions left out: undefined there")
    few = mean_interval([*LOGS[:4], math.nan])
    assert few.reason == "4 questions; an interval needs at least 5; 1 of 5 questions left out: undefined there"


def test_an_infinite_ratio_gives_the_median_with_order_statistics() -> None:
    logs = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, math.inf]
    found = ratio_interval(logs)
    # P(a given order statistic is on the wrong side): Bin(8, 1/2) <= 0 is 1/256, <= 1 is 9/256 > 0.025.
    assert (found.estimate, *bounds(found)) == pytest.approx((math.exp(0.45), math.exp(0.1), math.inf))
    assert found.method == "median and order statistics, since some ratios are infinite or 0"
    every = ratio_interval([math.inf] * 8)
    assert (every.estimate, *bounds(every)) == (math.inf, math.inf, math.inf)
    none = ratio_interval([-math.inf] * 8)
    assert (none.estimate, *bounds(none)) == (0, 0, 0)
    assert ratio_interval([math.inf] * 5).low is None
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.to_dict()["high"] == "inf"


def test_an_infinite_value_has_a_mean_and_no_t_interval() -> None:
    found = mean_interval([*LOGS, math.inf])
    assert (found.estimate, found.low) == (math.inf, None)
    assert found.reason == "1 of 8 questions hold an infinite value, so there is no mean"
    assert mean_interval([*LOGS, math.inf, -math.inf]).estimate is None
    assert bootstrap_t_interval([*LOGS, math.inf]).low is None


@pytest.mark.parametrize("n", [6, 7, 9, 12, 17, 24, 40])
@pytest.mark.parametrize("level", [0.8, 0.9, 0.95, 0.96875])
def test_median_interval_is_the_shortest_pair_of_order_statistics_that_covers(n: int, level: float) -> None:
    values = np.arange(n, dtype=float)
    found = median_interval(values, level)
    low, high = map(int, bounds(found))
    assert low + high == n - 1

    def covers(out: int) -> float:
        return 1 - 2 * sum(math.comb(n, k) for k in range(out + 1)) / 2**n

    assert covers(low) >= level > covers(low + 1)


def test_bootstrap_t_by_hand() -> None:
    rng = np.random.default_rng(3)
    x = rng.exponential(size=9)
    found = bootstrap_t_interval(x, level=0.9, draws=20_000, seed=1)
    resampled = x[np.random.default_rng(8).integers(9, size=(200_000, 9))]
    t = (resampled.mean(1) - x.mean()) / (resampled.std(1, ddof=1) / 3)
    expected = x.mean() - np.quantile(t, [0.95, 0.05]) * x.std(ddof=1) / 3
    width = expected[1] - expected[0]
    assert bounds(found) == pytest.approx(expected, abs=0.03 * width)
    # Of a mean, the jackknife's error is the usual one.
    by_jackknife = bootstrap_t_interval(x, np.mean, level=0.9, draws=20_000, seed=1)
    assert bounds(by_jackknife) == pytest.approx(bounds(found), rel=1e-9)


def test_bootstrap_t_of_equal_values_and_of_resamples_without_spread() -> None:
    assert bounds(bootstrap_t_interval([0.1] * 6)) == pytest.approx((0.1, 0.1), abs=1e-12)
    # Most resamples of these hold one value only: at this level some bounds are honestly infinite.
    assert bounds(bootstrap_t_interval([0, 0, 0, 0, 0, 1.0], level=0.9))[1] == math.inf


def test_end_log_ratios_average_values_not_logs() -> None:
    profile = np.log([[4.0, 1.0, 3.0, 8.0]])
    head, tail = end_log_ratios(profile)
    assert np.exp([head[0], tail[0]]) == pytest.approx([2, 4], rel=1e-12)
    five = np.log([[6.0, 1.0, 2.0, 3.0, 1.0]])
    assert np.exp(end_log_ratios(five)[0]) == pytest.approx(3)
    with np.errstate(divide="ignore"):
        zeros = np.log([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0]])
    head, tail = end_log_ratios(zeros)
    assert head.tolist() == [math.inf, -math.inf]
    assert np.isnan(tail[0])
    assert all(np.isnan(end).all() for end in end_log_ratios(np.zeros((3, 2))))


def test_band_by_hand_for_independent_positions() -> None:
    rng = np.random.default_rng(0)
    logs = rng.normal(size=(400, 6)) + np.arange(6)
    band = simultaneous_band(logs, centred=False, draws=40_000)
    assert band.critical is not None
    # Independent positions: Sidak's corrected quantile of t.
    assert band.critical == pytest.approx(stats.t.isf((1 - 0.95 ** (1 / 6)) / 2, 399), rel=0.01)
    error = logs.std(axis=0, ddof=1) / 20
    assert band.estimate == pytest.approx(logs.mean(axis=0), rel=1e-12)
    assert band.high == pytest.approx(logs.mean(axis=0) + band.critical * error, rel=1e-12)
    assert band.pointwise_low == pytest.approx(logs.mean(axis=0) - stats.t.isf(0.025, 399) * error, rel=1e-12)


def largest_t(correlation: np.ndarray, n: int) -> float:
    """Quantile 0.95 of the largest |t|, from normal samples drawn one by one."""
    samples = np.random.default_rng(9).multivariate_normal(np.zeros(len(correlation)), correlation, size=(60_000, n))
    t = samples.mean(axis=1) / (samples.std(axis=1, ddof=1) / math.sqrt(n))
    return float(np.quantile(np.abs(t).max(axis=1), 0.95))


@pytest.mark.parametrize("n", [5, 12])
def test_critical_value_by_sampling(n: int) -> None:
    """With fewer questions than positions, too; the correlations are pulled to 0 by 3 %."""
    logs = np.random.default_rng(1).normal(size=(n, 6)).cumsum(axis=1)
    expected = largest_t(0.97 * np.corrcoef(logs.T) + 0.03 * np.eye(6), n)
    assert simultaneous_band(logs, centred=False, draws=60_000).critical == pytest.approx(expected, rel=0.02)
    centred = logs - logs.mean(axis=1, keepdims=True)
    expected = largest_t(0.97 * np.corrcoef(centred.T) + 0.03 * np.eye(6), n)
    assert simultaneous_band(logs, draws=60_000).critical == pytest.approx(expected, rel=0.02)


def test_positions_that_go_together_count_as_little_more_than_one() -> None:
    logs = np.repeat(np.random.default_rng(1).normal(size=(7, 1)), 5, axis=1)
    critical = simultaneous_band(logs, centred=False).critical
    assert critical is not None
    one, five = stats.t.isf(0.025, 6), stats.t.isf(0.005, 6)  # five: Bonferroni's, as if they did not go together
    assert one < critical < 1.2 * one
    assert critical < five


def test_band_takes_the_questions_levels_out_unless_asked() -> None:
    rng = np.random.default_rng(2)
    logs = rng.normal(size=(8, 5))
    levels = 10 * rng.normal(size=(8, 1))
    levels -= levels.mean()
    plain, shifted = simultaneous_band(logs), simultaneous_band(logs + levels)
    assert shifted.low == pytest.approx(plain.low, rel=1e-9)
    wide, narrow = simultaneous_band(logs + levels, centred=False), plain
    assert wide.high is not None
    assert narrow.high is not None
    assert (wide.high - wide.estimate > 3 * (narrow.high - narrow.estimate)).all()


def test_band_exp_and_json() -> None:
    band = simultaneous_band(np.random.default_rng(4).normal(size=(8, 3)))
    curve = band.exp()
    assert band.low is not None
    assert curve.low == pytest.approx(np.exp(band.low))
    assert curve.estimate == pytest.approx(np.exp(band.estimate))
    assert curve.critical == band.critical
    json.dumps(curve.to_dict(), allow_nan=False)
    assert simultaneous_band(np.zeros((3, 4))).exp().low is None


def test_band_without_enough_to_go_on_says_why() -> None:
    rng = np.random.default_rng(5)
    logs = rng.normal(size=(6, 4))
    logs[0, 1] = math.nan
    kept = simultaneous_band(logs)
    assert (kept.n, kept.reason) == (5, "1 of 6 questions left out: undefined there")
    assert kept.low is not None
    assert np.array_equal(kept.low, simultaneous_band(logs[1:]).low)  # type: ignore[arg-type]
    logs[1, 1] = math.nan
    assert simultaneous_band(logs).low is None
    logs = rng.normal(size=(6, 4))
    logs[0, 1] = -math.inf
    infinite = simultaneous_band(logs)
    assert infinite.low is None
    assert infinite.estimate[1] == -math.inf
    assert infinite.reason == "1 of 6 questions hold an infinite value, so there is no mean"
    assert simultaneous_band(rng.normal(size=(6, 1))).reason == "a single position has no shape"
    assert np.isnan(simultaneous_band(np.empty((0, 3))).estimate).all()


def test_band_of_a_position_without_spread_has_no_width_there() -> None:
    logs = np.random.default_rng(6).normal(size=(6, 4))
    logs[:, 2] = 0.1
    band = simultaneous_band(logs, centred=False)
    assert band.low is not None
    assert band.low[2] == pytest.approx(0.1)
    assert (band.low[[0, 1, 3]] < band.estimate[[0, 1, 3]] - 0.1).all()
    same = simultaneous_band(np.tile([1.0, 2.0, 3.3], (6, 1)))
    assert same.low == pytest.approx(same.high)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ratio_interval([[1.0]]), r"log_ratios has shape \(1, 1\); expected \[question\]"),
        (lambda: mean_interval(["a"]), "values must hold numbers"),
        (lambda: mean_interval(LOGS, level=95), "level must lie between 0 and 1, not 95"),
        (lambda: bootstrap_t_interval(LOGS, draws=10), "draws must be at least 100, not 10"),
        (lambda: simultaneous_band(LOGS), r"expected \[question, position\]"),
        (lambda: simultaneous_band(np.zeros((6, 3)), seed=1.5), "seed must be an int"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
