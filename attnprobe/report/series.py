"""Series: the numbers that a report shows of one source, as plain arrays and texts that page and summary share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attnprobe.told import Table, Verdict

NORM_NAMES = {
    "share": "share of documents, pooled",
    "log_share": "share of documents, per head",
    "mass": "mass",
    "density": "density (1 = uniform)",
    "advantage": "advantage (nats)",
}
VIEW_NAMES = {
    "raw": "as measured",
    "apart": "without secondary sinks",
    "trimmed": "without each document's heaviest token",
    "first": "first answer row",
    "later": "later answer rows",
    "question": "the question's own rows",
    "weighted": "mass times what each key writes",
    "null": 'question and answer "N/A" (null)',
    "calibrated": "over the null (calibrated)",
    "preamble": "with a sentence before the documents",
    "dummy": "a document without content",
}


@dataclass(frozen=True, eq=False)
class Curves:
    """Curves of one norm: the mean over everything, every layer's, every head's.

    Parameters
    ----------
    values
        float64 [position]; NaN where undefined.
    layers, heads
        float64 [layer, position] and [layer, head, position]; ``heads`` is None where they would take too much room.
    low, high
        Of ``values``: the simultaneous 95 % band. Here and below None where there is none.
    layer_bounds, head_bounds
        float64 [2, ...]: 95 % t intervals at each position alone.
    uniform
        float64 [position]: the same if attention were uniform.
    head_text, tail_text
        First and last against the middle, with an interval where there is one.
    """

    values: np.ndarray
    layers: np.ndarray
    heads: np.ndarray | None
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    layer_bounds: np.ndarray | None = None
    head_bounds: np.ndarray | None = None
    uniform: np.ndarray | None = None
    head_text: str = "-"
    tail_text: str = "-"


@dataclass(frozen=True, eq=False)
class Series:
    """What is shown of one source: a run, the runs of a folder with as many documents, or a model's study.

    Parameters
    ----------
    name
        Short, and no other series'.
    kind
        ``run``, ``runs`` or ``study``.
    documents
        Names by position, or position numbers where documents differ from prompt to prompt.
    tokens
        float64 [position]: the document's tokens, a mean where they differ.
    middle
        Positions that count as the middle.
    model_layers
        The model's numbers of the layers.
    n_heads
        Query heads of a layer.
    curves
        By view and norm; empty without documents.
    ratios
        float64 [layer, head] by name: ``head_middle`` and ``tail_middle`` of the share, and ``document_mass``.
    members
        Mean curves of single prompts by id, [position] by norm, at most a few dozen.
    budget
        Mean mass of each kind of span.
    verdict
        What may be said.
    asked
        Question and answer, in a few words: label and text.
    tables
        Further tables of this series, by section.
    facts
        What was measured and how: label and value.
    warnings
        In words, each once.
    """

    name: str
    kind: str
    documents: tuple[str, ...]
    tokens: np.ndarray
    middle: tuple[int, ...]
    model_layers: tuple[int, ...]
    n_heads: int
    curves: Mapping[str, Mapping[str, Curves]]
    ratios: Mapping[str, np.ndarray]
    members: tuple[tuple[str, Mapping[str, np.ndarray]], ...]
    budget: Mapping[str, float]
    verdict: Verdict
    asked: tuple[tuple[str, str], ...]
    tables: Mapping[str, Table]
    facts: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]


def end_ratio(values: np.ndarray, end: int, middle: tuple[int, ...]) -> np.ndarray:
    """Value at an end over the middle's mean, along the last axis; NaN without a middle or where undefined."""
    if not middle:
        return np.full(values.shape[:-1], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: np.ndarray = values[..., end] / values[..., list(middle)].mean(axis=-1)
    return ratio
