"""Checks of plain arguments that several modules share."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnprobe.errors import InputError

Seed = int | Sequence[int]


def whole_number(name: str, value: Any, least: int) -> int:
    """The value as an int; ``InputError`` when it is none or below ``least``."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InputError(f"{name} must be an int, not {value!r}") from None
    if number < least:
        raise InputError(f"{name} must be at least {least}, not {number}")
    return number


def positive_number(name: str, value: Any) -> float:
    """The value as a float; ``InputError`` when it is no finite number above 0."""
    number = _number(value)
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"{name} must be a finite number above 0, not {value!r}")
    return number


def fraction(name: str, value: Any) -> float:
    """The value as a float; ``InputError`` when it does not lie between 0 and 1, both excluded."""
    number = _number(value)
    if not 0 < number < 1:
        raise InputError(f"{name} must lie between 0 and 1, not {value!r}")
    return number


def table(name: str, values: Any, axes: Sequence[str]) -> np.ndarray:
    """The values as float64; ``InputError`` when they are no numbers or have other axes than those named."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must hold numbers: {error}") from None
    if array.ndim != len(axes):
        raise InputError(f"{name} has shape {array.shape}; expected [{', '.join(axes)}]")
    return array


def generator(seed: Seed) -> np.random.Generator:
    """Random numbers from an int >= 0 or several; ``InputError`` for anything else."""
    try:
        if seed is None:
            raise TypeError
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise InputError(f"seed must be an int >= 0, or several, not {seed!r}") from None


def _number(value: Any) -> float:
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        return math.nan
