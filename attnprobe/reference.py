"""Independent float64 numbers for one sampled row a layer: the checks that run with every measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnprobe.row_block import RowBlock


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


def sampled_residual(block: RowBlock, lse: Tensor, sample: int, seed: int) -> Residual:
    """Compare the spans' total of one row of a sample, drawn at random, with an independent one.

    Parameters
    ----------
    block
        The rows.
    lse
        ``[B, Hq, A, S]``, the span log-sum-exps to check, learned sink not included.
    sample
        Which sample of the batch.
    seed
        Draws the head and the row.
    """
    rng = np.random.default_rng(seed)
    head, row = (int(rng.integers(n)) for n in block.query.shape[1:3])
    z, _ = _logits(block, sample, head, row)
    if not len(z):
        zero = lse.new_zeros((), dtype=torch.float64)
        return Residual(zero, zero)
    total = torch.logsumexp(z, dim=0)
    return Residual((torch.logsumexp(lse[sample, head, row].double(), dim=0) - total).abs(), total.abs())


def attention_output(block: RowBlock, sink: Tensor | None, sample: int, head: int) -> Tensor:
    """What attention gives for the last row of a sample under one query head: float64 ``[Dv]``.

    Parameters
    ----------
    block
        The rows, with values.
    sink
        The learned sinks' logits ``[Hq]``, which take weight and give nothing.
    sample, head
        Which sample of the batch, and which query head.
    """
    assert block.value is not None
    z, start = _logits(block, sample, head, block.query.shape[2] - 1)
    total = torch.logsumexp(z if sink is None else torch.cat([z, sink.detach().reshape(-1)[head, None].to(z)]), dim=0)
    weights = torch.exp(z - total)
    value = block.value[sample, head // (block.query.shape[1] // block.value.shape[1]), start : start + len(z)]
    tiles = zip(weights.split(_TILE), value.split(_TILE), strict=True)
    return torch.stack([weight @ part.to(z) for weight, part in tiles]).sum(dim=0)


def _logits(block: RowBlock, sample: int, head: int, row: int) -> tuple[Tensor, int]:
    """Logits of the keys that one row may see, float64, and the first one's column."""
    n_heads, _, head_dim = block.query.shape[1:]
    lo, hi = (int(edge) for edge in block.bounds[sample, row])
    q = block.query[sample, head, row].double()
    k = block.key[sample, head // (n_heads // block.key.shape[1]), lo : max(lo, hi)]
    z = torch.cat([part.double() @ q for part in k.split(_TILE)]) * (
        1 / math.sqrt(head_dim) if block.scale is None else block.scale
    )
    if block.softcap is not None:
        z = block.softcap * torch.tanh(z / block.softcap)
    if block.mask is not None:
        entries = block.mask[sample, head if block.mask.shape[1] > 1 else 0, row, lo:hi]
        z = z.masked_fill(~entries, -math.inf) if entries.dtype == torch.bool else z + entries.double()
    return z, lo
