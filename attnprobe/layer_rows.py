"""Layers under capture: what each keeps until the end, and what it gives then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from attnprobe.extras import ColumnSums
from attnprobe.reference import Residual


@dataclass(frozen=True)
class LayerExtras:
    """What one layer gave beside the masses, on the CPU; None where it was not asked for.

    Parameters
    ----------
    top_logit
        float32 ``[B, Hq, A, S]``: the largest logit of a key of each span.
    top_slot
        int64 ``[B, Hq, A, S]``: that key's slot; -1 where a row sees none, and for a learned sink.
    columns
        float32 ``[B, Hq, slots]``: mass of each slot, summed over the sample's own rows.
    key_mass, key_slot
        float32 and int64 ``[B, 1, A, N_KEYS]``: see :func:`attnprobe.extras.heaviest_keys`.
    distance
        float32 ``[B, Hq, A, bin]``: mass by distance, see :func:`attnprobe.extras.distance_mass`.
    value_lse
        float32 ``[B, Hq, A, spans + 1]``: log-sum-exps weighted by what the keys write; no learned sink.
    means
        By extra, ``question`` or ``prompt``: masses averaged over stretches of rows, float32 ``[B, Hq, stretch, S]``.
    """

    top_logit: Tensor | None = None
    top_slot: Tensor | None = None
    columns: Tensor | None = None
    key_mass: Tensor | None = None
    key_slot: Tensor | None = None
    distance: Tensor | None = None
    value_lse: Tensor | None = None
    means: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerRows:
    """What one layer gave.

    Parameters
    ----------
    layer
        The model's index of the layer.
    lse
        float32 ``[B, Hq, A, S]`` on the CPU: prompt spans, then the answer, then the learned sink if there is one.
    visible
        int64 ``[B, A, S]``: keys of each span that each row sees; 0 for a learned sink, which is no key.
    has_sink
        Whether the last span is a learned sink.
    residual
        float64 ``[B]``: absolute difference, nats, between the log-add over spans and an independent float64 total, for
        one row of each sample.
    magnitude
        float64 ``[B]``: size of that total, nats. float32 logits of this size carry rounding errors in proportion.
    """

    layer: int
    lse: Tensor
    visible: np.ndarray
    has_sink: bool
    residual: np.ndarray
    magnitude: np.ndarray
    extras: LayerExtras = field(default_factory=LayerExtras)


@dataclass(frozen=True)
class LayerPart:
    """What one reduction gave of some of a layer's rows; the names are those of the layer's results."""

    lse: Tensor
    visible: np.ndarray
    top_logit: Tensor | None = None
    top_slot: Tensor | None = None
    key_mass: Tensor | None = None
    key_slot: Tensor | None = None
    distance: Tensor | None = None
    value_lse: Tensor | None = None


class QueryRows:
    """Query rows ``[B, Hq, A, D]`` of one layer, copied into a buffer that grows by doubling.

    One small tensor a step would sit between the cache's large ones and keep the allocator from reusing their memory.
    """

    def __init__(self) -> None:
        self.n_rows = 0
        self._buffer: Tensor | None = None

    def append(self, query: Tensor) -> None:
        """Copy ``query`` behind the rows so far."""
        stop = self.n_rows + query.shape[2]
        if self._buffer is None or stop > self._buffer.shape[2]:
            shape = list(query.shape)
            shape[2] = max(64, 2 * stop)
            grown = query.new_empty(shape)
            if self._buffer is not None:
                grown[:, :, : self.n_rows] = self._buffer[:, :, : self.n_rows]
            self._buffer = grown
        self._buffer[:, :, self.n_rows : stop] = query
        self.n_rows = stop

    def take(self, n_rows: int) -> Tensor:
        """The first ``n_rows`` rows, or all there are; the buffer is let go."""
        assert self._buffer is not None
        rows = self._buffer[:, :, : min(n_rows, self.n_rows)]
        self.n_rows, self._buffer = 0, None
        return rows


@dataclass
class LayerState:
    """One attention module under capture."""

    module: nn.Module
    index: int
    source: str | None = None  # of a deferred layer's keys: "cache", "tail" or, captured live, "live"
    cache_layer: Any = None
    tail: list[Tensor] = field(default_factory=list)
    value_tail: list[Tensor] = field(default_factory=list)
    tail_start: int = 0
    tail_stop: int = 0
    queries: QueryRows = field(default_factory=QueryRows)
    arguments: dict[str, Any] = field(default_factory=dict)
    parts: list[LayerPart] = field(default_factory=list)
    columns: ColumnSums = field(default_factory=ColumnSums)
    means: dict[str, Tensor] = field(default_factory=dict)  # by extra, [B, Hq, stretch, S]
    attended: tuple[int, int, Tensor] | None = None  # query heads, one of them, and what attention gave its last row
    factor: Tensor | None = None  # of the output projection, see extras.output_factor
    waiting: list[Callable[[], None]] = field(default_factory=list)  # until the output projection is known
    residuals: list[Residual] = field(default_factory=list)  # one a sample
    entered: int = 0
    observed: int = 0
    last_call: int = 0
