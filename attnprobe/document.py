"""What a prompt is made of: documents, or the user's own text with named character ranges."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

from .errors import InputError

By = Literal["paragraph", "sentence"]
# Spans that a prompt, or what is measured on it, has besides the user's own.
RESERVED_NAMES = frozenset({"sink", "template", "rest", "answer", "learned_sink"})

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Document:
    """One document of a prompt.

    Parameters
    ----------
    text
        The document's text; may be empty.
    id
        Unique within the prompt; the document's index is used where it is None.
    source
        Where the text comes from, such as a title or a file name; shown in the markers.
    score
        Relevance, higher is better; shown in xml markers.
    timestamp
        When the text was written, in the user's own notation; never shown to the model.

    Raises
    ------
    InputError
        If a field has the wrong type, a text holds NUL or a lone surrogate, or the score is not finite.
    """

    text: str
    id: str | None = None
    source: str | None = None
    score: float | None = None
    timestamp: str | float | None = None

    def __post_init__(self) -> None:
        where = f"document {quoted(self.id)}" if isinstance(self.id, str) else "document"
        check_text(self.text, f"{where}: text")
        for field in ("id", "source"):
            if getattr(self, field) is not None:
                check_text(getattr(self, field), f"{where}: {field}")
        if self.id is not None and not self.id.strip():
            raise InputError(f"{where}: id is empty; leave it out to use the document's index")
        if self.score is not None and not _is_finite(self.score):
            raise InputError(f"{where}: score is {self.score!r}; give a finite number or leave it out")
        if isinstance(self.timestamp, str):
            check_text(self.timestamp, f"{where}: timestamp")
        elif self.timestamp is not None and not _is_finite(self.timestamp):
            raise InputError(f"{where}: timestamp is {self.timestamp!r}; give text or a finite number")


@dataclass(frozen=True)
class NamedRange:
    """A named half-open character range ``[start, stop)`` of one part of a `GivenText`."""

    name: str
    part: int
    start: int
    stop: int


@dataclass(frozen=True)
class GivenText:
    """A prompt that the user wrote: one raw text, or chat messages.

    Parameters
    ----------
    parts
        The texts. A raw text is one part.
    roles
        The role of each part's message; None for a raw text.
    ranges
        The user's named ranges, by position; they do not overlap.
    by
        Cut every part into paragraphs or sentences instead.
    """

    parts: tuple[str, ...]
    roles: tuple[str, ...] | None = None
    ranges: tuple[NamedRange, ...] = ()
    by: By | None = None


def given_text(
    text: str, spans: Iterable[Sequence[Any]] | None, by: By | None
) -> GivenText:  # fmt: skip
    """Check a raw text and its ``(name, start, stop)`` spans."""
    check_text(text, "text")
    if not text:
        raise InputError("text is empty; there is nothing to measure")
    rows = _rows(spans, by, ("name", "start", "stop"))
    ranges = [_named_range((name, 0, start, stop), (text,), None) for name, start, stop in rows]
    return GivenText((text,), None, _without_overlap(ranges), by)


def given_messages(
    messages: Sequence[Mapping[str, Any]], spans: Iterable[Sequence[Any]] | None, by: By | None
) -> GivenText:
    """Check chat messages and their ``(name, message_index, start, stop)`` spans."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise InputError('messages is not a list; pass [{"role": "user", "content": "..."}, ...]')
    if not messages:
        raise InputError("messages is empty; pass at least one user message")
    parts, roles = [], []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            keys = ", ".join(map(repr, message)) if isinstance(message, Mapping) else type(message).__name__
            raise InputError(f"message {index} must have exactly the keys 'role' and 'content', not {keys}")
        check_text(message["role"], f"message {index}: role")
        check_text(message["content"], f"message {index}: content")
        roles.append(message["role"])
        parts.append(message["content"])
    if roles[-1] == "assistant":
        raise InputError(
            f"message {len(roles) - 1}, the last one, is the assistant's; end with the user's message and pass "
            "the assistant's text as the answer"
        )
    rows = _rows(spans, by, ("name", "message_index", "start", "stop"))
    ranges = [_named_range(tuple(row), tuple(parts), tuple(roles)) for row in rows]
    return GivenText(tuple(parts), tuple(roles), _without_overlap(ranges), by)


