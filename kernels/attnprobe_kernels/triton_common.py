# mypy: disable-error-code="no-untyped-def, index"
"""What the kernels share: the head dimension in two parts, and the step from a dot product to a logit.

Inside the kernels logits are kept in base 2 (a factor log2(e) goes into the scale that is applied anyway), because
the hardware's exponential is one instruction there. What leaves a kernel is a natural log.

A tile may be ``[rows, keys]`` or ``[keys, rows]``: what varies by row or by key comes with a shape that broadcasts.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-1.0e30)
"""Running maximum before any key was seen: finite, so that no difference of two infinities arises."""

FAR = tl.constexpr(2**31 - 1)
"""Beyond every row and column."""

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Triton's interpreter computes wrong products of bfloat16."""


@triton.jit
def load_part(p_part, m_vector, b_d, FIRST: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr):
    """Elements ``b_d`` (``FIRST`` to ``FIRST + WIDTH``) of vectors; zero beyond ``D`` and where not ``m_vector``."""
    if FIRST + WIDTH > D:
        m_d = b_d < D
        if m_vector is None:
            return tl.load(p_part, mask=m_d, other=0.0)
        else:
            return tl.load(p_part, mask=m_d & m_vector, other=0.0)
    else:
        if m_vector is None:
            return tl.load(p_part)
        else:
            return tl.load(p_part, mask=m_vector, other=0.0)


@triton.jit
def load_interval(visible, i_b, b_a, m_a, stride_vb, stride_va, stride_vc):
    """Columns that rows ``b_a`` of a sample see, from and to: int32, and none where not ``m_a``."""
    p_visible = visible + i_b * stride_vb + b_a.to(tl.int64) * stride_va
    b_lo = tl.load(p_visible, mask=m_a, other=0).to(tl.int32)
    b_hi = tl.load(p_visible + stride_vc, mask=m_a, other=0).to(tl.int32)
    return b_lo, b_hi


@triton.jit
def load_bias(p_bias, m_bias):
    """Biases in float32; half the dtype's minimum or less means unseen, and becomes ``-inf``."""
    if m_bias is None:
        b_bias = tl.load(p_bias).to(tl.float32)
    else:
        b_bias = tl.load(p_bias, mask=m_bias, other=0.0).to(tl.float32)
    if p_bias.dtype.element_ty == tl.float16:
        b_bias = tl.where(b_bias <= -32752.0, float("-inf"), b_bias)
    elif p_bias.dtype.element_ty == tl.bfloat16:
        b_bias = tl.where(b_bias <= -1.6947656946257677e38, float("-inf"), b_bias)
    elif p_bias.dtype.element_ty == tl.float32:
        b_bias = tl.where(b_bias <= -1.7014117331926443e38, float("-inf"), b_bias)
    return b_bias


@triton.jit
def product(b_x, b_y, b_x2, b_y2, PRECISION: tl.constexpr):
    """``b_x @ b_y`` in float32, plus ``b_x2 @ b_y2`` unless the head dimension has one part."""
    if INTERPRETED:
        b_s = tl.dot(b_x.to(tl.float32), b_y.to(tl.float32), input_precision="ieee")
        if b_x2 is not None:
            b_s = tl.dot(b_x2.to(tl.float32), b_y2.to(tl.float32), b_s, input_precision="ieee")
    else:
        b_s = tl.dot(b_x, b_y, input_precision=PRECISION)
        if b_x2 is not None:
            b_s = tl.dot(b_x2, b_y2, b_s, input_precision=PRECISION)
    return b_s


@triton.jit
def bend(b_s, scale, softcap, SOFTCAP: tl.constexpr):
    """(tanh(x) - 1) / 2 = -1 / (1 + e^2x), x being the scaled dot product over the softcap: between -1 and 0.

    Right at both infinities, and elsewhere to 1e-7 with exact division and powers, as in the interpreter; the
    hardware's approximations of both are a few times coarser (PTX's tanh.approx is right to 5e-4 only). ``SOFTCAP`` is
    1 for portable arithmetic, 2 for an instruction of NVIDIA's: a plain division costs six for operands that do not
    occur here.
    """
    b_denominator = 1.0 + tl.exp2(b_s * (scale / softcap * (2.0 * LOG2E)))
    if SOFTCAP == 2:
        b_reciprocal = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [b_denominator], tl.float32, is_pure=True, pack=1
        )
    else:
        b_reciprocal = 1.0 / b_denominator
    return -b_reciprocal


@triton.jit
def logits2(b_s, b_bias, b_slope, b_distance, scale, softcap, SOFTCAP: tl.constexpr):
    """Base-2 logits of dot products ``b_s``: scale, softcap, natural-log bias, slope times distance."""
    if SOFTCAP > 0:
        b_z = softcap * LOG2E + (2.0 * LOG2E * softcap) * bend(b_s, scale, softcap, SOFTCAP)
    else:
        b_z = b_s * (scale * LOG2E)
    if b_bias is not None:
        b_z += b_bias * LOG2E
    if b_slope is not None:
        b_z += (b_slope * LOG2E) * b_distance
    if b_bias is not None:
        # A hidden key may hold nan, and no sum takes that away.
        b_z = tl.where(b_bias == float("-inf"), float("-inf"), b_z)
    return b_z
