"""The front door: pinned signatures, argument checks, choice of backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from attnprobe_kernels import chunked, naive
from attnprobe_kernels.rows import RowArguments, check_rows, per_sample
from attnprobe_kernels.segments import Segments
from attnprobe_kernels.shapes import Float, Shaped

Backend = Literal["auto", "chunked", "naive"]
BACKENDS: tuple[str, ...] = get_args(Backend)


def _module(backend: str):  # type: ignore[no-untyped-def]
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is unknown; choose one of {', '.join(BACKENDS)}")
    return naive if backend == "naive" else chunked


def span_lse(
    q: Float[Tensor, "B Hq A D"],
    k: Float[Tensor, "B Hkv N D"],
    segments: Segments | Sequence[Segments],
    *,
    scale: float | None = None,
    q_start: int | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " Hq"] | None = None,
    key_bias: Float[Tensor, "B #Hq N"] | None = None,
    alibi_slopes: Float[Tensor, " Hq"] | None = None,
    visible: Shaped[Tensor, "B A 2"] | np.ndarray | None = None,
    mask: Shaped[Tensor, "B #Hq A N"] | None = None,
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
        Added to the logits after the softcap, natural log.
    alibi_slopes
        Adds ``slope * (column - the row's own column)``.
    visible
        int32 intervals ``[lo, hi)`` of columns per sample and row; replaces ``q_start`` and ``window``.
    mask
        For visibility that is no interval: bool (True = seen), or float added to the logits, where at most half the
        dtype's minimum means unseen. Applies beside ``visible`` when both are given, else alone.
    backend
        ``auto``, ``chunked`` (torch, any device, bounded memory) or ``naive`` (dense float64, for tests).

    Returns
    -------
    float32 ``[B, Hq, A, S]`` (float64 from ``naive``), natural log; ``-inf`` where a row sees no key of a span. S is
    the largest number of spans over the samples, plus one with ``sinks``.

    Raises
    ------
    ValueError
        Shapes that do not fit, segments that do not cover the keys, an unknown backend.
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
    )
    lse = _module(backend).span_lse(args, per_sample(segments, q.shape[0], k.shape[2]))
    if sinks is not None:
        column = sinks.to(lse.device, lse.dtype)[None, :, None, None].expand(*lse.shape[:3], 1)
        lse = torch.cat([lse, column], dim=-1)
    return lse


def column_mass(
    q: Float[Tensor, "B Hq A D"],
    k: Float[Tensor, "B Hkv N D"],
    lse_total: Float[Tensor, "B Hq A"],
    *,
    scale: float | None = None,
    q_start: int | None = None,
    window: int | None = None,
    softcap: float | None = None,
    key_bias: Float[Tensor, "B #Hq N"] | None = None,
    alibi_slopes: Float[Tensor, " Hq"] | None = None,
    visible: Shaped[Tensor, "B A 2"] | np.ndarray | None = None,
    mask: Shaped[Tensor, "B #Hq A N"] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "B Hq N"]:
    """Attention mass of every single key, averaged over the rows: the token heatmap.

    Parameters
    ----------
    q, k, scale, q_start, window, softcap, key_bias, alibi_slopes, visible, mask, backend
        As in :func:`span_lse`.
    lse_total
        Log-sum-exp of each row over all its keys, natural log, and over its learned sink if the model has one (the
        sink takes mass but is no key): ``torch.logsumexp(span_lse(...), -1)``.

    Returns
    -------
    float32 ``[B, Hq, N]`` (float64 from ``naive``).
    """
    args: RowArguments = check_rows(
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
    )
    if lse_total.shape != q.shape[:3]:
        raise ValueError(f"lse_total must be [B, Hq, A] = {tuple(q.shape[:3])}, got {tuple(lse_total.shape)}")
    return _module(backend).column_mass(args, lse_total)
