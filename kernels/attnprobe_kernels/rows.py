"""The one normal form of a call's arguments that every backend takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from attnprobe_kernels.segments import HIDDEN, Segments
from attnprobe_kernels.uploads import upload_once
from attnprobe_kernels.visible import visible_intervals
from attnprobe_kernels.whole import whole


@dataclass(frozen=True)
class RowArguments:
    """Checked arguments: q ``[B, Hq, A, D]``, k ``[B, Hkv, N, D]`` and what a logit is made of."""

    q: Tensor
    k: Tensor
    visible: np.ndarray | Tensor  # int32 [B, A, 2]; a tensor of any integers if it was handed over on a device
    scale: float
    softcap: float | None
    key_bias: Tensor | None  # [B, Hq or 1, N], natural log
    alibi_slopes: Tensor | None  # [Hq]; adds slope * (column - the row's own column), the last one it sees
    mask: Tensor | None  # [B, Hq or 1, A, N], bool (True = seen) or additive float
    allow_tf32: bool

    def rows(self, start: int, stop: int) -> RowArguments:
        """The same arguments for the query rows ``[start, stop)`` alone; nothing is copied."""
        return replace(
            self,
            q=self.q[:, :, start:stop],
            visible=self.visible[:, start:stop],
            mask=None if self.mask is None else self.mask[:, :, start:stop],
        )

    def visible_on_host(self) -> np.ndarray:
        """Intervals as numpy integers ``[B, A, 2]``; waits for the device if they are there."""
        return self.visible.cpu().numpy() if isinstance(self.visible, Tensor) else self.visible

    def visible_on_device(self) -> Tensor:
        """Intervals as a tensor of integers ``[B, A, 2]`` beside q; the same intervals are uploaded once a stream."""
        if isinstance(self.visible, Tensor):
            return self.visible
        visible = self.visible
        key = ("visible", visible.tobytes(), visible.shape)
        return upload_once(key, lambda: (visible.copy(),), self.q.device)[0]


def _check_visible(
    visible: Tensor | np.ndarray, shape: tuple[int, int, int], n_keys: int, q: Tensor
) -> np.ndarray | Tensor:
    if not isinstance(visible, Tensor | np.ndarray):
        raise ValueError(f"visible {_kind(visible)}; give integers [B, A, 2] as a torch tensor or numpy array")
    if tuple(visible.shape) != shape:
        raise ValueError(f"visible must be [B, A, 2] = {shape}, got {tuple(visible.shape)}")
    if isinstance(visible, Tensor):
        if visible.is_floating_point() or visible.dtype == torch.bool:
            raise ValueError(f"visible must hold integers, got {visible.dtype}")
        if visible.device.type != "cpu":
            # Its values stay unchecked: looking at them would wait for the device in every layer.
            check_devices(q, visible=visible)
            return visible
    intervals = np.asarray(visible)
    if intervals.dtype.kind not in "iu":
        raise ValueError(f"visible must hold integers, got {intervals.dtype}")
    for wrong, fault in (
        ((intervals < 0) | (intervals > n_keys), f"has columns outside 0 to {n_keys}"),
        (intervals[..., 1:] < intervals[..., :1], "has an interval that ends before it starts"),
    ):
        if wrong.any():
            sample, row = np.argwhere(wrong)[0, :2].tolist()
            raise ValueError(f"visible {fault}: row {row} of sample {sample} has {intervals[sample, row].tolist()}")
    return np.ascontiguousarray(intervals, dtype=np.int32)


def _kind(given: object) -> str:
    return "is None" if given is None else f"is of type {type(given).__name__}"


def check_tensors(**given: Tensor) -> None:
    """Refuse what is no dense tensor, by name."""
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} {_kind(tensor)}; give a torch tensor")
        if tensor.is_nested or tensor.layout != torch.strided:
            kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
            raise ValueError(f"{name} is a {kind} tensor; give a dense one")


def check_devices(q: Tensor, **others: Tensor | None) -> None:
    """Refuse tensors that are not beside q, by name."""
    there = {name: tensor for name, tensor in others.items() if tensor is not None}
    check_tensors(**there)
    for name, tensor in there.items():
        if tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device} and q on {q.device}: move {name} to q's device")


def _number(name: str, given: Any) -> float:
    """A real number, by name."""
    try:
        if not isinstance(given, str):
            return float(given)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # torch's of a tensor of several
        pass
    raise ValueError(f"{name} must be a number, got {given!r}")


def check_rows(
    q: Tensor,
    k: Tensor,
    *,
    scale: float | None = None,
    q_start: SupportsIndex | None = None,
    window: SupportsIndex | None = None,
    softcap: float | None = None,
    key_bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    visible: Tensor | np.ndarray | None = None,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    allow_tf32: bool = False,
) -> RowArguments:
    """Validate the arguments that the operations share."""
    check_tensors(q=q, k=k)
    if q.ndim != 4 or k.ndim != 4:
        raise ValueError(f"q and k must be [B, H, tokens, D]; got {tuple(q.shape)} and {tuple(k.shape)}")
    n_samples, n_q_heads, n_rows, head_dim = q.shape
    if k.shape[0] != n_samples or k.shape[3] != head_dim:
        raise ValueError(f"q {tuple(q.shape)} and k {tuple(k.shape)} differ in samples or head dimension")
    if not n_samples or not n_q_heads or not k.shape[1] or not head_dim:
        raise ValueError(f"q {tuple(q.shape)} and k {tuple(k.shape)} need at least one sample, head and dimension")
    if n_q_heads % k.shape[1]:
        raise ValueError(f"{n_q_heads} query heads cannot share {k.shape[1]} key heads")
    n_keys = k.shape[2]
    if q.is_meta:
        raise ValueError("q is on the meta device, which holds no numbers: give tensors with data")
    if not (q.is_floating_point() and k.is_floating_point()):
        raise ValueError(f"q and k must hold floats, got {q.dtype} and {k.dtype}")
    check_devices(q, k=k, key_bias=key_bias, alibi_slopes=alibi_slopes, mask=mask, sinks=sinks)
    scale = 1.0 / math.sqrt(head_dim) if scale is None else _number("scale", scale)
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")
    softcap = None if softcap is None else _number("softcap", softcap)
    if softcap is not None and not (softcap > 0 and math.isfinite(softcap)):
        raise ValueError(f"softcap must be positive and finite, got {softcap}")
    if alibi_slopes is not None and mask is not None:
        raise ValueError("alibi_slopes need causal rows; with a mask, add the bias to a float mask instead")
    if key_bias is not None and tuple(key_bias.shape) not in {(n_samples, heads, n_keys) for heads in (1, n_q_heads)}:
        raise ValueError(f"key_bias must be [B, Hq or 1, N], got {tuple(key_bias.shape)}")
    if key_bias is not None and not key_bias.is_floating_point():
        raise ValueError(f"key_bias must hold floats, got {key_bias.dtype}; visible or mask hides keys")
    if alibi_slopes is not None and tuple(alibi_slopes.shape) != (n_q_heads,):
        raise ValueError(f"alibi_slopes must be [Hq] = ({n_q_heads},), got {tuple(alibi_slopes.shape)}")
    if sinks is not None and tuple(sinks.shape) != (n_q_heads,):
        raise ValueError(f"sinks must be [Hq] = ({n_q_heads},), got {tuple(sinks.shape)}")
    for name, per_head in (("alibi_slopes", alibi_slopes), ("sinks", sinks)):
        if per_head is not None and not per_head.is_floating_point():
            raise ValueError(f"{name} must hold floats, got {per_head.dtype}")
    if mask is not None and tuple(mask.shape) not in {(n_samples, heads, n_rows, n_keys) for heads in (1, n_q_heads)}:
        raise ValueError(f"mask must be [B, Hq or 1, A, N], got {tuple(mask.shape)}")
    if mask is not None and not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise ValueError(f"mask must hold bools (True = seen) or floats (added to the logits), got {mask.dtype}")
    if mask is not None and (q_start is not None or window is not None):
        raise ValueError("mask says what rows see: fold q_start and window into it")
    start = n_keys - n_rows if q_start is None else whole("q_start", q_start)
    if visible is not None:
        if q_start is not None or window is not None:
            raise ValueError("visible replaces q_start and window: give one or the other")
        intervals = _check_visible(visible, (n_samples, n_rows, 2), n_keys, q)
    elif mask is not None:
        intervals = np.broadcast_to(np.array([0, n_keys], dtype=np.int32), (n_samples, n_rows, 2))
    else:
        if start < 0 or start + n_rows > n_keys:
            raise ValueError(f"rows {start} to {start + n_rows} are outside the {n_keys} keys")
        intervals = visible_intervals(np.arange(start, start + n_rows), n_keys, pads=[0] * n_samples, window=window)
    return RowArguments(
        q=q,
        k=k,
        visible=intervals,
        scale=scale,
        softcap=softcap,
        key_bias=key_bias,
        alibi_slopes=alibi_slopes,
        mask=mask,
        allow_tf32=allow_tf32,
    )


def check_segments(args: RowArguments, segments: Segments | Sequence[Segments]) -> list[Segments]:
    """One ``Segments`` a sample that covers its keys and owns all that a row sees.

    Intervals and masks on a device are not looked at, since that would wait for it.
    """
    n_samples, n_keys = args.k.shape[0], args.k.shape[2]
    if not isinstance(segments, Iterable | Segments):
        raise ValueError(f"segments {_kind(segments)}; give Segments (Segments.from_bounds(...)), or one a sample")
    listed = [segments] * n_samples if isinstance(segments, Segments) else list(segments)
    for table in listed:
        if not isinstance(table, Segments):
            raise ValueError(f"segments holds {table!r}; give Segments (Segments.from_bounds(...)), or one a sample")
    if len(listed) != n_samples:
        raise ValueError(f"{len(listed)} segment tables for {n_samples} samples")
    for table in listed:
        if table.n_keys != n_keys:
            raise ValueError(f"the segments cover {table.n_keys} keys, k has {n_keys}")
    if not isinstance(args.visible, Tensor) and (args.mask is None or args.mask.device.type == "cpu"):
        for sample, table in enumerate(listed):
            if HIDDEN not in table.owners:
                continue
            if args.mask is None:
                table.check_owned(args.visible[sample])
            else:
                _check_mask_owned(table, args.visible[sample], args.mask[sample])
    return listed


def _check_mask_owned(table: Segments, visible: np.ndarray, mask: Tensor) -> None:
    """Refuse a mask ``[Hq or 1, A, N]`` that shows a row a key of no span within its interval ``[A, 2]``."""
    for start, stop, owner in zip(table.starts, table.stops, table.owners, strict=True):
        if owner == HIDDEN:
            columns = np.arange(start, stop)
            within = (columns >= visible[:, :1]) & (columns < visible[:, 1:])  # [A, keys]
            seen = within & (~unseen(mask[..., start:stop])).any(dim=0).numpy()
            if seen.any():
                row = int(np.flatnonzero(seen.any(axis=1))[0])
                raise ValueError(f"row {row} sees {int(seen[row].sum())} keys that belong to no span")


def check_blocks(args: RowArguments, block: SupportsIndex | None, edges: Sequence[Sequence[int]] | None) -> np.ndarray:
    """Edges of every sample's blocks of rows, int32 ``[B, R + 1]``; behind its own, blocks of no rows."""
    n_samples, n_rows = args.q.shape[0], args.q.shape[2]
    if edges is None:
        step = whole("block", 128 if block is None else block)
        if step < 1:
            raise ValueError(f"block must be at least one row, got {step}")
        own = np.append(np.arange(0, n_rows, min(step, max(n_rows, 1))), n_rows)
        return np.broadcast_to(own, (n_samples, len(own))).astype(np.int32)
    if block is not None:
        raise ValueError("edges replace block: give one or the other")
    try:
        listed = [[whole("a row", row) for row in own] for own in edges]
    except (TypeError, ValueError):
        raise ValueError(f"edges must be a list of rows for each sample, got {edges!r}") from None
    if len(listed) != n_samples:
        raise ValueError(f"{len(listed)} lists of edges for {n_samples} samples")
    for sample, rows in enumerate(listed):
        if len(rows) < 2 or not all(a <= b for a, b in pairwise([0, *rows, n_rows])):
            raise ValueError(
                f"edges of sample {sample} must be two rows or more from 0 to {n_rows}, in ascending order; got {rows}"
            )
    width = max(map(len, listed))
    return np.array([rows + rows[-1:] * (width - len(rows)) for rows in listed], dtype=np.int32)


def unseen(mask: Tensor) -> Tensor:
    """True where a mask or bias hides a key: ``False`` of a bool one, at most half the dtype's minimum of a float one.

    Models write ``finfo.min`` or ``-inf`` for hidden; sums of two such values overflow to ``-inf`` or stay below half.
    """
    if mask.dtype == torch.bool:
        return ~mask
    return mask <= torch.finfo(mask.dtype).min / 2
