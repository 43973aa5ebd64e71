"""Accuracy by position: hand-made cells, the articles' claims about gaps, false alarms and coverage in simulation."""

from __future__ import annotations

import json
import re
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from scipy import stats
from task_outcomes import answered, sweep

from attnprobe.errors import InputError
from attnprobe.tasks.accuracy import accuracy_by_position, end_contrasts
from attnprobe.tasks.context_rot import BEYOND, best_worst_ratio, context_rot_gap, rot_statistics, turned_over
from attnprobe.tasks.ends import Ends, find_ends
from attnprobe.tasks.item_intervals import ratio_of_accuracies
from attnprobe.tasks.item_table import ItemTable, item_table
from attnprobe.tasks.outcome import Outcome
from attnprobe.tasks.paired_cells import paired_cells
from attnprobe.tasks.position_means import means_by_position

U = np.array([1.5, 0.5, -1.0, -1.0, 0.5, 1.0])


def table_of(values: np.ndarray) -> ItemTable:
    return item_table(sweep(values, "position", range(values.shape[1])), "strict", "position")


def ends_of(K: int) -> Ends:
    """Of documents 0 to K - 1, all tested."""
    ends, reason = find_ends(range(K), "position", [])
    assert ends is not None
    assert reason is None
    return ends


def test_chance_alone_makes_gaps_and_ratios() -> None:
    """Ten positions of 50 trials each, no effect: how often the article's statistics say otherwise."""
    rng = np.random.default_rng(0)
    flat = rng.binomial(50, 0.8, size=(40_000, 10)) / 50
    article = Ends(0, 9, (4, 5, 6))
    large = {
        bookend: [(context_rot_gap(flat, ends, bookend) > 0.05 + 1e-9).mean() for ends in (article, ends_of(10))]
        for bookend in ("max", "mean")
    }
    assert large["max"] == pytest.approx([0.37, 0.35], abs=0.01)  # the article's middle, ours
    assert large["mean"] == pytest.approx([0.16, 0.165], abs=0.01)
    assert np.median(best_worst_ratio(rng.binomial(50, 0.3, size=(40_000, 10)) / 50)) == pytest.approx(2.0, abs=0.05)
    # The null of such a study, made from it alone, knows: its threshold is the flat studies' 95 % quantile.
    study = table_of((rng.random((50, 10)) < 0.8).astype(float))
    gap_max, gap_mean, ratio = rot_statistics(study, ends_of(10))
    assert gap_max.threshold == pytest.approx(np.quantile(context_rot_gap(flat, ends_of(10), "max"), 0.95), abs=0.02)
    assert gap_mean.threshold == pytest.approx(np.quantile(context_rot_gap(flat, ends_of(10), "mean"), 0.95), abs=0.02)
    assert ratio.threshold == pytest.approx(np.quantile(best_worst_ratio(flat), 0.95), abs=0.1)
    assert gap_max.null_median > 0.01
    assert "biased upward" in gap_max.note


def test_gap_and_ratio_by_hand() -> None:
    accuracy = np.array([0.9, 0.5, 0.2, 0.4, 0.6])
    assert context_rot_gap(accuracy, ends_of(5), "max") == pytest.approx(0.9 - 1.1 / 3)
    assert context_rot_gap(accuracy, ends_of(5), "mean") == pytest.approx(0.75 - 1.1 / 3)
    assert context_rot_gap(accuracy[:4], ends_of(4)) == pytest.approx(0.9 - 0.35)
    assert context_rot_gap(accuracy[:3], ends_of(3)) == pytest.approx(0.9 - 0.5)
    assert best_worst_ratio(accuracy) == pytest.approx(4.5)
    assert best_worst_ratio(np.array([0.5, 0.0, 0.5])) == np.inf
    for undefined in (best_worst_ratio(accuracy[:1]), best_worst_ratio(np.zeros(4))):
        assert np.isnan(undefined)


