"""What all maps share: a grid of values in colours, its axes with names where they fit, and the scale beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.report.figure_axes import LINE, number_ticks
from attnprobe.report.figure_text import text_width, wrapped
from attnprobe.report.style import BLACK, BODY, DIVERGING, GREY, SEQUENTIAL, SMALL, WIDTHS, Width, new_figure

NAME_ROOM: dict[Width, float] = {"column": 0.95, "page": 2.0}
"""Inches for the name of a row, by the width of the figure."""

_CELL, _LOWEST, _HIGHEST = 0.16, 1.3, 4.2  # inches: a row of cells, and a whole grid at least and at most
_BAR = 0.1  # inches that the colours' scale is wide


@dataclass(frozen=True)
class Axis:
    """One side of a grid.

    Parameters
    ----------
    label
        What it is, with its unit.
    numbers
        Of its places, for ticks.
    names
        In the place of the numbers where they fit; None where there are none.
    counted
        What follows the label where the numbers are shown.
    thinned
        Whether every second name, or third, may be shown where not all fit.
    """

    label: str
    numbers: Sequence[int]
    names: Sequence[str] | None = None
    counted: str = ""
    thinned: bool = False

    def shown(self, room: float) -> dict[int, str]:
        """The names to show on ``room`` inches, by place; none where the numbers are to be shown."""
        names = self.names or ()
        step = math.ceil(len(names) * LINE / room - 1e-9)
        return {place: names[place] for place in range(0, len(names), max(step, 1)) if step <= 1 or self.thinned}


def grid_figure(
    values: np.ndarray,
    rows: Axis,
    columns: Axis,
    scale: str,
    width: Width,
    *,
    height: float | None = None,
    top: float | None = None,
    hatched: np.ndarray | None = None,
    mark: float | None = None,
) -> tuple[Any, Any]:
    """A figure with one map: the first row on top, colours from 0 to the largest value, undefined cells hatched.

    Where values are below 0, colours leave 0 in both directions, equally far.

    Parameters
    ----------
    values
        float64 [row, column]; NaN cells stay white, infinite ones have the largest value's colour.
    rows, columns
        The axes.
    scale
        Name and unit of the values.
    width
        Of the figure.
    height
        Of the map, inches; None: by the number of rows.
    top
        Value of the last colour, where it is not the largest one; what is above has that colour, too.
    hatched
        bool [row, column]: which cells are hatched; None: those that are NaN.
    mark
        A value to mark on the colours' scale.

    Returns
    -------
    (Figure, Axes)
    """
    n_rows, _ = values.shape
    height = float(np.clip(_CELL * n_rows, _LOWEST, _HIGHEST)) if height is None else height
    names = rows.shown(height)
    widest = max(text_width(name, SMALL) for name in names.values() or [f"{rows.numbers[-1]}"])
    room = WIDTHS[width] - widest - 1.05  # the row axis' label, and the colours' scale
    across = columns.shown(room)
    longest = max((text_width(name, SMALL) for name in across.values()), default=0.0)
    is_turned = len(across) * (longest + 0.08) > room
    below = longest if is_turned else 0.12
    figure = new_figure(width, height + below + 1.15)
    axes = figure.add_subplot()
    finite = values[np.isfinite(values)]
    highest = top if top is not None else float(finite.max(initial=0.0))
    lowest = float(finite.min(initial=0.0))
    if lowest < 0:
        highest = max(highest, -lowest)
        lowest = -highest
    image = colour_map(axes, values, lowest, highest, hatched)
    if names:
        axes.set_yticks(list(names), names.values())
    else:
        number_ticks(axes.yaxis, rows.numbers, height)
    if across:
        axes.set_xticks(list(across), across.values(), rotation=90 if is_turned else 0)
    else:
        number_ticks(axes.xaxis, columns.numbers, room)
    axes.set_xlabel(columns.label + columns.counted * (not across))
    axes.set_ylabel(rows.label + rows.counted * (not names))
    colour_scale(figure, image, [axes], scale, height, mark, over=bool((values > highest).any()))
    return figure, axes


def colour_map(axes: Any, values: np.ndarray, lowest: float, highest: float, hatched: np.ndarray | None = None) -> Any:
    """Draw values [row, column] as colours; gives the image, for :func:`colour_scale`."""
    image = axes.imshow(
        np.ma.masked_invalid(np.where(np.isposinf(values), 2 * highest - lowest, values)),
        aspect="auto",
        vmin=lowest,
        vmax=highest if highest > lowest else lowest + 1.0,
        cmap=DIVERGING if lowest < 0 else SEQUENTIAL,
    )
    _hatch(axes, np.isnan(values) if hatched is None else hatched)
    axes.spines[["left", "bottom"]].set_visible(False)
    return image


def colour_scale(
    figure: Any,
    image: Any,
    beside: Sequence[Any],
    scale: str,
    room: float,
    mark: float | None = None,
    *,
    over: bool = False,
) -> None:
    """Explain an image's colours at the right of some axes, which are ``room`` inches high together.

    ``scale`` is their name and unit; a line stands at ``mark``, an arrow on top where values are ``over`` the colours.
    """
    bar = figure.colorbar(image, ax=beside, pad=0.02, aspect=room / _BAR, extend="max" if over else "neither")
    bar.outline.set_visible(False)
    bar.set_label("\n".join(wrapped(scale, room, BODY)))
    if mark is not None:
        for colour, thick in ((BLACK, 2.4), ("white", 1.2)):  # seen on every colour
            bar.ax.axhline(mark, color=colour, linewidth=thick)


def _hatch(axes: Any, cells: np.ndarray) -> None:
    """Hatch cells, those beside each other in one stroke."""
    from matplotlib.patches import Rectangle

    for row, column in np.argwhere(cells & ~np.pad(cells, ((0, 0), (1, 0)))[:, :-1]):
        rest = cells[row, column:]
        length = len(rest) if rest.all() else int(np.argmin(rest))
        axes.add_patch(
            Rectangle((column - 0.5, row - 0.5), length, 1, fill=False, hatch="//////", edgecolor=GREY, linewidth=0)
        )
