"""Inputs for the kernels and the comparison with the float64 definition."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from attnprobe_kernels import Segments, SpanTop, column_mass, naive, prefill_map, span_lse, span_top
from attnprobe_kernels.rows import check_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def draw(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32, spread: float = 1.0) -> Tensor:
    """Normal numbers on the test device."""
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(shape, generator=generator)).to(dtype).to(DEVICE)


def queries_and_keys(
    n_samples: int = 1,
    heads: tuple[int, int] = (4, 2),
    n_rows: int = 3,
    n_keys: int = 111,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Random q ``[B, Hq, A, D]`` and k ``[B, Hkv, N, D]``, peaked enough for masses to differ."""
    q = draw((n_samples, heads[0], n_rows, head_dim), seed, dtype, spread=2.0)
    return q, draw((n_samples, heads[1], n_keys, head_dim), seed + 1, dtype)


def cut_evenly(n_keys: int, n_spans: int) -> Segments:
    """``n_spans`` contiguous spans; some are empty if there are more spans than keys."""
    edges = np.linspace(0, n_keys, n_spans + 1).astype(int).tolist()
    return Segments.from_bounds(itertools.pairwise(edges), n_keys)


def assert_lse_close(got: Tensor, reference: Tensor, dtype: torch.dtype) -> None:
    """The tolerances of the contract: masses to 1e-5 (float32), span errors to 1e-4 where the mass is 1e-6 or more."""
    assert got.dtype == torch.float32
    assert got.shape == reference.shape
    assert torch.equal(got == float("-inf"), reference == float("-inf"))
    mass, expected = (torch.softmax(x.double(), dim=-1).nan_to_num(0.0) for x in (got, reference))
    if dtype == torch.float32:
        assert (mass - expected).abs().max() <= 1e-5
    seen = expected >= 1e-6
    assert ((mass - expected).abs()[seen] <= 1e-4 * expected[seen]).all()
    finite = reference > float("-inf")
    error = (got.double() - reference)[finite].abs()
    assert (error <= 1e-4 + 1e-6 * reference[finite].abs()).all()


def assert_top_right(got: SpanTop, reference: SpanTop, z: Tensor, dtype: torch.dtype) -> None:
    """Largest logits to float32's precision, and each at a column that holds it; the lowest of the columns on ties.

    Parameters
    ----------
    z
        float64 logits ``[B, Hq, A, N]`` of the definition.
    """
    n_spans = reference.lse.shape[-1]
    assert_lse_close(got.lse, reference.lse, dtype)
    assert got.top_key.dtype == torch.int32
    assert got.top_logit.shape == got.top_key.shape == (*z.shape[:3], n_spans)
    nothing = reference.top_key < 0
    assert torch.equal(got.top_key < 0, nothing)
    assert torch.equal(got.top_logit == float("-inf"), reference.top_logit == float("-inf"))
    finite = reference.top_logit > float("-inf")
    error = (got.top_logit.double() - reference.top_logit)[finite].abs()
    assert (error <= 1e-5 + 1e-6 * reference.top_logit[finite].abs()).all()
    there = z.gather(-1, got.top_key.clamp(min=0).long())  # the logit at the column that was named
    gap = (reference.top_logit - there)[~nothing].abs()
    assert (gap <= 1e-5 + 1e-6 * there[~nothing].abs()).all()


def compare_top(backend: str, q: Tensor, k: Tensor, segments: Any, **features: Any) -> SpanTop:
    """``span_top`` of a backend against ``naive``, column by column."""
    got = span_top(q, k, segments, backend=backend, **features)
    reference = span_top(q, k, segments, backend="naive", **features)
    features.pop("sinks", None)
    z = naive.logits(check_rows(q, k, **features))
    assert_top_right(got, reference, z, q.dtype)
    return got


def compare_all(backend: str, q: Tensor, k: Tensor, segments: Any, *, block: int = 4, **features: Any) -> None:
    """Every operation of a backend against ``naive``."""
    sinks = features.pop("sinks", None)
    reference = span_lse(q, k, segments, backend="naive", sinks=sinks, **features)
    assert_lse_close(span_lse(q, k, segments, backend=backend, sinks=sinks, **features), reference, q.dtype)
    compare_top(backend, q, k, segments, sinks=sinks, **features)
    total = torch.logsumexp(reference, dim=-1).float()
    got = column_mass(q, k, total, backend=backend, **features)
    expected = column_mass(q, k, total, backend="naive", **features)
    assert got.dtype == torch.float32
    assert (got - expected).abs().max() <= 1e-5
    got = prefill_map(q, k, segments, block=block, backend=backend, sinks=sinks, **features)
    expected = prefill_map(q, k, segments, block=block, backend="naive", sinks=sinks, **features)
    assert got.dtype == torch.float32
    assert got.shape == expected.shape
    assert (got - expected).abs().max() <= 1e-5


