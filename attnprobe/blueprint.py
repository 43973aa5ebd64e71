"""A model without its weights: config and tokenizer only, for what can be known before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from attnprobe.errors import InputError
from attnprobe.gguf_cache import ALIASES, alias_file, cached_model
from attnprobe.models import LanguageModel
from attnprobe.rope import apply_rope
from attnprobe.rope_parse import parse_rope
from attnprobe.sources import (
    ACCEPTED,
    ModelSource,
    check_loads,
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
    from transformers import AutoModelForCausalLM, AutoTokenizer

    override = None if rope is None else parse_rope(rope)
    on_cpu = is_on_cpu(device_map)
    wanted_dtype = checked_dtype(dtype, on_cpu)
    with quiet_transformers(progress=False):
        source, options, is_converted = _place(name, revision)
        options["trust_remote_code"] = trust_remote_code
        config = _causal_config(source, options)
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
    return Blueprint(LanguageModel(model, tokenizer, source), device, is_converted)


def read_config(name: str, revision: str | None = None, trust_remote_code: bool = False) -> tuple[ModelSource, Any]:
    """Where a model's config is, and the config; there may be neither weights nor a tokenizer.

    Parameters
    ----------
    name
        As for ``attnprobe.load``, or the path of a ``config.json``.

    Raises
    ------
    InputError
        As ``load``, as far as the config can tell.
    """
    path = Path(name).expanduser()
    is_config = path.suffix == ".json"
    if is_config and not path.is_file():
        raise InputError(f'no config "{name}": no such file; give a config.json, or {ACCEPTED}')
    with quiet_transformers(progress=False):
        if (is_config or (path / "config.json").is_file()) and revision is None:
            source, options = ModelSource(name, str(path)), dict[str, Any]()
        else:
            source, options, _ = _place(name, revision)
        return source, _causal_config(source, {**options, "trust_remote_code": trust_remote_code})


def _place(name: str, revision: str | None) -> tuple[ModelSource, dict[str, Any], bool]:
    """Where config and tokenizer are, how transformers reads them there, and whether a GGUF file is converted."""
    gguf = _gguf_file(name)
    folder = None if gguf is None else _converted(gguf)
    if gguf is not None and folder is None:
        return ModelSource(name, resolved=str(gguf.parent)), {"gguf_file": gguf.name}, False
    source = resolve(name, revision, lambda _: None) if folder is None else ModelSource(name, str(folder))
    return source, {} if source.revision is None else {"revision": source.revision}, True


def _causal_config(source: ModelSource, options: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    with explained(source):
        config = AutoConfig.from_pretrained(source.resolved, **options)
    check_loads(source, config)
    return config


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
