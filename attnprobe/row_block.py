"""Query rows of one layer, together with the keys and values they were given: what every reduction takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
        answer = [(self.pad + self.n_prompt, end)]
        return Segments.from_spans([*ranges, answer], n_keys=end, hidden=[(0, self.pad)]).clip(offset, n_columns)


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


def weighted_rows(samples: Sequence[SampleSpans], slots: np.ndarray) -> np.ndarray:
    """Weight of each row in the mean over its sample's question, float32 ``[B, A]``; 0 for rows outside it."""
    weights = np.zeros((len(samples), len(slots)), dtype=np.float32)
    for number, sample in enumerate(samples):
        if sample.question is not None:
            start, stop = sample.question
            inside = (slots >= sample.pad + start) & (slots < sample.pad + stop)
            weights[number, inside] = 1.0 / (stop - start)
    return weights
