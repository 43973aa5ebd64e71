"""RoPE overrides in a model's config: applied before loading, and what the config says of lengths.

Setting ``rope_parameters`` on a loaded model changes nothing, so an override goes into a copy of the config before the
weights load; :mod:`attnprobe.rope_frequencies` proves that the loaded model uses it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from attnprobe.errors import InputError
from attnprobe.rope_parse import LENGTH, SCALING_KEYS, RopeOverride, is_usable

_WITH_LENGTH = ("yarn", "llama3", "longrope")  # transformers keeps the original length in rope_parameters
# transformers' definitions of these fail on "head_dim": null, which the models' classes take for the usual size
_NEED_HEAD_DIM = ("dynamic", "longrope", "yarn")
AT_RUN_TIME = ("dynamic", "longrope")
"""Types whose frequencies change when a prompt passes the original length."""
# What can be done to heads of which only the first dimensions rotate, in transformers' terms.
_OF_PROPORTIONAL = ("proportional", "theta", "none")


def apply_rope(config: Any, override: RopeOverride) -> Any:
    """Build a copy of a config with the override in it; load the model with the copy.

    A config whose RoPE parameters are nested by layer type (gemma3) gets the override in its full-attention
    layers only: sliding-window layers never see a distance that needs one. ``max_position_embeddings`` of the
    copy becomes ``factor`` times the original length (except for ``dynamic``, which uses it as that length).

    Parameters
    ----------
    config
        A transformers config; of a composite one the text part is changed.

    Returns
    -------
    Any
        A new config of the same class; the argument is unchanged.

    Raises
    ------
    InputError
        When the model has no RoPE parameters or ALiBi positions, no full-attention entry, when the original length is
        needed and neither given nor known, or when transformers refuses the values.
    """
    new = copy.deepcopy(config)
    text = new.get_text_config(decoder=True)
    if not getattr(text, "rope_parameters", None):
        raise InputError(
            f'rope override "{override}": the model type "{text.model_type}" has no rope_parameters in its '
            "config, so it cannot take one; leave rope=None"
        )
    if getattr(text, "alibi", False):
        raise InputError(
            f'rope override "{override}": this model of type "{text.model_type}" has ALiBi positions, not rotary ones, '
            "so it cannot take one; leave rope=None"
        )
    text.standardize_rope_params()
    layer_type = full_attention_key(text, f'rope override "{override}"')
    old = dict(parameters_of(text, layer_type))
    parameters = _new_parameters(text, old, override)
    if layer_type and "truncate" in parameters:
        raise InputError(
            f'rope override "{override}": transformers ignores "truncate" where RoPE parameters are kept by '
            f'layer type, as in "{text.model_type}"; leave it out'
        )
    try:
        text.rope_parameters = {**text.rope_parameters, layer_type: parameters} if layer_type else parameters
        _set_lengths(text, old, override)
        if override.kind in _NEED_HEAD_DIM and getattr(text, "head_dim", 0) is None:
            text.head_dim = _head_dim(text)
        text.standardize_rope_params()
        text.validate_rope()
    except InputError:
        raise
    except Exception as error:  # configs of 150 families, each with its own validation errors
        raise InputError(
            f'rope override "{override}" is refused by the config of "{text.model_type}": {error}'
        ) from error
    return new


def _is_nested(rope_parameters: Mapping[str, Any]) -> bool:
    return any(isinstance(value, Mapping) for value in rope_parameters.values())


def full_attention_key(text: Any, asked: str) -> str | None:
    """None for flat RoPE parameters, else the key of the full-attention layers; ``asked`` begins the error's text."""
    if not _is_nested(text.rope_parameters):
        return None
    if not isinstance(text.rope_parameters.get("full_attention"), Mapping):
        raise InputError(
            f'{asked}: the RoPE parameters of "{text.model_type}" are kept by layer type, '
            f"{sorted(text.rope_parameters)}; only models whose full_attention layers have some are supported"
        )
    return "full_attention"


def parameters_of(text: Any, layer_type: str | None) -> Mapping[str, Any]:
    """RoPE parameters of the layers of one type; None: of all, where they are not kept by layer type."""
    found: Mapping[str, Any] = text.rope_parameters[layer_type] if layer_type else text.rope_parameters
    return found


def _full_attention_parameters(text: Any) -> Mapping[str, Any]:
    """RoPE parameters of the full-attention layers, or of all; empty where there are none."""
    parameters = getattr(text, "rope_parameters", None) or {}
    return parameters.get("full_attention") or {} if _is_nested(parameters) else parameters


def of_layers(text: Any, layer_type: str | None) -> Any:
    """The config as layers of one type see it; it differs where head sizes do (gemma4)."""
    return text.per_layer_config[layer_type] if getattr(text, "is_heterogeneous", False) else text


def changes_with_length(config: Any) -> bool:
    """Whether some rotary frequencies depend on how long the prompt is.

    Such a model gives other outputs for a prompt that is fed in chunks, goes on from the keys of a prompt of another
    length, or shares a batch with longer ones.
    """
    return bool(_kinds(config) & set(AT_RUN_TIME))


def differ_by_length(config: Any, shorter: int, longer: int) -> bool:
    """Whether prompts of these two lengths are turned by different frequencies."""
    original, kinds = original_positions(config), _kinds(config)
    if longer == shorter or (original is not None and longer <= original):
        return False
    return "dynamic" in kinds or ("longrope" in kinds and (original is None or shorter <= original))


