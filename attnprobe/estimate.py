"""Memory and time that a measurement will need, from the model's shapes and a short probe of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from attnprobe.architecture import attention_layers, implementation_of
from attnprobe.decoding import forward_parameters, new_cache
from attnprobe.visibility import window_and_chunk

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel

PREFILL_EFFICIENCY = 0.7
DECODE_EFFICIENCY = 0.7
"""Shares of the probed rates that whole passes reach. Set with SmolLM2-135M, float32, on two CPU cores."""

_PROBE_SECONDS = 0.3


@dataclass(frozen=True)
class LayerShape:
    """Heads, key heads, head dimension and window (tokens; None = unlimited) of one attention layer."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    window: int | None

    def keys(self, n_tokens: int) -> int:
        """Keys that the layer's cache holds after so many tokens."""
        return n_tokens if self.window is None else min(n_tokens, self.window)

    def pairs(self, n_tokens: int) -> float:
        """Query-key pairs of a causal pass over so many tokens."""
        width = self.keys(n_tokens)
        return width * width / 2 + (n_tokens - width) * width


@dataclass(frozen=True)
class ModelShape:
    """What memory and time depend on.

    Parameters
    ----------
    n_parameters
        All parameters, tied ones once.
    n_active
        Parameters that one token meets in the decoder's matrices: without embeddings and output projection, and of
        a mixture only the experts used.
    layers
        Attention layers.
    hidden, intermediate, vocabulary
        Widths.
    bytes
        Of one weight.
    keeps_last_logits
        Whether the model can leave out the logits of rows that nobody asks for.
    """

    n_parameters: int
    n_active: int
    layers: tuple[LayerShape, ...]
    hidden: int
    intermediate: int
    vocabulary: int
    bytes: int
    keeps_last_logits: bool


@dataclass(frozen=True)
class Rates:
    """Measured on this machine: floating-point operations and bytes of weights a second."""

    flops: float
    bytes: float


@dataclass(frozen=True)
class Workload:
    """One batch: tokens of its longest prompt, rows measured, spans, and how it runs."""

    n_prompt: int
    n_answer: int
    n_spans: int
    batch_size: int = 1
    is_forced: bool = False
    prefill_chunk: int | None = None  # tokens at a time; None = all at once
    keep_rows: bool = True


def model_shape(lm: LanguageModel) -> ModelShape:
    """Read the shapes off a model, which may be on the meta device."""
    config = lm.config
    kept = dict(enumerate(new_cache(lm.model).layers))
    layers = tuple(
        _layer_shape(module, config, kept.get(getattr(module, "layer_idx", -1)))
        for module, _ in attention_layers(lm.model)
    )
    intermediate = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    widest = max(intermediate) if isinstance(intermediate, list | tuple) else intermediate
    parameters = {id(p): (name, p.numel()) for name, p in lm.model.named_parameters()}
    ends = {id(p) for part in (lm.model.get_input_embeddings(), lm.model.get_output_embeddings()) if part is not None
            for p in part.parameters()}  # fmt: skip
    used = _used_experts(config)
    active = sum(n * (used if ".experts." in name else 1.0) for key, (name, n) in parameters.items() if key not in ends)
    return ModelShape(
        n_parameters=sum(n for _, n in parameters.values()),
        n_active=round(active),
        # Without transformers' attention interface there is only the config to ask.
        layers=layers or (_layer_shape(lm.model, config),) * config.num_hidden_layers,
        hidden=int(config.hidden_size),
        intermediate=int(widest),
        vocabulary=int(config.vocab_size),
        bytes=lm.model.dtype.itemsize,
        keeps_last_logits="logits_to_keep" in forward_parameters(lm.model),
    )


def _layer_shape(module: nn.Module, config: Any, cache_layer: Any = None) -> LayerShape:
    """Shape of an attention layer: as its module says, else as the config does, which may vary by layer."""
    n_heads = int(config.num_attention_heads)
    head_dim = getattr(module, "head_dim", None) or getattr(config, "head_dim", None) or config.hidden_size // n_heads
    groups = getattr(module, "num_key_value_groups", None)
    n_kv_heads = n_heads // groups if groups else getattr(config, "num_key_value_heads", None) or n_heads
    window, chunk = window_and_chunk(module, None, cache_layer)
    return LayerShape(n_heads, int(n_kv_heads), int(head_dim), window or chunk)


