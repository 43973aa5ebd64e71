"""Pictures of a study: the curve with its band, the artefact panel, layers by position, the answer by position."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attnprobe.estimates import Interval
from attnprobe.flatness import BOUNDS
from attnprobe.report.curve_figures import POSITION, averaging_name, curve_figure, position_axes
from attnprobe.report.drawn import about_study
from attnprobe.report.figure_axes import LINE, legend_above, number_ticks, whiskers
from attnprobe.report.study_layers import layer_curves
from attnprobe.report.style import (
    BLACK,
    BLUE,
    DIVERGING,
    GREY,
    LIGHT,
    ORANGE,
    new_figure,
    save_figure,
    say_around,
    styled,
)
from attnprobe.spans import KIND_NAMES
from attnprobe.study import Study
from attnprobe.study_cells import KINDS
from attnprobe.study_curve import AVERAGING
from attnprobe.study_folder import PICTURES
from attnprobe.study_text import interval_text
from attnprobe.terminal import count

_ALPHA = 0.05
# The first ones matter most: where labels would touch, the later ones go.
_TICKS = (1, 2, 0.5, 4, 1.25, 0.8, 8, 0.25, 16, 0.125, 32, 64, 128, 256, 0.0625)
_COLOURS = {"share": BLUE, "log_share": ORANGE}
_SHAPES = {"share": "o", "log_share": "s"}


def save_study_figures(study: Study, folder: Path, model: str | None = None) -> list[Path]:
    """Draw every picture of one model's study into a folder, as PNG; gives their paths."""
    data = study.of(model)
    one = Study({data.model: data}, study.options)
    drawings: tuple[Callable[[Study], Any], ...] = (
        lambda own: curve_figure(own, width="page"),
        artefact_figure,
        layer_position_figure,
        answer_position_figure,
    )
    paths = []
    for name, drawing in zip(PICTURES, drawings, strict=True):
        figure = drawing(one)
        if figure is not None:
            save_figure(figure, folder / name)
            paths.append(folder / name)
    return paths


@styled
def artefact_figure(study: Study) -> Any:
    """Head and tail against the middle with each known artefact taken out; None without a middle."""
    panel = study.artefact_panel()
    ends = [("head_middle", "head / middle"), ("tail_middle", "tail / middle")]
    if panel[0].curves["share"].head_middle is None:
        return None
    figure = new_figure("page", 0.6 + 2.2 * LINE * len(panel))
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    rows = np.arange(len(panel))[::-1]
    for axes, (name, title) in zip((left, right), ends, strict=True):
        for norm, offset in zip(AVERAGING, (0.14, -0.14), strict=True):
            for row, entry in zip(rows, panel, strict=True):
                _whisker(axes, getattr(entry.curves[norm], name), row + offset, norm, row == rows[0])
        axes.axvspan(*BOUNDS, color=LIGHT, linewidth=0, zorder=0)
        axes.axvline(1, color=BLACK, linestyle="--", linewidth=0.8)
        axes.set_xlabel(title)
        axes.grid(axis="x")
    left.set_xscale("log")
    low, high = left.get_xlim()
    left.set_xticks(_spread_ticks(low, high))
    left.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    left.minorticks_off()
    left.set_xlim(low, high)
    left.set_yticks(rows, [entry.name for entry in panel])
    if left.get_legend_handles_labels()[0]:
        legend_above(left, 2.5)
    say_around(
        figure,
        "What is left without artefacts",
        f"{about_study(study)} 95 % t intervals over questions; dashed: no effect; grey: {BOUNDS[0]:g} to "
        f"{BOUNDS[1]:g}, where an end counts as even if its whole interval is inside.",
    )
    return figure


