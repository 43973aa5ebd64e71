"""Run a model over padded batches: teacher-forced passes and generation, with log-probabilities of the answer."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence, Set
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attnprobe.architecture import attention_layers, decoder_of
from attnprobe.errors import InputError
from attnprobe.interrupts import forward_hook
from attnprobe.models import input_device
from attnprobe.rope import changes_with_length
from attnprobe.rope_frequencies import reset_frequencies

Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)`` with stage ``prefill`` (tokens) or ``decode`` (answer tokens)."""

OWN = "the measurement sets it itself"
REFUSED_GENERATION = {
    "num_beams": "beam search reorders the cache between steps",
    "num_return_sequences": "one prompt gives one answer here; pass the prompt several times instead",
    "assistant_model": "assisted decoding rolls rows back",
    "assistant_early_exit": "assisted decoding rolls rows back",
    "prompt_lookup_num_tokens": "prompt lookup decoding rolls rows back",
    "guidance_scale": "classifier-free guidance runs the model on a second prompt",
    "penalty_alpha": "contrastive search runs every candidate",
    "dola_layers": "DoLa decoding mixes layers",
    "constraints": "constrained beam search reorders the cache",
    "custom_generate": "a custom decoding loop may call the model in any order",
    "use_cache": "decoding without a cache runs every row again at each step",
    "inputs_embeds": "spans are positions of token ids",
    **dict.fromkeys(("past_key_values", "cache", "inputs", "input_ids", "attention_mask", "position_ids"), OWN),
    **dict.fromkeys(("pad_token_id", "return_dict_in_generate", "disable_compile", "max_length"), OWN),
    "prefill_chunk_size": "use prefill_chunk",
}
_OVERRIDDEN = (
    *("num_beams", "num_return_sequences", "use_cache", "guidance_scale"),
    *("prompt_lookup_num_tokens", "assistant_early_exit", "penalty_alpha", "dola_layers"),
)
HARMLESS = {"num_beams": 1, "num_return_sequences": 1, "guidance_scale": 1, "use_cache": True}
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
STOPS_ROWS_APART = ("stopping_criteria", "stop_strings")
"""Options that end the rows of a batch apart without leaving a mark in their tokens: such prompts run one by one."""


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


def has_recurrent_layers(model: nn.Module) -> bool:
    """Whether some layers carry a state from token to token instead of keys (state spaces, linear attention).

    Some models say so themselves; else it shows where some blocks of the decoder attend and others do not. The config's
    number of layers would not do: an encoder-decoder's is that of its encoder.
    """
    attention = {module for module, _ in attention_layers(model)}
    return bool(getattr(model, "_is_stateful", False)) or _is_mixed(decoder_of(model), attention)


def _is_mixed(module: nn.Module, attention: Set[nn.Module]) -> bool:
    """Whether, of the outermost lists of blocks that attend, one has blocks that do not."""
    for child in module.children():
        attends = (
            [not attention.isdisjoint(block.modules()) for block in child] if isinstance(child, nn.ModuleList) else []
        )
        if any(attends):
            if not all(attends):
                return True
        elif _is_mixed(child, attention):
            return True
    return False


AUTO_CHUNK = 2048
"""Tokens fed at a time where attention would otherwise hold a mask or weights of the prompt's length squared."""

_PROBED: WeakKeyDictionary[nn.Module, dict[str, bool]] = WeakKeyDictionary()
_PROBE_TOKENS, _PROBE_PADDING = 24, 9


def pads_safely(model: nn.Module) -> bool:
    """Whether left padding changes nothing: the model can be told positions, and its states skip the padding.

    Rotary frequencies that depend on the length would be those of the longest prompt for all.
    """
    if "position_ids" not in forward_parameters(model) or changes_with_length(decoder_of(model).config):
        return False
    # The last token comes alone, as in decoding.
    whole = _PROBE_TOKENS - 1
    return not has_recurrent_layers(model) or _agree(
        model, "padding", lambda: _probe(model, 0, whole), lambda: _probe(model, _PROBE_PADDING, whole + _PROBE_PADDING)
    )


def continues_prefill(model: nn.Module) -> bool:
    """Whether feeding a prompt in chunks gives the logits of feeding it at once."""
    return not changes_with_length(decoder_of(model).config) and takes_chunks(model)


def may_chunk(model: nn.Module) -> bool:
    """Whether a measurement feeds this model in chunks: the same, tried only where layers carry a state."""
    if changes_with_length(decoder_of(model).config):
        return False
    return not has_recurrent_layers(model) or takes_chunks(model)


