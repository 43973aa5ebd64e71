"""Choosing heads: nothing leaks from the held-out half, chance finds are rare, true heads are found."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

import attnprobe as ap
from attnprobe.heads import HeadScores
from attnprobe.heads_selection import select


def scores_of(retrieval: np.ndarray, **others: np.ndarray) -> HeadScores:
    """Scores [question, layer, head] of a model that never was, whose layers are 2, 3, ..."""
    n_questions, n_layers, _ = retrieval.shape
    names = ("in_needle", "advantage", "sink", "locality", "distance")
    recalled = np.isfinite(retrieval).any(axis=(1, 2)).astype(int)
    return HeadScores(
        retrieval=retrieval,
        **{name: others.get(name, np.zeros(retrieval.shape)) for name in names},
        questions=tuple(f"q{i}" for i in range(n_questions)),
        layers=tuple(range(2, 2 + n_layers)),
        n_orders=np.ones(n_questions, dtype=int),
        n_recalled=recalled,
    )


def null_scores(rng: np.random.Generator, n_questions: int, n_layers: int = 4, n_heads: int = 8) -> np.ndarray:
    """Scores as sparse and skewed as real ones, in which it does not matter which head it is."""
    level = rng.exponential(1, (n_questions, 1, 1))
    shape = (n_questions, n_layers, n_heads)
    return level * rng.exponential(0.2, shape) * (rng.random(shape) < 0.15)


def planted_scores(rng: np.random.Generator, n_questions: int) -> np.ndarray:
    """Null scores, with head 5 of the layer in row 1 higher by 1, and head 0 of row 3 by 0.7."""
    values = null_scores(rng, n_questions)
    values[:, 1, 5] += rng.uniform(0.8, 1.2, n_questions)
    values[:, 3, 0] += rng.uniform(0.5, 0.9, n_questions)
    return values


def test_planted_heads_are_chosen_and_others_are_not_called_found() -> None:
    selection = select(scores_of(planted_scores(np.random.default_rng(0), 24)), n_heads=6)
    assert [(one.layer, one.head) for one in selection.heads[:2]] == [(3, 5), (5, 0)]
    assert [one.p is not None and one.p < 0.01 for one in selection.heads] == [True] * 2 + [False] * 4
    assert selection.reason is None
    assert (len(selection.chosen_on), len(selection.held_out)) == (12, 12)
    assert set(selection.chosen_on) | set(selection.held_out) == {f"q{i}" for i in range(24)}


def test_means_and_intervals_are_those_of_the_named_questions() -> None:
    values = planted_scores(np.random.default_rng(1), 21)
    selection = select(scores_of(values), n_heads=3, level=0.9, seed=4)
    first = [int(id[1:]) for id in selection.chosen_on]
    second = [int(id[1:]) for id in selection.held_out]
    assert (len(first), len(second)) == (10, 11)
    assert not set(first) & set(second)
    best = np.sort(values[first].mean(0).ravel())[::-1][:3]
    np.testing.assert_allclose([one.chosen_on for one in selection.heads], best, atol=1e-12)
    for one in selection.heads:
        own = values[second, one.layer - 2, one.head]
        half = stats.t.ppf(0.95, 10) * own.std(ddof=1) / np.sqrt(11)
        assert one.held_out.estimate == pytest.approx(own.mean())
        assert (one.held_out.low, one.held_out.high) == pytest.approx((own.mean() - half, own.mean() + half))
    chosen = np.zeros(values.shape[1:], dtype=bool)
    for one in selection.heads:
        chosen[one.layer - 2, one.head] = True
    assert selection.together is not None
    assert selection.others is not None
    assert selection.together.estimate == pytest.approx(values[second][:, chosen].mean())
    assert selection.others.estimate == pytest.approx(values[second][:, ~chosen].mean())
    assert selection.to_dict()["heads"][0]["held_out"]["level"] == 0.9


def test_neither_half_knows_the_other() -> None:
    rng = np.random.default_rng(2)
    values = planted_scores(rng, 20)
    before = select(scores_of(values))
    second = [int(id[1:]) for id in before.held_out]
    first = [int(id[1:]) for id in before.chosen_on]
    changed = values.copy()
    changed[second] = rng.random(changed[second].shape)
    after = select(scores_of(changed))
    assert [(a.layer, a.head, a.chosen_on) for a in after.heads] == [
        (b.layer, b.head, b.chosen_on) for b in before.heads
    ]
    assert after.heads[0].held_out != before.heads[0].held_out
    changed = values.copy()
    changed[first] *= 3  # the same heads, by other scores
    after = select(scores_of(changed))
    assert [(a.held_out, a.p) for a in after.heads] == [(b.held_out, b.p) for b in before.heads]
    assert after.heads[0].chosen_on == pytest.approx(3 * before.heads[0].chosen_on)


@pytest.mark.parametrize("n_questions", [10, 24])
def test_under_the_null_held_out_scores_are_not_inflated_and_false_finds_are_rare(
    n_questions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gc.collect", lambda: 0)  # which statsmodels calls every time
    n_studies, excess, flattered, false = 400, [], [], 0
    for study in range(n_studies):
        values = null_scores(np.random.default_rng([n_questions, study]), n_questions)
        selection = select(scores_of(values), n_heads=5, draws=1999, seed=study)
        second = [int(id[1:]) for id in selection.held_out]
        first = [int(id[1:]) for id in selection.chosen_on]
        assert selection.together is not None
        assert selection.together.estimate is not None
        excess.append(selection.together.estimate - values[second].mean())
        flattered.append(np.mean([one.chosen_on for one in selection.heads]) - values[first].mean())
        false += min(one.p for one in selection.heads if one.p is not None) < 0.05
    error = np.std(excess, ddof=1) / np.sqrt(n_studies)
    assert abs(np.mean(excess)) < 3 * error
    assert np.mean(flattered) > 30 * error  # what the split protects from
    # At most 5 %, and 3 standard errors of 400 studies; far fewer would be a test that finds nothing.
    assert 0.015 <= false / n_studies <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / n_studies)


def test_p_values_against_every_draw_there_is() -> None:
    rng = np.random.default_rng(5)
    values = np.zeros((10, 1, 4))
    values[::2, 0] = rng.integers(0, 4, (5, 4)) + np.array([2, 1, 0, 0])  # held out: every second one from the first
    values[1::2, 0] = [4, 3, 0, 0]
    selection = select(scores_of(values), split="alternate", draws=40_000)
    assert selection.held_out == ("q0", "q2", "q4", "q6", "q8")
    assert [(one.layer, one.head) for one in selection.heads] == [(2, 0), (2, 1)]
    held_out = values[::2, 0]
    every = np.array([sum(held_out[q, h] for q, h in enumerate(heads)) for heads in product(range(4), repeat=5)])
    exact = np.array([(every >= held_out[:, head].sum()).mean() for head in (0, 1)])
    assert 0.005 < exact.min() < exact.max() < 0.5
    low, high = np.argsort(exact)
    holm = np.empty(2)
    holm[low] = min(1, 2 * exact[low])
    holm[high] = max(holm[low], exact[high])
    np.testing.assert_allclose(
        [one.p for one in selection.heads], holm, atol=0.01
    )  # 4 standard errors of 2 p at p = 0.1


def test_few_questions_have_no_intervals() -> None:
    values = planted_scores(np.random.default_rng(6), 9)
    enough, few = select(scores_of(values)), select(scores_of(values[:8]))
    assert enough.reason is None
    assert enough.heads[0].held_out.low is not None
    assert few.reason == "4 questions held out; intervals and p values need at least 5"
    assert few.heads[0].p is None
    assert few.heads[0].held_out.low is None
    assert few.heads[0].held_out.estimate is not None
    for n in (2, 1):
        selection = select(scores_of(values[:n]))
        assert selection.reason is not None
        assert selection.reason.startswith(f"{n - 1} question")
        assert len(selection.chosen_on) == 1
        assert selection.heads


def test_without_scores_there_are_no_heads_and_a_reason() -> None:
    nothing = np.full((6, 2, 3), np.nan)
    selection = select(scores_of(nothing))
    assert selection.heads == ()
    assert selection.reason == "no question has a defined retrieval score: no answer recalls its needle"
    assert selection.left_out == tuple(f"q{i}" for i in range(6))
    zeros = select(scores_of(np.zeros((12, 2, 3))))
    assert zeros.heads == ()
    assert zeros.together is None
    assert zeros.reason == "no head has a retrieval score above 0 on the questions to choose on"


def test_questions_and_heads_without_scores_are_left_out() -> None:
    values = planted_scores(np.random.default_rng(7), 16)
    values[[2, 9]] = np.nan
    advantage = values + 1
    advantage[4, 1, 5] = np.nan
    advantage[6, 3, 0] = -np.inf
    scores = scores_of(values, advantage=advantage)
    retrieval = select(scores)
    assert retrieval.left_out == ("q2", "q9")
    assert len(retrieval.chosen_on) == len(retrieval.held_out) == 7
    assert (retrieval.heads[0].layer, retrieval.heads[0].head) == (3, 5)
    chosen = select(scores, "advantage", n_heads=40)
    every = {(layer, head) for layer in range(2, 6) for head in range(8)}
    assert {(one.layer, one.head) for one in chosen.heads} == every - {(3, 5), (5, 0)}


def test_ties_go_to_the_earlier_head_and_the_split_to_the_seed() -> None:
    values = np.ones((12, 2, 3))
    selection = select(scores_of(values), n_heads=4)
    assert [(one.layer, one.head) for one in selection.heads] == [(2, 0), (2, 1), (2, 2), (3, 0)]
    assert all(one.p == 1 for one in selection.heads)
    assert selection.chosen_on == select(scores_of(values), n_heads=4).chosen_on
    assert selection.chosen_on != select(scores_of(values), n_heads=4, seed=1).chosen_on


def test_wrong_arguments_are_named() -> None:
    scores = scores_of(np.ones((6, 2, 3)))
    options: dict[str, Any]
    for options, message in (
        ({"by": "luck"}, "score 'luck' is unknown"),
        ({"split": "thirds"}, "split 'thirds' is unknown; expected one of random, alternate"),
        ({"n_heads": 0}, "n_heads must be at least 1"),
        ({"draws": 10}, "draws must be at least 999"),
        ({"level": 1.0}, "level must lie between 0 and 1"),
        ({"seed": -1}, "seed must be"),
    ):
        with pytest.raises(ap.InputError, match=message):
            select(scores, **options)
    assert select(replace(scores, layers=(7, 9))).heads[3].layer == 9
