"""Pieces of a prompt's text, and the regions that they form once joined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .document import document_label
from .spans import SpanKind


class Owner(NamedTuple):
    """What a piece of text is: a span's kind, its name, and the index of its document."""

    kind: SpanKind
    name: str
    document: int | None = None


TEMPLATE = Owner("template", "template")
REST = Owner("other", "rest")


class Piece(NamedTuple):
    """A stretch of text with one owner.

    A joint (white space that stands between two pieces only because one has to follow the other) does not count
    when a token that holds other text too is given to an owner.
    """

    text: str
    owner: Owner
    joint: bool = False


@dataclass(frozen=True)
class Region:
    """The characters of a rendered prompt that form one span.

    Parameters
    ----------
    kind, name, document
        As in `Span`.
    segments
        Half-open character ranges in ascending order. An empty document has one, empty, at its place.
    """

    kind: SpanKind
    name: str
    document: int | None = None
    segments: tuple[tuple[int, int], ...] = ()

    @property
    def label(self) -> str:
        """How messages name the region."""
        if self.kind == "document" and self.document is not None:
            return document_label(self.document, self.name)
        return "the text outside the spans" if self.name == REST.name else f"the {self.name}"


def join_pieces(pieces: Iterable[Piece]) -> tuple[str, tuple[Region, ...], tuple[int, ...]]:
    """Join pieces into one text.

    Returns
    -------
    (str, tuple of Region, tuple of int)
        The text; its regions by first character, of which an empty one is kept only for a document; and the
        positions of the joints' characters.
    """
    texts: list[str] = []
    joints: list[int] = []
    segments: dict[Owner, list[tuple[int, int]]] = {}
    at = 0
    before: Owner | None = None
    for piece in pieces:
        stop = at + len(piece.text)
        if piece.text or piece.owner.kind == "document":
            own = segments.setdefault(piece.owner, [])
            if piece.owner == before:
                own[-1] = (own[-1][0], stop)
            else:
                own.append((at, stop))
            before = piece.owner
        if piece.joint:
            joints.extend(range(at, stop))
        texts.append(piece.text)
        at = stop
    regions = tuple(Region(*owner, tuple(own)) for owner, own in segments.items())
    return "".join(texts), regions, tuple(joints)
