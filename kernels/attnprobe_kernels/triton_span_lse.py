# mypy: disable-error-code="no-untyped-def, index"
"""Span log-sum-exp: one pass over the keys, units of keys aligned to spans, rows packed over a group of heads.

A program owns one unit (a stretch of keys of one segment) and one block of packed rows of one key head; packed row
``a * G + g`` is query row ``a`` of the group's head ``g``. It walks its unit's key tiles with a running maximum and
sum and writes one natural log a row. A second kernel adds units into spans, in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attnprobe_kernels.triton_common import LN2, LOG2E, LOWEST, bend, load_part, logits2, product


@triton.jit
def _take_tile(
    b_m,  # [BM] running maximum
    b_l,  # [BM] running sum of 2 ** (logit - maximum)
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
    MASKED: tl.constexpr,
):
    """Take one key tile into the running maximum and sum."""
    b_j = tl.arange(0, TILE)
    b_n = start + first + b_j
    m_n = (b_n < stop)[None, :] if MASKED else None
    b_jw = b_j.to(tl.int64)[None, :]  # a tile of far keys can span more than 2 ** 31 elements
    b_d = tl.arange(0, D1).to(tl.int64)[:, None]
    p_tile = p_k + first.to(tl.int64) * stride_kn
    b_k = load_part(p_tile + (b_jw * stride_kn + b_d * stride_kd), m_n, b_d, 0, D1, D)  # [D1, TILE]
    if D2 > 0:
        b_d2 = D1 + tl.arange(0, D2).to(tl.int64)[:, None]
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
        b_bias = tl.load(p_bias + (first + b_jw) * stride_bn, mask=m_n).to(tl.float32) if BIAS > 0 else None
        if ALIBI:
            b_distance = (start + first - b_own).to(tl.float32)[:, None] + b_j.to(tl.float32)[None, :]
            b_z = logits2(b_s, b_bias, b_slope[:, None], b_distance, scale, softcap, SOFTCAP)
        else:
            b_z = logits2(b_s, b_bias, None, None, scale, softcap, SOFTCAP)
        late = 1.0
    if MASKED:
        b_z = tl.where((b_n[None, :] >= b_lo[:, None]) & (b_n[None, :] < b_hi[:, None]), b_z, float("-inf"))
    b_max = tl.maximum(b_m, tl.max(b_z, 1))
    b_p = tl.exp2(b_z * late - (b_max * late)[:, None])
    b_l = b_l * tl.exp2((b_m - b_max) * late) + tl.sum(b_p, 1)
    return b_max, b_l


@triton.jit(do_not_specialize=["n_rows", "n_blocks", "n_kv_heads"])
def unit_lse_kernel(
    q,
    k,
    visible,  # int32 [B, A, 2]
    units,  # int32 [U, 3]: sample, start, stop
    slopes,  # [Hq] or None
    bias,  # [B, Hq or 1, N] or None
    out,  # float32 [U, Hkv, A * G]
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
    for i in range(n_edge):
        column = tl.where(i < n_leading, first + i * BE, free_to + (i - n_leading) * BE)
        b_m, b_l = _take_tile(
            b_m, b_l, column, start, stop, b_lo, b_hi, b_own, b_slope, b_q, b_q2, p_k, p_bias, stride_kn, stride_kd,
            stride_bn, scale, softcap, D, D1, D2, BE, SOFTCAP, BIAS, ALIBI, LATE_SCALE, PRECISION, True,
        )  # fmt: skip
    for i in range(n_free):
        b_m, b_l = _take_tile(
            b_m, b_l, free_from + i * BN, start, stop, b_lo, b_hi, b_own, b_slope, b_q, b_q2, p_k, p_bias, stride_kn,
            stride_kd, stride_bn, scale, softcap, D, D1, D2, BN, SOFTCAP, BIAS, ALIBI, LATE_SCALE, PRECISION,
            False,
        )  # fmt: skip

    if LATE_SCALE:
        b_m = softcap + b_m * (softcap * 2.0) if SOFTCAP > 0 else b_m * scale
    else:
        b_m *= LN2
    b_lse = tl.where(m_sees, b_m + tl.log2(b_l) * LN2, float("-inf"))
    p_out = out + (i_u * n_kv_heads + i_h) * (n_rows * G) + b_r
    tl.store(p_out, b_lse, mask=m_r)


@triton.jit
def add_units(b_m, b_l, lse_units, i_u, n_units, b_r, m_r, stride_u, BU: tl.constexpr):
    """Take units ``i_u`` to ``i_u + BU``, at most ``n_units``, into a running maximum and sum (base 2) of each row."""
    b_u = i_u + tl.arange(0, BU)
    p_lse = lse_units + b_u.to(tl.int64)[:, None] * stride_u + b_r[None, :]
    m_lse = (b_u < n_units)[:, None] & m_r[None, :]
    b_z = tl.load(p_lse, mask=m_lse, other=float("-inf")) * LOG2E  # [BU, BR]
    b_max = tl.maximum(b_m, tl.max(b_z, 0))
    b_l = b_l * tl.exp2(b_m - b_max) + tl.sum(tl.exp2(b_z - b_max[None, :]), 0)
    return b_max, b_l


@triton.jit(do_not_specialize=["n_rows", "n_blocks", "n_kv_heads", "n_spans"])
def merge_units_kernel(
    lse_units,  # float32 [U, Hkv, A * G]
    edges,  # int32 [B * S + 1]: units of sample b and span s are edges[b * S + s] to the next entry
    out,  # float32 [B, Hq, A, S]
    n_rows,
    n_blocks,
    n_kv_heads,
    n_spans,
    G: tl.constexpr,
    BR: tl.constexpr,
    BU: tl.constexpr,
):
    """Add units into spans, always in the same order."""
    i_program = tl.program_id(0)
    i_block = i_program % n_blocks
    i_h = (i_program // n_blocks) % n_kv_heads
    i_bs = i_program // n_blocks // n_kv_heads
    b_r = i_block * BR + tl.arange(0, BR)
    m_r = b_r < n_rows * G
    first, last = tl.load(edges + i_bs), tl.load(edges + i_bs + 1)
    p_units = lse_units + i_h.to(tl.int64) * (n_rows * G)
    stride_u = n_kv_heads.to(tl.int64) * (n_rows * G)
    b_m = tl.full([BR], LOWEST, tl.float32)
    b_l = tl.zeros([BR], tl.float32)
    for i_u in range(first, last, BU):
        b_m, b_l = add_units(b_m, b_l, p_units, i_u, last, b_r, m_r, stride_u, BU)
    b_lse = (b_m + tl.log2(b_l)) * LN2
    i_b, i_s = i_bs // n_spans, i_bs % n_spans
    i_hq = (i_b * n_kv_heads + i_h) * G + b_r % G
    p_out = out + (i_hq.to(tl.int64) * n_rows + b_r // G) * n_spans + i_s
    tl.store(p_out, b_lse, mask=m_r)
