"""The optional arrays of a run: which there are, how a capture's layers become them, and that they fit the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnprobe.errors import InputError
from attnprobe.extras import distance_edges, n_distance_bins, span_masses

if TYPE_CHECKING:
    from attnprobe.layer_rows import LayerRows
    from attnprobe.run import Run

ARRAYS: dict[str, tuple[str, ...]] = {
    "top": ("top_mass", "top_token"),
    "columns": ("column_mass",),
    "distance": ("distance_mass",),
    "values": ("value_mass",),
    "question": ("question_mass",),
}
"""The arrays of a run that each of :data:`attnprobe.extras.EXTRAS` fills."""
ARRAY_NAMES = tuple(name for names in ARRAYS.values() for name in names)
TOLERANCE = 1e-4
"""Largest accepted difference between sums of an extra and the masses that they must equal."""


def extra_fields(
    layers: Sequence[LayerRows],
    sample: int,
    rows: slice,
    columns: Sequence[int],
    row_mass: np.ndarray,
    pad: int,
    n_tokens: int,
    first_row: int,
) -> dict[str, Any]:
    """The optional fields of one sample's run, as far as its layers hold them.

    Parameters
    ----------
    layers
        In the order of the run's layer axis.
    sample
        Which sample of the batch.
    rows
        The sample's rows among the captured ones.
    columns
        Where the layers hold the run's spans, the learned sink not included: that one follows the last span.
    row_mass
        The run's own ``[layer, head, row, span]``.
    pad
        Left padding of the sample, slots.
    n_tokens
        Tokens of prompt and answer.
    first_row
        Position of the first row.
    """
    n_rows, n_spans = row_mass.shape[2:]
    fields: dict[str, Any] = {}
    extras = [layer.extras for layer in layers]

    if extras[0].top_logit is not None:
        fields["top_mass"] = np.zeros(row_mass.shape, dtype=np.float32)
        fields["top_token"] = np.full(row_mass.shape, -1, dtype=np.int32)
        for number, (layer, extra) in enumerate(zip(layers, extras, strict=True)):
            assert extra.top_logit is not None
            assert extra.top_slot is not None
            own = [*columns] + [layer.lse.shape[-1] - 1] * layer.has_sink
            total = torch.logsumexp(layer.lse[sample, :, rows][..., own].double(), dim=-1, keepdim=True)
            mass = torch.exp(extra.top_logit[sample, :, rows][..., own].double() - total).float().numpy()
            slot = extra.top_slot[sample, :, rows][..., own].numpy()
            # Like the masses: what underflows float32 is its smallest number. The logit's own rounding must not lift
            # the heaviest token above its span.
            mass = np.where((slot >= 0) & (mass == 0), np.finfo(np.float32).smallest_subnormal, mass)
            fields["top_mass"][number, ..., : len(own)] = np.minimum(mass, row_mass[number, ..., : len(own)])
            fields["top_token"][number, ..., : len(own)] = np.where(slot >= 0, slot - pad, -1)

    if extras[0].columns is not None:
        fields["column_mass"] = np.zeros((*row_mass.shape[:2], n_tokens), dtype=np.float32)
        for number, extra in enumerate(extras):
            assert extra.columns is not None
            sums = extra.columns[sample, :, pad : pad + n_tokens].numpy()  # the last answer token may not have been fed
            fields["column_mass"][number, :, : sums.shape[1]] = sums / n_rows

    if extras[0].distance is not None:
        n_bins = n_distance_bins(first_row + n_rows)
        means = [
            extra.distance[sample, :, rows].double().mean(dim=1)[:, :n_bins]
            for extra in extras
            if extra.distance is not None
        ]
        fields["distance_mass"] = torch.stack(means).float().numpy()
        fields["distance_edges"] = distance_edges(n_bins)

    if extras[0].value_lse is not None:
        fields["value_mass"] = np.zeros((*row_mass.shape[:2], n_spans), dtype=np.float32)
        for number, extra in enumerate(extras):
            assert extra.value_lse is not None
            masses = span_masses(extra.value_lse[sample, :, rows][..., list(columns)].double())
            fields["value_mass"][number, :, : len(columns)] = masses.mean(dim=1).float().numpy()

    if all(extra.question is not None for extra in extras):
        question = np.zeros((*row_mass.shape[:2], n_spans), dtype=np.float32)
        for number, (layer, extra) in enumerate(zip(layers, extras, strict=True)):
            assert extra.question is not None
            own = [*columns] + [layer.lse.shape[-1] - 1] * layer.has_sink
            question[number, :, : len(own)] = extra.question[sample][:, own].numpy()
        if question.any():  # a sample without a question has no such rows, beside others that have
            fields["question_mass"] = question
    return fields


def check_extras(run: Run) -> None:
    """Raise unless the optional arrays fit each other and the rest of the run.

    Checked: dtypes and shapes; that every number is finite and no mass negative; that a heaviest token lies in its
    span, at or before its row, and weighs no more than the span and no less than the mean of its tokens; that tokens
    add up to their spans; that distances and sinks, value-weighted masses and question masses each sum to 1.

    Raises
    ------
    InputError
        Naming the first contradiction.
    """
    _check_arrays(run)
    if run.top_mass is not None:
        _check_top(run)
    if run.column_mass is not None:
        for i, span in enumerate(run.spans):
            _check_sum(
                sum(run.column_mass[..., a:b].sum(axis=-1, dtype=np.float64) for a, b in span.segments),
                run.mass[..., i] if span.segments else np.zeros(()),
                f'column_mass of span "{span.name}"',
            )
    if run.distance_mass is not None:
        sinks = [i for i, span in enumerate(run.spans) if span.kind in ("sink", "learned_sink")]
        _check_sum(
            run.distance_mass.sum(axis=-1, dtype=np.float64) + run.mass[..., sinks].sum(axis=-1, dtype=np.float64),
            np.ones(()),
            "distance_mass with the sinks",
        )
    for name, kinds in (("value_mass", ("learned_sink",)), ("question_mass", ("answer",))):
        array = getattr(run, name)
        if array is None:
            continue
        _check_sum(array.sum(axis=-1, dtype=np.float64), np.ones(()), name)
        for i, span in enumerate(run.spans):
            if span.kind in kinds and array[..., i].any():
                raise InputError(f'{name} gives mass to span "{span.name}", which can have none')


def _check_sum(found: Any, wanted: np.ndarray, what: str) -> None:
    error = float(np.abs(found - wanted).max())
    if not error <= TOLERANCE:
        raise InputError(f"{what} does not add up: off by {error:.3g}")


def _check_arrays(run: Run) -> None:
    n_layers, n_heads, n_spans = run.mass.shape
    n_rows, edges = run.visible.shape[1], run.distance_edges
    for first, second in (("top_mass", "top_token"), ("distance_mass", "distance_edges")):
        if (getattr(run, first) is None) != (getattr(run, second) is None):
            raise InputError(f"{first} and {second} are kept together: give both or neither")
    if run.top_mass is not None and run.row_mass is None:
        raise InputError("top_mass is kept with the rows, but row_mass is None")
    if edges is not None:
        first_row = run.n_prompt - (run.rows == "predicting")
        wanted = distance_edges(n_distance_bins(first_row + n_rows))
        if edges != wanted or not all(type(edge) is int for edge in edges):
            raise InputError(f"distance_edges is {edges}; expected {wanted}")
    shapes: dict[str, tuple[int, ...]] = {
        "top_mass": (n_layers, n_heads, n_rows, n_spans),
        "top_token": (n_layers, n_heads, n_rows, n_spans),
        "column_mass": (n_layers, n_heads, len(run.token_ids)),
        "distance_mass": (n_layers, n_heads, len(edges or ()) - 1),
        "value_mass": (n_layers, n_heads, n_spans),
        "question_mass": (n_layers, n_heads, n_spans),
    }
    for name, shape in shapes.items():
        array = getattr(run, name)
        if array is None:
            continue
        dtype = np.int32 if name == "top_token" else np.float32
        if not isinstance(array, np.ndarray):
            raise InputError(f"{name} must be a numpy array, not {type(array).__name__}")
        if array.dtype != dtype or array.shape != shape:
            raise InputError(
                f"{name} is {array.dtype} of shape {array.shape}; expected {np.dtype(dtype)} of shape {shape}"
            )
        if name != "top_token" and not (np.isfinite(array).all() and (array >= 0).all()):
            raise InputError(f"{name} holds a negative mass or a value that is not finite")


def _check_top(run: Run) -> None:
    assert run.top_mass is not None
    assert run.top_token is not None
    assert run.row_mass is not None
    first_row = run.n_prompt - (run.rows == "predicting")
    positions = first_row + np.arange(run.visible.shape[1])
    owner = np.full(len(run.token_ids) + 1, -1)  # the last one stands for no token
    for i, span in enumerate(run.spans):
        for start, stop in span.segments:
            owner[start:stop] = i
    if not ((run.top_token >= -1) & (run.top_token < len(run.token_ids))).all():
        raise InputError("top_token holds a position that is no token's")
    for i, span in enumerate(run.spans):
        token, top, mass = run.top_token[..., i], run.top_mass[..., i], run.row_mass[..., i]  # [layer, head, row]
        visible = run.visible[:, None, :, i]
        if ((token >= 0) != (visible > 0)).any():
            raise InputError(f'top_token of span "{span.name}" is -1 where a row sees it, or a token where none does')
        if ((token >= 0) & ((owner[token] != i) | (token > positions))).any():
            raise InputError(f'top_token of span "{span.name}" lies outside it or behind its row')
        if (top > mass).any() or (top * np.maximum(visible, 1) < mass - TOLERANCE).any():
            raise InputError(f'top_mass of span "{span.name}" is more than its mass, or less than its mean token\'s')
