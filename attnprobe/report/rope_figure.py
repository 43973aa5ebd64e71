"""The picture of a model's rotary frequencies under scalings: wavelengths, slowdown and decay with distance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnprobe.report.figure_axes import end_labels
from attnprobe.report.figure_text import shown
from attnprobe.report.style import GREY, LINES, new_figure, save_figure, say_around, styled
from attnprobe.rope_angles import RopeAt, RopeInspection, decay, wavelengths
from attnprobe.rope_options import short_name

_STYLES = ("-", "--", ":")


@styled
def rope_figure(found: RopeInspection) -> Any:
    """Of every scaling at its longest length: wavelengths, how much slower pairs turn, and the decay of q.k.

    Returns
    -------
    matplotlib.figure.Figure
    """
    from matplotlib.ticker import LogLocator, NullLocator

    entries = found.at_longest
    figure = new_figure("page", 2.3)
    waves, slow, far = figure.subplots(1, 3)
    pairs = np.arange(len(found.inv_freq))
    ends = []
    for number, at in enumerate(entries):
        colour, name = LINES[number % len(LINES)], shown(short_name(at.scaling), f"scaling {number + 1}")
        # lines that lie on each other are told apart by their dashes
        look: dict[str, Any] = {"color": colour, "linestyle": _STYLES[number % len(_STYLES)]}
        waves.plot(pairs, wavelengths(at.inv_freq), **look)
        slow.plot(pairs, found.slowdown(at), **look)
        edges = _edges(at)
        values = decay(at, edges)
        far.plot(np.sqrt(np.multiply(edges[:-1], edges[1:])), values, **look)
        ends.append((float(values[-1]), name, colour))
    waves.axhline(found.original, color=GREY, linewidth=0.8)
    waves.set_yscale("log")
    waves.set_ylabel("wavelength (positions)")
    slow.set_ylabel("times slower than unscaled")
    slow.set_yscale("log")
    for axes in (waves, slow):
        axes.set_xlabel("pair of dimensions")
    far.axvline(found.original, color=GREY, linewidth=0.8)
    far.axhline(0, color=GREY, linewidth=0.8)
    far.set_xscale("log")
    far.set_xlabel("distance (tokens)")
    far.set_ylabel("expected q.k")
    for axes in (waves, slow, far):
        axes.grid(True)
    for axis in (waves.yaxis, far.xaxis):
        axis.set_major_locator(LogLocator(base=100))
    slow.yaxis.set_major_locator(LogLocator(base=2))
    for axis in (waves.yaxis, slow.yaxis, far.xaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axis.set_minor_locator(NullLocator())
    end_labels(far, ends)
    say_around(
        figure,
        f"{shown(found.model, 'model')}: rotary frequencies under RoPE scalings",
        f"At {_lengths(entries)} tokens, from the config alone. Grey: the {found.original:,} positions of training; a "
        "pair above the line never completed a turn there. Right: how much more a key like the query is expected to "
        "score than a random one (Men et al. 2024), 1 at distance 0 without scaling.",
    )
    return figure


def save_rope_figure(found: RopeInspection, path: Path) -> None:
    """Draw the picture and write a PNG, SVG or PDF."""
    save_figure(rope_figure(found), path)


def _edges(at: RopeAt) -> list[int]:
    """Ranges of distances, two to an octave where there are as many."""
    n = 2 * max((at.length - 1).bit_length(), 1)
    return sorted({1, at.length, *np.geomspace(1, at.length, n).round().astype(int).tolist()})


def _lengths(entries: Sequence[RopeAt]) -> str:
    lengths = sorted({at.length for at in entries})
    return f"{lengths[0]:,}" if len(lengths) == 1 else f"{lengths[0]:,} to {lengths[-1]:,}"
