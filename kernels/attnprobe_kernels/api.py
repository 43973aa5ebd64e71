"""The front door: pinned signatures, argument checks, choice of backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
import torch
from torch import Tensor

from attnprobe_kernels.backends import choose
from attnprobe_kernels.rows import check_blocks, check_devices, check_rows, check_segments, check_tensors
from attnprobe_kernels.segments import Segments
from attnprobe_kernels.shapes import Float, Shaped
from attnprobe_kernels.spans import SpanTop


@torch.no_grad()
def span_lse(
    q: Float[Tensor, "B Hq A D"],
    k: Float[Tensor, "B Hkv N D"],
    segments: Segments | Sequence[Segments],
    *,
    scale: float | None = None,
    q_start: SupportsIndex | None = None,
    window: SupportsIndex | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " Hq"] | None = None,
    key_bias: Float[Tensor, "B #Hq N"] | None = None,
    alibi_slopes: Float[Tensor, " Hq"] | None = None,
    visible: Shaped[Tensor, "B A 2"] | np.ndarray | None = None,
    mask: Shaped[Tensor, "B #Hq A N"] | None = None,
    allow_tf32: bool = False,
    backend: str = "auto",
) -> Float[Tensor, "B Hq A S"]:
    """Log-sum-exp of the attention logits over every span of keys, for every query row.

    A softmax over the last axis gives the span masses. Logits are ``softcap(scale * q . k) + bias``.

    Parameters
    ----------
    q, k
        Queries ``[B, Hq, A, D]`` and keys ``[B, Hkv, N, D]`` as attention got them (rotated, normed); Hq a multiple
        of Hkv. Any floating dtype, any strides.
    segments
        Which span owns each key: one table, or one a sample.
    scale
        Factor on q . k; default ``D ** -0.5``.
    q_start
        Column of the first row; default ``N - A``: the rows are the last A positions. Rows are causal.
    window
        Sliding window in tokens, the row's own token included.
    softcap
        Logits become ``softcap * tanh(logit / softcap)``.
    sinks
        A learned sink's logit per query head: appended as one more span, the last.
    key_bias
        Added to the logits after the softcap, natural log; at most half the dtype's minimum (so ``-inf``) means unseen.
        A key that it alone hides needs a span as any other: whether rows see none but owned keys is judged without it.
    alibi_slopes
        Adds ``slope * (column - the row's own column)``.
    visible
        Integer intervals ``[lo, hi)`` of columns per sample and row, as a numpy array or a tensor on the CPU or beside
        q; replaces ``q_start`` and ``window``.
    mask
        For visibility that is no interval: bool (True = seen), or float added to the logits, where at most half the
        dtype's minimum means unseen. Applies beside ``visible`` when both are given, else alone.
    allow_tf32
        Let ``triton`` multiply float32 in tf32, which is faster and right to three digits.
    backend
        ``triton`` (CUDA and ROCm devices), ``chunked`` (torch, any device, bounded memory), ``naive`` (dense float64,
        for tests) or ``auto``: ``triton`` where it can be used, else ``chunked``. ``triton`` takes float32, float16
        and bfloat16 q and k of one dtype with head dimensions up to 512, and no ``mask``.

    Returns
    -------
    float32 ``[B, Hq, A, S]`` (float64 from ``naive``), natural log; ``-inf`` where a row sees no key of a span, nan
    where a logit of a key that it sees is nan or plus infinity. S is the largest number of spans over the samples, plus
    one with ``sinks``.

    Raises
    ------
    ValueError
        Shapes that do not fit, segments that do not cover the keys, a row that sees a key of no span (intervals and
        masks that are on a device are not looked at, since that would wait for it), an unknown backend.
    """
    args = check_rows(
        q,
        k,
        scale=scale,
        q_start=q_start,
        window=window,
        softcap=softcap,
        key_bias=key_bias,
        alibi_slopes=alibi_slopes,
        visible=visible,
        mask=mask,
        sinks=sinks,
        allow_tf32=allow_tf32,
    )
    tables = check_segments(args, segments)
    with torch.autocast(q.device.type, enabled=False):
        return choose(backend, args).span_lse(args, tables, sinks)


@torch.no_grad()
def span_top(
    q: Float[Tensor, "B Hq A D"],
    k: Float[Tensor, "B Hkv N D"],
    segments: Segments | Sequence[Segments],
    *,
    scale: float | None = None,
    q_start: SupportsIndex | None = None,
    window: SupportsIndex | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " Hq"] | None = None,
    key_bias: Float[Tensor, "B #Hq N"] | None = None,
    alibi_slopes: Float[Tensor, " Hq"] | None = None,
    visible: Shaped[Tensor, "B A 2"] | np.ndarray | None = None,
    mask: Shaped[Tensor, "B #Hq A N"] | None = None,
    allow_tf32: bool = False,
    backend: str = "auto",
) -> SpanTop:
    """Log-sum-exp of every span, and its heaviest key, for every query row: in the same one pass over the keys.

    Parameters
    ----------
    q, k, segments, scale, q_start, window, softcap, sinks, key_bias, alibi_slopes, visible, mask, allow_tf32, backend
        As in :func:`span_lse`.

    Returns
    -------
    :class:`SpanTop`: ``lse`` and ``top_logit`` float32 (float64 from ``naive``), ``top_key`` int32, each
    ``[B, Hq, A, S]``. With ``sinks`` the last column is the learned sink: its logit, and no key (-1). Logits that
    differ by less than float32 can tell may give another key of (nearly) the same logit on another backend; so may
    exact ties where logits have a bias or ALiBi, which ``triton`` adds in base 2, rounded anew.

    Raises
    ------
    ValueError
        As in :func:`span_lse`.
    """
    args = check_rows(
        q,
        k,
        scale=scale,
        q_start=q_start,
        window=window,
        softcap=softcap,
        key_bias=key_bias,
        alibi_slopes=alibi_slopes,
        visible=visible,
        mask=mask,
        sinks=sinks,
        allow_tf32=allow_tf32,
    )
    tables = check_segments(args, segments)
    with torch.autocast(q.device.type, enabled=False):
        return choose(backend, args).span_top(args, tables, sinks)


@torch.no_grad()
def column_mass(
    q: Float[Tensor, "B Hq A D"],
    k: Float[Tensor, "B Hkv N D"],
    lse_total: Float[Tensor, "B Hq A"],
    *,
    scale: float | None = None,
    q_start: SupportsIndex | None = None,
    window: SupportsIndex | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " Hq"] | None = None,
    key_bias: Float[Tensor, "B #Hq N"] | None = None,
    alibi_slopes: Float[Tensor, " Hq"] | None = None,
    visible: Shaped[Tensor, "B A 2"] | np.ndarray | None = None,
    mask: Shaped[Tensor, "B #Hq A N"] | None = None,
    allow_tf32: bool = False,
    backend: str = "auto",
) -> Float[Tensor, "B Hq N"]:
    """Attention mass of every single key, averaged over the rows: the token heatmap.

    Parameters
    ----------
    q, k, scale, q_start, window, softcap, key_bias, alibi_slopes, visible, mask, allow_tf32, backend
        As in :func:`span_lse`.
    lse_total
        Log-sum-exp of each row over everything that takes mass, natural log. Without ``sinks`` it must hold the
        model's learned sink, if there is one: ``torch.logsumexp(span_lse(...), -1)`` of a call with ``sinks`` does.
        So does the ``softmax_lse`` that flash-attn has computed anyway, which saves the pass: float32 over the keys,
        ``[B, Hq, A]`` from ``flash_attn_func(..., causal=True, return_attn_probs=True)`` (take its last rows for the
        last rows of q), ``[Hq, tokens of the batch]`` from ``flash_attn_varlen_func`` (cut it at ``cu_seqlens_q``).
        Its ``window_size=(left, 0)`` is ``window = left + 1`` here.
    sinks
        A learned sink's logit per query head, for an ``lse_total`` over the keys alone, such as flash-attn's: the sink
        is then added here. (It takes mass, but is no key and gets no column.)

    Returns
    -------
    float32 ``[B, Hq, N]`` (float64 from ``naive``), the mean over all rows. A row that sees no key, or whose total is
    infinite (flash-attn writes plus infinity where a row sees nothing), adds nothing; one whose total is nan makes the
    columns that it sees nan. float32 rounds logits and totals in proportion to their size, so float32 inputs are right
    to 1e-5 + 2^-23 max abs(logit).

    Raises
    ------
    ValueError
        Shapes that do not fit, no rows, an unknown backend, a backend that cannot take these arguments.
    """
    args = check_rows(
        q,
        k,
        scale=scale,
        q_start=q_start,
        window=window,
        softcap=softcap,
        key_bias=key_bias,
        alibi_slopes=alibi_slopes,
        visible=visible,
        mask=mask,
        sinks=sinks,
        allow_tf32=allow_tf32,
    )
    check_tensors(lse_total=lse_total)
    check_devices(q, lse_total=lse_total)
    if lse_total.shape != q.shape[:3]:
        raise ValueError(f"lse_total must be [B, Hq, A] = {tuple(q.shape[:3])}, got {tuple(lse_total.shape)}")
    if not lse_total.is_floating_point():
        raise ValueError(f"lse_total must hold floats, got {lse_total.dtype}")
    if not q.shape[2]:
        raise ValueError("q holds no rows, and column_mass is a mean over rows")
    with torch.autocast(q.device.type, enabled=False):
        return choose(backend, args).column_mass(args, lse_total, sinks)


@torch.no_grad()
def prefill_map(
    q: Float[Tensor, "B Hq A D"],
    k: Float[Tensor, "B Hkv N D"],
    segments: Segments | Sequence[Segments],
    *,
    block: SupportsIndex | None = None,
    edges: Sequence[Sequence[int]] | None = None,
    scale: float | None = None,
    q_start: SupportsIndex | None = None,
    window: SupportsIndex | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " Hq"] | None = None,
    key_bias: Float[Tensor, "B #Hq N"] | None = None,
    alibi_slopes: Float[Tensor, " Hq"] | None = None,
    visible: Shaped[Tensor, "B A 2"] | np.ndarray | None = None,
    mask: Shaped[Tensor, "B #Hq A N"] | None = None,
    allow_tf32: bool = False,
    backend: str = "auto",
) -> Float[Tensor, "B Hq R S"]:
    """Span masses of every row of a prompt, averaged over blocks of rows: who reads whom, without the N x N matrix.

    Parameters
    ----------
    q, k, segments, scale, q_start, window, softcap, sinks, key_bias, alibi_slopes, visible, mask, allow_tf32, backend
        As in :func:`span_lse`; q holds all rows of the prompt, or any run of them.
    block
        Rows a block, default 128; the last block may hold fewer.
    edges
        Instead of ``block``, a list a sample of the rows at which its own blocks begin, ascending, and of the last
        one's end. Rows before the first and after the last are in none; a block may have no rows.

    Returns
    -------
    float32 ``[B, Hq, R, S]`` (float64 from ``naive``), one more column for the sink with ``sinks``; R is
    ``ceil(A / block)``, or the largest number of blocks over the samples. A row that sees nothing counts: without
    ``sinks`` it has no mass, so a block's masses sum to the part of its rows that see something; with them the sink
    takes all of it. A row that sees a nan makes its whole block nan. A block of no rows has no mass.

    Raises
    ------
    ValueError
        As in :func:`span_lse`; ``block`` is not positive, ``edges`` do not ascend or are not among the rows.
    """
    args = check_rows(
        q,
        k,
        scale=scale,
        q_start=q_start,
        window=window,
        softcap=softcap,
        key_bias=key_bias,
        alibi_slopes=alibi_slopes,
        visible=visible,
        mask=mask,
        sinks=sinks,
        allow_tf32=allow_tf32,
    )
    tables, blocks = check_segments(args, segments), check_blocks(args, block, edges)
    with torch.autocast(q.device.type, enabled=False):
        return choose(backend, args).prefill_map(args, tables, blocks, sinks)
