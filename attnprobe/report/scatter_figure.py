"""Figure of answers against attention: a point a prompt, with item and condition held fixed."""

from __future__ import annotations

from typing import Any

from attnprobe.errors import InputError
from attnprobe.report.style import BLACK, BLUE, Width, new_figure, say_around, styled
from attnprobe.report.task_notes import about_task
from attnprobe.study_text import interval_cell
from attnprobe.tasks.task_numbers import TEXTS, p_equation
from attnprobe.tasks.task_summary import TaskSummary
from attnprobe.tasks.task_verdict import PLACES
from attnprobe.terminal import count


@styled
def scatter_figure(summary: TaskSummary, *, width: Width = "column") -> Any:
    """The answer against the evidence's attention, one point a prompt, each less the mean of its item and condition.

    Parameters
    ----------
    summary
        Of any task.
    width
        ``column`` (3.3 inches) or ``page`` (6.9).

    Raises
    ------
    InputError
        Attention or answers were not measured, or no item has several trials in a condition.
    """
    link = summary.link
    if link is None or not len(summary.points):
        why = "attention beside answers" if link is None else f"item with several trials at one {PLACES[summary.task]}"
        raise InputError(f"{summary.task} of {summary.model} has no {why}, so there are no points to draw")
    predictor, metric = TEXTS[link.predictor], TEXTS[link.metric]
    x, y = (summary.points * (predictor.scale, metric.scale)).T
    figure = new_figure(width, 2.6)
    axes = figure.add_subplot()
    for line in (axes.axhline, axes.axvline):
        line(0, color=BLACK, linewidth=0.8)
    axes.plot(x, y, "o", color=BLUE, markersize=3, alpha=0.5, markeredgewidth=0)
    axes.set_xlabel(f"{predictor.name} of the evidence, less the mean ({predictor.value_unit})")
    axes.set_ylabel(f"{metric.name},\nless the mean ({metric.value_unit})")
    axes.grid()
    found = link.overall.by_name[link.predictor].correlation
    p = "" if found.p_value is None else f", {p_equation(found.p_value)}"
    note = (
        f"{about_task(summary)} A point is one of {count(len(x), 'prompt')}, less the mean of its item at one and the "
        f"same {PLACES[summary.task]}. Rank correlation within these: {interval_cell(found.within_position)}{p}."
    )
    say_around(figure, "Answer against attention, prompt by prompt", note)
    return figure
