"""Small multiples of a comparison of RoPE scalings: one row a scaling, one column a length, the same axes in all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attnprobe.intervals import MIN_QUESTIONS, mean_interval
from attnprobe.report.figure_axes import LINE, whiskers
from attnprobe.report.figure_text import label, shown
from attnprobe.report.style import BLACK, BLUE, LIGHT, ORANGE, SMALL, new_figure, save_figure, say_around, styled
from attnprobe.rope_findings import RopeFindings
from attnprobe.rope_options import short_name
from attnprobe.terminal import count

_ROW = 1.05  # inches
Panel = Callable[[Any, int, int], None]
"""``panel(axes, scaling, length)`` draws one of them."""


@styled
def save_rope_figures(found: RopeFindings, folder: Path) -> list[Path]:
    """Draw every picture into a folder; gives their paths."""
    from matplotlib.ticker import LogLocator, MultipleLocator

    data = found.data
    options = data.plan.options
    n_items = len({name for own in data.items for name in own})
    level = f"{100 * options.level:g} %"
    over = f"{count(options.texts, 'text')} of each length"
    few = "" if options.texts >= MIN_QUESTIONS else f" No intervals: they take {MIN_QUESTIONS} texts."

    def curve(axes: Any, scaling: int, length: int) -> None:
        share = found.curves[scaling][length].share
        n = len(share.estimate)
        places = (np.arange(n) + 0.5) / n
        if share.low is not None and share.high is not None:
            axes.fill_between(places, n * share.low, n * share.high, color=BLUE, alpha=0.25, linewidth=0)
        axes.plot(places, n * share.estimate, "o-", color=BLUE, markersize=2.5)
        axes.axhline(1, color=BLACK, linestyle="--", linewidth=0.8)
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.5), max(high, 2.0))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.minorticks_off()

    def needle(axes: Any, scaling: int, length: int) -> None:
        found_at = [found.interval("advantage", scaling, length, depth) for depth in range(len(options.depths))]
        whiskers(axes, options.depths, found_at, ORANGE)
        estimates = [np.nan if one.estimate is None else one.estimate for one in found_at]
        axes.plot(options.depths, estimates, "o-", color=ORANGE, linewidth=0.8)
        axes.axhline(0, color=BLACK, linestyle="--", linewidth=0.8)

    def loss(axes: Any, scaling: int, length: int) -> None:
        centres = (data.loss_edges[:-1] + data.loss_edges[1:]) / 2
        for number in sorted({0, scaling}):
            colour = BLUE if number else BLACK
            bins = [mean_interval(column, options.level) for column in data.loss_by_position[number, length].T]
            low, high = (
                np.array([np.nan if getattr(b, side) is None else getattr(b, side) for b in bins])
                for side in ("low", "high")
            )
            axes.fill_between(centres, low, high, color=colour, alpha=0.2, linewidth=0)
            estimates = [np.nan if b.estimate is None else b.estimate for b in bins]
            axes.plot(centres, estimates, "-", color=colour, linewidth=0.8 if number == 0 else 1.5)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1024:g}k" if value else "0")
        axes.xaxis.set_major_locator(MultipleLocator(2 ** round(np.log2(data.plan.lengths[-1] / 3))))
        if data.plan.window < data.plan.lengths[-1]:
            axes.axvline(data.plan.window, color=LIGHT, linewidth=3, zorder=0)

    name = shown(data.plan.model, "model")
    drawings: tuple[tuple[str, Panel, str, str, str, str], ...] = (
        (
            "curve.png",
            curve,
            "place in the text (0 = start)",
            "attention a token (1 = even)",
            f"{name}: attention over the documents, by RoPE scaling and length",
            f"Ten equal parts of the documents' tokens, their share times ten; geometric mean over {over}; {level} "
            f"bands of all parts at once.{few}",
        ),
        (
            "needle.png",
            needle,
            "depth of the needle",
            "advantage (nats)",
            f"{name}: advantage of the needle that is asked for, by RoPE scaling and length",
            f"Over the other documents, mean over layers, heads and {count(n_items, 'item')}; {level} t intervals over "
            f"the items at a depth.{few}",
        ),
        (
            "loss.png",
            loss,
            "position of the token (k = 1024)",
            "loss (nats a token)",
            f"{name}: loss of the text's tokens, by RoPE scaling and length",
            f"Mean over {over}; {level} t intervals. Black: the unscaled model; grey line: the end of its window.{few}",
        ),
    )
    paths = []
    for file, panel, x, y, title, note in drawings:
        save_figure(rope_matrix(found, panel, x, y, title, note), folder / file)
        paths.append(folder / file)
    return paths


def rope_matrix(found: RopeFindings, panel: Panel, x: str, y: str, title: str, note: str) -> Any:
    """A panel for every scaling and length, with the same axes; lengths beyond the window are marked."""
    plan = found.data.plan
    n_rows, n_columns = len(plan.scalings), len(plan.lengths)
    figure = new_figure("page", _ROW * n_rows + 4 * LINE)
    grid = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False)
    for row, name in enumerate(plan.scalings):
        for column, length in enumerate(plan.lengths):
            axes = grid[row, column]
            panel(axes, row, column)
            axes.grid(axis="y")
            if row == 0:
                beyond = "" if column in plan.inside else " (beyond)"
                axes.set_title(f"{length:,} tokens{beyond}", fontsize=SMALL)
        text = label(short_name(name), _ROW - 0.1, SMALL) or f"scaling {row}"
        grid[row, -1].annotate(
            text, (1.02, 0.5), xycoords="axes fraction", rotation=270, va="center", ha="left", fontsize=SMALL,
            annotation_clip=False,
        )  # fmt: skip
    figure.supylabel(y, fontsize=SMALL)
    for axes in grid[-1]:
        axes.set_xlabel(x, fontsize=SMALL)
    say_around(figure, title, note)
    return figure
