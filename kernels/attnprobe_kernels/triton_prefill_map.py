# mypy: disable-error-code="no-untyped-def, index"
"""Mean span mass of blocks of rows, from the unit log-sum-exps that the span kernel wrote for those rows."""

from __future__ import annotations

import triton
import triton.language as tl

from attnprobe_kernels.triton_common import LOG2E, LOWEST
from attnprobe_kernels.triton_span_lse import add_units


@triton.jit(do_not_specialize=["n_rows", "n_blocks", "n_parts", "n_q_heads", "n_spans", "block"])
def block_mass_kernel(
    lse_units,  # float32 [U, Hkv, A * G]
    edges,  # int32 [B * S + 1]: units of sample b and span s are edges[b * S + s] to the next entry
    sinks,  # [Hq] natural log, or None
    out,  # float32 [B, Hq, n_blocks, n_parts, S], plus one column with sinks
    n_rows,
    n_blocks,
    n_parts,
    n_q_heads,
    n_spans,
    block,
    G: tl.constexpr,
    BR: tl.constexpr,
    BU: tl.constexpr,
    SINKS: tl.constexpr,
):
    """What the rows of one part of a block add to its mean span masses, always in the same order."""
    i_program = tl.program_id(0)
    i_part = i_program % n_parts
    i_block = i_program // n_parts % n_blocks
    i_hq = i_program // n_parts // n_blocks % n_q_heads
    i_b = i_program // n_parts // n_blocks // n_q_heads
    n_kv_heads = n_q_heads // G
    b_a = i_part * BR + tl.arange(0, BR)  # row within the block
    n_in_block = tl.minimum(n_rows - i_block * block, block)
    m_r = b_a < n_in_block
    b_a += i_block * block
    b_r = b_a * G + i_hq % G
    p_units = lse_units + (i_hq // G).to(tl.int64) * (n_rows * G)
    stride_u = n_kv_heads.to(tl.int64) * (n_rows * G)
    p_edges = edges + i_b * n_spans

    b_m = tl.full([BR], LOWEST, tl.float32)
    b_l = tl.zeros([BR], tl.float32)
    last = tl.load(p_edges + n_spans)
    for i_u in range(tl.load(p_edges), last, BU):
        b_m, b_l = add_units(b_m, b_l, p_units, i_u, last, b_r, m_r, stride_u, BU)
    n_columns = n_spans
    if SINKS:
        n_columns += 1
        sink = tl.load(sinks + i_hq).to(tl.float32) * LOG2E
        b_max = tl.maximum(b_m, sink)
        b_l = b_l * tl.exp2(b_m - b_max) + tl.exp2(sink - b_max)
        b_m = b_max
    # A row that sees nothing has no mass; its total must not turn that into nan.
    b_total = tl.where(b_l == 0, 0.0, b_m + tl.log2(b_l))  # base 2

    p_out = out + i_program.to(tl.int64) * n_columns
    for i_s in range(n_spans):
        b_m = tl.full([BR], LOWEST, tl.float32)
        b_l = tl.zeros([BR], tl.float32)
        last = tl.load(p_edges + i_s + 1)
        for i_u in range(tl.load(p_edges + i_s), last, BU):
            b_m, b_l = add_units(b_m, b_l, p_units, i_u, last, b_r, m_r, stride_u, BU)
        b_mass = tl.where(m_r, b_l * tl.exp2(b_m - b_total), 0.0)
        tl.store(p_out + i_s, tl.sum(b_mass, 0) / n_in_block)
    if SINKS:
        b_mass = tl.where(m_r, tl.exp2(sink - b_total), 0.0)
        tl.store(p_out + n_spans, tl.sum(b_mass, 0) / n_in_block)
