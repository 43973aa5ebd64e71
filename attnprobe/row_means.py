"""Masses averaged over stretches of a prompt's own rows: the question's, and blocks of the whole prompt.

They are reduced in the calls that the prompt is fed in, some rows at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from attnprobe.extras import span_masses
from attnprobe.reduction import with_sink
from attnprobe.row_block import RowBlock, SampleSpans
from attnprobe_kernels import Segments, span_lse

MAX_BLOCKS = 64
"""Blocks that a prompt's rows are averaged over, at most."""
_MAX_ROWS = 512
_NUMBERS = 2**24
"""Rows at a time have no more log-sum-exps than this: 64 MiB."""


def prompt_edges(n_prompt: int) -> tuple[int, ...]:
    """Edges of at most ``MAX_BLOCKS`` blocks of equal size; the last block may be shorter.

    Block b holds the rows of the positions ``edges[b]`` to ``edges[b + 1] - 1``.
    """
    size = -(-n_prompt // MAX_BLOCKS)
    return (*range(0, n_prompt, size), n_prompt)


def _edges(sample: SampleSpans, extra: str) -> tuple[int, ...]:
    """Slots at which a sample's stretches begin, and the end of the last; empty where it has none."""
    edges = sample.question or () if extra == "question" else prompt_edges(sample.n_prompt)
    return tuple(sample.pad + edge for edge in edges)


def stretches(samples: Sequence[SampleSpans], extras: Collection[str]) -> dict[str, tuple[int, int]]:
    """Slots from the first to behind the last row that an extra averages over, by extra; without those of no rows."""
    found = {}
    for extra in ("question", "prompt"):
        own = [edges for sample in samples if extra in extras and (edges := _edges(sample, extra))]
        if own:
            found[extra] = (min(edges[0] for edges in own), max(edges[-1] for edges in own))
    return found


def rows_at_a_time(n_samples: int, n_heads: int, n_spans: int) -> int:
    """How many rows to reduce at once, so that memory does not depend on how many there are."""
    return max(1, min(_MAX_ROWS, _NUMBERS // (n_samples * n_heads * n_spans)))


def _weights(samples: Sequence[SampleSpans], extra: str, slots: np.ndarray) -> np.ndarray:
    """Weight of each row in the mean of each of its sample's stretches, float32 ``[B, A, stretch]``."""
    edges = [_edges(sample, extra) for sample in samples]
    weights = np.zeros((len(samples), len(slots), max(map(len, edges)) - 1), dtype=np.float32)
    for number, own in enumerate(edges):
        for stretch, (start, stop) in enumerate(pairwise(own)):
            weights[number, (slots >= start) & (slots < stop), stretch] = 1.0 / (stop - start)
    return weights


def mean_masses(
    block: RowBlock,
    tables: Sequence[Segments],
    sink: Tensor | None,
    samples: Sequence[SampleSpans],
    extra: str,
    backend: str,
) -> Tensor:
    """What a block's rows add to the mean masses of each stretch, float32 ``[B, Hq, stretch, S]``.

    Parameters
    ----------
    block
        The rows.
    tables
        Owners of the columns, one table a sample.
    sink
        The learned sink's logit of each query head, if the layer has one: it is the last span then.
    samples
        Every sample of the batch.
    extra
        ``question`` or ``prompt``.
    backend
        Of :func:`attnprobe_kernels.span_lse`.
    """
    lse = span_lse(block.query, block.key, tables, backend=backend, **block.arguments())
    masses = span_masses(with_sink(sink, lse)).float()
    weights = torch.from_numpy(_weights(samples, extra, block.slots)).to(masses.device)
    return torch.einsum("bhas,ban->bhns", masses, weights)
