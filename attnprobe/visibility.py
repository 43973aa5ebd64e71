"""What a layer's rows see: the window or chunk of the layer, and the check against the mask it was handed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnprobe_kernels import HIDDEN, Segments, unseen


def window_and_chunk(
    module: nn.Module, sliding_window: int | None, cache_layer: Any = None
) -> tuple[int | None, int | None]:
    """Sliding window and attention chunk of a layer, in tokens (None = unlimited).

    Parameters
    ----------
    module
        The attention module.
    sliding_window
        What the module passed to its attention function, if anything: models without layer types say it only there.
    cache_layer
        The layer of the cache that holds the module's keys, if any: a sliding one keeps no more than its window.
    """
    config = getattr(module, "config", None)
    layer_types = getattr(config, "layer_types", None)
    layer = getattr(module, "layer_idx", None)
    kind = layer_types[layer] if layer_types and layer is not None and layer < len(layer_types) else None
    if kind == "full_attention":
        return None, None
    if kind == "chunked_attention":
        return None, getattr(config, "attention_chunk_size", None)
    window = sliding_window or getattr(module, "sliding_window", None)
    if kind == "sliding_attention":
        window = window or getattr(config, "sliding_window", None)
    if not window and getattr(cache_layer, "is_sliding", False):
        window = getattr(cache_layer, "sliding_window", None) or getattr(cache_layer, "max_cache_len", None)
    return (int(window) if window else None), None


def mask_on_rows(mask: Any, rows: slice, n_columns: int, device: torch.device) -> Tensor | None:
    """The mask that attention was handed, on some of its query rows: ``[B, H or 1, A, K]``, or None if it has none.

    Parameters
    ----------
    mask
        A 4-D bool or float tensor (sdpa, eager), a 2-D padding mask (flash), a BlockMask (flex) or None.
    rows
        Rows of the call, relative to its first query row.
    n_columns
        Columns of the key tensor.
    """
    if mask is None or (isinstance(mask, Tensor) and mask.ndim == 2):
        return None
    if isinstance(mask, Tensor):
        return mask[:, :, rows, :n_columns]
    mask_mod = getattr(mask, "mask_mod", None)
    if mask_mod is None:
        raise TypeError(f"attention mask of type {type(mask).__name__} is unknown")
    samples = torch.arange(mask.shape[0], device=device)[:, None, None]
    queries = torch.arange(rows.start, rows.stop, device=device)[None, :, None]
    columns = torch.arange(n_columns, device=device)[None, None, :]
    heads = torch.zeros_like(samples)
    seen = mask_mod(samples, heads, queries, columns)
    return seen.expand(mask.shape[0], rows.stop - rows.start, n_columns)[:, None]


def is_interval(mask: Tensor, visible: np.ndarray) -> bool:
    """Whether a mask on rows ``[B, H or 1, A, K]`` shows exactly the intervals ``[B, A, 2]`` and adds no bias."""
    columns = torch.arange(mask.shape[-1], device=mask.device)
    bounds = torch.from_numpy(visible.astype(np.int64)).to(mask.device)
    expected = (columns >= bounds[..., :1]) & (columns < bounds[..., 1:])  # [B, A, K]
    sees_any = (bounds[..., 1] > bounds[..., 0])[:, None, :, None]  # a padding row's mask is of no interest
    hidden = unseen(mask)
    agrees = (hidden != expected[:, None]) | ~sees_any
    if not bool(agrees.all()):
        return False
    if mask.dtype == torch.bool:
        return True
    return bool((mask.masked_fill(hidden, 0.0) == 0).all())


def padding_agrees(mask: Tensor, visible: np.ndarray) -> bool:
    """Whether a flash-style 2-D padding mask ``[B, columns]`` hides no column of the intervals ``[B, A, 2]``."""
    for sample, row in enumerate(visible):
        seeing = row[row[:, 1] > row[:, 0]]
        if len(seeing) and not bool(mask[sample, int(seeing[:, 0].min()) : int(seeing[:, 1].max())].all()):
            return False
    return True


def float_mask(bias: Tensor, mask: Tensor | None, visible: np.ndarray) -> Tensor:
    """An additive position bias ``[B or 1, H, A, K]`` and what may be seen, as one float mask."""
    if mask is None:
        columns = torch.arange(bias.shape[-1], device=bias.device)
        bounds = torch.from_numpy(visible.astype(np.int64)).to(bias.device)
        mask = ((columns >= bounds[..., :1]) & (columns < bounds[..., 1:]))[:, None]
    added = bias if mask.dtype == torch.bool else bias + mask
    return added.masked_fill(unseen(mask), float("-inf")).expand(mask.shape[0], -1, -1, -1)


def visible_counts(tables: Sequence[Segments], visible: np.ndarray, mask: Tensor | None) -> np.ndarray:
    """Keys of each span that each row sees, int64 ``[B, A, S]``; each visible key must have exactly one owner.

    Raises
    ------
    ValueError
        A row sees a key that no span owns.
    """
    if mask is None:
        return np.stack([table.visible_counts(rows) for table, rows in zip(tables, visible, strict=True)])
    seen = (~unseen(mask)).any(dim=1).cpu().numpy()  # [B, A, K]
    counts = np.zeros((*seen.shape[:2], tables[0].n_spans), dtype=np.int64)
    for sample, table in enumerate(tables):
        for start, stop, owner in zip(table.starts, table.stops, table.owners, strict=True):
            visible_here = seen[sample, :, start:stop].sum(axis=1)
            if owner != HIDDEN:
                counts[sample, :, owner] += visible_here
            elif visible_here.any():
                raise ValueError(f"a row sees keys {start} to {stop}, which belong to no span")
    return counts
