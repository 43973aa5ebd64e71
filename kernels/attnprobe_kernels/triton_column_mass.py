# mypy: disable-error-code="no-untyped-def, index"
"""Mass of every key: a program keeps one tile of keys and walks over one query head's rows. No atomics.

A first, small kernel writes down which columns the rows of a block see, so that the second can tell which row blocks
see nothing of its tile (left out), all of it (no masks), or a part.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attnprobe_kernels.triton_common import FAR, LOG2E, load_bias, load_interval, load_part, logits2, product


@triton.jit(do_not_specialize=["n_rows", "n_blocks", "n_q_heads", "stride_vb", "stride_va", "stride_tb", "stride_th"])
def row_bounds_kernel(
    visible,  # integers [B, A, 2]
    total,  # [B, Hq, A] natural log
    sinks,  # [Hq] natural log, to be added to the totals, or None
    bounds,  # int32 [B, Hq, row blocks, 4]
    total2,  # float32 [B, Hq, n_blocks * BR] base 2
    n_rows,
    n_blocks,
    n_q_heads,
    stride_vb,
    stride_va,
    stride_vc,
    stride_tb,
    stride_th,
    stride_ta,
    stride_sink,
    BR: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Write what the rows of a block see (some of them from, to; all of them from, to), and base-2 totals."""
    i_program = tl.program_id(0)
    i_block = i_program % n_blocks
    i_hq = i_program // n_blocks % n_q_heads
    i_b = (i_program // n_blocks // n_q_heads).to(tl.int64)
    b_a = i_block * BR + tl.arange(0, BR)
    m_a = b_a < n_rows
    b_lo, b_hi = load_interval(visible, i_b, b_a, m_a, stride_vb, stride_va, stride_vc)
    m_sees = b_lo < b_hi
    # A row that sees nothing shares nothing out: an infinite total takes every share to zero.
    p_total = total + i_b * stride_tb + i_hq.to(tl.int64) * stride_th + b_a.to(tl.int64) * stride_ta
    b_total = tl.load(p_total, mask=m_a, other=0.0).to(tl.float32) * LOG2E
    if SINKS:
        sink = tl.load(sinks + i_hq.to(tl.int64) * stride_sink).to(tl.float32) * LOG2E
        # Two equal numbers may be infinite, and then have no difference.
        b_apart = tl.where(b_total == sink, 0.0, -tl.abs(b_total - sink))
        b_total = tl.maximum(b_total, sink) + tl.log2(1.0 + tl.exp2(b_apart))
    i_bh = i_b * n_q_heads + i_hq
    p_bounds = bounds + (i_bh * n_blocks + i_block) * 4
    tl.store(p_bounds, tl.min(tl.where(m_sees, b_lo, FAR), 0))
    tl.store(p_bounds + 1, tl.max(tl.where(m_sees, b_hi, 0), 0))
    # The masked loop takes a block with rows that see nothing (or are not there), for their q may hold anything, and
    # one with totals of nan, which are none of a column that no row gives weight.
    m_free = m_sees & (b_total == b_total)
    tl.store(p_bounds + 2, tl.max(tl.where(m_free, b_lo, FAR), 0))
    tl.store(p_bounds + 3, tl.min(tl.where(m_free, b_hi, 0), 0))
    p_total2 = total2 + i_bh * (n_blocks * BR) + b_a
    tl.store(p_total2, tl.where(m_sees & (b_total != float("-inf")), b_total, float("inf")))


@triton.jit
def _take_rows(
    b_mass,  # [BN] running sum over rows
    first,  # row
    b_n,  # [BN] column
    b_k,  # [BN, D1]
    b_k2,  # [BN, D2]
    b_bias,  # [BN, 1]
    slope,
    p_q,
    p_total,
    p_visible,
    n_rows,
    stride_qa,
    stride_qd,
    stride_va,
    stride_vc,
    scale,
    softcap,
    D: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    ROWS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Add one block of rows: every row's share of its own total."""
    b_a = first + tl.arange(0, ROWS)
    m_a = b_a < n_rows if MASKED else None
    m_q = m_a[None, :] if MASKED else None
    b_aw = b_a.to(tl.int64)[None, :] * stride_qa
    b_d = tl.arange(0, D1).to(tl.int64)[:, None]
    b_q = load_part(p_q + (b_aw + b_d * stride_qd), m_q, b_d, 0, D1, D)  # [D1, ROWS]
    if D2 > 0:
        b_d2 = D1 + tl.arange(0, D2).to(tl.int64)[:, None]
        b_q2 = load_part(p_q + (b_aw + b_d2 * stride_qd), m_q, b_d2, D1, D2, D)  # [D2, ROWS]
    else:
        b_q2 = None
    b_total = tl.load(p_total + b_a)
    b_s = product(b_k, b_q, b_k2, b_q2, PRECISION)  # [BN, ROWS]
    p_rows = p_visible + b_a.to(tl.int64) * stride_va
    if MASKED:
        b_hi = tl.load(p_rows + stride_vc, mask=m_a, other=0).to(tl.int32)
    elif ALIBI:
        b_hi = tl.load(p_rows + stride_vc).to(tl.int32)
    if ALIBI:
        b_distance = b_n.to(tl.float32)[:, None] - (b_hi - 1).to(tl.float32)[None, :]
        b_z = logits2(b_s, b_bias, slope, b_distance, scale, softcap, SOFTCAP)
    else:
        b_z = logits2(b_s, b_bias, None, None, scale, softcap, SOFTCAP)
    b_share = tl.exp2(b_z - b_total[None, :])
    if MASKED:
        # After the exponential: a total of nan is one for the columns that the row sees, not for all.
        b_lo = tl.load(p_rows, mask=m_a, other=0).to(tl.int32)
        m_share = (b_n[:, None] >= b_lo[None, :]) & (b_n[:, None] < b_hi[None, :]) & (b_z != float("-inf"))
        b_share = tl.where(m_share, b_share, 0.0)
    return b_mass + tl.sum(b_share, 1)


@triton.jit(
    do_not_specialize=[
        *("n_rows", "n_blocks", "n_keys", "n_tiles", "n_kv_heads"),
        *("stride_vb", "stride_va", "stride_bb", "stride_bh"),
    ]
)
def column_mass_kernel(
    q,
    k,
    visible,  # integers [B, A, 2]
    bounds,  # int32 [B, Hq, row blocks, 4]
    total2,  # float32 [B, Hq, n_blocks * BR] base 2, infinite for a row that sees nothing
    slopes,  # [Hq] or None
    bias,  # [B, Hq or 1, N] or None
    out,  # float32 [B, Hq, N]
    scale,
    softcap,
    n_rows,
    n_blocks,
    n_keys,
    n_tiles,
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
    BN: tl.constexpr,
    BR: tl.constexpr,
    BE: tl.constexpr,
    BB: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BIAS: tl.constexpr,
    ALIBI: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Mean over rows of the mass of one tile of keys, for one query head."""
    # The heads of a group are the fastest axis: programs that run together share their keys.
    i_program = tl.program_id(0)
    i_tile = i_program // G % n_tiles
    i_h = i_program // G // n_tiles % n_kv_heads
    i_b = (i_program // G // n_tiles // n_kv_heads).to(tl.int64)
    i_hq = i_h * G + i_program % G
    b_n = i_tile * BN + tl.arange(0, BN)
    m_n = b_n < n_keys
    first, stop = i_tile * BN, tl.minimum(i_tile * BN + BN, n_keys)
    i_bh = i_b * (n_kv_heads * G) + i_hq

    # Row blocks that see some of the tile, and the run of those that see all of it.
    some_first, some_last = n_blocks, 0
    all_first, all_last, n_all = n_blocks, 0, 0
    for i in range(0, n_blocks, BB):
        b_i = i + tl.arange(0, BB)
        m_i = b_i < n_blocks
        p_bounds = bounds + (i_bh * n_blocks + b_i) * 4
        m_some = m_i & (tl.load(p_bounds, mask=m_i, other=0) < stop)
        m_some = m_some & (tl.load(p_bounds + 1, mask=m_i, other=0) > first)
        m_all = m_some & (tl.load(p_bounds + 2, mask=m_i, other=0) <= first)
        m_all = m_all & (tl.load(p_bounds + 3, mask=m_i, other=0) >= stop)
        some_first = tl.minimum(some_first, tl.min(tl.where(m_some, b_i, n_blocks), 0))
        some_last = tl.maximum(some_last, tl.max(tl.where(m_some, b_i + 1, 0), 0))
        all_first = tl.minimum(all_first, tl.min(tl.where(m_all, b_i, n_blocks), 0))
        all_last = tl.maximum(all_last, tl.max(tl.where(m_all, b_i + 1, 0), 0))
        n_all += tl.sum(m_all.to(tl.int32), 0)
    # Intervals in no order can leave gaps in the run: then every block is masked.
    free = (n_all > 0) & (n_all == all_last - all_first)
    all_first = tl.where(free, all_first, some_first)
    all_last = tl.where(free, all_last, some_first)
    n_leading = all_first - some_first
    n_edge = n_leading + tl.maximum(some_last - all_last, 0)

    p_k = (k + i_b * stride_kb + i_h.to(tl.int64) * stride_kh + b_n.to(tl.int64) * stride_kn)[:, None]
    b_d = tl.arange(0, D1).to(tl.int64)[None, :]
    b_k = load_part(p_k + b_d * stride_kd, m_n[:, None], b_d, 0, D1, D)
    if D2 > 0:
        b_d2 = D1 + tl.arange(0, D2).to(tl.int64)[None, :]
        b_k2 = load_part(p_k + b_d2 * stride_kd, m_n[:, None], b_d2, D1, D2, D)
    else:
        b_k2 = None
    slope = tl.load(slopes + i_hq.to(tl.int64) * stride_slope).to(tl.float32) if ALIBI else None
    if BIAS:
        p_bias = bias + i_b * stride_bb + i_hq.to(tl.int64) * stride_bh + b_n.to(tl.int64) * stride_bn
        b_bias = load_bias(p_bias, m_n)[:, None]
    else:
        b_bias = None
    p_q = q + i_b * stride_qb + i_hq.to(tl.int64) * stride_qh
    p_total = total2 + i_bh * (n_blocks * BR)
    p_visible = visible + i_b * stride_vb

    b_mass = tl.zeros([BN], tl.float32)
    for i in range(n_edge * (BR // BE)):
        i_block = i // (BR // BE)
        i_block = tl.where(i_block < n_leading, some_first + i_block, all_last + i_block - n_leading)
        row = i_block * BR + i % (BR // BE) * BE
        b_mass = _take_rows(
            b_mass, row, b_n, b_k, b_k2, b_bias, slope, p_q, p_total, p_visible, n_rows, stride_qa, stride_qd,
            stride_va, stride_vc, scale, softcap, D, D1, D2, BE, SOFTCAP, ALIBI, PRECISION, True,
        )  # fmt: skip
    for i_block in range(all_first, all_last):
        b_mass = _take_rows(
            b_mass, i_block * BR, b_n, b_k, b_k2, b_bias, slope, p_q, p_total, p_visible, n_rows, stride_qa, stride_qd,
            stride_va, stride_vc, scale, softcap, D, D1, D2, BR, SOFTCAP, ALIBI, PRECISION, False,
        )  # fmt: skip
    tl.store(out + i_bh * n_keys + b_n, b_mass / n_rows, mask=m_n)
