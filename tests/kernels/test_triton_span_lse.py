"""The Triton kernels against the float64 definition; in Triton's interpreter where there is no GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from kernel_cases import DEVICE, assert_lse_close, count_products, cut_evenly, draw, feature_table, queries_and_keys

from attnprobe_kernels import Segments, span_lse
from attnprobe_kernels.rows import check_rows
from attnprobe_kernels.variants import TARGETS

pytestmark = [
    pytest.mark.usefixtures("triton_ready", "poisoned"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning"),
]


def compare(q, k, segments, **features):
    got = span_lse(q, k, segments, backend="triton", **features)
    assert_lse_close(got, span_lse(q, k, segments, backend="naive", **features), q.dtype)
    return got


@pytest.mark.parametrize("n_spans", [1, 2, 10])
@pytest.mark.parametrize(("n_keys", "n_rows"), [(1, 1), (63, 3), (111, 17), (517, 1), (517, 17)])
def test_awkward_sizes(n_keys, n_rows, n_spans):
    q, k = queries_and_keys(n_keys=n_keys, n_rows=n_rows, head_dim=32)
    compare(q, k, cut_evenly(n_keys, n_spans))


def test_300_spans_of_a_key_or_two():
    q, k = queries_and_keys(heads=(2, 1), n_keys=517, n_rows=3, head_dim=16)
    compare(q, k, cut_evenly(517, 300))


def test_a_long_prompt():
    q, k = queries_and_keys(heads=(2, 1), n_keys=4099, n_rows=5)
    compare(q, k, Segments.from_bounds([(0, 1), (1, 64), (64, 3000), (3000, 4099)], 4099))


@pytest.mark.parametrize("feature", list(feature_table(2, 6, 5, 131)))
def test_one_feature(feature):
    q, k = queries_and_keys(2, (6, 2), n_rows=5, n_keys=131, head_dim=32)
    compare(q, k, cut_evenly(131, 4), **feature_table(2, 6, 5, 131)[feature])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("head_dim", [16, 24, 64, 80, 96, 128, 192, 256, 512])
def test_head_dimensions_and_dtypes(head_dim, dtype):
    q, k = queries_and_keys(heads=(2, 1), n_rows=2, n_keys=75, head_dim=head_dim, dtype=dtype)
    compare(q, k, cut_evenly(75, 3))


@pytest.mark.parametrize(
    "heads", [(1, 1), (4, 4), (6, 1), (8, 2), (3, 3)], ids=lambda heads: f"{heads[0]}over{heads[1]}"
)
def test_grouped_heads(heads):
    q, k = queries_and_keys(heads=heads, n_rows=7, n_keys=70, head_dim=16)
    compare(q, k, cut_evenly(70, 3), alibi_slopes=torch.linspace(0.0, 0.3, heads[0], device=DEVICE))


def test_as_many_rows_as_keys():
    q, k = queries_and_keys(heads=(2, 1), n_rows=150, n_keys=150, head_dim=16)
    compare(q, k, cut_evenly(150, 3))


def test_samples_with_segments_of_their_own():
    q, k = queries_and_keys(3, (2, 1), n_keys=90, head_dim=16)
    tables = [
        cut_evenly(90, 5),
        Segments.from_spans([[(0, 10), (50, 90)], [(10, 50)]], 90),
        Segments.from_spans([[], [(7, 40), (41, 90)], [(40, 41)]], 90, hidden=[(0, 7)]),
    ]
    visible = np.array([[[0, 90]] * 3, [[5, 80]] * 3, [[7, 88], [7, 89], [7, 90]]], dtype=np.int32)
    got = compare(q, k, tables, visible=visible)
    assert torch.isinf(got[1, :, :, 2:]).all()


def test_a_span_of_many_segments_and_spans_of_one_token():
    many = [(i, i + 1) for i in range(0, 60, 2)]
    rest = [[(i, i + 1)] for i in range(1, 60, 2)]
    q, k = queries_and_keys(heads=(2, 1), n_rows=2, n_keys=60, head_dim=16)
    compare(q, k, Segments.from_spans([many, *rest], 60))


def test_a_span_longer_than_one_step_of_the_merge(monkeypatch):
    from attnprobe_kernels import triton_backend

    monkeypatch.setattr(triton_backend, "choose_unit", lambda *_: 4)
    q, k = queries_and_keys(heads=(1, 1), n_rows=3, n_keys=301, head_dim=16)
    compare(q, k, Segments.from_bounds([(0, 2), (2, 2), (2, 301)], 301))


def test_an_empty_document_is_minus_infinity():
    q, k = queries_and_keys(n_keys=40)
    got = compare(q, k, Segments.from_bounds([(0, 10), (10, 10), (10, 40)], 40))
    assert torch.isneginf(got[..., 1]).all()


def test_hidden_keys_have_no_weight_even_when_they_hold_nan():
    q, k = queries_and_keys(n_keys=40)
    k[:, :, 25:] = float("nan")
    visible = np.broadcast_to(np.array([3, 25], dtype=np.int32), (1, 3, 2))
    got = span_lse(q, k, cut_evenly(40, 4), visible=visible, backend="triton")
    expected = span_lse(
        q,
        k[:, :, :25],
        Segments.from_bounds([(0, 10), (10, 20), (20, 25), (25, 25)], 25),
        visible=visible,
        backend="naive",
    )
    assert_lse_close(got, expected, torch.float32)


@pytest.mark.parametrize("offset", [-1.0e4, 1.0e4], ids=["far_below", "far_above"])
def test_no_overflow(offset):
    q, k = queries_and_keys(n_keys=80)
    bias = draw((1, 1, 80), 3) + offset
    got = span_lse(q, k, cut_evenly(80, 3), key_bias=bias, backend="triton")
    expected = span_lse(q, k, cut_evenly(80, 3), key_bias=bias, backend="naive")
    assert (got - expected).abs().max() <= 3e-3  # three units in the last place of a float32 near 1e4


def test_bias_of_minus_infinity_hides_a_key():
    q, k = queries_and_keys(n_keys=80)
    bias = draw((1, 1, 80), 3)
    bias[..., 20:60] = float("-inf")
    got = compare(q, k, Segments.from_bounds([(0, 25), (25, 55), (55, 80)], 80), key_bias=bias)
    assert torch.isneginf(got[..., 1]).all()


def test_strides_are_taken_as_they_are(monkeypatch):
    n_keys, n_rows, head_dim = 77, 3, 24
    keys_last = draw((2, 2, head_dim, n_keys), 1).transpose(2, 3)
    tokens_first = draw((n_rows, 2, 4, head_dim), 2).permute(1, 2, 0, 3)
    bias = draw((2, n_keys, 4), 3).transpose(1, 2)
    monkeypatch.setattr(torch.Tensor, "contiguous", _refuse_big_copies(torch.Tensor.contiguous))
    compare(tokens_first, keys_last, cut_evenly(n_keys, 3), key_bias=bias)
    compare(tokens_first, keys_last[:, :1].expand(2, 2, n_keys, head_dim), cut_evenly(n_keys, 3))
    compare(tokens_first[..., ::2], keys_last[..., ::2], cut_evenly(n_keys, 3))
    compare(draw((1, 1, 80, 3), 4).transpose(2, 3), draw((1, 1, 80, n_keys), 5).transpose(2, 3), cut_evenly(n_keys, 3))


def _refuse_big_copies(original):
    def contiguous(self, *args, **kwargs):
        assert self.is_contiguous() or self.numel() < 64, f"a copy of {tuple(self.shape)}"
        return original(self, *args, **kwargs)

    return contiguous


def test_the_same_call_gives_the_same_bits():
    q, k = queries_and_keys(n_rows=9, n_keys=300, dtype=torch.bfloat16)
    first = span_lse(q, k, cut_evenly(300, 7), backend="triton")
    assert all(torch.equal(first, span_lse(q, k, cut_evenly(300, 7), backend="triton")) for _ in range(2))


def test_unit_length_changes_no_number(monkeypatch):
    from attnprobe_kernels import triton_backend

    q, k = queries_and_keys(n_rows=3, n_keys=517, head_dim=16)
    for unit in (32, 200, 1024):
        monkeypatch.setattr(triton_backend, "choose_unit", lambda *_, unit=unit: unit)
        compare(q, k, cut_evenly(517, 3), window=150)


def test_no_rows_and_no_spans_with_keys():
    q, k = queries_and_keys(n_rows=0, n_keys=20)
    assert span_lse(q, k, cut_evenly(20, 3), backend="triton").shape == (1, 4, 0, 3)
    q, k = queries_and_keys(n_rows=1, n_keys=20)
    hidden = Segments.from_spans([[], []], 20, hidden=[(0, 20)])
    assert torch.isneginf(span_lse(q, k, hidden, visible=np.zeros((1, 1, 2), np.int32), backend="triton")).all()


def test_units_that_no_row_sees_are_skipped(monkeypatch):
    q, k = torch.randn(1, 2, 4, 16), torch.randn(1, 1, 2048, 16)
    segments = Segments.from_bounds([(start, start + 256) for start in range(0, 2048, 256)], n_keys=2048)

    def products(visible):
        table = torch.tensor([[visible] * 4], dtype=torch.int32)
        return count_products(monkeypatch, lambda: span_lse(q, k, segments, visible=table, backend="triton"))

    everything = products([0, 2048])
    assert products([0, 0]) == 0
    assert products([2040, 2048]) <= everything / 8
    assert products([0, 1024]) <= everything * 0.6


@pytest.mark.parametrize("window", [1024, 8192, None])
def test_every_program_of_a_single_row_has_keys_that_it_sees(monkeypatch, window):
    from attnprobe_kernels import triton_backend

    n_keys, n_kv_heads = 131072, 8
    device = TARGETS["sm_90"].device
    monkeypatch.setattr(triton_backend, "device_of", lambda _: device)
    q = torch.zeros(1, 32, 1, 128, dtype=torch.bfloat16)
    k = q[:, :n_kv_heads].expand(1, n_kv_heads, n_keys, 128)
    args = check_rows(q, k, window=window)
    tiles, table = triton_backend._plan(args, [cut_evenly(n_keys, 10)], top=False)
    starts, stops = table.units[:, 1], table.units[:, 2]
    seen = n_keys if window is None else window
    assert (stops > n_keys - seen).all()
    assert (stops - starts).sum() == seen
    # As many programs as the device holds at a time, or as short as they get.
    assert len(starts) * n_kv_heads >= 0.9 * min(2 * device.processors, seen // tiles.keys * n_kv_heads)


def test_intervals_on_the_device_are_not_looked_at(monkeypatch):
    from attnprobe_kernels import triton_backend

    q, k = queries_and_keys(n_rows=1, n_keys=300, head_dim=16)
    on_device = torch.zeros((1, 1, 2), dtype=torch.int32, device="meta")
    args = check_rows(q, k, visible=np.array([[[290, 300]]]))
    _, narrow = triton_backend._plan(args, [cut_evenly(300, 2)], top=False)
    _, whole = triton_backend._plan(replace(args, visible=on_device), [cut_evenly(300, 2)], top=False)
    assert (narrow.units[:, 2] - narrow.units[:, 1]).sum() == 10
    assert (whole.units[:, 2] - whole.units[:, 1]).sum() == 300


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_sinks_of_any_dtype_and_stride(dtype):
    q, k = queries_and_keys(2, (4, 2), n_rows=3, n_keys=70, head_dim=16)
    sinks = draw((8,), 5, dtype)[::2]
    visible = np.array([[[0, 70], [5, 5], [60, 70]]] * 2, dtype=np.int32)
    got = compare(q, k, cut_evenly(70, 3), sinks=sinks, visible=visible)
    assert torch.equal(got[..., -1], sinks.float()[None, :, None].expand(2, 4, 3))


def test_a_sink_without_any_span():
    q, k = queries_and_keys(n_rows=2, n_keys=20)
    nothing = Segments.from_spans([], 20, hidden=[(0, 20)])
    compare(q, k, nothing, sinks=draw((4,), 5), visible=np.zeros((1, 2, 2), np.int32))
