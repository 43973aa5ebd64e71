"""Capture: the span log-sum-exps of chosen query rows, layer by layer, while a model runs as it always does.

*Deferred* capture copies the queries of each captured row while the model decodes and reduces once a layer at the end,
over the keys that the cache holds anyway. *Live* capture reduces inside every call; layers whose keys are in no cache
as attention saw them (latent or quantised caches, no cache at all) are captured live in either mode.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from attnprobe.architecture import (
    attention_layers,
    implementation_of,
    linear_modules,
    linear_weight,
    refuse_unmeasurable,
)
from attnprobe.attention import observed, observer_of
from attnprobe.errors import CaptureError
from attnprobe.extras import output_factor
from attnprobe.interrupts import uninterrupted
from attnprobe.layer_rows import LayerRows, LayerState
from attnprobe.reduction import collect, reduce_block
from attnprobe.reference import attention_output, sampled_residual
from attnprobe.row_block import RowBlock, SampleSpans
from attnprobe.row_means import mean_masses, rows_at_a_time, stretches
from attnprobe.visibility import (
    float_mask,
    is_interval,
    mask_on_rows,
    padding_agrees,
    visible_counts,
    window_and_chunk,
)
from attnprobe_kernels import Segments, visible_intervals

CaptureMode = Literal["deferred", "live"]

VALUE_TOLERANCE = 0.03
"""How far, relatively, an output projection's input may be from the attention output computed here (low precision)."""


