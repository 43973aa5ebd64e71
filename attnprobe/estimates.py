"""Estimates over questions together with what they may be."""

from __future__ import annotations

import math
from collections.abc import Callable
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

    def __str__(self) -> str:
        """``3.514 (2.901 to 4.203)``, or the estimate alone where there is no interval."""
        if self.low is None or self.high is None:
            return short_number(self.estimate)
        return f"{short_number(self.estimate)} ({short_number(self.low)} to {short_number(self.high)})"

    def __repr__(self) -> str:
        note = f"; {self.reason}" if self.reason else ""
        return f"Interval({self}, {100 * self.level:g} %, n={self.n}{note})"

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

    def __repr__(self) -> str:
        note = f"; {self.reason}" if self.reason else ""
        return f"Band({len(self.estimate)} positions, {100 * self.level:g} %, n={self.n}{note})"

    def scaled(self, factor: float) -> Band:
        """The band of the values times a positive factor."""
        return self._changed(lambda values: values * factor)

    def exp(self) -> Band:
        """The band of a curve whose logs these are: geometric means and their bounds."""
        with np.errstate(over="ignore"):
            return self._changed(np.exp)

    def _changed(self, change: Callable[[np.ndarray], np.ndarray]) -> Band:
        changed: dict[str, Any] = {
            name: change(values) for name in _PROFILES if (values := getattr(self, name)) is not None
        }
        return replace(self, **changed)

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms: None where undefined, ``"inf"`` or ``"-inf"`` where infinite."""
        out: dict[str, Any] = {}
        for name in _PROFILES:
            values = getattr(self, name)
            out[name] = None if values is None else [json_number(defined(float(value))) for value in values]
        return {**out, "critical": self.critical, "level": self.level, "n": self.n, "reason": self.reason}


def short_number(value: float | None) -> str:
    """A number at a prompt: four digits, ``-`` where there is none."""
    return "-" if value is None else f"{value:.4g}"


def defined(value: float) -> float | None:
    """The value, or None for NaN."""
    return None if math.isnan(value) else value


def json_values(value: Any) -> Any:
    """The same dicts and lists with every float as :func:`json_number` gives it, None for NaN."""
    if isinstance(value, dict):
        return {name: json_values(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_values(one) for one in value]
    return json_number(defined(value)) if isinstance(value, float) else value


def json_number(value: float | None) -> float | str | None:
    """A number as JSON takes it: None stays, infinities become ``"inf"`` and ``"-inf"``."""
    return value if value is None or math.isfinite(value) else str(value)
