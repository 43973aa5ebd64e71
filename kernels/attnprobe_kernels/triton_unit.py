# mypy: disable-error-code="no-untyped-def, index"
"""One unit of keys, tile by tile, taken into the running maximum and sum of a block of rows.

Tiles that some of the rows do not see whole are masked, and narrow, so that ragged ends waste little and masks need few
registers; those between, which all rows see, are wide and free of masks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attnprobe_kernels.triton_common import FAR, LN2, LOG2E, bend, load_bias, load_part, logits2, product


@triton.jit
def take_tile(
    b_m,  # [BM] running maximum
    b_l,  # [BM] running sum of 2 ** (logit - maximum)
    b_at,  # [BM] column of the maximum; handed through without TOP
    first,  # the tile's first column, counted from the unit's start
    start,
    stop,
    b_lo,  # [BM] visible columns
    b_hi,
    b_own,  # [BM] the row's own column
    b_slope,  # [BM]
    b_q,  # [BM, D1]
    b_q2,  # [BM, D2]
    p_k,  # the unit's first key
    p_bias,  # [1] or [BM, 1], the bias of the unit's first key
    stride_kn,
    stride_kd,
    stride_bn,
    scale,
    softcap,
    D: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    TILE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BIAS: tl.constexpr,
    ALIBI: tl.constexpr,
    LATE_SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
    TOP: tl.constexpr,
    WIDE: tl.constexpr,  # whether offsets within a tile of keys can pass 2 ** 31 elements
    MASKED: tl.constexpr,
):
    """Take one key tile into the running maximum and sum."""
    b_j = tl.arange(0, TILE)
    b_n = start + first + b_j
    m_n = (b_n < stop)[None, :] if MASKED else None
    b_jw, b_d = b_j[None, :], tl.arange(0, D1)[:, None]
    if WIDE:
        b_jw, b_d = b_jw.to(tl.int64), b_d.to(tl.int64)
    p_tile = p_k + first.to(tl.int64) * stride_kn
    b_k = load_part(p_tile + (b_jw * stride_kn + b_d * stride_kd), m_n, b_d, 0, D1, D)  # [D1, TILE]
    if D2 > 0:
        b_d2 = D1 + tl.arange(0, D2)[:, None]
        if WIDE:
            b_d2 = b_d2.to(tl.int64)
        b_k2 = load_part(p_tile + (b_jw * stride_kn + b_d2 * stride_kd), m_n, b_d2, D1, D2, D)  # [D2, TILE]
    else:
        b_k2 = None
    b_s = product(b_q, b_k, b_q2, b_k2, PRECISION)  # [BM, TILE]
    if LATE_SCALE:
        # The last factor of the logit rides on the multiply-add inside the exponential.
        if SOFTCAP > 0:
            b_z = bend(b_s, scale, softcap, SOFTCAP)
            late = softcap * (2.0 * LOG2E)
        else:
            b_z = b_s
            late = scale * LOG2E
    else:
        b_bias = load_bias(p_bias + (first.to(tl.int64) + b_jw) * stride_bn, m_n) if BIAS > 0 else None
        if ALIBI:
            b_distance = (start + first - b_own).to(tl.float32)[:, None] + b_j.to(tl.float32)[None, :]
            b_z = logits2(b_s, b_bias, b_slope[:, None], b_distance, scale, softcap, SOFTCAP)
        else:
            b_z = logits2(b_s, b_bias, None, None, scale, softcap, SOFTCAP)
        late = 1.0
    if MASKED:
        b_z = tl.where((b_n[None, :] >= b_lo[:, None]) & (b_n[None, :] < b_hi[:, None]), b_z, float("-inf"))
    b_tile = tl.max(b_z, 1)
    b_max = tl.maximum(b_m, b_tile)
    if TOP:
        b_place = tl.min(tl.where(b_z == b_tile[:, None], b_n[None, :], FAR), 1)
        b_at = tl.where((b_tile > b_m) | ((b_tile == b_m) & (b_place < b_at)), b_place, b_at)
    b_p = tl.exp2(b_z * late - (b_max * late)[:, None])
    b_l = b_l * tl.exp2((b_m - b_max) * late) + tl.sum(b_p, 1)
    return b_max, b_l, b_at


@triton.jit
def seen_bounds(b_lo, b_hi, m_sees):
    """Columns that some of the rows see (from, to), and those that all see of the rows that see anything."""
    some_from = tl.min(tl.where(m_sees, b_lo, FAR), 0)
    some_to = tl.max(tl.where(m_sees, b_hi, 0), 0)
    all_from = tl.max(tl.where(m_sees, b_lo, 0), 0)
    all_to = tl.min(tl.where(m_sees, b_hi, FAR), 0)
    return some_from, some_to, all_from, all_to


@triton.jit
def take_unit(
    b_m,
    b_l,
    b_at,
    some_from,  # as from seen_bounds
    some_to,
    all_from,
    all_to,
    start,
    stop,
    b_lo,
    b_hi,  # no further than the unit's end
    b_own,
    b_slope,
    b_q,
    b_q2,
    p_k,
    p_bias,
    stride_kn,
    stride_kd,
    stride_bn,
    scale,
    softcap,
    D: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    BN: tl.constexpr,
    BE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BIAS: tl.constexpr,
    ALIBI: tl.constexpr,
    LATE_SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
    TOP: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Take what the rows see of one unit: first its edges, then the tiles without masks. Arguments as in take_tile."""
    # Where no row sees anything, there is nothing to walk, whatever the bounds.
    some = tl.maximum(some_from, start) < tl.minimum(some_to, stop)
    first = tl.where(some, tl.maximum(some_from, start) - start, 0) // BE * BE
    end = tl.where(some, tl.minimum(some_to, stop) - start, 0)
    free_from = (tl.maximum(all_from, start) - start + BE - 1) // BE * BE
    n_free = tl.where(some, tl.maximum(tl.minimum(all_to, stop) - start - free_from, 0) // BN, 0)
    free_from = tl.where(n_free > 0, free_from, first)
    n_leading = (free_from - first) // BE
    free_to = free_from + n_free * BN
    n_edge = n_leading + tl.maximum(end - free_to + BE - 1, 0) // BE
    for i in range(n_edge):
        column = tl.where(i < n_leading, first + i * BE, free_to + (i - n_leading) * BE)
        b_m, b_l, b_at = take_tile(
            b_m, b_l, b_at, column, start, stop, b_lo, b_hi, b_own, b_slope, b_q, b_q2, p_k, p_bias, stride_kn,
            stride_kd, stride_bn, scale, softcap, D, D1, D2, BE, SOFTCAP, BIAS, ALIBI, LATE_SCALE, PRECISION, TOP,
            WIDE, True,
        )  # fmt: skip
    for i in range(n_free):
        b_m, b_l, b_at = take_tile(
            b_m, b_l, b_at, free_from + i * BN, start, stop, b_lo, b_hi, b_own, b_slope, b_q, b_q2, p_k, p_bias,
            stride_kn, stride_kd, stride_bn, scale, softcap, D, D1, D2, BN, SOFTCAP, BIAS, ALIBI, LATE_SCALE,
            PRECISION, TOP, WIDE, False,
        )  # fmt: skip
    return b_m, b_l, b_at


@triton.jit
def natural(b_m, scale, softcap, SOFTCAP: tl.constexpr, LATE_SCALE: tl.constexpr):
    """The running maximum as a natural-log logit: its last factor applied, or taken back to base e."""
    if LATE_SCALE:
        return softcap + b_m * (softcap * 2.0) if SOFTCAP > 0 else b_m * scale
    else:
        return b_m * LN2
