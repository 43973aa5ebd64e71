"""Units: the stretches of keys that one program of the span kernel walks, and which span each belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from attnprobe_kernels.segments import HIDDEN, Segments
from attnprobe_kernels.uploads import upload_once


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


Seen = tuple[tuple[int, int], ...]
"""Columns that some row of each sample sees, one interval ``[lo, hi)`` a sample."""


def seen_columns(visible: np.ndarray) -> Seen:
    """Of intervals ``[B, A, 2]``; ``(0, 0)`` for a sample none of whose rows sees anything."""
    sees = visible[..., 0] < visible[..., 1]  # [B, A]
    return tuple(
        (int(rows[:, 0].min()), int(rows[:, 1].max())) if len(rows) else (0, 0)
        for rows in (sample[some] for sample, some in zip(visible, sees, strict=True))
    )


@lru_cache(maxsize=1024)  # a layer may ask for an interval a row
def narrowed(segments: tuple[Segments, ...], seen: Seen) -> tuple[Segments, ...]:
    """The segments with no owner for keys outside what is seen, so that no unit is cut there."""
    tables = []
    for table, (lo, hi) in zip(segments, seen, strict=True):
        rows = [
            (max(start, lo), min(stop, hi), owner)
            for start, stop, owner in zip(table.starts, table.stops, table.owners, strict=True)
        ]
        rows = [(0, lo, HIDDEN), *(row for row in rows if row[0] < row[1]), (hi, table.n_keys, HIDDEN)]
        starts, stops, owners = zip(*rows, strict=True)
        tables.append(Segments(starts, stops, owners, table.n_keys, table.n_spans))
    return tuple(tables)


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


def unit_table(segments: tuple[Segments, ...], unit: int, device: torch.device) -> UnitTable:
    """The unit table on a device, uploaded once a stream: the layers of a model share it."""
    return UnitTable(*upload_once(("units", segments, unit), lambda: cut(segments, unit), device))
