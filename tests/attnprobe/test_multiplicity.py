from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from attnprobe.errors import InputError
from attnprobe.multiplicity import adjust_p_values, sign_flip_max_t


def test_adjusted_p_values_by_hand() -> None:
    p = np.array([[0.01, 0.04], [0.03, 0.5]])
    assert adjust_p_values(p) == pytest.approx(np.array([[0.04, 0.09], [0.09, 0.5]]))
    # 4/1 * 0.01, min(4/2 * 0.03, 4/3 * 0.04), 4/3 * 0.04, 0.5
    assert adjust_p_values(p, "benjamini-hochberg") == pytest.approx(
        np.array([[0.04, 4 / 3 * 0.04], [4 / 3 * 0.04, 0.5]])
    )
    assert adjust_p_values([0.2]) == pytest.approx([0.2])


def by_hand(values: np.ndarray) -> np.ndarray:
    """Step-down max-T over all 2^n flips, with t values written out."""
    n, heads = values.shape

    def t(x: np.ndarray) -> np.ndarray:
        return np.abs(x.mean(0)) / (x.std(0, ddof=1) / np.sqrt(n))

    observed = t(values)
    order = np.argsort(-observed)
    flips = np.array([t(values * np.array(signs)[:, None]) for signs in product([1, -1], repeat=n)])
    adjusted, largest = np.empty(heads), 0.0
    for rank, head in enumerate(order):
        p = (flips[:, order[rank:]].max(axis=1) >= observed[head] * (1 - 1e-9)).mean()
        largest = max(largest, p)
        adjusted[head] = largest
    return adjusted


@pytest.mark.parametrize("n", [6, 8])
def test_step_down_by_enumeration(n: int) -> None:
    rng = np.random.default_rng(n)
    values = rng.normal(size=(n, 5)) + rng.normal(size=(n, 1)) + np.array([2, 0, 0.7, -1.5, 0])
    assert sign_flip_max_t(values) == pytest.approx(by_hand(values), abs=1e-12)


def test_one_head_is_the_plain_test_and_scale_does_not_matter() -> None:
    values = np.random.default_rng(1).normal(size=(8, 4)) + 0.5
    alone = [float(sign_flip_max_t(values[:, [head]])[0]) for head in range(4)]
    together = sign_flip_max_t(values)
    assert (together >= np.array(alone) - 1e-12).all()
    assert np.array_equal(sign_flip_max_t(values * np.array([1, 1e3, 1e-3, 7])), together)


def test_a_strong_head_is_found_among_many_and_zeros_are_not() -> None:
    rng = np.random.default_rng(2)
    values = rng.normal(size=(20, 300))
    values[:, 17] += 3
    values[:, 5] = 0
    p = sign_flip_max_t(values, draws=1999)
    assert p[17] == 1 / 2000
    assert p[5] == 1
    assert (p < 0.05).sum() == 1
    assert np.array_equal(p, sign_flip_max_t(values, draws=1999))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: adjust_p_values([0.1], "bonferroni"), "method 'bonferroni' is unknown"),
        (lambda: adjust_p_values([0.1, float("nan")]), "numbers between 0 and 1"),
        (lambda: adjust_p_values([]), "at least one"),
        (lambda: sign_flip_max_t(np.zeros((5, 2))), "values has 5 questions; the test needs at least 6"),
        (lambda: sign_flip_max_t(np.zeros(6)), r"expected \[question, head\]"),
        (lambda: sign_flip_max_t(np.diag([1, 1, 1, np.nan, 1, 1])), "values of head 3 are not all finite"),
    ],
)
def test_wrong_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
