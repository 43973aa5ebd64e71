"""Plain torch on any device, in blocks of keys: memory is bounded whatever the number of keys.

One pass over k. Rows of the query heads that share a key head are packed, so that a key is read once. A block's
logits live in float32; each segment of the block is reduced by log-sum-exp and added to its span.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from attnprobe_kernels.rows import RowArguments, unseen
from attnprobe_kernels.segments import HIDDEN, Segments
from attnprobe_kernels.spans import SpanTop, settle, top_with_sinks, totals_with_sinks, with_sinks

BLOCK_BYTES = 8 * 2**20
"""Bound on one block of float32 logits: small enough to stay in a CPU's cache between the product and its reduction."""

MAX_ROWS = 512
"""Rows of ``prefill_map`` at a time, at most."""
MAX_NUMBERS = 2**24
"""Log-sum-exps of rows of ``prefill_map`` at a time, at most, unless one row has more."""
MAX_PIECES = 64
"""Log-sum-exps of one span that are kept before they are added up."""


def _block_length(n_heads: int, n_rows: int) -> int:
    return max(64, BLOCK_BYTES // (4 * n_heads * n_rows))


def _sample_logits(args: RowArguments, sample: int) -> Iterator[tuple[int, int, Tensor]]:
    """Yield ``(start, stop, z)`` over key blocks that some row sees: z float32 ``[Hkv, G, A, stop - start]``."""
    n_kv_heads, n_keys, head_dim = args.k.shape[1:]
    n_rows = args.q.shape[2]
    group = args.q.shape[1] // n_kv_heads
    visible = args.visible_on_host()[sample]  # [A, 2]
    seeing = visible[visible[:, 1] > visible[:, 0]]
    if not len(seeing):
        return
    first, last = int(seeing[:, 0].min()), int(seeing[:, 1].max())
    all_see_from = int(visible[:, 0].max()) if len(seeing) == n_rows else n_keys
    all_see_to = int(visible[:, 1].min()) if len(seeing) == n_rows else 0
    lo, hi = torch.from_numpy(visible.astype(np.int64)).to(args.q.device).unbind(-1)  # [A]
    packed = args.q[sample].float().reshape(n_kv_heads, group * n_rows, head_dim) * args.scale
    length = _block_length(n_kv_heads, group * n_rows)
    for start in range(first, last, length):
        stop = min(start + length, last)
        keys = args.k[sample, :, start:stop].float()  # [Hkv, C, D]
        z = torch.bmm(packed, keys.transpose(1, 2)).view(n_kv_heads, group, n_rows, stop - start)
        if args.softcap is not None:
            z = z.div_(args.softcap).tanh_().mul_(args.softcap)
        if args.key_bias is not None:
            bias = _heads(args.key_bias[sample, :, start:stop], n_kv_heads, group)[:, :, None]  # [.., .., 1, C]
            z = (z + bias.float()).masked_fill_(unseen(bias), float("-inf"))
        columns = torch.arange(start, stop, device=z.device)
        if args.alibi_slopes is not None:
            slopes = args.alibi_slopes.float().view(n_kv_heads, group, 1, 1)
            z = z + slopes * (columns - (hi - 1)[:, None]).float()
        if start < all_see_from or stop > all_see_to:
            z = z.masked_fill_((columns < lo[:, None]) | (columns >= hi[:, None]), float("-inf"))
        if args.mask is not None:
            mask = _heads(args.mask[sample, ..., start:stop], n_kv_heads, group)  # [Hkv or 1, G or 1, A, C]
            if mask.dtype != torch.bool:
                z = z + mask.float()
            z = z.masked_fill_(unseen(mask), float("-inf"))
        yield start, stop, z


def _heads(tensor: Tensor, n_kv_heads: int, group: int) -> Tensor:
    """Split a leading head axis of Hq into ``[Hkv, G]``, or of 1 into ``[1, 1]``."""
    if tensor.shape[0] == 1:
        return tensor[None]
    return tensor.reshape(n_kv_heads, group, *tensor.shape[1:])


def _span_pieces(args: RowArguments, sample: int, table: Segments) -> Iterator[tuple[int, int, Tensor]]:
    """Yield ``(owner, first column, z)``, ascending: z float32 ``[Hkv, G, A, C]`` of a segment's part in a block."""
    starts, stops = np.asarray(table.starts), np.asarray(table.stops)
    for start, stop, z in _sample_logits(args, sample):
        for index in np.flatnonzero((starts < stop) & (stops > start) & (stops > starts)):
            owner = table.owners[index]
            if owner != HIDDEN:
                first = max(int(starts[index]), start)
                yield owner, first, z[..., first - start : min(int(stops[index]), stop) - start]


class _SpanSums:
    """Log-sum-exps of the pieces of one sample's spans, folded whenever there are many: memory stays bounded."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[Tensor]] = {}

    def add(self, owner: int, z: Tensor) -> None:
        pieces = self._pieces.setdefault(owner, [])
        pieces.append(torch.logsumexp(z, dim=-1))
        if len(pieces) == MAX_PIECES:
            pieces[:] = [torch.logsumexp(torch.stack(pieces), dim=0)]

    def totals(self) -> Iterator[tuple[int, Tensor]]:
        for owner, pieces in self._pieces.items():
            total = pieces[0] if len(pieces) == 1 else torch.logsumexp(torch.stack(pieces), dim=0)
            yield owner, total.masked_fill(total == float("inf"), float("nan"))  # an infinite weight has no share


def _empty_spans(args: RowArguments, segments: list[Segments]) -> Tensor:
    """``-inf`` of every span, float32 ``[S, B, Hq, A]``."""
    n_samples, n_q_heads, n_rows, _ = args.q.shape
    n_spans = max((table.n_spans for table in segments), default=0)
    return args.q.new_full((n_spans, n_samples, n_q_heads, n_rows), float("-inf"), dtype=torch.float32)


def span_lse(args: RowArguments, segments: list[Segments], sinks: Tensor | None) -> Tensor:
    """Log-sum-exp of each span's logits, float32 ``[B, Hq, A, S]``, then the sink's logit; ``-inf`` where a row sees
    none of a span."""
    out = _empty_spans(args, segments)
    for sample, table in enumerate(segments):
        sums = _SpanSums()
        for owner, _, z in _span_pieces(args, sample, table):
            sums.add(owner, z)
        for owner, lse in sums.totals():
            out[owner, sample] = lse.reshape(out.shape[2:])
    return with_sinks(out.permute(1, 2, 3, 0), sinks)


def span_top(args: RowArguments, segments: list[Segments], sinks: Tensor | None) -> SpanTop:
    """Log-sum-exp, largest logit and its lowest column of each span, each ``[B, Hq, A, S]``; then the sink's."""
    out, top = _empty_spans(args, segments), _empty_spans(args, segments)
    key = torch.full_like(top, -1, dtype=torch.int32)
    for sample, table in enumerate(segments):
        sums = _SpanSums()
        for owner, first, z in _span_pieces(args, sample, table):
            sums.add(owner, z)
            largest, place = (x.reshape(top.shape[2:]) for x in z.max(dim=-1))  # the first one on ties; a NaN wins
            before = top[owner, sample]
            better = (largest > before) | (largest.isnan() & ~before.isnan())
            top[owner, sample] = torch.where(better, largest, before)
            key[owner, sample] = torch.where(better, first + place, key[owner, sample]).int()
        for owner, lse in sums.totals():
            out[owner, sample] = lse.reshape(out.shape[2:])
    return top_with_sinks(settle(*(x.permute(1, 2, 3, 0) for x in (out, top, key))), sinks)


def column_mass(args: RowArguments, lse_total: Tensor, sinks: Tensor | None) -> Tensor:
    """Mean over rows of each key's share of exp(lse_total), float32 ``[B, Hq, N]``; a row that sees nothing adds 0."""
    n_samples, n_q_heads = args.q.shape[:2]
    out = args.q.new_zeros((n_samples, n_q_heads, args.k.shape[2]), dtype=torch.float32)
    lse_total = totals_with_sinks(lse_total.float(), sinks)
    for sample in range(n_samples):
        for start, stop, z in _sample_logits(args, sample):
            total = lse_total[sample].reshape(*z.shape[:3], 1)
            # A row without weight has a total of -inf and adds nothing; a total of nan counts for what the row sees.
            share = torch.exp(z - total.masked_fill(total == float("-inf"), float("inf")))
            share.masked_fill_(z == float("-inf"), 0.0)
            out[sample, :, start:stop] = share.mean(dim=2).reshape(n_q_heads, stop - start)
    return out


def prefill_map(args: RowArguments, segments: list[Segments], blocks: np.ndarray, sinks: Tensor | None) -> Tensor:
    """Mean over each block of rows of each span's mass, float32 ``[B, Hq, R, S]``, then the sink's; 0 of no rows."""
    n_samples, n_q_heads = args.q.shape[:2]
    n_columns = max(table.n_spans for table in segments) + (sinks is not None)
    out = args.q.new_zeros((n_samples, n_q_heads, blocks.shape[1] - 1, n_columns), dtype=torch.float32)
    step = max(1, min(MAX_ROWS, MAX_NUMBERS // max(1, n_samples * n_q_heads * n_columns)))
    first, last = int(blocks[:, 0].min()), int(blocks[:, -1].max())
    for start in range(first, last, step):
        stop = min(start + step, last)
        lse = span_lse(args.rows(start, stop), segments, sinks)
        nothing = (lse == float("-inf")).all(dim=-1, keepdim=True)  # such a row has no mass
        mass = torch.softmax(lse, dim=-1).masked_fill(nothing, 0.0)
        inside = blocks.clip(start, stop) - start
        for sample, index in np.argwhere(np.diff(inside) > 0).tolist():
            rows = slice(*inside[sample, index : index + 2].tolist())
            out[sample, :, index] += mass[sample, :, rows].sum(dim=1)
    lengths = torch.from_numpy(np.diff(blocks).clip(1)).to(out.device)  # [B, R]
    return out / lengths[:, None, :, None]
