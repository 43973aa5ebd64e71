"""Axes of pictures: numbers that do not touch, names where they fit, bars of intervals, labels at the ends of lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from attnprobe.estimates import Interval
from attnprobe.report.figure_text import label, text_width
from attnprobe.report.style import SMALL

LINE = 1.25 * SMALL / 72
"""Inches that a line of small text takes."""


def spaced(n: int, room: float, each: float) -> list[int]:
    """Places of 0 ... n - 1 to mark so that marks of ``each`` inches do not touch on ``room`` inches: round steps."""
    most = max(int(room / each), 1)
    step = next(
        s * 10**power for power in range(10) for s in (1, 2, 5) if (n - 1) // (s * 10**power) + 1 <= most or n == 1
    )
    return list(range(0, n, step))


def thinned(values: Sequence[Any], most: int) -> Sequence[Any]:
    """At most so many of the values, evenly apart, so that ticks do not touch."""
    return values[:: -(-len(values) // most)]


def whiskers(
    axes: Any,
    places: Iterable[float],
    intervals: Iterable[Interval],
    colour: str,
    scale: float = 1,
    across: bool = False,
    **line: Any,
) -> None:
    """Draw each interval that has bounds as a line at its place: upright, or ``across`` from left to right.

    Parameters
    ----------
    axes
        To draw in.
    places
        Of the intervals on the other axis.
    intervals
        As many.
    colour
        Of the lines.
    scale
        What bounds are multiplied by.
    across
        Whether bounds are on the x axis.
    line
        More of the lines' look, as matplotlib's ``plot`` takes it.
    """
    for place, interval in zip(places, intervals, strict=True):
        if interval.low is not None and interval.high is not None:
            ends, at = (scale * interval.low, scale * interval.high), (place, place)
            x, y = (ends, at) if across else (at, ends)
            axes.plot(x, y, "-", color=colour, **line)


def number_ticks(axis: Any, numbers: Sequence[int], room: float) -> None:
    """Mark an axis whose places are 0, 1, 2, ... with their numbers, as many as fit on ``room`` inches."""
    widest = max(text_width(f"{number:,}", SMALL) for number in (numbers[0], numbers[-1]))
    horizontal = axis.axis_name == "x"
    places = spaced(len(numbers), room, widest + 0.08 if horizontal else LINE)
    axis.set_ticks(places, [f"{numbers[place]:,}" for place in places])


def document_labels(documents: Sequence[str] | None, n: int, room: float) -> list[str] | None:
    """``2: policy.md`` for every document; a number alone where the name cannot be drawn.

    None where there are no names beside the numbers.
    """
    if documents is None or all(name == str(number) for number, name in enumerate(documents)):
        return None
    room -= text_width(f"{n - 1}: ", SMALL)
    drawn = [label(name, room, SMALL) for name in documents]
    return [f"{number}" if name is None else f"{number}: {name}" for number, name in enumerate(drawn)]


def legend_above(axes: Any, room: float | None = None, *, reverse: bool = False) -> None:
    """Name the lines above the axes at the left, in as many columns as fit; the figure grows by them.

    Parameters
    ----------
    axes
        Of the lines.
    room
        Inches that the axes are wide; None: as the figure is.
    reverse
        Name the last line first.
    """
    handles, names = axes.get_legend_handles_labels()
    if reverse:
        handles, names = handles[::-1], names[::-1]
    each = max(text_width(name, SMALL) for name in names) + 0.45  # with the sample of the line
    figure = axes.get_figure()
    n_rows = math.ceil(len(names) / max(int((room or figure.get_figwidth() - 0.6) / each), 1))
    figure.set_figheight(figure.get_figheight() + n_rows * LINE)
    axes.legend(
        handles,
        names,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=math.ceil(len(names) / n_rows),
        borderaxespad=0.3,
        borderpad=0,
        columnspacing=1.2,
        labelspacing=0.25,
    )


def end_labels(axes: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write names beside the right ends of lines, moved apart where they would touch.

    Parameters
    ----------
    axes
        With its limits set already.
    ends
        Of each line the y at its right end, its name and its colour.
    """
    figure = axes.get_figure()
    low, high = axes.get_ylim()
    height = figure.get_figheight() * 0.62  # of the axes, before the layout is known; the rest is labels and notes
    least = (high - low) * LINE / height
    order = sorted(range(len(ends)), key=lambda i: ends[i][0])
    places = [float(np.clip(ends[i][0], low, high)) for i in order]
    for _ in range(200):
        moved = False
        for below, above in zip(range(len(places) - 1), range(1, len(places)), strict=True):
            lack = least - (places[above] - places[below])
            if lack > 1e-9 * least:
                places[below] -= lack / 2
                places[above] += lack / 2
                moved = True
        if not moved:
            break
    for place, i in zip(places, order, strict=True):
        _, name, colour = ends[i]
        axes.annotate(
            label(name, 0.3 * figure.get_figwidth(), SMALL) or f"number {i + 1}",
            (1.0, place),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=SMALL,
            annotation_clip=False,
        )
