"""Curves of a study's single layers and heads, with intervals, as they are shown."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from attnprobe.intervals import MIN_QUESTIONS
from attnprobe.study import Study

LayerCurves = tuple[np.ndarray, np.ndarray]
"""float64 [..., position] and [2, ..., position]: values, and 95 % t bounds of the shape at each position alone."""


def layer_curves(study: Study, norm: str = "log_share", *, is_whole: bool = True, **selection: Any) -> LayerCurves:
    """Every layer's own curve, ``[layer, position]``; the arguments of :meth:`Study.layer_profiles` pick another view.

    ``is_whole``, as of a :class:`attnprobe.study_curve.StudyCurve`: whether curves are scaled to sum to 1.
    """
    return _as_shown(study.layer_profiles(norm, **selection), norm, is_whole)


def head_curves(study: Study, norm: str, *, is_whole: bool = True) -> LayerCurves:
    """Every head's own curve as measured, ``[layer, head, position]``."""
    return _as_shown(study.head_profiles(norm), norm, is_whole)


def summarised(profiles: np.ndarray, is_log: bool, level: float = 0.95) -> LayerCurves:
    """Mean over the questions that have all positions, and t bounds of the curve's shape at each position alone.

    Parameters
    ----------
    profiles
        float64 [..., question, position], nats.
    is_log
        Whether to give their exponentials.
    level
        Of the bounds, which are NaN with fewer than five questions.
    """
    kept = ~np.isnan(profiles).any(axis=-1, keepdims=True)  # [..., question, 1]
    n = kept.sum(axis=-2)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(kept, profiles, 0.0).sum(axis=-2) / n
        shape = np.where(kept, profiles - profiles.mean(axis=-1, keepdims=True), 0.0)
        stray = np.where(kept, shape - (shape.sum(axis=-2) / n)[..., None, :], 0.0)
        reach = np.sqrt((stray**2).sum(axis=-2) / (n - 1) / n) * stats.t.isf((1 - level) / 2, np.maximum(n - 1, 1))
    reach = np.where(n >= MIN_QUESTIONS, reach, np.nan)
    bounds = np.stack([mean - reach, mean + reach])
    return (np.exp(mean), np.exp(bounds)) if is_log else (mean, bounds)


def _as_shown(profiles: np.ndarray, norm: str, is_whole: bool) -> LayerCurves:
    """Scaled as :meth:`attnprobe.study_curve.StudyCurve.scaled` does."""
    values, bounds = summarised(profiles, norm != "advantage")
    total = values.sum(axis=-1, keepdims=True) if is_whole else 1.0
    return values / total, bounds / total
