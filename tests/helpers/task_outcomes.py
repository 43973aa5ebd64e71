"""Outcomes for tests, made from tables without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnprobe.tasks.outcome import Outcome


def sweep(values: Any, axis: str, levels: Sequence[Any], metric: str = "strict", **condition: Any) -> list[Outcome]:
    """Outcomes of ``values`` [item, level] or [item, level, trial]; NaN leaves one out."""
    array = np.asarray(values, dtype=np.float64)
    array = array[..., None] if array.ndim == 2 else array
    kind = int if metric in ("strict", "lenient") else float
    return [
        Outcome(f"item {i}", trial, {axis: level, **condition}, **{metric: kind(array[i, k, trial])})
        for i in range(array.shape[0])
        for k, level in enumerate(levels)
        for trial in range(array.shape[2])
        if not np.isnan(array[i, k, trial])
    ]


def answered(rng: np.random.Generator, items: int, log_odds: Any, spread: float = 1.0, trials: int = 1) -> np.ndarray:
    """0 and 1, [item, level, trial]: items differ in log odds by a standard deviation of ``spread``."""
    logits = np.asarray(log_odds, dtype=np.float64) + spread * rng.normal(size=(items, 1))
    return (rng.random((*logits.shape, trials)) < (1 / (1 + np.exp(-logits)))[..., None]).astype(np.float64)
