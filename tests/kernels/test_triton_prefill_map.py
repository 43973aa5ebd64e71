from __future__ import annotations

import pytest
import torch
from kernel_cases import cut_evenly, feature_table, queries_and_keys

from attnprobe_kernels import Segments, prefill_map

pytestmark = [
    pytest.mark.usefixtures("triton_ready", "poisoned"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning"),
]


def compare(q, k, segments, block, **features):
    got = prefill_map(q, k, segments, block=block, backend="triton", **features)
    expected = prefill_map(q, k, segments, block=block, backend="naive", **features)
    assert got.dtype == torch.float32
    assert got.shape == expected.shape
    assert (got - expected).abs().max() <= 1e-5
    return got


@pytest.mark.parametrize(("n_keys", "block"), [(1, 1), (63, 16), (111, 111), (200, 64), (70, 1000), (40, 7)])
def test_every_row_of_a_prompt(n_keys, block):
    q, k = queries_and_keys(heads=(2, 1), n_rows=n_keys, n_keys=n_keys, head_dim=16)
    mass = compare(q, k, cut_evenly(n_keys, 4), block)
    torch.testing.assert_close(mass.sum(-1), torch.ones_like(mass[..., 0]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("feature", list(feature_table(2, 6, 21, 60)))
def test_one_feature(feature):
    q, k = queries_and_keys(2, (6, 2), n_rows=21, n_keys=60, head_dim=16)
    compare(q, k, cut_evenly(60, 4), 8, **feature_table(2, 6, 21, 60)[feature])


def test_blocks_of_more_rows_than_one_program_takes():
    q, k = queries_and_keys(heads=(1, 1), n_rows=600, n_keys=600, head_dim=16, dtype=torch.float16)
    compare(q, k, cut_evenly(600, 2), 520)


def test_rows_in_chunks_of_bounded_memory(monkeypatch):
    from attnprobe_kernels import triton_backend

    monkeypatch.setattr(triton_backend, "WORKSPACE_BYTES", 4096)
    q, k = queries_and_keys(heads=(2, 1), n_rows=130, n_keys=130, head_dim=16)
    compare(q, k, cut_evenly(130, 6), 16)


def test_samples_with_segments_of_their_own_and_an_empty_document():
    q, k = queries_and_keys(2, (2, 1), n_rows=30, n_keys=30, head_dim=16)
    tables = [Segments.from_bounds([(0, 4), (4, 4), (4, 30)], 30), cut_evenly(30, 5)]
    mass = compare(q, k, tables, 8)
    assert (mass[0, :, :, 1] == 0).all()


def test_the_same_call_gives_the_same_bits():
    q, k = queries_and_keys(n_rows=50, n_keys=50, dtype=torch.bfloat16)
    first = prefill_map(q, k, cut_evenly(50, 3), block=16, backend="triton")
    assert torch.equal(first, prefill_map(q, k, cut_evenly(50, 3), block=16, backend="triton"))
