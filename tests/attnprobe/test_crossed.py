"""Intervals over values that share texts and items, against statsmodels and by their coverage."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attnprobe.crossed import crossed_interval
from attnprobe.errors import InputError
from attnprobe.intervals import mean_interval


@given(st.integers(0, 10_000), st.integers(5, 9), st.integers(2, 6), st.integers(6, 13))
def test_equals_statsmodels_where_its_variance_is_the_largest(seed: int, n_texts: int, n_depths: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    items = np.stack([rng.permutation(n)[:n_depths] for _ in range(n_texts)])
    used, number = np.unique(items, return_inverse=True)
    if len(used) < 5:
        return
    number = number.reshape(items.shape)
    values = 1 + rng.normal(size=(n_texts, 1)) + rng.normal(size=n)[items] + 0.3 * rng.normal(size=items.shape)
    texts = np.repeat(np.arange(n_texts), n_depths)
    found = crossed_interval(values.ravel(), texts.tolist(), number.ravel().tolist(), level=0.9)

    def variance(groups: np.ndarray) -> float:
        fit = sm.OLS(values.ravel(), np.ones(values.size)).fit(cov_type="cluster", cov_kwds={"groups": groups})
        return float(fit.bse[0] ** 2)

    both = variance(np.stack([texts, number.ravel()], axis=1))
    error = np.sqrt(max(both, variance(texts), variance(number.ravel())))
    half = stats.t.isf(0.05, min(n_texts, len(used)) - 1) * error
    assert found.n == min(n_texts, len(used))
    assert found.estimate == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((values.mean() - half, values.mean() + half))


def test_clusters_of_one_value_each_give_the_t_interval() -> None:
    values = np.random.default_rng(0).normal(size=8)
    found, t = crossed_interval(values, range(8), [f"i{n}" for n in range(8)]), mean_interval(values)
    assert (found.estimate, found.low, found.high, found.n) == pytest.approx((t.estimate, t.low, t.high, t.n))
    same = crossed_interval([2.0] * 10, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4], [0, 1, 2, 3, 4] * 2)
    assert (same.low, same.high) == (2.0, 2.0)


def test_what_is_missing_or_too_little_is_said() -> None:
    values = np.array([np.nan, *range(9)], dtype=np.float64)
    texts, items = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4], list("abcdefghij")
    found = crossed_interval(values, texts, items)
    assert (found.estimate, found.n, found.reason) == (4.0, 5, "1 of 10 values left out: undefined there")
    assert found.low is not None
    few = crossed_interval(values, [0] * 5 + [1] * 5, items)
    assert (few.estimate, few.low, few.n) == (4.0, None, 2)
    assert few.reason == "2 texts; an interval needs at least 5; 1 of 10 values left out: undefined there"
    assert str(crossed_interval(values[1:], texts[1:], ["a"] * 9).reason).startswith("1 item; an interval needs")
    infinite = crossed_interval([*values[:-1], -np.inf], texts, items)
    assert (infinite.low, infinite.reason) == (
        None, "1 of 9 values infinite, so there is no mean; 1 of 10 values left out: undefined there",
    )  # fmt: skip
    nothing = crossed_interval([np.nan], ["t"], ["i"])
    assert (nothing.estimate, nothing.low, nothing.n) == (None, None, 0)
    with pytest.raises(InputError, match="9 items for 10 values"):
        crossed_interval(values, texts, items[:9])
    with pytest.raises(InputError, match="level"):
        crossed_interval(values, texts, items, level=95)
