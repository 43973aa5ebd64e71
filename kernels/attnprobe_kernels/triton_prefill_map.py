# mypy: disable-error-code="no-untyped-def, index, attr-defined"
"""Mean span masses of blocks of rows: each logit computed once, in a workspace that does not grow with the rows.

A program takes tiles of query rows of one head, one after the other. For a tile it walks over the spans with the tile
code of the span kernel and leaves each row's log-sum-exp of each span in a scratch of its own, ``[S, rows of a tile]``:
a row's masses can only be told when its last span is known. Then it turns them into masses and adds up those of each
piece, the rows that a tile and a block have in common. A second kernel adds the pieces of blocks that have several.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attnprobe_kernels.triton_common import LN2, LOG2E, LOWEST, load_interval, load_part
from attnprobe_kernels.triton_unit import natural, seen_bounds, take_unit


@triton.jit(
    do_not_specialize=[
        *("n_tiles", "n_q_heads", "n_spans", "n_shares", "stride_ob", "stride_oh"),
        *("stride_vb", "stride_va", "stride_bb", "stride_bh"),
    ]
)
def prefill_map_kernel(
    q,
    k,
    visible,  # integers [B, A, 2]
    units,  # int32 [U, 3]: sample, start, stop; here a unit is a whole segment
    unit_edges,  # int32 [B * S + 1]: the units of sample b and span s are unit_edges[b * S + s] to the next entry
    pieces,  # int32 [P, 3]: first row and end, and the number of rows of its block
    tile_edges,  # int32 [B * n_tiles + 1]: those of sample b and tile t are tile_edges[b * n_tiles + t] to the next one
    slopes,  # [Hq] or None
    bias,  # [B, Hq or 1, N] or None
    sinks,  # [Hq] natural log, or None
    scratch,  # float32 [programs, S, BM]
    out,  # float32, columns of all pieces (the spans, then the sink if there is one) by sample and head
    scale,
    softcap,
    n_tiles,
    n_q_heads,
    n_spans,
    n_shares,  # programs of one head of one sample
    stride_ob,
    stride_oh,
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
    stride_sink,
    G: tl.constexpr,
    D: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BE: tl.constexpr,
    BR: tl.constexpr,
    BS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BIAS: tl.constexpr,
    ALIBI: tl.constexpr,
    LATE_SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
    SINKS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """What the rows of each piece add to the mean span masses of their block, always in the same order."""
    # Heads are the fastest axis: programs that run together share their keys.
    i_program = tl.program_id(0)
    i_hq = i_program % n_q_heads
    i_share = i_program // n_q_heads % n_shares
    i_b = (i_program // n_q_heads // n_shares).to(tl.int64)
    n_columns = n_spans.to(tl.int64) + (1 if SINKS else 0)
    b_row = tl.arange(0, BM)
    p_scratch = scratch + i_program.to(tl.int64) * (n_spans * BM)
    p_unit_edges = unit_edges + i_b * n_spans
    p_keys = k + i_b * stride_kb + (i_hq // G).to(tl.int64) * stride_kh
    p_head_bias = bias + i_b * stride_bb + i_hq.to(tl.int64) * stride_bh if BIAS else None
    slope = tl.load(slopes + i_hq.to(tl.int64) * stride_slope).to(tl.float32) if ALIBI else None
    p_out = out + i_b * stride_ob + i_hq.to(tl.int64) * stride_oh
    p_tile_edges = tile_edges + i_b * n_tiles
    for i_turn in range((n_tiles - i_share + n_shares - 1) // n_shares):
        i_tile = n_tiles - 1 - i_share - i_turn * n_shares  # the latest rows see the most and come first
        first_piece, last_piece = tl.load(p_tile_edges + i_tile), tl.load(p_tile_edges + i_tile + 1)
        # Rows of no block count as rows that see nothing; a sample's pieces lie side by side.
        m_pieces = first_piece < last_piece
        from_row = tl.load(pieces + first_piece * 3, mask=m_pieces, other=0)
        to_row = tl.load(pieces + last_piece * 3 - 2, mask=m_pieces, other=0)
        b_a = i_tile * BM + b_row
        m_a = (b_a >= from_row) & (b_a < to_row)
        b_lo, b_hi = load_interval(visible, i_b, b_a, m_a, stride_vb, stride_va, stride_vc)
        m_sees = b_lo < b_hi
        some_from, some_to, all_from, all_to = seen_bounds(b_lo, b_hi, m_sees)
        p_q = q + i_b * stride_qb + i_hq.to(tl.int64) * stride_qh + (i_tile * BM).to(tl.int64) * stride_qa
        b_rw, b_d = b_row[:, None], tl.arange(0, D1)[None, :]
        if WIDE:
            b_rw, b_d = b_rw.to(tl.int64), b_d.to(tl.int64)
        b_q = load_part(p_q + (b_rw * stride_qa + b_d * stride_qd), m_sees[:, None], b_d, 0, D1, D)
        if D2 > 0:
            b_d2 = D1 + tl.arange(0, D2)[None, :]
            if WIDE:
                b_d2 = b_d2.to(tl.int64)
            b_q2 = load_part(p_q + (b_rw * stride_qa + b_d2 * stride_qd), m_sees[:, None], b_d2, D1, D2, D)
        else:
            b_q2 = None
        b_slope = tl.full([BM], 0.0, tl.float32) + slope if ALIBI else None

        for i_s in range(tl.where(from_row < to_row, n_spans, 0)):
            b_m = tl.full([BM], LOWEST, tl.float32)
            b_l = tl.zeros([BM], tl.float32)
            b_at = 0  # nobody asks for columns
            for i_u in range(tl.load(p_unit_edges + i_s), tl.load(p_unit_edges + i_s + 1)):
                start = tl.load(units + i_u * 3 + 1)
                stop = tl.load(units + i_u * 3 + 2)
                p_k = p_keys + start.to(tl.int64) * stride_kn
                p_bias = p_head_bias + start.to(tl.int64) * stride_bn if BIAS else None
                b_m, b_l, b_at = take_unit(
                    b_m, b_l, b_at, some_from, some_to, all_from, all_to, start, stop, b_lo, tl.minimum(b_hi, stop),
                    b_hi - 1, b_slope, b_q, b_q2, p_k, p_bias, stride_kn, stride_kd, stride_bn, scale, softcap, D, D1,
                    D2, BN, BE, SOFTCAP, BIAS, ALIBI, LATE_SCALE, PRECISION, False, WIDE,
                )  # fmt: skip
            # Rows that see nothing took part in the mask-free tiles.
            b_lse = natural(b_m, scale, softcap, SOFTCAP, LATE_SCALE) + tl.log2(b_l) * LN2
            b_lse = tl.where(m_sees, b_lse, float("-inf")) * LOG2E
            tl.store(p_scratch + i_s * BM + b_row, b_lse)
        tl.debug_barrier()  # what one thread wrote, another reads

        for i_piece in range(first_piece, last_piece):
            first_row = tl.load(pieces + i_piece * 3)
            stop_row = tl.load(pieces + i_piece * 3 + 1)
            n_in_block = tl.load(pieces + i_piece * 3 + 2)
            b_r = first_row - i_tile * BM + tl.arange(0, BR)
            m_r = b_r < stop_row - i_tile * BM
            b_m = tl.full([BR], LOWEST, tl.float32)
            b_l = tl.zeros([BR], tl.float32)
            if SINKS:
                sink = tl.load(sinks + i_hq.to(tl.int64) * stride_sink).to(tl.float32) * LOG2E
                b_m = tl.maximum(b_m, sink)
                b_l += tl.exp2(sink - b_m)
            for first_span in range(0, n_spans, BS):
                b_s = first_span + tl.arange(0, BS)
                p_lse = p_scratch + b_s[:, None] * BM + b_r[None, :]
                b_lse = tl.load(p_lse, mask=(b_s < n_spans)[:, None] & m_r[None, :], other=float("-inf"))  # [BS, BR]
                b_max = tl.maximum(b_m, tl.max(b_lse, 0))
                b_l = b_l * tl.exp2(b_m - b_max) + tl.sum(tl.exp2(b_lse - b_max[None, :]), 0)
                b_m = b_max
            # A row that sees nothing has no mass: an infinite total takes every share to zero.
            b_total = tl.where(m_r & (b_l != 0), b_m + tl.log2(b_l), float("inf"))
            p_piece = p_out + i_piece * n_columns
            for first_span in range(0, n_spans, BS):
                b_s = first_span + tl.arange(0, BS)
                p_lse = p_scratch + b_s[:, None] * BM + b_r[None, :]
                b_lse = tl.load(p_lse, mask=(b_s < n_spans)[:, None] & m_r[None, :], other=float("-inf"))
                b_mass = tl.sum(tl.exp2(b_lse - b_total[None, :]), 1) / n_in_block
                tl.store(p_piece + b_s, b_mass, mask=b_s < n_spans)
            if SINKS:
                b_sink = tl.where(m_r, tl.exp2(sink - b_total), 0.0)  # it may be nan, and no row's either
                tl.store(p_piece + n_spans, tl.sum(b_sink, 0) / n_in_block)
        tl.debug_barrier()  # the next tile's numbers must not overtake these reads


@triton.jit(do_not_specialize=["n_pieces", "n_blocks", "n_q_heads", "n_columns"])
def add_pieces_kernel(
    pieces_out,  # float32 [Hq, P, columns]
    block_edges,  # int32 [B * n_blocks + 1]: the same of sample b and block r, at b * n_blocks + r
    out,  # float32 [B, Hq, n_blocks, columns]
    n_pieces,
    n_blocks,
    n_q_heads,
    n_columns,
    BP: tl.constexpr,
    BC: tl.constexpr,
):
    """Add the pieces of each block, always in the same order."""
    i_program = tl.program_id(0)
    i_block = i_program % n_blocks
    i_bh = (i_program // n_blocks).to(tl.int64)
    i_hq = i_bh % n_q_heads
    p_edges = block_edges + i_bh // n_q_heads * n_blocks + i_block
    last = tl.load(p_edges + 1)
    for first_column in range(0, n_columns, BC):
        b_c = first_column + tl.arange(0, BC)
        m_c = b_c < n_columns
        b_sum = tl.zeros([BC], tl.float32)
        for i_piece in range(tl.load(p_edges), last, BP):
            b_p = i_piece + tl.arange(0, BP)
            p_mass = pieces_out + (i_hq * n_pieces + b_p)[:, None] * n_columns + b_c[None, :]
            b_sum += tl.sum(tl.load(p_mass, mask=(b_p < last)[:, None] & m_c[None, :], other=0.0), 0)
        tl.store(out + (i_bh * n_blocks + i_block) * n_columns + b_c, b_sum, mask=m_c)
