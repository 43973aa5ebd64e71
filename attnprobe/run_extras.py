"""The arrays that extras give to a run: which there are, and how a capture's layers become them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnprobe.extras import N_KEYS, distance_edges, n_distance_bins, span_masses
from attnprobe.row_means import prompt_edges

if TYPE_CHECKING:
    from attnprobe.layer_rows import LayerRows

ARRAYS: dict[str, tuple[str, ...]] = {
    "top": ("top_mass", "top_token"),
    "columns": ("column_mass",),
    "keys": ("key_mass", "key_token"),
    "distance": ("distance_mass",),
    "values": ("value_mass",),
    "question": ("question_mass",),
    "prompt": ("prompt_mass",),
}
"""The arrays of a run that each of :data:`attnprobe.extras.EXTRAS` fills."""
ARRAY_NAMES = tuple(name for names in ARRAYS.values() for name in names)
TOKEN_NAMES = ("top_token", "key_token")
"""Those of the arrays that hold positions of tokens, as int32; the others are float32."""


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

    if extras[0].key_mass is not None:
        k = min(N_KEYS, n_tokens)
        fields["key_mass"] = np.zeros((len(layers), n_rows, k), dtype=np.float32)
        fields["key_token"] = np.zeros((len(layers), n_rows, k), dtype=np.int32)
        for number, extra in enumerate(extras):
            assert extra.key_mass is not None
            assert extra.key_slot is not None
            slot = extra.key_slot[sample, 0, rows, :k].numpy()
            fields["key_mass"][number] = extra.key_mass[sample, 0, rows, :k].numpy()
            fields["key_token"][number] = np.where(slot >= 0, slot - pad, -1)

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

    if "question" in extras[0].means:
        question = _means(layers, sample, "question", columns, n_spans)
        if question.any():  # a sample without a question has no such rows, beside others that have
            fields["question_mass"] = question[:, :, 0]

    if "prompt" in extras[0].means:
        edges = prompt_edges(n_tokens - n_rows)
        # Beside a shorter prompt there may be more blocks than its own.
        fields["prompt_mass"] = _means(layers, sample, "prompt", columns, n_spans)[:, :, : len(edges) - 1]
        fields["prompt_edges"] = edges
    return fields


def _means(layers: Sequence[LayerRows], sample: int, extra: str, columns: Sequence[int], n_spans: int) -> np.ndarray:
    """One sample's masses averaged over stretches of rows, float32 ``[layer, head, stretch, span]``."""
    n_heads, n_stretches = layers[0].extras.means[extra].shape[1:3]
    means = np.zeros((len(layers), n_heads, n_stretches, n_spans), dtype=np.float32)
    for number, layer in enumerate(layers):
        own = [*columns] + [layer.lse.shape[-1] - 1] * layer.has_sink
        means[number, ..., : len(own)] = layer.extras.means[extra][sample][..., own].numpy()
    return means
