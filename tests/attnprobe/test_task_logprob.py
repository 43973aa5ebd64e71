from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats
from task_outcomes import sweep

from attnprobe.errors import InputError
from attnprobe.tasks.logprob import logprob_by_position
from attnprobe.tasks.outcome import Outcome

CURVE = np.array([0.0, -1.0, -2.0, -1.0, -0.5])


def test_items_levels_are_taken_out_of_the_curve_and_its_band() -> None:
    rng = np.random.default_rng(0)
    level = -3 - 30 * rng.random((14, 1))  # answers of one token and of twenty
    values = level + CURVE + 0.2 * rng.normal(size=(14, 5))
    found = logprob_by_position(sweep(values, "position", range(5), "logprob"))
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
    found = logprob_by_position(outcomes, "margin")
    assert found.band.estimate == pytest.approx([2.0, 2.1, 2.2])
    assert found.head_minus_middle.interval.estimate == pytest.approx(-0.1)
    with pytest.raises(InputError, match="no outcome has margin"):
        logprob_by_position(sweep(gold, "position", range(3), "logprob"), "margin")


def test_few_items_and_missing_ones() -> None:
    values = -np.random.default_rng(2).random((6, 3)) - 1
    values[0, 1] = np.nan
    found = logprob_by_position(sweep(values, "position", range(3), "logprob"))
    assert (found.n, found.warnings) == (5, ("1 of 6 items left out: no value there",))
    assert found.band.low is not None
    assert found.head_minus_middle.interval.low is not None
    assert found.head_minus_middle.p is None
    few = logprob_by_position(sweep(values[1:5], "position", range(3), "logprob"))
    assert few.band.low is few.head_minus_middle.interval.low is None
    two = logprob_by_position(sweep(values[1:, :2], "position", range(2), "logprob"))
    assert two.head_minus_middle is two.tail_minus_middle is None
    with pytest.raises(InputError, match="metric 'strict' is not in nats"):
        logprob_by_position([], "strict")
