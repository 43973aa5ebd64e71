"""Pictures of a study: the curve with its band, the artefact panel, layers by position, the answer by position."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attnprobe.estimates import Interval
from attnprobe.figure import BLUE, GREY, ORANGE, new_figure, save_figure
from attnprobe.study import HEADLINE_NORMS, Study
from attnprobe.study_cells import KINDS

_NORM_NAMES = {"share": "pooled over heads and layers", "log_share": "per head, geometric mean"}
# The first ones matter most: where labels would touch, the later ones go.
_TICKS = (1, 2, 0.5, 5, 0.2, 10, 0.1, 20, 50, 1.5, 0.7, 3, 1.2, 0.85, 4, 7, 0.3)
_COLOURS = {"share": BLUE, "log_share": ORANGE}
_SHAPES = {"share": "o", "log_share": "s"}


def save_study_figures(study: Study, folder: Path, model: str | None = None) -> list[Path]:
    """Draw every picture of one model's study into a folder, as PNG; gives their paths."""
    drawn: list[tuple[str, Callable[..., bool]]] = [
        ("curve.png", _curve),
        ("artefacts.png", _artefacts),
        ("layers.png", _layers),
        ("answer.png", _answer),
    ]
    paths = []
    for name, draw in drawn:
        figure = new_figure()
        if draw(study, model, figure):
            save_figure(figure, folder / name)
            paths.append(folder / name)
    return paths


def _note(figure: Any, study: Study, model: str | None, text: str) -> None:
    """Say below a picture what it was made from."""
    data, options = study.of(model), study.options
    made_from = (
        f"{data.model}; {len(data.questions)} questions x {len(data.orders[0])} orders ({options.design}), "
        f"{data.n_documents} documents. {text}"
    )
    figure.supxlabel(made_from, fontsize=8, color="#444444", x=0.01, ha="left")


