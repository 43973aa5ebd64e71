"""Prices of tokens: planted slopes, interpolation by hand, refusal to extrapolate, audits of prompts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from runs import make_run
from scipy import stats
from task_outcomes import answered, sweep

from attnprobe.encode import EncodedPrompt
from attnprobe.errors import InputError
from attnprobe.spans import Span
from attnprobe.tasks.outcome import Outcome
from attnprobe.tasks.price import LengthCurve, length_curve
from attnprobe.tasks.token_audit import token_audit

LENGTHS = (1000, 2000, 4000, 16000)
DOUBLINGS = np.log2(LENGTHS)


def curve_of(values: Any, metric: str = "logprob", **arguments: Any) -> LengthCurve:
    return length_curve(sweep(values, "length", LENGTHS, metric), metric, **arguments)


def test_a_planted_slope_is_recovered_within_items() -> None:
    rng = np.random.default_rng(0)
    level, own = -30 - 20 * rng.random((15, 1)), 0.5 + 0.2 * rng.normal(size=(15, 1))
    curve = curve_of(level - own * DOUBLINGS)
    expected = stats.ttest_1samp(own[:, 0], 0).confidence_interval()
    found = curve.per_doubling.loss
    assert (found.estimate, found.low, found.high) == pytest.approx((own.mean(), *expected), rel=1e-9)
    assert curve.per_doubling.p < 0.01
    for step in curve.steps:
        assert step.loss.estimate == pytest.approx(own.mean())
    assert curve.steepening.loss.estimate == pytest.approx(0, abs=1e-9)


def test_slopes_are_polyfits() -> None:
    rng = np.random.default_rng(1)
    values = -5 + rng.normal(size=(9, 4)).clip(-4, 4)
    curve = curve_of(values)
    slopes = np.polyfit(DOUBLINGS, values.T, 1)[0]
    bends = np.polyfit(DOUBLINGS, values.T, 2)[0]
    assert curve.per_doubling.loss.estimate == pytest.approx(-slopes.mean())
    assert curve.steepening.loss.estimate == pytest.approx(-2 * bends.mean())
    step = curve.steps[2]
    assert (step.start, step.stop) == (4000, 16000)
    assert step.loss.estimate == pytest.approx((values[:, 2] - values[:, 3]).mean() / 2)


def test_steepening_is_found_where_it_is() -> None:
    rng = np.random.default_rng(2)
    x = DOUBLINGS - DOUBLINGS[0]
    noise = 0.1 * rng.normal(size=(12, 4))
    steep = curve_of(-1 - 0.15 * x**2 + noise)
    assert steep.steepening.loss.low > 0.2
    assert steep.steepening.loss.estimate == pytest.approx(0.3, abs=0.05)
    assert steep.steepening.p < 0.01
    straight = curve_of(-1 - 0.6 * x + noise)
    assert straight.steepening.loss.low < 0 < straight.steepening.loss.high
    assert length_curve(sweep(-np.ones((6, 2)), "length", [1, 2], "logprob"), "logprob").steepening is None


def test_a_block_costs_more_where_the_curve_is_steep() -> None:
    accuracy = np.tile([1.0, 0.9, 0.8, 0.2], (10, 1))
    outcomes = [
        Outcome(f"item {i}", trial, {"length": length}, strict=int(trial < round(10 * accuracy[i, k])))
        for i in range(10)
        for k, length in enumerate(LENGTHS)
        for trial in range(10)
    ]
    curve = length_curve(outcomes)
    assert curve.price(1000, 1000).estimate == pytest.approx(0.1)
    # From 8000 = one doubling above 4000, half way to 16000, to the end.
    assert curve.price(8000, 8000).estimate == pytest.approx(0.3)
    assert curve.price(-8000, 16000).estimate == pytest.approx(-0.3)
    middle = 0.9 + 0.1 * np.log2(2828.4 / 2000) * -1
    assert curve.price(828, 2000).estimate == pytest.approx(0.9 - middle, abs=1e-4)
    assert curve.price(0, 2000).estimate == pytest.approx(0, abs=1e-12)
    assert curve.price(0, 2000).high == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("added", "at"), [(1, 16000), (-1, 1000), (100, 999), (100, 20000), (20000, 2000)])
def test_nothing_is_extrapolated(added: int, at: int) -> None:
    curve = curve_of(-np.ones((6, 4)))
    with pytest.raises(InputError, match=r"tokens, outside the tested 1000 to 16000; test that length, too"):
        curve.price(added, at)
    with pytest.raises(InputError, match="added must be at least -1999"):
        curve.price(-2000, 2000)


def test_real_tokens_are_used_where_every_outcome_has_them() -> None:
    values = -np.array([[1.0, 2.0], [1.5, 2.5], [1.0, 3.0]])
    outcomes = sweep(values, "length", [1000, 2000], "logprob")
    counted = [
        replace(one, facts={"prompt_tokens": {1000: 900, 2000: 3600}[one.condition["length"]]})  # type: ignore[index]
        for one in outcomes
    ]
    curve = length_curve(counted, "logprob")
    assert curve.tokens.tolist() == [900, 3600]
    assert curve.per_doubling.loss.estimate == pytest.approx((1 + 1 + 2) / 3 / 2)
    assert curve.warnings == ()
    named = length_curve([*counted[:-1], outcomes[-1]], "logprob")
    assert named.tokens.tolist() == [1000, 2000]
    assert named.warnings == ("tokens are those of the condition 'length': some outcomes lack the fact prompt_tokens",)


def test_intervals_of_accuracies_cover() -> None:
    rng = np.random.default_rng(3)
    log_odds = [3.0, 2.0, 1.0, 0.0]
    truth = -np.polyfit(DOUBLINGS, answered(rng, 100_000, log_odds).mean(axis=(0, 2)), 1)[0]
    inside = []
    for _ in range(200):
        found = curve_of(answered(rng, 12, log_odds), "strict").per_doubling.loss
        inside.append(found.low <= truth <= found.high)
    assert 0.9 <= np.mean(inside) <= 1.0


def test_perfect_items_leave_room_for_a_loss() -> None:
    curve = curve_of(np.ones((6, 4)), "strict")
    assert curve.per_doubling.loss.estimate == 0
    assert curve.per_doubling.loss.high > 0.05
    json.dumps(curve.to_dict(), allow_nan=False)
    none = curve_of([[1, np.nan, 1, 1], [1, 1, np.nan, 1]], "strict")
    assert none.to_dict()["means"] == [None] * 4
    assert none.per_doubling.loss.estimate is None


def test_wrong_lengths_are_named() -> None:
    with pytest.raises(InputError, match="the lengths are 'short', 'long'; give two or more, as numbers above 0"):
        length_curve(sweep([[1, 0]], "length", ["short", "long"]))
    with pytest.raises(InputError, match="the lengths are 5; give two or more"):
        length_curve(sweep([[1]], "length", [5]))
    with pytest.raises(InputError, match="metric 'advantage' has no price"):
        length_curve([], "advantage")
    shrinking = [Outcome("a", 0, {"length": n}, strict=1, facts={"prompt_tokens": 100 - n}) for n in (1, 2)]
    with pytest.raises(InputError, match="do not grow with the condition 'length'"):
        length_curve(shrinking)


def test_an_audit_counts_every_token_once_and_prices_at_the_margin() -> None:
    run = make_run()
    audit = token_audit(run)
    assert audit.tokens == sum(section.tokens for section in audit.sections) == run.n_prompt
    documents = [section for section in audit.sections if section.kind == "document"]
    assert [section.name for section in documents] == list(run.documents)
    assert sum(section.share for section in audit.sections) == pytest.approx(1)
    assert {section.reason for section in audit.sections} == {"no curve of quality by length"}


PROMPT_SPANS = (
    Span("sink", "sink", None, ((0, 1),)),
    Span("template", "template", None, ((1, 10), (6000, 6010))),
    Span("system", "system", None, ((10, 2000),)),
    Span("marker", "marker:d1", 0, ((2000, 2010),)),
    Span("document", "d1", 0, ((2010, 4000),)),
    Span("document", "question", 1, ((4000, 5990),)),
    Span("question", "question", None, ((5990, 6000),)),
)


def test_deleting_a_section_is_worth_its_price_on_the_curve() -> None:
    curve = curve_of(-2 - 0.5 * DOUBLINGS - np.linspace(0, 1, 8)[:, None])
    prompt = EncodedPrompt("", tuple(range(6010)), (), PROMPT_SPANS, (), "")
    audit = token_audit(prompt, curve)
    sections = {(one.kind, one.name): one for one in audit.sections}
    assert audit.tokens == 6010
    assert sections["document", "d1"].tokens == 2000
    assert sections["template", "template"].tokens == 19
    assert sections["document", "question"].tokens == 1990
    assert sections["question", "question"].tokens == 10
    worth = sections["system", "system"].worth
    assert worth.estimate == pytest.approx(0.5 * np.log2(6010 / 4020))
    short = token_audit(prompt, length_curve(sweep([[1, 0]], "length", [5000, 7000])))
    reasons = {one.name: one.reason for one in short.sections}
    assert "outside the tested 5000 to 7000" in reasons["d1"]
    assert reasons["template"] is None
    assert json.loads(json.dumps(audit.to_dict(), allow_nan=False))["tokens"] == 6010
