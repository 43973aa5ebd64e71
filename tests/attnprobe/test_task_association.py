"""Association of mass with the answer: planted confounders, scipy, false alarms with the item as the unit."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

from attnprobe.errors import InputError
from attnprobe.tasks.association import associate, by_layer
from attnprobe.tasks.outcome import Outcome

ITEMS, POSITIONS, TRIALS = 12, 4, 6
SHAPE = (ITEMS, POSITIONS, TRIALS)
CURVE = np.array([2.0, -1.0, -1.0, 1.5])[:, None]


def cells(mass: np.ndarray, effect: np.ndarray, metric: str = "logprob") -> list[Outcome]:
    """Outcomes of [item, position, trial]; mass is squeezed into 0 to 1, log-probabilities below 0, ranks kept."""
    share = 1 / (1 + np.exp(-mass / 5))
    values = -np.log1p(np.exp(-effect)) if metric == "logprob" else effect
    return [
        Outcome(f"item {i}", t, {"position": k}, mass=float(share[i, k, t]), **{metric: values[i, k, t].item()})
        for i, k, t in np.ndindex(share.shape)
    ]


def test_a_shared_curve_of_position_is_not_the_headline() -> None:
    rng = np.random.default_rng(0)
    mass, effect = (3 * CURVE + rng.normal(size=SHAPE) for _ in range(2))
    found = associate(cells(mass, effect)).by_name["mass"]
    assert found.correlation.pooled.estimate > 0.7
    assert found.correlation.within_question.estimate > 0.7
    assert abs(found.correlation.within_position.estimate) < 0.15
    assert found.p_adjusted > 0.05


def test_easy_items_are_not_an_association_within_items() -> None:
    rng = np.random.default_rng(1)
    item = 5 * rng.normal(size=(ITEMS, 1, 1))
    found = associate(cells(item + rng.normal(size=SHAPE), item + rng.normal(size=SHAPE))).by_name["mass"]
    assert found.correlation.pooled.estimate > 0.7
    assert abs(found.correlation.within_question.estimate) < 0.15


def test_estimates_are_those_of_ranks_within_strata() -> None:
    rng = np.random.default_rng(2)
    mass = rng.normal(size=SHAPE).round(1)
    effect = (mass + rng.normal(size=SHAPE)).round(1)
    found = associate(cells(mass, effect)).by_name["mass"].correlation
    assert found.pooled.estimate == pytest.approx(spearmanr(mass.ravel(), effect.ravel()).statistic, abs=1e-12)
    ranks = [np.apply_along_axis(rankdata, 2, a) for a in (mass, effect)]
    left = [(rank - rank.mean(axis=2, keepdims=True)).ravel() for rank in ranks]
    assert found.within_position.estimate == pytest.approx(np.corrcoef(*left)[0, 1], abs=1e-12)
    assert found.n_cells == mass.size
    assert found.within_position.n == ITEMS


def test_a_place_is_the_whole_condition() -> None:
    """Two lengths at one position are two places: mass and answer that both fall with length are no association."""
    rng = np.random.default_rng(3)
    outcomes = [
        Outcome(
            f"item {i}", t, {"position": 0, "length": n}, logprob=-n - rng.random(), mass=(rng.random() + 9) / (10 * n)
        )
        for i in range(10)
        for n in (1, 4)
        for t in range(8)
    ]
    found = associate(outcomes).by_name["mass"].correlation
    assert found.within_question.estimate > 0.6
    assert abs(found.within_position.estimate) < 0.2


def test_layers_and_heads_are_adjusted_together() -> None:
    rng = np.random.default_rng(4)
    effect = rng.normal(size=SHAPE)
    outcomes = cells(rng.normal(size=SHAPE), effect)
    layers = rng.normal(size=(effect.size, 5))
    layers[:, 3] += effect.ravel()
    layers[7, 3] = np.nan
    found = associate(outcomes, predictors={**by_layer(layers, [0, 2, 4, 6, 8]), "L6H1": effect.ravel() + 1})
    assert list(found.by_name) == ["mass", "advantage", "layer 0", "layer 2", "layer 4", "layer 6", "layer 8", "L6H1"]
    planted = found.by_name["layer 6"]
    assert planted.correlation.within_position.estimate > 0.5
    assert planted.correlation.n_cells == effect.size - 1
    assert planted.p_adjusted < 1e-4
    # Mass, five layers and the head that agrees perfectly (by its items' signs) have a p value, the advantage has none.
    assert planted.p_adjusted == pytest.approx(7 * planted.correlation.p_value)
    assert found.by_name["advantage"].correlation.pooled.estimate is None
    assert found.by_name["L6H1"].correlation.within_position.estimate == pytest.approx(1)
    assert (
        min(one.p_adjusted for name, one in found.by_name.items() if name in ("layer 0", "layer 2", "layer 4")) > 0.05
    )
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["metric"] == "logprob"


def test_accuracy_and_cells_without_mass() -> None:
    rng = np.random.default_rng(5)
    mass = rng.normal(size=SHAPE)
    right = (mass + rng.normal(size=SHAPE) > 0).astype(int)
    baseline = [Outcome(f"item {i}", 0, {"baseline": "closed_book"}, strict=0) for i in range(ITEMS)]
    with_baseline = associate([*cells(mass, right, "strict"), *baseline], "strict").by_name["mass"].correlation
    assert (
        with_baseline.to_dict()
        == associate(cells(mass, right, "strict"), "strict").by_name["mass"].correlation.to_dict()
    )
    assert with_baseline.within_position.low > 0.3


def test_false_alarms_with_the_item_as_the_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gc.collect", lambda *_: 0)  # statsmodels does at every adjustment, slow in a long session
    rng = np.random.default_rng(6)
    alarms = []
    for _ in range(120):
        # Repeats of a trial's shuffle at all positions: cells of an item depend on each other.
        shuffle = [rng.normal(size=(8, 1, 5)) + 0.3 * rng.normal(size=(8, 3, 5)) for _ in range(2)]
        alarms.append(associate(cells(*shuffle)).by_name["mass"].p_adjusted <= 0.05)
    assert np.mean(alarms) <= 0.11


def test_one_trial_a_place_has_no_headline_and_few_items_no_interval() -> None:
    rng = np.random.default_rng(7)
    one = associate(cells(rng.normal(size=(8, 4, 1)), rng.normal(size=(8, 4, 1)))).by_name["mass"]
    assert one.correlation.within_position.estimate is one.p_adjusted is None
    assert one.correlation.within_question.low is not None
    few = associate(cells(rng.normal(size=(4, 4, 3)), rng.normal(size=(4, 4, 3)))).by_name["mass"]
    assert few.correlation.within_position.low is None
    assert associate([]).by_name["mass"].correlation.pooled.estimate is None


def test_wrong_input_is_named() -> None:
    outcomes = cells(np.zeros((2, 2, 2)), np.zeros((2, 2, 2)))
    bad: list[tuple[dict[str, Any], str]] = [
        ({"metric": "mass"}, "metric 'mass' is no answer"),
        ({"predictors": {"mass": np.zeros(8)}}, "the predictor 'mass' is there already"),
        ({"predictors": {"L1": np.zeros(7)}}, "predictor 'L1' has 7 values; give one a cell"),
        ({"predictors": {"L1": np.full(8, np.inf)}}, "finite or NaN"),
        ({"level": 2}, "level must lie between 0 and 1"),
    ]
    for arguments, message in bad:
        with pytest.raises(InputError, match=message):
            associate(outcomes, **arguments)
    with pytest.raises(InputError, match="values has 3 layers and 2 numbers"):
        by_layer(np.zeros((8, 3)), [0, 1])
