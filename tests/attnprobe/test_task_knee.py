"""Knees: planted lengths, censoring, power, and that a knee is rarely put too far."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from task_outcomes import answered, sweep

from attnprobe.errors import InputError
from attnprobe.tasks.knee import Knees, find_knees
from attnprobe.tasks.outcome import Outcome

LENGTHS = (1000, 2000, 4000, 8000)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


def matrix(rng: np.random.Generator, items: int, log_odds: Any, trials: int = 1) -> list[Outcome]:
    """Outcomes by length and depth; log odds [length, depth]."""
    values = answered(rng, items, np.ravel(log_odds), spread=0.5, trials=trials).reshape(items, len(LENGTHS), 5, trials)
    return [one for k, length in enumerate(LENGTHS) for one in sweep(values[:, k], "depth", DEPTHS, length=length)]


def planted(rng: np.random.Generator, items: int, *, good: float = 4.0, from_length: int) -> Knees:
    """The middle depths are lost from a length on; the ends never are."""
    log_odds = np.full((4, 5), good)
    log_odds[from_length:, 1:4] = -1.0
    return find_knees(matrix(rng, items, log_odds))


def test_a_planted_knee_is_found_by_both() -> None:
    knees = planted(np.random.default_rng(0), 40, from_length=2)
    for knee in (knees.length, knees.position):
        assert (knee.length, knee.before, knee.shown_to_fail, knee.censored) == (2000, 4000, 4000, None)
        assert [step.state for step in knee.steps][-3:] == ["holds", "fails", "fails"]
    assert [step.length for step in knees.length.steps] == [2000, 4000, 8000]
    assert [step.length for step in knees.position.steps] == [1000, 2000, 4000, 8000]
    # All comparisons of a knee hold at once.
    assert {step.comparison.level for step in knees.length.steps} == {1 - (1 - 0.95) / 3}
    assert {step.comparison.level for step in knees.position.steps} == {1 - (1 - 0.95) / 4}
    assert json.loads(json.dumps(knees.to_dict(), allow_nan=False))["length"]["length"] == 2000


def test_a_knee_that_is_never_reached_is_censored_above() -> None:
    knee = planted(np.random.default_rng(1), 40, from_length=4).length
    assert (knee.length, knee.before, knee.censored, knee.shown_to_fail) == (8000, None, "above", None)
    assert ">= 8000" in repr(knee)


def test_a_knee_before_the_second_length_is_censored_below() -> None:
    knee = planted(np.random.default_rng(2), 40, from_length=1).length
    assert (knee.length, knee.before, knee.censored, knee.shown_to_fail) == (None, 2000, "below", 2000)
    assert knee.warnings == ("1000 is what the others are compared with: whether it is reliable is not tested",)


def test_lengths_after_the_first_gap_do_not_count() -> None:
    log_odds = np.full((4, 5), 4.0)
    log_odds[2] = -1.0
    knee = find_knees(matrix(np.random.default_rng(3), 40, log_odds)).length
    assert [step.state for step in knee.steps] == ["holds", "fails", "holds"]
    assert knee.length == 2000


def test_the_whole_matrix_can_sink_without_a_position_knee() -> None:
    log_odds = np.full((4, 5), 4.0)
    log_odds[2:] = 0.0
    knees = find_knees(matrix(np.random.default_rng(4), 60, log_odds))
    assert knees.length.length == 2000
    assert knees.position.shown_to_fail is None


def test_few_items_are_unclear_not_failing() -> None:
    knees = planted(np.random.default_rng(5), 5, good=3.0, from_length=4)
    assert knees.length.shown_to_fail is None
    assert knees.length.steps[0].state == "unclear"
    none = planted(np.random.default_rng(6), 4, from_length=2)
    assert none.length.length is none.length.censored is none.position.length is None
    assert none.length.warnings == ("not determined: 4 items; an interval needs at least 5",)


def test_a_middle_beyond_the_model_has_no_knee() -> None:
    knees = find_knees(matrix(np.random.default_rng(7), 20, np.full((4, 5), -30.0)))
    for knee in (knees.length, knees.position):
        assert knee.length is knee.censored is None
        assert "both accuracies are 0" in knee.warnings[-1]
    log_odds = np.full((4, 5), 4.0)
    log_odds[0] = -30.0
    knee = find_knees(matrix(np.random.default_rng(8), 20, log_odds)).length
    assert "nothing is answered at 1000" in knee.warnings[-1]
    json.dumps(knee.to_dict(), allow_nan=False)


def test_nats_are_differences_from_the_shortest_length_within_items() -> None:
    rng = np.random.default_rng(9)
    level = -20 * rng.random((12, 1))  # items differ by far more than the lengths
    logprob = level - np.array([1.0, 1.1, 1.2, 2.5]) + 0.1 * rng.normal(size=(12, 4))
    outcomes = sweep(np.minimum(logprob, 0), "length", LENGTHS, "logprob")
    knees = find_knees(outcomes, "logprob", depth_axis=None)
    assert (knees.length.length, knees.length.before, knees.length.least) == (4000, 8000, -math.log(2))
    assert knees.length.steps[2].comparison.estimate == pytest.approx((logprob[:, 3] - logprob[:, 0]).mean())
    assert knees.position is None
    assert find_knees(outcomes, "logprob", depth_axis=None, nats=3.0).length.censored == "above"
    assert find_knees(outcomes, "logprob", depth_axis=None, nats=0.05).length.censored == "below"


def test_a_knee_is_rarely_put_too_far() -> None:
    """Accuracies by length of 0.98, 0.98, 0.86 (88 % of it), 0.5: the knee is 2000, and 4000 or more is an error."""
    rng = np.random.default_rng(10)
    log_odds = np.log([0.98 / 0.02, 0.98 / 0.02, 0.86 / 0.14, 1.0])
    too_far = []
    for _ in range(250):
        values = answered(rng, 30, log_odds, spread=0.0, trials=2)
        knee = find_knees(sweep(values, "length", LENGTHS), depth_axis=None).length
        too_far.append((knee.length or 0) > 2000)
    assert np.mean(too_far) <= 0.05


def test_depths_without_both_ends_have_no_position_knee_and_it_is_said() -> None:
    log_odds = np.full((4, 5), 4.0)
    log_odds[2:, 1:] = -1.0
    outcomes = [one for one in matrix(np.random.default_rng(12), 40, log_odds) if one.condition["depth"] > 0.2]
    knees = find_knees(outcomes)
    assert knees.position is None
    assert knees.length.length == 2000
    assert "all depths count as the middle: the depths that were tested go from 0.25 to 1" in knees.length.warnings[0]


def test_a_knee_compares_the_same_trials_of_an_item() -> None:
    """Trials differ by far more than the lengths; half of the items lack the bad one at the longest."""
    outcomes = [
        Outcome(f"item {i}", t, {"length": length}, logprob=-1.0 - 9.0 * t - 0.01 * (i % 3))
        for i in range(12)
        for t in range(2)
        for length in LENGTHS
        if not (i < 6 and t == 1 and length == 8000)
    ]
    steps = find_knees(outcomes, "logprob", depth_axis=None).length.steps
    assert [step.comparison.estimate for step in steps] == pytest.approx([0, 0, 0], abs=1e-12)


def test_wrong_input_is_named() -> None:
    outcomes = matrix(np.random.default_rng(11), 6, np.full((4, 5), 2.0))
    bad: list[tuple[list[Outcome], dict[str, Any], str]] = [
        (outcomes, {"metric": "mass"}, "metric 'mass' has no knee"),
        (outcomes, {"least_ratio": 1.2}, "least_ratio must lie between 0 and 1"),
        (outcomes, {"depth_axis": None}, "differ in 'depth'"),
        (outcomes, {"where": {"length": 1000}}, "a knee needs two or more"),
        (
            [one for one in outcomes if one.condition != {"depth": 0.5, "length": 4000}],
            {},
            "length=4000 has the depths",
        ),
    ]
    for given, arguments, message in bad:
        with pytest.raises(InputError, match=message):
            find_knees(given, **arguments)
