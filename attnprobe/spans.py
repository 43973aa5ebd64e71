"""Spans: the named pieces that partition a prompt's tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

SpanKind = Literal["sink", "template", "system", "marker", "document", "question", "other", "answer", "learned_sink"]
SPAN_KINDS: tuple[str, ...] = get_args(SpanKind)

KIND_NAMES = {
    "sink": "first token",
    "secondary_sink": "secondary sinks",
    "learned_sink": "learned sink",
    "template": "template",
    "system": "system",
    "marker": "markers",
    "document": "documents",
    "question": "question",
    "other": "other text",
    "answer": "answer so far",
}
"""What people read of a budget's kinds, in the order in which they are shown; see :func:`budget_kind`."""
SINK_KINDS = ("sink", "secondary_sink", "learned_sink")
"""Kinds of a budget that are sinks."""


@dataclass(frozen=True)
class Span:
    """One named set of token positions.

    Parameters
    ----------
    kind
        What the tokens are for: one of ``SPAN_KINDS``.
    name
        Unique within a prompt, e.g. ``"sink"``, ``"d7"``, ``"marker:d7"``, ``"question"``.
    document
        Index of the document in the prompt, for kinds ``document`` and ``marker``, and for a secondary sink that was
        taken out of a document; else None.
    segments
        Half-open token ranges ``(start, stop)`` in ascending order. Empty for a document without tokens and
        for a learned sink, which has no token at all.
    """

    kind: SpanKind
    name: str
    document: int | None = None
    segments: tuple[tuple[int, int], ...] = ()

    @property
    def n_tokens(self) -> int:
        """Number of tokens in the span."""
        return sum(stop - start for start, stop in self.segments)


def is_secondary(span: Span) -> bool:
    """Whether a span is a sink other than the first token's."""
    return span.kind == "sink" and span.name != "sink"


def budget_kind(span: Span) -> str:
    """The kind of a budget that a span counts to: its own, but for secondary sinks, which have one."""
    return "secondary_sink" if is_secondary(span) else span.kind


def sink_mass(budget: Mapping[str, float]) -> float:
    """What all sinks of a budget got together; kinds that it lacks got nothing."""
    return sum(budget.get(kind, 0.0) for kind in SINK_KINDS)


def question_tokens(spans: Iterable[Span]) -> tuple[int, int] | None:
    """The last stretch of tokens that is the question's, half open; None without a question.

    Sinks that were taken out of the question do not interrupt it.
    """
    spans = tuple(spans)
    segments = sorted(segment for span in spans if span.kind == "question" for segment in span.segments)
    if not segments:
        return None
    sinks = {token for span in spans if span.kind == "sink" for a, b in span.segments for token in range(a, b)}
    start, stop = segments.pop()
    while segments and sinks.issuperset(range(segments[-1][1], start)):
        start = segments.pop()[0]
    return start, stop


class Straddler(NamedTuple):
    """A token whose characters belong to two owners: ``kept`` has the token, ``lost`` does not."""

    token: int
    kept: int
    lost: int


def check_partition(spans: Iterable[Span], n_tokens: int) -> None:
    """Raise RuntimeError unless every token of ``range(n_tokens)`` is in exactly one segment of one span."""
    bounds = np.array(
        [segment for span in spans for segment in span.segments], dtype=np.int64
    ).reshape(-1, 2)  # fmt: skip
    if bounds.size and (bounds.min() < 0 or bounds.max() > n_tokens or (bounds[:, 0] >= bounds[:, 1]).any()):
        raise RuntimeError(f"a span has an empty or outlying segment for a prompt of {n_tokens} tokens")
    change = np.bincount(bounds[:, 0], minlength=n_tokens + 1) - np.bincount(bounds[:, 1], minlength=n_tokens + 1)
    owners = np.cumsum(change)[:n_tokens]
    wrong = np.flatnonzero(owners != 1)
    if wrong.size:
        raise RuntimeError(
            f"the spans do not partition the {n_tokens} tokens: token {wrong[0]} is in {owners[wrong[0]]} spans"
        )


