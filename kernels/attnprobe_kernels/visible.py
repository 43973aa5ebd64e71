"""Which keys a query row sees: always one interval of columns of the key tensor that attention was given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np

from attnprobe_kernels.whole import whole

_FARTHEST = 2**40
"""A longer window or chunk holds everything all the same."""


def visible_intervals(
    rows: Sequence[int] | np.ndarray,
    n_columns: int,
    *,
    offset: int = 0,
    pads: Sequence[int] = (0,),
    window: SupportsIndex | None = None,
    chunk: SupportsIndex | None = None,
) -> np.ndarray:
    """The interval ``[lo, hi)`` of key columns that each row of each sample sees.

    A slot counts every token fed to the layer so far, left padding included. A row sees itself and what is before it,
    down to the first token that is not padding, to the last ``window`` slots, and to the start of its attention chunk
    (chunks are counted from the first token that is not padding).

    Parameters
    ----------
    rows
        Slots of the query rows, ``[A]``.
    n_columns
        Number of columns of the key tensor.
    offset
        Slot of column 0: a sliding cache hands over the last keys only.
    pads
        Left padding of each sample, ``[B]``, tokens.
    window
        Sliding window, tokens, the row's own token included.
    chunk
        Attention chunk, tokens.

    Returns
    -------
    int32 ``[B, A, 2]``. A padding row sees nothing: ``lo == hi``.

    Raises
    ------
    ValueError
        What is no integer; a window or chunk of no token; a row needs keys that the key tensor no longer, or not yet,
        holds.
    """
    offset, window, chunk = whole("offset", offset), _length("window", window), _length("chunk", chunk)
    slots, pad = _integers("rows", rows)[None, :], _integers("pads", pads)[:, None]  # [1, A], [B, 1]
    lo = np.broadcast_to(pad, (pad.shape[0], slots.shape[1]))
    if window is not None:
        lo = np.maximum(lo, slots + 1 - window)
    if chunk is not None:
        lo = np.maximum(lo, pad + (slots - pad) // chunk * chunk)
    hi = np.broadcast_to(slots + 1, lo.shape)
    padding = slots < pad
    lo, hi = np.where(padding, offset, lo), np.where(padding, offset, hi)
    if lo.size and (int(lo.min()) < offset or int(hi.max()) > offset + n_columns):
        raise ValueError(
            f"rows see slots {int(lo.min())} to {int(hi.max())}, but the keys at hand are slots {offset} to "
            f"{offset + n_columns}"
        )
    return np.stack([lo - offset, hi - offset], axis=-1).astype(np.int32)


def _length(name: str, given: SupportsIndex | None) -> int | None:
    if given is None:
        return None
    length = whole(name, given)
    if length < 1:
        raise ValueError(f"{name} must be at least one token, got {length}")
    return min(length, _FARTHEST)


def _integers(name: str, given: Sequence[int] | np.ndarray) -> np.ndarray:
    array = np.asarray(given)
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{name} must hold integers, got {array.dtype}")
    return array.astype(np.int64)
