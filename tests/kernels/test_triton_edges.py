"""Where numbers end: every backend gives the same there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernel_cases import DEVICE, cut_evenly, draw, queries_and_keys

from attnprobe_kernels import Segments, column_mass, prefill_map, span_lse, span_top
from attnprobe_kernels.backends import MAX_SOFTCAP

NAN, INF = float("nan"), float("inf")
BACKENDS = ["naive", "chunked", "triton"]
N_ROWS, N_KEYS = 4, 60
pytestmark = [
    pytest.mark.usefixtures("triton_ready", "poisoned"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.parametrize("backend", BACKENDS),
]


def inputs(n_rows=N_ROWS, n_keys=N_KEYS):
    return queries_and_keys(heads=(2, 1), n_rows=n_rows, n_keys=n_keys, head_dim=16)


def assert_same(got, expected, atol=1e-5):
    """Equal with nan in the same places; float32 against float64."""
    torch.testing.assert_close(got.double(), expected.double(), atol=atol, rtol=1e-5, equal_nan=True)


def assert_as_defined(backend, q, k, segments, **features):
    """Every operation against ``naive``; what those give is returned."""
    block = features.pop("block", 2)
    total = torch.logsumexp(span_lse(q, k, segments, backend="naive", **features), -1).float()
    calls = (
        lambda name: span_lse(q, k, segments, backend=name, **features),
        lambda name: torch.stack([x.double() for x in span_top(q, k, segments, backend=name, **features)]),
        lambda name: column_mass(q, k, total, backend=name, **features),
        lambda name: prefill_map(q, k, segments, block=block, backend=name, **features),
    )
    results = []
    for call in calls:
        results.append(call("naive"))
        assert_same(call(backend), results[-1])
    return results


@pytest.mark.parametrize("value", [NAN, INF], ids=["nan", "inf"])
def test_a_key_that_is_no_number_makes_what_sees_it_nan(backend, value):
    q, k = inputs()
    q = q.abs()  # so that the logit is plus infinity, not the difference of two
    k[:, :, 58] = value  # seen by the last two rows alone, in the last of three spans
    lse, top, columns, blocks = assert_as_defined(backend, q, k, cut_evenly(N_KEYS, 3))
    assert torch.isnan(lse[:, :, 2:, 2]).all()
    assert torch.isfinite(lse[:, :, :2]).all()
    assert torch.isfinite(lse[..., :2]).all()
    assert torch.isnan(top[1, :, :, 2:, 2]).all()
    assert (top[2, :, :, 2:, 2] == -1).all()
    assert torch.isnan(columns[..., :59]).all()  # the rows' totals are nan
    assert torch.isfinite(blocks[:, :, 0]).all()
    assert torch.isnan(blocks[:, :, 1]).all()


def test_a_logit_of_minus_infinity_has_no_weight(backend):
    q, k = inputs()
    q = q.abs()
    k[:, :, 45] = -INF
    lse = assert_as_defined(backend, q, k, Segments.from_bounds([(0, 45), (45, 46), (46, 60)], 60))[0]
    assert torch.isneginf(lse[..., 1]).all()


def test_a_query_that_is_no_number_makes_its_own_row_nan(backend):
    q, k = inputs()
    q[:, :, 1] = NAN
    lse, _, columns, blocks = assert_as_defined(backend, q, k, cut_evenly(N_KEYS, 3))
    assert torch.isnan(lse[:, :, 1]).all()
    assert torch.isfinite(lse[:, :, [0, 2, 3]]).all()
    assert torch.isnan(columns[..., :58]).all()
    assert torch.isfinite(blocks[:, :, 1]).all()


def test_a_nan_that_nobody_sees_changes_nothing(backend):
    q, k = inputs()
    visible = np.array([[[3, 20], [0, 0], [5, 50], [4, 50]]], dtype=np.int32)
    expected = [span_lse(q, k, cut_evenly(N_KEYS, 3), visible=visible, backend=backend)]
    k[:, :, 50:], k[:, :, :3], q[:, :, 1] = NAN, INF, NAN
    results = assert_as_defined(backend, q, k, cut_evenly(N_KEYS, 3), visible=visible)
    assert_same(results[0], expected[0])
    assert all(torch.isfinite(x).all() for x in (results[2], results[3]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("heads", [1, 2])
def test_a_bias_of_the_least_number_means_unseen(backend, dtype, heads):
    q, k = inputs()
    bias = draw((1, heads, N_KEYS), 3).to(dtype)
    least = torch.finfo(dtype).min
    bias[..., 20:30], bias[..., 30:35], bias[..., 35:40] = least, least / 2, -INF
    spans = Segments.from_bounds([(0, 20), (20, 40), (40, 60)], N_KEYS)
    lse, top, columns, blocks = assert_as_defined(backend, q, k, spans, key_bias=bias)
    assert torch.isneginf(lse[..., 1]).all()
    assert (top[2, ..., 1] == -1).all()
    assert (columns[..., 20:40] == 0).all()
    assert (blocks[..., 1] == 0).all()


@pytest.mark.parametrize("value", [NAN, INF], ids=["nan", "inf"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("least", [-INF, "min", "half"])
def test_what_a_bias_hides_may_hold_anything(backend, value, dtype, heads, least):
    q, k = inputs(n_keys=160)  # hidden keys in tiles with masks and without
    bias = draw((1, heads, 160), 3).to(dtype)
    lowest = torch.finfo(dtype).min
    for hidden in (slice(20, 40), slice(150, 158)):
        bias[..., hidden] = {"min": lowest, "half": lowest / 2}.get(least, least)
        k[:, :, hidden] = value
    spans = Segments.from_bounds([(0, 20), (20, 40), (40, 160)], 160)
    for features in ({}, {"alibi_slopes": draw((2,), 4).abs()}, {"softcap": 5.0}):
        lse, top, columns, blocks = assert_as_defined(backend, q, k, spans, key_bias=bias, **features)
        assert torch.isneginf(lse[..., 1]).all()
        assert torch.isfinite(lse[..., [0, 2]]).all()
        assert (top[2, ..., 1] == -1).all()
        assert (columns[..., 20:40] == 0).all()
        assert (blocks[..., 1] == 0).all()
        assert torch.isfinite(blocks).all()


def test_a_bias_that_hides_everything_leaves_no_mass(backend):
    q, k = inputs()
    bias = torch.full((1, 1, N_KEYS), torch.finfo(torch.float16).min, dtype=torch.float16, device=DEVICE)
    lse, _, columns, blocks = assert_as_defined(backend, q, k, cut_evenly(N_KEYS, 3), key_bias=bias)
    assert torch.isneginf(lse).all()
    assert (columns == 0).all()
    assert (blocks == 0).all()


def test_totals_that_are_no_numbers(backend):
    q, k = inputs()
    total = torch.logsumexp(span_lse(q, k, cut_evenly(N_KEYS, 1), backend="naive"), -1).float()
    total[0, 0, 0], total[0, 1, 1], total[0, 1, 2] = -INF, NAN, INF
    got = column_mass(q, k, total, backend=backend)
    assert_same(got, column_mass(q, k, total, backend="naive"), atol=1e-6)
    assert got[0, 0].sum().item() == pytest.approx(3 / 4, abs=1e-5)  # one of four rows adds nothing
    assert torch.isnan(got[0, 1, :58]).all()  # what the row sees
    assert torch.isfinite(got[0, 1, 58:]).all()


@pytest.mark.parametrize("hidden_by", ["bias", "key"])
def test_a_total_that_is_no_number_counts_where_there_is_weight(backend, hidden_by):
    n_rows, n_keys = 140, 300  # whole blocks of rows that see whole tiles of keys
    q, k = inputs(n_rows=n_rows, n_keys=n_keys)
    q, bias = q.abs(), torch.zeros((1, 1, n_keys), device=DEVICE)
    if hidden_by == "bias":
        bias[..., 7] = -INF
    else:
        k[:, :, 7] = -INF
    total = torch.zeros((1, 2, n_rows), device=DEVICE)
    total[0, 1, 2] = NAN
    features = {"key_bias": bias} if hidden_by == "bias" else {}
    got = column_mass(q, k, total, backend=backend, **features)
    assert_same(got, column_mass(q, k, total, backend="naive", **features))
    assert (got[..., 7] == 0).all()
    assert torch.isfinite(got[:, 0]).all()
    assert torch.isnan(got[0, 1, :7]).all()


@pytest.mark.parametrize("sink", [0.5, -80.0, -INF, INF, NAN])
def test_a_sink_is_added_to_totals_of_any_kind(backend, sink):
    q, k = inputs(n_rows=6)
    sinks = torch.tensor([sink, 1.0], device=DEVICE)
    visible = np.array([[[0, 60], [0, 60], [0, 60], [0, 60], [5, 5], [3, 40]]], dtype=np.int32)
    total = torch.tensor([0.0, INF, -INF, NAN, -INF, 90.0], device=DEVICE).expand(1, 2, 6)
    for rows in ([0], [1], [2], [3], [4], [5], [0, 4, 5], [0, 1, 2, 3, 4, 5]):
        found = column_mass(
            q[:, :, rows], k, total[..., rows], sinks=sinks, visible=visible[:, rows], scale=0.05, backend=backend
        )
        # The sink as one more key that all rows see, beside a total that nobody adds it to.
        weights = torch.exp(0.05 * (q[:, :, rows].double() @ k.double().mT))
        inside = torch.from_numpy(visible[:, rows]).to(DEVICE)[:, None]
        column = torch.arange(60, device=DEVICE)
        sees = (column >= inside[..., :1]) & (column < inside[..., 1:])
        whole = torch.exp(total[..., rows].double()) + torch.exp(sinks.double())[None, :, None]
        share = torch.where(sees & (whole != 0)[..., None], weights / whole[..., None], 0.0)
        assert_same(found, share.mean(dim=2))


@pytest.mark.parametrize("scale", [1e9, -1e9, 3000.0, 1e-30])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_huge_and_tiny_scales(backend, scale, softcap):
    q, k = inputs()
    spans = cut_evenly(N_KEYS, 2)
    # The third row sees nothing of the first tile that others see.
    visible = np.array([[[0, 60], [0, 0], [50, 60], [2, 31]]], dtype=np.int32)
    features = {"scale": scale, "softcap": softcap, "visible": visible}
    lse = span_lse(q, k, spans, backend=backend, **features)
    expected = span_lse(q, k, spans, backend="naive", **features)
    assert torch.equal(lse == -INF, expected == -INF)
    finite = expected > -INF
    torch.testing.assert_close(lse[finite].double(), expected[finite].double(), atol=1e-4, rtol=1e-6)
    mass = prefill_map(q, k, spans, block=1, backend=backend, **features)
    torch.testing.assert_close(mass.double(), torch.softmax(expected, -1).nan_to_num(), atol=1e-4, rtol=0)
    columns = column_mass(q, k, torch.logsumexp(lse, -1).float(), backend=backend, **features)
    assert not torch.isnan(columns).any()


@pytest.mark.parametrize("spread", [1.5, 5.0, 50.0])
def test_the_largest_softcap_is_within_the_contract(backend, spread):
    q, k = (spread * draw((1, 2, 64, 16), 1), draw((1, 1, 64, 16), 2))
    spans, features = cut_evenly(64, 16), {"softcap": MAX_SOFTCAP, "q_start": 0}
    wanted = torch.softmax(span_lse(q, k, spans, backend="naive", **features), -1)
    found = torch.softmax(span_lse(q, k, spans, backend=backend, **features).double(), -1)
    assert (found - wanted).abs().max() <= 1e-5
    found = prefill_map(q, k, spans, block=1, backend=backend, **features)
    assert (found - wanted).abs().max() <= 1e-5


def test_no_rows_have_the_dtype_of_some(backend):
    spans, sinks = cut_evenly(N_KEYS, 3), draw((2,), 1)
    for given in ({}, {"sinks": sinks}):
        none, some = (
            [
                span_lse(q, k, spans, backend=backend, **given),
                *span_top(q, k, spans, backend=backend, **given),
                prefill_map(q, k, spans, backend=backend, **given),
            ]
            for q, k in (inputs(n_rows=0), inputs())
        )
        assert [x.dtype for x in none] == [x.dtype for x in some]
        assert [x.shape[3] for x in none] == [x.shape[3] for x in some]


def test_no_rows(backend):
    q, k = inputs(n_rows=0)
    assert span_lse(q, k, cut_evenly(N_KEYS, 3), backend=backend).shape == (1, 2, 0, 3)
    assert span_top(q, k, cut_evenly(N_KEYS, 3), backend=backend).top_key.shape == (1, 2, 0, 3)
    sinks = draw((2,), 1)
    assert prefill_map(q, k, cut_evenly(N_KEYS, 3), sinks=sinks, backend=backend).shape == (1, 2, 0, 4)
    with pytest.raises(ValueError, match="q holds no rows, and column_mass is a mean over rows"):
        column_mass(q, k, q[..., 0], backend=backend)


def test_no_keys(backend):
    q, k = inputs(n_keys=0)
    visible = np.zeros((1, N_ROWS, 2), dtype=np.int32)
    nothing = Segments.from_bounds([(0, 0), (0, 0)], 0)
    sinks = draw((2,), 1)
    lse = span_lse(q, k, nothing, visible=visible, backend=backend)
    assert lse.shape == (1, 2, N_ROWS, 2)
    assert torch.isneginf(lse).all()
    assert (span_top(q, k, nothing, visible=visible, backend=backend).top_key == -1).all()
    assert column_mass(q, k, q[..., 0], visible=visible, backend=backend).shape == (1, 2, 0)
    assert (prefill_map(q, k, nothing, block=2, visible=visible, backend=backend) == 0).all()
    mass = prefill_map(q, k, nothing, block=2, visible=visible, sinks=sinks, backend=backend)
    assert_same(mass, torch.tensor([0.0, 0.0, 1.0], device=DEVICE).expand(1, 2, 2, 3))


def test_no_keys_and_no_segments(backend):
    q, k = inputs(n_keys=0)
    nothing, visible = Segments.from_bounds([], 0), np.zeros((1, N_ROWS, 2), dtype=np.int32)
    assert span_lse(q, k, nothing, visible=visible, backend=backend).shape == (1, 2, N_ROWS, 0)
    assert span_top(q, k, nothing, visible=visible, backend=backend).top_key.shape == (1, 2, N_ROWS, 0)
    sinks = draw((2,), 1)
    mass = prefill_map(q, k, nothing, block=2, visible=visible, sinks=sinks, backend=backend)
    assert_same(mass, torch.ones((1, 2, 2, 1), device=DEVICE))


def test_no_samples_and_no_heads(backend):
    q, k = inputs()
    for q_, k_ in ((q[:0], k[:0]), (q[:, :0], k), (q, k[:, :0]), (q[..., :0], k[..., :0])):
        with pytest.raises(ValueError, match="need at least one sample, head and dimension"):
            span_lse(q_, k_, cut_evenly(N_KEYS, 3), backend=backend)


def test_a_row_without_a_number_has_no_share_of_an_empty_span(backend):
    q, k = inputs()
    q[:, :, 1] = NAN
    spans = Segments.from_bounds([(0, 30), (30, 30), (30, N_KEYS)], N_KEYS)
    blocks = assert_as_defined(backend, q, k, spans)[3]
    assert torch.isnan(blocks[:, :, 0]).all()
    assert (blocks[:, :, 1, 1] == 0).all()


def test_blocks_of_any_whole_number(backend):
    q, k = inputs()
    got = prefill_map(q, k, cut_evenly(N_KEYS, 3), block=np.int64(2), backend=backend)
    assert_same(got, prefill_map(q, k, cut_evenly(N_KEYS, 3), block=2, backend="naive"))


def test_a_block_of_more_rows_than_there_are(backend):
    q, k = inputs()
    got = prefill_map(q, k, cut_evenly(N_KEYS, 3), block=2**40, backend=backend)
    assert got.shape == (1, 2, 1, 3)
    assert_same(got, prefill_map(q, k, cut_evenly(N_KEYS, 3), block=N_ROWS, backend="naive"))
