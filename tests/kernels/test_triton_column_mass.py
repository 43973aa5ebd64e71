from __future__ import annotations

import numpy as np
import pytest
import torch
from kernel_cases import DEVICE, cut_evenly, draw, feature_table, queries_and_keys

from attnprobe_kernels import column_mass, naive, span_lse
from attnprobe_kernels.rows import check_rows

pytestmark = [
    pytest.mark.usefixtures("triton_ready", "poisoned"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning"),
]


def compare(q, k, **features):
    """The total is over the keys alone; sinks are added by the operation itself."""
    sinks = features.pop("sinks", None)
    total = torch.logsumexp(span_lse(q, k, cut_evenly(k.shape[2], 1), backend="naive", **features), dim=-1).float()
    got = column_mass(q, k, total, sinks=sinks, backend="triton", **features)
    expected = column_mass(q, k, total, sinks=sinks, backend="naive", **features)
    assert got.dtype == torch.float32
    assert got.shape == expected.shape
    assert (got - expected).abs().max() <= 1e-5
    large = expected > 1e-6
    assert ((got - expected).abs()[large] <= 1e-4 * expected[large]).all()
    return got


@pytest.mark.parametrize(("n_keys", "n_rows"), [(1, 1), (63, 3), (111, 17), (517, 1), (301, 200)])
def test_awkward_sizes(n_keys, n_rows):
    q, k = queries_and_keys(heads=(2, 1), n_keys=n_keys, n_rows=n_rows, head_dim=32)
    mass = compare(q, k)
    torch.testing.assert_close(mass.sum(-1), torch.ones_like(mass[..., 0]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("feature", list(feature_table(2, 6, 5, 90)))
def test_one_feature(feature):
    q, k = queries_and_keys(2, (6, 2), n_rows=5, n_keys=90, head_dim=32, dtype=torch.bfloat16)
    compare(q, k, **feature_table(2, 6, 5, 90)[feature])


@pytest.mark.parametrize("head_dim", [16, 80, 128, 192, 512])
def test_head_dimensions(head_dim):
    q, k = queries_and_keys(heads=(2, 1), n_rows=2, n_keys=75, head_dim=head_dim, dtype=torch.float16)
    compare(q, k)


def test_intervals_in_no_order_leave_gaps_between_the_rows_that_see_a_tile():
    n_rows, n_keys = 300, 64
    visible = np.zeros((1, n_rows, 2), dtype=np.int32)
    visible[0, :, 1] = n_keys
    visible[0, 64:128, 1] = 0  # a whole block of rows that sees nothing, between blocks that see everything
    visible[0, 150, 0] = 10
    q, k = queries_and_keys(heads=(1, 1), n_rows=n_rows, n_keys=n_keys, head_dim=16)
    compare(q, k, visible=visible)


def test_rows_and_keys_that_are_hidden_may_hold_nan():
    q, k = queries_and_keys(heads=(1, 1), n_rows=200, n_keys=80, head_dim=16)
    visible = np.zeros((1, 200, 2), dtype=np.int32)
    visible[0, 70:, 0], visible[0, 70:, 1] = 5, 60
    q[:, :, :70], k[:, :, :5], k[:, :, 60:] = float("nan"), float("nan"), float("nan")
    mass = compare(q, k, visible=visible)
    assert (mass[..., :5] == 0).all()
    assert (mass[..., 60:] == 0).all()


def test_strides_are_taken_as_they_are():
    keys_last = draw((2, 2, 24, 77), 1).transpose(2, 3)
    compare(draw((3, 2, 4, 24), 2).permute(1, 2, 0, 3), keys_last, key_bias=draw((2, 77, 4), 3).transpose(1, 2))


def test_a_total_over_the_keys_alone_takes_the_sinks():
    q, k = queries_and_keys(n_keys=50)
    sinks = draw((4,), 5)
    keys_only = torch.logsumexp(span_lse(q, k, cut_evenly(50, 2), backend="naive"), -1).float()
    with_sink = torch.logsumexp(span_lse(q, k, cut_evenly(50, 2), sinks=sinks, backend="naive"), -1).float()
    got = column_mass(q, k, keys_only, sinks=sinks, backend="triton")
    torch.testing.assert_close(got, column_mass(q, k, with_sink, backend="naive").float(), atol=1e-6, rtol=1e-5)
    assert (got.sum(-1) < 0.999).any()


def test_the_same_call_gives_the_same_bits():
    q, k = queries_and_keys(n_rows=40, n_keys=100, dtype=torch.bfloat16)
    total = torch.zeros((1, 4, 40), device=DEVICE)
    first = column_mass(q, k, total, backend="triton")
    assert torch.equal(first, column_mass(q, k, total, backend="triton"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_total_is_taken_as_it_lies_in_memory(monkeypatch, dtype):
    q, k = queries_and_keys(2, (4, 2), n_rows=6, n_keys=70, head_dim=16)
    total = torch.logsumexp(span_lse(q, k, cut_evenly(70, 1), backend="naive"), -1).to(dtype)  # [B, Hq, A]
    longer = torch.full((7, 4, 9, 2), float("nan"), dtype=dtype, device=DEVICE)
    cut = longer[1::3, :, 2:8, 1]
    cut.copy_(total)

    def refuse(self, *args, **kwargs):
        assert self.is_contiguous()
        return self

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "contiguous", refuse)
        got = column_mass(q, k, cut, backend="triton")
    assert (got - column_mass(q, k, total, backend="naive")).abs().max() <= 1e-6


@pytest.mark.parametrize("backend", ["chunked", "triton"])
@pytest.mark.parametrize("spread", [3.0, 12.0, 30.0])
def test_large_logits_are_as_exact_as_float32_holds_them(backend, spread):
    q, k = spread * draw((1, 4, 20, 64), 1), spread * draw((1, 2, 300, 64), 2)
    lse = span_lse(q, k, cut_evenly(300, 1), backend="naive")[..., 0]
    largest = naive.logits(check_rows(q, k)).nan_to_num(neginf=0.0).abs().max().item()
    found = column_mass(q, k, lse.float(), backend=backend)
    wanted = column_mass(q, k, lse, backend="naive")
    assert largest > 10 * spread
    assert (found - wanted).abs().max() <= 1e-5 + largest * 2**-23
