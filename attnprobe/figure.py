"""Pictures: one style for all of them, and the picture of a mean curve over rotations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Okabe and Ito's colours, which people of every colour vision can tell apart; shapes differ too.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8A8A8A"


def new_figure() -> Any:
    """An empty figure that needs no screen, 8 x 5 inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as a PNG, with light horizontal grid lines behind and no frame above and at the right."""
    for axes in figure.axes:
        if axes.get_label() == "<colorbar>":
            continue
        if not axes.images:
            axes.grid(axis="y", color="#E5E5E5", linewidth=0.8)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150, metadata={"Software": "attnprobe"})


def save_curve_figure(
    path: Path,
    mean: np.ndarray,
    rotations: np.ndarray,
    gold: Sequence[int],
    *,
    title: str,
    note: str,
) -> None:
    """Draw shares against position and write a PNG.

    Parameters
    ----------
    path
        Of the PNG; its folder exists.
    mean
        float64 [position]: mean share over rotations, as a fraction.
    rotations
        float64 [rotation, position]: share in each rotation.
    gold
        Position of the document that holds the answer, for each rotation.
    title, note
        Above and below the picture.
    """
    n_positions = len(mean)
    positions = np.arange(n_positions)
    is_gold = np.zeros(rotations.shape, dtype=bool)
    is_gold[np.arange(len(gold)), list(gold)] = True
    everywhere = np.broadcast_to(positions, rotations.shape)

    figure = new_figure()
    axes = figure.add_subplot()
    even = 100 / n_positions
    axes.axhline(even, color="black", linestyle="--", linewidth=1, label=f"even: {even:.0f} % each", zorder=1)
    axes.scatter(
        everywhere[~is_gold],
        100 * rotations[~is_gold],
        s=22,
        color=GREY,
        alpha=0.55,
        linewidths=0,
        label="one document in one rotation",
        zorder=2,
    )
    axes.plot(positions, 100 * mean, "o-", color=BLUE, linewidth=2.5, markersize=7, label="mean", zorder=3)
    axes.scatter(
        everywhere[is_gold],
        100 * rotations[is_gold],
        s=60,
        marker="D",
        facecolor="none",
        edgecolor=ORANGE,
        linewidth=1.8,
        label="the document with the answer",
        zorder=4,
    )
    axes.set_xticks(positions)
    axes.set_ylim(0, 1.08 * max(100 * float(rotations.max()), even))
    axes.set_xlabel("position of the document in the prompt (0 = first)")
    axes.set_ylabel("share of the documents' attention (%)")
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    figure.supxlabel(note, fontsize=8.5, color="#444444", x=0.01, ha="left")
    save_figure(figure, path)
