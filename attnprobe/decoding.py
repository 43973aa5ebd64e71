"""Run a model over padded batches: teacher-forced passes and generation, with log-probabilities of the answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from attnprobe.errors import InputError

Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)`` with stage ``prefill`` (tokens) or ``decode`` (answer tokens)."""

REFUSED_GENERATION = {
    "num_beams": "beam search reorders the cache between steps",
    "num_return_sequences": "one prompt gives one answer here; pass the prompt several times instead",
    "assistant_model": "assisted decoding rolls rows back",
    "prompt_lookup_num_tokens": "prompt lookup decoding rolls rows back",
    "guidance_scale": "classifier-free guidance runs the model on a second prompt",
    "penalty_alpha": "contrastive search runs every candidate",
    "dola_layers": "DoLa decoding mixes layers",
    "constraints": "constrained beam search reorders the cache",
    "past_key_values": "the measurement fills its own cache",
    "cache": "the measurement fills its own cache",
    "inputs_embeds": "spans are positions of token ids",
    "custom_generate": "a custom decoding loop may call the model in any order",
    "use_cache": "decoding without a cache runs every row again at each step",
}


@dataclass(frozen=True)
class Batch:
    """Left-padded token ids ``[B, N]``, their mask (1 = token), and each sample's padding."""

    ids: Tensor
    mask: Tensor
    pads: tuple[int, ...]

    @property
    def is_padded(self) -> bool:
        """Whether any sample is padded."""
        return any(self.pads)


