from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprobe_kernels import Segments
from attnprobe_kernels.segments import HIDDEN


def test_bounds_own_themselves():
    segments = Segments.from_bounds([(0, 1), (1, 70), (70, 70), (70, 200)], n_keys=200)
    assert segments.owners == (0, 1, 2, 3)
    assert segments.n_spans == 4


@pytest.mark.parametrize(
    ("bounds", "n_keys", "message"),
    [
        ([(0, 5), (6, 10)], 10, "gap at key 5: a segment starts at 6, the keys before it end at 5"),
        ([(1, 10)], 10, "gap at key 0"),
        ([(0, 5), (4, 10)], 10, "overlap at key 4"),
        ([(0, 5), (5, 9)], 10, "the segments end at key 9, but there are 10 keys"),
        ([(0, 5), (5, 11)], 10, "the segments end at key 11, but there are 10 keys"),
        ([(0, 5), (5, 3)], 3, r"segment \(5, 3\) ends before it starts"),
        ([], 4, "the segments end at key 0, but there are 4 keys"),
    ],
)
def test_anything_but_a_cover_is_refused(bounds, n_keys, message):
    with pytest.raises(ValueError, match=message):
        Segments.from_bounds(bounds, n_keys=n_keys)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Segments.from_bounds([(0, 1.7), (1.7, 4)], 4),
            r"bounds must be a list of ranges .* in integers, got \[",
        ),
        (lambda: Segments.from_bounds([0, 4], 4), r"bounds must be a list of ranges .*, got \[0, 4\]"),
        (lambda: Segments.from_bounds([(0, 4)], 4.0), "n_keys must be a whole number, got 4.0"),
        (lambda: Segments.from_spans([[(0, 5)], [(5, 3)]], 5), r"span 1: segment \(5, 3\) ends before it starts"),
        (lambda: Segments.from_spans([[(0, 5)]], 10, hidden=(5, 10)), r"hidden must be a list of ranges .*\(5, 10\)"),
        (lambda: Segments.from_spans([(0, 5)], 5), r"span 0 must be a list of ranges .*, got \(0, 5\)"),
        (lambda: Segments((0,), (4,), (0,), 4, 1.5), "n_spans must be a whole number, got 1.5"),
        (lambda: Segments((0,), (4.0,), (0,), 4, 1), "every one of stops must be a whole number, got 4.0"),
    ],
)
def test_ranges_that_are_no_ranges_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_spans_may_come_one_by_one():
    spans = [[(0, 2), (6, 8)], [(2, 6)]]
    assert Segments.from_spans(iter(spans), 8) == Segments.from_spans(spans, 8)


def test_an_owner_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"segment \(0, 4\) has owner 2; there are 2 spans"):
        Segments((0,), (4,), (2,), 4, 2)


def test_spans_of_several_ranges_in_any_order():
    segments = Segments.from_spans([[(6, 8), (0, 2)], [], [(2, 6)]], 10, hidden=[(8, 10)])
    assert segments.starts == (0, 2, 6, 8)
    assert segments.owners == (0, 2, 0, HIDDEN)
    assert segments.n_spans == 3


@st.composite
def covers(draw):
    n_keys = draw(st.integers(1, 40))
    cuts = sorted(draw(st.sets(st.integers(1, n_keys - 1), max_size=6))) if n_keys > 1 else []
    edges = [0, *cuts, n_keys]
    owners = draw(st.lists(st.integers(-1, 3), min_size=len(edges) - 1, max_size=len(edges) - 1))
    return Segments(tuple(edges[:-1]), tuple(edges[1:]), tuple(owners), n_keys, 4)


def owner_of_each_key(segments):
    owners = np.full(segments.n_keys, HIDDEN)
    for start, stop, owner in zip(segments.starts, segments.stops, segments.owners, strict=True):
        owners[start:stop] = owner
    return owners


@given(segments=covers(), offset=st.integers(0, 45), length=st.integers(0, 60))
@settings(deadline=None, derandomize=True, max_examples=150)
def test_clip_keeps_every_owner(segments, offset, length):
    expected = np.full(length, HIDDEN)
    kept = owner_of_each_key(segments)[offset : offset + length]
    expected[: len(kept)] = kept
    if length == 0 or len(kept) > 0:
        assert np.array_equal(owner_of_each_key(segments.clip(offset, length)), expected)


@given(segments=covers(), data=st.data())
@settings(deadline=None, derandomize=True, max_examples=150)
def test_rows_may_see_owned_keys_alone(segments, data):
    column = st.integers(-3, segments.n_keys + 3)
    rows = [sorted(pair) for pair in data.draw(st.lists(st.tuples(column, column), max_size=4))]
    owners = dict(enumerate(owner_of_each_key(segments)))
    missing = [sum(owners.get(key, HIDDEN) == HIDDEN for key in range(*row)) for row in rows]
    visible = np.array(rows, dtype=np.int32).reshape(-1, 2)
    if any(missing):
        first = next(index for index, number in enumerate(missing) if number)
        with pytest.raises(ValueError, match=f"row {first} sees {missing[first]} keys that belong to no span"):
            segments.check_owned(visible)
    else:
        segments.check_owned(visible)


def test_the_owners_of_many_rows_take_little_memory():
    n_rows, n_spans = 20_000, 300
    segments = Segments.from_spans([[(5 + i, 6 + i)] for i in range(n_spans)], n_spans + 5, hidden=[(0, 5)])
    visible = np.tile(np.array([5, n_spans + 5], dtype=np.int32), (n_rows, 1))
    tracemalloc.start()
    segments.check_owned(visible)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * n_rows  # bytes; a number for every row and span takes 2400 a row


@given(segments=covers(), data=st.data())
@settings(deadline=None, derandomize=True, max_examples=150)
def test_visible_counts_count_keys(segments, data):
    lo = data.draw(st.integers(0, segments.n_keys))
    hi = data.draw(st.integers(lo, segments.n_keys))
    seen = owner_of_each_key(segments)[lo:hi]
    visible = np.array([[lo, hi]], dtype=np.int32)
    if (seen == HIDDEN).any():
        with pytest.raises(ValueError, match="belong to no span"):
            segments.visible_counts(visible)
    else:
        assert segments.visible_counts(visible)[0].tolist() == [int((seen == span).sum()) for span in range(4)]