def takes_chunks(model: nn.Module) -> bool:
    """As :func:`continues_prefill`, of a short prompt alone, for which no rotary frequencies change."""
    return _agree(model, "chunks", lambda: _probe(model, 0, None), lambda: _probe(model, 0, 10))


def _probe(model: nn.Module, pad: int, chunk: int | None) -> Tensor:
    """Log-probabilities that end a short random prompt, which is padded if a longer one has to run with it."""
    generator = torch.Generator().manual_seed(0)
    embeddings = model.get_input_embeddings().weight  # type: ignore[operator]
    ids = torch.randint(0, embeddings.shape[0], (_PROBE_TOKENS,), generator=generator).tolist()
    batch = left_pad([ids, ids[:pad] + ids] if pad else [ids], 0, input_device(model))
    targets = torch.tensor([ids[:6]]).expand(len(batch.pads), -1)
    return forced_logprobs(model, batch, targets, chunk)[0]


def _agree(model: nn.Module, what: str, first: Callable[[], Tensor], second: Callable[[], Tensor]) -> bool:
    """Whether two ways of running a model give the same log-probabilities; asked once a model."""
    answers = _PROBED.setdefault(model, {})
    if what not in answers:
        try:
            wanted, found = first(), second()
            answers[what] = bool((wanted - found).abs().max() < 1e-2 * max(1.0, float(wanted.abs().max())))
        except torch.OutOfMemoryError:
            raise
        except (AttributeError, TypeError, ValueError, RuntimeError):
            answers[what] = False  # some such models cannot even be given their cache back
    return answers[what]


def new_cache(model: Any) -> Any:
    """An empty cache whose layers keep what the model's config says: all keys, or a window's."""
    from transformers import DynamicCache

    return DynamicCache(config=model.config)


def cache_of(output: Any) -> Any:
    """The cache in a model's output, under either of the names that transformers versions use."""
    # Asking a newer output for the older name would log a deprecation.
    names = {field.name for field in fields(output)}
    return next((getattr(output, name) for name in ("cache", "past_key_values") if name in names), None)


