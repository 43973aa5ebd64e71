"""Attention knock-out: chosen keys are hidden from later rows, by changing the mask that attention is handed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnprobe.architecture import attention_layers, implementation_of, refuse_unmeasurable, uses_interface
from attnprobe.attention import observed
from attnprobe.decoding import continues_prefill, has_recurrent_layers
from attnprobe.errors import CaptureError, InputError
from attnprobe.interrupts import uninterrupted
from attnprobe.visibility import window_and_chunk
from attnprobe_kernels import visible_intervals

KNOCKOUT_CHUNK = 512
"""Tokens fed at a time where rows are masked: a mask is this many rows by the keys so far, never prompt by prompt."""


@dataclass(frozen=True)
class Hidden:
    """Keys to hide, and from whom. A row never loses its own key or one of its own span.

    Parameters
    ----------
    segments
        Half-open token ranges ``(start, stop)``.
    first_row
        Hide them from this row on: the row that predicts the answer's first token, or 0 for every row behind a segment.
    layers
        In these layers only; None for all.
    """

    segments: tuple[tuple[int, int], ...]
    first_row: int = 0
    layers: tuple[int, ...] | None = None


def refuse_unhideable(model: nn.Module, layers: Sequence[int] | None = None) -> None:
    """Raise for models whose attention cannot be kept from chosen keys.

    Raises
    ------
    CaptureError
        The model has no attention interface, uses an implementation without masks by key, has recurrent layers, which
        carry content past attention, cannot be fed in chunks, or cannot be measured at all.
    InputError
        There is no such layer.
    """
    refuse_unmeasurable(model)
    name = type(model).__name__
    if not uses_interface(model):
        raise CaptureError(
            f"{name} does not use transformers' attention interface, so keys cannot be hidden from its rows; use "
            'method="deletion" or "swap"'
        )
    implementation = implementation_of(model)
    if implementation not in ("sdpa", "eager"):
        raise CaptureError(
            f"{name} uses attn_implementation={implementation!r}, whose mask cannot hide single keys from single rows; "
            'load the model with attn_implementation="sdpa" (or "eager" where it refuses that)'
        )
    if has_recurrent_layers(model):
        raise CaptureError(
            f"{name} has recurrent layers, whose state carries a document past every attention mask; use "
            'method="deletion" or "swap"'
        )
    if not continues_prefill(model):
        raise CaptureError(
            f"{name} gives other outputs when its prompt is fed in chunks, as knock-out does; use "
            'method="deletion" or "swap"'
        )
    known = sorted({index for _, index in attention_layers(model)})
    for layer in layers or ():
        if layer not in known:
            raise InputError(f"layer {layer!r} is not an attention layer of {name}; its layers are {known}")


@dataclass
class _Calls:
    """What has been fed so far, and what the layers of one forward call share."""

    n_seen: int
    eager: bool  # masks are added to logits; sdpa's say what may be seen
    masks: dict[Any, Any] = field(default_factory=dict)
    attended: set[int] = field(default_factory=set)


@contextmanager
def knocked_out(model: nn.Module, hidden: Hidden, n_fed: int = 0) -> Iterator[None]:
    """Hide keys from later rows in every forward call of this thread until the context ends.

    The keys are masked out before the softmax, so that their mass is exactly zero and the rest is renormalised.

    Parameters
    ----------
    model
        One that :func:`refuse_unhideable` lets pass; called with one sample without padding.
    hidden
        What to hide.
    n_fed
        Tokens that the cache already holds.

    Raises
    ------
    CaptureError
        A layer ran without calling its attention function, or was given keys that do not stand for tokens.
    """
    thread = threading.get_ident()
    implementation = implementation_of(model)
    calls = _Calls(n_fed, implementation == "eager")
    layers = attention_layers(model)
    numbers = {id(module): index for module, index in layers}

    def on_model_call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() == thread:
            tokens = kwargs.get("input_ids")
            calls.n_seen += (args[0] if tokens is None else tokens).shape[1]
            calls.masks, calls.attended = {}, set()

    def on_leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if threading.get_ident() == thread and id(module) not in calls.attended:
            raise CaptureError(
                f"{_named(module, numbers)} ran without calling the attention function of "
                f"{implementation!r}; load the model with another attn_implementation (sdpa or eager)"
            )

    def observe(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, kwargs: dict[str, Any]) -> Any:
        calls.attended.add(id(module))
        if hidden.layers is not None and numbers[id(module)] not in hidden.layers:
            return mask
        return _changed_mask(calls, hidden, _named(module, numbers), module, query, key, mask, kwargs)

    modules = [module for module, _ in layers]
    with ExitStack() as stack:
        with uninterrupted(), ExitStack() as opening:
            opening.callback(model.register_forward_pre_hook(on_model_call, with_kwargs=True).remove)
            for module in modules:
                opening.callback(module.register_forward_hook(on_leave).remove)
            opening.enter_context(observed(model, modules, observe, implementation))
            stack.enter_context(opening.pop_all())
        yield


def _named(module: nn.Module, numbers: dict[int, int]) -> str:
    return f"{type(module).__name__} (layer {numbers[id(module)]})"


def _changed_mask(
    calls: _Calls,
    hidden: Hidden,
    name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Any,
    kwargs: dict[str, Any],
) -> Any:
    """The mask of one attention call with the hidden keys taken out; the given one where no row of it loses a key."""
    n_rows, n_columns = query.shape[2], key.shape[2]
    offset = max(0, calls.n_seen - n_columns)  # a sliding cache hands over the last keys only
    if n_columns > calls.n_seen:
        raise CaptureError(
            f"{name} attends to {n_columns} keys for {calls.n_seen} tokens: its keys do not stand for tokens, so they "
            "cannot be hidden by tokens"
        )
    first = calls.n_seen - n_rows
    cuts = [
        (max(0, max(stop, hidden.first_row) - first), max(0, start - offset), stop - offset)
        for start, stop in hidden.segments
    ]
    cuts = [(row, start, stop) for row, start, stop in cuts if row < n_rows and start < stop]
    if not cuts:
        return mask
    window, chunk = window_and_chunk(module, kwargs.get("sliding_window"))
    shared = (id(mask), n_rows, n_columns, window, chunk, query.device, query.dtype)
    if shared not in calls.masks:
        if isinstance(mask, Tensor) and mask.ndim == 4:
            widened = mask[..., :n_columns].expand(-1, -1, n_rows, -1)
            changed = widened.clone(memory_format=torch.contiguous_format)
        elif mask is not None:
            raise CaptureError(
                f"{name} was handed a mask of type {type(mask).__name__} that is no 4-D tensor; load the model with "
                'attn_implementation="sdpa"'
            )
        elif kwargs.get("is_causal", getattr(module, "is_causal", True)) is False and n_rows > 1:
            raise CaptureError(f"{name} is not causal; only causal language models can be measured")
        else:
            rows = np.arange(first, calls.n_seen)
            try:
                visible = visible_intervals(rows, n_columns, offset=offset, window=window, chunk=chunk)
            except ValueError as error:
                raise CaptureError(f"{name}: {error}") from error
            changed = _interval_mask(visible, n_columns, query, calls.eager)
        blocked = False if changed.dtype == torch.bool else torch.finfo(changed.dtype).min
        for row, start, stop in cuts:
            changed[:, :, row:, start:stop] = blocked
        # The given mask is kept with the answer: its id stands for it, and a freed object's id may be used again.
        calls.masks[shared] = (mask, changed)
    return calls.masks[shared][1]


def _interval_mask(visible: np.ndarray, n_columns: int, query: Tensor, eager: bool) -> Tensor:
    """The mask ``[B, 1, A, K]`` that attention implies where it is handed none: the intervals ``[B, A, 2]``."""
    columns = torch.arange(n_columns, device=query.device)
    bounds = torch.from_numpy(visible.astype(np.int64)).to(query.device)
    seen = ((columns >= bounds[..., :1]) & (columns < bounds[..., 1:]))[:, None]
    if not eager:
        return seen
    return torch.zeros_like(seen, dtype=query.dtype).masked_fill_(~seen, torch.finfo(query.dtype).min)
