"""The figure of attention mass by distance from the row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnprobe.curve import Layers, choose_heads
from attnprobe.errors import InputError
from attnprobe.report.drawn import Facts, Source, about_runs, about_study, runs_of
from attnprobe.report.figure_axes import legend_above
from attnprobe.report.figure_text import text_width
from attnprobe.report.style import BLACK, LINES, SMALL, WIDTHS, Width, new_figure, say_around, styled
from attnprobe.study import Study


@styled
def spectrum_figure(source: Source, *, layers: Layers = None, width: Width = "column") -> Any:
    """Mass by distance in tokens, in bins that double: the mean over all layers, and some layers.

    Parameters
    ----------
    source
        What was measured, with the extra ``distance``; of several runs and of studies the mean.
    layers
        The model's numbers of the layers to draw beside the mean, at most six; None: the first, the central and the
        last one.
    width
        ``column`` (3.3 inches) or ``page`` (6.9).

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InputError
        No run, runs of different layers, distances that were not measured, or layers that there are not.
    """
    mass, edges, model_layers, about = _by_layer(source)
    chosen = _chosen(model_layers, layers)
    # The places of a log scale with base 2; distance 0, the row's own token, has a bin before it.
    places = np.arange(-1, len(edges) - 1)
    figure = new_figure(width, 2.3 if width == "column" else 2.9)
    axes = figure.add_subplot()
    lines = [("mean", mass.mean(axis=0), BLACK)]
    lines += [(f"layer {layer}", mass[model_layers.index(layer)], c) for layer, c in zip(chosen, LINES, strict=False)]
    for name, values, colour in reversed(lines):
        axes.stairs(
            100 * values, places, baseline=None, color=colour, label=name, linewidth=2.2 if name == "mean" else 1.2
        )
    axes.set_xlim(-1, len(edges) - 2)
    axes.set_ylim(bottom=0)
    _ticks(axes, edges, WIDTHS[width] - 0.7)
    axes.set_xlabel("distance from the row (tokens, log scale)")
    axes.set_ylabel("attention mass in a bin (%)")
    axes.grid(axis="y")
    legend_above(axes, reverse=True)
    say_around(
        figure, "Attention by distance", f"{about} Bins double; the first is the row's own token. Sinks are left out."
    )
    return figure


def _by_layer(source: Source) -> tuple[np.ndarray, tuple[int, ...], tuple[int, ...], str]:
    """Mass [layer, bin], the bins' edges, the layers' numbers, and what was measured."""
    if isinstance(source, Study):
        data = source.of()
        rows = [source.distance(layers=layer) for layer in data.layers]
        return np.stack([row for row, _ in rows]), rows[0][1], data.layers, about_study(source)
    masses: list[np.ndarray] = []
    edges: tuple[int, ...] = ()
    facts: list[Facts] = []
    for run, fact in runs_of(source, documents=False):
        if run.distance_mass is None or run.distance_edges is None:
            raise InputError(f'{fact.prompt} has no mass by distance; measure it with extras=("distance",)')
        masses.append(run.distance_mass.mean(axis=1, dtype=np.float64))
        edges = max(edges, run.distance_edges, key=len)
        facts.append(fact)
    # Shorter prompts have fewer bins: there is nothing at larger distances.
    wide = [np.pad(mass, ((0, 0), (0, len(edges) - 1 - mass.shape[1]))) for mass in masses]
    return np.mean(wide, axis=0), edges, facts[0].layers, about_runs(facts)


def _chosen(model_layers: tuple[int, ...], layers: Layers) -> tuple[int, ...]:
    if layers is None:
        n = len(model_layers)
        return tuple(dict.fromkeys(model_layers[place] for place in (0, n // 2, n - 1)))
    _, chosen, _ = choose_heads(model_layers, 1, layers, None)
    if len(chosen) > len(LINES) - 1:
        raise InputError(f"{len(chosen)} layers; give at most {len(LINES) - 1}, as many lines can be told apart")
    return chosen


def _ticks(axes: Any, edges: Sequence[int], room: float) -> None:
    """Mark the edges of the bins, as many as fit."""
    widest = text_width(f"{edges[-1]:,}", SMALL) + 0.08
    step = max(int(np.ceil(widest * len(edges) / room)), 1)
    marked = [0, *range(1, len(edges), step)]
    axes.set_xticks([place - 1 for place in marked], [f"{edges[place]:,}" for place in marked])
