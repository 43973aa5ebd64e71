"""flash-attn's ``softmax_lse`` in the place of a pass over the keys.

The package is not needed: what it returns is emulated. ``flash_attn_func`` with ``causal=True, return_attn_probs=True``
gives float32 ``[B, Hq, rows]``: the natural log of the sum of exp(scale * q . k) over the keys that a row sees, rows
aligned to the last key, without any learned sink, and plus infinity where a row sees nothing. From
``flash_attn_varlen_func`` it is ``[Hq, rows of all samples]``.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernel_cases import DEVICE, cut_evenly, draw, queries_and_keys

from attnprobe_kernels import column_mass, prefill_map, span_lse

N_KEYS, N_ROWS = 90, 5
BACKENDS = ["chunked", "triton"]
pytestmark = [
    pytest.mark.usefixtures("triton_ready"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning"),
]


def flash_softmax_lse(q, k, window_size=(-1, -1), softcap=0.0):
    """float32 ``[B, Hq, rows]``: dense float64 written down anew, rounded at the end."""
    k = k.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    z = torch.einsum("bhad,bhnd->bhan", q.double(), k) * q.shape[3] ** -0.5
    if softcap > 0:
        z = softcap * torch.tanh(z / softcap)
    distance = torch.arange(k.shape[2] - q.shape[2], k.shape[2], device=q.device)[:, None]
    distance = distance - torch.arange(k.shape[2], device=q.device)
    seen = distance >= 0
    if window_size[0] >= 0:
        seen &= distance <= window_size[0]
    lse = torch.logsumexp(z.masked_fill(~seen, float("-inf")), dim=-1)
    return lse.masked_fill(lse == float("-inf"), float("inf")).float()


@pytest.mark.parametrize("with_sinks", [False, True], ids=["no_sinks", "sinks"])
@pytest.mark.parametrize("features", [{}, {"window": 20}, {"softcap": 3.0}], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_flash_attn_softmax_lse_is_the_total_of_two_passes(backend, features, with_sinks):
    q, k = queries_and_keys(2, (4, 2), n_rows=N_ROWS, n_keys=N_KEYS, head_dim=32, dtype=torch.float16)
    sinks = draw((4,), 5) if with_sinks else None
    flash = flash_softmax_lse(q, k, (features.get("window", 0) - 1, 0), features.get("softcap", 0.0))
    lse = span_lse(q, k, cut_evenly(N_KEYS, 3), sinks=sinks, backend=backend, **features)
    two_passes = column_mass(q, k, torch.logsumexp(lse, -1), backend=backend, **features)
    saved = column_mass(q, k, flash, sinks=sinks, backend=backend, **features)
    torch.testing.assert_close(saved, two_passes, atol=1e-7, rtol=1e-5)
    learned = torch.softmax(lse, -1)[..., -1].mean(2) if with_sinks else torch.zeros_like(saved[..., 0])
    torch.testing.assert_close(saved.sum(-1), 1 - learned, atol=1e-5, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_flash_attn_softmax_lse_of_all_rows_holds_those_at_the_end(backend):
    q, k = queries_and_keys(n_rows=N_KEYS, n_keys=N_KEYS, head_dim=16)
    flash = flash_softmax_lse(q, k)[:, :, -N_ROWS:]  # a view that is not contiguous
    last = q[:, :, -N_ROWS:]
    expected = column_mass(last, k, flash_softmax_lse(last, k), backend="naive")
    got = column_mass(last, k, flash, backend=backend)
    assert (got - expected).abs().max() <= 1e-6


@pytest.mark.parametrize("backend", BACKENDS)
def test_flash_attn_varlen_softmax_lse_is_cut_at_the_samples(backend):
    lengths = (30, 47)
    samples = [queries_and_keys(n_rows=n, n_keys=n, head_dim=16, seed=n) for n in lengths]
    packed = torch.cat([flash_softmax_lse(q, k)[0] for q, k in samples], dim=1)  # [Hq, tokens]
    cu_seqlens_q = [0, *np.cumsum(lengths).tolist()]
    for (q, k), start, stop in zip(samples, cu_seqlens_q, cu_seqlens_q[1:], strict=False):
        got = column_mass(q, k, packed[None, :, start:stop], backend=backend)
        everything = prefill_map(q, k, cut_evenly(k.shape[2], k.shape[2]), block=k.shape[2], backend="naive")[:, :, 0]
        assert (got - everything).abs().max() <= 1e-6


@pytest.mark.parametrize("backend", [*BACKENDS, "naive"])
def test_flash_attn_writes_plus_infinity_where_a_row_sees_nothing(backend):
    q, k = queries_and_keys(n_rows=N_ROWS, n_keys=2, head_dim=16)
    flash = flash_softmax_lse(q, k)  # aligned to the last key: the first three rows see nothing
    assert torch.isposinf(flash[:, :, :3]).all()
    visible = np.array([[[0, 0], [0, 0], [0, 0], [0, 1], [0, 2]]], dtype=np.int32)
    got = column_mass(q, k, flash, visible=visible, backend=backend)
    torch.testing.assert_close(got.sum(-1).float(), torch.full((1, 4), 2 / N_ROWS, device=DEVICE), atol=1e-6, rtol=0)
