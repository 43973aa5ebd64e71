"""A model without its weights: config and tokenizer only, for what can be known before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from attnprobe.gguf_cache import ALIASES, alias_file, cached_model
from attnprobe.models import LanguageModel
from attnprobe.rope import apply_rope, parse_rope
from attnprobe.sources import (
    ModelSource,
    check_causal,
    checked_dtype,
    explained,
    is_on_cpu,
    load_tokenizer,
    quiet_transformers,
    resolve,
)


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A model on torch's meta device, which has shapes but no values.

    Parameters
    ----------
    lm
        Model and tokenizer; the model cannot run.
    device
        Where ``load`` would put the weights: ``cpu``, ``cuda`` or what the device map says.
    is_converted
        False for a GGUF file of which there is no converted copy yet.
    """

    lm: LanguageModel
    device: str
    is_converted: bool


class _NotConverted(Exception):
    """Stops the conversion that looking a GGUF file up in the cache would begin."""


def blueprint(
    name: str,
    dtype: str | None = None,
    device_map: Any = None,
    attn_implementation: str | None = None,
    rope: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Blueprint:
    """Build a model's modules from its config alone; the arguments are those of ``attnprobe.load``.

    A GGUF file that has not been converted is neither converted nor dequantised: its metadata is enough.

    Raises
    ------
    InputError
        As ``load``, as far as config and tokenizer can tell.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    override = None if rope is None else parse_rope(rope)
    on_cpu = is_on_cpu(device_map)
    wanted_dtype = checked_dtype(dtype, on_cpu)
    gguf = _gguf_file(name)
    folder = None if gguf is None else _converted(gguf)
    with quiet_transformers(progress=False):
        if gguf is not None and folder is None:
            source = ModelSource(name, resolved=str(gguf.parent))
            options: dict[str, Any] = {"gguf_file": gguf.name}
        else:
            source = resolve(name, revision, lambda _: None) if folder is None else ModelSource(name, str(folder))
            options = {} if source.revision is None else {"revision": source.revision}
        options["trust_remote_code"] = trust_remote_code
        with explained(source):
            config = AutoConfig.from_pretrained(source.resolved, **options)
        check_causal((getattr(config, "architectures", None) or [type(config).__name__])[0], config)
        if override is not None:
            config = apply_rope(config, override)
        if wanted_dtype == "auto":
            wanted_dtype = getattr(config, "dtype", None) or torch.float32
        build: dict[str, Any] = {"dtype": wanted_dtype, "trust_remote_code": trust_remote_code}
        if attn_implementation is not None:
            build["attn_implementation"] = attn_implementation
        with explained(source), torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, **build)
        if "gguf_file" in options:
            with explained(source, "the tokenizer of "):
                tokenizer = AutoTokenizer.from_pretrained(source.resolved, **options)
        else:
            tokenizer = load_tokenizer(source, options)
    source = replace(source, rope=None if override is None else str(override))
    device = ("cpu" if on_cpu else "cuda") if device_map is None else str(device_map)
    return Blueprint(LanguageModel(model, tokenizer, source), device, gguf is None or folder is not None)


def _gguf_file(name: str) -> Path | None:
    path = alias_file(name) if name in ALIASES else Path(name).expanduser()
    return path if path.suffix.lower() == ".gguf" and path.is_file() else None


def _converted(gguf: Path) -> Path | None:
    def refuse(_source: Path, _folder: Path) -> None:
        raise _NotConverted

    try:
        return cached_model(gguf, convert=refuse).folder
    except _NotConverted:
        return None
