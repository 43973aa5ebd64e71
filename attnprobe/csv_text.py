"""CSV that a spreadsheet can open: numbers plain, and no text that it would run as a formula."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_QUOTED = re.compile(r'[",\r\n]')  # the module csv lets a lone \r stand, which its reader takes for a line end


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV. None is empty, and texts that begin as a formula does get an apostrophe before them."""
    return "".join(",".join(map(_cell, row)) + "\n" for row in (header, *rows))


def table_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV; undefined values are empty."""
    shown = ([f"{value:.6g}" if isinstance(value, float) else value for value in row.values()] for row in rows)
    return csv_text(list(rows[0]), shown)


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    if isinstance(value, str) and text.startswith(_FORMULA) and not _is_number(text):
        text = f"'{text}"
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
