"""The figure of the mass that sinks take, layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprobe.report.drawn import Source, about_runs, about_study, runs_of
from attnprobe.report.figure_axes import legend_above, number_ticks
from attnprobe.report.style import BLUE, ORANGE, SKY, WIDTHS, Width, new_figure, say_around, styled
from attnprobe.run import Run
from attnprobe.spans import KIND_NAMES, budget_kind
from attnprobe.study import Study
from attnprobe.study_cells import ASKED, KINDS

_COLOURS = {"sink": BLUE, "learned_sink": SKY, "secondary_sink": ORANGE}
_SINKS = tuple(_COLOURS)


@styled
def sink_figure(source: Source, *, width: Width = "column") -> Any:
    """Mass of the first token, of a learned sink and of secondary sinks in every layer, stacked.

    Parameters
    ----------
    source
        What was measured; of several runs and of studies the mean.
    width
        ``column`` (3.3 inches) or ``page`` (6.9).

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InputError
        No run, or runs of different layers.
    """
    if isinstance(source, Study):
        data = source.of()
        layers, about = data.layers, about_study(source, f"mean of {data.n_heads} heads")
        budget = data.array(ASKED, "budget").mean(axis=(0, 1))  # [layer, kind]
        mass = budget[:, [KINDS.index(kind) for kind in _SINKS]]
    else:
        both = [(_sinks(run), fact) for run, fact in runs_of(source, documents=False)]
        facts = [fact for _, fact in both]
        layers, about = facts[0].layers, about_runs(facts, f"mean of {facts[0].n_heads} heads")
        mass = np.mean([sinks for sinks, _ in both], axis=0)
    figure = new_figure(width, 2.1 if width == "column" else 2.7)
    axes = figure.add_subplot()
    places, floor = np.arange(len(layers)), np.zeros(len(layers))
    for number, kind in enumerate(_SINKS):
        if kind == "sink" or mass[:, number].any():
            axes.bar(places, 100 * mass[:, number], 0.86, 100 * floor, color=_COLOURS[kind], label=KIND_NAMES[kind])
        floor = floor + mass[:, number]
    number_ticks(axes.xaxis, layers, WIDTHS[width] - 0.7)
    axes.set_xlim(-0.6, len(layers) - 0.4)
    axes.set_ylim(0, 100)
    axes.set_xlabel("layer")
    axes.set_ylabel("attention mass (%)")
    axes.grid(axis="y")
    legend_above(axes)
    none = "" if mass[:, 2].any() else " No secondary sinks were set apart."
    say_around(figure, "Attention mass of the sinks", about + none)
    return figure


def _sinks(run: Run) -> np.ndarray:
    """float64 [layer, kind of sink]: mean over heads."""
    mass = run.mass.mean(axis=1, dtype=np.float64)
    sums = np.zeros((len(run.layers), len(_SINKS)))
    for number, span in enumerate(run.spans):
        kind = budget_kind(span)
        if kind in _SINKS:
            sums[:, _SINKS.index(kind)] += mass[:, number]
    return sums
