"""Accuracy by position: hand-made cells, the articles' claims about gaps, false alarms and coverage in simulation."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from scipy import stats
from task_outcomes import answered, sweep

from attnprobe.errors import InputError
from attnprobe.tasks.accuracy import accuracy_by_position, end_contrasts
from attnprobe.tasks.context_rot import BEYOND, best_worst_ratio, context_rot_gap, dealt_accuracies, rot_statistics
from attnprobe.tasks.item_intervals import ratio_of_accuracies
from attnprobe.tasks.item_table import ItemTable, item_table
from attnprobe.tasks.paired_cells import paired_cells

U = np.array([1.5, 0.5, -1.0, -1.0, 0.5, 1.0])


def table_of(values: np.ndarray) -> ItemTable:
    return item_table(sweep(values, "position", range(values.shape[1])), "strict", "position")


def test_chance_alone_makes_gaps_and_ratios() -> None:
    """Ten positions of 50 trials each, no effect: how often the article's statistics say otherwise."""
    rng = np.random.default_rng(0)
    flat = rng.binomial(50, 0.8, size=(40_000, 10)) / 50
    large = {
        bookend: [(context_rot_gap(flat, bookend, middle) > 0.05 + 1e-9).mean() for middle in ("source", "default")]
        for bookend in ("max", "mean")
    }
    assert large["max"] == pytest.approx([0.37, 0.35], abs=0.01)  # the article's middle, ours
    assert large["mean"] == pytest.approx([0.16, 0.165], abs=0.01)
    assert np.median(best_worst_ratio(rng.binomial(50, 0.3, size=(40_000, 10)) / 50)) == pytest.approx(2.0, abs=0.05)
    # The null of such a study, made from it alone, knows: its threshold is the flat studies' 95 % quantile.
    study = table_of((rng.random((50, 10)) < 0.8).astype(float))
    gap_max, gap_mean, ratio = rot_statistics(study)
    assert gap_max.threshold == pytest.approx(np.quantile(context_rot_gap(flat, "max"), 0.95), abs=0.02)
    assert gap_mean.threshold == pytest.approx(np.quantile(context_rot_gap(flat, "mean"), 0.95), abs=0.02)
    assert ratio.threshold == pytest.approx(np.quantile(best_worst_ratio(flat), 0.95), abs=0.1)
    assert gap_max.null_median > 0.01
    assert "biased upward" in gap_max.note


def test_gap_and_ratio_by_hand() -> None:
    accuracy = np.array([0.9, 0.5, 0.2, 0.4, 0.6])
    assert context_rot_gap(accuracy, "max") == pytest.approx(0.9 - 1.1 / 3)
    assert context_rot_gap(accuracy, "mean") == pytest.approx(0.75 - 1.1 / 3)
    assert context_rot_gap(accuracy[:4]) == pytest.approx(0.9 - 0.35)
    assert context_rot_gap(accuracy[:3]) == pytest.approx(0.9 - 0.5)
    assert context_rot_gap(accuracy, middle="source") == context_rot_gap(accuracy)
    assert best_worst_ratio(accuracy) == pytest.approx(4.5)
    assert best_worst_ratio(np.array([0.5, 0.0, 0.5])) == np.inf
    for undefined in (context_rot_gap(accuracy[:2]), best_worst_ratio(accuracy[:1]), best_worst_ratio(np.zeros(4))):
        assert np.isnan(undefined)


def test_dealing_keeps_every_items_hits_and_is_the_permutation_distribution() -> None:
    values = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    dealt = dealt_accuracies(table_of(values), 20_000, 0)
    assert np.unique(dealt.sum(axis=1)).tolist() == [1.5]
    exact = [
        np.mean([first, second], axis=0)[0] for first in permutations(values[0]) for second in permutations(values[1])
    ]
    for value in (0.0, 0.5, 1.0):
        assert (dealt[:, 0] == value).mean() == pytest.approx(np.mean(np.array(exact) == value), abs=0.015)


