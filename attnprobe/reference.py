"""An independent float64 total for one sampled row a layer: the check that runs with every measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Residual:
    """Scalars on the model's device, so that nothing waits for them there.

    Parameters
    ----------
    difference
        |log-add over spans - float64 log-sum-exp over all keys|, nats.
    magnitude
        |float64 log-sum-exp over all keys|, nats.
    """

    difference: Tensor
    magnitude: Tensor


_TILE = 65536  # keys converted to float64 at a time


def sampled_residual(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    *,
    scale: float | None,
    softcap: float | None,
    visible: np.ndarray | None,
    mask: Tensor | None,
    sample: int,
    seed: int,
) -> Residual:
    """Compare the spans' total of one row of a sample, drawn at random, with an independent one.

    Parameters
    ----------
    query, key
        ``[B, Hq, A, D]`` and ``[B, Hkv, N, D]``.
    lse
        ``[B, Hq, A, S]``, the span log-sum-exps to check, learned sink not included.
    scale, softcap, visible, mask
        As in :func:`attnprobe_kernels.span_lse`.
    sample
        Which sample of the batch.
    seed
        Draws the head and the row.
    """
    n_heads, n_rows, head_dim = query.shape[1:]
    rng = np.random.default_rng(seed)
    head, row = (int(rng.integers(n)) for n in (n_heads, n_rows))
    lo, hi = (0, key.shape[2]) if visible is None else (int(edge) for edge in visible[sample, row])
    if hi <= lo:
        zero = query.new_zeros((), dtype=torch.float64)
        return Residual(zero, zero)
    q = query[sample, head, row].double()
    k = key[sample, head // (n_heads // key.shape[1])]
    tiles = []
    for start in range(lo, hi, _TILE):
        stop = min(start + _TILE, hi)
        z = (k[start:stop].double() @ q) * (head_dim**-0.5 if scale is None else scale)
        if softcap is not None:
            z = softcap * torch.tanh(z / softcap)
        if mask is not None:
            entries = mask[sample, head if mask.shape[1] > 1 else 0, row, start:stop]
            z = z.masked_fill(~entries, -math.inf) if entries.dtype == torch.bool else z + entries.double()
        tiles.append(torch.logsumexp(z, dim=0))
    total = torch.logsumexp(torch.stack(tiles), dim=0)
    return Residual((torch.logsumexp(lse[sample, head, row].double(), dim=0) - total).abs(), total.abs())