def _used_experts(config: Any) -> float:
    """Share of a mixture's experts that one token meets; 1 where there is no mixture."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    total = next((v for v in (getattr(config, name, None) for name in names) if isinstance(v, int) and v > 0), None)
    used = getattr(config, "num_experts_per_tok", None)
    return used / total if total and isinstance(used, int) else 1.0


def memory(lm: LanguageModel, shape: ModelShape, work: Workload) -> dict[str, float]:
    """Bytes that one batch needs at its peak, by what needs them.

    ``weights``; ``cache``: keys and values of prompt and answer (of one layer at a time where a forced answer needs
    no cache); ``capture``: queries of the measured rows, key copies of windowed layers, and the span masses;
    ``logits``; ``activations``: the widest layer's intermediate values, with the attention matrix where attention is
    eager. Not counted: Python and torch themselves, and what an allocator holds in reserve.
    """
    n_tokens = work.n_prompt + work.n_answer
    batch, unit = work.batch_size, shape.bytes
    fed = min(work.prefill_chunk or work.n_prompt, work.n_prompt)
    one_pass = work.is_forced and work.prefill_chunk is None
    # A window limits what a cache keeps, not what a single pass over the prompt makes.
    kept = [(layer, n_tokens if one_pass else layer.keys(n_tokens)) for layer in shape.layers]
    per_layer = [2 * layer.n_kv_heads * layer.head_dim * n_keys * unit for layer, n_keys in kept]
    masses = 4 * work.n_answer * sum(layer.n_heads for layer in shape.layers) * (work.n_spans + 1)
    queries = windows = 0
    if not work.is_forced:
        queries = unit * work.n_answer * sum(layer.n_heads * layer.head_dim for layer in shape.layers)
        windows = unit * sum(
            layer.n_kv_heads * layer.head_dim * (layer.keys(work.n_prompt) + work.n_answer)
            for layer in shape.layers
            if layer.window is not None
        )
    rows = work.n_answer if work.is_forced else 1
    logits = (rows if shape.keeps_last_logits else fed) * shape.vocabulary * unit + rows * shape.vocabulary * 4
    wide = fed * (4 * shape.hidden + 3 * shape.intermediate) * unit
    if implementation_of(lm.model) == "eager":
        wide += max(layer.n_heads for layer in shape.layers) * fed * work.n_prompt * (unit + 4)
    return {
        "weights": shape.n_parameters * unit,
        "cache": batch * (max(per_layer) if one_pass else sum(per_layer)),
        "capture": batch * (queries + windows + 2 * masses),
        "logits": batch * logits,
        "activations": batch * wide,
    }


def run_file_bytes(shape: ModelShape, work: Workload) -> int:
    """Bytes of one run file, texts and ids apart; the formula of ``attnprobe.run_file``."""
    n_layers, n_heads = len(shape.layers), max(layer.n_heads for layer in shape.layers)
    size = 4 * n_layers * work.n_spans * (n_heads + work.n_answer)
    return size + (4 * n_layers * n_heads * work.n_answer * (work.n_spans + 1) if work.keep_rows else 0)


def seconds(shape: ModelShape, work: Workload, rates: Rates) -> float:
    """Estimated seconds of one batch: its prefill limited by arithmetic, its decoding by reading the weights."""
    fed = work.n_prompt + (work.n_answer if work.is_forced else 0)
    rows = work.n_answer if work.is_forced else 1
    flops = 2.0 * shape.n_active * fed
    flops += sum(4.0 * layer.n_heads * layer.head_dim * layer.pairs(fed) for layer in shape.layers)
    total = work.batch_size * (flops / (rates.flops * PREFILL_EFFICIENCY) + output_seconds(shape, rows, rates))
    if not work.is_forced:
        keys = sum(2 * layer.n_kv_heads * layer.head_dim * layer.keys(work.n_prompt) for layer in shape.layers)
        read = shape.bytes * (shape.n_active + shape.hidden * shape.vocabulary + work.batch_size * keys)
        total += (work.n_answer - 1) * read / (rates.bytes * DECODE_EFFICIENCY)
    return total


def output_seconds(shape: ModelShape, n_rows: int, rates: Rates) -> float:
    """Estimated seconds of the logits of so many rows."""
    return 2.0 * shape.hidden * shape.vocabulary * n_rows / (rates.flops * PREFILL_EFFICIENCY)


def probe(shape: ModelShape, dtype: torch.dtype, device: str) -> Rates:
    """Measure, in under a second, what this machine does with matrices of the model's widths."""
    where = "cuda" if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()) else "cpu"
    wide = torch.ones(shape.intermediate, shape.hidden, dtype=dtype, device=where)
    tokens = torch.ones(shape.hidden, 512, dtype=dtype, device=where)
    flops = 2 * wide.numel() * 512 / _time_of(lambda: wide @ tokens, where)
    # Larger than any CPU's cache, as a model's weights are.
    n_rows = max(1, 256 * 2**20 // (shape.hidden * dtype.itemsize))
    tall = torch.ones(n_rows, shape.hidden, dtype=dtype, device=where)
    one = torch.ones(shape.hidden, dtype=dtype, device=where)
    n_bytes = tall.numel() * dtype.itemsize / _time_of(lambda: tall @ one, where)
    return Rates(flops, n_bytes)


def _time_of(work: Callable[[], object], device: str) -> float:
    """Shortest of the seconds of a call, repeated for a third of a second: others may use the machine meanwhile."""
    times: list[float] = []
    work()
    end = time.perf_counter() + _PROBE_SECONDS
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 1000):
        begin = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times)
