"""What is timed: named shapes of real models, and the operations on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from attnprobe_kernels import Segments, SpanTop, column_mass, prefill_map, span_lse, span_top, visible_intervals

Operation = Literal["span_lse", "span_top", "column_mass", "prefill_map"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
N_DOCUMENTS = 20
ROW_BLOCK = 128
LENGTHS = (4096, 32768, 131072, 524288)


@dataclass(frozen=True)
class Case:
    """One operation on one layer of one prompt (one sample), its rows the last positions, causal.

    Parameters
    ----------
    model
        Name of the head layout.
    n_keys, n_rows
        Keys, and query rows: the last ``n_rows`` of the ``n_keys`` positions. ``prefill_map`` takes all positions.
    window
        Sliding window in tokens, the row's own token included.
    """

    operation: Operation
    model: str
    n_q_heads: int
    n_kv_heads: int
    head_dim: int
    n_keys: int
    n_rows: int
    window: int | None = None

    @property
    def name(self) -> str:
        """How a case is named in tables, in results and by ``--only``."""
        return f"{self.operation} {self.model} N={self.n_keys} A={self.n_rows}"

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.n_q_heads // self.n_kv_heads

    @cached_property
    def visible(self) -> np.ndarray:
        """Visible columns of every row, int32 ``[A, 2]``."""
        return visible_intervals(range(self.n_keys - self.n_rows, self.n_keys), self.n_keys, window=self.window)[0]

    @cached_property
    def n_logits(self) -> int:
        """Pairs of query head, row and key that the row sees: what no algorithm can leave out."""
        lengths = self.visible[:, 1].astype(np.int64) - self.visible[:, 0]
        return self.n_q_heads * int(lengths.sum())

    @property
    def first_key(self) -> int:
        """First key that any row sees."""
        return int(self.visible[:, 0].min())

    @cached_property
    def segments(self) -> Segments:
        """A sink, twenty documents of unequal length with a marker after each, and a question."""
        edges = np.linspace(1, self.n_keys, N_DOCUMENTS + 2) + np.sin(np.arange(N_DOCUMENTS + 2)) * self.n_keys / 100
        cuts = [0, 1]
        for edge in np.clip(edges[1:-1], 1, self.n_keys).astype(int).tolist():
            cuts += [max(edge - 8, cuts[-1]), max(edge, cuts[-1])]
        cuts.append(self.n_keys)
        return Segments.from_bounds(itertools.pairwise(cuts), self.n_keys)


class Inputs(NamedTuple):
    """q ``[1, Hq, A, D]``, k ``[1, Hkv, N, D]`` and, for ``column_mass`` alone, each row's total ``[1, Hq, A]``."""

    q: Tensor
    k: Tensor
    total: Tensor | None


def make_inputs(case: Case, device: torch.device, dtype: torch.dtype, backend: str) -> Inputs:
    """Random queries and keys (seed 0) with a spread of logits of about 2, as real layers have."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(heads: int, tokens: int) -> Tensor:
        shape = (1, heads, tokens, case.head_dim)
        return torch.randn(shape, generator=generator, device=device, dtype=dtype) * 2**0.5

    q, k = draw(case.n_q_heads, case.n_rows), draw(case.n_kv_heads, case.n_keys)
    if case.operation != "column_mass":
        return Inputs(q, k, None)
    lse = span_lse(q, k, case.segments, window=case.window, backend=backend)
    return Inputs(q, k, torch.logsumexp(lse, dim=-1))


def bind(case: Case, inputs: Inputs, backend: str) -> Callable[[], Tensor | SpanTop]:
    """The operation under test as a function of nothing."""
    q, k, total = inputs
    if case.operation == "span_top":
        return lambda: span_top(q, k, case.segments, window=case.window, backend=backend)
    if case.operation == "span_lse":
        return lambda: span_lse(q, k, case.segments, window=case.window, backend=backend)
    if case.operation == "column_mass":
        assert total is not None
        return lambda: column_mass(q, k, total, window=case.window, backend=backend)
    return lambda: prefill_map(q, k, case.segments, block=ROW_BLOCK, window=case.window, backend=backend)


def _llama(operation: Operation, n_keys: int, n_rows: int) -> Case:
    return Case(operation, "llama-3.1-8b", 32, 8, 128, n_keys, n_rows)


HEADLINES = (
    _llama("span_lse", 131072, 256),
    _llama("column_mass", 131072, 256),
    _llama("prefill_map", 32768, 32768),
    _llama("span_lse", 131072, 1),
    _llama("prefill_map", 131072, 131072),
    _llama("span_top", 131072, 256),
)
"""The cases that answer the most."""


def _cases() -> tuple[Case, ...]:
    """Every case, headlines first: a run may end at its time limit."""
    others = (
        Case("span_lse", "qwen3", 64, 4, 128, 131072, 256),
        Case("span_lse", "mha", 32, 32, 128, 131072, 256),
        Case("span_lse", "gemma", 16, 8, 256, 131072, 256, window=1024),
        *(_llama("span_lse", n_keys, n_rows) for n_keys in LENGTHS for n_rows in (1, 32, 256)),
        *(_llama("span_lse", n_keys, 4096) for n_keys in LENGTHS),
        *(_llama("column_mass", n_keys, n_rows) for n_keys in LENGTHS for n_rows in (1, 32, 256, 4096)),
        Case("column_mass", "qwen3", 64, 4, 128, 131072, 256),
        Case("column_mass", "mha", 32, 32, 128, 131072, 256),
        Case("column_mass", "gemma", 16, 8, 256, 131072, 256, window=1024),
        *(_llama("span_top", n_keys, n_rows) for n_keys in (4096, 131072) for n_rows in (1, 256)),
        Case("span_top", "gemma", 16, 8, 256, 131072, 256, window=1024),
        _llama("prefill_map", 4096, 4096),
        Case("prefill_map", "qwen3", 64, 4, 128, 32768, 32768),
        Case("prefill_map", "mha", 32, 32, 128, 32768, 32768),
        Case("prefill_map", "gemma", 16, 8, 256, 32768, 32768, window=1024),
    )
    return tuple(dict.fromkeys((*HEADLINES, *others)))


CASES = _cases()

QUICK_CASES = (
    Case("span_lse", "tiny", 4, 2, 64, 517, 17),
    Case("span_lse", "tiny", 4, 2, 64, 257, 1),
    Case("span_lse", "tiny-window", 4, 2, 64, 257, 17, window=64),
    Case("column_mass", "tiny", 4, 2, 64, 517, 17),
    Case("prefill_map", "tiny", 4, 2, 64, 300, 300),
    Case("span_top", "tiny", 4, 2, 64, 517, 17),
)
"""Shapes for a dry run without a GPU; their times mean nothing."""
