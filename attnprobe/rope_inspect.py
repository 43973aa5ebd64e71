"""A model's rotary frequencies under RoPE scalings, from its config alone.

They are read from the rotary module of the model's own class, built with each scaling's config, for every length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from attnprobe.blueprint import read_config
from attnprobe.errors import InputError
from attnprobe.rope import apply_rope, full_attention_key, original_positions, parameters_of, trained_positions
from attnprobe.rope_angles import RopeAt, RopeInspection
from attnprobe.rope_frequencies import check_rotary, frequencies_at, rotary_modules
from attnprobe.rope_parse import LENGTH, RopeOverride, parse_rope
from attnprobe.sources import ModelSource, explained, quiet_transformers

AS_CONFIGURED = "as configured"
LONGEST = 2**22
"""Tokens; decay is followed over every distance."""


def inspect_rope(
    model: str,
    scalings: Sequence[str] = (),
    lengths: Sequence[int] = (),
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> RopeInspection:
    """Build a model's rotary module with each scaling, and read its frequencies at each length.

    Parameters
    ----------
    model
        As for ``attnprobe.load``, or the path of a ``config.json``; no weights are read.
    scalings
        As :func:`attnprobe.rope_parse.parse_rope` takes them. None: the config as it is.
    lengths
        Prompt lengths, tokens. None: the original length and the longest window of the scalings.
    revision, trust_remote_code
        As for ``load``.

    Raises
    ------
    InputError
        No config, a model without rotary positions or whose class ignores a scaling, a wrong scaling or length.
    """
    if lengths and max(lengths) > LONGEST:
        raise InputError(f"a length of {max(lengths):,} tokens is too long to inspect; give at most {LONGEST:,}")
    overrides = list(dict.fromkeys(parse_rope(scaling) for scaling in scalings))
    source, config = read_config(model, revision, trust_remote_code)
    text = config.get_text_config(decoder=True)
    if not getattr(text, "rope_parameters", None) or getattr(text, "alibi", False):
        raise InputError(f'"{model}" ("{text.model_type}") has no rotary positions, so there is nothing to inspect')
    with quiet_transformers(progress=False):
        path, rotary, layer_type = _rotary_module(source, config, trust_remote_code)
        original = _original(model, config, overrides)
        plain = apply_rope(config, parse_rope("none"))
        base, _ = frequencies_at(_built(rotary, plain), layer_type, original)
        made = [(str(one), apply_rope(config, one)) for one in overrides] or [(AS_CONFIGURED, config)]
        longest = max([original, *(trained_positions(one) or 0 for _, one in made)])
        scaled = []
        for name, one in made:
            module = _built(rotary, one)
            check_rotary(type(rotary).__name__, path, module, layer_type, one.get_text_config(decoder=True))
            for length in sorted(set(lengths)) or sorted({original, longest}):
                scaled.append(_at(name, one, module, layer_type, length))
    unscaled = parameters_of(plain.get_text_config(decoder=True), layer_type)
    return RopeInspection(
        model=model,
        model_type=text.model_type,
        layers=layer_type,
        theta=float(unscaled["rope_theta"]),
        n_still=int((base == 0).sum()),
        original=original,
        inv_freq=tuple(base[base > 0].tolist()),
        scaled=tuple(scaled),
    )


def _rotary_module(source: ModelSource, config: Any, trust_remote_code: bool) -> tuple[str, nn.Module, str | None]:
    """The rotary module of the text model, on the meta device, and the layer type whose frequencies are read."""
    from transformers import AutoModelForCausalLM

    text = config.get_text_config(decoder=True)
    text.standardize_rope_params()
    layer_type = full_attention_key(text, f'"{source.name}"')
    with explained(source, "a model as in the config of "), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    for path, module, kind in rotary_modules(model):
        if isinstance(getattr(module, "config", None), type(text)) and kind == layer_type:
            return path, module, kind
    raise InputError(f'{type(model).__name__} of "{source.name}" has no rotary module that follows its config')


def _built(rotary: nn.Module, config: Any) -> nn.Module:
    build: Any = type(rotary)
    module: nn.Module = build(config.get_text_config(decoder=True))
    return module


def _original(model: str, config: Any, overrides: Sequence[RopeOverride]) -> int:
    stated = [original_positions(config), *(one.get(LENGTH) for one in overrides)]
    known = next((length for length in stated if length), None)
    if known is None:
        raise InputError(
            f'the config of "{model}" does not tell the original length of the model; add {LENGTH}=..., the positions '
            "it was first trained on, to a scaling"
        )
    return int(known)


def _at(name: str, config: Any, module: nn.Module, layer_type: str | None, length: int) -> RopeAt:
    frequencies, scaling = frequencies_at(module, layer_type, length)
    return RopeAt(
        scaling=name,
        rope_type=parameters_of(config.get_text_config(decoder=True), layer_type)["rope_type"],
        window=trained_positions(config),
        length=length,
        attention_scaling=scaling,
        inv_freq=tuple(frequencies[frequencies > 0].tolist()),
    )
