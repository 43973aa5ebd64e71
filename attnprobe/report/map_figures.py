"""Maps: which document gets how much in every layer, in every head, and for every token of the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnprobe.curve import Layers, choose_heads
from attnprobe.errors import InputError
from attnprobe.norms import selected_rows
from attnprobe.report.curve_figures import SHARE
from attnprobe.report.drawn import Source, about_layers, about_runs, about_sinks, facts_of
from attnprobe.report.figure_axes import LINE, document_labels
from attnprobe.report.figure_text import token_label
from attnprobe.report.grid_figure import NAME_ROOM, Axis, grid_figure
from attnprobe.report.panel_figure import panel_figure
from attnprobe.report.shares import Shares, shares_of
from attnprobe.report.style import Width, say_around, styled
from attnprobe.run import Run

_MOST_PANELS = 20
_HEIGHTS = (1.3, 6.0)  # inches of the map with a row for each token, at least and at most


@styled
def layer_figure(source: Source, *, width: Width = "column") -> Any:
    """Share of each document in every layer.

    Parameters
    ----------
    source
        What was measured; of several runs and of studies the mean by position.
    width
        ``column`` (3.3 inches) or ``page`` (6.9).

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InputError
        No run, or runs that do not fit together.
    """
    shares = shares_of(source, "mean of a layer's heads")
    values = 100 * shares.layers  # [layer, document]
    n_documents = values.shape[-1]
    even = 100 / n_documents
    rows, columns = _documents(shares.documents, n_documents, width), Axis("layer", shares.model_layers)
    figure, _ = grid_figure(values.T, rows, columns, SHARE, width, mark=even)
    say_around(figure, "Documents by layer", _note(shares, values, even))
    return figure


@styled
def head_figure(source: Source, *, layers: Layers = None, width: Width = "column") -> Any:
    """Share of each document in the heads of one layer, or a map of all layers and heads for each document.

    Parameters
    ----------
    source
        What was measured; of several runs and of studies the mean by position.
    layers
        The model's numbers of the layers; None for all. With one, rows are documents and columns its heads; with
        several, each document has a map of layers by heads, or each stretch of documents that stand together where
        there are more than 20.
    width
        ``column`` (3.3 inches) or ``page`` (6.9).

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InputError
        No run, runs that do not fit together, or layers that there are not.
    """
    shares = shares_of(source, "each head")
    n_heads, n_documents = shares.heads.shape[1:]
    chosen, *_ = choose_heads(shares.model_layers, n_heads, layers, None)
    kept = np.flatnonzero(chosen.any(axis=1))
    numbers = [shares.model_layers[row] for row in kept]
    values = 100 * shares.heads[kept]  # [layer, head, document]
    heads = Axis("head", range(n_heads))
    size = math.ceil(n_documents / _MOST_PANELS) if len(numbers) > 1 else 1
    even = 100 * size / n_documents
    note = f"{_note(shares, values, even)} {_ends(values)}"
    if len(numbers) == 1:
        axis = _documents(shares.documents, n_documents, width)
        figure, _ = grid_figure(values[0].T, axis, heads, SHARE, width, mark=even)
        say_around(figure, f"Documents by head, layer {numbers[0]}", note)
        return figure
    starts = range(0, n_documents, size)
    panels = np.moveaxis(np.add.reduceat(values, starts, axis=2), 2, 0)  # [panel, layer, head]
    titles = [f"{first}" if size == 1 else f"{first}–{min(first + size, n_documents) - 1}" for first in starts]
    names = document_labels(shares.documents, n_documents, NAME_ROOM[width]) if size == 1 else None
    figure = panel_figure(panels, titles, names, Axis("layer", numbers), heads, SHARE, width, mark=even)
    what = "document" if shares.documents is not None else "position of the document"
    each = f"Each map: one {what}, 0 = first." if size == 1 else f"Each map: the sum over {size} documents, 0 = first."
    say_around(figure, "Documents by layer and head", f"{each} {note}")
    return figure


def _documents(names: Sequence[str] | None, n: int, width: Width) -> Axis:
    named = document_labels(names, n, NAME_ROOM[width])
    return Axis("document" if names is not None else "position of the document", range(n), named, " (0 = first)")


def _note(shares: Shares, values: np.ndarray, even: float) -> str:
    hatched = " Hatched: undefined." if np.isnan(values).any() else ""
    return f"{shares.about} White line on the scale: uniform, {even:.3g} %.{hatched}"


def _ends(values: np.ndarray) -> str:
    """How many heads [layer, head, document] look most at the first and at the last document, in words."""
    defined = values[~np.isnan(values).all(axis=-1)]
    if values.shape[-1] < 3 or not defined.size:
        return ""
    most = np.nanargmax(defined, axis=-1)
    first, last = int((most == 0).sum()), int((most == values.shape[-1] - 1).sum())
    return f"Most at the first document: {first} of {len(most)} heads; at the last: {last}."


@styled
def answer_figure(source: Run, *, layers: Layers = None, width: Width = "column") -> Any:
    """Mass of each document in every row of the answer; the answer's tokens stand below each other.

    Parameters
    ----------
    source
        A run with its rows.
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
        A run without rows or documents, or layers that there are not.
    """
    selected_rows(source, None)
    assert source.row_mass is not None
    facts = facts_of(source)
    if not facts.n_documents:
        raise InputError(f"{facts.prompt} has no document spans, so there is nothing to draw by document")
    chosen, numbers, _ = choose_heads(source.layers, facts.n_heads, layers, None)
    documents = list(source.document_spans)
    mass = source.row_mass[..., documents][chosen].mean(axis=0, dtype=np.float64)  # [row, document]
    seen = source.visible[chosen.any(axis=1)][..., documents].any(axis=0)
    values = np.where(seen, 100 * mass, np.nan)
    tokens = answer_tokens(source)
    rows = Axis(
        "predicted answer token" if source.rows == "predicting" else "answer token",
        range(len(values)),
        tokens[: len(values)] if tokens else None,
        " (0 = first)",
        thinned=True,
    )
    height = float(np.clip(LINE * len(values), *_HEIGHTS))
    columns = _documents(source.documents, facts.n_documents, width)
    figure, _ = grid_figure(values, rows, columns, "attention mass (%)", width, height=height)
    left_out = " Not every token is named." if len(rows.shown(height)) not in (0, len(values)) else ""
    hatched = " Hatched: no layer sees the document." if np.isnan(values).any() else ""
    note = f"{about_runs([facts], about_layers(numbers, facts.n_heads))} {about_sinks([facts])}"
    one = f", layer {numbers[0]}" if len(numbers) == 1 < len(source.layers) else ""
    say_around(figure, f"Documents by answer token{one}", note + left_out + hatched)
    return figure


def answer_tokens(run: Run) -> list[str] | None:
    """Texts of the answer's tokens to show, of a character's pieces once; None where the run does not know them."""
    if run.token_chars is None:
        return None
    text = run.prompt_text + run.answer
    labels, before = [], -1
    for start, stop in run.token_chars[run.n_prompt :].tolist():
        labels.append("…" if start < stop == before else token_label(text[start:stop]))
        before = stop
    return labels