def assign_tokens(
    starts: np.ndarray, stops: np.ndarray, bounds: np.ndarray, owners: np.ndarray, joints: np.ndarray
) -> tuple[np.ndarray, list[Straddler]]:
    """Give each token to the owner of most of its characters.

    Parameters
    ----------
    starts, stops
        int64 ``[n]``, characters that each token covers. A token without characters takes the owner of the
        character at its start.
    bounds
        int64 ``[m + 1]``, ascending: segment ``i`` holds the characters ``bounds[i] ... bounds[i + 1] - 1``, the
        segments tile the text and none is empty.
    owners
        int64 ``[m]``, the owner of each segment.
    joints
        int64, ascending: characters that only join two pieces. They count where a token has no other ones.

    Returns
    -------
    (ndarray, list of Straddler)
        int64 ``[n]``, the owner of each token; and the tokens whose characters have more than one owner. A tie
        goes to the earlier owner. Tokens that share a character with a straddling token, as the byte pieces of
        an emoji do, go where it goes and are counted with it.
    """
    last_character = bounds[-1] - 1
    first = np.searchsorted(bounds, np.minimum(starts, last_character), side="right") - 1
    last = np.searchsorted(bounds, np.clip(stops - 1, starts, last_character), side="right") - 1
    # A token without characters at a segment's start must not look beyond it.
    last = np.maximum(last, first)
    assigned = owners[first].copy()
    straddlers: list[Straddler] = []
    done = -1
    for token in np.flatnonzero(first != last).tolist():
        if token <= done:
            continue
        group = _sharing(token, starts, stops)
        done = group[-1]
        shares: dict[int, int] = {}
        for member in group:
            _count(shares, int(starts[member]), int(stops[member]), bounds, owners, joints)
        if not shares:
            for member in group:
                _count(shares, int(starts[member]), int(stops[member]), bounds, owners, joints[:0])
        kept = max(shares, key=lambda owner: shares[owner])
        assigned[group[0] : group[-1] + 1] = kept
        if len(shares) > 1:
            lost = max((owner for owner in shares if owner != kept), key=lambda owner: shares[owner])
            straddlers.append(Straddler(token, kept, lost))
    return assigned, straddlers


def token_runs(assigned: np.ndarray) -> list[tuple[int, int, int]]:
    """Maximal runs of equal owners: ``(owner, start, stop)``, in token order."""
    if not assigned.size:
        return []
    edges = np.concatenate(([0], np.flatnonzero(np.diff(assigned)) + 1, [assigned.size]))
    return list(zip(assigned[edges[:-1]].tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True))


def _sharing(token: int, starts: np.ndarray, stops: np.ndarray) -> list[int]:
    """The token and its neighbours that lie within its characters, as positions in a row."""
    low = high = token
    while low > 0 and starts[token] <= starts[low - 1] < stops[low - 1] <= stops[token]:
        low -= 1
    while high + 1 < len(starts) and starts[token] <= starts[high + 1] < stops[high + 1] <= stops[token]:
        high += 1
    return list(range(low, high + 1))


def _count(
    shares: dict[int, int], start: int, stop: int, bounds: np.ndarray, owners: np.ndarray, joints: np.ndarray
) -> None:
    """Add to ``shares`` how many characters of ``[start, stop)`` each owner has, in order of position."""
    segment = int(np.searchsorted(bounds, start, side="right")) - 1
    while start < stop:
        edge = min(stop, int(bounds[segment + 1]))
        inside = int(np.searchsorted(joints, edge)) - int(np.searchsorted(joints, start))
        if edge - start > inside:
            owner = int(owners[segment])
            shares[owner] = shares.get(owner, 0) + edge - start - inside
        start = edge
        segment += 1
