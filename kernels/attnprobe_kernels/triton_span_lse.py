# mypy: disable-error-code="no-untyped-def, index"
"""Span log-sum-exp: one pass over the keys, units of keys aligned to spans, rows packed over a group of heads.

A program owns one unit (a stretch of keys of one segment) and one block of packed rows of one key head; packed row
``a * G + g`` is query row ``a`` of the group's head ``g``. It walks its unit's key tiles with a running maximum and
sum and writes one natural log a row. A second kernel adds units into spans, in a fixed order.

With ``TOP`` both also keep the largest logit and its column, the lowest one on ties, in whatever order tiles come.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attnprobe_kernels.triton_common import FAR, LN2, LOG2E, LOWEST, bend, load_bias, load_part, logits2, product


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
def natural(b_m, scale, softcap, SOFTCAP: tl.constexpr, LATE_SCALE: tl.constexpr):
    """The running maximum as a natural-log logit: its last factor applied, or taken back to base e."""
    if LATE_SCALE:
        return softcap + b_m * (softcap * 2.0) if SOFTCAP > 0 else b_m * scale
    else:
        return b_m * LN2


@triton.jit(do_not_specialize=["n_rows", "n_blocks", "n_kv_heads"])
def unit_lse_kernel(
    q,
    k,
    visible,  # int32 [B, A, 2]
    units,  # int32 [U, 3]: sample, start, stop
    slopes,  # [Hq] or None
    bias,  # [B, Hq or 1, N] or None
    out,  # float32 [U, Hkv, A * G]
    top,  # float32 [U, Hkv, A * G], or None without TOP
    key,  # int32 [U, Hkv, A * G], or None without TOP
    scale,
    softcap,
    n_rows,
    n_blocks,
    n_kv_heads,
    stride_qb,
    stride_qh,
    stride_qa,
    stride_qd,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_kd,
    stride_bb,
    stride_bh,
    stride_bn,
    G: tl.constexpr,
    D: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BIAS: tl.constexpr,
    ALIBI: tl.constexpr,
    LATE_SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
    TOP: tl.constexpr,
):
    """Natural-log sum of exp(logit) over one unit for one block of packed rows."""
    # Row blocks are the fastest axis: programs that run together share their keys.
    i_program = tl.program_id(0)
    i_block = i_program % n_blocks
    i_h = (i_program // n_blocks) % n_kv_heads
    i_u = (i_program // n_blocks // n_kv_heads).to(tl.int64)
    i_b = tl.load(units + i_u * 3).to(tl.int64)
    start = tl.load(units + i_u * 3 + 1)
    stop = tl.load(units + i_u * 3 + 2)

    b_r = i_block * BM + tl.arange(0, BM)  # [BM] packed row
    b_a, b_g = b_r // G, b_r % G
    m_r = b_a < n_rows
    p_visible = visible + (i_b * n_rows + b_a) * 2
    b_lo = tl.load(p_visible, mask=m_r, other=0)
    b_hi = tl.load(p_visible + 1, mask=m_r, other=0)
    b_own = b_hi - 1
    b_lo, b_hi = tl.maximum(b_lo, start), tl.minimum(b_hi, stop)
    # A row that sees nothing of the unit must not keep the unit's tiles from the mask-free loop.
    m_sees = b_lo < b_hi
    some_from = tl.min(tl.where(m_sees, b_lo, stop), 0) - start
    some_to = tl.max(tl.where(m_sees, b_hi, start), 0) - start
    all_from = tl.max(tl.where(m_sees, b_lo, start), 0) - start
    all_to = tl.min(tl.where(m_sees, b_hi, stop), 0) - start
    # Edge tiles are narrow, so that ragged ends waste little and masks need few registers.
    first = tl.minimum(some_from, tl.maximum(some_to, 0)) // BE * BE
    free_from = (all_from + BE - 1) // BE * BE
    # Where no row sees anything, both bounds are the unit's ends the wrong way round: there is nothing to walk.
    n_free = tl.where(some_from < some_to, tl.maximum(all_to - free_from, 0) // BN, 0)
    free_from = tl.where(n_free > 0, free_from, first)
    n_leading = (free_from - first) // BE
    free_to = free_from + n_free * BN
    n_edge = n_leading + tl.maximum(some_to - free_to + BE - 1, 0) // BE

    i_hq = (i_h * G + b_g).to(tl.int64)
    b_d = tl.arange(0, D1).to(tl.int64)[None, :]
    p_q = (q + i_b * stride_qb + i_hq * stride_qh + b_a.to(tl.int64) * stride_qa)[:, None]
    b_q = load_part(p_q + b_d * stride_qd, m_sees[:, None], b_d, 0, D1, D)
    if D2 > 0:
        b_d2 = D1 + tl.arange(0, D2).to(tl.int64)[None, :]
        b_q2 = load_part(p_q + b_d2 * stride_qd, m_sees[:, None], b_d2, D1, D2, D)
    else:
        b_q2 = None
    p_k = k + i_b * stride_kb + i_h.to(tl.int64) * stride_kh + start.to(tl.int64) * stride_kn
    b_slope = tl.load(slopes + i_hq).to(tl.float32) if ALIBI else None
    if BIAS > 0:
        p_bias = bias + i_b * stride_bb + start.to(tl.int64) * stride_bn
        if BIAS > 1:
            p_bias += (i_hq * stride_bh)[:, None]
    else:
        p_bias = None

    b_m = tl.full([BM], LOWEST, tl.float32)
    b_l = tl.zeros([BM], tl.float32)
    b_at = tl.full([BM], FAR, tl.int32) if TOP else 0
    for i in range(n_edge):
        column = tl.where(i < n_leading, first + i * BE, free_to + (i - n_leading) * BE)
        b_m, b_l, b_at = take_tile(
            b_m, b_l, b_at, column, start, stop, b_lo, b_hi, b_own, b_slope, b_q, b_q2, p_k, p_bias, stride_kn,
            stride_kd, stride_bn, scale, softcap, D, D1, D2, BE, SOFTCAP, BIAS, ALIBI, LATE_SCALE, PRECISION, TOP,
            True, True,
        )  # fmt: skip
    for i in range(n_free):
        b_m, b_l, b_at = take_tile(
            b_m, b_l, b_at, free_from + i * BN, start, stop, b_lo, b_hi, b_own, b_slope, b_q, b_q2, p_k, p_bias,
            stride_kn, stride_kd, stride_bn, scale, softcap, D, D1, D2, BN, SOFTCAP, BIAS, ALIBI, LATE_SCALE,
            PRECISION, TOP, True, False,
        )  # fmt: skip

    b_m = natural(b_m, scale, softcap, SOFTCAP, LATE_SCALE)
    b_lse = tl.where(m_sees, b_m + tl.log2(b_l) * LN2, float("-inf"))
    i_out = (i_u * n_kv_heads + i_h) * (n_rows * G) + b_r
    tl.store(out + i_out, b_lse, mask=m_r)
    if TOP:
        m_top = m_sees & (b_at < FAR)
        tl.store(top + i_out, tl.where(m_top, b_m, float("-inf")), mask=m_r)
        tl.store(key + i_out, tl.where(m_top, b_at, FAR), mask=m_r)


@triton.jit(do_not_specialize=["n_rows", "n_blocks", "n_kv_heads", "n_spans"])
def merge_units_kernel(
    lse_units,  # float32 [U, Hkv, A * G]
    edges,  # int32 [B * S + 1]: units of sample b and span s are edges[b * S + s] to the next entry
    out,  # float32 [B, Hq, A, S]
    top_units,  # float32 [U, Hkv, A * G], or None without TOP, as the next three
    key_units,  # int32 [U, Hkv, A * G]
    top,  # float32 [B, Hq, A, S]
    key,  # int32 [B, Hq, A, S]
    n_rows,
    n_blocks,
    n_kv_heads,
    n_spans,
    G: tl.constexpr,
    BR: tl.constexpr,
    BU: tl.constexpr,
    TOP: tl.constexpr,
):
    """Add units into spans, always in the same order."""
    i_program = tl.program_id(0)
    i_block = i_program % n_blocks
    i_h = (i_program // n_blocks) % n_kv_heads
    i_bs = i_program // n_blocks // n_kv_heads
    b_r = i_block * BR + tl.arange(0, BR)
    m_r = b_r < n_rows * G
    first, last = tl.load(edges + i_bs), tl.load(edges + i_bs + 1)
    i_first = i_h.to(tl.int64) * (n_rows * G)
    stride_u = n_kv_heads.to(tl.int64) * (n_rows * G)
    b_m = tl.full([BR], LOWEST, tl.float32)
    b_l = tl.zeros([BR], tl.float32)
    b_top = tl.full([BR], float("-inf"), tl.float32)
    b_at = tl.full([BR], FAR, tl.int32)
    for i_u in range(first, last, BU):
        b_u = i_u + tl.arange(0, BU)
        i_lse = i_first + b_u.to(tl.int64)[:, None] * stride_u + b_r[None, :]
        m_lse = (b_u < last)[:, None] & m_r[None, :]
        b_z = tl.load(lse_units + i_lse, mask=m_lse, other=float("-inf")) * LOG2E  # [BU, BR]
        b_max = tl.maximum(b_m, tl.max(b_z, 0))
        b_l = b_l * tl.exp2(b_m - b_max) + tl.sum(tl.exp2(b_z - b_max[None, :]), 0)
        b_m = b_max
        if TOP:
            b_tops = tl.load(top_units + i_lse, mask=m_lse, other=float("-inf"))
            b_keys = tl.load(key_units + i_lse, mask=m_lse, other=FAR)
            b_best = tl.max(b_tops, 0)
            b_place = tl.min(tl.where(b_tops == b_best[None, :], b_keys, FAR), 0)
            b_at = tl.where(b_best > b_top, b_place, b_at)  # units ascend: on ties the earlier ones have it
            b_top = tl.maximum(b_top, b_best)
    b_lse = (b_m + tl.log2(b_l)) * LN2
    i_b, i_s = i_bs // n_spans, i_bs % n_spans
    i_hq = (i_b * n_kv_heads + i_h) * G + b_r % G
    i_out = (i_hq.to(tl.int64) * n_rows + b_r // G) * n_spans + i_s
    tl.store(out + i_out, b_lse, mask=m_r)
    if TOP:
        # Where the sum is nan, no key is the heaviest.
        tl.store(top + i_out, tl.where(b_lse == b_lse, b_top, float("nan")), mask=m_r)
        tl.store(key + i_out, tl.where((b_lse == b_lse) & (b_at < FAR), b_at, -1), mask=m_r)
