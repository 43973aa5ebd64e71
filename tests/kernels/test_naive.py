"""The definition itself, against sums written out by hand and torch's own attention."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from kernel_cases import DEVICE, cut_evenly, draw, queries_and_keys

from attnprobe_kernels import Segments, column_mass, prefill_map, span_lse, span_top


def test_logits_written_out():
    q = torch.tensor([[[[1.0, 2.0]]]], device=DEVICE)
    k = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [3.0, -1.0]]]], device=DEVICE)
    z = [1.0, 2.0, 1.0]
    lse = span_lse(q, k, Segments.from_bounds([(0, 1), (1, 3)], 3), scale=1.0, backend="naive")
    assert lse.flatten().tolist() == pytest.approx([z[0], math.log(math.exp(z[1]) + math.exp(z[2]))])
    lse = span_lse(q, k, Segments.from_bounds([(0, 3)], 3), scale=1.0, softcap=1.5, backend="naive")
    assert lse.item() == pytest.approx(math.log(sum(math.exp(1.5 * math.tanh(x / 1.5)) for x in z)))
    slopes = torch.tensor([0.25], device=DEVICE)
    lse = span_lse(q, k, Segments.from_bounds([(0, 3)], 3), scale=1.0, alibi_slopes=slopes, backend="naive")
    assert lse.item() == pytest.approx(math.log(sum(math.exp(x + 0.25 * (j - 2)) for j, x in enumerate(z))))


@pytest.mark.parametrize("features", [{}, {"window": 20}, {"q_start": 10}], ids=str)
def test_span_mass_is_what_attention_gives_to_one_hot_values(features):
    q, k = queries_and_keys(2, (6, 3), n_rows=5, n_keys=60, head_dim=16)
    segments = cut_evenly(60, 4)
    row = torch.arange(5, device=DEVICE)[:, None] + features.get("q_start", 55)
    column = torch.arange(60, device=DEVICE)[None, :]
    seen = (column <= row) & (column > row - features.get("window", 10**6))
    one_hot = torch.zeros(60, 4, dtype=torch.float64, device=DEVICE)
    for span, (start, stop) in enumerate(zip(segments.starts, segments.stops, strict=True)):
        one_hot[start:stop, span] = 1.0
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double(),
        k.double().repeat_interleave(2, dim=1),
        one_hot.expand(2, 6, 60, 4),
        attn_mask=seen,
    )
    lse = span_lse(q, k, segments, backend="naive", **features)
    torch.testing.assert_close(torch.softmax(lse, -1), expected)
    per_key = column_mass(q, k, torch.logsumexp(lse, -1).float(), backend="naive", **features)
    spans = torch.stack(
        [
            part.sum(-1)
            for part in per_key.split([b - a for a, b in zip(segments.starts, segments.stops, strict=True)], dim=-1)
        ],
        dim=-1,
    )
    torch.testing.assert_close(spans, expected.mean(dim=2), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(
        prefill_map(q, k, segments, block=5, backend="naive", **features)[:, :, 0], expected.mean(dim=2)
    )


def test_the_sink_is_one_more_span():
    q, k = queries_and_keys(n_keys=30)
    sinks = draw((4,), 3)
    lse = span_lse(q, k, cut_evenly(30, 2), sinks=sinks, backend="naive")
    assert torch.equal(lse[..., 2], sinks.double()[None, :, None].expand(1, 4, 3))
    mass = prefill_map(q, k, cut_evenly(30, 2), block=3, sinks=sinks, backend="naive")
    torch.testing.assert_close(mass[:, :, 0], torch.softmax(lse, -1).mean(2))


def test_a_row_that_sees_nothing():
    q, k = queries_and_keys(n_rows=2, n_keys=30)
    visible = np.array([[[0, 0], [0, 30]]], dtype=np.int32)
    lse = span_lse(q, k, cut_evenly(30, 2), visible=visible, backend="naive")
    assert torch.isneginf(lse[:, :, 0]).all()
    mass = column_mass(q, k, torch.logsumexp(lse, -1).float(), visible=visible, backend="naive")
    torch.testing.assert_close(mass.sum(-1), torch.full_like(mass[..., 0], 0.5), atol=1e-6, rtol=0)
    mass = prefill_map(q, k, cut_evenly(30, 2), block=1, visible=visible, backend="naive")
    assert mass.sum(-1)[0, 0].tolist() == pytest.approx([0.0, 1.0])


def test_float_masks_add_and_hide():
    q, k = queries_and_keys(n_rows=1, n_keys=4)
    mask = torch.tensor([0.5, torch.finfo(torch.float32).min, 0.0, float("-inf")], device=DEVICE)[None, None, None]
    each = Segments.from_bounds([(0, 1), (1, 2), (2, 3), (3, 4)], 4)
    lse = span_lse(q, k, each, mask=mask, backend="naive")
    plain = span_lse(q, k, each, visible=np.array([[[0, 4]]], np.int32), backend="naive")
    torch.testing.assert_close(lse[..., 0], plain[..., 0] + 0.5)
    assert torch.isneginf(lse[..., [1, 3]]).all()


@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_the_heaviest_key_written_out(backend):
    q = torch.tensor([[[[1.0, 2.0]]]], device=DEVICE)
    k = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [3.0, -1.0], [2.0, 0.0], [0.0, 1.0]]]], device=DEVICE)
    z = [1.0, 2.0, 1.0, 2.0, 2.0]
    segments = Segments.from_spans([[(0, 1), (2, 3)], [(1, 2), (3, 5)], []], 5)
    found = span_top(q, k, segments, scale=1.0, sinks=torch.tensor([0.75], device=DEVICE), backend=backend)
    assert found.top_key.flatten().tolist() == [0, 1, -1, -1]  # the lowest column on ties
    assert found.top_logit.flatten().tolist() == [1.0, 2.0, float("-inf"), 0.75]
    lse = [math.log(2 * math.exp(1.0)), math.log(3 * math.exp(2.0)), float("-inf"), 0.75]
    assert found.lse.flatten().tolist() == pytest.approx(lse)
    visible = np.array([[[2, 5]]], dtype=np.int32)
    found = span_top(q, k, segments, scale=1.0, visible=visible, backend=backend)
    assert found.top_key.flatten().tolist() == [2, 3, -1]
    bias = torch.tensor([[[0.0, float("-inf"), 0.0, float("-inf"), float("-inf")]]], device=DEVICE)
    found = span_top(q, k, segments, scale=1.0, key_bias=bias, backend=backend)
    assert found.top_key.flatten().tolist() == [0, -1, -1]  # a key of weight zero is no key
    assert z[int(found.top_key[0, 0, 0, 0])] == 1.0
