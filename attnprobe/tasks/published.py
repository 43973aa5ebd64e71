"""Published curves, to lay beside one's own: accuracy by position, and by length.

Figures as their sources print them, as fractions. Where the number of documents or the metric differs from the user's,
the levels cannot be compared, the shape at best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.errors import InputError
from attnprobe.estimates import defined, short_number

LOST_IN_THE_MIDDLE = (
    "Liu et al., Lost in the Middle: How Language Models Use Long Contexts, TACL 12 (2024): multi-document question "
    "answering on NaturalQuestions-Open"
)
NOLIMA = "Modarressi et al., NoLiMa: Long-Context Evaluation Beyond Literal Matching (2025)"
RULER = "Hsieh et al., RULER: What's the Real Context Size of Your Long-Context Language Models? (2024)"
BEST_SUBSPAN = "best_subspan_em"


@dataclass(frozen=True)
class PublishedPositions:
    """Accuracy by position of the document that holds the answer.

    Parameters
    ----------
    model, source, metric
        What was measured, by whom, how it was scored.
    documents
        In each prompt.
    positions, accuracy
        Positions from 0, and the accuracy at each, as a fraction.
    closed_book, oracle
        Without documents; with the right one alone.
    """

    model: str
    source: str
    metric: str
    documents: int
    positions: tuple[int, ...]
    accuracy: tuple[float, ...]
    closed_book: float
    oracle: float

    def __repr__(self) -> str:
        return f"PublishedPositions({self.model}: {' '.join(f'{value:g}' for value in self.accuracy)})"

    @property
    def relative(self) -> tuple[float, ...]:
        """Positions from 0, the first document, to 1, the last."""
        return tuple(position / (self.documents - 1) for position in self.positions)

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {**vars(self), "positions": list(self.positions), "accuracy": list(self.accuracy)}


@dataclass(frozen=True)
class PublishedLengths:
    """Accuracy (a fraction) by tokens of the prompt; ``base``: the source's own short-prompt score, if it has one."""

    model: str
    source: str
    tokens: tuple[int, ...]
    accuracy: tuple[float, ...]
    base: float | None

    def __repr__(self) -> str:
        return f"PublishedLengths({self.model}, {self.source.split(',')[0]})"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {**vars(self), "tokens": list(self.tokens), "accuracy": list(self.accuracy)}


def _twenty(model: str, accuracy: tuple[float, ...], closed_book: float, oracle: float) -> PublishedPositions:
    return PublishedPositions(
        model, LOST_IN_THE_MIDDLE, BEST_SUBSPAN, 20, (0, 4, 9, 14, 19), accuracy, closed_book, oracle
    )


BY_POSITION = (
    _twenty("GPT-3.5-Turbo", (0.758, 0.572, 0.538, 0.554, 0.632), 0.561, 0.883),
    _twenty("Claude-1.3", (0.599, 0.559, 0.568, 0.572, 0.601), 0.483, 0.761),
    _twenty("MPT-30B-Instruct", (0.537, 0.518, 0.522, 0.527, 0.563), 0.315, 0.819),
    _twenty("LongChat-13B-16k", (0.686, 0.574, 0.553, 0.525, 0.550), 0.350, 0.834),
    _twenty("Llama-2-70B-chat", (0.568, 0.533, 0.541, 0.597, 0.695), 0.353, 0.847),
)

BY_LENGTH = (
    PublishedLengths("Llama-3.1-8B", NOLIMA, (1_000, 32_000), (0.657, 0.142), base=0.767),
    PublishedLengths("Llama-3.1-8B", RULER, (4_000, 128_000), (0.955, 0.770), base=None),
)


@dataclass(frozen=True)
class Beside:
    """A published curve and the user's at its relative positions.

    Parameters
    ----------
    published
        The curve.
    yours
        The user's accuracy at each of its relative positions, linearly between the tested ones; None outside them.
    tested
        Whether the user tested that relative position itself.
    not_comparable
        Why the levels cannot be compared; empty where they can.
    """

    published: PublishedPositions
    yours: tuple[float | None, ...]
    tested: tuple[bool, ...]
    not_comparable: tuple[str, ...]

    def __repr__(self) -> str:
        flag = f"; not comparable: {'; '.join(self.not_comparable)}" if self.not_comparable else ""
        return f"Beside({self.published.model}, yours: {' '.join(map(short_number, self.yours))}{flag})"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {
            "published": self.published.to_dict(),
            "relative": list(self.published.relative),
            "yours": list(self.yours),
            "tested": list(self.tested),
            "not_comparable": list(self.not_comparable),
        }


def beside_published(
    accuracy: Sequence[float], metric: str, positions: Sequence[float] | None = None, documents: int | None = None
) -> tuple[Beside, ...]:
    """Lay accuracy by position beside every published curve, at the same relative positions.

    Parameters
    ----------
    accuracy
        Of each of the user's positions, ascending, as fractions; two or more.
    metric
        How the user's replies were scored: ``strict``, ``lenient`` or another name.
    positions
        The user's positions from 0, ascending; None for all of the documents.
    documents
        In each of the user's prompts; None for as many as there are accuracies.

    Raises
    ------
    InputError
        For fewer than two positions, values that are no fractions, or positions that are not those of the documents.
    """
    values = np.asarray(accuracy, dtype=np.float64)
    if values.ndim != 1 or len(values) < 2 or not ((values >= 0) & (values <= 1)).all():
        raise InputError(f"accuracy is {accuracy!r}; give two fractions or more, one a position")
    documents = len(values) if documents is None else documents
    places = np.asarray(range(len(values)) if positions is None else positions, dtype=np.float64)
    if places.shape != values.shape or not (np.diff(places) > 0).all() or places[0] < 0 or places[-1] > documents - 1:
        raise InputError(
            f"positions are {list(places)} for {len(values)} accuracies of {documents} documents; give one each, "
            f"ascending, 0 to {documents - 1}"
        )
    own = places / (documents - 1)
    rows = []
    for curve in BY_POSITION:
        at = np.array(curve.relative)
        why = []
        if documents != curve.documents:
            why.append(f"{documents} documents, not {curve.documents}")
        if metric != curve.metric:
            why.append(f"scored by {metric}, not {curve.metric}")
        tested = tuple(bool((np.abs(place - own) < 1e-9).any()) for place in at)
        between = np.interp(at, own, values, left=np.nan, right=np.nan)
        rows.append(Beside(curve, tuple(defined(float(value)) for value in between), tested, tuple(why)))
    return tuple(rows)
