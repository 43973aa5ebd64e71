"""Intervals of accuracies over items: statsmodels, scipy, closed forms and coverage in simulation."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.proportion import proportion_confint
from task_outcomes import answered

from attnprobe.errors import InputError
from attnprobe.tasks.item_intervals import clustered_interval, item_mean, ratio_of_accuracies, wilson_interval


def bounds(interval: Any) -> tuple[float, float]:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


def test_wilson_by_hand() -> None:
    z = 1.959963984540054
    low, high = bounds(wilson_interval(8, 10, 10))
    # The bounds solve (0.8 - x)^2 = z^2 x (1 - x) / 10.
    for x in (low, high):
        assert (0.8 - x) ** 2 == pytest.approx(z**2 * x * (1 - x) / 10, rel=1e-9)
    assert wilson_interval(0, 10, 10).low == 0
    few = wilson_interval(40, 50, 1)
    assert (few.estimate, few.low, few.reason) == (0.8, None, "1 item; an interval needs at least 5")
    assert wilson_interval(0, 0, 0).estimate is None


def test_clustered_interval_is_wilsons_at_the_effective_trials() -> None:
    values = np.array([0.2, 0.8, 1.0, 0.4, 0.6, 0.0, 1.0, 0.8])
    p, error = values.mean(), values.std(ddof=1) / math.sqrt(8)
    worth = p * (1 - p) / error**2
    assert worth < 40
    alpha = 2 * stats.norm.sf(stats.t.isf(0.025, 7))  # Student's quantile in the place of the normal one
    expected = proportion_confint(p * worth, worth, alpha=alpha, method="wilson")
    assert bounds(clustered_interval(values, 40)) == pytest.approx(expected, rel=1e-9)
    # Shuffles that all agree are worth one trial an item; without any spread between items, all count.
    certain = proportion_confint(8, 8, alpha=alpha, method="wilson")
    assert bounds(clustered_interval(np.ones(8), 400)) == pytest.approx((certain[0], 1))
    alike = proportion_confint(20, 40, alpha=alpha, method="wilson")
    assert bounds(clustered_interval(np.full(8, 0.5), 40)) == pytest.approx(alike, rel=1e-9)


def test_shuffles_are_one_cluster() -> None:
    """With 8 shuffles of items that differ, the plain Wilson interval covers far too rarely, the clustered one does."""
    rng = np.random.default_rng(0)
    truth = answered(rng, 100_000, [0.8], spread=2.0).mean()
    plain, clustered = [], []
    for _ in range(600):
        hits = answered(rng, 12, [0.8], spread=2.0, trials=8)[:, 0]
        low, high = bounds(wilson_interval(int(hits.sum()), 96, 12))
        plain.append(low <= truth <= high)
        low, high = bounds(clustered_interval(hits.mean(axis=1), 96))
        clustered.append(low <= truth <= high)
    assert np.mean(plain) < 0.75
    assert 0.93 <= np.mean(clustered) <= 0.985


@pytest.mark.parametrize(("log_odds", "items"), [([1.5, 0.0], 10), ([1.5, 1.5], 24), ([-1.0, -1.0], 24)])
def test_ratio_covers(log_odds: list[float], items: int) -> None:
    rng = np.random.default_rng(items)
    means = answered(rng, 200_000, log_odds).mean(axis=(0, 2))
    truth = means[0] / means[1]
    inside = []
    for _ in range(500):
        pair = answered(rng, items, log_odds, trials=3).mean(axis=2)
        if pair.any():
            low, high = bounds(ratio_of_accuracies(pair[:, 0], pair[:, 1], (3 * items, 3 * items)))
            inside.append(low <= truth <= high)
    assert 0.925 <= np.mean(inside) <= 0.99


def test_ratio_keeps_the_pairs_and_has_an_inverse() -> None:
    rng = np.random.default_rng(5)
    first = rng.integers(1, 10, 20) / 10
    second = np.clip(first + rng.choice([-0.1, 0.0, 0.1], 20), 0, 1)
    paired = bounds(ratio_of_accuracies(first, second, (200, 200)))
    broken = bounds(ratio_of_accuracies(first, rng.permutation(second), (200, 200)))
    assert paired[1] - paired[0] < 0.5 * (broken[1] - broken[0])
    inverse = bounds(ratio_of_accuracies(second, first, (200, 200)))
    assert inverse == pytest.approx((1 / paired[1], 1 / paired[0]), rel=1e-9)


def test_a_denominator_of_zero_is_infinite_with_a_bound() -> None:
    ends = np.array([1, 1, 1, 0, 1, 1, 0, 1, 1, 1.0])
    found = ratio_of_accuracies(ends, np.zeros(10), (10, 10))
    assert found.estimate == math.inf
    assert 1 < found.low < 10
    assert found.high == math.inf
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["estimate"] == "inf"
    both = ratio_of_accuracies(np.zeros(10), np.zeros(10), (10, 10))
    assert (both.estimate, both.low) == (None, None)
    none = ratio_of_accuracies(np.zeros(10), ends, (10, 10))
    assert (none.estimate, none.low) == (0, 0)
    assert 0 < none.high < 1
    assert ratio_of_accuracies(ends[:4], ends[:4], (4, 4)).reason == "4 items; an interval needs at least 5"


def test_item_mean_is_students_t_and_equal_items_prove_nothing() -> None:
    values = np.array([0.5, -0.5, 1.0, 0.0, 0.5, 0.0])
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert bounds(item_mean(values, 0.9, span=2.0)) == pytest.approx(tuple(expected))
    # All six alike: a part q of other items goes unseen with (1 - q)^6.
    equal = item_mean(np.zeros(6), span=2.0)
    q = equal.high / 2
    assert (1 - q) ** 6 == pytest.approx(0.025)
    assert equal.low == -equal.high
    assert "no two items differ" in equal.method
    assert item_mean([1.0, math.nan, 0.0, 1.0, 0.0, 1.0], span=1.0).reason == "1 of 6 items left out: no value there"
    assert item_mean([1.0, 0.0]).reason == "2 items; an interval needs at least 5"
    with pytest.raises(InputError, match="level"):
        item_mean([1.0, 0.0], level=95)
