"""Figure of the link between attention and answer, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnprobe.errors import InputError
from attnprobe.estimates import Interval
from attnprobe.report.figure_axes import legend_above, number_ticks, whiskers
from attnprobe.report.figure_text import wrapped
from attnprobe.report.style import BLACK, BLUE, BODY, ORANGE, WIDTHS, Width, new_figure, say_around, styled
from attnprobe.report.task_notes import about_task, bars_note
from attnprobe.tasks.association import Association
from attnprobe.tasks.attention_link import ALPHA
from attnprobe.tasks.task_numbers import TEXTS
from attnprobe.tasks.task_summary import TaskSummary
from attnprobe.tasks.task_verdict import PLACES
from attnprobe.terminal import named


@styled
def link_figure(summary: TaskSummary, *, width: Width = "column") -> Any:
    """Rank correlation of the evidence's attention with the answer in every layer, at one and the same condition.

    Where no item has several trials in a condition, it is that over all prompts of an item.

    Parameters
    ----------
    summary
        Of any task.
    width
        ``column`` (3.3 inches) or ``page`` (6.9).

    Raises
    ------
    InputError
        Attention or answers were not measured.
    """
    link = summary.link
    if link is None:
        raise InputError(
            f"{summary.task} of {summary.model} has no attention beside answers, so there is no link to draw"
        )
    layers = {name: one for name, one in link.layers.by_name.items() if name.startswith("layer ")}
    is_within = any(one.correlation.within_position.estimate is not None for one in layers.values())
    found = [_of(one, is_within) for one in layers.values()]
    figure = new_figure(width, 2.3)
    axes = figure.add_subplot()
    x = np.arange(len(found))
    whiskers(axes, x, found, BLUE, linewidth=1)
    estimates = [np.nan if one.estimate is None else one.estimate for one in found]
    axes.plot(x, estimates, "o", color=BLUE, markersize=3, label=f"layer's {TEXTS[link.predictor].name}")
    axes.axhline(0, color=BLACK, linewidth=0.8)
    lines = [("all layers", link.overall.by_name[link.predictor], BLUE, "--")]
    has_heads = link.heads is not None and _of(link.heads.chosen, is_within).low is not None
    if link.heads is not None and has_heads:
        lines.append((f"chosen heads ({len(link.heads.heads)})", link.heads.chosen, ORANGE, "-."))
    for label, one, colour, style in lines:
        estimate = _of(one, is_within).estimate
        if estimate is not None:
            axes.axhline(estimate, color=colour, linestyle=style, linewidth=1, label=label)
    number_ticks(axes.xaxis, [int(name.removeprefix("layer ")) for name in layers], WIDTHS[width] - 0.7)
    axes.set_xlabel("layer")
    where = f"at one and the same {PLACES[summary.task]}" if is_within else "over all prompts of an item"
    label = f"rank correlation with the {TEXTS[link.metric].name}, {where}"
    axes.set_ylabel("\n".join(wrapped(label, 1.9, BODY)))
    axes.grid(axis="y")
    legend_above(axes)
    heads = " Heads: chosen on half of the items, drawn for the other half." if has_heads else ""
    say_around(
        figure,
        "Attention to the evidence and the answer",
        f"{about_task(summary)} Within items.{bars_note(found, '95 % over items, each layer by itself')}"
        f"{_tests(layers)}{heads}",
    )
    return figure


def _tests(layers: Mapping[str, Association]) -> str:
    """Which layers' p is small after adjustment; nothing where none was tested."""
    tested = {name.removeprefix("layer "): one.p_adjusted for name, one in layers.items() if one.p_adjusted is not None}
    if not tested:
        return ""
    below = [layer for layer, p in tested.items() if p < ALPHA]
    return f" Layers with p below {ALPHA:g} after adjustment (Holm): {named(below, 8) or 'none'}."


def _of(one: Association, is_within: bool) -> Interval:
    return one.correlation.within_position if is_within else one.correlation.within_question
