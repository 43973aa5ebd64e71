from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from attnprobe.errors import InputError
from attnprobe.flatness import VERDICTS, end_state, flatness_test, verdict
from attnprobe.intervals import Interval, ratio_interval

U = np.array([1.0, 0.2, 0.0, -0.5, 0.0, 0.3, 0.9])


def exact_p(profiles: np.ndarray) -> float:
    """All 2^n flips, written out."""
    x = profiles - profiles.mean(axis=1, keepdims=True)
    observed = (x.mean(axis=0) ** 2).sum()
    reached = 0
    for signs in product([1, -1], repeat=len(x)):
        flipped = sum(sign * row for sign, row in zip(signs, x, strict=True)) / len(x)
        reached += (flipped**2).sum() >= observed - 1e-12
    return reached / 2 ** len(x)


@pytest.mark.parametrize("n", [6, 7, 9])
@pytest.mark.parametrize("size", [0.0, 0.4, 3.0])
def test_p_by_enumeration(n: int, size: float) -> None:
    profiles = np.random.default_rng(n).normal(size=(n, 7)) + size * U
    found = flatness_test(profiles)
    assert found.p == pytest.approx(exact_p(profiles), abs=1e-12)
    assert found.statistic == pytest.approx(((profiles.mean(0) - profiles.mean()) ** 2).mean())
    assert (found.n, found.reason) == (n, None)
    if size == 3:
        assert found.p == 2 / 2**n


def test_random_flips_agree_with_all_flips_and_count_the_data() -> None:
    rng = np.random.default_rng(1)
    profiles = rng.normal(size=(15, 4)) + 0.25 * np.array([1, 0, 0, 0])
    drawn = flatness_test(profiles, seed=2, draws=19_999).p
    assert drawn is not None
    expected = exact_p(profiles)
    assert drawn == pytest.approx(expected, abs=4 * math.sqrt(expected / 19_999))
    assert flatness_test(profiles, seed=2, draws=999) == flatness_test(profiles, seed=2, draws=999)
    assert flatness_test(profiles + 100 * np.array([1, 0, 0, 0]), draws=999).p == 1 / 1000


def test_levels_do_not_matter_and_equal_profiles_are_flat() -> None:
    profiles = np.random.default_rng(3).normal(size=(8, 5))
    assert flatness_test(profiles + np.arange(8)[:, None]).p == flatness_test(profiles).p
    assert flatness_test(np.full((6, 4), 0.1)).p == 1


def test_question_specific_slopes_are_no_evidence() -> None:
    """Permuting positions within questions would reject: the slopes are large, and only their mean is 0."""
    slopes = np.array([3, -3, 2, -2, 1, -1, 2.5, -2.5])[:, None]
    profiles = slopes * np.linspace(-1, 1, 6)
    p = flatness_test(profiles + 0.01 * np.random.default_rng(0).normal(size=profiles.shape)).p
    assert p is not None
    assert p > 0.9


def test_too_few_or_undefined() -> None:
    profiles = np.random.default_rng(5).normal(size=(7, 4))
    profiles[0, 0], profiles[1, 1] = math.nan, -math.inf
    found = flatness_test(profiles)
    assert found.p is None
    assert (
        found.reason == "5 questions; the test needs at least 6; 2 of 7 questions left out: undefined or infinite there"
    )
    assert flatness_test(np.empty((0, 4))).statistic is None
    one_left_out = flatness_test(np.vstack([profiles, np.random.default_rng(6).normal(size=(3, 4))]))
    assert (one_left_out.n, one_left_out.reason) == (8, "2 of 10 questions left out: undefined or infinite there")
    assert one_left_out.p is not None
    with pytest.raises(InputError, match="two positions or more"):
        flatness_test(np.zeros((6, 1)))
    with pytest.raises(InputError, match="draws must be at least 99"):
        flatness_test(profiles, draws=9)


