"""The figure that compares several runs or studies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.curve import Layers
from attnprobe.errors import InputError
from attnprobe.norms import mean_of_defined
from attnprobe.report.curve_figures import SHARE, draw_uniform, even_values, finite, layers_text, marked, position_axes
from attnprobe.report.drawn import (
    Source,
    about_layers,
    about_runs,
    about_sinks,
    about_study,
    about_study_sinks,
    runs_of,
)
from attnprobe.report.figure_axes import end_labels
from attnprobe.report.figure_text import shown
from attnprobe.report.style import BLACK, LINES, MARKERS, Width, say_around, styled
from attnprobe.study import Study


@styled
def compare_figure(sources: Mapping[str, Source], *, layers: Layers = None, width: Width = "column") -> Any:
    """Shares by position of several runs or studies on the same axes, names at the ends of the lines.

    Where the numbers of documents differ, positions are relative (0 first, 1 last) and shares are multiples of what
    each document would have if every token got the same. A study has its simultaneous 95 % band; several runs have
    their mean.

    Parameters
    ----------
    sources
        What is compared, by name.
    layers
        The model's numbers of the layers; None for all.
    width
        ``column`` (3.3 inches) or ``page`` (6.9).

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InputError
        Fewer than two sources or more than seven, runs that do not fit together, or a layer that there is not.
    """
    if not 2 <= len(sources) <= len(LINES):
        raise InputError(f"{len(sources)} to compare; give 2 to {len(LINES)}, as many lines can be told apart")
    lines = {name: _line(source, layers) for name, source in sources.items()}
    sizes = {len(line.values) for line in lines.values()}
    alike = len(sizes) == 1
    evens = [line.even for line in lines.values()]
    same_even = alike and all(np.allclose(even, evens[0], equal_nan=True) for even in evens)
    figure, axes = position_axes(width, max(sizes))
    ends, has_band = [], False
    for (name, line), colour, marker in zip(lines.items(), LINES, MARKERS, strict=False):
        n = len(line.values)
        x = np.arange(n) if alike else np.linspace(0, 1, n) if n > 1 else np.full(1, 0.5)
        scale = 100 if alike else 1 / line.even
        values = scale * line.values
        if line.low is not None and line.high is not None:
            axes.fill_between(x, scale * line.low, scale * line.high, color=colour, alpha=0.2, linewidth=0)
            has_band = True
        axes.plot(x, finite(values), marked(marker, n), color=colour, label=name)
        drawn = values[np.isfinite(values)]
        if drawn.size:
            ends.append((float(drawn[-1]), name, colour))
        if alike and not same_even:
            axes.plot(x, 100 * line.even, color=colour, linestyle="--", linewidth=0.8)
    if same_even:
        draw_uniform(axes, 100 * evens[0])
    elif not alike:
        axes.axhline(1, color=BLACK, linestyle="--", linewidth=0.8)
    axes.set_ylabel(SHARE if alike else "share, multiples of uniform")
    axes.set_ylim(bottom=0)
    if not alike:
        axes.set_xlim(-0.04, 1.04)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        axes.set_xlabel("relative position (0 = first, 1 = last)")
    end_labels(axes, ends)
    each = ", for each in its colour" if alike and not same_even else ""
    notes = [f"Dashed: uniform, every token alike{each}."]
    notes += ["Bands: 95 %, all positions at once, over questions."] * has_band
    notes += ["Lines without a band: one prompt, or the mean of several."] * (
        not all(isinstance(source, Study) for source in sources.values())
    )
    say_around(figure, "Attention by position, compared", "\n".join([*_abouts(lines), " ".join(notes)]))
    return figure


def _abouts(lines: Mapping[str, _Line]) -> list[str]:
    """What each line was measured on, those that are alike together; what is said of all is said once, at the end."""
    shared = len({line.sinks for line in lines.values()}) == 1
    named: dict[str, list[str]] = {}
    for number, (name, line) in enumerate(lines.items(), start=1):
        about = line.about if shared else f"{line.about} {line.sinks}"
        named.setdefault(about, []).append(shown(name, f"number {number}"))
    first = next(iter(lines.values()))
    return [*(f"{', '.join(names)}: {about}" for about, names in named.items()), *[first.sinks] * shared]


@dataclass(frozen=True, eq=False)
class _Line:
    """Shares by position and what even attention would give, float64 [position]; the band where there is one.

    ``about`` says what was measured, and ``sinks`` what is done with secondary sinks.
    """

    values: np.ndarray
    even: np.ndarray
    about: str
    sinks: str
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def _line(source: Source, layers: Layers) -> _Line:
    if isinstance(source, Study):
        band = source.curve("share", layers=layers).scaled()
        about = about_study(source, layers_text(source, layers))
        return _Line(band.estimate, source.uniform(), about, about_study_sinks(source), band.low, band.high)
    curves, evens, facts = [], [], []
    for run, fact in runs_of(source):
        curves.append(run.curve("share", layers))
        evens.append(even_values(run, "share", layers))
        facts.append(fact)
    values, even = (mean_of_defined(np.stack(part), axis=0) for part in ([one.values for one in curves], evens))
    about = about_runs(facts, about_layers(curves[0].layers, len(curves[0].heads)))
    return _Line(values, even, about, about_sinks(facts))
