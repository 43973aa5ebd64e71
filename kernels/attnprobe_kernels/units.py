"""Units: the stretches of keys that one program of the span kernel walks, and which span each belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from attnprobe_kernels.segments import HIDDEN, Segments
from attnprobe_kernels.uploads import stream_of, upload


@dataclass(frozen=True)
class UnitTable:
    """Units of all samples, ordered by sample, owning span and position.

    Parameters
    ----------
    units
        int32 ``[U, 3]``: sample, first key, end. A unit never crosses a segment's boundary.
    edges
        int32 ``[B * S + 1]``: the units of sample b and span s are ``edges[b * S + s]`` to the next entry.
    """

    units: Tensor
    edges: Tensor


def cut(segments: tuple[Segments, ...], unit: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut every segment into units of ``unit`` keys, the last one shorter; keys of no span get none.

    Returns
    -------
    int32 ``[U, 3]`` and int32 ``[B * S + 1]`` as in :class:`UnitTable`.
    """
    n_spans = max(table.n_spans for table in segments)
    rows, counts = [], np.zeros((len(segments), n_spans), dtype=np.int64)
    for sample, table in enumerate(segments):
        starts, stops, owners = (np.asarray(x, dtype=np.int64) for x in (table.starts, table.stops, table.owners))
        kept = (owners != HIDDEN) & (stops > starts)
        order = np.argsort(owners[kept], kind="stable")
        starts, stops, owners = starts[kept][order], stops[kept][order], owners[kept][order]
        n_units = -(-(stops - starts) // unit)  # [segment]
        index = np.arange(n_units.sum()) - np.repeat(np.cumsum(n_units) - n_units, n_units)  # unit within its segment
        first = np.repeat(starts, n_units) + index * unit
        last = np.minimum(first + unit, np.repeat(stops, n_units))
        rows.append(np.stack([np.full_like(first, sample), first, last], axis=1))
        np.add.at(counts[sample], owners, n_units)
    edges = np.concatenate([[0], np.cumsum(counts)])
    return np.concatenate(rows).astype(np.int32), edges.astype(np.int32)


@lru_cache(maxsize=32)
def _unit_table(segments: tuple[Segments, ...], unit: int, device: torch.device, stream: int) -> UnitTable:
    return UnitTable(*(upload(table, device) for table in cut(segments, unit)))


def unit_table(segments: tuple[Segments, ...], unit: int, device: torch.device) -> UnitTable:
    """The unit table on a device, uploaded once a stream: the layers of a model share it."""
    return _unit_table(segments, unit, device, stream_of(device))
