"""Pieces: the rows that a tile of ``prefill_map`` and a block of rows have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnprobe_kernels.uploads import upload_once


@dataclass(frozen=True)
class PieceTable:
    """Pieces, sample after sample, in the order of their rows; a block has at least one, if of no rows.

    Parameters
    ----------
    pieces
        int32 ``[P, 3]``: first row, end, and the number of rows of the piece's block (at least 1: it divides).
    tile_edges
        int32 ``[B * tiles + 1]``: those of sample b and tile t are ``tile_edges[b * tiles + t]`` to the next entry.
    block_edges
        int32 ``[B * blocks + 1]``: the same for blocks.
    """

    pieces: Tensor
    tile_edges: Tensor
    block_edges: Tensor


def cut_rows(blocks: np.ndarray, n_rows: int, tile: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The int32 arrays of a :class:`PieceTable`: at most ``tiles + R`` pieces a sample.

    Parameters
    ----------
    blocks
        int32 ``[B, R + 1]``, ascending: the rows ``blocks[b, r]`` to ``blocks[b, r + 1]`` are block r of sample b.
    n_rows
        Rows in all, at least one.
    tile
        Rows of a tile.
    """
    tiles = np.arange(0, n_rows, tile)
    pieces, in_tiles, in_blocks = [], [], []
    for own in blocks:
        inner = np.setdiff1d(tiles[(tiles > own[0]) & (tiles < own[-1])], own)
        cuts = np.sort(np.concatenate([own, inner]))
        in_block = np.diff(np.searchsorted(inner, own)) + 1  # pieces
        in_blocks.append(in_block)
        in_tiles.append(np.bincount(np.minimum(cuts[:-1] // tile, len(tiles) - 1), minlength=len(tiles)))
        pieces.append(np.stack([cuts[:-1], cuts[1:], np.repeat(np.diff(own).clip(1), in_block)], axis=1))
    tile_edges, block_edges = (np.cumsum(np.concatenate([[0], *counts])) for counts in (in_tiles, in_blocks))
    return np.concatenate(pieces).astype(np.int32), tile_edges.astype(np.int32), block_edges.astype(np.int32)


def piece_table(blocks: np.ndarray, n_rows: int, tile: int, device: torch.device) -> PieceTable:
    """The table on a device, uploaded once a stream: the layers of a model share it."""
    key = ("pieces", blocks.tobytes(), blocks.shape, n_rows, tile)
    return PieceTable(*upload_once(key, lambda: cut_rows(blocks, n_rows, tile), device))
