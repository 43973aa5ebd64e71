"""The picture of a model's heads: their scores by layer and head, the chosen ones marked."""

from __future__ import annotations

from pathlib import Path

from attnprobe.heads_command import HeadsResult
from attnprobe.heads_text import SCORE_NAMES
from attnprobe.report.figure_axes import legend_above
from attnprobe.report.figure_text import shown
from attnprobe.report.grid_figure import Axis, grid_figure
from attnprobe.report.style import ORANGE, save_figure, say_around, styled
from attnprobe.terminal import count


@styled
def save_heads_figure(result: HeadsResult, path: Path) -> None:
    """Draw the score that heads were chosen by, mean over questions, and write a PNG, SVG or PDF."""
    scores, by = result.scores, result.selection.by
    mean = scores.mean(by)  # [layer, head]
    figure, axes = grid_figure(
        mean, Axis("layer", scores.layers), Axis("head", range(mean.shape[1])), SCORE_NAMES[by], "page"
    )
    rows = {layer: row for row, layer in enumerate(scores.layers)}
    if result.selection.heads:
        axes.scatter(
            [one.head for one in result.selection.heads],
            [rows[one.layer] for one in result.selection.heads],
            s=30,
            marker="s",
            facecolor="none",
            edgecolor=ORANGE,
            linewidth=1.5,
            label="chosen on one half of the questions",
        )
        legend_above(axes)
    recalled, measured = int(scores.n_recalled.sum()), int(scores.n_orders.sum())
    own = f"own answers, of which {recalled} of {measured} recall the needle"
    say_around(
        figure,
        f"{shown(result.model, 'model')}: {SCORE_NAMES[by]}",
        f"{count(len(scores.questions), 'question')} × {count(int(scores.n_orders.max()), 'random order')}, "
        f"{own if result.options.answers == 'generate' else 'answers forced'}; needle: {result.options.needle}. Mean "
        "over questions.",
    )
    save_figure(figure, path)
