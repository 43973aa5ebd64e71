"""What all maps share: a grid of values in colours, its axes with names where they fit, and the scale beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.report.figure_axes import LINE, number_ticks
from attnprobe.report.figure_text import text_width
from attnprobe.report.style import GREY, SMALL, WIDTHS, Width, new_figure

NAME_ROOM: dict[Width, float] = {"column": 0.95, "page": 2.0}
"""Inches for the name of a row, by the width of the figure."""

_CELL, _LOWEST, _HIGHEST = 0.16, 1.3, 4.2  # inches: a row of cells, and a whole grid at least and at most


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
        In the place of the numbers where they all fit; None where there are none.
    counted
        What follows the label where the numbers are shown.
    """

    label: str
    numbers: Sequence[int]
    names: Sequence[str] | None = None
    counted: str = ""


def grid_figure(
    values: np.ndarray,
    rows: Axis,
    columns: Axis,
    scale: str,
    width: Width,
    *,
    top: float | None = None,
    hatched: np.ndarray | None = None,
) -> tuple[Any, Any]:
    """A figure with one map: the first row on top, colours from 0 to the largest value, undefined cells hatched.

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
    top
        Value of the last colour, where it is not the largest one; what is above has that colour, too.
    hatched
        bool [row, column]: which cells are hatched; None: those that are NaN.

    Returns
    -------
    (Figure, Axes)
    """
    n_rows, n_columns = values.shape
    height = float(np.clip(_CELL * n_rows, _LOWEST, _HIGHEST))
    names = list(rows.names) if rows.names is not None and n_rows * LINE <= height else None
    widest = max(text_width(name, SMALL) for name in names or [f"{rows.numbers[-1]}"])
    room = WIDTHS[width] - widest - 1.05  # the row axis' label, and the colours' scale
    turned = columns.names if columns.names is not None and n_columns * LINE <= room else None
    below = max((text_width(name, SMALL) for name in turned), default=0.12) if turned is not None else 0.12
    figure = new_figure(width, height + below + 1.15)
    axes = figure.add_subplot()
    finite = values[np.isfinite(values)]
    highest = top if top is not None else float(finite.max(initial=0.0))
    lowest = float(finite.min(initial=0.0))
    image = axes.imshow(
        np.ma.masked_invalid(np.where(np.isposinf(values), 2 * highest - lowest, values)),
        aspect="auto",
        vmin=lowest,
        vmax=highest if highest > lowest else lowest + 1.0,
    )
    _hatch(axes, np.isnan(values) if hatched is None else hatched)
    if names is None:
        number_ticks(axes.yaxis, rows.numbers, height)
    else:
        axes.set_yticks(range(n_rows), names)
    if turned is None:
        number_ticks(axes.xaxis, columns.numbers, room)
    else:
        axes.set_xticks(range(n_columns), turned, rotation=90)
    axes.set_xlabel(columns.label + columns.counted * (turned is None))
    axes.set_ylabel(rows.label + rows.counted * (names is None))
    axes.spines[["left", "bottom"]].set_visible(False)
    over = bool((values > highest).any())
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=25, extend="max" if over else "neither")
    bar.outline.set_visible(False)
    bar.set_label(scale)
    return figure, axes


def _hatch(axes: Any, cells: np.ndarray) -> None:
    """Hatch cells, those beside each other in one stroke."""
    from matplotlib.patches import Rectangle

    for row, column in np.argwhere(cells & ~np.pad(cells, ((0, 0), (1, 0)))[:, :-1]):
        rest = cells[row, column:]
        length = len(rest) if rest.all() else int(np.argmin(rest))
        axes.add_patch(
            Rectangle((column - 0.5, row - 0.5), length, 1, fill=False, hatch="//////", edgecolor=GREY, linewidth=0)
        )
