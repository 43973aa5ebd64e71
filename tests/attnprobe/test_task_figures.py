"""Pictures of tasks: the values that are drawn, and captions that promise nothing else."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from task_data import make_task

from attnprobe.errors import InputError
from attnprobe.report.filler_figures import decomposition_figure, fillers_figure
from attnprobe.report.link_figure import link_figure
from attnprobe.report.matrix_figures import depths_figure, needle_of
from attnprobe.report.needle_figure import Needle, needle_figure
from attnprobe.report.scatter_figure import scatter_figure
from attnprobe.report.sweep_figures import answers_figure, published_figure
from attnprobe.report.task_figures import task_drawings
from attnprobe.tasks.task_data import TaskData
from attnprobe.tasks.task_summary import TaskSummary, task_summary


def summary_of(task: str = "needle_sweep", **values: Any) -> TaskSummary:
    return task_summary(make_task(task, **{"items": 6, "trials": 2} | values))


def note_of(figure: Any) -> str:
    return " ".join(figure.get_supxlabel().split())


def bars_of(axes: Any) -> list[Any]:
    """Strokes of two points that are no lines across the picture."""
    return [line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_transform() == axes.transData]


def scored(data: TaskData, *, strict: int, lenient: int) -> TaskData:
    return replace(data, outcomes=tuple(replace(one, strict=strict, lenient=lenient) for one in data.outcomes))


def wilson(hits: int, n: int) -> tuple[float, float]:
    z = 1.959963984540054
    centre, half = hits + z * z / 2, z * math.sqrt(hits * (n - hits) / n + z * z / 4)
    return 100 * (centre - half) / (n + z * z), 100 * (centre + half) / (n + z * z)


def test_a_point_is_a_prompt_less_the_mean_of_its_item_and_position() -> None:
    data = make_task(items=4, trials=3)
    (axes,) = scatter_figure(task_summary(data)).axes
    drawn = next(line for line in axes.lines if len(line.get_xdata()) > 2)
    expected = []
    for item in data.items:
        for position in range(6):
            own = [one for one in data.outcomes if one.item == item and one.condition.get("position") == position]
            x, y = (np.array([getattr(one, name) for one in own]) for name in ("advantage", "logprob"))
            expected += list(zip(x - x.mean(), y - y.mean(), strict=True))
    assert len(expected) == 4 * 6 * 3
    found = sorted(zip(drawn.get_xdata(), drawn.get_ydata(), strict=True))
    np.testing.assert_allclose(found, sorted(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("task", ["needle_sweep", "niah", "filler_control"])
def test_points_show_a_planted_link_of_every_task(task: str) -> None:
    summary = summary_of(task, items=10, trials=3)
    assert "scatter" in task_drawings(summary)
    assert np.corrcoef(summary.points.T)[0, 1] > 0.2
    assert f"one of {len(summary.points)} prompts" in note_of(scatter_figure(summary))


def test_without_several_trials_or_attention_there_are_no_points() -> None:
    for summary, why in (
        (summary_of(trials=1), "no item with several trials at one position"),
        (summary_of(behaviour_only=True), "no attention beside answers"),
    ):
        assert "scatter" not in task_drawings(summary)
        with pytest.raises(InputError, match=why):
            scatter_figure(summary)


def test_ones_own_published_curve_has_wilson_bars() -> None:
    data = make_task(items=9, trials=1)
    figure = published_figure(task_summary(data))
    bars = bars_of(figure.axes[0])
    for position, bar in enumerate(bars):
        hits = [one.lenient for one in data.outcomes if one.condition.get("position") == position]
        assert bar.get_xdata()[0] == pytest.approx(position / 5)
        np.testing.assert_allclose(bar.get_ydata(), wilson(sum(hits), len(hits)), rtol=1e-9)
    assert len(bars) == 6
    assert "Bars: 95 % Wilson of yours." in note_of(figure)


def test_few_items_stand_beside_no_published_curve() -> None:
    few, enough = summary_of(items=4), summary_of(items=5)
    assert ["published" in task_drawings(one) for one in (few, enough)] == [False, True]
    with pytest.raises(InputError, match=r"too few items .* curves: 4, and 5 are needed|nothing stands beside"):
        published_figure(few)


def test_equal_curves_are_one_and_others_are_both_seen() -> None:
    equal = task_summary(scored(make_task(items=6, trials=1), strict=1, lenient=1))
    unequal = task_summary(scored(make_task(items=6, trials=1), strict=0, lenient=1))
    names = [[text.get_text() for text in answers_figure(one).axes[0].get_legend().texts] for one in (equal, unequal)]
    assert names[0][0] == "strict = lenient"
    assert "lenient" not in names[0]
    assert names[1][:2] == ["strict", "lenient"]
    strict, lenient = [line for line in answers_figure(unequal).axes[0].lines if len(line.get_xdata()) == 6]
    assert lenient.get_markerfacecolor() == "none"
    assert lenient.get_markersize() > strict.get_markersize()


@pytest.mark.parametrize("draw", [fillers_figure, decomposition_figure])
def test_captions_of_fillers_speak_of_bars_where_there_are_some(draw: Any) -> None:
    few, enough = (draw(summary_of("filler_control", items=items, trials=1)) for items in (4, 6))
    assert "No bars: too few items for intervals." in note_of(few)
    assert "Bars: 95 % t intervals over items." in note_of(enough)
    assert [any(map(bars_of, figure.axes)) for figure in (few, enough)] == [False, True]


def test_the_link_says_its_condition_and_what_is_left_after_adjustment() -> None:
    heads = [(1, 0), (1, 1), (1, 2), (1, 3)]
    planted, none = (link_figure(summary_of(items=12, link=link, heads=heads)) for link in (1.0, 0.0))
    label = " ".join(planted.axes[0].get_ylabel().split())
    assert label == "rank correlation with the log-probability, at one and the same position"
    assert "Layers with p below 0.05 after adjustment (Holm): 1." in note_of(planted)
    assert "after adjustment (Holm): none." in note_of(none)
    few = link_figure(summary_of(items=3))
    assert "No bars" in note_of(few)
    assert not bars_of(few.axes[0])
    assert "over all prompts of an item" in " ".join(link_figure(summary_of(trials=1)).axes[0].get_ylabel().split())


def test_percentages_have_one_scale_and_depths_one_unit() -> None:
    summary = summary_of("niah")
    depths, answers = depths_figure(summary), answers_figure(summary)
    for figure in (depths, answers):
        low, high = figure.axes[0].get_ylim()
        assert -5 < low <= 0
        assert 100 <= high < 105
        assert figure.axes[-1].get_xlabel() == "depth of the needle (%)"
        assert list(figure.axes[-1].lines[0].get_xdata()) == [0, 50, 100]
    strict = needle_figure(needle_of(summary, "strict"))
    assert strict.axes[0].images[0].get_clim() == (0, 100)


def test_maps_have_one_number_of_decimals_and_colours_around_zero() -> None:
    summary = summary_of("niah")
    logprob, mass = (needle_figure(needle_of(summary, name)).axes[0] for name in ("logprob", "mass"))
    decimals = {len(text.get_text().partition(".")[2]) for text in logprob.texts}
    assert len(logprob.texts) == 9
    assert decimals == {2}
    low, high = logprob.images[0].get_clim()
    assert low == -high
    assert logprob.images[0].get_cmap()(0.5)[:3] == pytest.approx((0.97, 0.97, 0.97), abs=0.02)
    assert mass.images[0].get_clim()[0] == 0
    small = needle_figure(Needle([1, 2], [0, 1], [[0.0123, -0.00001], [0.5, math.inf]], "loss")).axes[0]
    assert sorted(text.get_text() for text in small.texts) == ["0.000", "0.012", "0.500", "∞"]