def feature_table(n_samples: int, n_q_heads: int, n_rows: int, n_keys: int, seed: int = 7) -> dict[str, dict[str, Any]]:
    """Keyword arguments of every feature alone."""
    rng = np.random.default_rng(seed)
    lo = rng.integers(0, n_keys, (n_samples, n_rows))
    hi = lo + rng.integers(0, n_keys, (n_samples, n_rows)) % (n_keys - lo + 1)
    pads = np.arange(n_samples)[:, None] * 5 + 2
    causal = np.arange(n_keys - n_rows, n_keys)[None, :] + 1
    padded = np.stack([np.broadcast_to(pads, (n_samples, n_rows)), np.broadcast_to(causal, (n_samples, n_rows))], -1)
    return {
        "plain": {},
        "scale": {"scale": 0.5},
        "scale_negative": {"scale": -0.11},
        "scale_zero": {"scale": 0.0},
        "window": {"window": max(n_keys // 3, 1)},
        "q_start": {"q_start": (n_keys - n_rows) // 2},
        "softcap": {"softcap": 3.0},
        "softcap_negative_scale": {"softcap": 3.0, "scale": -0.2},
        "bias_shared": {"key_bias": draw((n_samples, 1, n_keys), seed)},
        "bias_heads": {"key_bias": draw((n_samples, n_q_heads, n_keys), seed + 1)},
        "alibi": {"alibi_slopes": torch.linspace(0.01, 0.5, n_q_heads, device=DEVICE)},
        "slopes with a stride": {"alibi_slopes": (draw((2 * n_q_heads,), seed + 3).abs() / 4)[::2]},
        "sinks": {"sinks": draw((n_q_heads,), seed + 2)},
        "sinks with a stride": {"sinks": draw((2 * n_q_heads,), seed + 4)[::2]},
        "pads": {"visible": padded.astype(np.int32)},
        "intervals": {"visible": np.stack([lo, hi], -1).astype(np.int32)},
        "intervals_on_device": {"visible": torch.from_numpy(np.stack([lo, hi], -1)).to(DEVICE)},
        "hidden_rows": {"visible": np.zeros((n_samples, n_rows, 2), dtype=np.int32)},
    }


def compare_random(backend: str, data: st.DataObject, largest: int) -> None:
    """Draw shapes and any set of features, and compare every operation with the definition."""
    n_samples, n_rows = data.draw(st.integers(1, 2)), data.draw(st.sampled_from([1, 2, 5, 17]))
    heads = data.draw(st.sampled_from([(1, 1), (2, 2), (4, 2), (6, 1)]))
    n_keys = data.draw(st.integers(n_rows, max(largest, n_rows)))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    q, k = queries_and_keys(n_samples, heads, n_rows, n_keys, data.draw(st.sampled_from([8, 16, 40, 64])), dtype)
    cuts = sorted(data.draw(st.lists(st.integers(0, n_keys), max_size=6)))
    segments = Segments.from_bounds(zip([0, *cuts], [*cuts, n_keys], strict=True), n_keys)
    table = feature_table(n_samples, heads[0], n_rows, n_keys, seed=data.draw(st.integers(0, 9)))
    names = data.draw(
        st.tuples(
            st.sampled_from(["plain", "window", "q_start", "intervals", "pads" if n_keys > n_rows + 12 else "plain"]),
            st.sampled_from(["plain", "softcap"]),
            st.sampled_from(["plain", "bias_shared", "bias_heads"]),
            st.sampled_from(["plain", "alibi"]),
            st.sampled_from(["plain", "scale"]),
            st.sampled_from(["plain", "sinks"]),
        )
    )
    features: dict[str, Any] = {}
    for name in names:
        features |= table[name]
    compare_all(backend, q, k, segments, block=data.draw(st.sampled_from([1, 4, 32])), **features)


def torch_operations(call):
    """Names of what torch runs in a call."""
    from torch.utils._python_dispatch import TorchDispatchMode

    names = []

    class Listing(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            names.append(str(operation))
            return operation(*args, **(kwargs or {}))

    with Listing():
        call()
    return names


def count_products(monkeypatch, call):
    """How many tiles a call multiplies, in the interpreter."""
    from triton.runtime.interpreter import InterpreterBuilder

    original, products = InterpreterBuilder.create_dot, []
    monkeypatch.setattr(
        InterpreterBuilder, "create_dot", lambda self, *a, **k: products.append(1) or original(self, *a, **k)
    )
    call()
    monkeypatch.undo()
    return len(products)
