"""Span masses from the weights that a model's own eager attention returns.

For models that do not use transformers' attention interface, and as the independent instrument that
:func:`attnprobe.check` compares with. Each attention module's weights are reduced to spans in a forward hook and let
go, so one layer's weights are held at a time; ``output_attentions``, which keeps every layer's, is never set.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnprobe.architecture import decoder_of, layer_index, refuse_unmeasurable
from attnprobe.errors import CaptureError
from attnprobe.interrupts import uninterrupted
from attnprobe.layer_rows import LayerRows
from attnprobe.row_block import SampleSpans
from attnprobe_kernels import HIDDEN

_lock = threading.Lock()
_switched: dict[int, list[Any]] = {}
"""By config: its own attention implementation, and how many contexts have it switched to eager."""


@contextmanager
def eager_attention(model: nn.Module) -> Iterator[None]:
    """Let a model attend eagerly inside the context, whatever it was loaded with.

    Other threads that run the same model meanwhile run it eagerly, too; the last context out restores it.
    """
    configs: dict[int, Any] = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    with _lock:
        for key, config in configs.items():
            entry = _switched.setdefault(key, [getattr(config, "_attn_implementation", None), 0])
            entry[1] += 1
        for config in configs.values():
            config._attn_implementation = "eager"
    try:
        yield
    finally:
        with _lock:
            for key in configs:
                _switched[key][1] -= 1
            # A composite config hands its implementation down, so the inner ones are restored after the outer one.
            for key, config in configs.items():
                if _switched[key][1] == 0:
                    config._attn_implementation = _switched.pop(key)[0]


class EagerCapture:
    """Watch one model's forward calls in eager attention; same use and results as :class:`attnprobe.capture.Capture`.

    The log-sum-exps are logs of masses, so they are right up to one constant a row; a learned sink's mass is what a
    row's weights lack to 1, and is not given here.

    Parameters
    ----------
    model, samples, first_row
        As in :class:`attnprobe.capture.Capture`.
    """

    def __init__(self, model: nn.Module, samples: Sequence[SampleSpans], first_row: int) -> None:
        refuse_unmeasurable(model)
        self.samples = tuple(samples)
        self.first_row = first_row
        self.seconds = 0.0
        self.warnings: list[str] = []
        self._model = model
        self._thread = threading.get_ident()
        self._stack = ExitStack()
        self._seen = 0
        self._call_start = 0
        self._last_weights: Tensor | None = None
        self._parts: dict[int, list[tuple[Tensor, np.ndarray, np.ndarray]]] = {}
        self._layers: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._ran: set[int] = set()

    def __enter__(self) -> EagerCapture:
        with uninterrupted(), ExitStack() as stack:
            stack.enter_context(eager_attention(self._model))
            stack.callback(self._model.register_forward_pre_hook(self._on_model_call, with_kwargs=True).remove)
            for name, module in decoder_of(self._model).named_modules():
                if "attention" in type(module).__name__.lower():
                    self._names[id(module)] = name
                    stack.callback(module.register_forward_hook(self._on_output).remove)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        """Remove every hook and restore the model's attention; a second call does nothing."""
        with uninterrupted():
            self._stack.close()

    def _on_model_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() != self._thread:
            return
        tokens = kwargs["input_ids"] if kwargs.get("input_ids") is not None else args[0]
        self._call_start = self._seen
        self._seen += tokens.shape[1]

    def _on_output(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        begin = time.perf_counter()
        self._ran.add(self._layer_of(module))
        weights = self._weights_in(output)
        # A wrapping module passes on the weights of the module inside it: the same tensor once more.
        if weights is not None and weights is not self._last_weights:
            self._last_weights = weights
            first = max(self.first_row, self._call_start)
            if first < self._seen:
                self._layers[id(module)] = self._layer_of(module)
                rows = weights[:, :, weights.shape[2] - (self._seen - first) :]
                self._parts.setdefault(id(module), []).append(self._reduce(rows.detach()))
        self.seconds += time.perf_counter() - begin

    def _layer_of(self, module: nn.Module) -> int:
        return layer_index(module, self._names[id(module)], 0)

    def _weights_in(self, output: Any) -> Tensor | None:
        for item in output if isinstance(output, tuple) else ():
            if isinstance(item, Tensor) and item.ndim == 4 and item.shape[0] == len(self.samples):
                n_rows, n_columns = item.shape[2:]
                if n_rows <= self._seen - self._call_start and n_rows <= n_columns:
                    return item
        return None

    def _reduce(self, weights: Tensor) -> tuple[Tensor, np.ndarray, np.ndarray]:
        """Sum weights ``[B, H, A, K]`` over spans, in float64; padding rows are left empty."""
        n_rows, n_columns = weights.shape[2:]
        mass, visible, excess = [], [], []
        for number, sample in enumerate(self.samples):
            table = sample.segments(max(0, self._seen - n_columns), n_columns)
            padding = min(max(0, sample.pad - (self._seen - n_rows)), n_rows)
            own = weights[number, :, padding:]
            if bool(own.triu(n_columns - n_rows + padding + 1).any()):
                raise CaptureError(
                    f"{type(self._model).__name__} attends to tokens after the row; only causal language models can be "
                    "measured"
                )
            sums = own.new_zeros((own.shape[0], n_rows, table.n_spans), dtype=torch.float64)
            counts = np.zeros((n_rows, table.n_spans), dtype=np.int64)
            for start, stop, owner in zip(table.starts, table.stops, table.owners, strict=True):
                part = own[..., start:stop]
                total = part.double().sum(-1)  # [H, A - padding]
                if owner != HIDDEN:
                    sums[:, padding:, owner] += total
                    counts[padding:, owner] += (part > 0).any(dim=0).sum(-1).cpu().numpy()
                elif float(total.sum()) > 1e-6:
                    raise CaptureError(
                        f"{type(self._model).__name__} attends to padding (mass {float(total.sum()):.2g})"
                    )
            mass.append(sums)
            visible.append(counts)
            excess.append(float((sums[:, padding:].sum(-1) - 1).abs().max()) if padding < n_rows else 0.0)
        return torch.stack(mass).log().float().cpu(), np.stack(visible), np.array(excess)

    def finish(self, n_rows: int, complete: bool = True) -> list[LayerRows]:
        """Hand over every layer's first ``n_rows`` captured rows.

        Parameters
        ----------
        n_rows
            Rows wanted.
        complete
            Whether every layer whose attention ran must have returned its weights.

        Raises
        ------
        CaptureError
            No attention module returned weights, or some layer's weights or rows are missing.
        """
        if not self._parts:
            raise CaptureError(
                f"{type(self._model).__name__} returns no attention weights and does not use transformers' attention "
                "interface; it cannot be measured"
            )
        silent = self._ran - set(self._layers.values())
        if complete and silent:
            raise CaptureError(
                f"{type(self._model).__name__}: the attention of layer {min(silent)} returned no weights; it cannot be "
                "measured"
            )
        results = []
        for key, parts in self._parts.items():
            lse = torch.cat([part[0] for part in parts], dim=2)[:, :, :n_rows]
            if lse.shape[2] < n_rows:
                raise CaptureError(
                    f"{type(self._model).__name__}: layer {self._layers[key]} gave {lse.shape[2]} of {n_rows} rows"
                )
            visible = np.concatenate([part[1] for part in parts], axis=1)[:, :n_rows]
            excess = np.max([part[2] for part in parts], axis=0)
            results.append(LayerRows(self._layers[key], lse, visible, False, excess, np.zeros_like(excess)))
        return results