def check_text(value: object, where: str) -> None:
    """Raise InputError, naming ``where``, unless ``value`` is text that a tokenizer takes unchanged."""
    if not isinstance(value, str):
        raise InputError(f"{where} is {type(value).__name__}, not text; pass a str")
    if (nul := value.find("\x00")) >= 0:
        raise InputError(f"{where} holds a NUL character at {nul}; remove it")
    if surrogate := _SURROGATE.search(value):
        raise InputError(
            f"{where} holds the lone surrogate {surrogate.group()!a} at {surrogate.start()}, which is not a "
            "character; decode the source with the right encoding"
        )


def check_choice(value: object, choices: Any, where: str) -> None:
    """Raise InputError unless ``value`` is one of the strings of the Literal type ``choices``."""
    if value not in get_args(choices):
        raise InputError(f"{where} is {value!r}; choose one of {', '.join(get_args(choices))}")


def quoted(text: str, limit: int = 40) -> str:
    """``text`` in double quotes for a message, on one line and cut to ``limit`` characters."""
    line = text if len(text) <= limit else text[: limit - 1] + "…"
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line) + '"'


def document_label(index: int, name: str) -> str:
    """How messages name a document: ``document 3 ("policy.md")``, or ``document 3`` without a name."""
    return f"document {index}" if name == str(index) else f"document {index} ({quoted(name)})"


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _rows(spans: Iterable[Sequence[Any]] | None, by: By | None, columns: tuple[str, ...]) -> list[Sequence[Any]]:
    if by is not None:
        check_choice(by, By, "by")
        if spans is not None:
            raise InputError(f"spans and by={by!r} are both given; name the spans or let by cut them")
    rows = list(spans or ())
    for row in rows:
        if isinstance(row, str) or not isinstance(row, Sequence) or len(row) != len(columns):
            raise InputError(f"span {row!r} is not ({', '.join(columns)})")
    return rows


def _named_range(row: Sequence[Any], parts: tuple[str, ...], roles: tuple[str, ...] | None) -> NamedRange:
    name, part, start, stop = row
    check_text(name, f"the name of span {row!r}")
    label = f"span {quoted(name)}"
    if not name.strip():
        raise InputError(f"the span from {start} to {stop} has an empty name; name it")
    if name in RESERVED_NAMES:
        raise InputError(f"{label}: this name is used for a span of attnprobe's own; choose another")
    if any(isinstance(value, bool) or not isinstance(value, int) for value in (part, start, stop)):
        raise InputError(f"{label} runs from {start!r} to {stop!r}; give whole numbers of characters")
    if not 0 <= part < len(parts):
        raise InputError(f"{label} is in message {part}; the messages are 0 to {len(parts) - 1}")
    where = "the text" if roles is None else f'message {part} ("{roles[part]}")'
    if not 0 <= start <= stop <= len(parts[part]):
        raise InputError(
            f"{label} runs from {start} to {stop}, but {where} has the characters 0 to {len(parts[part])}; "
            "give 0 <= start <= stop within it"
        )
    return NamedRange(name, part, start, stop)


def _without_overlap(ranges: list[NamedRange]) -> tuple[NamedRange, ...]:
    """The ranges by position; raise InputError if two overlap or share a name."""
    ordered = sorted(ranges, key=lambda item: (item.part, item.start, item.stop))
    names = set()
    for item in ordered:
        if item.name in names:
            raise InputError(f"two spans have the name {quoted(item.name)}; names must be unique")
        names.add(item.name)
    for before, after in pairwise(ordered):
        if before.part == after.part and after.start < before.stop:
            raise InputError(
                f"spans {quoted(before.name)} ({before.start} to {before.stop}) and {quoted(after.name)} "
                f"({after.start} to {after.stop}) overlap; every character belongs to one span"
            )
    return tuple(ordered)