def _spread_ticks(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis, none so near another that their labels touch."""
    chosen: list[float] = []
    for tick in _TICKS:
        apart = all(abs(np.log(tick / other)) > 0.09 * np.log(high / low) for other in chosen)
        if low <= tick <= high and apart:
            chosen.append(tick)
    return sorted(chosen)


def _whisker(axes: Any, interval: Interval | None, y: float, norm: str, named: bool) -> None:
    if interval is None or interval.estimate is None or not 0 < interval.estimate < np.inf:
        return
    label = averaging_name(norm) if named else None
    axes.plot([interval.estimate], [y], _SHAPES[norm], color=_COLOURS[norm], label=label)
    whiskers(axes, [y], [interval], _COLOURS[norm], across=True)


@styled
def layer_position_figure(study: Study) -> Any:
    """Per-head share of every position in every layer against the uniform one, and the sinks' mass beside it."""
    data = study.of()
    is_whole = study.options.design != "insertion"
    curves, _ = layer_curves(study, is_whole=is_whole)
    uniform = np.full(data.n_documents, 1 / data.n_documents) if is_whole else study.uniform()
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.log2(curves / uniform)  # NaN, a gap in the picture, where no window reaches
    finite = relative[np.isfinite(relative)]
    limit = max(1.0, float(np.percentile(np.abs(finite), 98))) if finite.size else 1.0
    height = float(np.clip(0.11 * len(data.layers), 1.6, 4.2))
    figure = new_figure("page", height + 0.6)
    main, side = figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
    image = main.imshow(relative, aspect="auto", cmap=DIVERGING, vmin=-limit, vmax=limit, origin="lower")
    number_ticks(main.xaxis, range(data.n_documents), 4.0)
    number_ticks(main.yaxis, data.layers, height)
    main.set_xlabel("position of the document (0 = first)")
    main.set_ylabel("layer")
    bar = figure.colorbar(image, ax=main, location="left", shrink=0.9, pad=0.02, extend=_beyond(relative, limit))
    bar.set_label("doublings against uniform")
    bar.outline.set_visible(False)
    has_dots = _mark_layers(study, main)
    budget = data.array("asked", "budget").mean(axis=(0, 1))
    for kind, name, marker, colour in (
        ("sink", KIND_NAMES["sink"], "o", GREY),
        ("secondary_sink", "secondary", "s", ORANGE),
    ):
        mass = 100 * budget[:, KINDS.index(kind)]
        side.plot(mass, range(len(data.layers)), f"{marker}-", markersize=2.5, linewidth=1, color=colour, label=name)
    side.set_xlabel("sinks (% of mass)")
    side.set_xlim(0, 100)
    side.legend(loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)
    heads = f"each layer: mean log share of {count(data.n_heads, 'head')}"
    dots = " Dots say that a difference is consistent over questions, not that it is large." if has_dots else ""
    say_around(figure, "Attention by position and layer", about_study(study, heads) + dots)
    return figure


def _beyond(relative: np.ndarray, limit: float) -> str:
    below, above = bool((relative < -limit).any()), bool((relative > limit).any())
    return "both" if below and above else "min" if below else "max" if above else "neither"


def _mark_layers(study: Study, axes: Any) -> bool:
    """A dot at the end that differs from the middle in a layer, tested over all layers and both ends; if any."""
    last = study.of().n_documents - 1
    if last < 2:
        return False
    places = [
        (position, row)
        for row, test in enumerate(study.layer_tests())
        for position, p in ((0, test["head_p"]), (last, test["tail_p"]))
        if p is not None and p < _ALPHA
    ]
    if places:
        x, y = zip(*places, strict=True)
        label = f"differs from the middle (adjusted p < {_ALPHA:g})"
        axes.scatter(x, y, s=11, color=BLACK, edgecolor="white", linewidth=0.6, label=label)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderpad=0)
    return bool(places)


@styled
def answer_position_figure(study: Study) -> Any:
    """Log-probability of the answer by the position of its document; None where no such document is known."""
    gold = study.gold_logprob()
    if gold is None:
        return None
    figure, axes = position_axes("page", len(gold.values))
    positions = range(len(gold.values))
    if gold.band.low is not None and gold.band.high is not None:
        axes.fill_between(positions, gold.band.low, gold.band.high, color=BLUE, alpha=0.25, linewidth=0)
    axes.plot(positions, gold.values, "o-", color=BLUE)
    axes.axhline(0, color=BLACK, linestyle="--", linewidth=0.8)
    axes.set_xlabel(POSITION.replace("document in the prompt", "document that holds the answer"))
    axes.set_ylabel("log-probability of the answer,\nagainst the question's mean (nats)")
    about = about_study(study, f"log-probability of the whole answer of {count(gold.n, 'question')}")
    notes = [about]
    if gold.band.low is not None:
        notes.append("Band: 95 %, all positions at once, over questions.")
    if gold.head_minus_middle is not None:
        head, tail = interval_text(gold.head_minus_middle), interval_text(gold.tail_minus_middle)
        notes.append(
            f"Head - middle: {head} nats, tail - middle: {tail}; contrasts may exclude 0 where the band does not."
        )
    say_around(figure, "Does the answer suffer?", " ".join(notes))
    return figure
