from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprobe_kernels.pieces import cut_rows, piece_table


def test_pieces_written_out():
    pieces, tile_edges, block_edges = cut_rows(np.array([[0, 4, 8, 10]]), 10, tile=3)
    assert pieces.tolist() == [[0, 3, 4], [3, 4, 4], [4, 6, 4], [6, 8, 4], [8, 9, 2], [9, 10, 2]]
    assert tile_edges.tolist() == [0, 1, 3, 5, 6]
    assert block_edges.tolist() == [0, 2, 4, 6]


def test_samples_with_blocks_of_their_own_and_blocks_of_no_rows():
    pieces, tile_edges, block_edges = cut_rows(np.array([[1, 1, 5, 5], [4, 6, 6, 6]]), 6, tile=4)
    assert pieces.tolist() == [[1, 1, 1], [1, 4, 4], [4, 5, 4], [5, 5, 1], [4, 6, 2], [6, 6, 1], [6, 6, 1]]
    assert tile_edges.tolist() == [0, 2, 4, 4, 7]
    assert block_edges.tolist() == [0, 1, 3, 4, 5, 6, 7]


@st.composite
def cut_samples(draw):
    n_rows, width = draw(st.integers(1, 60)), draw(st.integers(2, 9))
    row = st.integers(0, n_rows)
    samples = draw(st.lists(st.lists(row, min_size=width, max_size=width).map(sorted), min_size=1, max_size=3))
    return n_rows, np.array(samples, dtype=np.int32)


@given(given_edges=cut_samples(), tile=st.integers(1, 40))
@settings(deadline=None, derandomize=True, max_examples=200)
def test_every_row_is_in_one_piece_of_its_tile_and_its_block(given_edges, tile):
    n_rows, edges = given_edges
    pieces, tile_edges, block_edges = cut_rows(edges, n_rows, tile)
    n_tiles, n_blocks = -(-n_rows // tile), edges.shape[1] - 1
    for table, per_sample in ((tile_edges, n_tiles), (block_edges, n_blocks)):
        assert len(table) == len(edges) * per_sample + 1
        assert (table[0], table[-1]) == (0, len(pieces))
    of_block = np.repeat(np.arange(len(edges) * n_blocks), np.diff(block_edges))
    of_tile = np.repeat(np.arange(len(edges) * n_tiles), np.diff(tile_edges))
    assert (np.diff(block_edges) >= 1).all()
    found = np.zeros((len(edges), n_blocks, n_rows), dtype=int)
    for (start, stop, size), block, at in zip(pieces.tolist(), of_block.tolist(), of_tile.tolist(), strict=True):
        sample, index = divmod(block, n_blocks)
        assert at // n_tiles == sample
        assert at % n_tiles * tile <= start <= stop <= (at % n_tiles + 1) * tile
        assert size == max(1, edges[sample, index + 1] - edges[sample, index])
        found[sample, index, start:stop] += 1
    for sample, own in enumerate(edges):
        for index, (start, stop) in enumerate(itertools.pairwise(own)):
            wanted = (np.arange(n_rows) >= start) & (np.arange(n_rows) < stop)
            assert np.array_equal(found[sample, index], wanted.astype(int))
    assert len(pieces) <= len(edges) * (n_tiles + n_blocks)


def test_pieces_are_blocks_where_blocks_are_whole_tiles_or_tiles_whole_blocks():
    assert len(cut_rows(np.append(np.arange(0, 1000, 128), 1000)[None], 1000, 128)[0]) == 8
    assert len(cut_rows(np.append(np.arange(0, 1000, 32), 1000)[None], 1000, 128)[0]) == 32


def test_a_table_is_uploaded_once():
    first, second = (piece_table(np.array([[0, 64, 300]], np.int32), 300, 32, torch.device("cpu")) for _ in range(2))
    assert all(one is other for one, other in zip(vars(first).values(), vars(second).values(), strict=True))
