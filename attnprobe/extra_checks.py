"""The arrays that extras gave to a run fit each other and the rest of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnprobe.errors import InputError
from attnprobe.extras import N_KEYS, distance_edges, n_distance_bins
from attnprobe.row_means import prompt_edges
from attnprobe.run_extras import TOKEN_NAMES

if TYPE_CHECKING:
    from attnprobe.run import Run

MASS_TOLERANCE = 1e-4
"""Largest accepted difference, nats or mass, between sums that must be equal, where logits are small (float32)."""
UNKNOWN_TOLERANCE = 1e-2
"""The same where rows were not kept, and nothing tells the size of the logits."""


def mass_tolerance(magnitude: float) -> float:
    """Largest accepted difference of sums of masses whose rows have log-sum-exps of this size, nats.

    float32 logits of a large size are rounded in proportion to it, in the model as well as here.
    """
    return max(MASS_TOLERANCE, 8 * float(np.finfo(np.float32).eps) * magnitude)


def _tolerance(run: Run) -> float:
    return UNKNOWN_TOLERANCE if run.row_total is None else mass_tolerance(float(np.abs(run.row_total).max()))


def check_extras(run: Run) -> None:
    """Raise unless the optional arrays fit each other and the rest of the run.

    Checked: dtypes and shapes; that every number is finite and no mass negative; that a heaviest token lies in its
    span, at or before its row, and weighs no more than the span and no less than the mean of its tokens; that tokens
    add up to their spans; that a row's heaviest tokens are in order, each once, at or before it, and weigh no more than
    their spans; that distances and sinks, value-weighted masses, question masses and those of each block of the
    prompt's rows sum to 1; that no block gives mass to a span that begins behind it.

    Raises
    ------
    InputError
        Naming the first contradiction.
    """
    _check_arrays(run)
    tolerance = _tolerance(run)
    if run.top_mass is not None:
        _check_top(run, tolerance)
    if run.column_mass is not None:
        for i, span in enumerate(run.spans):
            _check_sum(
                sum(run.column_mass[..., a:b].sum(axis=-1, dtype=np.float64) for a, b in span.segments),
                run.mass[..., i] if span.segments else np.zeros(()),
                f'column_mass of span "{span.name}"',
                tolerance,
            )
    if run.key_mass is not None:
        _check_keys(run, tolerance)
    if run.distance_mass is not None:
        sinks = [i for i, span in enumerate(run.spans) if span.kind in ("sink", "learned_sink")]
        _check_sum(
            run.distance_mass.sum(axis=-1, dtype=np.float64) + run.mass[..., sinks].sum(axis=-1, dtype=np.float64),
            np.ones(()),
            "distance_mass with the sinks",
            tolerance,
        )
    if run.prompt_mass is not None:
        _check_prompt(run, tolerance)
    for name, kind in (("value_mass", "learned_sink"), ("question_mass", "answer")):
        array = getattr(run, name)
        if array is None:
            continue
        _check_sum(array.sum(axis=-1, dtype=np.float64), np.ones(()), name, tolerance)
        for i, span in enumerate(run.spans):
            if span.kind == kind and array[..., i].any():
                raise InputError(f'{name} gives mass to span "{span.name}", which can have none')


def _check_sum(found: Any, wanted: np.ndarray, what: str, tolerance: float) -> None:
    error = float(np.abs(found - wanted).max())
    if not error <= tolerance:
        raise InputError(f"{what} does not add up: off by {error:.3g}")


def _check_arrays(run: Run) -> None:
    n_layers, n_heads, n_spans = run.mass.shape
    n_rows = run.visible.shape[1]
    for first, second in (
        ("top_mass", "top_token"),
        ("key_mass", "key_token"),
        ("distance_mass", "distance_edges"),
        ("prompt_mass", "prompt_edges"),
    ):
        if (getattr(run, first) is None) != (getattr(run, second) is None):
            raise InputError(f"{first} and {second} are kept together: give both or neither")
    if run.top_mass is not None and run.row_mass is None:
        raise InputError("top_mass is kept with the rows, but row_mass is None")
    first_row = run.n_prompt - (run.rows == "predicting")
    for name, found, wanted in (
        ("distance_edges", run.distance_edges, distance_edges(n_distance_bins(first_row + n_rows))),
        ("prompt_edges", run.prompt_edges, prompt_edges(run.n_prompt)),
    ):
        if found is not None and (found != wanted or not all(type(edge) is int for edge in found)):
            raise InputError(f"{name} is {found}; expected {wanted}")
    k = min(N_KEYS, len(run.token_ids))
    shapes: dict[str, tuple[int, ...]] = {
        "top_mass": (n_layers, n_heads, n_rows, n_spans),
        "top_token": (n_layers, n_heads, n_rows, n_spans),
        "column_mass": (n_layers, n_heads, len(run.token_ids)),
        "key_mass": (n_layers, n_rows, k),
        "key_token": (n_layers, n_rows, k),
        "distance_mass": (n_layers, n_heads, len(run.distance_edges or ()) - 1),
        "value_mass": (n_layers, n_heads, n_spans),
        "question_mass": (n_layers, n_heads, n_spans),
        "prompt_mass": (n_layers, n_heads, len(run.prompt_edges or ()) - 1, n_spans),
    }
    for name, shape in shapes.items():
        array = getattr(run, name)
        if array is None:
            continue
        dtype = np.int32 if name in TOKEN_NAMES else np.float32
        if not isinstance(array, np.ndarray):
            raise InputError(f"{name} must be a numpy array, not {type(array).__name__}")
        if array.dtype != dtype or array.shape != shape:
            raise InputError(
                f"{name} is {array.dtype} of shape {array.shape}; expected {np.dtype(dtype)} of shape {shape}"
            )
        if name not in TOKEN_NAMES and not (np.isfinite(array).all() and (array >= 0).all()):
            raise InputError(f"{name} holds a negative mass or a value that is not finite")


def _row_positions(run: Run) -> np.ndarray:
    return run.n_prompt - (run.rows == "predicting") + np.arange(run.visible.shape[1])


def _owners(run: Run) -> np.ndarray:
    """Span of every token, and -1 behind them: for the position -1, which is no token's."""
    owner = np.full(len(run.token_ids) + 1, -1)
    for i, span in enumerate(run.spans):
        for start, stop in span.segments:
            owner[start:stop] = i
    return owner


