"""Numbers as a page holds them: masses in two bytes, as logarithms in equal steps, so that small ones keep as many
digits as large ones."""

from __future__ import annotations

import numpy as np

from attnprobe.report.page import array_text

BASE64 = 4 / 3
"""Characters of base64 that a byte takes."""
STEP = 0.00099
"""Nats between two codes. Rounding to the nearest code is off by half a step at most, a relative 5e-4."""
RELATIVE_ERROR = 5e-4
SMALLEST = float(np.exp(-65534 * STEP))
"""Mass of code 1, about 7e-29: what is smaller but not zero is stored as this."""


def quantised(mass: np.ndarray) -> np.ndarray:
    """Codes, uint16 of the same shape, of masses between 0 and 1.

    Code 0 is a mass of exactly 0; code c is ``exp((c - 65535) * STEP)``. The relative error is at most
    ``RELATIVE_ERROR`` from ``SMALLEST`` up. A mass that rounding put a little above 1 is 1.
    """
    with np.errstate(divide="ignore"):
        steps = np.rint(np.log(np.asarray(mass, dtype=np.float64)) / STEP) + 65535
    return np.where(mass > 0, np.clip(steps, 1, 65535), 0).astype(np.uint16)


def restored(codes: np.ndarray) -> np.ndarray:
    """Masses, float64 of the same shape, of what :func:`quantised` gave."""
    return np.where(codes > 0, np.exp((codes.astype(np.float64) - 65535) * STEP), 0.0)


def mass_text(mass: np.ndarray) -> str:
    """The codes of masses as base64."""
    return array_text(quantised(mass))


def whole_text(numbers: np.ndarray) -> str:
    """Whole numbers as base64 of int32."""
    return array_text(numbers.astype(np.int32))
