"""Whole numbers, by name: a fraction must not be cut off in silence."""

from __future__ import annotations

import operator
from typing import Any


def whole(name: str, given: Any) -> int:
    """The number that ``given`` is.

    Raises
    ------
    ValueError
        It is no integer; bools are none either.
    """
    try:
        if not isinstance(given, bool):
            return operator.index(given)
    except TypeError:
        pass
    raise ValueError(f"{name} must be a whole number, got {given!r}")
