"""Maps: which document gets how much in every layer, in every head, and for every token of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnprobe.curve import Layers, choose_heads
from attnprobe.errors import InputError
from attnprobe.norms import selected_rows
from attnprobe.report.drawn import Source, about_layers, about_runs, facts_of
from attnprobe.report.figure_axes import document_labels
from attnprobe.report.figure_text import token_label
from attnprobe.report.grid_figure import NAME_ROOM, Axis, grid_figure
from attnprobe.report.shares import Shares, shares_of
from attnprobe.report.style import Width, say_around, styled
from attnprobe.run import Run

_SHARE = "share of the documents' mass (%)"


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
    values = 100 * shares.layers.T  # [document, layer]
    figure, _ = grid_figure(
        values, _documents(shares.documents, len(values), width), Axis("layer", shares.model_layers), _SHARE, width
    )
    say_around(figure, "Documents by layer", _note(shares, values))
    return figure


@styled
def head_figure(source: Source, *, layers: Layers = None, width: Width = "column") -> Any:
    """Share of each document in the heads of one layer, or in every head of several layers, sorted.

    Parameters
    ----------
    source
        What was measured; of several runs and of studies the mean by position.
    layers
        The model's numbers of the layers; None for all. The heads of one layer stand in their order; those of several
        are sorted by the mean position of the documents that they look at, from first to last.
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
    chosen, numbers, _ = choose_heads(shares.model_layers, shares.heads.shape[1], layers, None)
    values = 100 * shares.heads[chosen].T  # [document, head]
    if len(numbers) == 1:
        axis, title = Axis("head", range(values.shape[1])), f"Documents by head, layer {numbers[0]}"
    else:
        places = np.arange(len(values))[:, None]
        centre = np.nansum(places * values, axis=0) / np.where(np.isnan(values).all(axis=0), np.nan, 100.0)
        values = values[:, np.argsort(centre, kind="stable")]  # NaN last
        axis = Axis("head, sorted by the mean position it looks at", range(values.shape[1]))
        title = f"Documents by head, {len(numbers)} layers"
    figure, _ = grid_figure(values, _documents(shares.documents, len(values), width), axis, _SHARE, width)
    say_around(figure, title, " ".join([_note(shares, values), *_ends(values)]))
    return figure


def _documents(names: Sequence[str] | None, n: int, width: Width) -> Axis:
    named = document_labels(names, n, NAME_ROOM[width])
    return Axis("document", range(n), named, " (0 = first)")


def _note(shares: Shares, values: np.ndarray) -> str:
    hatched = " Hatched: undefined." if np.isnan(values).any() else ""
    return f"{shares.about} Uniform: {100 / len(values):.3g} %.{hatched}"


def _ends(values: np.ndarray) -> list[str]:
    """How many heads look most at the first and at the last document, in words."""
    defined = values[:, ~np.isnan(values).all(axis=0)]
    if len(values) < 3 or not defined.size:
        return []
    most = np.nanargmax(defined, axis=0)
    first, last = int((most == 0).sum()), int((most == len(values) - 1).sum())
    return [f"Most at the first document: {first} of {len(most)} heads; at the last: {last}."]


@styled
def answer_figure(source: Run, *, layers: Layers = None, width: Width = "column") -> Any:
    """Mass of each document in every row of the answer, with the answer's tokens.

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
    values = np.where(seen, 100 * mass, np.nan).T
    rows = _documents(source.documents, facts.n_documents, width)
    tokens = answer_tokens(source)
    columns = Axis(
        "predicted answer token" if source.rows == "predicting" else "answer token",
        range(values.shape[1]),
        tokens[: values.shape[1]] if tokens else None,
        " (0 = first)",
    )
    figure, _ = grid_figure(values, rows, columns, "attention mass (%)", width)
    hatched = " Hatched: no layer sees the document." if np.isnan(values).any() else ""
    say_around(figure, "Documents by answer token", about_runs([facts], about_layers(numbers, facts.n_heads)) + hatched)
    return figure


def answer_tokens(run: Run) -> list[str] | None:
    """Texts of the answer's tokens to show, a number where one cannot be drawn; None where the run does not know them.

    Pieces of one character show it once.
    """
    if run.token_chars is None:
        return None
    text = run.prompt_text + run.answer
    labels, before = [], None
    for number, (start, stop) in enumerate(run.token_chars[run.n_prompt :].tolist()):
        same = (start, stop) == before
        labels.append("…" if same else token_label(text[start:stop]) or str(number))
        before = (start, stop) if start < stop else None
    return labels
