"""The compiled kernels on a device against dense float64 on the same inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from attnprobe_kernels import Segments, column_mass, prefill_map, span_lse, span_top, visible_intervals
from attnprobe_kernels.backends import interpreted
from attnprobe_kernels.naive import logits
from attnprobe_kernels.rows import check_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA or ROCm device"),
]
N_Q_HEADS, N_KV_HEADS = 4, 2
FROM_MASS = 1e-6


@pytest.fixture(autouse=True)
def compiled() -> None:
    if interpreted():
        pytest.skip("TRITON_INTERPRET is set: run tests/gpu by themselves")


def draw(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda", dtype=dtype)


def qk(
    n_rows: int, n_keys: int, head_dim: int, dtype: torch.dtype = torch.bfloat16, samples: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    q = draw((samples, N_Q_HEADS, n_rows, head_dim), 1, dtype) * 1.5
    return q, draw((samples, N_KV_HEADS, n_keys, head_dim), 2, dtype) * 1.5


def pieces(n_keys: int, n_spans: int = 5) -> Segments:
    """Spans of one key, of none, and of awkward lengths."""
    cuts = sorted({min(n_keys, 1 + (n_keys - 1) * i * i // n_spans**2) for i in range(n_spans + 1)})
    bounds = [(0, cuts[0]), *itertools.pairwise(cuts)]
    return Segments.from_bounds([*bounds, (n_keys, n_keys)], n_keys)


def assert_masses(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == torch.float32
    assert found.shape == wanted.shape
    assert bool(torch.isfinite(found).all())
    gap = (found.double() - wanted).abs()
    if dtype == torch.float32:
        assert float(gap.max()) <= 1e-5
        return
    big = wanted >= FROM_MASS
    assert float((gap[big] / wanted[big]).max()) <= 1e-4
    assert bool((gap[~big] <= 1e-5).all())


def assert_logs(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    """Span LSEs: hidden spans in the same places, totals to 1e-4, masses by their own bound."""
    assert found.dtype == torch.float32
    assert torch.equal(found == float("-inf"), wanted == float("-inf"))
    totals, wanted_totals = torch.logsumexp(found.double(), -1), torch.logsumexp(wanted, -1)
    sees = wanted_totals > float("-inf")
    torch.testing.assert_close(totals[sees], wanted_totals[sees], atol=1e-4, rtol=0)
    assert_masses(torch.softmax(found.double(), -1)[sees].float(), torch.softmax(wanted, -1)[sees], dtype)


def poison() -> None:
    """Leave nan in the memory that the next result is likely to be given."""
    blocks = [torch.full((size,), float("nan"), device="cuda") for size in (2**8, 2**12, 2**16, 2**20, 2**22)]
    del blocks


def check_all(q: torch.Tensor, k: torch.Tensor, segments: Any, block: int = 32, **options: Any) -> None:
    """All operations: right, every element written, and the same bits in a second call."""
    check_sums_and_columns(q, k, segments, **options)
    check_tops_and_map(q, k, segments, block, **options)


def check_sums_and_columns(q: torch.Tensor, k: torch.Tensor, segments: Any, **options: Any) -> None:
    """``span_lse`` and ``column_mass``: apart from the others, since compiling takes the time here."""
    sinks = options.pop("sinks", None)
    wanted = span_lse(q, k, segments, sinks=sinks, backend="naive", **options)
    found = span_lse(q, k, segments, sinks=sinks, backend="triton", **options)
    assert_logs(found, wanted, q.dtype)
    poison()
    assert torch.equal(found, span_lse(q, k, segments, sinks=sinks, backend="triton", **options))

    total = torch.logsumexp(wanted, -1).float()
    wanted = column_mass(q, k, total, backend="naive", **options).nan_to_num()
    found = column_mass(q, k, total, backend="triton", **options)
    assert_masses(found, wanted, q.dtype)
    poison()
    assert torch.equal(found, column_mass(q, k, total, backend="triton", **options))


def check_tops_and_map(q: torch.Tensor, k: torch.Tensor, segments: Any, block: int = 32, **options: Any) -> None:
    """``span_top`` and ``prefill_map``."""
    sinks = options.pop("sinks", None)
    top, wanted_top = (
        span_top(q, k, segments, sinks=sinks, backend=backend, **options) for backend in ("triton", "naive")
    )
    assert_logs(top.lse, wanted_top.lse, q.dtype)
    seen = wanted_top.top_logit > float("-inf")
    assert torch.equal(top.top_logit > float("-inf"), seen)
    torch.testing.assert_close(top.top_logit[seen].double(), wanted_top.top_logit[seen], atol=1e-4, rtol=1e-6)
    assert torch.equal(top.top_key >= 0, wanted_top.top_key >= 0)
    z = logits(check_rows(q, k, **options))
    there = z.gather(-1, top.top_key.clamp(min=0).long())  # the float64 logit of the key that was named
    named = top.top_key >= 0
    torch.testing.assert_close(there[named], wanted_top.top_logit[named], atol=1e-4, rtol=1e-6)
    poison()
    again = span_top(q, k, segments, sinks=sinks, backend="triton", **options)
    assert all(torch.equal(a, b) for a, b in zip(top, again, strict=True))

    wanted = prefill_map(q, k, segments, block=block, sinks=sinks, backend="naive", **options)
    found = prefill_map(q, k, segments, block=block, sinks=sinks, backend="triton", **options)
    assert_masses(found, wanted, q.dtype)
    poison()
    assert torch.equal(found, prefill_map(q, k, segments, block=block, sinks=sinks, backend="triton", **options))


def hidden_and_odd(n_rows: int, n_keys: int) -> torch.Tensor:
    """Intervals in no order, one of them empty, on the device."""
    rows = np.arange(n_rows)
    lo = rows * 37 % (n_keys // 2)
    hi = np.minimum(lo + 1 + rows * 53 % (n_keys // 2), n_keys)
    hi[1] = lo[1]
    return torch.from_numpy(np.stack([lo, hi], -1).astype(np.int32))[None].cuda()


FEATURES: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "causal": lambda a, n: {},
    "q_start": lambda a, n: {"q_start": n // 3},
    "window": lambda a, n: {"window": 65},
    "attention_chunks": lambda a, n: {"visible": visible_intervals(range(n - a, n), n, chunk=100)},
    "odd_intervals": lambda a, n: {"visible": hidden_and_odd(a, n)},
    "odd_intervals_int64": lambda a, n: {"visible": hidden_and_odd(a, n).long()},
    "softcap": lambda a, n: {"softcap": 3.0},
    "bias": lambda a, n: {"key_bias": draw((1, 1, n), 3, torch.float32)},
    "bias_by_head": lambda a, n: {"key_bias": draw((1, N_Q_HEADS, n), 3, torch.float32)},
    "alibi": lambda a, n: {"alibi_slopes": 2.0 ** -torch.arange(1, N_Q_HEADS + 1, device="cuda")},
    "sinks": lambda a, n: {"sinks": draw((N_Q_HEADS,), 4, torch.float32)},
    "negative_scale": lambda a, n: {"scale": -0.2},
    "several": lambda a, n: {
        "window": 200,
        "softcap": 4.0,
        "key_bias": draw((1, N_Q_HEADS, n), 3, torch.float32),
        "alibi_slopes": 2.0 ** -torch.arange(1, N_Q_HEADS + 1, device="cuda"),
        "sinks": draw((N_Q_HEADS,), 4, torch.float32),
    },
}


@pytest.mark.parametrize("feature", FEATURES)
def test_features(feature: str) -> None:
    n_rows, n_keys = 70, 517
    q, k = qk(n_rows, n_keys, 64)
    check_all(q, k, pieces(n_keys), **FEATURES[feature](n_rows, n_keys))


@pytest.mark.parametrize(
    ("dtype", "head_dim"),
    [
        *((torch.bfloat16, head_dim) for head_dim in (16, 64, 80, 96, 128, 192, 256, 512)),
        *((torch.float16, head_dim) for head_dim in (64, 128)),
        *((torch.float32, head_dim) for head_dim in (64, 128)),
    ],
    ids=lambda value: str(value).removeprefix("torch."),
)
def test_dtypes_and_head_dims(dtype: torch.dtype, head_dim: int) -> None:
    n_rows, n_keys = 70, 517
    q, k = qk(n_rows, n_keys, head_dim, dtype)
    check_sums_and_columns(q, k, pieces(n_keys))
    if head_dim in (80, 128, 256):
        check_tops_and_map(q, k, pieces(n_keys))


@pytest.mark.parametrize("n_keys", [1, 63, 111, 4099])
@pytest.mark.parametrize("n_rows", [1, 17])
def test_sizes(n_rows: int, n_keys: int) -> None:
    n_rows = min(n_rows, n_keys)
    q, k = qk(n_rows, n_keys, 64)
    check_all(q, k, pieces(n_keys))


@pytest.mark.parametrize("n_rows", [1, 64])
def test_long(n_rows: int) -> None:
    n_keys = 131072
    q, k = qk(n_rows, n_keys, 128)
    segments = Segments.from_bounds([(i * 512, (i + 1) * 512) for i in range(256)], n_keys)
    check_all(q, k, segments)


def test_long_alibi() -> None:
    n_keys = 131072
    q, k = qk(3, n_keys, 64, torch.float32)
    check_all(q, k, pieces(n_keys), alibi_slopes=2.0 ** -torch.arange(8, 8 + N_Q_HEADS, device="cuda"))


def test_padded_batch_with_its_own_segments() -> None:
    n_keys, pads = 300, (0, 40, 133)
    q, k = qk(20, n_keys, 64, samples=3)
    segments = [
        Segments.from_spans(
            [[(pad, pad + 1)], [(pad + 1, 150), (200, n_keys)], [(150, 200)]], n_keys, hidden=[(0, pad)]
        )
        for pad in pads
    ]
    check_all(q, k, segments, visible=visible_intervals(range(n_keys - 20, n_keys), n_keys, pads=pads))


def test_strides_are_taken_as_they_are() -> None:
    n_keys = 517
    q = draw((1, 70, N_Q_HEADS, 64), 1).transpose(1, 2)
    k = draw((1, n_keys, N_KV_HEADS, 3, 64), 2)[:, :, :, 1].transpose(1, 2)
    check_all(q, k, pieces(n_keys))


def test_keys_further_apart_than_int32() -> None:
    n_keys, head_dim, stride = 600, 64, 2**22
    needed = 2 * n_keys * stride + 2**30
    if torch.cuda.mem_get_info()[0] < needed:
        pytest.skip(f"needs {needed / 2**30:.1f} GiB of free memory")
    buffer = torch.empty(n_keys * stride, dtype=torch.bfloat16, device="cuda")
    k = buffer.as_strided((1, N_KV_HEADS, n_keys, head_dim), (0, head_dim, stride, 1))
    k.copy_(draw((1, N_KV_HEADS, n_keys, head_dim), 2))
    check_all(draw((1, N_Q_HEADS, 17, head_dim), 1), k, pieces(n_keys))


OWN_BLOCKS = [[0, 3, 3, 17], [5, 9]]
"""Edges of blocks of 17 rows, for two samples."""


def test_blocks_of_each_samples_own() -> None:
    q, k = qk(17, 517, 64, samples=2)
    sinks = draw((2 * N_Q_HEADS,), 4, torch.float32)[::2]
    wanted, found = (
        prefill_map(q, k, pieces(517), edges=OWN_BLOCKS, sinks=sinks, backend=backend)
        for backend in ("naive", "triton")
    )
    assert_masses(found, wanted, q.dtype)
    assert float(found[1, :, 1:].abs().max()) == 0  # blocks that the second sample does not have
    poison()
    assert torch.equal(found, prefill_map(q, k, pieces(517), edges=OWN_BLOCKS, sinks=sinks, backend="triton"))


def test_a_total_over_the_keys_alone_takes_the_sinks() -> None:
    q, k = qk(70, 517, 64)
    sinks = draw((2 * N_Q_HEADS,), 4, torch.float32)[::2]
    total = torch.logsumexp(span_lse(q, k, pieces(517), backend="naive"), -1).float()
    wanted = column_mass(q, k, total, sinks=sinks, backend="naive")
    assert_masses(column_mass(q, k, total, sinks=sinks, backend="triton"), wanted, q.dtype)


def test_auto_takes_triton() -> None:
    q, k = qk(17, 517, 64)
    segments = pieces(517)
    assert torch.equal(span_lse(q, k, segments), span_lse(q, k, segments, backend="triton"))


def calls_of_a_layer() -> list[Callable[[], Any]]:
    """Every operation, with arguments that another implementation would have to copy first."""
    q, k = qk(17, 517, 64, samples=2)
    segments, visible = pieces(517), hidden_and_odd(17, 517).long().expand(2, 17, 2)
    sinks = draw((2 * N_Q_HEADS,), 4, torch.float32)[::2]
    total = torch.logsumexp(span_lse(q, k, segments, backend="triton"), -1)
    return [
        lambda: span_lse(q, k, segments, backend="triton"),
        lambda: span_lse(q, k, segments, visible=visible, backend="triton"),
        lambda: span_top(q, k, segments, backend="triton"),
        lambda: column_mass(q, k, total, sinks=sinks, backend="triton"),
        lambda: prefill_map(q, k, segments, block=5, backend="triton"),
        lambda: prefill_map(q, k, segments, edges=OWN_BLOCKS, sinks=sinks, backend="triton"),
    ]


def test_nothing_waits_for_the_device() -> None:
    for call in calls_of_a_layer():
        call()  # tables of a prompt are uploaded in its first layer
        torch.cuda.set_sync_debug_mode("error")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_launches_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.jit import JITFunction

    launches = []
    original = JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        launches.append(self)
        return original(self, *args, **kwargs)

    calls = calls_of_a_layer()
    monkeypatch.setattr(JITFunction, "run", run)
    for call in calls:
        launches.clear()
        call()
        assert len(launches) in (1, 2)


def test_tables_may_be_used_on_several_streams() -> None:
    q, k = qk(300, 517, 64)
    segments = pieces(517)
    wanted = prefill_map(q, k, segments, block=100, backend="triton")
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(3):
        found = []
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(prefill_map(q, k, segments, block=100, backend="triton"))
        torch.cuda.synchronize()
        assert all(torch.equal(x, wanted) for x in found)


@pytest.mark.parametrize("n_rows", [1000, 4096])
def test_map_of_a_whole_prompt_in_blocks_of_any_length(n_rows: int) -> None:
    q, k = qk(n_rows, n_rows, 128)
    segments = pieces(n_rows)
    wanted = prefill_map(q, k, segments, block=1, backend="chunked")
    for block in (1, 100, 128, 1000, n_rows):
        found = prefill_map(q, k, segments, block=block, backend="triton")
        means = torch.stack([rows.mean(dim=2) for rows in wanted.double().split(block, dim=2)], dim=2)
        assert float((found.double() - means).abs().max()) <= 1e-5
