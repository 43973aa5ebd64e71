"""Query rows of one layer, together with the keys and values they were given: what every reduction takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from attnprobe_kernels import Segments


@dataclass(frozen=True)
class SampleSpans:
    """One sample of a batch: its left padding and the token ranges of its prompt's spans.

    Slots count from the left edge of the padded batch. What follows the prompt is one more span: the answer.
    """

    pad: int
    n_prompt: int
    spans: tuple[tuple[tuple[int, int], ...], ...]
    seed: int = 0
    """Draws the row that is checked in each layer."""
    first_row: int = 0
    """Slot of the sample's own first row, where that is later than the first captured one."""
    sinks: tuple[int, ...] = ()
    """Indices of the spans that are sinks."""
    question: tuple[int, int] | None = None
    """Tokens of the prompt, half open, that are the question's own."""

    def segments(self, offset: int, n_columns: int) -> Segments:
        """Owners of the key columns that stand for slots ``[offset, offset + n_columns)``; the answer is last."""
        end = offset + n_columns
        ranges = [
            [(start + self.pad, min(stop + self.pad, end)) for start, stop in span if start + self.pad < end]
            for span in self.spans
        ]
        answer = [(min(self.pad + self.n_prompt, end), end)]
        hidden = [(0, min(self.pad, end))]  # the first chunk of a prompt may be all padding
        return Segments.from_spans([*ranges, answer], n_keys=end, hidden=hidden).clip(offset, n_columns)


@dataclass(frozen=True)
class RowBlock:
    """Rows of one attention call.

    Parameters
    ----------
    query, key, value
        ``[B, Hq, A, D]``, ``[B, Hkv, N, D]`` and ``[B, Hkv, N, Dv]`` as attention got them; ``value`` is None where
        nothing asks for values.
    slots
        int64 ``[A]``, the rows' slots.
    offset
        Slot of column 0.
    visible
        int32 ``[B, A, 2]``, the columns that each row sees.
    mask
        Takes the place of ``visible`` where that is no interval: as in :func:`attnprobe_kernels.span_lse`.
    scale, softcap
        As in :func:`attnprobe_kernels.span_lse`.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None
    slots: np.ndarray
    offset: int
    visible: np.ndarray
    mask: Tensor | None
    scale: float | None
    softcap: float | None

    @property
    def bounds(self) -> np.ndarray:
        """int32 ``[B, A, 2]``: the columns outside which no row sees anything, whatever the mask says inside."""
        if self.mask is None:
            return self.visible
        return np.broadcast_to(np.array([0, self.key.shape[2]], dtype=np.int32), self.visible.shape)

    def arguments(self, bounds: np.ndarray | None = None) -> dict[str, Any]:
        """What the kernels must know of the logits besides queries and keys; ``bounds`` narrow what the rows see."""
        return {
            "scale": self.scale,
            "softcap": self.softcap,
            "visible": self.bounds if bounds is None else bounds,
            "mask": self.mask,
        }

    def rows(self, start: int, stop: int) -> RowBlock:
        """Some of the rows, with the same keys."""
        return replace(
            self,
            query=self.query[:, :, start:stop],
            slots=self.slots[start:stop],
            visible=self.visible[:, start:stop],
            mask=None if self.mask is None else self.mask[:, :, start:stop],
        )
