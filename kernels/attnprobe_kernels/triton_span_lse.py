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

from attnprobe_kernels.triton_common import FAR, LN2, LOG2E, LOWEST, load_interval, load_part
from attnprobe_kernels.triton_unit import natural, seen_bounds, take_unit


@triton.jit(do_not_specialize=["n_rows", "n_blocks", "n_kv_heads", "stride_vb", "stride_va", "stride_bb", "stride_bh"])
def unit_lse_kernel(
    q,
    k,
    visible,  # integers [B, A, 2]
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
    stride_vb,
    stride_va,
    stride_vc,
    stride_bb,
    stride_bh,
    stride_bn,
    stride_slope,
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
    b_lo, b_hi = load_interval(visible, i_b, b_a, m_r, stride_vb, stride_va, stride_vc)
    b_own = b_hi - 1
    b_lo, b_hi = tl.maximum(b_lo, start), tl.minimum(b_hi, stop)
    # A row that sees nothing of the unit must not keep the unit's tiles from the mask-free loop.
    m_sees = b_lo < b_hi
    some_from, some_to, all_from, all_to = seen_bounds(b_lo, b_hi, m_sees)

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
    b_slope = tl.load(slopes + i_hq * stride_slope).to(tl.float32) if ALIBI else None
    if BIAS > 0:
        p_bias = bias + i_b * stride_bb + start.to(tl.int64) * stride_bn
        if BIAS > 1:
            p_bias += (i_hq * stride_bh)[:, None]
    else:
        p_bias = None

    b_m = tl.full([BM], LOWEST, tl.float32)
    b_l = tl.zeros([BM], tl.float32)
    b_at = tl.full([BM], FAR, tl.int32) if TOP else 0
    b_m, b_l, b_at = take_unit(
        b_m, b_l, b_at, some_from, some_to, all_from, all_to, start, stop, b_lo, b_hi, b_own, b_slope, b_q, b_q2, p_k,
        p_bias, stride_kn, stride_kd, stride_bn, scale, softcap, D, D1, D2, BN, BE, SOFTCAP, BIAS, ALIBI, LATE_SCALE,
        PRECISION, TOP, True,
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
    unit_edges,  # int32 [B * S + 1]: the units of sample b and span s are unit_edges[b * S + s] to the next entry
    sinks,  # [Hq] natural log, or None
    out,  # float32 [B, Hq, A, columns]: the spans, then the sink if there is one
    top_units,  # float32 [U, Hkv, A * G], or None without TOP, as the next three
    key_units,  # int32 [U, Hkv, A * G]
    top,  # float32 [B, Hq, A, columns]
    key,  # int32 [B, Hq, A, columns]
    n_rows,
    n_blocks,
    n_kv_heads,
    n_spans,
    stride_sink,
    G: tl.constexpr,
    BR: tl.constexpr,
    BU: tl.constexpr,
    TOP: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Add units into spans, always in the same order; a sink is one more column, and no key."""
    i_program = tl.program_id(0)
    i_block = i_program % n_blocks
    i_h = (i_program // n_blocks) % n_kv_heads
    n_columns = n_spans + (1 if SINKS else 0)
    i_b = i_program // n_blocks // n_kv_heads // n_columns
    i_s = i_program // n_blocks // n_kv_heads % n_columns
    is_span = i_s < n_spans
    b_r = i_block * BR + tl.arange(0, BR)
    m_r = b_r < n_rows * G
    p_edges = unit_edges + i_b * n_spans + i_s
    first, last = tl.load(p_edges, mask=is_span, other=0), tl.load(p_edges + 1, mask=is_span, other=0)
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
    b_hq = i_h * G + b_r % G
    if SINKS:
        b_sink = tl.load(sinks + b_hq.to(tl.int64) * stride_sink).to(tl.float32)
        b_lse, b_top = tl.where(is_span, b_lse, b_sink), tl.where(is_span, b_top, b_sink)
    i_head = (i_b * n_kv_heads * G + b_hq).to(tl.int64)
    i_out = (i_head * n_rows + b_r // G) * n_columns + i_s
    tl.store(out + i_out, b_lse, mask=m_r)
    if TOP:
        # Where the sum is nan, no key is the heaviest.
        tl.store(top + i_out, tl.where(b_lse == b_lse, b_top, float("nan")), mask=m_r)
        tl.store(key + i_out, tl.where((b_lse == b_lse) & (b_at < FAR), b_at, -1), mask=m_r)
