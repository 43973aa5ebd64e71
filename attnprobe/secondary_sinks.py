"""Secondary sinks: tokens inside a prompt that draw attention whatever is asked, found in null runs and set apart.

The first token is not the only one that draws attention without being read. Such tokens ("the", a space, a line break)
stand inside documents and fake a preference for the document that has the strongest of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprobe.errors import InputError
from attnprobe.spans import Span, check_partition

if TYPE_CHECKING:
    from attnprobe.encode import EncodedPrompt
    from attnprobe.run import Run

EXCESS = 50.0
"""How many times the median token's mass a secondary sink has at least."""
FRACTION = 0.03
"""How much of the attention that leaves the first token a secondary sink has at least."""
_JUDGED = ("system", "template", "marker", "document", "other")
_FEWEST = 8
"""Fewest tokens whose median says what is usual."""


@dataclass(frozen=True)
class SecondarySink:
    """One token that is a secondary sink of one layer.

    Parameters
    ----------
    layer
        The model's number of the layer.
    position
        Position in ``run.token_ids``.
    document
        The document that the token, or the marker it belongs to, stands for; None for a token of the chat template, the
        system text or a span of the user's.
    token_id
        The token.
    mass
        Its attention mass in that layer, mean over heads and rows.
    excess
        ``mass`` over the median mass of the layer's judged tokens.
    """

    layer: int
    position: int
    document: int | None
    token_id: int
    mass: float
    excess: float


def find_secondary_sinks(
    run: Run, *, threshold: float = EXCESS, fraction: float = FRACTION
) -> tuple[SecondarySink, ...]:
    """The secondary sinks of every layer, from a run whose question and answer ask for nothing (both "N/A").

    In each layer, by mass averaged over heads and rows: a token is a secondary sink when its mass is at least
    ``threshold`` times the median of the judged tokens, and at least ``fraction`` of all mass that does not go to the
    first token (or a learned sink). Judged are the tokens from the second one to the end of the last document, marker
    or named span, except the question's: tokens behind are so near the rows that their mass may be nearness. A learned
    sink counts as the first token does.

    Two conditions, as for massive activations (Sun et al., "Massive activations in large language models", 2024: more
    than 100, and about 1000 times the median or more). The multiple alone finds specks of a thousandth of the mass in
    layers that give nearly all to the first token; the fraction alone finds ordinary tokens of short prompts. On
    SmolLM2, with ten documents and ten rotations, every threshold up to 50 found the same tokens, and fractions from
    0.02 to 0.05 gave the same ratio of the first to the middle documents without the sinks (0.97 to 1.00, 3.75 with
    them). Short prompts rarely have one, but may: one of 72 tokens did.

    Parameters
    ----------
    run
        A null run, measured with ``extras=("columns",)``. In a run with a real question, tokens of its answer are found
        as well.
    threshold
        Times the median.
    fraction
        Of the mass beside the first token.

    Returns
    -------
    tuple of SecondarySink
        By layer, then position: one a layer and token, so a token that is a sink in several layers has several. Once
        set apart, with ``secondary_sinks=``, it is so in all layers.

    Raises
    ------
    InputError
        The run has no column masses, or a criterion is out of range.
    """
    if run.column_mass is None:
        raise InputError('the run has no mass of single tokens; measure it with extras=("columns",)')
    if not threshold > 1:
        raise InputError(f"threshold is {threshold!r}; it is a multiple of the median token's mass: more than 1")
    if not 0 < fraction < 1:
        raise InputError(f"fraction is {fraction!r}; it is a part of the mass beside the first token: between 0 and 1")
    documents = _judged(run)
    positions = np.array(sorted(documents), dtype=np.int64)
    found: list[SecondarySink] = []
    mass = run.column_mass.mean(axis=1, dtype=np.float64)  # [layer, token]
    for number, layer in enumerate(run.layers):
        own = mass[number, positions]
        seen = own[own > 0]  # a layer with a window does not see them all
        if len(seen) < _FEWEST:
            continue
        excess = own / np.median(seen)
        beside = mass[number, 1:].sum()
        for index in np.flatnonzero((excess >= threshold) & (own >= fraction * beside)):
            position = int(positions[index])
            found.append(
                SecondarySink(
                    layer=layer,
                    position=position,
                    document=documents[position],
                    token_id=run.token_ids[position],
                    mass=float(own[index]),
                    excess=float(excess[index]),
                )
            )
    return tuple(found)


def _judged(run: Run) -> dict[int, int | None]:
    """Positions that may be secondary sinks, each with its span's document."""
    ends = [
        stop for span in run.spans if span.kind in ("document", "marker", "other") for _, stop in span.segments[-1:]
    ]
    return {
        position: span.document
        for span in run.spans
        if span.kind in _JUDGED
        for start, stop in span.segments
        for position in range(max(start, 1), min(stop, max(ends, default=0)))
    }