@torch.no_grad()
def forced_logprobs(
    model: nn.Module,
    batch: Batch,
    targets: Tensor,
    prefill_chunk: int | None = None,
    progress: Progress | None = None,
    cache: Any = None,
    n_before: int = 0,
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
        Feed at most this many tokens at a time, through a cache; None = all at once, without a cache of its own.
    cache, n_before
        A cache to go on from, and how many of the batch's tokens it holds: those are not fed. It needs a model that
        takes ``position_ids``, and no row that predicts a target may be among them.

    Returns
    -------
    float32 ``[B, T]`` on the CPU, natural log.
    """
    reset_frequencies(model)
    n_tokens = batch.ids.shape[1]
    step = n_tokens - n_before if prefill_chunk is None else prefill_chunk
    accepted = forward_parameters(model)
    cache_name = "cache" if "cache" in accepted else "past_key_values"
    positions = (batch.mask.cumsum(-1) - 1).clamp(min=0)
    first_scored = n_tokens - targets.shape[1]
    use_cache = cache is not None or step < n_tokens
    scored: list[Tensor] = []
    for start in range(n_before, n_tokens, step):
        stop = min(start + step, n_tokens)
        n_kept = stop - max(start, first_scored)
        arguments: dict[str, Any] = {"use_cache": use_cache, "return_dict": True}
        if cache is not None:
            arguments[cache_name] = cache
        if batch.is_padded:
            arguments["attention_mask"] = batch.mask[:, :stop]
        if "position_ids" in accepted:
            # Always, as `generate` does: without them some models count from the start of each chunk.
            arguments["position_ids"] = positions[:, start:stop]
        if "logits_to_keep" in accepted:
            arguments["logits_to_keep"] = max(n_kept, 1)
        output = model(batch.ids[:, start:stop], **arguments)
        cache = cache_of(output) if stop < n_tokens else None
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
    last_row: bool = False,
    prefill_chunk: int | None = None,
    do_sample: bool = False,
    seed: int | None = None,
    progress: Progress | None = None,
    options: dict[str, Any] | None = None,
    cache: Any = None,
) -> Generated:
    """Generate through the model's own ``generate``; log-probabilities are those of the unprocessed logits.

    With ``last_row``, the last token is fed as well, so that it gets a row of its own; otherwise nothing reads it. A
    ``cache`` holds keys and values of a beginning of the batch, less than all of it: those tokens are not fed again.

    Raises
    ------
    InputError
        A decoding option that does not run one row a step in order.
    """
    from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

    options = dict(options or {})
    check_generation_options(options, do_sample)
    reset_frequencies(model)
    if (getattr(model.generation_config, "num_return_sequences", None) or 1) > 1:
        # transformers checks this one against the rest before the arguments below take precedence.
        options["generation_config"] = copy(options.get("generation_config") or GenerationConfig())
        options["generation_config"].num_return_sequences = 1
    logprobs: list[Tensor] = []
    last_logits: list[Tensor] = []

    thread = threading.get_ident()

    def keep_logits(module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() == thread:
            last_logits[:] = [output.logits[:, -1:].detach().clone()]

    class Watch(StoppingCriteria):
        """Never stops; called once a step, after the new token is known."""

        def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
            logprobs.append(token_logprobs(last_logits[0], input_ids[:, -1:]))
            if progress is not None:
                progress("decode", len(logprobs), max_new_tokens)
            return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    criteria = StoppingCriteriaList([*options.pop("stopping_criteria", []), Watch()])
    if cache is not None:
        options["cache" if "cache" in forward_parameters(model) else "past_key_values"] = cache
    if not do_sample:
        # A checkpoint's own sampling settings would only raise warnings about being unused.
        options = {"temperature": None, "top_p": None, "top_k": None, **options}
    with forward_hook(model, keep_logits):
        with seeded(seed, batch.ids.device):
            output = model.generate(
                batch.ids,
                attention_mask=batch.mask,
                max_new_tokens=max_new_tokens,
                do_sample=do_sample,
                # These also take precedence over a generation config that came with the model.
                **{name: HARMLESS.get(name) for name in _OVERRIDDEN},
                pad_token_id=pad_id,
                prefill_chunk_size=prefill_chunk,
                stopping_criteria=criteria,
                return_dict_in_generate=True,
                disable_compile=True,
                **options,
            )
        if last_row:
            _feed_last(model, output, batch)
    return Generated(output.sequences[:, batch.ids.shape[1] :].cpu(), torch.cat(logprobs, dim=1))


def _feed_last(model: nn.Module, output: Any, batch: Batch) -> None:
    """One more step after generation: run the row of the last generated token."""
    sequences = output.sequences
    mask = torch.cat([batch.mask, torch.ones_like(sequences[:, batch.ids.shape[1] :])], dim=1)
    accepted = forward_parameters(model)
    arguments: dict[str, Any] = {"attention_mask": mask, "use_cache": True, "return_dict": True}
    arguments["cache" if "cache" in accepted else "past_key_values"] = cache_of(output)
    if "position_ids" in accepted:
        arguments["position_ids"] = mask.cumsum(-1)[:, -1:] - 1
    model(sequences[:, -1:], **arguments)


def check_generation_options(options: dict[str, Any], do_sample: bool = False) -> None:
    """Refuse decoding options under which rows do not run one a step, in order; take out those that change nothing.

    Raises
    ------
    InputError
        Naming the option and why it cannot be measured, or that there is no such option.
    """
    from transformers import GenerationConfig, GenerationMixin

    known = {*vars(GenerationConfig()), *inspect.signature(GenerationMixin.generate).parameters, "tokenizer"}
    for name in set(options) - known - set(REFUSED_GENERATION):
        close = get_close_matches(name, [*known, "max_new_tokens", "prefill_chunk", "answers"], n=1)
        raise InputError(f"there is no option {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    for name in SAMPLING:
        if options.get(name) is not None and not do_sample:
            raise InputError(
                f"{name}={options[name]!r} changes nothing in greedy decoding; pass do_sample=True as well"
            )
    for name, reason in REFUSED_GENERATION.items():
        value = options.pop(name, None)
        if value is not None and value != HARMLESS.get(name):
            raise InputError(f"{name}={value!r} cannot be given to a measurement: {reason}")
        inner = getattr(options.get("generation_config"), name, None) if name in _OVERRIDDEN else None
        if inner is not None and inner != HARMLESS.get(name):
            raise InputError(f"generation_config with {name}={inner!r} cannot be given to a measurement: {reason}")


def stop_ids(model: Any, options: dict[str, Any]) -> frozenset[int]:
    """Ids of the tokens that end an answer, from the options, their generation config or the model's own."""
    own = getattr(options.get("generation_config"), "eos_token_id", None)
    configured = options.get("eos_token_id", own if own is not None else model.generation_config.eos_token_id)
    if configured is None:
        return frozenset()
    return frozenset(torch.as_tensor(configured).reshape(-1).tolist())


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
