"""A model's rotary frequencies under RoPE scalings, from its config alone.

They are read from the rotary module of the model's own class, built with each scaling's config, for every length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from attnprobe.arguments import whole_number
from attnprobe.blueprint import read_config
from attnprobe.errors import InputError
from attnprobe.rope import apply_rope, full_attention_key, original_positions, parameters_of, trained_positions
from attnprobe.rope_angles import RopeAt, RopeInspection
from attnprobe.rope_frequencies import check_rotary, frequencies_at, rotary_modules
from attnprobe.rope_parse import LENGTH, RopeOverride, is_usable, parse_rope
from attnprobe.sources import ModelSource, explained, quiet_transformers

AS_CONFIGURED = "as configured"
LONGEST = 2**22
"""Tokens; decay is followed over every distance."""
SHORTEST = 2
"""Tokens; a prompt of one has no distances."""


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
        Prompt lengths, tokens. None: the original length and the longest window of the scalings, up to
        :data:`LONGEST`.
    revision, trust_remote_code
        As for ``load``.

    Raises
    ------
    InputError
        No config, a model without rotary positions or whose class ignores a scaling, a wrong scaling or length.
    """
    lengths = sorted({whole_number("length", length, SHORTEST) for length in lengths})
    if lengths and lengths[-1] > LONGEST:
        raise InputError(f"a length of {lengths[-1]:,} tokens is too long to inspect; give at most {LONGEST:,}")
    overrides = list(dict.fromkeys(parse_rope(scaling) for scaling in scalings))
    source, config = read_config(model, revision, trust_remote_code)
    text = config.get_text_config(decoder=True)
    if not getattr(text, "rope_parameters", None) or getattr(text, "alibi", False):
        raise InputError(
            f'"{model}" ("{text.model_type}") has no RoPE parameters in its config, so there is nothing to inspect: it '
            "has no rotary positions, or none that can be scaled"
        )
    with quiet_transformers(progress=False):
        path, rotary, layer_type = _rotary_module(source, config, trust_remote_code)
        original = _original(model, config, overrides)
        plain = apply_rope(config, parse_rope("none"))
        base, _ = frequencies_at(_built(rotary, model, "none", plain), layer_type, SHORTEST)
        turning = _turning(base)
        made = [(str(one), apply_rope(config, one)) for one in overrides] or [(AS_CONFIGURED, config)]
        longest = max([original, *(trained_positions(one) or 0 for _, one in made)])
        lengths = lengths or sorted({min(original, LONGEST), min(longest, LONGEST)})
        scaled = []
        for name, one in made:
            module = _built(rotary, model, name, one)
            check_rotary(type(rotary).__name__, path, module, layer_type, one.get_text_config(decoder=True))
            for length in lengths:
                scaled.append(_at(name, one, module, layer_type, length))
                if len(scaled[-1].inv_freq) != len(turning):
                    raise InputError(
                        f'"{name}" turns {len(scaled[-1].inv_freq)} pairs of dimensions at {length:,} tokens, where '
                        f'"{model}" turns {len(turning)} without scaling: the config does not fit the class, or a '
                        "number in it or in the scaling is out of proportion"
                    )
    unscaled = parameters_of(plain.get_text_config(decoder=True), layer_type)
    return RopeInspection(
        model=model,
        model_type=text.model_type,
        layers=layer_type,
        theta=float(unscaled["rope_theta"]),
        n_still=len(base) - len(turning),
        original=original,
        inv_freq=turning,
        scaled=tuple(scaled),
    )


def _rotary_module(source: ModelSource, config: Any, trust_remote_code: bool) -> tuple[str, nn.Module, str | None]:
    """The rotary module of the text model, on the meta device, and the layer type whose frequencies are read."""
    from transformers import AutoModelForCausalLM

    text = config.get_text_config(decoder=True)
    text.standardize_rope_params()
    layer_type = full_attention_key(text, f'"{source.name}"')
    _check_numbers(source.name, parameters_of(text, layer_type))
    with explained(source, "a model as in the config of "), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    for path, module, kind in rotary_modules(model):
        if isinstance(getattr(module, "config", None), type(text)) and kind == layer_type:
            return path, module, kind
    raise InputError(f'{type(model).__name__} of "{source.name}" has no rotary module that follows its config')


def _check_numbers(model: str, parameters: Mapping[str, Any]) -> None:
    given = {key: parameters.get(key) for key in ("rope_theta", "factor")}
    for key, value in given.items():
        if not is_usable(value) and not (key == "factor" and value is None):
            raise InputError(
                f'the config of "{model}" has {key} {value!r} in its RoPE parameters, where a positive number belongs; '
                "correct it in the config.json"
            )


def _built(rotary: nn.Module, model: str, scaling: str, config: Any) -> nn.Module:
    build: Any = type(rotary)
    try:
        module: nn.Module = build(config.get_text_config(decoder=True))
    except Exception as error:  # the class's own code and transformers' formulas, in whatever way they fail
        raise InputError(
            f'the rotary module of "{model}" cannot be built with "{scaling}": {type(error).__name__}: {error}; check '
            "the numbers of the scaling and of the config"
        ) from error
    return module


def _original(model: str, config: Any, overrides: Sequence[RopeOverride]) -> int:
    stated = [original_positions(config), *(one.get(LENGTH) for one in overrides)]
    known = next((length for length in stated if length and length >= SHORTEST), None)
    if known is None:
        raise InputError(
            f'the config of "{model}" does not tell the original length of the model; add {LENGTH}=..., the positions '
            f'it was first trained on, to a scaling (e.g. "none:{LENGTH}=4096")'
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
        inv_freq=_turning(frequencies),
    )


def _turning(frequencies: torch.Tensor) -> tuple[float, ...]:
    return tuple(frequencies[(frequencies > 0) & frequencies.isfinite()].tolist())
