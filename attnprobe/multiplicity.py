"""Many layers and heads at once: p values adjusted so that a chance find stays rare."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprobe.arguments import Seed, table, whole_number
from attnprobe.errors import InputError
from attnprobe.flatness import DRAWS, MIN_QUESTIONS, sign_patterns

METHODS = ("holm", "benjamini-hochberg")


def adjust_p_values(p_values: Any, method: str = "holm") -> np.ndarray:
    """Adjusted p values of tests that were made apart.

    ``holm`` holds the chance of any false find under any dependence; ``benjamini-hochberg`` the expected part of
    false finds among the finds, under independence or positive dependence.

    Parameters
    ----------
    p_values
        Of any shape, each between 0 and 1, at least one.
    method
        One of ``METHODS``.

    Returns
    -------
    numpy.ndarray
        float64, of the same shape.

    Raises
    ------
    InputError
        For an unknown method or a p value that is none.
    """
    from statsmodels.stats.multitest import multipletests

    if method not in METHODS:
        raise InputError(f"method {method!r} is unknown; expected one of {', '.join(METHODS)}")
    p = np.asarray(p_values, dtype=np.float64)
    if p.size == 0 or not ((p >= 0) & (p <= 1)).all():
        raise InputError("p_values must be numbers between 0 and 1, at least one; leave out those that are undefined")
    adjusted = multipletests(p.ravel(), method="holm" if method == "holm" else "fdr_bh")[1]
    return np.asarray(adjusted, dtype=np.float64).reshape(p.shape)


def sign_flip_max_t(values: Any, seed: Seed = 0, draws: int = DRAWS) -> np.ndarray:
    """Two-sided p values that the mean over questions is 0, adjusted over all layers or heads.

    Flips the signs of whole questions, so that the dependence between heads is kept, and compares each head's |t|
    with the largest |t| of the heads that are no more extreme than it (step-down). The chance of any false find is
    held at the level, if each question's values are as likely as their mirror image where the mean is 0.

    Parameters
    ----------
    values
        [question, head], e.g. each head's log ratio of head to middle; 6 questions or more, all finite. Lay further
        axes out flat.
    seed
        What draws the flips of more than 14 questions; fewer are flipped in every way.
    draws
        Flips drawn, at least 99.

    Returns
    -------
    numpy.ndarray
        float64 [head].

    Raises
    ------
    InputError
        For too few questions, a value that is not finite, a wrong shape, seed or number of draws.

    References
    ----------
    P. Westfall and S. Young, Resampling-Based Multiple Testing (1993), section 2.6; here with sign flips.
    """
    x = table("values", values, ("question", "head"))
    draws = whole_number("draws", draws, 99)
    n = len(x)
    if n < MIN_QUESTIONS:
        raise InputError(f"values has {n} question{'' if n == 1 else 's'}; the test needs at least {MIN_QUESTIONS}")
    finite = np.isfinite(x).all(axis=0)
    if not finite.all():
        raise InputError(f"values of head {int(np.argmin(finite))} are not all finite; leave out undefined heads")
    return step_down_p(x, sign_patterns(n, draws, seed))


def step_down_p(values: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Adjusted p values, float64 [head], of values [question, head] and the flips of ``sign_patterns``."""
    # A flip leaves the sum of squares, so |sum| over its root ranks as |t| does, and stays finite.
    size = np.sqrt((values**2).sum(axis=0))
    scaled = values / np.where(size > 0, size, 1.0)
    order = np.argsort(-np.abs(scaled.sum(axis=0)), kind="stable")
    scaled = scaled[:, order]
    observed = np.abs(scaled.sum(axis=0))
    hits = np.zeros(len(order))
    step = max(1, 4_000_000 // max(1, len(order)))
    for start in range(0, len(signs), step):
        flipped = np.abs(signs[start : start + step] @ scaled)
        largest = np.maximum.accumulate(flipped[:, ::-1], axis=1)[:, ::-1]
        hits += (largest >= observed - 1e-10).sum(axis=0)  # equal up to rounding counts as reached
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(hits / len(signs))
    return adjusted
