"""Extras: what is reduced from a layer's rows beside the span log-sum-exps, where it is asked for.

Everything here is bounded by rows times spans, or by keys times heads; nothing is rows times keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from attnprobe.row_block import RowBlock
from attnprobe_kernels import HIDDEN, Segments, column_mass, span_lse

Extra = Literal["top", "columns", "keys", "distance", "values", "question", "prompt"]
EXTRAS: tuple[str, ...] = get_args(Extra)

N_KEYS = 64
"""Heaviest keys of a row that the extra ``keys`` holds."""
_TILE = 4096  # keys whose values are projected at a time


def n_distance_bins(n_tokens: int) -> int:
    """Bins that hold every distance, 0 to ``n_tokens - 1``, from a row back to a key."""
    return (n_tokens - 1).bit_length() + 1


def distance_edges(n_bins: int) -> tuple[int, ...]:
    """Edges 0, 1, 2, 4, 8, ...: bin b holds the distances from ``edges[b]`` to ``edges[b + 1] - 1``."""
    return (0, *(2**b for b in range(n_bins)))


def distance_mass(
    block: RowBlock, tables: Sequence[Segments], sinks: Sequence[Sequence[int]], total: Tensor, backend: str
) -> Tensor:
    """Mass of every row by the keys' distance from it, float32 ``[B, Hq, A, bin]``, without the sinks' tokens.

    Parameters
    ----------
    block
        The rows.
    tables
        Owners of the columns, one table a sample.
    sinks
        For each sample, the spans whose tokens are left out.
    total
        ``[B, Hq, A]``: log-sum-exp of everything that takes mass.
    backend
        Of :func:`attnprobe_kernels.span_lse`, which runs once a bin, over that bin's columns alone.
    """
    two = [_split(table, spans) for table, spans in zip(tables, sinks, strict=True)]
    whole, column = block.bounds, block.slots - block.offset  # the rows' own columns, [A]
    edges = distance_edges(n_distance_bins(int(block.slots[-1]) + 1))
    bins = []
    for near, far in pairwise(edges):
        lo = np.maximum(whole[..., 0], column - far + 1)  # [B, A]
        hi = np.minimum(whole[..., 1], column - near + 1)
        seeing = hi > lo
        if not seeing.any():
            bins.append(torch.zeros_like(total))
            continue
        start, stop = int(lo[seeing].min()), int(hi[seeing].max())
        bounds = np.where(seeing[..., None], np.stack([lo, hi], axis=-1) - start, 0).astype(np.int32)
        arguments = block.arguments(bounds)
        if block.mask is not None:
            arguments["mask"] = block.mask[..., start:stop]
        cut = [table.clip(start, stop - start) for table in two]
        lse = span_lse(block.query, block.key[:, :, start:stop], cut, backend=backend, **arguments)
        bins.append(_share(lse[..., 0], total))
    return torch.stack(bins, dim=-1)


def _split(table: Segments, sinks: Sequence[int]) -> Segments:
    """The same columns with two owners: 1 for the tokens of ``sinks``, 0 for all others."""
    owners = tuple(HIDDEN if owner == HIDDEN else int(owner in sinks) for owner in table.owners)
    return replace(table, owners=owners, n_spans=2)


def _share(lse: Tensor, total: Tensor) -> Tensor:
    """exp(lse - total); 0 where there is nothing at all."""
    return torch.where(lse == -torch.inf, 0.0, torch.exp(lse - total))


def span_masses(lse: Tensor) -> Tensor:
    """Softmax over the last axis; 0 for a row that sees nothing, as padding does."""
    return _share(lse, torch.logsumexp(lse, dim=-1, keepdim=True))


def heaviest_keys(block: RowBlock, total: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    """The heaviest keys of every row, by mass averaged over the query heads; heaviest first, ties by position.

    Parameters
    ----------
    block
        The rows; they are taken one at a time.
    total
        ``[B, Hq, A]``: log-sum-exp of everything that takes mass.
    backend
        Of :func:`attnprobe_kernels.column_mass`.

    Returns
    -------
    Mass, float32, and slot, int64, each ``[B, 1, A, N_KEYS]``; 0 and -1 behind the last key that has mass in the row.
    """
    n_columns = block.key.shape[2]
    position = torch.arange(n_columns, device=total.device)
    k = min(N_KEYS, n_columns)
    masses, slots = [], []
    for row in range(len(block.slots)):
        one = block.rows(row, row + 1)
        by_head = column_mass(one.query, one.key, total[:, :, row : row + 1], backend=backend, **one.arguments())
        mass = by_head.mean(dim=1).float()  # [B, N]
        # As whole numbers, the bits of masses are in the order of the masses, and can hold the position as well.
        rank = (mass.view(torch.int32).long() << 32) - position
        column = rank.topk(k).indices
        heaviest = mass.gather(1, column)
        masses.append(heaviest)
        slots.append(torch.where(heaviest > 0, column + block.offset, -1))
    room = (0, N_KEYS - k)
    mass, slot = (torch.stack(rows, dim=1)[:, None] for rows in (masses, slots))
    return torch.nn.functional.pad(mass, room), torch.nn.functional.pad(slot, room, value=-1)


def output_factor(weight: Tensor, n_heads: int) -> Tensor:
    """For each head h a square factor F with ``||v F|| = ||W_h v||``: float32 ``[Hq, Dv, Dv]``.

    Parameters
    ----------
    weight
        The output projection ``[n_out, Hq * Dv]``; ``W_h`` is the slice of a head's columns. The factor comes from the
        eigenvectors of the Gram matrix ``W_h^T W_h`` in float64, so that a norm costs Dv products a number, not n_out.
    n_heads
        Query heads.
    """
    grams = []
    for head in weight.detach().chunk(n_heads, dim=1):
        wide = head.double()
        grams.append(wide.T @ wide)
    squares, vectors = torch.linalg.eigh(torch.stack(grams))
    return (vectors * squares.clamp(min=0).sqrt()[:, None, :]).float()


def value_bias(value: Tensor, factor: Tensor) -> Tensor:
    """Log of what each key writes under each query head, ``log ||W_o^h v_j||``: float32 ``[B, Hq, N]``.

    A key that writes nothing gets the log of the smallest float32 instead of minus infinity.

    Source: Kobayashi et al. 2020, "Attention is not only a weight".
    """
    n_samples, n_kv_heads, n_keys, size = value.shape
    by_key_head = factor.to(value.device).reshape(1, n_kv_heads, -1, size, size)  # [1, Hkv, G, Dv, Dv]
    norms = value.new_empty((n_samples, factor.shape[0], n_keys), dtype=torch.float32)
    for start in range(0, n_keys, _TILE):
        tile = value[:, :, None, start : start + _TILE].float() @ by_key_head  # [B, Hkv, G, T, Dv]
        norms[..., start : start + _TILE] = torch.linalg.vector_norm(tile, dim=-1).flatten(1, 2)
    return norms.clamp(min=torch.finfo(torch.float32).tiny).log()


class ColumnSums:
    """Mass of every slot, summed over a sample's own rows, call by call.

    Only after the next token is known can it be told whether a row belongs to the answer: the row that predicts the
    end of sequence does not. So the last call is held back until another one comes, or the end.
    """

    def __init__(self) -> None:
        self._sum: Tensor | None = None  # [B, Hq, slots]
        self._held: Tensor | None = None
        self._held_slot = np.zeros(0, dtype=np.int64)

    def add(self, block: RowBlock, counted: np.ndarray, total: Tensor, n_slots: int, backend: str) -> None:
        """Take one block of rows.

        Parameters
        ----------
        block
            The rows.
        counted
            bool ``[B, A]``: the rows that are a sample's own, as far as is known.
        total
            ``[B, Hq, A]``: log-sum-exp of everything that takes mass.
        n_slots
            Slots that have keys; columns beyond, of a cache with room to spare, are left out.
        backend
            Of :func:`attnprobe_kernels.column_mass`.
        """
        bounds = np.where(counted[..., None], block.bounds, 0).astype(np.int32)
        mean = column_mass(block.query, block.key, total, backend=backend, **block.arguments(bounds))
        offset = block.offset
        sums = torch.nn.functional.pad(mean[..., : n_slots - offset] * len(block.slots), (offset, 0))
        if self._sum is None or self._held is None:
            self._sum, self._held = torch.zeros_like(sums), torch.zeros_like(sums)
            self._held_slot = np.full(len(counted), -1, dtype=np.int64)
        room = (0, n_slots - self._sum.shape[-1])
        self._sum, self._held = torch.nn.functional.pad(self._sum, room), torch.nn.functional.pad(self._held, room)
        any_counted = counted.any(axis=1)
        fresh = torch.from_numpy(any_counted)[:, None, None].to(sums.device)
        self._sum += torch.where(fresh, self._held, 0.0)
        self._held = torch.where(fresh, sums, self._held)
        self._held_slot = np.where(any_counted, np.where(counted, block.slots, -1).max(axis=1), self._held_slot)

    def total(self, stops: np.ndarray) -> Tensor:
        """float32 ``[B, Hq, slots]`` on the CPU, of the rows before each sample's stop (int64 ``[B]``, slots)."""
        assert self._sum is not None
        assert self._held is not None
        counts = torch.from_numpy(self._held_slot < stops)[:, None, None].to(self._sum.device)
        return (self._sum + torch.where(counts, self._held, 0.0)).float().cpu()