def test_profiles_turned_over_are_every_way_and_keep_the_pooled_accuracy() -> None:
    values = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.5]])
    flipped = turned_over(values, 99, 0)
    assert flipped[0] == pytest.approx(values.mean(axis=0))
    assert flipped.mean(axis=1) == pytest.approx(values.mean())
    profiles = values - values.mean(axis=1, keepdims=True)
    expected = [
        values.mean() + np.mean([s * p for s, p in zip(signs, profiles, strict=True)], axis=0)
        for signs in product((1, -1), repeat=3)
    ]
    assert sorted(map(tuple, flipped.round(12))) == sorted(map(tuple, np.round(expected, 12)))


def test_items_with_effects_of_their_own_raise_few_alarms() -> None:
    """Every item has positions that it likes, of no effect on the whole; dealing hits out finds 12 to 50 %."""
    rng = np.random.default_rng(8)
    reached = []
    for _ in range(200):
        values = answered(rng, 13, rng.normal(size=(13, 5)), trials=20).mean(axis=2)
        table = ItemTable(
            "strict",
            "position",
            tuple(map(str, range(13))),
            tuple(range(5)),
            (0,),
            values[..., None],
            np.full((13, 5, 1), np.nan),
        )
        reached.append([one.p <= 0.05 for one in rot_statistics(table, ends_of(5), draws=199)])
    assert (np.mean(reached, axis=0) <= 0.097).all()  # 5 % and three standard errors
    assert (np.mean(reached, axis=0) >= 0.01).all()


def test_p_of_a_gap_is_small_where_the_ends_are_better_and_large_where_they_are_worse() -> None:
    values = answered(np.random.default_rng(9), 20, 2 * U)
    better = rot_statistics(table_of(values[..., 0]), ends_of(6))
    worse = rot_statistics(table_of(1 - values[..., 0]), ends_of(6))
    for up, down in zip(better[:2], worse[:2], strict=True):
        assert up.p < 0.01
        assert down.p > 0.9
    signs = np.array(list(product((1, -1), repeat=8)))
    few = values[:8, :, 0]
    differences = few[:, [0, 5]].mean(axis=1) - few[:, 2:4].mean(axis=1)
    expected = np.mean(signs @ differences >= differences.sum() - 1e-9)
    assert rot_statistics(table_of(few), ends_of(6))[1].p == pytest.approx(expected)


@pytest.mark.parametrize(
    ("levels", "axis", "documents", "middle", "said"),
    [
        ((0, 1, 2, 3, 4), "position", 5, (1, 2, 3), None),
        ((0, 4, 9, 14, 19), "position", 20, (1, 2, 3), None),
        ((0, 1, 2, 10, 19), "position", 20, (3,), None),  # by rank 1, 2 and 10 would be the middle
        ((8, 9, 10, 11, 12), "position", 20, None, "go from 8 to 12, of 0 to 19.*test 0 and 19, too"),
        ((0, 3, 6), "position", 10, None, "test 9, too"),
        ((0, 1, 9), "position", 10, None, "no position near the middle was tested"),
        ((0.0, 0.5, 1.0), "depth", None, (1,), None),
        ((0.1, 0.5, 0.9), "depth", None, None, "go from 0.1 to 0.9, of 0 to 1"),
        ((0, 1), "position", 2, None, "2 positions: there is no middle"),
    ],
)
def test_ends_and_middle_are_what_they_are_called(
    levels: tuple[float, ...], axis: str, documents: int | None, middle: tuple[int, ...] | None, said: str | None
) -> None:
    facts = {} if documents is None else {"n_documents": documents}
    outcomes = [
        Outcome(f"item {i}", 0, {axis: level}, strict=int(i + k < 7), logprob=-1.0 - k, facts=facts)
        for i in range(8)
        for k, level in enumerate(levels)
    ]
    for found in (accuracy_by_position(outcomes, axis=axis), means_by_position(outcomes, axis=axis)):
        assert (None if found.ends is None else found.ends.middle) == middle
        assert (found.head_minus_middle is None) == (middle is None)
        if said is not None and len(levels) > 2:
            assert re.search(said, found.warnings[-1])
        if middle is not None:
            values = item_table(outcomes, found.metric, axis).values
            expected = (values[:, 0] - values[:, list(middle)].mean(axis=1)).mean()
            assert found.head_minus_middle.interval.estimate == pytest.approx(expected)
    gap = accuracy_by_position(outcomes, axis=axis).gap_mean
    if said is not None:
        assert (gap.interval.estimate, gap.verdict.verdict) == (None, "undefined")
        assert re.search(said, gap.interval.reason)