def test_a_planted_u_is_found_with_everything_that_belongs_to_it() -> None:
    rng = np.random.default_rng(1)
    values = answered(rng, 40, 2 * U)
    found = accuracy_by_position(sweep(values, "position", range(6)))
    mean = values[..., 0].mean(axis=0)
    assert [cell.accuracy for cell in found.cells] == pytest.approx(mean.tolist())
    assert [cell.hits for cell in found.cells] == values.sum(axis=(0, 2)).tolist()
    assert all(cell.clustered is None and cell.interval is cell.wilson for cell in found.cells)
    assert found.head_minus_middle.p < 0.01
    differences = values[:, 0, 0] - values[:, 2:4, 0].mean(axis=1)
    expected = stats.ttest_1samp(differences, 0).confidence_interval()
    interval = found.head_minus_middle.interval
    assert (interval.low, interval.high) == pytest.approx(tuple(expected))
    assert (
        found.gap_max.interval.low
        < found.gap_max.interval.estimate
        == pytest.approx(max(mean[0], mean[5]) - mean[2:4].mean())
    )
    assert found.gap_mean.exceeds
    assert found.gap_mean.verdict.verdict == "confirmed"
    assert found.best_worst.interval.low > 1
    assert found.paired.p < 1e-4
    assert [(pair.first, pair.second) for pair in found.paired.pairs] == [(0, 2), (0, 3), (5, 2), (5, 3)]
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["n"] == 40
    assert found.warnings == ()


def test_shuffles_of_an_item_are_averaged_first() -> None:
    rng = np.random.default_rng(2)
    values = answered(rng, 8, U, trials=5)
    found = accuracy_by_position(sweep(values, "position", range(6)))
    assert all(cell.trials == 40 and cell.interval is cell.clustered for cell in found.cells)
    assert found.n == found.head_minus_middle.interval.n == 8
    assert "several trials an item" in found.paired.reason
    one = accuracy_by_position(sweep(answered(rng, 1, U, trials=50), "position", range(6)))
    assert one.cells[0].interval.low is None
    assert one.gap_max.interval.estimate is not None
    assert one.gap_max.interval.reason == "1 item; an interval needs at least 5"
    assert (one.gap_max.threshold, one.gap_max.verdict.verdict) == (None, "inconclusive")
    assert one.head_minus_middle.p is None
    five = accuracy_by_position(sweep(answered(rng, 5, U), "position", range(6)))
    assert five.head_minus_middle.interval.low is not None
    assert five.head_minus_middle.p is five.paired.p is None
    assert five.paired.reason == "5 items; the test needs at least 6"


@pytest.mark.parametrize("hits", [0, 1])
def test_a_task_beyond_the_model_is_not_healthy(hits: int) -> None:
    values = np.zeros((30, 5))
    values[:hits, 2] = 1
    found = accuracy_by_position(sweep(values, "position", range(5)))
    assert found.warnings == (BEYOND,)
    for statistic in (found.gap_max, found.gap_mean, found.best_worst):
        assert (statistic.verdict.verdict, statistic.interval.estimate) == ("undefined", None)
        assert statistic.verdict.reason == BEYOND


def test_six_perfect_items_do_not_prove_health() -> None:
    few = accuracy_by_position(sweep(np.ones((6, 5)), "position", range(5)))
    assert few.gap_mean.interval.estimate == 0
    assert few.gap_mean.verdict.verdict == few.gap_max.verdict.verdict == "inconclusive"
    many = accuracy_by_position(sweep(np.ones((400, 5)), "position", range(5)))
    assert many.gap_max.verdict.verdict == many.best_worst.verdict.verdict == "healthy"


def test_a_middle_that_is_never_answered_is_infinite() -> None:
    values = np.zeros((20, 5))
    values[:, [0, 4]] = 1
    values[3, 0] = 0
    found = accuracy_by_position(sweep(values, "position", range(5)))
    ratio = found.best_worst.interval
    assert (ratio.estimate, ratio.high) == (np.inf, np.inf)
    assert 1.5 < ratio.low < 20
    assert found.best_worst.to_dict()["interval"]["estimate"] == "inf"
    assert found.best_worst.exceeds


@pytest.mark.parametrize("documents", [1, 2])
def test_one_and_two_documents_have_no_middle(documents: int) -> None:
    found = accuracy_by_position(sweep(np.ones((8, documents)), "position", range(documents)))
    assert found.head_minus_middle is found.tail_minus_middle is None
    for statistic in (found.gap_max, found.gap_mean, found.best_worst):
        assert statistic.interval.estimate is statistic.threshold is statistic.p is None
        assert "there is no middle" in statistic.verdict.reason
    json.dumps(found.to_dict(), allow_nan=False)


def test_incomplete_items_count_alone_and_not_in_pairs() -> None:
    values = answered(np.random.default_rng(3), 9, U)
    values[0, 2] = np.nan
    found = accuracy_by_position(sweep(values, "position", range(6)))
    assert (found.cells[0].items, found.cells[2].items, found.n) == (9, 8, 8)
    assert found.warnings == ("comparisons: 1 of 9 items left out: no value there",)


