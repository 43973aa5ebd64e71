"""What results say: tables of texts and verdicts in words, one source for the terminal, pages and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Cell = str | float | None


@dataclass(frozen=True)
class Table:
    """A table of texts; ``right`` says which columns hold numbers, ``values`` what the texts were made of, if given."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[bool, ...]
    note: str = ""
    values: tuple[tuple[Cell, ...], ...] = ()


def table_of_values(
    caption: str,
    columns: Mapping[str, Callable[[Any], str] | None],
    values: Sequence[tuple[Cell, ...]],
    note: str = "",
) -> Table:
    """A table of values that are kept beside their texts; ``columns`` say how a number is written, None for texts."""
    formats = tuple(columns.values())
    rows = [
        tuple(
            "-" if cell is None else str(cell) if text is None else text(cell)
            for text, cell in zip(formats, row, strict=True)
        )
        for row in values
    ]
    right = tuple(text is not None for text in formats)
    return Table(caption, tuple(columns), tuple(rows), right, note, tuple(values))


def whole(value: float) -> str:
    """A number without a fraction."""
    return f"{value:,.0f}"


@dataclass(frozen=True)
class Verdict:
    """What may be said, in one sentence and a few more."""

    headline: str
    lines: tuple[str, ...]