def test_prompts_of_different_sizes_have_no_common_last_place() -> None:
    outcomes = [
        Outcome(f"item {i}", 0, {"position": k}, strict=1, facts={"n_documents": 4 + i % 2})
        for i in range(6)
        for k in range(4)
    ]
    found = accuracy_by_position(outcomes)
    assert found.head_minus_middle is None
    assert "differ in their number of documents" in found.warnings[0]


def test_what_is_missing_elsewhere_is_left_out_of_a_comparison() -> None:
    """No effect of depth; half of the items lack the longest, hardest length at one depth."""
    rng = np.random.default_rng(10)
    lengths, depths = (1000, 4000), (0.0, 0.5, 1.0)
    outcomes = [
        Outcome(
            f"item {i}",
            trial,
            {"length": length, "depth": depth},
            strict=int(rng.random() < good),
            logprob=-1.0 - (length > 1000),
            facts={},
        )
        for i in range(12)
        for length, good in zip(lengths, (0.95, 0.1), strict=True)
        for depth in depths
        for trial in range(2)
        if not (i < 6 and (length, depth) == (4000, 0.5))
    ]
    means = means_by_position(outcomes, axis="depth", pool=("length",))
    assert means.band.estimate == pytest.approx([0, 0, 0], abs=1e-12)
    assert means.head_minus_middle.interval.estimate == pytest.approx(0, abs=1e-12)
    assert means.warnings == ("24 cells of the other items left out, as what they would be compared with is missing",)
    strict = accuracy_by_position(outcomes, axis="depth", pool=("length",))
    table = item_table(outcomes, "strict", "depth", pool=("length",)).complete()
    assert table.trials.sum(axis=1).tolist() == [6] * 6 + [12] * 6
    assert [cell.trials for cell in strict.cells] == [36] * 3
    short = {o.item: o.strict for o in outcomes if o.condition == {"length": 1000, "depth": 0.5} and o.trial == 0}
    both = [o.strict for o in outcomes if o.item == "item 0" and o.condition == {"length": 1000, "depth": 0.5}]
    assert set(short) == set(table.items)
    assert table.values[0, 1] == np.mean(both)
    # A trial that is missing at one position is missing at all of them.
    trial = sweep(answered(rng, 8, U, trials=3), "position", range(6))
    some = [one for one in trial if not (one.item == "item 2" and one.trial == 1 and one.condition["position"] == 4)]
    assert item_table(some, "strict", "position").complete().trials[2].tolist() == [2] * 6
    assert accuracy_by_position(some).cells[0].trials == 24  # a place by itself counts all it has


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
        statistics = rot_statistics(table, ends_of(4), draws=199)
        exceeds.append([one.exceeds for one in statistics])
        covered.append(
            [one.interval.low <= truth <= one.interval.high for one, truth in zip(statistics, (0, 0, 1), strict=True)]
        )
        alarms.append(min(end.p for end in end_contrasts(table.values, ends_of(4), 0.95, 0, span=2.0)) <= 0.05)
    assert (np.mean(exceeds, axis=0) <= 0.103).all()  # 5 % and three standard errors
    assert (np.mean(covered, axis=0) >= 0.897).all()  # 95 % less three
    assert np.mean(alarms) <= 0.103


def test_the_better_bookends_interval_covers_a_u() -> None:
    rng = np.random.default_rng(5)
    mean = answered(rng, 200_000, U).mean(axis=(0, 2))
    truth = context_rot_gap(mean, ends_of(6))
    inside = []
    for _ in range(100):
        gap = rot_statistics(table_of(answered(rng, 16, U)), ends_of(6), draws=99)[0].interval
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
    gap, _, ratio = rot_statistics(table, ends_of(3))
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
        ({"axis": "depth"}, "no outcome has strict and a condition with 'depth'"),
    ]
    for arguments, message in bad:
        with pytest.raises(InputError, match=message):
            accuracy_by_position(outcomes, **arguments)
    with pytest.raises(InputError, match="bookend 'best' is unknown"):
        context_rot_gap(np.zeros(3), ends_of(3), "best")
