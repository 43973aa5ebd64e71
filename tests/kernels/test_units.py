from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprobe_kernels import Segments
from attnprobe_kernels.segments import HIDDEN
from attnprobe_kernels.units import cut, narrowed, seen_columns, unit_table


def test_units_stay_inside_segments_and_are_ordered_by_span():
    segments = Segments.from_spans([[(8, 10)], [], [(0, 3), (4, 8)]], 12, hidden=[(3, 4), (10, 12)])
    units, edges = cut((segments,), 2)
    assert units.tolist() == [[0, 8, 10], [0, 0, 2], [0, 2, 3], [0, 4, 6], [0, 6, 8]]
    assert edges.tolist() == [0, 1, 1, 5]


@st.composite
def tables(draw, n_keys):
    cuts = sorted(draw(st.lists(st.integers(0, n_keys), max_size=8)))
    edges = [0, *cuts, n_keys]
    owners = draw(st.lists(st.integers(-1, 4), min_size=len(edges) - 1, max_size=len(edges) - 1))
    return Segments(tuple(edges[:-1]), tuple(edges[1:]), tuple(owners), n_keys, draw(st.integers(5, 6)))


@given(data=st.data(), unit=st.integers(1, 70))
@settings(deadline=None, derandomize=True, max_examples=150)
def test_every_owned_key_is_in_exactly_one_unit_of_its_span(data, unit):
    n_keys = data.draw(st.integers(1, 60))
    segments = tuple(data.draw(st.lists(tables(n_keys), min_size=1, max_size=3)))
    n_spans = max(table.n_spans for table in segments)
    units, edges = cut(segments, unit)
    assert len(edges) == len(segments) * n_spans + 1
    found = np.full((len(segments), n_keys), HIDDEN)
    for place in range(len(edges) - 1):
        for sample, start, stop in units[edges[place] : edges[place + 1]]:
            assert sample == place // n_spans
            assert 0 < stop - start <= unit
            assert (found[sample, start:stop] == HIDDEN).all()
            found[sample, start:stop] = place % n_spans
    for sample, table in enumerate(segments):
        expected = np.repeat(table.owners, np.subtract(table.stops, table.starts))
        assert np.array_equal(found[sample], expected)


@given(data=st.data(), unit=st.integers(1, 70))
@settings(deadline=None, derandomize=True, max_examples=150)
def test_units_are_cut_only_where_some_row_sees(data, unit):
    n_keys, n_rows = data.draw(st.integers(1, 60)), data.draw(st.integers(0, 4))
    segments = tuple(data.draw(st.lists(tables(n_keys), min_size=1, max_size=3)))
    ends = data.draw(st.lists(st.integers(0, n_keys), min_size=2 * n_rows * len(segments), max_size=2 * n_rows * 3))
    visible = np.sort(np.reshape(ends[: 2 * n_rows * len(segments)], (len(segments), n_rows, 2)), axis=-1).astype(int)
    everything, _ = cut(segments, 1)
    units, edges = cut(narrowed(segments, seen_columns(visible)), unit)
    assert len(edges) == len(segments) * max(table.n_spans for table in segments) + 1
    found = {(sample, key) for sample, start, stop in units for key in range(start, stop)}
    expected = set()
    for sample, rows in enumerate(visible):
        columns = [column for lo, hi in rows if lo < hi for column in (lo, hi - 1)]
        between = range(min(columns), max(columns) + 1) if columns else ()
        expected |= {(sample, key) for owner_sample, key, _ in everything if owner_sample == sample and key in between}
    assert found == expected


def same_tensors(first, second):
    return all(one is other for one, other in zip(vars(first).values(), vars(second).values(), strict=True))


def test_a_table_is_uploaded_once():
    bounds = [(0, 5), (5, 40)]
    first = unit_table((Segments.from_bounds(bounds, 40),), 16, torch.device("cpu"))
    second = unit_table((Segments.from_bounds(bounds, 40),), 16, torch.device("cpu"))
    assert same_tensors(first, second)


def test_a_layer_may_use_a_hundred_tables():
    def layer():
        every = [Segments.from_bounds([(0, start), (start, 200)], 200) for start in range(100)]
        return [unit_table((segments,), 16, torch.device("cpu")) for segments in every]

    assert all(same_tensors(first, second) for first, second in zip(layer(), layer(), strict=True))
