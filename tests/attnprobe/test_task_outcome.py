from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from task_outcomes import sweep

from attnprobe.errors import InputError
from attnprobe.tasks.item_table import common_items, item_table
from attnprobe.tasks.outcome import Outcome, outcome_of

FULL = Outcome(
    "badge", 2, {"length": 4000, "depth": 0.5, "filler": None}, 1, 1, -2.5, -4.0, 0.12, -0.3, {"tokens": 4000}
)


def test_an_outcome_survives_json() -> None:
    assert outcome_of(json.loads(json.dumps(FULL.to_dict(), allow_nan=False)), "line 1") == FULL
    short = {"item": "badge", "trial": 0, "condition": {}}
    assert outcome_of(short, "line 1") == Outcome("badge", 0, {})


def test_metrics() -> None:
    assert FULL.value("margin") == 1.5
    assert FULL.value("strict") == 1.0
    assert Outcome("a", 0, {}, logprob=-1.0).value("margin") is None
    assert Outcome("a", 0, {}).value("logprob") is None
    with pytest.raises(InputError, match="metric 'score' is unknown"):
        FULL.value("score")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"item": " "}, "item is ' '"),
        ({"trial": -1}, 'item "badge": trial is -1'),
        ({"trial": True}, '"trial" must be a whole number, not true or false'),
        ({"strict": 2}, "strict is 2; give 0, 1 or None"),
        ({"lenient": 0.5}, '"lenient" must be a whole number'),
        ({"logprob": 0.1}, "logprob is 0.1; give a finite number of nats <= 0"),
        ({"mass": 1.5}, "mass is 1.5; give a number from 0 to 1"),
        ({"condition": {"length": True}}, "condition 'length' is True"),
        ({"condition": {"length": [1]}}, r"condition 'length' is \[1\]"),
        ({"score": 1}, 'unknown key "score"'),
        ({"item": None}, '"item" is missing'),
    ],
)
def test_what_cannot_be_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        outcome_of({**FULL.to_dict(), **change}, "cells.jsonl:3")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, "1"])
def test_numbers_are_finite(bad: Any) -> None:
    with pytest.raises(InputError, match="advantage"):
        Outcome("a", 0, {}, advantage=bad)
    with pytest.raises(InputError, match="logprob"):
        Outcome("a", 0, {}, logprob=bad)


def test_the_table_is_the_mean_over_trials() -> None:
    outcomes = [
        *sweep([[[1, 0, 1], [0, 0, 0]]], "position", [9, 0]),
        Outcome("item 1", 0, {"position": 0}, strict=1, facts={"prompt_tokens": 40}),
        Outcome("item 1", 1, {"position": 0}, strict=0, facts={"prompt_tokens": 44}),
        Outcome("item 1", 2, {"position": 0}),
        Outcome("item 1", 0, {"baseline": "closed_book"}, strict=0),
    ]
    table = item_table(outcomes, "strict", "position")
    assert (table.items, table.levels) == (("item 0", "item 1"), (0, 9))
    assert table.values.tolist()[0] == pytest.approx([0, 2 / 3])
    assert table.values[1, 0] == 0.5
    assert np.isnan(table.values[1, 1])
    assert table.trials.tolist() == [[3, 3], [2, 0]]
    assert table.tokens[1, 0] == 42
    assert table.complete().items == ("item 0",)


def test_conditions_are_not_pooled_unasked() -> None:
    outcomes = [*sweep([[1, 0]], "depth", [0.0, 1.0], length=100), *sweep([[0, 0]], "depth", [0.0, 1.0], length=200)]
    with pytest.raises(InputError, match=r"differ in 'length' \(100, 200\) beside 'depth'"):
        item_table(outcomes, "strict", "depth")
    assert item_table(outcomes, "strict", "depth", {"length": 100}).values.tolist() == [[1, 0]]
    without = Outcome("item 9", 0, {"depth": 0.0}, strict=1)  # without the key it is not where length is 100, or None
    assert item_table([*outcomes, without], "strict", "depth", {"length": 100}).items == ("item 0",)
    assert item_table(outcomes, "strict", "depth", pool=("length",)).values.tolist() == [[0.5, 0]]
    with pytest.raises(InputError, match="no outcome has strict and a condition with 'depth', length=300"):
        item_table(outcomes, "strict", "depth", {"length": 300})
    with pytest.raises(InputError, match="no outcome has logprob"):
        item_table(outcomes, "logprob", "depth")


def test_repeats_and_mixed_levels_are_refused() -> None:
    outcomes = sweep([[1, 0]], "depth", [0.0, 1.0])
    with pytest.raises(InputError, match="occurs twice; number the trials"):
        item_table([*outcomes, outcomes[0]], "strict", "depth")
    with pytest.raises(InputError, match="a text in some outcomes and a number in others"):
        item_table(sweep([[1, 0]], "depth", [0.0, "end"]), "strict", "depth")


def test_common_items_are_those_with_every_value_in_every_table() -> None:
    first = item_table(sweep([[1, 0], [1, 1], [0, np.nan]], "position", [0, 1]), "strict", "position")
    second = item_table(sweep([[np.nan, 0], [0, 1], [0, 0]], "position", [0, 1]), "strict", "position")
    assert [table.items for table in common_items([first, second])] == [("item 1",), ("item 1",)]
    assert common_items([first, second])[1].values.tolist() == [[0, 1]]
