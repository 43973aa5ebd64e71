"""The map of the whole prompt: what its own rows look at, in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprobe.curve import Layers, choose_heads
from attnprobe.errors import InputError
from attnprobe.report.drawn import about_layers, about_runs, facts_of
from attnprobe.report.figure_text import label
from attnprobe.report.grid_figure import NAME_ROOM, Axis, grid_figure
from attnprobe.report.style import SMALL, Width, say_around, styled
from attnprobe.run import Run
from attnprobe.spans import KIND_NAMES, Span, budget_kind


@styled
def prompt_figure(source: Run, *, layers: Layers = None, width: Width = "column") -> Any:
    """Mass of every document, the question and the scaffold in blocks of the prompt's rows.

    The first token's and the other sinks' rows are drawn, but the colours end at the largest mass of the others.

    Parameters
    ----------
    source
        A run with the extra ``prompt``.
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
        A run without the extra, or layers that there are not.
    """
    facts = facts_of(source)
    if source.prompt_mass is None or source.prompt_edges is None:
        raise InputError(f'{facts.prompt} has no mass of the prompt\'s own rows; measure it with extras=("prompt",)')
    chosen, numbers, _ = choose_heads(source.layers, facts.n_heads, layers, None)
    mean = source.prompt_mass[chosen].mean(axis=0, dtype=np.float64)  # [block, span]
    edges = source.prompt_edges
    names, groups = _rows(source.spans, width)
    values = 100 * np.stack([mean[:, group].sum(axis=1) for group in groups])  # [row, block]
    begins = np.array([_begin(source.spans, group) for group in groups])
    values[begins[:, None] >= np.array(edges[1:])] = np.nan  # no row of the block is so late
    sinks = [all(source.spans[i].kind in ("sink", "learned_sink") for i in group) for group in groups]
    beside = values[~np.array(sinks)]
    figure, _ = grid_figure(
        values,
        Axis("", range(len(names)), names),
        Axis("rows of the prompt (first token of the block)", edges[:-1]),
        "attention mass (%)",
        width,
        top=float(np.nanmax(beside, initial=0.0)),
        hatched=np.zeros(values.shape, dtype=bool),
    )
    about = about_runs([facts], about_layers(numbers, facts.n_heads))
    clipped = " Sinks may exceed the colours, which end at the most that others get." if any(sinks) else ""
    say_around(figure, "What the prompt's own rows look at", f"{about} White: not yet written.{clipped}")
    return figure


def _rows(spans: tuple[Span, ...], width: Width) -> tuple[list[str], list[list[int]]]:
    """Names of the map's rows and the spans of each, in prompt order: documents apart, of other kinds all together."""
    names: list[str] = []
    groups: dict[object, list[int]] = {}
    for i, span in enumerate(spans):
        if span.kind == "answer":
            continue
        if span.kind == "document":
            drawn = label(span.name, NAME_ROOM[width] - 0.15, SMALL)
            name = f"document {span.document}" if drawn in (None, str(span.document)) else f"{span.document}: {drawn}"
        elif span.kind == "other":
            name = label(span.name, NAME_ROOM[width], SMALL) or f"span {i}"
        else:
            name = KIND_NAMES[budget_kind(span)]
        key = i if span.kind in ("document", "other") else name
        if key not in groups:
            names.append(name)
        groups.setdefault(key, []).append(i)
    return names, list(groups.values())


def _begin(spans: tuple[Span, ...], group: list[int]) -> int:
    """Position of the first token of some spans; 0 where they have none, as a learned sink."""
    return min((segment[0] for i in group for segment in spans[i].segments), default=0)
