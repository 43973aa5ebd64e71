"""Filler taken apart: planted components, exact sums, false alarms."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats
from task_outcomes import answered, sweep

from attnprobe.errors import InputError
from attnprobe.tasks.context_rot import BEYOND
from attnprobe.tasks.decomposition import COMPONENTS, KINDS, FillerDecomposition, decompose_filler
from attnprobe.tasks.outcome import Outcome

FILLED = ["repeated", "prose", "same_domain"]
CELLS = [("after", 2000), ("before", 2000), ("split", 2000)]


def control(values: np.ndarray, metric: str = "strict") -> list[Outcome]:
    """Outcomes of [cell, item, kind, ...]; the first kind, no filler, is that of the first cell."""
    outcomes = sweep(values[0, :, :1], "filler", ["none"], metric, length=300)
    for (placement, length), cell in zip(CELLS, values, strict=False):
        outcomes += sweep(cell[:, 1:], "filler", FILLED, metric, placement=placement, length=length)
    return outcomes


def nats(rng: np.random.Generator, items: int, losses: list[list[float]]) -> np.ndarray:
    """[cell, item, kind] with planted losses by cell and component; items differ by far more."""
    level = -5 - 20 * rng.random((items, 1))
    without = level[None] + 0 * np.zeros((len(losses), items, 1))
    filled = level - np.cumsum(losses, axis=1)[:, None] + 0.2 * rng.normal(size=(len(losses), items, 3))
    return np.concatenate([without, filled], axis=2)


def test_planted_losses_are_found_for_every_placement() -> None:
    planted = [[1.0, 0.5, 0.0], [0.0, 0.0, 2.0], [0.3, 0.3, 0.3]]
    values = nats(np.random.default_rng(0), 20, planted)
    found = decompose_filler(control(values, "logprob"), "logprob")
    assert [(loss.placement, loss.length) for loss in found.losses] == CELLS
    for loss, truth, cell in zip(found.losses, planted, values, strict=True):
        assert [one.name for one in loss.components] == list(COMPONENTS)
        for i, (one, planted_loss) in enumerate(zip(loss.components, truth, strict=True)):
            assert one.loss.estimate == pytest.approx(planted_loss, abs=0.2)
            expected = stats.ttest_1samp(cell[:, i] - cell[:, i + 1], 0).confidence_interval()
            assert (one.loss.low, one.loss.high) == pytest.approx(tuple(expected))
            assert (one.p <= 0.01) == (planted_loss > 0)
        assert list(loss.means) == list(KINDS)
        assert loss.means["varied"] == pytest.approx(cell[:, 2].mean())
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["n"] == 20


def check_sums(found: FillerDecomposition) -> None:
    for loss in found.losses:
        parts = sum(one.loss.estimate for one in loss.components)
        assert parts == pytest.approx(loss.total.estimate, abs=1e-12)
        assert loss.total.estimate == pytest.approx(loss.means["none"] - loss.means["same_domain"], abs=1e-12)


def test_components_add_up_whatever_is_missing() -> None:
    rng = np.random.default_rng(1)
    values = np.stack([answered(rng, 15, [2.0, 1.0, 0.5, -0.5], trials=3) for _ in CELLS])
    found = decompose_filler(control(values))
    check_sums(found)
    assert found.n == 15
    some = values.copy()
    some[1, 4, 2] = np.nan  # one item lacks varied filler in one cell: it is left out everywhere
    fewer = decompose_filler(control(some))
    check_sums(fewer)
    assert (fewer.n, fewer.warnings) == (14, ("1 of 15 items left out: no value there",))
    kept = np.delete(np.arange(15), 4)
    assert fewer.losses[0].total.estimate == pytest.approx((values[0, kept, 0] - values[0, kept, 3]).mean())


def test_a_cell_that_lacks_a_kind_is_left_out_and_said() -> None:
    values = nats(np.random.default_rng(2), 8, [[1.0, 0.5, 0.0], [0.0, 0.0, 2.0]])
    outcomes = [
        one
        for one in control(values, "logprob")
        if (one.condition.get("placement"), one.condition["filler"]) != ("before", "repeated")
    ]
    found = decompose_filler(outcomes, "logprob")
    assert [loss.placement for loss in found.losses] == ["after"]
    assert found.warnings == ("placement before, length 2000 left out: no filler repeated",)
    with pytest.raises(InputError, match="no placement and length has all of none, repeated"):
        decompose_filler([one for one in outcomes if one.condition["filler"] != "none"], "logprob")


def test_few_items_and_none_answered() -> None:
    values = nats(np.random.default_rng(3), 5, [[1.0, 0.5, 0.0]])
    five = decompose_filler(control(values, "logprob"), "logprob").losses[0]
    assert five.total.low is not None
    assert {one.p for one in five.components} == {None}
    four = decompose_filler(control(values[:, :4], "logprob"), "logprob").losses[0]
    assert four.total.low is None
    assert four.total.estimate is not None
    dead = decompose_filler(control(np.zeros((1, 10, 4))))
    assert dead.warnings == (BEYOND,)
    assert dead.losses[0].total.high > 0.1  # ten alike items do not prove that nothing is lost


def test_no_loss_is_found_in_few_studies() -> None:
    rng = np.random.default_rng(4)
    alarms = []
    for _ in range(120):
        values = np.stack([answered(rng, 10, [1.0] * 4, trials=2) for _ in CELLS[:2]])
        losses = decompose_filler(control(values)).losses
        alarms.append(min(one.p for loss in losses for one in loss.components) <= 0.05)
    assert np.mean(alarms) <= 0.11  # 5 % and three standard errors, over six components at once


def test_names_of_fillers_and_wrong_metrics() -> None:
    values = nats(np.random.default_rng(5), 6, [[1.0, 0.5, 0.0]])
    outcomes = control(values, "logprob")
    names = {"none": "none", "repeated": "repeated", "varied": "file:essay.txt", "same_domain": "same_domain"}
    with pytest.raises(InputError, match="left out: no filler varied"):
        decompose_filler(outcomes, "logprob", names)
    with pytest.raises(InputError, match="fillers names none; name none, repeated, varied, same_domain"):
        decompose_filler(outcomes, "logprob", {"none": "none"})
    with pytest.raises(InputError, match="metric 'mass' has no loss"):
        decompose_filler(outcomes, "mass")