def left_pad(sequences: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> Batch:
    """Align token sequences at their right end."""
    width = max(len(sequence) for sequence in sequences)
    pads = tuple(width - len(sequence) for sequence in sequences)
    rows = [[pad_id] * pad + list(sequence) for pad, sequence in zip(pads, sequences, strict=True)]
    mask = [[0] * pad + [1] * (width - pad) for pad in pads]
    return Batch(torch.tensor(rows, device=device), torch.tensor(mask, device=device), pads)


def forward_parameters(model: nn.Module) -> frozenset[str]:
    """Names of the arguments that the model's forward declares."""
    return frozenset(inspect.signature(inspect.unwrap(type(model).forward)).parameters)


def cache_of(output: Any) -> Any:
    """The cache in a model's output, under either of the names that transformers versions use."""
    # Asking a newer output for the older name would log a deprecation.
    names = [field.name for field in fields(output)]
    return getattr(output, "cache" if "cache" in names else "past_key_values", None)


@torch.no_grad()
def forced_logprobs(
    model: nn.Module,
    batch: Batch,
    targets: Tensor,
    prefill_chunk: int | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Feed a batch and give the log-probability of the targets under the rows that predict them.

    Parameters
    ----------
    model
        A causal language model in evaluation mode.
    batch
        What is fed, ``[B, N]``.
    targets
        Token ids ``[B, T]`` that the last T rows should predict.
    prefill_chunk
        Feed at most this many tokens at a time, through a cache; None = all at once, without a cache.

    Returns
    -------
    float32 ``[B, T]`` on the CPU, natural log.
    """
    n_tokens = batch.ids.shape[1]
    step = n_tokens if prefill_chunk is None else prefill_chunk
    accepted = forward_parameters(model)
    cache_name = "cache" if "cache" in accepted else "past_key_values"
    positions = (batch.mask.cumsum(-1) - 1).clamp(min=0)
    first_scored = n_tokens - targets.shape[1]
    cache: Any = None
    scored: list[Tensor] = []
    for start in range(0, n_tokens, step):
        stop = min(start + step, n_tokens)
        n_kept = stop - max(start, first_scored)
        arguments: dict[str, Any] = {"use_cache": step < n_tokens, "return_dict": True}
        if cache is not None:
            arguments[cache_name] = cache
        if batch.is_padded:
            arguments["attention_mask"] = batch.mask[:, :stop]
            if "position_ids" in accepted:
                arguments["position_ids"] = positions[:, start:stop]
        if "logits_to_keep" in accepted:
            arguments["logits_to_keep"] = max(n_kept, 1)
        output = model(batch.ids[:, start:stop], **arguments)
        cache = cache_of(output)
        if n_kept > 0:
            logits = output.logits[:, -n_kept:]
            taken = sum(part.shape[1] for part in scored)
            scored.append(token_logprobs(logits, targets[:, taken : taken + n_kept]))
        if progress is not None:
            progress("prefill", stop, n_tokens)
    return torch.cat(scored, dim=1)


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probability of ``tokens [B, T]`` under ``logits [B, T, V]``: float32 ``[B, T]`` on the CPU, natural log."""
    chosen = tokens.to(logits.device)[..., None]
    rows = [
        (row.float().gather(-1, pick) - row.float().logsumexp(-1, keepdim=True))[..., 0]
        for row, pick in zip(logits.unbind(1), chosen.unbind(1), strict=True)
    ]
    return torch.stack(rows, dim=1).cpu()


@dataclass(frozen=True)
class Generated:
    """Generated token ids ``[B, T]`` (padding after a sample's end) and their float32 log-probabilities, CPU."""

    tokens: Tensor
    logprobs: Tensor


@torch.no_grad()
def generate(
    model: Any,
    batch: Batch,
    *,
    max_new_tokens: int,
    pad_id: int,
    prefill_chunk: int | None = None,
    do_sample: bool = False,
    seed: int | None = None,
    progress: Progress | None = None,
    options: dict[str, Any] | None = None,
) -> Generated:
    """Generate through the model's own ``generate``; log-probabilities are those of the unprocessed logits.

    Raises
    ------
    InputError
        A decoding option that does not run one row a step in order.
    """
    from transformers import StoppingCriteria, StoppingCriteriaList

    options = dict(options or {})
    check_generation_options(options)
    logprobs: list[Tensor] = []
    last_logits: list[Tensor] = []

    def keep_logits(module: nn.Module, args: Any, output: Any) -> None:
        last_logits[:] = [output.logits[:, -1:].detach().clone()]

    class Watch(StoppingCriteria):
        """Never stops; called once a step, after the new token is known."""

        def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
            logprobs.append(token_logprobs(last_logits[0], input_ids[:, -1:]))
            if progress is not None:
                progress("decode", len(logprobs), max_new_tokens)
            return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    criteria = StoppingCriteriaList([*options.pop("stopping_criteria", []), Watch()])
    if not do_sample:
        # A checkpoint's own sampling settings would only raise warnings about being unused.
        options = {"temperature": None, "top_p": None, "top_k": None, **options}
    hook = model.register_forward_hook(keep_logits)
    try:
        with seeded(seed, batch.ids.device):
            output = model.generate(
                batch.ids,
                attention_mask=batch.mask,
                max_new_tokens=max_new_tokens,
                do_sample=do_sample,
                num_beams=1,
                pad_token_id=pad_id,
                prefill_chunk_size=prefill_chunk,
                stopping_criteria=criteria,
                return_dict_in_generate=True,
                disable_compile=True,
                use_cache=True,
                **options,
            )
    finally:
        hook.remove()
    return Generated(output.sequences[:, batch.ids.shape[1] :].cpu(), torch.cat(logprobs, dim=1))


def check_generation_options(options: dict[str, Any]) -> None:
    """Refuse decoding options under which rows do not run one a step, in order.

    Raises
    ------
    InputError
        Naming the option and why it cannot be measured.
    """
    harmless = {"num_beams": 1, "num_return_sequences": 1, "guidance_scale": 1, "use_cache": True}
    for name, reason in REFUSED_GENERATION.items():
        value = options.pop(name, None)
        if value is not None and value != harmless.get(name):
            raise InputError(f"{name}={value!r} cannot be measured: {reason}; leave it out")


@contextmanager
def seeded(seed: int | None, device: torch.device):  # type: ignore[no-untyped-def]
    """Seed torch's generators inside the context and give the caller's state back afterwards."""
    if seed is None:
        yield
        return
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
