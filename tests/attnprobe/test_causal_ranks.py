"""Rank correlation of mass and effect: planted data, closed forms, scipy, and false alarms in simulation."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr

from attnprobe.errors import InputError
from attnprobe.ranks import rank_correlation

QUESTIONS, K = 30, 6
CURVE = np.array([2.0, 0.5, -1.0, -1.2, 0.3, 1.8])


def cyclic(n_questions: int, k: int = K) -> np.ndarray:
    """int ``[Q, O, K]``: the document at each position in all rotations."""
    orders = (np.arange(k)[:, None] + np.arange(k)) % k
    return np.broadcast_to(orders, (n_questions, k, k))


def by_document(values: np.ndarray, permutations: np.ndarray) -> np.ndarray:
    """Values ``[Q, K]`` of documents, laid out by position ``[Q, O, K]``."""
    return np.take_along_axis(np.broadcast_to(values[:, None], permutations.shape), permutations, axis=2)


def test_a_shared_curve_is_no_correlation_at_one_position() -> None:
    rng = np.random.default_rng(0)
    orders = cyclic(QUESTIONS)
    mass, effect = (3 * CURVE + rng.normal(size=orders.shape) for _ in range(2))
    found = rank_correlation(mass, effect, orders)
    assert found.pooled.estimate > 0.8
    assert found.within_question.estimate > 0.8
    assert abs(found.within_position.estimate) < 0.1
    assert found.within_position.low < 0 < found.within_position.high
    assert found.p_value > 0.05
    assert found.n_cells == orders.size


def test_documents_can_agree_where_positions_do_not() -> None:
    rng = np.random.default_rng(1)
    orders = cyclic(QUESTIONS)
    documents = by_document(rng.normal(size=(QUESTIONS, K)), orders)
    mass = 3 * CURVE + documents + 0.2 * rng.normal(size=orders.shape)
    effect = -3 * CURVE + documents + 0.2 * rng.normal(size=orders.shape)
    found = rank_correlation(mass, effect, orders)
    assert found.pooled.estimate < -0.5
    assert found.within_question.estimate < -0.5
    assert found.within_position.estimate > 0.8
    assert found.within_position.low > 0.7
    assert found.p_value < 1e-6


def test_what_differs_between_questions_is_left_out_within_them() -> None:
    rng = np.random.default_rng(2)
    orders = cyclic(QUESTIONS)
    level = 20 * rng.normal(size=(QUESTIONS, 1, 1))
    found = rank_correlation(level + rng.normal(size=orders.shape), level + rng.normal(size=orders.shape), orders)
    assert found.pooled.estimate > 0.9
    assert abs(found.within_question.estimate) < 0.1
    assert abs(found.within_position.estimate) < 0.1


def test_estimates_are_scipys() -> None:
    rng = np.random.default_rng(3)
    orders = cyclic(7)
    mass = rng.normal(size=orders.shape).round(1)  # with ties
    effect = (mass + rng.normal(size=orders.shape)).round(1)
    found = rank_correlation(mass, effect, orders)
    assert found.pooled.estimate == pytest.approx(spearmanr(mass.ravel(), effect.ravel()).statistic, abs=1e-12)
    # Within strata: the correlation of ranks that are left when every stratum's mean is taken out.
    for estimate, axes in ((found.within_question.estimate, (1, 2)), (found.within_position.estimate, (1,))):
        ranks = [
            np.apply_along_axis(rankdata, 1, a.reshape(7, -1) if len(axes) == 2 else a).reshape(a.shape)
            for a in (mass, effect)
        ]
        left = [(rank - rank.mean(axis=axes, keepdims=True)).ravel() for rank in ranks]
        assert estimate == pytest.approx(np.corrcoef(*left)[0, 1], abs=1e-12)


def test_without_ties_it_is_the_mean_of_the_questions_and_its_interval_about_theirs() -> None:
    rng = np.random.default_rng(4)
    orders = cyclic(12)
    mass, shared = rng.normal(size=orders.shape), rng.normal(size=(12, K))
    mass = mass + by_document(shared, orders)
    effect = rng.normal(size=orders.shape) + by_document(shared, orders)
    found = rank_correlation(mass, effect, orders)
    own = [spearmanr(m.ravel(), e.ravel()).statistic for m, e in zip(mass, effect, strict=True)]
    assert found.within_question.estimate == pytest.approx(np.mean(own), abs=1e-12)
    assert found.within_position.estimate == pytest.approx(found.by_question.mean(), abs=1e-12)
    half = 2.200985 * np.std(own, ddof=1) / np.sqrt(12)  # t quantile of 11 degrees of freedom
    assert found.within_question.high - found.within_question.low == pytest.approx(2 * half, rel=0.05)
    assert found.within_question.low < found.within_question.estimate < found.within_question.high
    assert found.within_question.n == 12


def test_repeats_of_a_document_at_a_position_are_averaged() -> None:
    rng = np.random.default_rng(5)
    orders = cyclic(6)
    mass, effect = rng.normal(size=orders.shape), rng.normal(size=orders.shape)
    once = rank_correlation(mass, effect, orders)
    shift = 0.3 * rng.normal(size=orders.shape)  # one repeat above, one as much below
    halves = [np.concatenate([a + shift, a - shift], axis=1) for a in (mass, effect)]
    twice = rank_correlation(*halves, np.concatenate([orders, orders], axis=1))
    assert twice.n_cells == once.n_cells
    assert twice.pooled.estimate == pytest.approx(once.pooled.estimate, abs=1e-12)
    assert twice.within_position.low == pytest.approx(once.within_position.low, abs=1e-12)


def test_missing_cells_are_left_out() -> None:
    rng = np.random.default_rng(6)
    orders = cyclic(6)
    mass, effect = rng.normal(size=orders.shape), rng.normal(size=orders.shape)
    mass[0, :, 2], effect[1, 3] = np.nan, np.nan
    found = rank_correlation(mass, effect, orders)
    kept = ~(np.isnan(mass) | np.isnan(effect))
    assert found.n_cells == kept.sum() == orders.size - 2 * K
    assert found.pooled.estimate == pytest.approx(spearmanr(mass[kept], effect[kept]).statistic, abs=1e-12)


def test_no_interval_below_five_questions_or_without_differences() -> None:
    rng = np.random.default_rng(7)
    orders = cyclic(5)
    mass, effect = rng.normal(size=orders.shape), rng.normal(size=orders.shape)
    assert rank_correlation(mass, effect, orders).within_position.low is not None
    few = rank_correlation(mass[:4], effect[:4], orders[:4])
    assert few.within_position.estimate is not None
    assert few.within_position.low is few.within_position.high is few.p_value is None
    assert few.within_position.reason == "4 questions; an interval needs at least 5"
    flat = rank_correlation(np.zeros_like(mass), effect, orders)
    assert flat.pooled.estimate is None
    assert "does not differ" in str(flat.pooled.reason)
    equal = rank_correlation(mass, np.exp(mass), orders)
    assert equal.pooled.estimate == pytest.approx(1, abs=1e-12)
    assert "perfectly" in str(equal.pooled.reason)
    # One order only: nothing to compare at a position.
    single = rank_correlation(mass[:, :1], effect[:, :1], orders[:, :1])
    assert single.within_position.estimate is None
    assert single.within_question.estimate is not None
    assert json.loads(json.dumps(single.to_dict()))["by_question"] == [None] * 5


def test_wrong_input_is_named() -> None:
    orders = cyclic(5)
    values: Any = np.zeros(orders.shape)
    with pytest.raises(InputError, match=r"shapes \(5, 6, 6\), \(5, 6\) and \(5, 6, 6\)"):
        rank_correlation(values, values[:, 0], orders)
    with pytest.raises(InputError, match="infinite"):
        rank_correlation(values, values - np.inf, orders)
    with pytest.raises(InputError, match="no permutation"):
        rank_correlation(values, values, np.zeros_like(orders))
    with pytest.raises(InputError, match="level"):
        rank_correlation(values, values, orders, level=95)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(st.integers(0, 10_000))
def test_only_ranks_count(seed: int) -> None:
    rng = np.random.default_rng(seed)
    orders = cyclic(5, 4)  # each document once at each position: the mean of repeats would not be invariant
    mass, effect = rng.normal(size=orders.shape), rng.normal(size=orders.shape)
    first, second = rank_correlation(mass, effect, orders), rank_correlation(np.exp(mass), effect**3, orders)
    for name in ("pooled", "within_question", "within_position"):
        assert getattr(first, name).estimate == pytest.approx(getattr(second, name).estimate, abs=1e-12)
        assert -1 <= getattr(first, name).estimate <= 1


def test_false_alarms_are_five_percent_with_the_question_as_the_unit() -> None:
    # Documents differ in mass and in effect, independently: within a question all cells are dependent.
    rng = np.random.default_rng(8)
    orders = cyclic(8, 4)
    alarms = []
    for _ in range(250):
        parts = [by_document(rng.normal(size=(8, 4)), orders) + 0.3 * rng.normal(size=orders.shape) for _ in range(2)]
        alarms.append(rank_correlation(*parts, orders).p_value < 0.05)
    assert 0.01 <= np.mean(alarms) <= 0.09  # 5 % within three standard errors; 31 % with cells as the unit