def sink_positions(sinks: Iterable[SecondarySink]) -> tuple[int, ...]:
    """Positions of secondary sinks of any layer, ascending, each once."""
    return tuple(sorted({sink.position for sink in sinks}))


def carried(sinks: Iterable[SecondarySink], run: Run, encoded: EncodedPrompt) -> tuple[int, ...]:
    """Positions of a run's secondary sinks in another prompt with the same documents, whose question differs.

    A sink is found again by the name of its span and its place in it. What stands in the question, or is another token
    there, is left out.

    Parameters
    ----------
    sinks
        What was found in ``run``.
    run
        The null run.
    encoded
        The prompt in which they are to be set apart.
    """
    here, there = _places(run.spans), _places(encoded.spans)
    taken = set(sink_positions(sinks))
    return tuple(
        sorted(
            there[place]
            for place, position in here.items()
            if position in taken
            and place[0] != "question"
            and place in there
            and encoded.token_ids[there[place]] == run.token_ids[position]
        )
    )


def _places(spans: Iterable[Span]) -> dict[tuple[str, str, int], int]:
    """Position of every token, by its span's kind and name and its place in it."""
    return {
        (span.kind, span.name, place): position
        for span in spans
        for place, position in enumerate(p for start, stop in span.segments for p in range(start, stop))
    }


def apart(encoded: EncodedPrompt, positions: Sequence[int] | Sequence[SecondarySink]) -> EncodedPrompt:
    """A prompt in which some tokens are spans of their own, of kind ``sink`` and name ``sink:<position>``.

    Parameters
    ----------
    encoded
        The prompt as the model reads it.
    positions
        Of prompt tokens, in any order, or secondary sinks of any layers. The sink of a document's own token keeps the
        document's number.

    Raises
    ------
    InputError
        A position is not a whole number, is outside the prompt, is the first token, is a sink already or is given
        twice.
    """
    taken = _checked(encoded, positions)
    if not taken:
        return encoded
    placed: list[tuple[int, int, Span]] = []
    start = 0
    for index, span in enumerate(encoded.spans):
        start = span.segments[0][0] if span.segments else start
        own = [position for first, stop in span.segments for position in taken if first <= position < stop]
        segments = tuple(piece for segment in span.segments for piece in _without(segment, own))
        if segments or not own or span.kind == "document":
            placed.append((segments[0][0] if segments else start, index, replace(span, segments=segments)))
        document = span.document if span.kind == "document" else None
        placed += [(p, index, Span("sink", f"sink:{p}", document, ((p, p + 1),))) for p in own]
    spans = tuple(span for _, _, span in sorted(placed, key=lambda entry: entry[:2]))
    check_partition(spans, encoded.n_tokens)
    before = {span.name for span in encoded.spans if span.segments}
    emptied = [span for span in spans if span.kind == "document" and not span.segments and span.name in before]
    warnings = tuple(
        f'document {span.document} ("{span.name}") has no tokens besides its secondary sinks' for span in emptied
    )
    return replace(encoded, spans=spans, warnings=encoded.warnings + warnings)


def _without(segment: tuple[int, int], taken: Sequence[int]) -> list[tuple[int, int]]:
    """What is left of a segment without some of its positions, which ascend."""
    cuts = [segment[0] - 1, *(position for position in taken if segment[0] <= position < segment[1]), segment[1]]
    return [(left + 1, right) for left, right in pairwise(cuts) if left + 1 < right]


def _checked(encoded: EncodedPrompt, positions: Any) -> tuple[int, ...]:
    """The positions, ascending, once each of them can be set apart."""
    listed = positions.tolist() if hasattr(positions, "tolist") else positions
    if not isinstance(listed, (list, tuple)):
        raise InputError(
            f"secondary_sinks is {positions!r}; give the positions of prompt tokens, or what find_secondary_sinks "
            "found, in a list"
        )
    if listed and all(isinstance(one, SecondarySink) for one in listed):
        listed = sink_positions(listed)
    for position in listed:
        if not isinstance(position, Integral) or isinstance(position, bool):
            raise InputError(f"secondary sink {position!r} is no position; positions are whole numbers")
    whole = sorted(int(position) for position in listed)
    for position in whole:
        if not 0 <= position < encoded.n_tokens:
            raise InputError(f"secondary sink {position} is outside the prompt, which has {encoded.n_tokens} tokens")
        owner = next(s for s in encoded.spans if any(start <= position < stop for start, stop in s.segments))
        if owner.kind == "sink":
            raise InputError(f"secondary sink {position} is a sink of its own already; leave it out")
    for position, following in pairwise(whole):
        if position == following:
            raise InputError(f"secondary sink {position} is given twice; give each position once")
    return tuple(whole)