ENDS = {"even": (0.9, 1.2), "raised": (1.1, 1.6), "lowered": (0.5, 0.9), "unclear": (0.7, 1.3)}
TABLE = {
    ("even", "even"): "flat",
    ("raised", "raised"): "U",
    ("raised", "even"): "head",
    ("raised", "lowered"): "head",
    ("even", "raised"): "tail",
    ("lowered", "raised"): "tail",
    ("lowered", "lowered"): "inverted",
    ("lowered", "even"): "weak head",
    ("even", "lowered"): "weak tail",
    ("raised", "unclear"): "head or U",
    ("unclear", "raised"): "tail or U",
    ("even", "unclear"): "inconclusive",
    ("unclear", "even"): "inconclusive",
    ("unclear", "unclear"): "inconclusive",
    ("lowered", "unclear"): "inconclusive",
    ("unclear", "lowered"): "inconclusive",
}


def ratio(low: float | None, high: float | None, estimate: float | None = 1.0) -> Interval:
    return Interval(estimate, low, high, 0.95, 8, "")


@pytest.mark.parametrize("ends", list(product(ENDS, ENDS)))
def test_verdict_of_every_pair_of_ends(ends: tuple[str, str]) -> None:
    found = verdict(ratio(*ENDS[ends[0]]), ratio(*ENDS[ends[1]]))
    assert found == TABLE[ends]
    assert found in VERDICTS
    assert f"``{found}``" in (verdict.__doc__ or "")


def test_flat_needs_equivalence() -> None:
    """A wide interval around 1 is no evidence of flatness, and bounds are inside up to equality."""
    assert verdict(ratio(0.8, 1.25), ratio(0.8, 1.25)) == "flat"
    assert verdict(ratio(0.79, 1.25), ratio(0.8, 1.25)) == "inconclusive"
    assert verdict(ratio(0.8, 1.26), ratio(0.8, 1.25)) == "inconclusive"
    assert verdict(ratio(1.05, 1.2), ratio(1.05, 1.2)) == "flat"
    assert verdict(ratio(1.05, 1.2), ratio(1.05, 1.2), bounds=(0.95, 1.1)) == "U"
    assert verdict(ratio(2.0, math.inf, math.inf), ratio(1.5, 2)) == "U"


@pytest.mark.parametrize(
    ("low", "high", "state"),
    [
        (1.1, 1.6, "raised"),
        (1.02, 1.28, "raised"),
        (1.04, 1.2, "even (slightly above 1)"),
        (0.85, 0.97, "even (slightly below 1)"),
        (0.9, 1.2, "even"),
        (1 + 1e-7, 1 + 2e-7, "even"),  # what float32 leaves of no difference
        (0.5, 0.9, "lowered"),
        (0.7, 1.3, "unclear"),
        (None, None, None),
    ],
)
def test_the_state_of_an_end(low: float | None, high: float | None, state: str | None) -> None:
    assert end_state(ratio(low, high)) == state
    assert end_state(None) is None


@pytest.mark.parametrize(("n", "draws", "smallest"), [(6, 999, 2 / 2**6), (9, 999, 2 / 2**9), (16, 999, 1 / 1000)])
def test_a_certain_effect_reaches_the_smallest_p(n: int, draws: int, smallest: float) -> None:
    profiles = np.random.default_rng(1).normal(0, 1e-3, (n, 4)) + np.array([3.0, 1, 1, 1])
    found = flatness_test(profiles, draws=draws)
    assert found.p == found.smallest_p == smallest
    assert flatness_test(profiles[:5]).smallest_p is None


def test_verdict_without_intervals() -> None:
    few = ratio_interval([1.0, 2.0])
    assert verdict(few, ratio(0.9, 1.1)) == verdict(ratio(0.9, 1.1), few) == "too few questions"
    undefined = ratio_interval([math.nan] * 9)
    assert verdict(undefined, few) == verdict(few, undefined) == "undefined"
    assert {"too few questions", "undefined"} <= set(VERDICTS)
    for bounds in ((1.1, 1.25), (0.8, 0.9), (0.8,), (0, 1.25), (0.8, math.inf)):
        with pytest.raises(InputError, match="bounds must be two numbers"):
            verdict(few, few, bounds)
