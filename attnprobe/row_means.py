"""Masses averaged over stretches of a prompt's own rows: the question's, and blocks of the whole prompt.

They are reduced in the calls that the prompt is fed in, some rows at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from attnprobe.row_block import RowBlock, SampleSpans
from attnprobe_kernels import Segments, prefill_map

MAX_BLOCKS = 64
"""Blocks that a prompt's rows are averaged over, at most."""
_MASK_NUMBERS = 2**26
"""Rows at a time have no more numbers of a mask than this."""


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


def rows_at_a_time(n_samples: int, n_columns: int, mask: Any, bias: Tensor | None) -> int:
    """How many rows of a call to reduce at once.

    What a mask or a bias says of rows is copied, and copies must not grow with the square of a prompt's length.
    """
    if bias is None and (mask is None or (isinstance(mask, Tensor) and mask.ndim == 2)):
        return n_columns  # no call has more rows
    n_heads = max([1, *(given.shape[1] for given in (mask, bias) if isinstance(given, Tensor) and given.ndim == 4)])
    return max(1, _MASK_NUMBERS // (n_samples * n_heads * n_columns))


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
        Of :func:`attnprobe_kernels.prefill_map`.
    """
    first, stop = int(block.slots[0]), int(block.slots[-1]) + 1
    whole = [np.array(_edges(sample, extra) or (first, first)) for sample in samples]
    here = [(own.clip(first, stop) - first).tolist() for own in whole]
    sinks = None if sink is None else sink.reshape(-1).to(block.query.device)
    means = prefill_map(
        block.query, block.key, tables, edges=here, sinks=sinks, backend=backend, **block.arguments()
    ).float()
    for mean, own, rows in zip(means, whole, here, strict=True):
        parts = np.diff(rows) / np.diff(own).clip(1)  # of each stretch's rows
        for stretch, part in enumerate(parts.tolist()):
            if 0 < part < 1:  # a number of the host's: a table would wait for the device in every layer
                mean[:, stretch].mul_(part)
    return means
