"""Figures of attention by position: one prompt, several, a study with its band."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnprobe.curve import Curve, Layers, choose_heads
from attnprobe.errors import InputError
from attnprobe.norms import mean_of_defined, uniform_values
from attnprobe.report.drawn import (
    Facts,
    Source,
    about_layers,
    about_runs,
    about_sinks,
    about_study,
    about_study_sinks,
    runs_of,
)
from attnprobe.report.figure_axes import legend_above, number_ticks
from attnprobe.report.figure_text import shown
from attnprobe.report.style import BLACK, BLUE, GREY, ORANGE, WIDTHS, Width, new_figure, say_around, styled
from attnprobe.run import Run
from attnprobe.study import Study
from attnprobe.study_curve import AVERAGING
from attnprobe.study_findings import robustness
from attnprobe.terminal import count, decimal

POSITION = "position of the document in the prompt (0 = first)"
SHARE = "share of the documents' attention (%)"
_ABOUT = {"share": "over heads and layers", "log_share": "geometric mean"}
_UNITS = {
    "share": (100, SHARE),
    "log_share": (100, "share, geometric mean over heads (%)"),
    "mass": (100, "attention mass (%)"),
    "density": (1, "attention a token (1 = uniform)"),
    "advantage": (1, "advantage over the other documents (nats)"),
}
"""By norm: what values are multiplied by, and the axis."""

_MANY = 2000  # dots; more of them are drawn as an image also in SVG and PDF


@styled
def curve_figure(source: Source, *, norm: str = "share", layers: Layers = None, width: Width = "column") -> Any:
    """Attention by position.

    Of one run the curve, which has no interval; of several the mean, with a dot for each document; of a study both
    orders of averaging, each with its simultaneous 95 % band over questions.

    Parameters
    ----------
    source
        What was measured.
    norm
        As in :meth:`attnprobe.Run.curve`; a study is drawn as shares.
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
        No run, runs that do not fit together, or a norm or layer that there is not.
    """
    if isinstance(source, Study):
        if norm != "share":
            raise InputError(f'a study is drawn in both orders of averaging, as shares; norm "{norm}" has no effect')
        return _study(source, layers, width)
    curves, even, facts = [], [], []
    for run, fact in runs_of(source):
        curves.append(run.curve(norm, layers))
        even.append(even_values(run, norm, layers))
        facts.append(fact)
    return _runs(curves, _mean(even, norm), facts, width)


@styled
def rotations_figure(curves: Sequence[Curve], gold: Sequence[int], title: str, note: str) -> Any:
    """Curves of the same documents in several orders: their mean, and the document with the answer marked.

    Parameters
    ----------
    curves
        Shares, one an order; every document stands at every position as often, so that even attention is 1/K there.
    gold
        Position of the document that holds the answer, in each order.
    title, note
        Above and below the picture, which is as wide as a page.
    """
    n = len(curves[0].values)
    figure, axes = _several(curves, np.full(n, 1 / n), "page", "one document in one rotation")
    scale, _ = _UNITS[curves[0].norm]
    axes.plot(
        gold,
        [scale * curve.values[place] for curve, place in zip(curves, gold, strict=True)],
        "D",
        markersize=6,
        markerfacecolor="none",
        color=ORANGE,
        label="the document with the answer",
    )
    legend_above(axes)
    say_around(figure, title, note)
    return figure


def even_values(run: Run, norm: str, layers: Layers) -> np.ndarray:
    """What a run's curve would be if every token got the same; secondary sinks are left out, as in the curve."""
    chosen, *_ = choose_heads(run.layers, run.mass.shape[1], layers, None)
    return uniform_values(run, norm, chosen, with_sinks=False)


def _runs(curves: Sequence[Curve], even: np.ndarray, facts: Sequence[Facts], width: Width) -> Any:
    curve = curves[0]
    if len(curves) == 1:
        figure, axes = _one(curve, even, width)
        interval = "One prompt, so no interval: content and position are not told apart."
    else:
        figure, axes = _several(curves, even, width, "one document of one prompt")
        interval = "Dots: single documents; line: mean over prompts."
    legend_above(axes)
    names = about_layers(curve.layers, len(curve.heads))
    notes = [about_runs(facts, names), about_sinks(facts), interval, *_ratios(curve) * (len(curves) == 1)]
    gaps = undefined(_mean([one.values for one in curves], curve.norm))
    say_around(figure, "Attention by position", " ".join([*notes, *gaps]))
    return figure


def position_axes(width: Width, n: int) -> tuple[Any, Any]:
    """A figure whose x axis is the document's position."""
    figure = new_figure(width, 2.75 if width == "column" else 3.1)
    axes = figure.add_subplot()
    number_ticks(axes.xaxis, range(n), WIDTHS[width] - 0.7)
    axes.set_xlim(-0.4, n - 0.6)
    axes.set_xlabel(POSITION if width == "page" else "position of the document (0 = first)")
    axes.grid(axis="y")
    return figure, axes


def _one(curve: Curve, even: np.ndarray, width: Width) -> tuple[Any, Any]:
    figure, axes = position_axes(width, len(curve.values))
    scale, _ = _UNITS[curve.norm]
    axes.plot(range(len(curve.values)), finite(scale * curve.values), marked("o", len(curve.values)), color=BLUE)
    draw_uniform(axes, scale * even)
    _finish(axes, curve.norm)
    return figure, axes


