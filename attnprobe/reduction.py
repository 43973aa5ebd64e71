"""Reduce a layer's rows to spans and to the extras that were asked for, and put the pieces together at the end."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from attnprobe.errors import CaptureError
from attnprobe.extras import distance_mass, heaviest_keys, n_distance_bins, value_bias
from attnprobe.layer_rows import LayerExtras, LayerPart, LayerRows, LayerState
from attnprobe.row_block import RowBlock, SampleSpans
from attnprobe_kernels import Segments, span_lse, span_top


def with_sink(sink: Tensor | None, spans: Tensor, column: int | None = None) -> Tensor:
    """``[B, Hq, A, S]`` with one more column where there is a learned sink: its logit (``[Hq]``), or ``column``."""
    if sink is None:
        return spans
    value = sink.detach().reshape(1, -1, 1, 1) if column is None else torch.tensor(column)
    return torch.cat([spans, value.to(spans.device, spans.dtype).expand(*spans.shape[:3], 1)], dim=-1)


def reduce_block(
    layer: LayerState,
    block: RowBlock,
    tables: Sequence[Segments],
    counts: np.ndarray,
    samples: Sequence[SampleSpans],
    extras: Collection[str],
    backend: str,
) -> LayerPart:
    """Span log-sum-exps of a block's rows, and the extras that belong to single rows.

    Parameters
    ----------
    layer
        The layer; its ``factor`` is known where the block has values.
    block
        The rows.
    tables
        Owners of the columns, one table a sample.
    counts
        int64 ``[B, A, spans]``: how many keys of each span each row sees.
    samples, extras, backend
        As in :class:`attnprobe.capture.Capture`.
    """
    sink, arguments = layer.arguments["sink"], block.arguments()
    top_logit = top_slot = key_mass = key_slot = distance = value_lse = None
    if "top" in extras:
        lse, top_logit, top_key = span_top(block.query, block.key, tables, backend=backend, **arguments)
        top_logit = with_sink(sink, top_logit)
        top_slot = with_sink(sink, torch.where(top_key < 0, -1, top_key.long() + block.offset), -1)
    else:
        lse = span_lse(block.query, block.key, tables, backend=backend, **arguments)
    lse = with_sink(sink, lse)
    if sink is not None:
        counts = np.concatenate([counts, np.zeros_like(counts[..., :1])], axis=-1)
    total = torch.logsumexp(lse, dim=-1)
    if "keys" in extras:
        key_mass, key_slot = heaviest_keys(block, total, backend)
    if "distance" in extras:
        distance = distance_mass(block, tables, [sample.sinks for sample in samples], total, backend)
    if block.value is not None:
        assert layer.factor is not None
        bias = value_bias(block.value, layer.factor)
        value_lse = span_lse(block.query, block.key, tables, key_bias=bias, backend=backend, **arguments)
    return LayerPart(lse, counts, top_logit, top_slot, key_mass, key_slot, distance, value_lse)


def collect(layer: LayerState, n_rows: int, extras: Collection[str], stop_rows: np.ndarray, n_slots: int) -> LayerRows:
    """What a layer gave for its first ``n_rows`` captured rows, on the CPU.

    Parameters
    ----------
    layer
        The layer.
    n_rows
        Rows wanted.
    extras
        Which extras were asked for.
    stop_rows
        int64 ``[B]``: slot behind each sample's own last row.
    n_slots
        Slots fed to the model.

    Raises
    ------
    CaptureError
        The layer gave fewer rows.
    """
    captured = sum(part.lse.shape[2] for part in layer.parts)
    if captured < n_rows:
        raise CaptureError(f"{type(layer.module).__name__} (layer {layer.index}) gave {captured} of {n_rows} rows")

    def rows(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in layer.parts], dim=2)[:, :, :n_rows].cpu()

    return LayerRows(
        layer=layer.index,
        lse=rows("lse"),
        visible=np.concatenate([part.visible for part in layer.parts], axis=1)[:, :n_rows],
        has_sink=layer.arguments["sink"] is not None,
        residual=np.array([float(residual.difference) for residual in layer.residuals]),
        magnitude=np.array([float(residual.magnitude) for residual in layer.residuals]),
        extras=LayerExtras(
            top_logit=rows("top_logit") if "top" in extras else None,
            top_slot=rows("top_slot") if "top" in extras else None,
            columns=layer.columns.total(stop_rows) if "columns" in extras else None,
            key_mass=rows("key_mass") if "keys" in extras else None,
            key_slot=rows("key_slot") if "keys" in extras else None,
            distance=_distances(layer, n_distance_bins(n_slots))[:, :, :n_rows] if "distance" in extras else None,
            value_lse=rows("value_lse") if "values" in extras else None,
            means={extra: mean.cpu() for extra, mean in layer.means.items()},
        ),
    )


def _distances(layer: LayerState, n_bins: int) -> Tensor:
    """All rows' masses by distance, with one number of bins: later rows have more, for there are keys further away."""
    found = [part.distance.cpu() for part in layer.parts if part.distance is not None]
    return torch.cat([torch.nn.functional.pad(part, (0, n_bins - part.shape[-1])) for part in found], dim=2)
