"""The map of a needle test: a value for every length of the context and depth of the needle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.errors import InputError
from attnprobe.report.figure_text import shown, text_width
from attnprobe.report.grid_figure import Axis, grid_figure
from attnprobe.report.style import SMALL, Width, say_around, styled


@dataclass(frozen=True, eq=False)
class Needle:
    """What was found with a needle at several depths of contexts of several lengths.

    Parameters
    ----------
    lengths
        Of the contexts, tokens.
    depths
        Where the needle stands, as a part of the context: 0 (start) to 1 (end).
    values
        float [length, depth]; NaN where there is none.
    label, unit
        What the values are, e.g. ``share of the needle`` in ``%``; an empty unit for pure numbers.
    about
        What they come from, for the note below.
    highest
        Value of the last colour, for values that have a largest possible one; None: the largest value.

    Raises
    ------
    InputError
        When the parts do not fit each other.
    """

    lengths: Sequence[int]
    depths: Sequence[float]
    values: np.ndarray
    label: str
    unit: str = ""
    about: str = ""
    highest: float | None = None

    def __post_init__(self) -> None:
        try:
            values = np.array(self.values, dtype=np.float64)  # None becomes NaN
        except (TypeError, ValueError) as error:
            raise InputError(f"values are no matrix of numbers: {error}") from error
        if not len(self.lengths) or not len(self.depths) or values.shape != (len(self.lengths), len(self.depths)):
            raise InputError(
                f"values has shape {values.shape}, but there are {len(self.lengths)} lengths and {len(self.depths)} "
                "depths; give a row of values for each length, and at least one"
            )
        if not all(0 <= depth <= 1 for depth in self.depths):
            raise InputError(f"depths are {list(self.depths)}; give parts of the context, 0 (start) to 1 (end)")
        values.flags.writeable = False
        object.__setattr__(self, "values", values)


@styled
def needle_figure(source: Needle, *, width: Width = "column") -> Any:
    """A value by length of the context and depth of the needle, written into the cells where it fits.

    Parameters
    ----------
    source
        The values.
    width
        ``column`` (3.3 inches) or ``page`` (6.9).

    Returns
    -------
    matplotlib.figure.Figure
    """
    values = source.values.T  # [depth, length]
    name = shown(source.label, "value")
    depths = [f"{100 * depth:.3g}" for depth in source.depths]
    figure, axes = grid_figure(
        values,
        Axis("depth of the needle (%)", range(len(depths)), depths),
        Axis("length of the context (tokens)", source.lengths, [f"{length:,}" for length in source.lengths]),
        f"{name} ({source.unit})" if source.unit else name,
        width,
        top=source.highest,
    )
    title = f"{name[:1].upper()}{name[1:]} by length and depth"
    hatched = ["Hatched: not measured or undefined."] if np.isnan(values).any() else []
    say_around(figure, title, " ".join([shown(source.about, ""), *hatched]).strip())
    _write_numbers(figure, axes, values)
    return figure


def _write_numbers(figure: Any, axes: Any, values: np.ndarray) -> None:
    """Write every value into its cell, black or white as its colour asks for; none where one would not fit."""
    digits = _decimals(values[np.isfinite(values)])
    texts = {cell: _number(value, digits) for cell, value in np.ndenumerate(values) if not np.isnan(value)}
    if not texts:
        return
    figure.draw_without_rendering()  # the layout is known only then
    box = axes.get_window_extent()
    wide, high = (size / figure.dpi / n for size, n in zip(box.size, values.shape[::-1], strict=True))
    if max(text_width(text, SMALL) for text in texts.values()) > wide - 0.04 or high < 1.1 * SMALL / 72:
        return
    image = axes.images[0]
    for (row, column), text in texts.items():
        red, green, blue, _ = image.cmap(image.norm(image.get_array()[row, column]))
        is_dark = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 < 0.18  # relative luminance
        axes.text(column, row, text, ha="center", va="center", color="white" if is_dark else "black", fontsize=SMALL)


def _decimals(values: np.ndarray) -> int:
    """Decimals that give the largest value three digits; none where all values are whole."""
    largest = np.abs(values).max(initial=0.0)
    return 0 if np.allclose(values, np.rint(values), rtol=0, atol=1e-9) else max(2 - math.floor(math.log10(largest)), 0)


def _number(value: float, digits: int) -> str:
    return ("∞" if value > 0 else "-∞") if np.isinf(value) else f"{round(value, digits) + 0.0:.{digits}f}"