def _several(curves: Sequence[Curve], even: np.ndarray, width: Width, dot: str) -> tuple[Any, Any]:
    values = np.stack([curve.values for curve in curves])  # [prompt, position]
    figure, axes = position_axes(width, values.shape[1])
    scale, _ = _UNITS[curves[0].norm]
    mean = _mean(list(values), curves[0].norm)
    axes.plot(
        np.tile(np.arange(values.shape[1]), len(values)),
        finite(scale * values).ravel(),
        "o",
        color=GREY,
        alpha=0.5,
        markersize=3,
        markeredgewidth=0,
        label=dot,
        rasterized=values.size > _MANY,
    )
    axes.plot(range(values.shape[1]), finite(scale * mean), marked("o", len(mean)), color=BLUE, label="mean")
    draw_uniform(axes, scale * even)
    _finish(axes, curves[0].norm)
    return figure, axes


def _mean(parts: Sequence[np.ndarray], norm: str) -> np.ndarray:
    """Mean over prompts at each position, undefined values left out; geometric for the log share, as its norm is."""
    values = np.stack(parts)
    if norm != "log_share":
        return mean_of_defined(values, axis=0)
    with np.errstate(divide="ignore"):
        return np.exp(mean_of_defined(np.log(values), axis=0))


def _study(study: Study, layers: Layers, width: Width) -> Any:
    n = study.of().n_documents
    figure, axes = position_axes(width, n)
    panel = study.artefact_panel() if layers is None else None
    raw = panel[0].curves if panel else {norm: study.curve(norm, layers=layers) for norm in AVERAGING}
    for (norm, found), colour, marker in zip(raw.items(), (BLUE, ORANGE), "os", strict=True):
        curve = found.scaled()
        if curve.low is not None and curve.high is not None:
            axes.fill_between(range(n), 100 * curve.low, 100 * curve.high, color=colour, alpha=0.25, linewidth=0)
        line, name = marked(marker, n), averaging_name(norm)
        axes.plot(range(n), finite(100 * curve.estimate), line, color=colour, label=name)
    draw_uniform(axes, 100 * study.uniform())
    _finish(axes, "share")
    legend_above(axes)
    bands = "Bands: 95 %, all positions at once, over questions."
    if curve.reason is not None:
        bands = f"{bands if curve.low is not None else 'No bands:'} {shown(curve.reason, '')}."
    about = about_study(study, layers_text(study, layers))
    without = robustness(panel) if panel else None
    title = "Attention by position" + (f", raw curve: {without.claim}" if without else "")
    robust = [without.sentences[0]] if without is not None and without.holds is False else []
    say_around(figure, title, " ".join([*robust, about, about_study_sinks(study), bands, *undefined(curve.estimate)]))
    return figure


def layers_text(study: Study, layers: Layers) -> str:
    """For a note: which layers and heads of a study are averaged."""
    _, numbers, _ = choose_heads(study.of().layers, study.of().n_heads, layers, None)
    return about_layers(numbers, study.of().n_heads)


def averaging_name(norm: str) -> str:
    """An order of averaging, in words."""
    return f"{AVERAGING[norm]}, {_ABOUT[norm]}"


def marked(marker: str, n: int) -> str:
    """The format of a line through n values; with markers, as long as they can be told apart."""
    return f"{marker}-" if n <= 40 else "-"


def draw_uniform(axes: Any, values: np.ndarray) -> None:
    """A dashed line of what each position would have if every token got the same."""
    marker = "_" if len(values) == 1 else ""  # a line of one point is not seen
    style = {"color": BLACK, "linestyle": "--", "linewidth": 0.8, "marker": marker}
    axes.plot(range(len(values)), values, label="uniform: every token alike", **style)


def _finish(axes: Any, norm: str) -> None:
    axes.set_ylabel(_UNITS[norm][1])
    if norm != "advantage":
        axes.set_ylim(bottom=0)


def finite(values: np.ndarray) -> np.ndarray:
    """The values, NaN where infinite: a gap in the line."""
    return np.where(np.isfinite(values), values, np.nan)


def _ratios(curve: Curve) -> list[str]:
    """What the ends are against the middle, in words; nothing without a middle."""
    pairs = [("head/middle", curve.head_middle), ("tail/middle", curve.tail_middle)]
    if curve.norm == "advantage":
        pairs = [("head - middle", curve.head_minus_middle), ("tail - middle", curve.tail_minus_middle)]
    unit = " nats" if curve.norm == "advantage" else ""
    known = [f"{name} {_number(value)}{unit}" for name, value in pairs if value is not None]
    return [f"{', '.join(known)}."] if known else []


def _number(value: float) -> str:
    return decimal(value) if math.isfinite(value) else "-∞" if value < 0 else "∞"


def undefined(values: np.ndarray) -> list[str]:
    """A sentence that counts the positions that are not drawn."""
    n = int((~np.isfinite(values)).sum())
    return [f"Not drawn, as undefined or infinite: {count(n, 'position')} of {len(values)}."] if n else []
