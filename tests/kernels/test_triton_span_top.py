"""The heaviest key of every span from the Triton kernels, against dense float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernel_cases import DEVICE, compare_top, cut_evenly, draw, feature_table, queries_and_keys

from attnprobe_kernels import Segments, span_lse, span_top

pytestmark = [
    pytest.mark.usefixtures("triton_ready", "poisoned"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning"),
]


def compare(q, k, segments, **features):
    return compare_top("triton", q, k, segments, **features)


@pytest.mark.parametrize("n_spans", [1, 10])
@pytest.mark.parametrize(("n_keys", "n_rows"), [(1, 1), (63, 3), (111, 17), (517, 1)])
def test_awkward_sizes(n_keys, n_rows, n_spans):
    q, k = queries_and_keys(n_keys=n_keys, n_rows=n_rows, head_dim=32)
    compare(q, k, cut_evenly(n_keys, n_spans))


@pytest.mark.parametrize("feature", list(feature_table(2, 6, 5, 131)))
def test_one_feature(feature):
    q, k = queries_and_keys(2, (6, 2), n_rows=5, n_keys=131, head_dim=32)
    compare(q, k, cut_evenly(131, 4), **feature_table(2, 6, 5, 131)[feature])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("head_dim", [24, 80, 128, 192, 512])
def test_head_dimensions_and_dtypes(head_dim, dtype):
    q, k = queries_and_keys(heads=(2, 1), n_rows=2, n_keys=75, head_dim=head_dim, dtype=dtype)
    compare(q, k, cut_evenly(75, 3))


@pytest.mark.parametrize("heads", [(4, 4), (6, 1), (3, 3)], ids=lambda heads: f"{heads[0]}over{heads[1]}")
def test_grouped_heads(heads):
    q, k = queries_and_keys(heads=heads, n_rows=7, n_keys=70, head_dim=16)
    compare(q, k, cut_evenly(70, 3), alibi_slopes=torch.linspace(0.0, 0.3, heads[0], device=DEVICE))


def test_samples_with_segments_of_their_own_and_an_empty_document():
    q, k = queries_and_keys(2, (2, 1), n_keys=90, head_dim=16)
    tables = [
        Segments.from_spans([[(0, 10), (50, 90)], [], [(10, 50)]], 90),
        Segments.from_spans([[], [(7, 40), (41, 90)], [(40, 41)]], 90, hidden=[(0, 7)]),
    ]
    visible = np.array([[[0, 90]] * 3, [[7, 88], [7, 7], [7, 90]]], dtype=np.int32)
    found = compare(q, k, tables, visible=visible)
    assert (found.top_key[0, :, :, 1] == -1).all()
    assert (found.top_key[1, :, 1] == -1).all()


@pytest.mark.parametrize("unit", [3, 32, 200, 1024])
def test_ties_go_to_the_lowest_column_over_tiles_and_units(monkeypatch, unit):
    from attnprobe_kernels import triton_backend

    monkeypatch.setattr(triton_backend, "choose_unit", lambda *_: unit)
    q, k = queries_and_keys(heads=(2, 1), n_rows=3, n_keys=517, head_dim=16)
    q, k[:] = q.round(), k[:, :, :1].round()  # every key is the same, and its product exact in any order of summing
    segments = Segments.from_spans([[(0, 40), (300, 517)], [(40, 300)]], 517)
    visible = np.array([[[0, 517], [39, 517], [45, 300]]], dtype=np.int32)
    found = span_top(q, k, segments, visible=visible, backend="triton")
    wanted = torch.tensor([[0, 40], [39, 40], [-1, 45]], dtype=torch.int32, device=DEVICE)
    assert torch.equal(found.top_key, wanted.expand(1, 2, 3, 2))
    visible[:] = 0, 517  # then a ragged end is taken before the tiles without masks
    found = span_top(q, k, segments, visible=visible, backend="triton")
    assert torch.equal(found.top_key, torch.tensor([0, 40], dtype=torch.int32, device=DEVICE).expand(1, 2, 3, 2))


def test_the_heaviest_key_may_be_anywhere():
    q, k = queries_and_keys(heads=(1, 1), n_rows=1, n_keys=300, head_dim=16)
    for column in (0, 31, 32, 127, 128, 255, 256, 299):
        heavy = k.clone()
        heavy[0, 0, column] = 10 * q[0, 0, 0]
        found = compare(q, heavy, cut_evenly(300, 1))
        assert found.top_key.item() == column


def test_hidden_keys_are_never_the_heaviest_even_when_they_hold_nan():
    q, k = queries_and_keys(n_keys=40)
    k[:, :, 25:] = float("nan")
    k[:, :, :3] = 100.0
    visible = np.broadcast_to(np.array([3, 25], dtype=np.int32), (1, 3, 2))
    found = span_top(q, k, cut_evenly(40, 4), visible=visible, backend="triton")
    assert torch.isfinite(found.top_logit[..., :3]).all()
    assert ((found.top_key[..., :3] >= 3) & (found.top_key[..., :3] < 25)).all()
    assert (found.top_key[..., 3] == -1).all()


def test_sums_are_those_of_span_lse_and_bits_are_the_same_again():
    q, k = queries_and_keys(n_rows=9, n_keys=300, dtype=torch.bfloat16)
    first = span_top(q, k, cut_evenly(300, 7), backend="triton")
    second = span_top(q, k, cut_evenly(300, 7), backend="triton")
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    torch.testing.assert_close(first.lse, span_lse(q, k, cut_evenly(300, 7), backend="triton"), atol=1e-5, rtol=1e-6)
    # The heaviest key alone never outweighs its span.
    assert (first.top_logit <= first.lse + 1e-5).all()


def test_strides_are_taken_as_they_are():
    keys_last = draw((2, 2, 24, 77), 1).transpose(2, 3)
    tokens_first = draw((3, 2, 4, 24), 2).permute(1, 2, 0, 3)
    compare(tokens_first, keys_last, cut_evenly(77, 3), key_bias=draw((2, 77, 4), 3).transpose(1, 2))
