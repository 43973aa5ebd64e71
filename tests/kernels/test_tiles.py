from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import cut_evenly

from attnprobe_kernels import Segments
from attnprobe_kernels.tiles import (
    MAP_WORKSPACE_BYTES,
    MAX_HEAD_DIM_WIDE,
    choose_unit,
    column_tiles,
    device_of,
    loaded_tiles,
    map_shares,
    map_tiles,
    span_tiles,
    split_head_dim,
)
from attnprobe_kernels.units import cut
from attnprobe_kernels.variants import DTYPES, FACTORS, HEAD_DIMS, KERNELS, TARGETS, cover, variants

H200 = TARGETS["sm_90"].device


@pytest.mark.parametrize(
    ("head_dim", "parts"),
    [(8, (16, 0)), (16, (16, 0)), (24, (32, 0)), (40, (32, 16)), (64, (64, 0)), (80, (64, 16)), (96, (64, 32)),
     (112, (128, 0)),
     (128, (128, 0)), (160, (128, 32)), (192, (128, 64)), (256, (256, 0)), (512, (512, 0))],
)  # fmt: skip
def test_head_dimensions_in_two_parts(head_dim, parts):
    assert split_head_dim(head_dim) == parts


@given(head_dim=st.integers(1, 512))
@settings(deadline=None, derandomize=True, max_examples=512)
def test_parts_hold_the_head_dimension_without_much_padding(head_dim):
    first, second = split_head_dim(head_dim)
    assert first + second >= head_dim
    assert all(part & (part - 1) == 0 and part != 1 for part in (first, second))
    assert first + second < max(1.5 * head_dim, 32 + 1)


def test_head_dimensions_beyond_the_limit():
    with pytest.raises(ValueError, match="head dimension 576 is outside 1 to 512"):
        split_head_dim(576)


@pytest.mark.parametrize("n_rows", [1, 32, 256])
@pytest.mark.parametrize("n_keys", [512, 4096, 32768, 131072])
def test_programs_fill_the_device(n_keys, n_rows):
    group, n_kv_heads = 4, 8
    tiles = span_tiles(H200, torch.bfloat16, 128, n_rows * group)
    row_programs = -(-n_rows * group // tiles.rows) * n_kv_heads
    segments = (cut_evenly(n_keys, 10),)
    unit = choose_unit(H200, segments, tiles, row_programs)
    programs = len(cut(segments, unit)[0]) * row_programs
    shortest_units = len(cut(segments, tiles.keys)[0]) * row_programs
    assert programs >= min(2 * H200.processors, shortest_units)


def test_units_are_long_where_rows_fill_the_device():
    tiles = span_tiles(H200, torch.bfloat16, 128, 4096 * 4)
    assert choose_unit(H200, (cut_evenly(131072, 10),), tiles, 1024) >= 2048


@pytest.mark.parametrize("n_heads", [1, 7, 12, 16, 28, 32, 40, 64, 128, 1000])
@pytest.mark.parametrize("n_rows", [128, 4096, 131072])
def test_programs_of_the_map_fill_the_device_in_a_bounded_workspace(n_heads, n_rows):
    n_tiles, n_spans = n_rows // 128, 43
    shares = map_shares(H200, 128, n_heads, n_tiles, n_spans)
    programs, slots = n_heads * shares, 2 * H200.processors
    assert 1 <= shares <= n_tiles
    assert programs * n_spans * 128 * 4 <= max(MAP_WORKSPACE_BYTES, 4 * n_heads * n_spans * 128)
    if n_heads * n_tiles >= 4 * slots:
        assert programs >= 0.9 * slots * -(-programs // slots)


def test_very_many_spans_mean_fewer_programs():
    assert map_shares(H200, 128, 32, 1024, 3000) == 2
    assert map_shares(H200, 128, 32, 1024, 10**6) == 1


def test_two_programs_of_the_map_and_of_the_heaviest_keys_share_a_processor_on_hopper():
    for choose in (loaded_tiles, map_tiles):
        tiles = choose(H200, torch.bfloat16, 128, 4096)
        assert (tiles.rows, tiles.keys, tiles.registers) == (128, 64, 128)
    assert loaded_tiles(H200, torch.bfloat16, 128, 4096, per_head_bias=True).registers == 255
    assert loaded_tiles(H200, torch.float32, 128, 4096).registers == 255


def test_maps_with_a_bias_have_all_registers_on_hopper():
    for biased, registers in ((False, 128), (True, 255)):
        assert map_tiles(H200, torch.bfloat16, 96, 4096, biased=biased).registers == registers


@pytest.mark.parametrize("n_rows", [1, 9, 1024])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_consumer_blackwell_has_the_tensor_cores_of_ada(monkeypatch, head_dim, n_rows):
    ada = TARGETS["sm_89"].device
    figures = SimpleNamespace(
        major=12,
        multi_processor_count=ada.processors,
        shared_memory_per_block_optin=ada.shared,
        shared_memory_per_multiprocessor=ada.shared_total,
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: figures)
    monkeypatch.setattr(torch.version, "hip", None)
    device = device_of.__wrapped__(torch.device("cuda:0"))
    for choose in (span_tiles, loaded_tiles, map_tiles, column_tiles):
        assert choose(device, torch.bfloat16, head_dim, n_rows) == choose(ada, torch.bfloat16, head_dim, n_rows)


def test_one_program_where_there_is_one_processor():
    tiles = span_tiles(H200, torch.float32, 64, 4)
    assert choose_unit(TARGETS["sm_90"].device, (Segments.from_bounds([(0, 1)], 1),), tiles, 1) == tiles.keys


@given(data=st.data())
@settings(deadline=None, derandomize=True, max_examples=100)
def test_a_cover_holds_every_pair(data):
    factors = {f"f{i}": tuple(range(data.draw(st.integers(1, 4)))) for i in range(data.draw(st.integers(2, 5)))}
    rows = list(cover(factors))
    names = list(factors)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            found = {(row[first], row[second]) for row in rows}
            assert len(found) == len(factors[first]) * len(factors[second])


def test_variants_hold_what_the_kernels_claim():
    chosen = variants()
    assert 80 <= len(chosen) <= 140
    assert len(set(chosen)) == len(chosen)
    assert {v.head_dim for v in chosen} == set(HEAD_DIMS)
    assert {(v.target, v.dtype) for v in chosen} == {(t, d) for t in TARGETS for d in DTYPES}
    pairs = {(v.features, v.target) for v in chosen}
    assert len(pairs) == len(FACTORS["features"]) * len(TARGETS)
    assert {v.target for v in chosen if v.kernel == "wide_map"} == set(TARGETS)
    assert len(variants(exhaustive=True)) > 3 * len(chosen)


def test_the_cover_of_one_target_holds_every_pair_on_it():
    chosen = [vars(v) for v in variants(["sm_90"])]
    assert {v["target"] for v in chosen} == {"sm_90"}
    for first, second in itertools.combinations([name for name in FACTORS if name != "target"], 2):
        pairs = {(v[first], v[second]) for v in chosen if v["kernel"] in KERNELS}
        refused = {("wide_map", head_dim) for head_dim in HEAD_DIMS if head_dim > MAX_HEAD_DIM_WIDE}
        assert pairs == set(itertools.product(FACTORS[first], FACTORS[second])) - refused
