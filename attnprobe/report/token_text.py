"""The text of a run as it is read: which characters are whose, in what order, and where its sentences end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from attnprobe.run import Run
from attnprobe.spans import Span
from attnprobe.split import split_sentences

LONGEST = 128
"""Most tokens of a stretch that is taken for one sentence, if characters begin between them."""
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Piece(NamedTuple):
    """A stretch of tokens of one span: an index in the spans and a half-open range of positions."""

    span: int
    start: int
    stop: int


class Block(NamedTuple):
    """Neighbouring pieces that are read as one thing, such as a document with the sinks inside it.

    ``span`` is the index of the span that it is; ``first`` and ``last`` a half-open range of pieces.
    """

    span: int
    first: int
    last: int


def shown_text(run: Run) -> str:
    """Text of prompt and answer."""
    return writable(run.prompt_text + run.answer)


def writable(text: str) -> str:
    """The text, with U+FFFD for halves of characters, which UTF-8 cannot write."""
    return _LONE_SURROGATE.sub("�", text)


def spans_of(run: Run) -> tuple[Span, ...]:
    """The run's spans, with one for the answer where no row sees it and the run may do without."""
    if any(span.kind == "answer" for span in run.spans):
        return run.spans
    return (*run.spans, Span("answer", "answer", None, ((run.n_prompt, len(run.token_ids)),)))


def pieces_of(spans: Sequence[Span]) -> list[Piece]:
    """The spans' segments in reading order; they tile the tokens."""
    pieces = [Piece(i, start, stop) for i, span in enumerate(spans) for start, stop in span.segments]
    return sorted(pieces, key=lambda piece: piece.start)


def blocks_of(spans: Sequence[Span], pieces: Sequence[Piece]) -> list[Block]:
    """Pieces by what they are parts of: a sink inside a span, or taken out of a document, is read with it."""
    of_document = {span.document: i for i, span in enumerate(spans) if span.kind == "document"}
    owners: list[int] = []
    for place, piece in enumerate(pieces):
        span = spans[piece.span]
        owner = piece.span
        if span.kind == "sink" and span.document is not None:
            owner = of_document[span.document]
        elif span.kind == "sink" and owners:
            rest = (later.span for later in pieces[place + 1 :] if spans[later.span].kind != "sink")
            owner = owners[-1] if next(rest, None) == owners[-1] else owner
        owners.append(owner)
    blocks = []
    for owner, places in groupby(range(len(pieces)), key=lambda place: owners[place]):
        own = list(places)
        blocks.append(Block(owner, own[0], own[-1] + 1))
    return blocks


def cell_ranges(chars: np.ndarray, pieces: Sequence[Piece]) -> np.ndarray:
    """Characters of each token so that no two ranges overlap by a part: tokens that share a character share a range.

    int64 ``[token, 2]``, characters as ``run.token_chars`` counts them. Within a piece, each token's range is its
    predecessor's, or begins where that one ends or later; a piece does not reach back into the one before it. Tokens
    without characters have an empty range.
    """
    ranges = np.zeros((len(chars), 2), dtype=np.int64)
    done = 0
    for piece in pieces:
        first, low = piece.start, done  # the cell that is being filled: its first token and character
        for token in range(piece.start, piece.stop):
            start, stop = int(chars[token, 0]), int(chars[token, 1])
            if token == first or start >= done or start == stop or low == done:
                first, low = token, max(start, done)
            done = max(done, low, stop) if stop > start else done
            ranges[first : token + 1] = (low, done) if stop > start else (done, done)
    return ranges


def utf16_offsets(text: str, offsets: np.ndarray) -> np.ndarray:
    """Offsets in characters as offsets in UTF-16 units, which is how browsers count."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    wide = np.concatenate(([0], np.cumsum(points > 0xFFFF)))
    return offsets + wide[offsets]


def sentence_edges(text: str, ranges: np.ndarray, pieces: Sequence[Piece]) -> np.ndarray:
    """Positions where sentences begin, within pieces, and the number of tokens at the end: int64, ascending.

    What goes on for more than ``LONGEST`` tokens without an end is cut into pieces of that many.
    """
    edges = {len(ranges)}
    for piece in pieces:
        edges.add(piece.start)
        own = ranges[piece.start : piece.stop]
        begin, end = int(own[0, 0]), int(own[-1, 1])
        for start, _ in split_sentences(text[begin:end])[1:]:
            token = int(np.searchsorted(own[:, 0], begin + start))
            # A token that a cut goes through is of the sentence it begins in, but for white space before the cut.
            first = int(np.searchsorted(own[:, 0], own[token - 1, 0]))
            if token and own[first, 1] > begin + start and text[own[first, 0] : begin + start].isspace():
                token = first
            edges.add(piece.start + token)
    return np.array(_without_long(sorted(edges), ranges), dtype=np.int64)


def _without_long(edges: list[int], ranges: np.ndarray) -> list[int]:
    """The same edges, and more inside stretches of over ``LONGEST`` tokens, never between tokens of one character."""
    cut = [edges[0]]
    for edge in edges[1:]:
        for token in range(cut[-1] + LONGEST, edge):
            if token - cut[-1] >= LONGEST and ranges[token, 0] > ranges[token - 1, 0]:
                cut.append(token)
        cut.append(edge)
    return cut


def coarsened(edges: np.ndarray, limit: int, pieces: Sequence[Piece]) -> np.ndarray:
    """As many of the edges as fit a limit, evenly by tokens; pieces keep theirs, and so may exceed the limit."""
    if len(edges) - 1 <= limit:
        return edges
    fixed = np.array([*(piece.start for piece in pieces), edges[-1]], dtype=np.int64)
    size = int(edges[-1]) / max(limit - len(pieces), 1)
    room = np.searchsorted(fixed, edges, side="right") - 1  # the piece of each edge
    within = (edges - fixed[room]) / size
    first = np.ones(len(edges), dtype=bool)
    first[1:] = (room[1:] != room[:-1]) | (np.floor(within[1:]) > np.floor(within[:-1]))
    return edges[first]