def _cache_type() -> type[Any]:
    from transformers import Cache

    return Cache


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
    n_before
        Slots whose keys are in the cache already when the first call comes.
    extras
        Which of :data:`attnprobe.extras.EXTRAS` to reduce as well.
    stops
        Ids of the tokens that end a generated answer; empty for a forced one, which may hold them.

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
        *,
        n_before: int = 0,
        extras: Sequence[str] = (),
        stops: frozenset[int] = frozenset(),
    ) -> None:
        refuse_unmeasurable(model)
        self.samples = tuple(samples)
        self.first_row = first_row
        self.mode = mode
        self.backend = backend
        self.extras = frozenset(extras)
        self.stops = stops
        self.seconds = 0.0  # spent here, not in the model
        self.warnings: list[str] = []
        self._model = model
        self._thread = threading.get_ident()
        self._stack = ExitStack()
        self.n_seen = n_before
        """Slots whose keys the model has: those fed so far, and those in the cache before."""
        self._call = 0
        self._call_start = 0
        self._first_rows = np.array([max(first_row, sample.first_row) for sample in self.samples])
        self._stop_rows = np.full(len(self.samples), np.iinfo(np.int64).max)
        """Slot behind each sample's last row, once its end is known."""
        self._stretches = stretches(self.samples, self.extras)
        self._call_memo: dict[Any, Any] = {}  # what layers of one forward call share
        self._cache: Any = None
        self._cache_type = _cache_type()
        layers = attention_layers(model)
        if not layers:
            raise CaptureError(
                f"{type(model).__name__} does not use transformers' attention interface; "
                "measure() falls back to its eager weights"
            )
        self._layers = {id(module): LayerState(module, index) for module, index in layers}
        self._projections: dict[int, LayerState] = {}
        """By linear module: the layer that it is part of, and may be the output projection of."""

    def __enter__(self) -> Capture:
        with uninterrupted(), ExitStack() as stack:
            hook = self._model.register_forward_pre_hook(self._on_model_call, with_kwargs=True)
            stack.callback(hook.remove)
            for layer in self._layers.values():
                stack.callback(layer.module.register_forward_pre_hook(self._on_enter, with_kwargs=True).remove)
                stack.callback(layer.module.register_forward_hook(self._on_leave).remove)
                for linear in linear_modules(layer.module) if "values" in self.extras else ():
                    self._projections[id(linear)] = layer
                    stack.callback(linear.register_forward_pre_hook(self._on_linear).remove)
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
        if "columns" in self.extras and self.stops:
            self._note_ends(tokens)

    def _note_ends(self, tokens: Tensor) -> None:
        """Note which samples have ended by the tokens ``[B, n]`` of this call."""
        ends = np.isin(tokens.cpu().numpy(), list(self.stops))
        for number, sample in enumerate(self.samples):
            first = sample.pad + sample.n_prompt
            found = np.flatnonzero(ends[number, max(0, first - self._call_start) :])
            if len(found):
                slot = max(first, self._call_start) + int(found[0])
                # The row that predicts a token comes one slot before the token's own.
                stop = slot if self.first_row < first else slot + 1
                self._stop_rows[number] = min(self._stop_rows[number], stop)

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
        name = f"{type(module).__name__} (layer {layer.index})"
        if layer.observed != layer.entered:
            if observer_of(module) != self.observe:
                raise CaptureError(
                    f"{name} is being measured by another measurement inside this one; measure a model once at a time"
                )
            raise CaptureError(
                f"{name} ran without calling the attention function of {implementation_of(self._model)!r}; load the "
                "model with another attn_implementation (sdpa or eager)"
            )
        if layer.attended is not None and layer.factor is None:
            raise CaptureError(
                f'{name}: extras "values" needs the output projection, but no plain linear layer inside it was given '
                "the attention output as it is (a gate or norm lies between, the weights are quantised, or the "
                'projection is elsewhere); measure without "values"'
            )
        begin = time.perf_counter()
        for reduce in layer.waiting:
            reduce()
        layer.waiting = []
        self.seconds += time.perf_counter() - begin

    def _on_linear(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Find a layer's output projection: the linear module that is given what attention gave."""
        layer = self._projections[id(module)]
        if self._elsewhere() or layer.attended is None or layer.factor is not None or not args:
            return
        n_heads, head, expected = layer.attended
        size = len(expected)
        if args[0].shape[-1] != n_heads * size:
            return
        found = args[0].reshape(-1, n_heads * size)[-1, head * size : (head + 1) * size].to(expected)
        if float((found - expected).norm()) <= VALUE_TOLERANCE * float(expected.norm()):
            layer.factor = output_factor(linear_weight(module), n_heads)

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
        asked = (query, key, value if "values" in self.extras else None)
        first = max(self.first_row, self._call_start)
        if first < self.n_seen:
            self._capture(layer, name, self._block(layer, name, *asked, mask, np.arange(first, self.n_seen), kwargs))
        step = rows_at_a_time(len(self.samples), key.shape[2], mask, kwargs.get("position_bias"))
        for extra, (start, stop) in self._stretches.items():
            rows = range(max(start, self._call_start), min(stop, self.n_seen))
            for part in (rows[i : i + step] for i in range(0, len(rows), step)):
                block = self._block(layer, name, query, key, None, mask, np.array(part), kwargs)
                sink, tables = layer.arguments["sink"], self._tables(block)
                mean = mean_masses(block, tables, sink, self.samples, extra, self.backend)
                layer.means[extra] = layer.means[extra] + mean if extra in layer.means else mean
        self.seconds += time.perf_counter() - begin
        return mask

    def _note_arguments(self, layer: LayerState, name: str, key: Tensor, kwargs: dict[str, Any]) -> None:
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

    def _intervals(self, layer: LayerState, name: str, rows: np.ndarray, offset: int, n_columns: int) -> np.ndarray:
        window, chunk = layer.arguments["window"], layer.arguments["chunk"]

        def make() -> np.ndarray:
            pads = [sample.pad for sample in self.samples]
            try:
                return visible_intervals(rows, n_columns, offset=offset, pads=pads, window=window, chunk=chunk)
            except ValueError as error:
                raise CaptureError(f"{name}: {error}") from error

        return self._memo(("visible", int(rows[0]), len(rows), offset, n_columns, window, chunk), make)

    def _block(
        self,
        layer: LayerState,
        name: str,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        mask: Any,
        slots: np.ndarray,
        kwargs: dict[str, Any],
    ) -> RowBlock:
        """The wanted rows ``slots`` of one attention call, with what they see."""
        n_columns, n_call_rows = key.shape[2], query.shape[2]
        first, stop = (int(slot) - self.n_seen + n_call_rows for slot in (slots[0], slots[-1] + 1))
        if first < 0:
            raise CaptureError(
                f"{name} was given {n_call_rows} of the {self.n_seen - int(slots[0])} rows to capture; such an "
                'architecture cannot be measured with a forced answer, nor with the extras "question" and "prompt"'
            )
        offset = max(0, self.n_seen - n_columns)
        visible = self._intervals(layer, name, slots, offset, n_columns)
        bias = kwargs.get("position_bias")
        causal = kwargs.get("is_causal", getattr(layer.module, "is_causal", True))
        if mask is None and causal is False:
            raise CaptureError(f"{name} is not causal; only causal language models can be measured")
        handed = slice(first, stop)
        # The mask is kept with the answer: its id stands for it, and a freed object's id may be used again.
        _, odd_mask = self._memo(
            ("mask", id(mask), first, stop, n_columns, layer.arguments["window"], layer.arguments["chunk"]),
            lambda: (mask, self._check_mask(name, mask, handed, n_columns, visible, key.device)),
        )
        if bias is not None:
            odd_mask = float_mask(bias[:, :, handed, :n_columns], odd_mask, visible)
            self._call_memo["bias", layer.index, first] = odd_mask  # kept for the call: its id stands for it below
        return self._as_block(layer, query[:, :, handed], key, value, slots, offset, visible, odd_mask)

    def _as_block(
        self,
        layer: LayerState,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        slots: np.ndarray,
        offset: int,
        visible: np.ndarray,
        odd_mask: Tensor | None,
    ) -> RowBlock:
        scale, softcap = layer.arguments["scale"], layer.arguments["softcap"]
        key = key.to(query.device)
        value = None if value is None else value.to(query.device)
        return RowBlock(query, key, value, slots, offset, visible, odd_mask, scale, softcap)

    def _capture(self, layer: LayerState, name: str, block: RowBlock) -> None:
        """Reduce, or keep for later, the captured rows of one attention call."""
        if layer.source is None:
            layer.source = self._choose_source(layer, block)
            layer.tail_start = layer.tail_stop = block.offset + int(block.visible[:, 0, 0].min())
            if block.value is not None:
                n_heads = block.query.shape[1]
                head = self.samples[-1].seed % n_heads
                output = attention_output(block, layer.arguments["sink"], len(self.samples) - 1, head)
                layer.attended = (n_heads, head, output)
        if layer.source == "live":
            reduce = partial(self._reduce, layer, name, block)
            if block.value is not None and layer.factor is None:
                layer.waiting.append(reduce)
            else:
                reduce()
            return
        if block.mask is not None:
            raise CaptureError(f'{name} changed its kind of mask while decoding; measure with capture="live"')
        layer.queries.append(block.query.detach())
        if layer.source == "tail":
            fresh = slice(layer.tail_stop - block.offset, self.n_seen - block.offset)
            layer.tail.append(block.key[:, :, fresh].detach().clone())
            if block.value is not None:
                layer.value_tail.append(block.value[:, :, fresh].detach().clone())
            layer.tail_stop = self.n_seen

    def _holder(self, key: Tensor) -> Any:
        """The layer of the cache whose keys are the very tensor that attention was given."""
        layers = getattr(self._cache, "layers", ())
        return next((layer for layer in layers if getattr(layer, "keys", None) is key), None)

    def _cache_layer(self, module: nn.Module) -> Any:
        layers, index = getattr(self._cache, "layers", ()), getattr(module, "layer_idx", None)
        return layers[index] if isinstance(index, int) and 0 <= index < len(layers) else None

    def _choose_source(self, layer: LayerState, block: RowBlock) -> str:
        """Where a layer's keys will be found at the end; ``live`` if nowhere as attention sees them now."""
        if self.mode == "live" or block.mask is not None or self._cache is None:
            return "live"
        holder = self._holder(block.key)
        if holder is not None and not getattr(holder, "is_sliding", False):
            layer.cache_layer = holder
            return "cache" if block.value is None or holder.values is block.value else "live"
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

    def _tables(self, block: RowBlock) -> list[Segments]:
        """Which span owns each column, one table a sample."""
        offset, n_columns = block.offset, block.key.shape[2]
        tables: list[Segments] = self._memo(
            ("segments", offset, n_columns),
            lambda: [sample.segments(offset, n_columns) for sample in self.samples],
        )
        return tables

    def _counts(self, name: str, block: RowBlock, tables: list[Segments]) -> np.ndarray:
        """How many keys of each span each row sees."""
        try:
            counts: np.ndarray = self._memo(
                ("counts", id(block.visible), id(block.mask)),
                lambda: visible_counts(tables, block.visible, block.mask),
            )
        except ValueError as error:
            raise CaptureError(f"{name}: {error}") from error
        return counts

    def _reduce(self, layer: LayerState, name: str, block: RowBlock) -> None:
        tables = self._tables(block)
        counts = self._counts(name, block, tables)
        part = reduce_block(layer, block, tables, counts, self.samples, self.extras, self.backend)
        if not layer.parts:
            layer.residuals = [
                sampled_residual(block, part.lse[..., : tables[0].n_spans], number, sample.seed + layer.index)
                for number, sample in enumerate(self.samples)
            ]
        layer.parts.append(part)
        if "columns" in self.extras:
            slots, total = block.slots[None, :], torch.logsumexp(part.lse, dim=-1)
            counted = (slots >= self._first_rows[:, None]) & (slots < self._stop_rows[:, None])
            layer.columns.add(block, counted, total, self.n_seen, self.backend)

    def finish(self, n_rows: int, counts: Sequence[int] | None = None) -> list[LayerRows]:
        """Reduce what was deferred and hand over every layer's first ``n_rows`` captured rows.

        Parameters
        ----------
        n_rows
            Rows wanted.
        counts
            How many of them, from its own first row on, are each sample's; None: all.

        Raises
        ------
        CaptureError
            A layer has fewer rows, or its keys are no longer there.
        """
        begin = time.perf_counter()
        self._call_memo = {}
        rows = np.full(len(self.samples), n_rows) if counts is None else np.asarray(counts, dtype=np.int64)
        self._stop_rows = self._first_rows + rows
        layers = [layer for layer in self._layers.values() if layer.entered]
        if not layers:
            raise CaptureError(f"no attention layer of {type(self._model).__name__} ran")
        # All layers are reduced before the first result is waited for.
        for layer in layers:
            self._reduce_deferred(layer, n_rows)
        results = [collect(layer, n_rows, self.extras, self._stop_rows, self.n_seen) for layer in layers]
        self.seconds += time.perf_counter() - begin
        return results

    def _reduce_deferred(self, layer: LayerState, n_rows: int) -> None:
        if not layer.queries.n_rows:
            return
        name = f"{type(layer.module).__name__} (layer {layer.index})"
        query = layer.queries.take(n_rows)
        value = None
        if layer.source == "cache":
            key, offset = layer.cache_layer.keys, 0
            value = layer.cache_layer.values if "values" in self.extras else None
        else:
            key, offset = torch.cat(layer.tail, dim=2), layer.tail_start
            value = torch.cat(layer.value_tail, dim=2) if layer.value_tail else None
        slots = np.arange(self.first_row, self.first_row + query.shape[2])
        visible = self._intervals(layer, name, slots, offset, key.shape[2])
        self._reduce(layer, name, self._as_block(layer, query, key, value, slots, offset, visible, None))
        layer.tail, layer.value_tail = [], []
