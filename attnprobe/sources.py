"""Where a model comes from: what its name stands for, and what can be wrong before any weight is loaded."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnprobe.errors import InputError
from attnprobe.gguf_cache import ALIASES, alias_file, cached_model

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt"),
    *("spiece.model", "sentencepiece.bpe.model", "tekken.json", "*.tiktoken"),
)
ACCEPTED = (
    f"an alias ({', '.join(ALIASES)}), a folder with config.json, weights and tokenizer, a .gguf file, "
    "or a hub id (owner/name)"
)


@dataclass(frozen=True)
class ModelSource:
    """Where a model came from, as far as it is known; every field is plain text for manifests.

    Parameters
    ----------
    name
        As the user gave it; for a model object, the name in its config.
    resolved
        Folder or hub id that the weights were read from.
    revision
        Commit hash on the hub, else the revision asked for.
    file_sha256
        SHA-256 of the GGUF file, in hexadecimal.
    rope
        The RoPE override in canonical form, or None.
    dtype
        Of the weights, e.g. ``"float32"``.
    """

    name: str
    resolved: str | None = None
    revision: str | None = None
    file_sha256: str | None = None
    rope: str | None = None
    dtype: str | None = None


def resolve(name: str, revision: str | None, say: Callable[[str], None]) -> ModelSource:
    """Find what a name stands for; a GGUF file is replaced by its converted folder."""
    path = alias_file(name) if name in ALIASES else Path(name).expanduser()
    if not name or not path.exists():
        if not _HUB_ID.fullmatch(name) or name.lower().endswith(".gguf"):
            raise InputError(f'no model "{name}"{_closest_alias(name)}: no such file or folder; give {ACCEPTED}')
        return ModelSource(name, resolved=name, revision=revision)
    if revision is not None:
        raise InputError(f'revision "{revision}" was given, but "{name}" is not a hub id; leave revision=None')
    if path.suffix.lower() == ".gguf" and path.is_file():
        cached = cached_model(path, say=say)
        return ModelSource(name, resolved=str(cached.folder), file_sha256=cached.sha256)
    if not path.is_dir():
        raise InputError(f'"{name}" is a file, and not a .gguf file; give {ACCEPTED}')
    if not (path / "config.json").is_file():
        inside = sorted(p.name for p in path.glob("*.gguf"))
        hint = f'; to use "{inside[0]}" in it, give the path of that file' if inside else f"; give {ACCEPTED}"
        raise InputError(f'the folder "{name}" has no config.json, so it holds no transformers model{hint}')
    if not any(True for pattern in _TOKENIZER_FILES for _ in path.glob(pattern)):
        raise InputError(
            f'the folder "{name}" has no tokenizer; save it there with tokenizer.save_pretrained("{name}")'
        )
    return ModelSource(name, resolved=str(path))


def _closest_alias(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), ALIASES, n=1)
    return f' (did you mean "{close[0]}"?)' if close else ""


def load_tokenizer(source: ModelSource, common: dict[str, Any]) -> Any:
    """The tokenizer of a resolved source; one without a vocabulary is an ``InputError``."""
    from transformers import AutoTokenizer

    with explained(source, "the tokenizer of "):
        tokenizer = AutoTokenizer.from_pretrained(source.resolved, **common)
    if len(tokenizer) <= len(tokenizer.get_added_vocab()):
        raise InputError(
            f'the tokenizer of "{source.name}" has no vocabulary: its files are missing or incomplete; save it '
            "again with tokenizer.save_pretrained(folder)"
        )
    return tokenizer


@contextlib.contextmanager
def explained(source: ModelSource, part: str = "") -> Iterator[None]:
    """Turn what transformers raises while loading into one sentence with a remedy."""
    is_hub_id = source.resolved == source.name and not Path(source.name).expanduser().exists()
    what = f'{part}"{source.name}"{_closest_alias(source.name) if is_hub_id else ""}'
    try:
        yield
    except (MemoryError, KeyboardInterrupt, torch.OutOfMemoryError):
        raise
    except Exception as error:  # loading fails in many ways: OS, value, key, import and validation errors
        reason = " ".join(str(error).split())
        if "trust_remote_code" in reason:
            remedy = "it brings its own code; read that code, then pass trust_remote_code=True"
        elif is_hub_id and isinstance(error, OSError):
            remedy = (
                "there is no such file or folder, and the hub could not provide it; check the name and the network, "
                f"or give {ACCEPTED}"
            )
        elif "does not recognize this architecture" in reason:
            remedy = "upgrade transformers, or give another model"
        else:
            remedy = "check that its files are complete and that the arguments fit the model"
        raise InputError(f"{what} cannot be loaded: {remedy} ({type(error).__name__}: {reason[:200]})") from error


def check_loads(source: ModelSource, config: Any) -> None:
    """Refuse a config that there is no causal language model for, in transformers or in the model's own code."""
    from transformers import AutoModelForCausalLM

    check_causal((getattr(config, "architectures", None) or [type(config).__name__])[0], config)
    own_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if not own_code and type(config) not in AutoModelForCausalLM._model_mapping:
        raise InputError(
            f'"{source.name}" is a {type(config).__name__.removesuffix("Config")} model, for which transformers has '
            "no causal language model; give a model that generates text"
        )


def check_causal(name: str, config: Any) -> None:
    """Refuse the config of an encoder-decoder or of a masked language model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    if getattr(config, "is_encoder_decoder", False):
        raise InputError(f"{name} is an encoder-decoder model; give a decoder-only causal language model")
    if config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False):
        raise InputError(f"{name} attends in both directions (a masked language model); give a causal language model")


def checked_dtype(dtype: str | torch.dtype | None, on_cpu: bool) -> str | torch.dtype:
    """The dtype to load with: a torch dtype, or ``"auto"`` for the checkpoint's own."""
    if dtype is None:
        return torch.float32 if on_cpu else "auto"
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        return dtype
    if isinstance(dtype, str) and dtype == "auto":
        return dtype
    if isinstance(dtype, str) and dtype in _DTYPES:
        return _DTYPES[dtype]
    raise InputError(
        f"dtype {dtype!r} is not known; give one of {', '.join(_DTYPES)}, auto, or a floating-point torch dtype"
    )


def is_on_cpu(device_map: Any) -> bool:
    """Whether a device map puts the whole model on the CPU."""
    if device_map is None:
        return not torch.cuda.is_available()
    if device_map in ("auto", "balanced", "balanced_low_0", "sequential"):
        return not torch.accelerator.is_available()
    devices = device_map.values() if isinstance(device_map, Mapping) else [device_map]
    return all(str(device) in ("cpu", "disk") for device in devices)


@contextlib.contextmanager
def quiet_transformers(progress: bool) -> Iterator[None]:
    """Silence transformers' log and bars; downloads from the hub keep their bars when progress is wanted."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    silence_hub = not progress and not are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if silence_hub:
        disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
        if silence_hub:
            enable_progress_bars()
