"""Estimates over questions together with what they may be."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

_PROFILES = ("estimate", "low", "high", "pointwise_low", "pointwise_high")


@dataclass(frozen=True)
class Interval:
    """An estimate and what it may be.

    Parameters
    ----------
    estimate
        The estimate; None when no question has a value, or where they have no mean.
    low, high
        Bounds; both None when there is no interval, for which ``reason`` is given.
    level
        Confidence level, e.g. 0.95.
    n
        Questions that it rests on.
    method
        How it was made, in words.
    reason
        Why there is no interval, or which questions are left out; else None.
    """

    estimate: float | None
    low: float | None
    high: float | None
    level: float
    n: int
    method: str
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms: ``"inf"`` or ``"-inf"`` where infinite."""
        numbers = {name: json_number(getattr(self, name)) for name in ("estimate", "low", "high")}
        return {**numbers, "level": self.level, "n": self.n, "method": self.method, "reason": self.reason}


@dataclass(frozen=True, eq=False)
class Band:
    """A mean profile and what it may be, in the unit of the values that it was made from.

    Parameters
    ----------
    estimate
        float64 [position]: mean over questions; NaN when no question has values.
    low, high
        float64 [position]: the simultaneous band; None when there is none, for which ``reason`` is given.
    pointwise_low, pointwise_high
        float64 [position]: t intervals that hold for one position only, narrower.
    critical
        Standard errors that the simultaneous band reaches to either side, before ``exp``.
    level
        Confidence level.
    n
        Questions that it rests on.
    reason
        Why there is no band, or which questions are left out; else None.
    """

    estimate: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None
    pointwise_low: np.ndarray | None
    pointwise_high: np.ndarray | None
    critical: float | None
    level: float
    n: int
    reason: str | None = None

    def exp(self) -> Band:
        """The band of a curve whose logs these are: geometric means and their bounds."""
        with np.errstate(over="ignore"):
            changed = {name: np.exp(values) for name in _PROFILES if (values := getattr(self, name)) is not None}
        return replace(self, **changed)

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms: None where undefined, ``"inf"`` or ``"-inf"`` where infinite."""
        out: dict[str, Any] = {}
        for name in _PROFILES:
            values = getattr(self, name)
            out[name] = None if values is None else [json_number(defined(float(value))) for value in values]
        return {**out, "critical": self.critical, "level": self.level, "n": self.n, "reason": self.reason}


def defined(value: float) -> float | None:
    """The value, or None for NaN."""
    return None if math.isnan(value) else value


def json_number(value: float | None) -> float | str | None:
    """A number as JSON takes it: None stays, infinities become ``"inf"`` and ``"-inf"``."""
    return value if value is None or math.isfinite(value) else str(value)