def _kinds(config: Any) -> set[str | None]:
    """RoPE types of a config's parameters, which may be one set or one for each type of layer."""
    parameters = getattr(config.get_text_config(decoder=True), "rope_parameters", None) or {}
    inner = [value for value in parameters.values() if isinstance(value, Mapping)]
    return {one.get("rope_type") for one in (parameters, *inner)}


def _new_parameters(text: Any, old: Mapping[str, Any], override: RopeOverride) -> dict[str, Any]:
    is_proportional = old["rope_type"] == "proportional"
    if is_proportional and override.kind not in _OF_PROPORTIONAL:
        raise InputError(
            f'rope override "{override}": "{text.model_type}" rotates only the first dimensions of each head, in the '
            f'way that transformers calls "proportional", and has no {override.kind} for that; use '
            "proportional:factor=..., theta=... or none"
        )
    if override.kind == "proportional" and not is_proportional:
        raise InputError(
            f'rope override "{override}": the RoPE of "{text.model_type}" is not of this type but '
            f'"{old["rope_type"]}"; use linear:factor=..., which does the same to it'
        )
    kept = {key: value for key, value in old.items() if key not in (*SCALING_KEYS, "rope_type", "type")}
    theta = override.get("rope_theta") or old.get("rope_theta")
    if override.kind == "theta":
        return {**old, "rope_theta": theta}
    if override.kind == "none":
        return {**kept, "rope_type": "proportional" if is_proportional else "default", "rope_theta": theta}
    if override.kind == "ntk":
        dim = _rotary_dim(text, old)
        if dim <= 2:
            raise InputError(f'rope override "{override}" needs a rotary dimension above 2, the model has {dim}')
        return {
            **kept,
            "rope_type": "default",
            "rope_theta": theta * override.get("factor") ** (dim / (dim - 2)),
        }
    given: dict[str, Any] = {
        key: list(v) if isinstance(v, tuple) else v for key, v in override.parameters if key != LENGTH
    }
    if override.kind == "longrope" and len(given["long_factor"]) != _rotary_dim(text, old) // 2:
        raise InputError(
            f'rope override "{override}": short_factor and long_factor have {len(given["long_factor"])} '
            f"values; this model needs {_rotary_dim(text, old) // 2}, one for each rotary frequency"
        )
    length = {LENGTH: _original_length(text, old, override)} if override.kind in _WITH_LENGTH else {}
    return {**kept, "rope_theta": theta, **given, **length, "rope_type": override.kind}


def _rotary_dim(text: Any, parameters: Mapping[str, Any]) -> int:
    return int(_head_dim(text) * (parameters.get("partial_rotary_factor") or 1.0))


def _head_dim(text: Any) -> int:
    return int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)


def _original_length(text: Any, old: Mapping[str, Any], override: RopeOverride) -> int:
    """Positions the model was trained on before any scaling: as the override says, else the config."""
    known = override.get(LENGTH) or _stated_original(text, old)
    if not known:
        # under linear scaling max_position_embeddings is the original length in some configs, not in all
        raise InputError(
            f'rope override "{override}": the config does not tell the original length of this model (its '
            f'own scaling is "{old["rope_type"]}"); add {LENGTH}=..., the positions it was first trained on'
        )
    return int(known)


def _stated_original(text: Any, parameters: Mapping[str, Any]) -> int | None:
    known = parameters.get(LENGTH) or getattr(text, LENGTH, None)
    if not known and not (parameters.get("rope_type") in ("linear", "proportional") and parameters.get("factor")):
        known = getattr(text, "max_position_embeddings", None)
    return int(known) if known else None


def original_positions(config: Any) -> int | None:
    """Positions that a config's model was trained on before any scaling; None where the config does not tell."""
    text = config.get_text_config(decoder=True)
    return _stated_original(text, _full_attention_parameters(text))


def _set_lengths(text: Any, old: Mapping[str, Any], override: RopeOverride) -> None:
    if override.kind == "theta":
        return
    if override.kind == "none":
        known = override.get(LENGTH) or _stated_original(text, old)
        text.max_position_embeddings = int(known or text.max_position_embeddings)
        return
    original = _original_length(text, old, override)
    # phi3 keeps it beside rope_parameters, and that one wins; of linear and ntk there would be no other trace of it
    if getattr(text, LENGTH, None) or override.kind not in AT_RUN_TIME + _WITH_LENGTH:
        setattr(text, LENGTH, original)
    factor = override.get("factor")
    if override.kind == "dynamic":
        text.max_position_embeddings = original
    elif factor:
        text.max_position_embeddings = math.floor(factor * original)


def trained_positions(config: Any) -> int | None:
    """Positions a config's model is trained for or extended to; None when it has no limit (ALiBi, Mamba)."""
    text = config.get_text_config(decoder=True)
    if getattr(text, "alibi", False):
        return None
    names = ("max_position_embeddings", "n_positions", "n_ctx")
    stated = next((v for v in (getattr(text, n, None) for n in names) if isinstance(v, int) and v > 0), None)
    parameters = _full_attention_parameters(text)
    factor, kind = parameters.get("factor"), parameters.get("rope_type")
    if stated is None or not is_usable(factor):
        return stated
    if kind == "dynamic":
        return math.floor(factor * stated)
    if kind in _WITH_LENGTH:
        return max(stated, math.floor(factor * (parameters.get(LENGTH) or 0)))
    return stated
