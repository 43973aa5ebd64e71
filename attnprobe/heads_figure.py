"""The picture of a model's heads: their scores by layer and head, the chosen ones marked."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from attnprobe.figure import ORANGE, new_figure, save_figure
from attnprobe.heads_command import HeadsResult
from attnprobe.heads_text import SCORE_NAMES
from attnprobe.terminal import count


def save_heads_figure(result: HeadsResult, path: Path) -> None:
    """Draw the score that heads were chosen by, mean over questions, and write a PNG."""
    scores, by = result.scores, result.selection.by
    mean = scores.mean(by)
    figure = new_figure()
    axes = figure.add_subplot()
    finite = mean[np.isfinite(mean)]
    low = min(0.0, float(finite.min())) if finite.size else 0.0
    high = max(float(finite.max()), low + 1e-6) if finite.size else 1.0
    shown = np.ma.masked_invalid(mean)
    image = axes.imshow(shown, aspect="auto", cmap="Blues", vmin=low, vmax=high, origin="lower", interpolation="none")
    n_layers, n_heads = mean.shape
    rows = {layer: row for row, layer in enumerate(scores.layers)}
    if result.selection.heads:
        axes.scatter(
            [one.head for one in result.selection.heads],
            [rows[one.layer] for one in result.selection.heads],
            s=55,
            marker="s",
            facecolor="none",
            edgecolor=ORANGE,
            linewidth=1.8,
            label="chosen on one half of the questions",
        )
        figure.legend(frameon=False, fontsize=8.5, loc="outside upper right")
    ticks = range(0, n_layers, max(1, n_layers // 10))
    axes.set_yticks(list(ticks), [str(scores.layers[tick]) for tick in ticks])
    axes.set_xticks(range(0, n_heads, max(1, n_heads // 16)))
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    bar = figure.colorbar(image, ax=axes, pad=0.02)
    bar.set_label(SCORE_NAMES[by])
    axes.set_title(f"{result.model}: {SCORE_NAMES[by]}", loc="left", fontsize=11, fontweight="bold")
    recalled, measured = int(scores.n_recalled.sum()), int(scores.n_orders.sum())
    own = f"own answers, of which {recalled} of {measured} recall the needle"
    figure.supxlabel(
        f"{count(len(scores.questions), 'question')} x {count(int(scores.n_orders.max()), 'random order')}, "
        f"{own if result.options.answers == 'generate' else 'answers forced'}; needle: {result.options.needle}. Mean "
        "over questions.",
        fontsize=8,
        color="#444444",
        x=0.01,
        ha="left",
    )
    save_figure(figure, path)
