from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprobe.errors import InputError
from attnprobe.intervals import ratio_interval, t_bounds
from attnprobe.power import detectable_ratio, planned_questions, questions_needed, ratio_half_width


def test_half_width_is_that_of_the_ratio_interval() -> None:
    logs = np.array([0.3, 0.9, 0.5, 1.4, 0.8, 0.6])
    found = ratio_interval(logs, level=0.9)
    assert found.estimate is not None
    assert found.low is not None
    assert found.high is not None
    expected = ratio_half_width(6, found.estimate, float(logs.std(ddof=1)), level=0.9)
    assert (found.high - found.low) / 2 == pytest.approx(expected, rel=1e-12)


@given(st.floats(0.1, 20), st.floats(0.05, 5), st.floats(0.05, 1.5), st.sampled_from([None, 0.5, 0.8, 0.95]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_questions_needed_is_the_first_number_that_is_enough(
    ratio: float, half_width: float, sd: float, assurance: float | None
) -> None:
    n = questions_needed(ratio, half_width, sd, assurance=assurance)
    assert n >= 5
    assert ratio_half_width(n, ratio, sd, assurance=assurance) <= half_width
    assert n == 5 or ratio_half_width(n - 1, ratio, sd, assurance=assurance) > half_width


def test_known_numbers() -> None:
    # Large n: (1.96 * 0.35 / 0.01)^2 questions for 1 % either side of 1.
    assert questions_needed(1, 0.01) == pytest.approx((1.959964 * 0.35 / 0.01) ** 2, rel=1e-3)
    assert questions_needed(2, 0.5) == 11  # t(10) = 2.2281: 2 sinh(2.2281 * 0.35 / sqrt(11)) = 0.475; 10: 0.507
    assert questions_needed(3, 3) == 5


@pytest.mark.parametrize(("sd", "ratio", "half_width"), [(0.35, 2.0, 0.5), (0.6, 3.5, 1.0)])
def test_assurance_in_simulation(sd: float, ratio: float, half_width: float) -> None:
    n = questions_needed(ratio, half_width, sd, assurance=0.8)

    def kept_within(n: int) -> float:
        logs = sd * np.random.default_rng(n).normal(size=(20_000, n))
        _, low, high = t_bounds(logs, 0.95)
        return float((ratio * np.sinh((high - low) / 2) <= half_width).mean())

    error = 4 * math.sqrt(0.16 / 20_000)
    assert kept_within(n) > 0.8 - error
    assert kept_within(n - 1) < 0.8 + error


@pytest.mark.parametrize("half_width", [0.5, 3.0, 99.0])
def test_the_planned_interval_is_one_of_the_ratio_interval(half_width: float) -> None:
    low, high = planned_questions(2.0, half_width).interval
    assert 0 < low < 2 < high
    assert (high - low) / 2 == pytest.approx(half_width)
    assert math.sqrt(low * high) == pytest.approx(2.0)  # ratio * exp(+-h)


@pytest.mark.parametrize("n", [5, 12, 24])
def test_detectable_ratio_in_simulation(n: int) -> None:
    ratio = detectable_ratio(n, 0.4, power=0.7)
    logs = math.log(ratio) + 0.4 * np.random.default_rng(n).normal(size=(20_000, n))
    _, low, high = t_bounds(logs, 0.95)
    assert ((low > 0) | (high < 0)).mean() == pytest.approx(0.7, abs=4 * math.sqrt(0.21 / 20_000))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: questions_needed(0, 1), "ratio must be a finite number above 0, not 0"),
        (lambda: questions_needed(2, -1), "half_width must be a finite number above 0"),
        (lambda: questions_needed(2, 1, sd_log=math.nan), "sd_log must be a finite number above 0"),
        (lambda: questions_needed(2, 1, level=1), "level must lie between 0 and 1"),
        (lambda: questions_needed(2, 1, assurance=80), "assurance must lie between 0 and 1"),
        (lambda: questions_needed(2, 1e-9), "needs more than 10,000,000 questions"),
        (lambda: detectable_ratio(4), "n must be at least 5"),
        (lambda: detectable_ratio(8, power=0.01), "power=0.01 must be above 0.05"),
    ],
)
def test_wrong_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
