"""Norms: five ways to turn span masses into one number a document.

All accumulate in float64 and give float64 [K]. A document that no row of the chosen layers sees (an
empty one, or one outside every window) has the value NaN, not 0: it was not ignored, it was not there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attnprobe.errors import InputError

if TYPE_CHECKING:
    from attnprobe.run import Run

NORMS = ("share", "log_share", "mass", "density", "advantage")


def document_values(run: Run, norm: str, chosen: np.ndarray) -> np.ndarray:
    """Value of every document under a norm.

    - ``mass``: attention mass, averaged over rows, heads and layers.
    - ``share``: that mass divided by its sum over documents; sums to 1.
    - ``log_share``: share of the row-averaged mass for each head and layer, its log averaged over heads and
      layers, then the exponential: a geometric mean. It is not renormalised, so that the log of two
      documents' ratio is the mean of their log ratios. Layers in which no row sees the document, and heads
      that give no document any mass, are left out.
    - ``density``: (mass / visible tokens of the document) * visible tokens in all, row by row, averaged over
      rows, heads and layers; 1.0 is even attention. Rows that see no token of the document are left out.
    - ``advantage``: (L_s - log n_s) - (L_ref - log n_ref) with L the span log-sum-exp, n the visible tokens
      and ref the other documents together; row by row, averaged over rows, heads and layers, in nats. Rows
      that see no token of the document, or none of the others, are left out; one document alone has no
      reference and no value.

    Parameters
    ----------
    run
        The run.
    norm
        One of ``NORMS``.
    chosen
        bool [layer, head]: the entries to average over, at least one.

    Returns
    -------
    numpy.ndarray
        float64 [document]; NaN where undefined. ``advantage`` can be infinite, where a mass underflowed to 0.

    Raises
    ------
    InputError
        For an unknown norm, and for ``density`` and ``advantage`` when the run kept no rows.
    """
    if norm not in NORMS:
        raise InputError(f"norm {norm!r} is unknown; expected one of {', '.join(NORMS)}")
    if norm == "log_share":
        return _log_share(run, chosen)
    if norm == "density":
        return _row_average(run, norm, chosen, _density)
    if norm == "advantage":
        return _row_average(run, norm, chosen, _advantage)
    mass = _mass(run, chosen)
    return mass if norm == "mass" else _divide(mass, np.nansum(mass))


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Quotient; NaN where the denominator is 0, whatever the numerator."""
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient: np.ndarray = np.where(denominator == 0, np.nan, numerator / denominator)
    return quotient


def _seen(run: Run) -> np.ndarray:
    """bool [layer, document]: whether any row of the layer sees a token of the document."""
    seen: np.ndarray = np.any(run.visible[:, :, list(run.document_spans)], axis=1)
    return seen


def _mass(run: Run, chosen: np.ndarray) -> np.ndarray:
    mass = run.document_mass()[chosen].mean(axis=0, dtype=np.float64)
    seen = _seen(run)[chosen.any(axis=1)].any(axis=0)
    values: np.ndarray = np.where(seen, mass, np.nan)
    return values


def _log_share(run: Run, chosen: np.ndarray) -> np.ndarray:
    mass = run.document_mass()[chosen].astype(np.float64)  # [chosen head, document]
    total = mass.sum(axis=1, keepdims=True)
    counted = _seen(run)[np.nonzero(chosen)[0]] & (total > 0)
    with np.errstate(divide="ignore"):
        log_share = np.log(_divide(mass, total))
        return np.exp(_divide(np.where(counted, log_share, 0.0).sum(axis=0), counted.sum(axis=0)))


def _row_average(
    run: Run,
    norm: str,
    chosen: np.ndarray,
    per_row: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """Average of ``per_row`` over rows, heads and layers, NaN left out; layer by layer to bound memory."""
    if run.row_mass is None:
        raise InputError(
            f'norm "{norm}" is computed row by row, but this run kept no rows; measure with keep_rows=True'
        )
    documents = list(run.document_spans)
    total, count = np.zeros(len(documents)), np.zeros(len(documents))
    for layer in np.nonzero(chosen.any(axis=1))[0]:
        mass = run.row_mass[layer][chosen[layer]][..., documents].astype(np.float64)  # [head, row, document]
        visible = run.visible[layer].astype(np.float64)  # [row, span]
        values = per_row(mass, visible[:, documents], visible.sum(axis=1, keepdims=True))
        counted = ~np.isnan(values)
        count += counted.sum(axis=(0, 1))
        with np.errstate(invalid="ignore"):  # inf and -inf in one document: no mean exists, NaN says so
            total += np.where(counted, values, 0.0).sum(axis=(0, 1))
    return _divide(total, count)


def _density(mass: np.ndarray, visible: np.ndarray, n_keys: np.ndarray) -> np.ndarray:
    return _divide(mass, visible) * n_keys


def _advantage(mass: np.ndarray, visible: np.ndarray, n_keys: np.ndarray) -> np.ndarray:
    # The row's total log-sum-exp is common to both terms, so logs of masses serve in the place of L.
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.log(_divide(mass, visible))
        reference = np.log(_divide(_sum_of_others(mass), _sum_of_others(visible)))
        return own - reference


def _sum_of_others(values: np.ndarray) -> np.ndarray:
    """Sum over the last axis without the entry itself, by sums from both ends: total - own would cancel."""
    before, after = np.zeros_like(values), np.zeros_like(values)
    before[..., 1:] = np.cumsum(values[..., :-1], axis=-1)
    after[..., :-1] = np.cumsum(values[..., :0:-1], axis=-1)[..., ::-1]
    return before + after
