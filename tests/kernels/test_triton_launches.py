"""What a layer launches: at most two kernels, and nothing of torch's own, whatever the arguments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from kernel_cases import DEVICE, cut_evenly, draw, feature_table, queries_and_keys, torch_operations

from attnprobe_kernels import column_mass, naive, prefill_map, span_lse, span_top
from attnprobe_kernels.rows import check_blocks, check_rows

pytestmark = [
    pytest.mark.usefixtures("triton_ready"),
    pytest.mark.skipif(DEVICE == "cuda", reason="counts what the interpreter is given"),
]

N_ROWS, N_KEYS = 70, 111
SPANS = cut_evenly(N_KEYS, 3)
WITHOUT_WORK = {"aten.empty.memory_format", "aten.as_strided.default", "aten.detach.default"}
"""Operations of torch that launch nothing."""


def launched(monkeypatch, call):
    """Names of what torch itself runs in a call whose tables are there, and the number of launches."""
    from triton.runtime.interpreter import InterpretedFunction

    launches = []
    with monkeypatch.context() as patch:
        patch.setattr(InterpretedFunction, "run", lambda *a, **k: launches.append(1))
        call()
        launches.clear()
        names = torch_operations(call)
    return names, len(launches)


def total():
    """Lies in memory as flash-attn's does, and not as the kernel's own."""
    return draw((2, N_ROWS, 4), 1, torch.float64).transpose(1, 2)


OPERATIONS = {
    "span_lse": lambda q, k, **features: span_lse(q, k, SPANS, **features),
    "span_top": lambda q, k, **features: span_top(q, k, SPANS, **features),
    "column_mass": lambda q, k, **features: column_mass(q, k, total(), **features),
    "prefill_map": lambda q, k, **features: prefill_map(q, k, SPANS, block=16, **features),
    "prefill_map of blocks in pieces": lambda q, k, **features: prefill_map(q, k, SPANS, block=50, **features),
    "prefill_map of own blocks": lambda q, k, **features: prefill_map(
        q, k, SPANS, edges=[[0, 5, 5, 70], [30, 40]], **features
    ),
}
ODD = {
    "sinks of another dtype": {"sinks": draw((4,), 5, torch.bfloat16)},
    "slopes of another dtype": {"alibi_slopes": draw((4,), 5, torch.float64).abs()},
    "bias with a stride": {"key_bias": draw((2, N_KEYS, 4), 5).transpose(1, 2)},
}
ARGUMENTS = feature_table(2, 4, N_ROWS, N_KEYS) | ODD
TOGETHER = ("window", "softcap", "bias with a stride", "slopes with a stride", "sinks with a stride")
ARGUMENTS["all"] = {name: value for feature in TOGETHER for name, value in ARGUMENTS[feature].items()}


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_two_launches_at_most(monkeypatch, operation, arguments):
    q, k = queries_and_keys(2, (4, 2), n_rows=N_ROWS, n_keys=N_KEYS, head_dim=16)
    given = ARGUMENTS[arguments]
    if operation == "column_mass":
        one = total()
        monkeypatch.setitem(globals(), "total", lambda: one)  # torch's work on it is the test's, not the call's
    names, n_launches = launched(monkeypatch, lambda: OPERATIONS[operation](q, k, backend="triton", **given))
    assert 1 <= n_launches <= 2
    assert set(names) <= WITHOUT_WORK


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int16])
def test_intervals_on_the_device_are_taken_as_they_lie_in_memory(monkeypatch, dtype):
    from attnprobe_kernels import triton_backend

    q, k = queries_and_keys(2, (4, 2), n_rows=5, n_keys=40, head_dim=16)
    rows = np.array([[0, 40], [7, 7], [3, 21], [30, 36], [0, 1]])
    lying = torch.from_numpy(rows).to(dtype).T.contiguous().T.expand(2, 5, 2)  # ends behind starts, for both samples
    args = check_rows(q, k, visible=np.broadcast_to(rows, (2, 5, 2)), alibi_slopes=draw((4,), 3).abs())
    there, spans, sinks = replace(args, visible=lying), [cut_evenly(40, 3)] * 2, draw((4,), 4)
    edges, totals = check_blocks(args, 2, None), torch.logsumexp(naive.span_lse(args, spans, None), -1).float()
    calls = {
        "span_lse": lambda module, given: module.span_lse(given, spans, sinks),
        "span_top": lambda module, given: module.span_top(given, spans, sinks).top_logit,
        "column_mass": lambda module, given: module.column_mass(given, totals, sinks),
        "prefill_map": lambda module, given: module.prefill_map(given, spans, edges, sinks),
    }
    for name, call in calls.items():
        found, wanted = call(triton_backend, there), call(naive, args)
        torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5, msg=name)
        names, n_launches = launched(monkeypatch, lambda call=call: call(triton_backend, there))
        assert n_launches <= 2
        assert set(names) <= WITHOUT_WORK


def test_one_build_whatever_the_number_of_rows(monkeypatch):
    """A build is for arguments of 1, for multiples of 16 or for others, unless a kernel says not to look."""
    from triton.runtime.interpreter import InterpretedFunction

    builds: dict[str, set[object]] = {}

    def run(self, *args, grid, warmup, **kwargs):
        given = dict(zip(self.arg_names, args, strict=False)) | kwargs
        ignored = self.kwargs.get("do_not_specialize") or ()
        key = {
            name: (value == 1, value % 16 == 0) if isinstance(value, int) and name.islower() else str(value)
            for name, value in given.items()
            if name not in ignored and not isinstance(value, torch.Tensor)
        }
        builds.setdefault(self.fn.__name__, set()).add(str(key))

    monkeypatch.setattr(InterpretedFunction, "run", run)
    for n_rows in (257, 264, 272, 300, 512):
        q, k = queries_and_keys(2, (4, 2), n_rows=n_rows, n_keys=600, head_dim=16, dtype=torch.float16)
        given = {"key_bias": draw((2, 4, 600 + n_rows), 5)[..., :600], "sinks": draw((4,), 6), "backend": "triton"}
        segments = cut_evenly(600, 3)
        span_lse(q, k, segments, **given)
        span_top(q, k, segments, **given)
        column_mass(q, k, draw((2, 4, n_rows), 1), **given)
        prefill_map(q, k, segments, block=100, **given)
    assert {name: len(keys) for name, keys in builds.items()} == {
        "unit_lse_kernel": 2,  # with and without the heaviest key, as the next one
        "merge_units_kernel": 2,
        "row_bounds_kernel": 1,
        "column_mass_kernel": 1,
        "prefill_map_kernel": 1,
        "add_pieces_kernel": 1,
    }
