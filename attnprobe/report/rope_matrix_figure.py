"""Small multiples of a comparison of RoPE scalings: one row a scaling, one column a length, the same axes in all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnprobe.intervals import MIN_QUESTIONS, mean_interval
from attnprobe.report.figure_axes import LINE, whiskers
from attnprobe.report.figure_text import label, shown, wrapped
from attnprobe.report.style import (
    BLACK,
    BLUE,
    GREY,
    LIGHT,
    ORANGE,
    SMALL,
    WIDTHS,
    Width,
    new_figure,
    save_figure,
    say_around,
    styled,
)
from attnprobe.rope_findings import RopeFindings
from attnprobe.rope_options import short_name
from attnprobe.terminal import count

_ROW = 1.05  # inches
_AROUND = 0.65  # inches: the axis' label and numbers, and the scalings' names
Panel = Callable[[Any, int, int], None]
"""``panel(axes, scaling, length)`` draws one of them."""


@styled
def scalings_figure(found: RopeFindings, *, width: Width = "column") -> Any:
    """How attention is spread over the documents.

    Returns
    -------
    matplotlib.figure.Figure
    """

    def panel(axes: Any, scaling: int, length: int) -> None:
        share = found.curves[scaling][length].share
        n = len(share.estimate)
        places = (np.arange(n) + 0.5) / n
        if share.low is not None and share.high is not None:
            axes.fill_between(places, n * share.low, n * share.high, color=BLUE, alpha=0.25, linewidth=0)
        axes.plot(places, n * share.estimate, "o-", color=BLUE, markersize=2.5)
        axes.axhline(1, color=BLACK, linestyle="--", linewidth=0.8)
        axes.set_yscale("log")
        _parts_axis(axes)

    figure = rope_matrix(
        found,
        panel,
        "place in the text (0 = start)",
        "attention a token (1 = even)",
        f"{_model(found)}: attention over the documents, by RoPE scaling and length",
        f"Ten equal parts of the documents' tokens, their share times ten; geometric mean over {_texts(found)}; "
        f"{_level(found)} bands of all parts at once.{_few(found)}",
        width,
    )
    _log_axis(figure.axes[0])
    return figure


@styled
def scaling_needles_figure(found: RopeFindings, *, width: Width = "column") -> Any:
    """Advantage of the needle that is asked for, by its depth.

    Returns
    -------
    matplotlib.figure.Figure
    """
    depths = found.data.plan.options.depths

    def panel(axes: Any, scaling: int, length: int) -> None:
        at_depths = [found.interval("advantage", scaling, length, depth) for depth in range(len(depths))]
        whiskers(axes, depths, at_depths, ORANGE, linewidth=1.0)
        estimates = [np.nan if one.estimate is None else one.estimate for one in at_depths]
        axes.plot(depths, estimates, "o-", color=ORANGE, linewidth=0.8, markersize=2.5)
        axes.axhline(0, color=BLACK, linestyle="--", linewidth=0.8)
        _parts_axis(axes)

    return rope_matrix(
        found,
        panel,
        "depth of the needle (0 = start)",
        "advantage (nats)",
        f"{_model(found)}: advantage of the needle that is asked for, by RoPE scaling and length",
        f"Over the other documents, mean over layers, heads and {count(found.data.n_items, 'item')}; {_level(found)} "
        f"intervals over texts and items at a depth.{_few(found)}",
        width,
    )


@styled
def scaling_losses_figure(found: RopeFindings, *, width: Width = "column") -> Any:
    """Loss of the text's tokens by their position, beside that of the unscaled model.

    Returns
    -------
    matplotlib.figure.Figure
    """
    from matplotlib.ticker import MultipleLocator

    data, plan = found.data, found.data.plan
    centres = (data.loss_edges[:-1] + data.loss_edges[1:]) / 2

    def panel(axes: Any, scaling: int, length: int) -> None:
        for number in sorted({0, scaling}):
            colour = BLUE if number else BLACK
            bins = [mean_interval(column, plan.options.level) for column in data.loss_by_position[number, length].T]
            low, high, estimates = (
                np.array([np.nan if getattr(b, name) is None else getattr(b, name) for b in bins])
                for name in ("low", "high", "estimate")
            )
            axes.fill_between(centres, low, high, color=colour, alpha=0.2, linewidth=0)
            axes.plot(centres, estimates, "-", color=colour, linewidth=0.8 if number == 0 else 1.5)
        if plan.window < plan.lengths[-1]:
            axes.axvline(plan.window, color=LIGHT, linewidth=3, zorder=0)

    figure = rope_matrix(
        found,
        panel,
        "position of the token (k = 1024)",
        "loss (nats a token)",
        f"{_model(found)}: loss of the text's tokens, by RoPE scaling and length",
        f"Mean over {_texts(found)}; {_level(found)} t intervals. Black: the unscaled model; blue: with the scaling"
        f"{'; grey line: the end of the window' if plan.window < plan.lengths[-1] else ''}.{_few(found)}",
        width,
    )
    axis = figure.axes[0].xaxis
    axis.set_major_formatter(lambda value, _: f"{value / 1024:g}k" if value else "0")
    axis.set_major_locator(MultipleLocator(2 ** round(np.log2(plan.lengths[-1] / (3 if width == "page" else 2)))))
    return figure


ROPE_DRAWINGS: Mapping[str, Callable[..., Any]] = {
    "scalings": scalings_figure,
    "scaling-needles": scaling_needles_figure,
    "scaling-losses": scaling_losses_figure,
}
"""Every picture by its name, which is a kind of ``attnprobe figure`` and the name of the file."""


def save_rope_figures(found: RopeFindings, folder: Path) -> list[Path]:
    """Draw every picture into a folder, as PNG, as wide as a page; gives their paths."""
    paths = []
    for name, draw in ROPE_DRAWINGS.items():
        paths.append(folder / f"{name}.png")
        save_figure(draw(found, width="page"), paths[-1])
    return paths


def rope_matrix(found: RopeFindings, panel: Panel, x: str, y: str, title: str, note: str, width: Width = "page") -> Any:
    """A panel for every scaling and length, with the same axes; lengths beyond the window are marked."""
    plan = found.data.plan
    n_rows, n_columns = len(plan.scalings), len(plan.lengths)
    figure = new_figure(width, _ROW * n_rows + 4 * LINE)
    grid = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False)
    room = (WIDTHS[width] - _AROUND) / n_columns
    heads = [f"{length:,} tokens{'' if i in plan.inside else ' (beyond)'}" for i, length in enumerate(plan.lengths)]
    for row, name in enumerate(plan.scalings):
        for column, head in enumerate(heads):
            axes = grid[row, column]
            panel(axes, row, column)
            axes.grid(axis="y")
            if row == 0:
                axes.set_title("\n".join(wrapped(head, room - 0.06, SMALL)), fontsize=SMALL)
            if np.isnan(found.data.slices[row, column]).all():
                axes.text(
                    0.5, 0.8, "no result", transform=axes.transAxes, ha="center", va="center", fontsize=SMALL,
                    color=GREY, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
                )  # fmt: skip
        text = label(short_name(name), _ROW - 0.1, SMALL) or f"scaling {row}"
        grid[row, -1].annotate(
            text, (1, 0.5), xycoords="axes fraction", xytext=(5, 0), textcoords="offset points", rotation=270,
            va="center", ha="left", fontsize=SMALL, annotation_clip=False,
        )  # fmt: skip
    figure.supylabel(y, fontsize=SMALL)
    _label_once(grid[-1], x)
    say_around(figure, title, note)
    return figure


def _label_once(row: Any, text: str) -> None:
    """Name the x axis of all columns in the middle below them: beside each other the names would touch."""
    middle = row[len(row) // 2]
    middle.set_xlabel(" ", fontsize=SMALL)  # keeps a line free, which a name longer than a panel could not
    where = 0.5 if len(row) % 2 else -0.05
    below = middle.annotate(
        text, (where, 0), xycoords="axes fraction", xytext=(0, -2.3 * SMALL), textcoords="offset points", ha="center",
        va="top", fontsize=SMALL, annotation_clip=False,
    )  # fmt: skip
    below.set_in_layout(False)


def _parts_axis(axes: Any) -> None:
    """From the start of the documents to their end."""
    axes.set_xlim(-0.04, 1.04)
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])


def _log_axis(axes: Any) -> None:
    """Limits with room around an even share, and ticks that read as numbers; shared axes follow."""
    from matplotlib.ticker import LogLocator

    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.5), max(high, 2.0))
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 50 * low else (1,)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()


def _model(found: RopeFindings) -> str:
    return shown(found.data.plan.model, "model")


def _texts(found: RopeFindings) -> str:
    return f"{count(found.data.plan.options.texts, 'text')} of each length"


def _level(found: RopeFindings) -> str:
    return f"{100 * found.data.plan.options.level:g} %"


def _few(found: RopeFindings) -> str:
    return "" if found.data.plan.options.texts >= MIN_QUESTIONS else f" No intervals: they take {MIN_QUESTIONS} texts."
