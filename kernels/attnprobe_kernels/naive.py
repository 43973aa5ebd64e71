"""The contract: what every backend must compute, written down densely in float64.

Memory is A x N a head, so this is for tests and small inputs only.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from attnprobe_kernels.rows import RowArguments, unseen
from attnprobe_kernels.segments import HIDDEN, Segments
from attnprobe_kernels.spans import SpanTop, settle, top_with_sinks, totals_with_sinks, with_sinks


def logits(args: RowArguments) -> Tensor:
    """Attention logits in float64 ``[B, Hq, A, N]``, ``-inf`` where a row does not see a key."""
    q, k = args.q.double(), args.k.double()
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)  # [B, Hq, N, D]
    z = args.scale * (q @ k.transpose(2, 3))  # [B, Hq, A, N]
    if args.softcap is not None:
        z = args.softcap * torch.tanh(z / args.softcap)
    columns = torch.arange(k.shape[2], device=z.device)
    visible = args.visible_on_device().long()[:, None]  # [B, 1, A, 2]
    lo, hi = visible[..., :1], visible[..., 1:]  # [B, 1, A, 1]
    if args.alibi_slopes is not None:
        z = z + args.alibi_slopes.double()[None, :, None, None] * (columns - (hi - 1))
    hidden = (columns < lo) | (columns >= hi)
    if args.key_bias is not None:
        z = z + args.key_bias.double()[:, :, None, :]
        hidden = hidden | unseen(args.key_bias)[:, :, None, :]
    if args.mask is not None:
        hidden = hidden | unseen(args.mask)
        if args.mask.dtype != torch.bool:
            z = z + args.mask.double()
    return z.masked_fill(hidden, float("-inf"))


def _owners(table: Segments, device: torch.device) -> Tensor:
    """Owning span of every key ``[N]``."""
    starts, stops, owners = (
        torch.tensor(x, dtype=torch.int64, device=device) for x in (table.starts, table.stops, table.owners)
    )
    return owners.repeat_interleave(stops - starts)


def span_lse(args: RowArguments, segments: list[Segments], sinks: Tensor | None) -> Tensor:
    """Log-sum-exp of each span's logits, float64 ``[B, Hq, A, S]``, then the sink's logit; ``-inf`` where a row sees
    none of a span."""
    z = logits(args)
    n_spans = max(table.n_spans for table in segments)
    out = z.new_full((*z.shape[:3], n_spans), float("-inf"))
    for sample, table in enumerate(segments):
        owners = _owners(table, z.device)  # [N]
        for span in range(table.n_spans):
            out[sample, :, :, span] = torch.logsumexp(z[sample][:, :, owners == span], dim=-1)
    out = out.masked_fill(out == float("inf"), float("nan"))  # an infinite weight has no share
    return with_sinks(out, sinks)


def span_top(args: RowArguments, segments: list[Segments], sinks: Tensor | None) -> SpanTop:
    """Log-sum-exp, largest logit (float64) and its lowest column (int32) of each span, each ``[B, Hq, A, S]``; then the
    sink's."""
    z = logits(args)
    lse = span_lse(args, segments, None)
    top = torch.full_like(lse, float("-inf"))
    key = torch.full_like(lse, -1, dtype=torch.int32)
    for sample, table in enumerate(segments):
        owners = _owners(table, z.device)
        for span in owners.unique().tolist():
            if span != HIDDEN:
                columns = torch.nonzero(owners == span)[:, 0]  # [keys of the span]
                top[sample, ..., span], place = z[sample][:, :, columns].max(dim=-1)  # a NaN is the largest
                key[sample, ..., span] = columns[place].int()
    return top_with_sinks(settle(lse, top, key), sinks)


def column_mass(args: RowArguments, lse_total: Tensor, sinks: Tensor | None) -> Tensor:
    """Mean over rows of each key's share of exp(lse_total), float64 ``[B, Hq, N]``; a row that sees nothing adds 0."""
    z = logits(args)
    total = totals_with_sinks(lse_total.double(), sinks)
    total = total.masked_fill(total == float("-inf"), float("inf"))[..., None]
    return torch.exp(z - total).masked_fill(z == float("-inf"), 0.0).mean(dim=2)


def prefill_map(args: RowArguments, segments: list[Segments], blocks: np.ndarray, sinks: Tensor | None) -> Tensor:
    """Mean over each block of rows of each span's mass, float64 ``[B, Hq, R, S]``, then the sink's; 0 of no rows."""
    n_columns = max(table.n_spans for table in segments) + (sinks is not None)
    means = args.q.new_zeros((*args.q.shape[:2], blocks.shape[1] - 1, n_columns), dtype=torch.float64)
    for sample, own in enumerate(blocks.tolist()):
        for index, (start, stop) in enumerate(pairwise(own)):
            if stop > start:
                masses = _row_masses(args.rows(start, stop), segments, sinks)  # [B, Hq, rows, S]
                means[sample, :, index] = masses[sample].mean(dim=1)
    return means


def _row_masses(args: RowArguments, segments: list[Segments], sinks: Tensor | None) -> Tensor:
    """Each span's mass in each row, float64 ``[B, Hq, A, S]``, then the sink's."""
    z = logits(args)
    z = with_sinks(z, sinks)
    mass = torch.softmax(z, dim=-1)
    mass = mass.masked_fill((z == float("-inf")).all(dim=-1, keepdim=True), 0.0)  # a row that sees nothing
    n_spans = max(table.n_spans for table in segments)
    out = mass.new_zeros((*mass.shape[:3], n_spans + (sinks is not None)))
    for sample, table in enumerate(segments):
        owners = _owners(table, z.device)
        for span in range(table.n_spans):
            out[sample, :, :, span] = mass[sample, :, :, : len(owners)][:, :, owners == span].sum(dim=-1)
    if sinks is not None:
        out[..., n_spans] = mass[..., -1]
    # A row that sees a nan has no shares at all, not even of a span without keys.
    return out.masked_fill(mass.isnan().any(dim=-1, keepdim=True), float("nan"))
