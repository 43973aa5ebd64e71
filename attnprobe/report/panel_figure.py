"""Small multiples: a row of like maps, one for each document, on the same axes and with one scale of colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnprobe.report.figure_axes import LINE, number_ticks
from attnprobe.report.figure_text import text_width
from attnprobe.report.grid_figure import Axis, colour_map, colour_scale
from attnprobe.report.style import SMALL, WIDTHS, Width, new_figure

_MOST_ACROSS: dict[Width, int] = {"column": 5, "page": 7}
_CELL: dict[Width, float] = {"column": 0.035, "page": 0.045}  # inches that a row of cells is high
_LOWEST, _HIGHEST = 1.2, 1.8  # inches: a panel at least and at most


def panel_figure(
    values: np.ndarray,
    titles: Sequence[str],
    names: Sequence[str] | None,
    rows: Axis,
    columns: Axis,
    scale: str,
    width: Width,
    *,
    mark: float | None = None,
) -> Any:
    """A figure with a map for each of several things, the first at the top left.

    Parameters
    ----------
    values
        float64 [panel, row, column]; NaN cells are hatched.
    titles, names
        What stands above the panels: ``names`` where they are known and all fit, else ``titles``.
    rows, columns
        The axes, which all panels share; only their numbers are shown.
    scale
        Name and unit of the values.
    width
        Of the figure.
    mark
        A value to mark on the colours' scale.
    """
    n_panels, n_rows, _ = values.shape
    n_lines = math.ceil(n_panels / _MOST_ACROSS[width])
    n_across = math.ceil(n_panels / n_lines)
    room = (WIDTHS[width] - 1.15) / n_across  # the row axis' label, and the colours' scale
    high = float(np.clip(_CELL[width] * n_rows, _LOWEST, _HIGHEST))
    figure = new_figure(width, n_lines * (high + LINE + 0.08) + 0.45)
    grid = figure.subplots(n_lines, n_across, sharex=True, sharey=True, squeeze=False).ravel()
    fits = names is not None and all(text_width(name, SMALL) <= room - 0.06 for name in names)
    for axes, panel, title in zip(grid, values, names if fits and names is not None else titles, strict=False):
        image = colour_map(axes, panel, float(np.nanmin(values, initial=0.0)), float(np.nanmax(values, initial=0.0)))
        axes.set_title(title, fontsize=SMALL, pad=2.5)
    for axes in grid[n_panels:]:
        axes.set_visible(False)
    number_ticks(grid[0].xaxis, columns.numbers, room)
    number_ticks(grid[0].yaxis, rows.numbers, high)
    for place in range(n_panels):
        if place % n_across == 0:
            grid[place].set_ylabel(rows.label)
        if place // n_across == n_lines - 1:
            grid[place].set_xlabel(columns.label)
    colour_scale(figure, image, grid[:n_panels].tolist(), scale, n_lines * (high + LINE), mark)
    return figure
