from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats
from task_outcomes import sweep

from attnprobe.errors import InputError
from attnprobe.tasks.outcome import Outcome
from attnprobe.tasks.position_means import means_by_position

CURVE = np.array([0.0, -1.0, -2.0, -1.0, -0.5])


def test_items_levels_are_taken_out_of_the_curve_and_its_band() -> None:
    rng = np.random.default_rng(0)
    level = -3 - 30 * rng.random((14, 1))  # answers of one token and of twenty
    values = level + CURVE + 0.2 * rng.normal(size=(14, 5))
    found = means_by_position(sweep(values, "position", range(5), "logprob"))
    within = values - values.mean(axis=1, keepdims=True)
    assert found.band.estimate == pytest.approx(within.mean(axis=0))
    assert (found.band.low <= CURVE - CURVE.mean()).all()
    assert (found.band.high >= CURVE - CURVE.mean()).all()
    assert (found.band.high - found.band.low < 1).all()
    for end, contrast in ((0, found.head_minus_middle), (4, found.tail_minus_middle)):
        differences = values[:, end] - values[:, 1:4].mean(axis=1)
        expected = stats.ttest_1samp(differences, 0).confidence_interval()
        assert (contrast.interval.low, contrast.interval.high) == pytest.approx(tuple(expected))
        assert contrast.p < 0.01
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["n"] == 14


def test_the_margin_keeps_its_level() -> None:
    rng = np.random.default_rng(1)
    gold = -3 - 30 * rng.random((8, 1)) - rng.random((8, 3))
    outcomes = [
        Outcome(f"item {i}", 0, {"position": k}, logprob=float(gold[i, k]), foil_logprob=float(gold[i, k] - 2 - k / 10))
        for i in range(8)
        for k in range(3)
    ]
    found = means_by_position(outcomes, "margin")
    assert found.band.estimate == pytest.approx([2.0, 2.1, 2.2])
    assert found.head_minus_middle.interval.estimate == pytest.approx(-0.1)
    with pytest.raises(InputError, match="no outcome has margin"):
        means_by_position(sweep(gold, "position", range(3), "logprob"), "margin")


def test_few_items_and_missing_ones() -> None:
    values = -np.random.default_rng(2).random((6, 3)) - 1
    values[0, 1] = np.nan
    found = means_by_position(sweep(values, "position", range(3), "logprob"))
    assert (found.n, found.warnings) == (5, ("1 of 6 items left out: no value there",))
    assert found.band.low is not None
    assert found.head_minus_middle.interval.low is not None
    assert found.head_minus_middle.p is None
    few = means_by_position(sweep(values[1:5], "position", range(3), "logprob"))
    assert few.band.low is few.head_minus_middle.interval.low is None
    two = means_by_position(sweep(values[1:, :2], "position", range(2), "logprob"))
    assert two.head_minus_middle is two.tail_minus_middle is None
    with pytest.raises(InputError, match="metric 'strict' has no mean here"):
        means_by_position([], "strict")


@pytest.mark.parametrize("metric", ["mass", "advantage"])
def test_attention_keeps_its_level_and_its_band_is_that_of_the_shape(metric: str) -> None:
    rng = np.random.default_rng(3)
    shape = np.array([0.1, 0.0, 0.0, 0.0, 0.05])
    values = 0.1 + 0.5 * rng.random((10, 1)) + shape + 0.001 * rng.normal(size=(10, 5))
    found = means_by_position(sweep(values, "position", range(5), metric), metric)
    assert found.band.estimate == pytest.approx(values.mean(axis=0))
    assert (found.band.high - found.band.low < 0.01).all()  # the spread of items' levels, 0.14, is not in it
    assert found.head_minus_middle.interval.estimate == pytest.approx((values[:, 0] - values[:, 1:4].mean(1)).mean())
    assert found.tail_minus_middle.p < 0.01
