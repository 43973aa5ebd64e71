"""Capture: the span log-sum-exps of chosen query rows, layer by layer, while a model runs as it always does.

*Deferred* capture copies the queries of each captured row while the model decodes and reduces once a layer at the end,
over the keys that the cache holds anyway. *Live* capture reduces inside every call; layers whose keys are in no cache
as attention saw them (latent or quantised caches, no cache at all) are captured live in either mode.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from attnprobe.attention import observed, observer_of, uses_attention_interface
from attnprobe.errors import CaptureError
from attnprobe.interrupts import uninterrupted
from attnprobe.reference import Residual, sampled_residual
from attnprobe.visibility import (
    float_mask,
    is_interval,
    mask_on_rows,
    padding_agrees,
    visible_counts,
    window_and_chunk,
)
from attnprobe_kernels import Segments, span_lse, visible_intervals

CaptureMode = Literal["deferred", "live"]


@dataclass(frozen=True)
class SampleSpans:
    """One sample of a batch: its left padding and the token ranges of its prompt's spans.

    Slots count from the left edge of the padded batch. What follows the prompt is one more span: the answer.
    """

    pad: int
    n_prompt: int
    spans: tuple[tuple[tuple[int, int], ...], ...]
    seed: int = 0
    """Draws the row that is checked in each layer."""

    def segments(self, offset: int, n_columns: int) -> Segments:
        """Owners of the key columns that stand for slots ``[offset, offset + n_columns)``; the answer is last."""
        end = offset + n_columns
        ranges = [
            [(start + self.pad, min(stop + self.pad, end)) for start, stop in span if start + self.pad < end]
            for span in self.spans
        ]
        answer = [(self.pad + self.n_prompt, end)]
        return Segments.from_spans([*ranges, answer], n_keys=end, hidden=[(0, self.pad)]).clip(offset, n_columns)


@dataclass(frozen=True)
class LayerRows:
    """What one layer gave.

    Parameters
    ----------
    layer
        The model's index of the layer.
    lse
        float32 ``[B, Hq, A, S]`` on the CPU: prompt spans, then the answer, then the learned sink if there is one.
    visible
        int64 ``[B, A, S]``: keys of each span that each row sees; 0 for a learned sink, which is no key.
    has_sink
        Whether the last span is a learned sink.
    residual
        float64 ``[B]``: absolute difference, nats, between the log-add over spans and an independent float64 total, for
        one row of each sample.
    magnitude
        float64 ``[B]``: size of that total, nats. float32 logits of this size carry rounding errors in proportion.
    """

    layer: int
    lse: Tensor
    visible: np.ndarray
    has_sink: bool
    residual: np.ndarray
    magnitude: np.ndarray


class _QueryRows:
    """Query rows ``[B, Hq, A, D]`` of one layer, copied into a buffer that grows by doubling.

    One small tensor a step would sit between the cache's large ones and keep the allocator from reusing their memory.
    """

    def __init__(self) -> None:
        self.n_rows = 0
        self._buffer: Tensor | None = None

    def append(self, query: Tensor) -> None:
        """Copy ``query`` behind the rows so far."""
        stop = self.n_rows + query.shape[2]
        if self._buffer is None or stop > self._buffer.shape[2]:
            shape = list(query.shape)
            shape[2] = max(64, 2 * stop)
            grown = query.new_empty(shape)
            if self._buffer is not None:
                grown[:, :, : self.n_rows] = self._buffer[:, :, : self.n_rows]
            self._buffer = grown
        self._buffer[:, :, self.n_rows : stop] = query
        self.n_rows = stop

    def take(self, n_rows: int) -> Tensor:
        """The first ``n_rows`` rows, or all there are; the buffer is let go."""
        assert self._buffer is not None
        rows = self._buffer[:, :, : min(n_rows, self.n_rows)]
        self.n_rows, self._buffer = 0, None
        return rows


@dataclass
class _Layer:
    module: nn.Module
    index: int
    source: str | None = None  # of a deferred layer's keys: "cache", "tail" or, captured live, "live"
    cache_layer: Any = None
    tail: list[Tensor] = field(default_factory=list)
    tail_start: int = 0
    tail_stop: int = 0
    queries: _QueryRows = field(default_factory=_QueryRows)
    arguments: dict[str, Any] = field(default_factory=dict)
    parts: list[tuple[Tensor, np.ndarray]] = field(default_factory=list)  # lse, visible
    residuals: list[Residual] = field(default_factory=list)  # one a sample
    entered: int = 0
    observed: int = 0
    last_call: int = 0


def decoder_of(model: nn.Module) -> nn.Module:
    """The text decoder of a model that may have vision or audio towers beside it; else the model itself."""
    get_decoder = getattr(model, "get_decoder", None)
    decoder = get_decoder() if callable(get_decoder) else None
    # Some models call another part of theirs "decoder": one without layers is not meant.
    return decoder if isinstance(decoder, nn.Module) and hasattr(decoder, "config") else model


def attention_layers(model: nn.Module) -> list[tuple[nn.Module, int]]:
    """The decoder's modules that look their attention function up in transformers' registry, with their layers."""
    named = [(name, module) for name, module in decoder_of(model).named_modules() if uses_attention_interface(module)]
    return [(module, layer_index(module, name, number)) for number, (name, module) in enumerate(named)]


def implementation_of(model: nn.Module) -> str:
    """Name of the attention implementation that the text decoder uses."""
    config = getattr(decoder_of(model), "config", None) or model.config
    return str(getattr(config, "_attn_implementation", None) or "eager")


def uses_interface(model: nn.Module) -> bool:
    """Whether the model's layers call an attention function that can be wrapped where it is.

    GPT-2's upcast option goes past the interface in eager attention.
    """
    layers = attention_layers(model)
    upcast = implementation_of(model) == "eager" and any(
        getattr(module, "reorder_and_upcast_attn", False) for module, _ in layers
    )
    return bool(layers) and not upcast


def refuse_unmeasurable(model: nn.Module) -> None:
    """Raise for models whose attention calls cannot be read where they run.

    Raises
    ------
    CaptureError
        The model is in training mode, compiled, or its heads are sharded over processes.
    """
    name = type(model).__name__
    if any(module.training for module in model.modules()):
        raise CaptureError(
            f"{name} is in training mode, or a part of it is, where attention has dropout; call model.eval()"
        )
    compiled = isinstance(model, torch._dynamo.eval_frame.OptimizedModule)
    if compiled or any(module._compiled_call_impl is not None for module in model.modules()):
        raise CaptureError(f"{name} is compiled, which hides its attention calls; measure the model before compiling")
    if (getattr(model, "_tp_size", None) or 1) > 1:
        raise CaptureError(
            f"{name} has its heads sharded over {model._tp_size} processes (tensor parallelism); "
            'load it with device_map="auto" instead'
        )


def _cache_type() -> type[Any]:
    from transformers import Cache

    return Cache


def layer_index(module: nn.Module, name: str, number: int) -> int:
    """The layer that an attention module belongs to: as it says, or as its name in the model says, or by its order."""
    index = getattr(module, "layer_idx", None)
    if isinstance(index, int) and index >= 0:
        return index
    in_name = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(in_name[1]) if in_name else number


class Capture:
    """Watch one model's forward calls; hooks and the wrapped attention function are gone when the context ends.

    Parameters
    ----------
    model
        A causal language model of transformers.
    samples
        Padding and spans of every sample of the batch.
    first_row
        Slot of the first query row to capture; every later row is captured too.
    mode
        ``deferred`` or ``live``.
    backend
        Of :func:`attnprobe_kernels.span_lse`.

    Raises
    ------
    CaptureError
        The model cannot be measured this way, or an attention layer ran that was not seen.
    """

    def __init__(
        self,
        model: nn.Module,
        samples: Sequence[SampleSpans],
        first_row: int,
        mode: CaptureMode = "deferred",
        backend: str = "auto",
    ) -> None:
        refuse_unmeasurable(model)
        self.samples = tuple(samples)
        self.first_row = first_row
        self.mode = mode
        self.backend = backend
        self.seconds = 0.0  # spent here, not in the model
        self.warnings: list[str] = []
        self._model = model
        self._thread = threading.get_ident()
        self._stack = ExitStack()
        self.n_seen = 0
        """Slots fed to the model so far."""
        self._call = 0
        self._call_start = 0
        self._call_memo: dict[Any, Any] = {}  # what layers of one forward call share
        self._cache: Any = None
        self._cache_type = _cache_type()
        layers = attention_layers(model)
        if not layers:
            raise CaptureError(
                f"{type(model).__name__} does not use transformers' attention interface; "
                "measure() falls back to its eager weights"
            )
        self._layers = {id(module): _Layer(module, index) for module, index in layers}

    def __enter__(self) -> Capture:
        with uninterrupted(), ExitStack() as stack:
            hook = self._model.register_forward_pre_hook(self._on_model_call, with_kwargs=True)
            stack.callback(hook.remove)
            for layer in self._layers.values():
                stack.callback(layer.module.register_forward_pre_hook(self._on_enter, with_kwargs=True).remove)
                stack.callback(layer.module.register_forward_hook(self._on_leave).remove)
            modules = [layer.module for layer in self._layers.values()]
            stack.enter_context(
                observed(self._model, modules, self.observe, implementation_of(self._model)),
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        """Remove every hook and the wrapper; a second call does nothing."""
        with uninterrupted():
            self._stack.close()

    def _elsewhere(self) -> bool:
        return threading.get_ident() != self._thread

    def _on_model_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._elsewhere():
            return
        tokens = kwargs.get("input_ids")
        if tokens is None:
            tokens = args[0] if args else kwargs["inputs_embeds"]
        if tokens.shape[0] != len(self.samples):
            raise CaptureError(f"the model was called with {tokens.shape[0]} samples, not {len(self.samples)}")
        self._call += 1
        self._call_start = self.n_seen
        self.n_seen += tokens.shape[1]
        self._call_memo = {}

    def _on_enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._elsewhere():
            return
        # Its keyword differs between models and versions.
        self._cache = next((value for value in (*kwargs.values(), *args) if isinstance(value, self._cache_type)), None)
        self._layers[id(module)].entered += 1

    def _on_leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._elsewhere():
            return
        layer = self._layers[id(module)]
        if layer.observed == layer.entered:
            return
        name = f"{type(module).__name__} (layer {layer.index})"
        if observer_of(module) != self.observe:
            raise CaptureError(
                f"{name} is being measured by another measurement inside this one; measure a model once at a time"
            )
        raise CaptureError(
            f"{name} ran without calling the attention function of {implementation_of(self._model)!r}; load the "
            "model with another attn_implementation (sdpa or eager)"
        )

    def observe(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Take one attention call, as :data:`attnprobe.attention.Observer` says."""
        begin = time.perf_counter()
        layer = self._layers[id(module)]
        layer.observed += 1
        name = f"{type(module).__name__} (layer {layer.index})"
        if layer.last_call == self._call:
            raise CaptureError(
                f"{name} attends more than once in a forward pass; such an architecture cannot be measured"
            )
        layer.last_call = self._call
        self._note_arguments(layer, name, key, kwargs)
        n_call_rows = query.shape[2]
        first = max(self.first_row, self._call_start)
        if first < self.n_seen:
            if self.n_seen - n_call_rows > first:
                raise CaptureError(
                    f"{name} was given {n_call_rows} of the {self.n_seen - first} rows to capture; such an "
                    "architecture cannot be measured with a forced answer"
                )
            rows = np.arange(first, self.n_seen)
            self._capture(layer, name, query[:, :, n_call_rows - len(rows) :], key, mask, rows, n_call_rows, kwargs)
        self.seconds += time.perf_counter() - begin
        return mask

    def _note_arguments(self, layer: _Layer, name: str, key: Tensor, kwargs: dict[str, Any]) -> None:
        """Note what the layer does to its logits and which keys it keeps; refuse keys that are not one a token.

        At every call: behind a window there are fewer keys than tokens, so that an excess no longer shows.
        """
        cache_layer = self._cache_layer(layer.module)
        window, chunk = window_and_chunk(layer.module, kwargs.get("sliding_window"), cache_layer)
        if window is not None and window < 2:
            raise CaptureError(f"{name} has a sliding window of {window} token: it attends to nothing but itself")
        layer.arguments = {
            "scale": kwargs.get("scaling"),
            "softcap": kwargs.get("softcap"),
            "sink": kwargs.get("s_aux"),
            "window": window,
            "chunk": chunk,
        }
        n_columns = key.shape[2]
        if n_columns > self.n_seen and not hasattr(cache_layer, "max_cache_len") and self._holder(key) is None:
            raise CaptureError(
                f"{name} attends to {n_columns} keys for {self.n_seen} tokens: its keys do not stand for tokens, so "
                "it cannot be measured by spans of tokens"
            )

    def _memo(self, key: Any, make: Callable[[], Any]) -> Any:
        """What the layers of one forward call share, made once."""
        if key not in self._call_memo:
            self._call_memo[key] = make()
        return self._call_memo[key]

    def _intervals(self, layer: _Layer, name: str, rows: np.ndarray, offset: int, n_columns: int) -> np.ndarray:
        window, chunk = layer.arguments["window"], layer.arguments["chunk"]

        def make() -> np.ndarray:
            pads = [sample.pad for sample in self.samples]
            try:
                return visible_intervals(rows, n_columns, offset=offset, pads=pads, window=window, chunk=chunk)
            except ValueError as error:
                raise CaptureError(f"{name}: {error}") from error

        return self._memo(("visible", len(rows), offset, n_columns, window, chunk), make)

    def _capture(
        self,
        layer: _Layer,
        name: str,
        query: Tensor,
        key: Tensor,
        mask: Any,
        rows: np.ndarray,
        n_call_rows: int,
        kwargs: dict[str, Any],
    ) -> None:
        """Reduce, or keep for later, the captured rows of one attention call."""
        n_columns = key.shape[2]
        offset = max(0, self.n_seen - n_columns)
        visible = self._intervals(layer, name, rows, offset, n_columns)
        bias = kwargs.get("position_bias")
        causal = kwargs.get("is_causal", getattr(layer.module, "is_causal", True))
        if mask is None and causal is False:
            raise CaptureError(f"{name} is not causal; only causal language models can be measured")
        handed = slice(n_call_rows - len(rows), n_call_rows)
        # The mask is kept with the answer: its id stands for it, and a freed object's id may be used again.
        _, odd_mask = self._memo(
            ("mask", id(mask), n_call_rows, n_columns, layer.arguments["window"], layer.arguments["chunk"]),
            lambda: (mask, self._check_mask(name, mask, handed, n_columns, visible, key.device)),
        )
        if bias is not None:
            odd_mask = float_mask(bias[:, :, handed, :n_columns], odd_mask, visible)
            self._call_memo["bias", layer.index] = odd_mask  # kept for the call: its id stands for it below
        if layer.source is None:
            layer.source = self._choose_source(layer, key, odd_mask)
            layer.tail_start = layer.tail_stop = offset + int(visible[:, 0, 0].min())
        if layer.source == "live":
            self._reduce(layer, name, query, key, offset, visible, odd_mask)
            return
        if odd_mask is not None:
            raise CaptureError(f'{name} changed its kind of mask while decoding; measure with capture="live"')
        layer.queries.append(query.detach())
        if layer.source == "tail":
            layer.tail.append(key[:, :, layer.tail_stop - offset : self.n_seen - offset].detach().clone())
            layer.tail_stop = self.n_seen

    def _holder(self, key: Tensor) -> Any:
        """The layer of the cache whose keys are the very tensor that attention was given."""
        layers = getattr(self._cache, "layers", ())
        return next((layer for layer in layers if getattr(layer, "keys", None) is key), None)

    def _cache_layer(self, module: nn.Module) -> Any:
        layers, index = getattr(self._cache, "layers", ()), getattr(module, "layer_idx", None)
        return layers[index] if isinstance(index, int) and 0 <= index < len(layers) else None

    def _choose_source(self, layer: _Layer, key: Tensor, odd_mask: Tensor | None) -> str:
        """Where a layer's keys will be found at the end; ``live`` if nowhere as attention sees them now."""
        if self.mode == "live" or odd_mask is not None or self._cache is None:
            return "live"
        holder = self._holder(key)
        if holder is not None and not getattr(holder, "is_sliding", False):
            layer.cache_layer = holder
            return "cache"
        limited = layer.arguments["window"] or layer.arguments["chunk"]
        return "tail" if limited else "live"

    def _check_mask(
        self, name: str, mask: Any, handed: slice, n_columns: int, visible: np.ndarray, device: torch.device
    ) -> Tensor | None:
        """None if the handed mask is what the intervals say (or says nothing); else the mask on the captured rows."""
        if isinstance(mask, Tensor) and mask.ndim == 2:
            if not padding_agrees(mask, visible):
                raise CaptureError(f"{name} was handed a padding mask that hides tokens inside the prompt")
            return None
        on_rows = mask_on_rows(mask, handed, n_columns, device)
        if on_rows is None or is_interval(on_rows, visible):
            return None
        self.warnings.append(f"{name}: its mask is no causal interval of keys; measured with the mask itself")
        return on_rows

    def _reduce(
        self,
        layer: _Layer,
        name: str,
        query: Tensor,
        key: Tensor,
        offset: int,
        visible: np.ndarray,
        odd_mask: Tensor | None,
    ) -> None:
        n_columns = key.shape[2]
        tables = self._memo(
            ("segments", offset, n_columns),
            lambda: [sample.segments(offset, n_columns) for sample in self.samples],
        )
        try:
            counts = self._memo(
                ("counts", id(visible), id(odd_mask)), lambda: visible_counts(tables, visible, odd_mask)
            )
        except ValueError as error:
            raise CaptureError(f"{name}: {error}") from error
        key = key.to(query.device)
        logit = {
            "scale": layer.arguments["scale"],
            "softcap": layer.arguments["softcap"],
            "visible": None if odd_mask is not None else visible,
            "mask": odd_mask,
        }
        lse = span_lse(query, key, tables, backend=self.backend, **logit)
        if not layer.parts:
            layer.residuals = [
                sampled_residual(query, key, lse, sample=number, seed=sample.seed + layer.index, **logit)
                for number, sample in enumerate(self.samples)
            ]
        sink = layer.arguments["sink"]
        if sink is not None:
            column = sink.detach().to(lse.device, lse.dtype).reshape(1, -1, 1, 1).expand(*lse.shape[:3], 1)
            lse = torch.cat([lse, column], dim=-1)
            counts = np.concatenate([counts, np.zeros_like(counts[..., :1])], axis=-1)
        layer.parts.append((lse, counts))

    def finish(self, n_rows: int) -> list[LayerRows]:
        """Reduce what was deferred and hand over every layer's first ``n_rows`` captured rows.

        Raises
        ------
        CaptureError
            A layer has fewer rows, or its keys are no longer there.
        """
        begin = time.perf_counter()
        self._call_memo = {}
        layers = [layer for layer in self._layers.values() if layer.entered]
        if not layers:
            raise CaptureError(f"no attention layer of {type(self._model).__name__} ran")
        # All layers are reduced before the first result is waited for.
        for layer in layers:
            self._reduce_deferred(layer, n_rows)
        results = [self._collect(layer, n_rows) for layer in layers]
        self.seconds += time.perf_counter() - begin
        return results

    def _reduce_deferred(self, layer: _Layer, n_rows: int) -> None:
        if not layer.queries.n_rows:
            return
        name = f"{type(layer.module).__name__} (layer {layer.index})"
        query = layer.queries.take(n_rows)
        key = layer.cache_layer.keys if layer.source == "cache" else torch.cat(layer.tail, dim=2)
        offset = 0 if layer.source == "cache" else layer.tail_start
        rows = np.arange(self.first_row, self.first_row + query.shape[2])
        visible = self._intervals(layer, name, rows, offset, key.shape[2])
        self._reduce(layer, name, query, key, offset, visible, None)
        layer.tail = []

    def _collect(self, layer: _Layer, n_rows: int) -> LayerRows:
        name = f"{type(layer.module).__name__} (layer {layer.index})"
        captured = sum(part[0].shape[2] for part in layer.parts)
        if captured < n_rows:
            raise CaptureError(f"{name} gave {captured} of {n_rows} rows")
        return LayerRows(
            layer=layer.index,
            lse=torch.cat([lse for lse, _ in layer.parts], dim=2)[:, :, :n_rows].cpu(),
            visible=np.concatenate([counts for _, counts in layer.parts], axis=1)[:, :n_rows],
            has_sink=layer.arguments["sink"] is not None,
            residual=np.array([float(residual.difference) for residual in layer.residuals]),
            magnitude=np.array([float(residual.magnitude) for residual in layer.residuals]),
        )