def test_flat_curves_raise_few_alarms_and_intervals_cover() -> None:
    rng = np.random.default_rng(4)
    exceeds, covered, alarms = [], [], []
    for _ in range(150):
        table = table_of(answered(rng, 12, np.full(4, 0.8)))
        statistics = rot_statistics(table, draws=199)
        exceeds.append([one.exceeds for one in statistics])
        covered.append(
            [one.interval.low <= truth <= one.interval.high for one, truth in zip(statistics, (0, 0, 1), strict=True)]
        )
        alarms.append(min(end.p for end in end_contrasts(table.values, 0.95, 0, "default", span=2.0)) <= 0.05)
    assert (np.mean(exceeds, axis=0) <= 0.103).all()  # 5 % and three standard errors
    assert (np.mean(covered, axis=0) >= 0.897).all()  # 95 % less three
    assert np.mean(alarms) <= 0.103


def test_the_better_bookends_interval_covers_a_u() -> None:
    rng = np.random.default_rng(5)
    mean = answered(rng, 200_000, U).mean(axis=(0, 2))
    truth = context_rot_gap(mean)
    inside = []
    for _ in range(100):
        gap = rot_statistics(table_of(answered(rng, 16, U)), draws=99)[0].interval
        inside.append(gap.low <= truth <= gap.high)
    assert np.mean(inside) >= 0.88


def test_intervals_of_what_was_picked_hold_whichever_is_picked() -> None:
    values = answered(np.random.default_rng(7), 12, [1.0, 0.0, 0.5], trials=2).mean(axis=2)
    ends = [
        stats.ttest_1samp(values[:, end] - values[:, 1], 0).confidence_interval(0.975)  # 5 % over two ends
        for end in (0, 2)
    ]
    table = item_table(sweep(np.stack([values > 0, values > 0.5], axis=2), "position", range(3)), "strict", "position")
    assert table.values.tolist() == values.tolist()
    gap, _, ratio = rot_statistics(table)
    assert gap.interval.low == pytest.approx(max(end.low for end in ends))
    assert gap.interval.high == pytest.approx(max(end.high for end in ends))
    pairs = [
        ratio_of_accuracies(values[:, i], values[:, j], (24, 24), 1 - 0.05 / 3)  # 5 % over three pairs
        for i, j in permutations(range(3), 2)
    ]
    assert ratio.interval.low == max(1.0, *(pair.low for pair in pairs))
    assert ratio.interval.high == max(pair.high for pair in pairs)


def test_cochrans_q_and_mcnemar_by_hand() -> None:
    values = np.array(
        [[1, 0, 0], [1, 0, 1], [1, 1, 1], [1, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 0], [0, 1, 0]], dtype=float
    )
    found = paired_cells(table_of(values), [(0, 1), (0, 2)])
    columns, rows = values.sum(axis=0), values.sum(axis=1)
    q = 2 * (3 * (columns**2).sum() - columns.sum() ** 2) / (3 * rows.sum() - (rows**2).sum())
    assert found.q == pytest.approx(q)
    assert found.p == pytest.approx(stats.chi2.sf(q, 2))
    assert [(one.only_first, one.only_second) for one in found.pairs] == [(5, 1), (4, 1)]
    exact = [stats.binomtest(1, 6).pvalue, stats.binomtest(1, 5).pvalue]
    assert [one.p for one in found.pairs] == pytest.approx(exact)
    assert found.pairs[0].p_adjusted == pytest.approx(2 * exact[0])
    alike = paired_cells(table_of(np.ones((8, 3))), [(0, 1)])
    assert alike.q is None
    assert alike.pairs[0].p == 1
    with pytest.raises(InputError, match=r"the pair \(0, 3\) does not name two of the 3 conditions"):
        paired_cells(table_of(values), [(0, 3)])


def test_the_same_seed_gives_the_same_and_wrong_arguments_are_named() -> None:
    outcomes = sweep(answered(np.random.default_rng(6), 20, U), "position", range(6))
    assert accuracy_by_position(outcomes, seed=3).to_dict() == accuracy_by_position(outcomes, seed=3).to_dict()
    bad: list[tuple[dict[str, Any], str]] = [
        ({"metric": "logprob"}, "metric 'logprob' is no accuracy"),
        ({"level": 95}, "level must lie between 0 and 1"),
        ({"draws": 10}, "draws must be at least 99"),
        ({"middle": "off"}, "middle 'off' is unknown"),
        ({"axis": "depth"}, "no outcome has strict and a condition with 'depth'"),
    ]
    for arguments, message in bad:
        with pytest.raises(InputError, match=message):
            accuracy_by_position(outcomes, **arguments)
    with pytest.raises(InputError, match="bookend 'best' is unknown"):
        context_rot_gap(np.zeros(3), "best")
