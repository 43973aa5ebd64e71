from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprobe_kernels import visible_intervals


def test_causal_rows():
    assert visible_intervals([3, 4], 5).tolist() == [[[0, 4], [0, 5]]]


def test_a_window_counts_the_row_itself():
    assert visible_intervals([4], 5, window=2).tolist() == [[[3, 5]]]


def test_left_padding_hides_pads_and_their_rows():
    assert visible_intervals([0, 1, 2, 3], 4, pads=[0, 2]).tolist() == [
        [[0, 1], [0, 2], [0, 3], [0, 4]],
        [[0, 0], [0, 0], [2, 3], [2, 4]],
    ]


def test_a_sliding_cache_starts_at_its_offset():
    assert visible_intervals([9], 4, offset=6, window=4).tolist() == [[[0, 4]]]


@pytest.mark.parametrize(("rows", "n_columns", "offset"), [([5], 5, 0), ([9], 4, 6), ([2], 4, 3)])
def test_keys_that_are_not_at_hand(rows, n_columns, offset):
    with pytest.raises(ValueError, match="but the keys at hand are slots"):
        visible_intervals(rows, n_columns, offset=offset)


@pytest.mark.parametrize(("name", "length"), [("window", 0), ("window", -1), ("chunk", 0)])
def test_no_window_and_no_chunk_of_no_token(name, length):
    with pytest.raises(ValueError, match=f"{name} must be at least one token, got {length}"):
        visible_intervals([3], 5, **{name: length})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"window": 2.5}, "window must be a whole number, got 2.5"),
        ({"chunk": 2.5}, "chunk must be a whole number, got 2.5"),
        ({"offset": 0.5}, "offset must be a whole number, got 0.5"),
        ({"pads": [0.5]}, "pads must hold integers, got float64"),
        ({"rows": [1.5]}, "rows must hold integers, got float64"),
    ],
)
def test_no_fraction_is_cut_off(given, message):
    with pytest.raises(ValueError, match=message):
        visible_intervals(**({"rows": [3], "n_columns": 5} | given))


def test_no_rows_and_windows_beyond_everything():
    assert visible_intervals([], 5).shape == (1, 0, 2)
    assert visible_intervals([3], 5, window=10**20, chunk=10**20).tolist() == [[[0, 4]]]


@given(
    n_slots=st.integers(1, 24),
    pad=st.integers(0, 8),
    window=st.none() | st.integers(1, 10),
    chunk=st.none() | st.integers(1, 10),
)
@settings(deadline=None, derandomize=True, max_examples=200)
def test_intervals_say_what_the_masks_say(n_slots, pad, window, chunk):
    row, column = np.arange(n_slots)[:, None], np.arange(n_slots)[None, :]
    seen = (column <= row) & (column >= pad) & (row >= pad)
    if window is not None:
        seen &= column > row - window
    if chunk is not None:
        seen &= (column - pad) // chunk == (row - pad) // chunk
    lo, hi = visible_intervals(range(n_slots), n_slots, pads=[pad], window=window, chunk=chunk)[0].T
    assert np.array_equal((column >= lo[:, None]) & (column < hi[:, None]), seen)
