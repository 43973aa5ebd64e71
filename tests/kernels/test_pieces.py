from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprobe_kernels.pieces import cut_rows, piece_table


def test_pieces_written_out():
    pieces, tile_edges, block_edges = cut_rows(10, block=4, tile=3)
    assert pieces.tolist() == [[0, 3, 4], [3, 4, 4], [4, 6, 4], [6, 8, 4], [8, 9, 2], [9, 10, 2]]
    assert tile_edges.tolist() == [0, 1, 3, 5, 6]
    assert block_edges.tolist() == [0, 2, 4, 6]


@given(n_rows=st.integers(1, 200), block=st.integers(1, 200), tile=st.integers(1, 70))
@settings(deadline=None, derandomize=True, max_examples=150)
def test_every_row_is_in_one_piece_of_its_tile_and_its_block(n_rows, block, tile):
    pieces, tile_edges, block_edges = cut_rows(n_rows, block, tile)
    assert np.array_equal(np.concatenate([np.arange(a, b) for a, b, _ in pieces]), np.arange(n_rows))
    for edges, length in ((tile_edges, tile), (block_edges, block)):
        assert len(edges) == -(-n_rows // length) + 1
        for i, (a, b) in enumerate(itertools.pairwise(edges)):
            assert pieces[a, 0] == i * length
            assert pieces[b - 1, 1] == min((i + 1) * length, n_rows)
    sizes = np.repeat(np.minimum(n_rows - np.arange(0, n_rows, block), block), np.diff(block_edges))
    assert np.array_equal(pieces[:, 2], sizes)
    assert len(pieces) <= len(tile_edges) + len(block_edges) - 2


def test_pieces_are_blocks_where_blocks_are_whole_tiles_or_tiles_whole_blocks():
    assert len(cut_rows(1000, 128, 128)[0]) == 8
    assert len(cut_rows(1000, 32, 128)[0]) == 32


def test_a_table_is_uploaded_once():
    first = piece_table(300, 64, 32, torch.device("cpu"))
    second = piece_table(300, 64, 32, torch.device("cpu"))
    assert all(one is other for one, other in zip(vars(first).values(), vars(second).values(), strict=True))