def _check_keys(run: Run, tolerance: float) -> None:
    assert run.key_mass is not None
    assert run.key_token is not None
    mass, token = run.key_mass, run.key_token  # [layer, row, k]
    if not ((token >= -1) & (token <= _row_positions(run)[:, None])).all():
        raise InputError("key_token holds a position that is no token's, or one behind its row")
    if ((token >= 0) != (mass > 0)).any():
        raise InputError("key_token is -1 where key_mass has mass, or a token where it has none")
    before, after = mass[..., :-1], mass[..., 1:]
    tied = (before == after) & (after > 0)
    if ((before < after) | (tied & (token[..., :-1] >= token[..., 1:]))).any():
        raise InputError("key_mass is not in order: the heaviest token comes first, and of equal ones the first")
    ordered = np.sort(token, axis=-1)
    if ((ordered[..., :-1] == ordered[..., 1:]) & (ordered[..., 1:] >= 0)).any():
        raise InputError("key_token holds a token twice in one row")
    owner = _owners(run)[token]
    for i, span in enumerate(run.spans):
        own = owner == i
        if (own.sum(axis=-1) > run.visible[..., i]).any():
            raise InputError(f'key_token holds more tokens of span "{span.name}" than the row sees')
        found = np.where(own, mass, 0).sum(axis=-1, dtype=np.float64)
        if run.row_mass is not None and (found > run.row_mass[..., i].mean(axis=1) + tolerance).any():
            raise InputError(f'key_mass of span "{span.name}" is more than the span has')


def _check_prompt(run: Run, tolerance: float) -> None:
    assert run.prompt_mass is not None
    assert run.prompt_edges is not None
    _check_sum(run.prompt_mass.sum(axis=-1, dtype=np.float64), np.ones(()), "prompt_mass", tolerance)
    ends = np.array(run.prompt_edges[1:])
    for i, span in enumerate(run.spans):
        if span.segments and run.prompt_mass[:, :, ends <= span.segments[0][0], i].any():
            raise InputError(f'prompt_mass gives mass to span "{span.name}" in rows before it')


def _check_top(run: Run, tolerance: float) -> None:
    assert run.top_mass is not None
    assert run.top_token is not None
    assert run.row_mass is not None
    positions, owner = _row_positions(run), _owners(run)
    if not ((run.top_token >= -1) & (run.top_token < len(run.token_ids))).all():
        raise InputError("top_token holds a position that is no token's")
    for i, span in enumerate(run.spans):
        token, top, mass = run.top_token[..., i], run.top_mass[..., i], run.row_mass[..., i]  # [layer, head, row]
        visible = run.visible[:, None, :, i]
        if ((token >= 0) != (visible > 0)).any():
            raise InputError(f'top_token of span "{span.name}" is -1 where a row sees it, or a token where none does')
        if ((token >= 0) & ((owner[token] != i) | (token > positions))).any():
            raise InputError(f'top_token of span "{span.name}" lies outside it or behind its row')
        if (top > mass).any() or (top * np.maximum(visible, 1) < mass - tolerance).any():
            raise InputError(f'top_mass of span "{span.name}" is more than its mass, or less than its mean token\'s')
