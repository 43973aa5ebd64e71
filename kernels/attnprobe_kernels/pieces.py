"""Pieces: the rows that a tile of ``prefill_map`` and a block of rows have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnprobe_kernels.uploads import upload_once


@dataclass(frozen=True)
class PieceTable:
    """Pieces in the order of their rows.

    Parameters
    ----------
    pieces
        int32 ``[P, 3]``: first row, end, and the number of rows of the piece's block.
    tile_edges
        int32 ``[tiles + 1]``: the pieces of tile t are ``tile_edges[t]`` to the next entry.
    block_edges
        int32 ``[blocks + 1]``: the same for blocks.
    """

    pieces: Tensor
    tile_edges: Tensor
    block_edges: Tensor


def cut_rows(n_rows: int, block: int, tile: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The int32 arrays of a :class:`PieceTable`; at most ``tiles + blocks`` pieces."""
    blocks, tiles = (np.append(np.arange(0, n_rows, step), n_rows) for step in (block, tile))
    cuts = np.union1d(blocks, tiles)
    starts, stops = cuts[:-1], cuts[1:]
    in_block = np.minimum(n_rows - starts // block * block, block)
    return (
        np.stack([starts, stops, in_block], axis=1).astype(np.int32),
        np.searchsorted(cuts, tiles).astype(np.int32),
        np.searchsorted(cuts, blocks).astype(np.int32),
    )


def piece_table(n_rows: int, block: int, tile: int, device: torch.device) -> PieceTable:
    """The table on a device, uploaded once a stream: the layers of a model share it."""
    return PieceTable(*upload_once(("pieces", n_rows, block, tile), lambda: cut_rows(n_rows, block, tile), device))
