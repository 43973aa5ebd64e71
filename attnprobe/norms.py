"""Norms: five ways to turn span masses into one number a document, for each layer and head, and for their average; and
budgets, the mass of each kind of span.

All accumulate in float64. A document that no row of a layer sees (an empty one, or one outside every window) has the
value NaN there, not 0: it was not ignored, it was not there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attnprobe.errors import InputError
from attnprobe.spans import SPAN_KINDS, budget_kind

if TYPE_CHECKING:
    from attnprobe.run import Run

NORMS = ("share", "log_share", "mass", "density", "advantage")

_HALF_UNIT = 2.0**-24  # of a float32 number: what is left beside a heaviest token is known no better


def document_values(
    run: Run,
    norm: str,
    chosen: np.ndarray,
    *,
    trimmed: bool = False,
    rows: slice | None = None,
    with_sinks: bool = True,
) -> np.ndarray:
    """Value of every document under a norm, averaged over heads and layers.

    - ``mass``: attention mass, averaged over rows, heads and layers. A layer that does not see the document counts
      as 0.
    - ``share``: that mass divided by its sum over documents; sums to 1.
    - ``log_share``: share of the row-averaged mass for each head and layer, its log averaged over heads and layers,
      then the exponential: a geometric mean. It is not renormalised, so that the log of two documents' ratio is the
      mean of their log ratios. Layers in which no row sees the document, and heads that give no document any mass,
      are left out.
    - ``density``: (mass / visible tokens of the document) * visible tokens in all, row by row, averaged over rows,
      then over heads and layers; 1.0 is even attention. Rows that see no token of the document are left out.
    - ``advantage``: (L_s - log n_s) - (L_ref - log n_ref) with L the span log-sum-exp, n the visible tokens and ref
      the other documents together; row by row, averaged over rows, then over heads and layers, in nats. Rows that see
      no token of the document, or none of the others, are left out; one document alone has no reference and no value.

    Parameters
    ----------
    run
        The run.
    norm
        One of ``NORMS``.
    chosen
        bool [layer, head]: the entries to average over, at least one.
    trimmed, rows, with_sinks
        As in :func:`head_values`.

    Returns
    -------
    numpy.ndarray
        float64 [document]; NaN where undefined. ``advantage`` can be infinite, where a mass underflowed to 0.

    Raises
    ------
    InputError
        As :func:`head_values`.
    """
    inner = "mass" if norm == "share" else norm
    return averaged(head_values(run, inner, trimmed=trimmed, rows=rows, with_sinks=with_sinks)[chosen], norm)


def uniform_values(run: Run, norm: str, chosen: np.ndarray | None = None, *, with_sinks: bool = True) -> np.ndarray:
    """What :func:`document_values` would be if every row gave all tokens that it sees the same attention.

    Shares then go by length: a document twice as long gets twice as much, and less where a window hides some of it.

    Parameters
    ----------
    run
        The run; only what its rows see counts.
    norm
        One of ``NORMS``.
    chosen
        bool [layer, head]: the entries to average over; None for all.
    with_sinks
        As in :func:`head_values`.

    Returns
    -------
    numpy.ndarray
        float64 [document]; NaN where no row sees the document.
    """
    members = _members(run, with_sinks)
    seen = run.visible.astype(np.float64)  # [layer, row, span]
    is_seen = seen.any(axis=1) @ members > 0  # [layer, document]
    values = np.where(is_seen, (seen / seen.sum(axis=-1, keepdims=True)).mean(axis=1) @ members, np.nan)
    if norm in ("density", "advantage"):
        values = np.where(is_seen, 1.0 if norm == "density" else 0.0, np.nan)
    elif norm == "log_share":
        values = np.log(_divide(values, np.nansum(values, axis=-1, keepdims=True)))
    weights = np.ones(run.mass.shape[:2], dtype=bool) if chosen is None else chosen
    return averaged(np.repeat(values[:, None], weights.shape[1], axis=1)[weights], norm)


def averaged(values: np.ndarray, norm: str) -> np.ndarray:
    """Average of heads under a norm: the last step of :func:`document_values`.

    Parameters
    ----------
    values
        float64 [..., head, document] of :func:`head_values`: masses for ``share``, else of the norm itself.
    norm
        One of ``NORMS``.

    Returns
    -------
    numpy.ndarray
        float64 [..., document]; NaN where undefined.
    """
    if norm in ("mass", "share"):
        mass = np.where(np.isnan(values).all(axis=-2), np.nan, np.nan_to_num(values, nan=0.0).mean(axis=-2))
        return mass if norm == "mass" else _divide(mass, np.nansum(mass, axis=-1, keepdims=True))
    mean = mean_of_defined(values, axis=-2)
    return np.exp(mean) if norm == "log_share" else mean


def head_values(
    run: Run, norm: str, *, trimmed: bool = False, rows: slice | None = None, with_sinks: bool = True
) -> np.ndarray:
    """Value of every document for each layer and head.

    Parameters
    ----------
    run
        The run.
    norm
        ``mass``, ``share`` and ``log_share`` (nats): of the row-averaged mass, within the layer and head.
        ``density`` and ``advantage`` (nats): averaged over rows. See :func:`document_values`.
    trimmed
        Leave each document's heaviest token out, row by row: what is left is mass and tokens less that one (needs the
        extra ``top``). A row that sees a single token of the document then sees none. Mass that float32 cannot tell
        from the heaviest token's counts as half a unit of its last place, so that there is a log.
    rows
        Which answer rows to average over, e.g. ``slice(0, 1)`` for the first one. None: all.
    with_sinks
        A document's secondary sinks, which are spans of their own, count to it: what is called the raw curve. False
        leaves them out.

    Returns
    -------
    numpy.ndarray
        float64 [layer, head, document]; NaN where undefined.

    Raises
    ------
    InputError
        For an unknown norm, rows that are none, and when the run does not keep what it takes: rows for ``density``,
        ``advantage``, ``trimmed`` and ``rows``; the heaviest tokens for ``trimmed``.
    """
    if norm not in NORMS:
        raise InputError(f"norm {norm!r} is unknown; expected one of {', '.join(NORMS)}")
    if trimmed and run.top_mass is None:
        raise InputError('a trimmed curve needs each span\'s heaviest token; measure with extras=("top",)')
    if norm in ("density", "advantage"):
        if run.row_mass is None:
            raise InputError(
                f'norm "{norm}" is computed row by row, but this run kept no rows; measure with keep_rows=True'
            )
        per_row = _density if norm == "density" else _advantage
        return _by_layer(
            run, lambda layer: mean_of_defined(per_row(*_rows_of(run, layer, trimmed, rows, with_sinks)), axis=1)
        )
    if trimmed or rows is not None:
        mass = _by_layer(run, lambda layer: _mean_mass(*_rows_of(run, layer, trimmed, rows, with_sinks)))
    else:
        members = _members(run, with_sinks)
        seen = run.visible.any(axis=1).astype(np.float64) @ members > 0  # [layer, document]
        mass = np.where(seen[:, None], run.mass.astype(np.float64) @ members, np.nan)
    if norm == "mass":
        return mass
    share = _divide(mass, np.nansum(mass, axis=-1, keepdims=True))
    with np.errstate(divide="ignore"):
        return np.log(share) if norm == "log_share" else share


def top_token_fraction(run: Run, *, with_sinks: bool = True) -> np.ndarray:
    """How much of each document's mass its heaviest token holds, averaged over rows.

    Parameters
    ----------
    run
        A run measured with the extra ``top``.
    with_sinks
        As in :func:`head_values`.

    Returns
    -------
    numpy.ndarray
        float64 [layer, head, document]; NaN where no row sees the document.

    Raises
    ------
    InputError
        When the run does not keep the heaviest tokens.
    """
    if run.top_mass is None:
        raise InputError('top-token fractions need each span\'s heaviest token; measure with extras=("top",)')
    members = _members(run, with_sinks)

    def fraction(layer: int) -> np.ndarray:
        return mean_of_defined(_divide(_top_mass(run, layer, None, members), _mass(run, layer, None, members)), axis=1)

    return _by_layer(run, fraction)


def effective_documents(values: np.ndarray) -> float:
    """Effective number of documents: exp of the entropy of the values' shares.

    Parameters
    ----------
    values
        One non-negative value a document, e.g. ``run.curve("share").values``. NaN (undefined) is left out.

    Returns
    -------
    float
        Between 1 (one document has everything) and the number of documents (all have the same); NaN when no value is
        positive.

    Raises
    ------
    InputError
        For values that are negative, infinite or no list of numbers.
    """
    numbers = np.asarray(values, dtype=np.float64)
    numbers = numbers[~np.isnan(numbers)]
    if np.ndim(values) != 1 or np.isinf(numbers).any() or (numbers < 0).any():
        raise InputError(f"effective_documents takes a list of finite values >= 0, not {values!r}")
    if not numbers.any():
        return float("nan")
    share = numbers / numbers.max()
    share = share / share.sum()
    share = share[share > 0]
    return float(np.exp(-(share * np.log(share)).sum()))


def budget_of(run: Run, rows: slice | None = None) -> dict[str, float]:
    """Mean mass of each kind of span; :meth:`attnprobe.Run.budget` says more."""
    if rows is None:
        return _by_kind(run, run.mass.mean(axis=(0, 1), dtype=np.float64))
    chosen = selected_rows(run, rows)
    assert run.row_mass is not None
    return _by_kind(run, run.row_mass[:, :, chosen].mean(axis=(0, 1, 2), dtype=np.float64))


def budget_by_row(run: Run) -> dict[str, np.ndarray]:
    """Mean mass of each kind of span over heads and layers, for every row.

    Returns
    -------
    dict
        Kinds as in :meth:`attnprobe.Run.budget`: float64 [row]. In each row they sum to 1.

    Raises
    ------
    InputError
        When the rows were not kept.
    """
    selected_rows(run, None)
    assert run.row_mass is not None
    mean = run.row_mass.mean(axis=(0, 1), dtype=np.float64)  # [row, span]
    return {kind: mean[:, places].sum(axis=1) for kind, places in _places(run).items()}


def counterfactual_budget(run: Run, span_index: int) -> dict[str, float]:
    """The budget if one span were not there, to first order.

    Its log-sum-exp is dropped in every row, the rest renormalised and averaged over rows, heads and layers. First
    order: without the span, later tokens would have other keys and queries, and so other logits, which this ignores.
    A row in which the span has all the mass has no counterfactual and is left out.

    Parameters
    ----------
    run
        A run with rows.
    span_index
        Index in ``run.spans``.

    Returns
    -------
    dict
        Kinds as in :meth:`attnprobe.Run.budget`; sums to 1, or NaN in all when no row is left.

    Raises
    ------
    InputError
        When the rows were not kept, or there is no such span.
    """
    selected_rows(run, None)
    assert run.row_mass is not None
    if type(span_index) is not int or not 0 <= span_index < len(run.spans):
        raise InputError(f"span_index is {span_index!r}; the run has spans 0 to {len(run.spans) - 1}")
    sums, n_rows = np.zeros(len(run.spans)), 0
    for layer in run.row_mass:
        mass = layer.astype(np.float64).reshape(-1, len(run.spans))  # [head and row, span]
        mass[:, span_index] = 0.0
        left = mass.sum(axis=1, keepdims=True)
        sums += np.divide(mass, left, out=np.zeros_like(mass), where=left > 0).sum(axis=0)
        n_rows += int((left > 0).sum())
    return _by_kind(run, sums / n_rows) if n_rows else dict.fromkeys(_places(run), math.nan)


def _by_kind(run: Run, mean: np.ndarray) -> dict[str, float]:
    return {kind: math.fsum(mean[i] for i in places) for kind, places in _places(run).items()}


def _places(run: Run) -> dict[str, list[int]]:
    """Spans of each kind of a budget, by their places; sinks that were set apart are a kind of their own."""
    kinds = [budget_kind(span) for span in run.spans]
    names = (*SPAN_KINDS, "secondary_sink") if "secondary_sink" in kinds else SPAN_KINDS
    return {name: [i for i, kind in enumerate(kinds) if kind == name] for name in names}


def selected_rows(run: Run, rows: slice | None) -> slice:
    """The rows that a choice means, once it is known that the run has them.

    Raises
    ------
    InputError
        When rows were not kept, ``rows`` is no slice, or it selects none.
    """
    if run.row_mass is None:
        raise InputError("this run kept no rows; measure with keep_rows=True")
    if rows is None:
        return slice(None)
    n_rows = run.row_mass.shape[2]
    if not isinstance(rows, slice):
        raise InputError(f"rows must be a slice of row numbers, e.g. slice(0, 1) for the first, not {rows!r}")
    try:
        chosen = range(*rows.indices(n_rows))
    except (TypeError, ValueError) as error:
        raise InputError(f"rows={rows!r} is not a slice of row numbers: {error}") from error
    if not chosen:
        raise InputError(f"rows={rows!r} selects nothing; the run has {n_rows} rows")
    return rows


def _members(run: Run, with_sinks: bool) -> np.ndarray:
    """float64 [span, document]: 1 where the span counts to the document."""
    documents = [run.spans[i].document for i in run.document_spans]
    kinds = ("document", "sink") if with_sinks else ("document",)
    members = np.zeros((len(run.spans), len(documents)))
    for i, span in enumerate(run.spans):
        if span.kind in kinds and span.document is not None:
            members[i, documents.index(span.document)] = 1.0
    return members


def _by_layer(run: Run, of_layer: Callable[[int], np.ndarray]) -> np.ndarray:
    """Layer by layer, to bound memory: the float64 copies are those of one layer."""
    return np.stack([of_layer(layer) for layer in range(len(run.layers))])


def _mass(run: Run, layer: int, rows: slice | None, members: np.ndarray) -> np.ndarray:
    chosen = selected_rows(run, rows)
    assert run.row_mass is not None
    mass: np.ndarray = run.row_mass[layer][:, chosen].astype(np.float64) @ members
    return mass  # [head, row, document]


def _top_mass(run: Run, layer: int, rows: slice | None, members: np.ndarray) -> np.ndarray:
    assert run.top_mass is not None
    top = run.top_mass[layer][:, selected_rows(run, rows)].astype(np.float64)  # [head, row, span]
    return np.stack([top[..., column > 0].max(axis=-1) for column in members.T], axis=-1)


def _rows_of(
    run: Run, layer: int, trimmed: bool, rows: slice | None, with_sinks: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masses [head, row, document], visible tokens [row, document] and visible tokens in all [row, 1] of a layer."""
    members = _members(run, with_sinks)
    mass = _mass(run, layer, rows, members)
    seen = run.visible[layer][selected_rows(run, rows)].astype(np.float64)
    visible = seen @ members
    if trimmed:
        rest = np.maximum(mass - _top_mass(run, layer, rows, members), mass * _HALF_UNIT)
        visible = np.maximum(visible - 1, 0)
        mass = np.where(visible > 0, rest, 0.0)
    return mass, visible, seen.sum(axis=1, keepdims=True)


def _mean_mass(mass: np.ndarray, visible: np.ndarray, n_keys: np.ndarray) -> np.ndarray:
    return np.where((visible > 0).any(axis=0), mass.mean(axis=1), np.nan)


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Quotient; NaN where the denominator is 0, whatever the numerator."""
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient: np.ndarray = np.where(denominator == 0, np.nan, numerator / denominator)
    return quotient


def mean_of_defined(values: np.ndarray, axis: int) -> np.ndarray:
    """Mean over an axis, NaN left out; NaN where nothing is left, and where inf meets -inf."""
    counted = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return _divide(np.where(counted, values, 0.0).sum(axis=axis), counted.sum(axis=axis))


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
