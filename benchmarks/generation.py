"""Plain against instrumented generation of a Llama with random weights: no checkpoint, no tokenizer, any length.

Both run transformers' own greedy ``generate`` on the same random token ids through the same function; the instrumented
one under a deferred capture, its reduction included. Weights are random, so the text means nothing, but every layer
does the work of the real model.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import torch

N_SPANS = 22
SIZES: dict[str, dict[str, int]] = {
    "llama-1b": {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
    },
    "llama-8b": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "llama-tiny": {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
}
"""Llama-3.2-1B, Llama-3.1-8B, and one for a dry run."""


def random_llama(name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """A Llama of the named size with random weights (seed 0), made on the device."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        **SIZES[name],
        max_position_embeddings=2**20,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        eos_token_id=None,
    )
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return model.eval()


class Runner:
    """Plain and instrumented generation over one prompt of random ids."""

    def __init__(self, model: Any, n_tokens: int, n_rows: int, prefill_chunk: int | None, backend: str) -> None:
        from attnprobe.decoding import left_pad
        from attnprobe.row_block import SampleSpans

        generator = torch.Generator().manual_seed(n_tokens)
        ids = torch.randint(2, model.config.vocab_size, (n_tokens,), generator=generator).tolist()
        edges = [0, *(1 + (n_tokens - 1) * i // (N_SPANS - 1) for i in range(N_SPANS))]
        spans = tuple(((start, stop),) for start, stop in itertools.pairwise(edges))
        self.model, self.n_rows, self.chunk, self.backend = model, n_rows, prefill_chunk, backend
        self.batch = left_pad([ids], 0, model.device)
        self.samples = [SampleSpans(0, n_tokens, spans)]

    def plain(self) -> list[int]:
        """Generate; the tokens."""
        from attnprobe.decoding import generate

        made = generate(self.model, self.batch, max_new_tokens=self.n_rows, pad_id=0, prefill_chunk=self.chunk)
        return made.tokens[0].tolist()

    def instrumented(self) -> tuple[list[int], dict[str, float]]:
        """Generate under a capture; the tokens and what the capture says of itself."""
        from attnprobe.capture import Capture

        first_row = self.batch.ids.shape[1] - 1
        on_gpu = self.model.device.type == "cuda"
        with Capture(self.model, self.samples, first_row, "deferred", self.backend) as capture:
            tokens = self.plain()
            # The peak so far is prefill's; what the reduction adds on top of what is held would hide below it.
            before = torch.cuda.max_memory_allocated() if on_gpu else 0
            held = torch.cuda.memory_allocated() if on_gpu else 0
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            layers = capture.finish(self.n_rows)
            reduction = torch.cuda.max_memory_allocated() - held if on_gpu else 0
        return tokens, {
            "seconds": capture.seconds,
            "residual": max(float(layer.residual.max()) for layer in layers),
            "peak_bytes": max(before, held + reduction),
            "reduction_bytes": reduction,
        }


def _timed(call: Any, device: torch.device) -> tuple[float, Any]:
    """Seconds and the result; on a GPU, with everything done and the peak of memory counted from here."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    begin = time.perf_counter()
    result = call()
    if on_gpu:
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin, result


def compare(
    model: Any,
    n_tokens: int,
    n_rows: int,
    pairs: int,
    *,
    prefill_chunk: int | None = None,
    backend: str = "auto",
    deadline: float = float("inf"),
) -> dict[str, Any]:
    """Alternate plain and instrumented generation of one length, at least one pair.

    Raises
    ------
    RuntimeError
        The masses of the instrumented run do not add up.
    """
    device, on_gpu = model.device, model.device.type == "cuda"
    runner = Runner(model, n_tokens, n_rows, prefill_chunk, backend)
    seconds: dict[str, list[float]] = {"plain": [], "instrumented": [], "capture": []}
    plain_peak = 0
    same_tokens = True
    for _ in range(pairs):
        plain, tokens = _timed(runner.plain, device)
        plain_peak = torch.cuda.max_memory_allocated(device) if on_gpu else 0
        instrumented, (again, capture) = _timed(runner.instrumented, device)
        if not capture["residual"] < 1e-4:
            raise RuntimeError(f"{n_tokens} tokens: the spans miss a row's total by {capture['residual']:.1e} nats")
        same_tokens = same_tokens and tokens == again
        seconds["plain"].append(plain)
        seconds["instrumented"].append(instrumented)
        seconds["capture"].append(capture["seconds"])
        if time.monotonic() + plain + instrumented > deadline:
            break
    config, element = model.config, model.dtype.itemsize
    layer_bytes = config.num_hidden_layers * config.head_dim * element  # of one head and token
    queries = layer_bytes * config.num_attention_heads * n_rows
    ratios = [b / a for a, b in zip(seconds["plain"], seconds["instrumented"], strict=True)]
    return {
        "tokens": n_tokens,
        "rows": n_rows,
        "prefill_chunk": prefill_chunk,
        "seconds": seconds,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "same_tokens": same_tokens,
        "residual": capture["residual"],
        "cache_bytes": 2 * layer_bytes * config.num_key_value_heads * (n_tokens + n_rows - 1),
        "peak_bytes": {"plain": plain_peak, "instrumented": capture["peak_bytes"]} if on_gpu else None,
        # Kept queries, and what reducing them takes for a moment.
        "capture_bytes": queries + capture["reduction_bytes"] if on_gpu else None,
    }


def line(name: str, run: dict[str, Any]) -> str:
    """One line about one comparison."""
    plain, capture = (statistics.median(run["seconds"][key]) for key in ("plain", "capture"))
    text = f"{name}, {run['tokens']} tokens, {run['rows']} rows: plain {plain:.3f} s, instrumented {run['ratio']:.4f}x"
    text += f" ({min(run['ratios']):.4f} to {max(run['ratios']):.4f}), {capture:.4f} s in capture"
    if run["peak_bytes"] is not None:
        peak, extra = run["peak_bytes"]["plain"], run["peak_bytes"]["instrumented"] - run["peak_bytes"]["plain"]
        text += f"; peak {peak / 2**30:.2f} GiB {extra / 2**20:+.1f} MiB"
        text += f"; capture holds {run['capture_bytes'] / run['cache_bytes']:.2%} of the KV cache"
    return text + ("" if run["same_tokens"] else "; OTHER TOKENS than the plain run")
