"""The settings under which runs belong together: what would change a number or an answer, as JSON values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from attnprobe import __version__
from attnprobe.architecture import implementation_of
from attnprobe.measuring import measure

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel

# How a number is reached, or whether a prompt is refused: may change from one sitting to the next.
_SAME_NUMBERS = ("answer", "progress", "capture", "prefill_chunk", "backend", "strict", "beyond_window", "prefix")
_ONLY_GENERATED = ("max_new_tokens", "do_sample", "seed", "include_eos")


def run_settings(lm: LanguageModel, answers: str, batch_size: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal for two runs to belong together, as JSON values."""
    defaults = {k: v for k, v in (measure.__kwdefaults__ or {}).items() if k not in _SAME_NUMBERS}
    chosen = {**defaults, **{name: value for name, value in options.items() if name not in _SAME_NUMBERS}}
    if answers == "file":
        chosen = {name: chosen[name] for name in defaults if name not in _ONLY_GENERATED}
    elif chosen["do_sample"]:
        chosen["batch_size"] = batch_size  # one random state serves a batch
    return {
        "attnprobe": __version__,
        "model": type(lm.model).__name__,
        "weights_sample_sha256": weights_sample(lm.model),
        "tokenizer_sha256": _tokenizer_hash(lm.tokenizer),
        "dtype": lm.source.dtype,
        "rope": lm.source.rope,
        "attn_implementation": implementation_of(lm.model),
        "answers": answers,
        **{name: list(value) if isinstance(value, tuple) else value for name, value in chosen.items()},
    }


def _tokenizer_hash(tokenizer: Any) -> str:
    """SHA-256 of vocabulary and chat template: what decides which tokens a prompt becomes."""
    content = [sorted(tokenizer.get_vocab().items()), tokenizer.chat_template]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def weights_sample(model: torch.nn.Module) -> str:
    """SHA-256 over four values of every parameter: tells trained models apart wherever their files lie."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)}".encode())
        # Offloaded parameters hold no values here; quantised ones have their own types and layouts.
        if type(parameter) is torch.nn.Parameter and not parameter.is_meta:
            sample = parameter.detach().flatten()[:4].cpu()
            digest.update(sample.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
