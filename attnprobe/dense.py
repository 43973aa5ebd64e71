"""Dense float64 masses of the very calls that a capture sees: the reference where eager weights are too coarse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnprobe.architecture import attention_layers, implementation_of
from attnprobe.attention import observed
from attnprobe.capture import Capture
from attnprobe.visibility import mask_on_rows


@contextmanager
def dense_masses(model: nn.Module, capture: Capture) -> Iterator[dict[int, list[Tensor]]]:
    """Compute each captured call of ``capture`` densely as well, with the mask as the model handed it over.

    Visibility comes from that mask, or from the causal rule where there is none; not from the intervals that the
    capture uses. Memory is rows times keys a head, so this is for short prompts.

    Yields
    ------
    float64 masses ``[B, Hq, A, S]`` on the CPU, one tensor a call, by layer; a learned sink takes mass but has no
    column.
    """
    layers = attention_layers(model)
    numbers = {id(module): layer for module, layer in layers}
    found: dict[int, list[Tensor]] = {}

    def observe(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, kwargs: dict[str, Any]) -> Any:
        capture.observe(module, query, key, value, mask, kwargs)
        n_rows = min(query.shape[2], capture.n_seen - capture.first_row)
        if n_rows > 0:
            rows = slice(query.shape[2] - n_rows, query.shape[2])
            found.setdefault(numbers[id(module)], []).append(_masses(capture, query, key, mask, rows, kwargs))
        return mask

    with observed(model, [module for module, _ in layers], observe, implementation_of(model)):
        yield found


def _masses(capture: Capture, query: Tensor, key: Tensor, mask: Any, rows: slice, kwargs: dict[str, Any]) -> Tensor:
    n_columns, n_call_rows = key.shape[2], query.shape[2]
    q = query[:, :, rows].double()
    k = key.double().repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scale, softcap, sink = (kwargs.get(name) for name in ("scaling", "softcap", "s_aux"))
    z = (q @ k.transpose(2, 3)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
    columns = torch.arange(n_columns, device=z.device)
    causal = columns <= torch.arange(n_columns - n_call_rows, n_columns, device=z.device)[rows, None]
    window = kwargs.get("sliding_window")
    handed = mask_on_rows(mask, rows, n_columns, z.device)
    if handed is None:
        z = z.masked_fill(~causal, -torch.inf)
        if isinstance(mask, Tensor):
            z = z.masked_fill(~mask[:, None, None, :n_columns].bool(), -torch.inf)
            if window is not None:
                z = z.masked_fill(columns <= columns[n_columns - n_call_rows :][rows, None] - window, -torch.inf)
    elif handed.dtype == torch.bool:
        z = z.masked_fill(~handed, -torch.inf)
    else:
        z = z + handed.double()
    if sink is not None:
        column = sink.double().reshape(1, -1, 1, 1).expand(*z.shape[:3], 1)
        z = torch.cat([z, column], dim=-1)
    weights = torch.softmax(z, dim=-1)
    n_spans = len(capture.samples[0].spans) + 1
    out = torch.zeros(*weights.shape[:3], n_spans, dtype=torch.float64)
    for number, sample in enumerate(capture.samples):
        table = sample.segments(max(0, capture.n_seen - n_columns), n_columns)
        for start, stop, owner in zip(table.starts, table.stops, table.owners, strict=True):
            if owner >= 0:
                out[number, :, :, owner] += weights[number, :, :, start:stop].sum(-1).cpu()
    return out