def _curve(study: Study, model: str | None, figure: Any) -> bool:
    axes = figure.add_subplot()
    positions = np.arange(study.of(model).n_documents)
    for norm in HEADLINE_NORMS:
        curve = study.curve(norm, model=model)
        colour = _COLOURS[norm]
        values, low, high = curve.as_shares()
        if low is not None and high is not None:
            axes.fill_between(positions, 100 * low, 100 * high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(positions, 100 * values, _SHAPES[norm] + "-", color=colour, linewidth=2, label=_NORM_NAMES[norm])
    uniform = 100 * study.uniform(model)
    axes.plot(positions, uniform, "--", color="black", linewidth=1, label="uniform: every token alike")
    axes.set_xticks(positions)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("position of the document in the prompt (0 = first)")
    axes.set_ylabel("share of the documents' attention (%)")
    axes.set_title(f"Attention by position: {study.claim(model)}", loc="left", fontsize=11, fontweight="bold")
    axes.legend(frameon=False, fontsize=9)
    _note(figure, study, model, "Bands: 95 %, all positions at once, over questions.")
    return True


def _artefacts(study: Study, model: str | None, figure: Any) -> bool:
    panel = study.artefact_panel(model)
    ends = [("head_middle", "head / middle"), ("tail_middle", "tail / middle")]
    if panel[0].curves["share"].head_middle is None:
        return False
    left, right = figure.subplots(1, 2, sharey=True)
    rows = np.arange(len(panel))[::-1]
    for axes, (name, title) in zip((left, right), ends, strict=True):
        for norm, offset in zip(HEADLINE_NORMS, (0.14, -0.14), strict=True):
            for row, entry in zip(rows, panel, strict=True):
                _whisker(axes, getattr(entry.curves[norm], name), row + offset, norm, row == rows[0])
        axes.axvline(1, color="black", linestyle="--", linewidth=1)
        axes.set_xscale("log")
        axes.set_xlabel(title)
        low, high = axes.get_xlim()
        axes.set_xticks(_spread_ticks(low, high))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.set_xlim(low, high)
        axes.grid(axis="x", color="#E5E5E5", linewidth=0.8)
        axes.grid(axis="y", visible=False)
    left.set_yticks(rows, [entry.name for entry in panel])
    figure.legend(*left.get_legend_handles_labels(), frameon=False, fontsize=9, loc="upper right", ncols=2)
    figure.suptitle("What is left of the U", x=0.01, ha="left", fontsize=11, fontweight="bold")
    _note(figure, study, model, "95 % t intervals over questions; dashed: no effect.")
    return True


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
    label = _NORM_NAMES[norm] if named else None
    axes.plot([interval.estimate], [y], _SHAPES[norm], color=_COLOURS[norm], markersize=6, label=label)
    if interval.low is not None and interval.high is not None:
        axes.plot([interval.low, interval.high], [y, y], "-", color=_COLOURS[norm], linewidth=1.8)


def _layers(study: Study, model: str | None, figure: Any) -> bool:
    data = study.of(model)
    profiles = study.layer_profiles(model=model)
    # As a curve's values: of the questions that have all positions, and scaled to a whole unless one document moved.
    curves = np.stack([np.exp(one[~np.isnan(one).any(axis=1)].mean(axis=0)) for one in profiles])
    if study.options.design != "insertion":
        curves = curves / curves.sum(axis=1, keepdims=True)
    relative = np.log2(curves * data.n_documents)
    limit = max(1.0, float(np.nanpercentile(np.abs(relative), 98)))
    (main, side) = figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
    image = main.imshow(relative, aspect="auto", cmap="PuOr_r", vmin=-limit, vmax=limit, origin="lower")
    main.set_xticks(range(data.n_documents))
    ticks = range(0, len(data.layers), max(1, len(data.layers) // 10))
    main.set_yticks(list(ticks), [str(data.layers[tick]) for tick in ticks])
    main.set_xlabel("position of the document (0 = first)")
    main.set_ylabel("layer")
    bar = figure.colorbar(image, ax=main, location="left", shrink=0.9, pad=0.02)
    bar.set_label("share against even, doublings (0 = even)")
    budget = data.array("asked", "budget").mean(axis=(0, 1))
    main.grid(visible=False)
    side.plot(
        100 * budget[:, KINDS.index("sink")],
        range(len(data.layers)),
        "o-",
        markersize=3,
        color=GREY,
        label="first token",
    )
    side.plot(
        100 * budget[:, KINDS.index("secondary_sink")],
        range(len(data.layers)),
        "s-",
        markersize=3,
        color=ORANGE,
        label="secondary",
    )
    side.set_xlabel("sinks (% of mass)")
    side.set_xlim(0, 100)
    side.legend(frameon=False, fontsize=7)
    figure.suptitle("Attention by position and layer", x=0.01, ha="left", fontsize=11, fontweight="bold")
    _note(figure, study, model, "Per-head log share, mean over heads.")
    return True


def _answer(study: Study, model: str | None, figure: Any) -> bool:
    gold = study.gold_logprob(model=model)
    if gold is None:
        return False
    axes = figure.add_subplot()
    positions = np.arange(len(gold.values))
    if gold.band.low is not None and gold.band.high is not None:
        axes.fill_between(positions, gold.band.low, gold.band.high, color=BLUE, alpha=0.18, linewidth=0)
    axes.plot(positions, gold.values, "o-", color=BLUE, linewidth=2)
    axes.axhline(0, color="black", linestyle="--", linewidth=1)
    axes.set_xticks(positions)
    axes.set_xlabel("position of the document that holds the answer (0 = first)")
    axes.set_ylabel("log-probability of the answer,\nagainst the question's mean (nats)")
    axes.set_title("Does the answer suffer?", loc="left", fontsize=11, fontweight="bold")
    _note(figure, study, model, "Band: 95 %, simultaneous, unit = question.")
    return True
