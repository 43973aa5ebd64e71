from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import compare_all, compare_random, cut_evenly, draw, feature_table, queries_and_keys

from attnprobe_kernels import Segments, chunked


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("feature", list(feature_table(2, 6, 5, 131)))
def test_one_feature(feature, dtype):
    q, k = queries_and_keys(2, (6, 2), n_rows=5, n_keys=131, head_dim=24, dtype=dtype)
    compare_all("chunked", q, k, cut_evenly(131, 4), **feature_table(2, 6, 5, 131)[feature])


@pytest.mark.parametrize("mask_heads", [1, 4])
@pytest.mark.parametrize("kind", ["bool", "float32", "bfloat16"])
@pytest.mark.parametrize("beside_intervals", [False, True])
def test_masks(kind, mask_heads, beside_intervals):
    q, k = queries_and_keys(2, n_rows=6, n_keys=70)
    seen = draw((2, mask_heads, 6, 70), 9) > 0
    seen[0, :, 2] = False  # a row that sees nothing
    mask = seen
    if kind != "bool":
        dtype = getattr(torch, kind)
        mask = torch.where(seen, draw((2, mask_heads, 6, 70), 10), torch.finfo(dtype).min).to(dtype)
    features = {"mask": mask}
    if beside_intervals:
        features["visible"] = np.broadcast_to(np.array([5, 60], dtype=np.int32), (2, 6, 2))
    compare_all("chunked", q, k, cut_evenly(70, 3), **features)


@pytest.mark.parametrize("n_keys", [517, 512, 513])  # 513: the last block holds one key
def test_many_blocks_of_keys(monkeypatch, n_keys):
    monkeypatch.setattr(chunked, "BLOCK_BYTES", 1)  # 64 keys a block
    q, k = queries_and_keys(2, n_rows=3, n_keys=n_keys)
    compare_all("chunked", q, k, [cut_evenly(n_keys, 10), cut_evenly(n_keys, 300)], window=200)


def test_strided_inputs():
    k = draw((2, 2, 24, 77), 1).transpose(2, 3)
    q = draw((3, 2, 4, 24), 2).permute(1, 2, 0, 3)
    compare_all("chunked", q, k, cut_evenly(77, 3), key_bias=draw((2, 77, 4), 3).transpose(1, 2))


def test_samples_with_segments_of_their_own():
    q, k = queries_and_keys(2, n_keys=90)
    tables = [
        Segments.from_spans([[(0, 10), (50, 90)], [(10, 50)], []], 90),
        Segments.from_spans([[(7, 90)]], 90, hidden=[(0, 7)]),
    ]
    visible = np.array([[[0, 90]] * 3, [[7, 88], [0, 0], [7, 90]]], dtype=np.int32)
    compare_all("chunked", q, k, tables, visible=visible)


def test_blocks_of_many_rows_are_taken_in_parts(monkeypatch):
    monkeypatch.setattr(chunked, "MAX_ROWS", 7)
    q, k = queries_and_keys(2, n_rows=50, n_keys=60)
    compare_all("chunked", q, k, cut_evenly(60, 4), block=20, sinks=draw((4,), 3))


def test_pieces_of_a_span_are_added_up_now_and_then(monkeypatch):
    monkeypatch.setattr(chunked, "BLOCK_BYTES", 1)
    monkeypatch.setattr(chunked, "MAX_PIECES", 3)
    q, k = queries_and_keys(2, n_rows=3, n_keys=1000)
    compare_all("chunked", q, k, cut_evenly(1000, 2))


@given(data=st.data())
@settings(deadline=None, derandomize=True, max_examples=60)
def test_random_combinations(data):
    compare_random("chunked", data, largest=200)
