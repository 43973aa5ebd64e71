"""RoPE overrides: read one, build a config with it, and prove that a loaded model uses it.

Setting ``rope_parameters`` on a loaded model changes nothing, and some models ignore them altogether. So an
override goes into a copy of the config before the weights load, and the frequencies in use are compared with
those the override asks for.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from attnprobe.errors import InputError

RopeValue = float | int | bool | tuple[float, ...]

_LENGTH = "original_max_position_embeddings"
# kind -> (required keys, optional keys)
_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": (("factor",), (_LENGTH, "rope_theta")),
    "dynamic": (("factor",), (_LENGTH, "rope_theta")),
    "ntk": (("factor",), (_LENGTH, "rope_theta")),
    "yarn": (
        ("factor",),
        (
            *(_LENGTH, "rope_theta", "attention_factor", "beta_fast", "beta_slow"),
            *("mscale", "mscale_all_dim", "truncate"),
        ),
    ),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), (_LENGTH, "rope_theta")),
    "longrope": (("short_factor", "long_factor"), (_LENGTH, "rope_theta", "factor", "attention_factor")),
    "theta": (("rope_theta",), ()),
    "none": ((), (_LENGTH, "rope_theta")),
}
_SYNONYMS = {"ntk-aware": "ntk", "default": "none", "rope_theta": "theta"}
_SCALING_KEYS = {key for required, optional in _KEYS.values() for key in (*required, *optional)} - {"rope_theta"}
_WITH_LENGTH = ("yarn", "llama3", "longrope")  # transformers keeps the original length in rope_parameters
_AT_RUN_TIME = ("dynamic", "longrope")  # frequencies change only when a prompt passes the original length
_EXAMPLES = '"yarn:factor=4", "linear:2", "dynamic:factor=4", "ntk:factor=4", "theta=500000", "none"'


@dataclass(frozen=True)
class RopeOverride:
    """A checked RoPE override; ``parse_rope(str(override)) == override``.

    Parameters
    ----------
    kind
        ``linear``, ``dynamic``, ``ntk``, ``yarn``, ``llama3``, ``longrope``, ``theta`` (another base only) or
        ``none`` (the config's own scaling removed).
    parameters
        ``(key, value)`` pairs in key order, named as in transformers' ``rope_parameters``.
    """

    kind: str
    parameters: tuple[tuple[str, RopeValue], ...] = ()

    def get(self, key: str) -> Any:
        """Value of ``key``, or None when the override does not state it."""
        return dict(self.parameters).get(key)

    def __str__(self) -> str:
        if self.kind == "theta":
            return f"theta={self.get('rope_theta')!r}"
        pairs = ",".join(f"{key}={json.dumps(value).replace(' ', '')}" for key, value in self.parameters)
        return f"{self.kind}:{pairs}" if pairs else self.kind


def parse_rope(spec: str | Mapping[str, Any] | RopeOverride) -> RopeOverride:
    """Read a RoPE override.

    Parameters
    ----------
    spec
        ``"kind:key=value,key=value"`` (lists as JSON; a bare number is the factor), ``"theta=500000"``,
        ``"none"``, or a mapping with ``rope_type`` (or ``type``) as in a model's ``config.json``.

    Raises
    ------
    InputError
        For an unknown kind or key, a missing key, or a value out of range; the message lists the valid ones.
    """
    if isinstance(spec, RopeOverride):
        return spec
    if isinstance(spec, str):
        kind, values = _read_text(spec)
    elif isinstance(spec, Mapping):
        kind, values = _read_mapping(spec)
    else:
        raise InputError(f"rope override {spec!r} is neither text nor a mapping; write e.g. {_EXAMPLES}")
    kind = _SYNONYMS.get(kind, kind)
    if kind not in _KEYS:
        raise InputError(
            f'rope override "{spec}" has the unknown kind "{kind}"; valid kinds: {", ".join(_KEYS)} (e.g. {_EXAMPLES})'
        )
    required, optional = _KEYS[kind]
    for key in values:
        if key not in (*required, *optional):
            raise InputError(
                f'rope override "{spec}" has the unknown key "{key}"; "{kind}" takes: '
                f"{', '.join((*required, *optional)) or 'no keys'}"
            )
    for key in required:
        if key not in values:
            raise InputError(f'rope override "{spec}" lacks "{key}"; "{kind}" needs: {", ".join(required)}')
    checked = {key: _check_value(spec, key, values[key]) for key in sorted(values)}
    _check_pairs(spec, kind, checked)
    return RopeOverride(kind, tuple(checked.items()))


def _read_text(spec: str) -> tuple[str, dict[str, Any]]:
    kind, colon, rest = (part.strip() for part in spec.strip().partition(":"))
    if not colon and "=" in kind:
        key, _, value = (part.strip() for part in kind.partition("="))
        return key.lower(), {"rope_theta": _read_value(spec, key, value)}
    values: dict[str, Any] = {}
    for index, item in enumerate(re.split(r",(?![^\[]*\])", rest) if rest else []):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals and index == 0:
            key, value = ("theta" if kind.lower() in ("theta", "rope_theta") else "factor"), key
        elif not equals:
            raise InputError(f'rope override "{spec}": "{item}" is not key=value')
        key = "rope_theta" if key == "theta" else key
        if key in values:
            raise InputError(f'rope override "{spec}" gives "{key}" twice; give it once')
        values[key] = _read_value(spec, key, value)
    return kind.lower(), values


def _read_value(spec: str, key: str, value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError as error:
        raise InputError(
            f'rope override "{spec}": {key} is "{value}"; give a number, true, false, or a list: [1, 1.5]'
        ) from error


def _read_mapping(spec: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    values = {str(key): value for key, value in spec.items() if value is not None}
    kinds = [values.pop(key) for key in ("rope_type", "type") if key in values]
    if not kinds and set(values) == {"rope_theta"}:
        return "theta", values
    if not kinds:
        raise InputError(f'rope override {dict(spec)} has no "rope_type"; valid ones: {", ".join(_KEYS)}')
    return str(kinds[0]).lower(), values


def _check_value(spec: object, key: str, value: Any) -> RopeValue:
    """One value in its canonical type; numbers are finite and positive, factors at least 1."""

    def wrong(need: str) -> InputError:
        return InputError(f'rope override "{spec}": {key} must be {need}, got {value!r}')

    if key == "truncate":
        if not isinstance(value, bool):
            raise wrong("true or false")
        return value
    if key in ("short_factor", "long_factor"):
        if not isinstance(value, list | tuple) or not value or not all(_is_positive(v) for v in value):
            raise wrong("a list of positive numbers, one for each rotary frequency (half the rotary dimension)")
        return tuple(float(v) for v in value)
    if not _is_positive(value):
        raise wrong("a positive number")
    if key == "factor" and value < 1:
        raise wrong("at least 1 (it multiplies the original length)")
    if key == _LENGTH:
        if value != int(value):
            raise wrong("a whole number of positions")
        return int(value)
    return float(value)


def _is_positive(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value)) and value > 0
    except OverflowError:
        return False


def _check_pairs(spec: object, kind: str, values: Mapping[str, Any]) -> None:
    if kind == "yarn" and values.get("beta_fast", 32.0) <= values.get("beta_slow", 1.0):
        raise InputError(f'rope override "{spec}": beta_fast (default 32) must exceed beta_slow (default 1)')
    if kind == "llama3" and values["high_freq_factor"] <= values["low_freq_factor"]:
        raise InputError(f'rope override "{spec}": high_freq_factor must exceed low_freq_factor')
    if kind == "longrope" and len(values["short_factor"]) != len(values["long_factor"]):
        raise InputError(f'rope override "{spec}": short_factor and long_factor must have the same length')


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
        When the model has no RoPE parameters, no full-attention entry, when the original length is needed and
        neither given nor known, or when transformers refuses the values.
    """
    new = copy.deepcopy(config)
    text = new.get_text_config(decoder=True)
    if not getattr(text, "rope_parameters", None):
        raise InputError(
            f'rope override "{override}": the model type "{text.model_type}" has no rope_parameters in its '
            "config, so it cannot take one; leave rope=None"
        )
    text.standardize_rope_params()
    nested = text.rope_parameters
    layer_type = _full_attention_key(text, override)
    old = dict(nested[layer_type] if layer_type else nested)
    parameters = _new_parameters(text, old, override)
    if layer_type and "truncate" in parameters:
        raise InputError(
            f'rope override "{override}": transformers ignores "truncate" where RoPE parameters are kept by '
            f'layer type, as in "{text.model_type}"; leave it out'
        )
    try:
        text.rope_parameters = {**nested, layer_type: parameters} if layer_type else parameters
        _set_lengths(text, old, override)
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


def _full_attention_key(text: Any, override: RopeOverride) -> str | None:
    """None for flat RoPE parameters, else the key of the full-attention layers."""
    if not _is_nested(text.rope_parameters):
        return None
    if not isinstance(text.rope_parameters.get("full_attention"), Mapping):
        raise InputError(
            f'rope override "{override}": the RoPE parameters of "{text.model_type}" are kept by layer type, '
            f"{sorted(text.rope_parameters)}; only models with full_attention layers can take an override"
        )
    return "full_attention"


def _new_parameters(text: Any, old: Mapping[str, Any], override: RopeOverride) -> dict[str, Any]:
    kept = {key: value for key, value in old.items() if key not in (*_SCALING_KEYS, "rope_type", "type")}
    theta = override.get("rope_theta") or old.get("rope_theta")
    if override.kind == "theta":
        return {**old, "rope_theta": theta}
    if override.kind == "none":
        return {**kept, "rope_type": "default", "rope_theta": theta}
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
        key: list(v) if isinstance(v, tuple) else v for key, v in override.parameters if key != _LENGTH
    }
    if override.kind == "longrope" and len(given["long_factor"]) != _rotary_dim(text, old) // 2:
        raise InputError(
            f'rope override "{override}": short_factor and long_factor have {len(given["long_factor"])} '
            f"values; this model needs {_rotary_dim(text, old) // 2}, one for each rotary frequency"
        )
    length = {_LENGTH: _original_length(text, old, override)} if override.kind in _WITH_LENGTH else {}
    return {**kept, "rope_theta": theta, **given, **length, "rope_type": override.kind}


def _rotary_dim(text: Any, parameters: Mapping[str, Any]) -> int:
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(head_dim * (parameters.get("partial_rotary_factor") or 1.0))


def _original_length(text: Any, old: Mapping[str, Any], override: RopeOverride) -> int:
    """Positions the model was trained on before any scaling."""
    known = override.get(_LENGTH) or old.get(_LENGTH) or getattr(text, _LENGTH, None)
    if not known and old["rope_type"] != "linear":
        known = getattr(text, "max_position_embeddings", None)
    if not known:
        # under linear scaling max_position_embeddings is the original length in some configs, not in all
        raise InputError(
            f'rope override "{override}": the config does not tell the original length of this model (its '
            f'own scaling is "{old["rope_type"]}"); add {_LENGTH}=..., the positions it was first trained on'
        )
    return int(known)


def _set_lengths(text: Any, old: Mapping[str, Any], override: RopeOverride) -> None:
    if override.kind == "theta":
        return
    if override.kind == "none":
        known = override.get(_LENGTH) or old.get(_LENGTH)
        text.max_position_embeddings = int(known or text.max_position_embeddings)
        return
    original = _original_length(text, old, override)
    if getattr(text, _LENGTH, None):  # phi3 keeps it beside rope_parameters, and that one wins
        setattr(text, _LENGTH, original)
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
    parameters = getattr(text, "rope_parameters", None) or {}
    if _is_nested(parameters):
        parameters = parameters.get("full_attention") or {}
    factor, kind = parameters.get("factor"), parameters.get("rope_type")
    if stated is None or not factor:
        return stated
    if kind == "dynamic":
        return math.floor(factor * stated)
    if kind in _WITH_LENGTH:
        return max(stated, math.floor(factor * (parameters.get(_LENGTH) or 0)))
    return stated


def rope_in_use(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Read the RoPE frequencies that the live modules hold, whatever the config says.

    Returns
    -------
    dict
        One entry a rotary module, or a module and layer type (``"model.rotary_emb:full_attention"``), with
        ``rope_type``, ``attention_scaling``, ``inv_freq`` (list of float, radians per position) and
        ``sha256`` (of the float64 little-endian bytes). Empty for a model without rotary positions.
        Frequencies of types ``dynamic`` and ``longrope`` are those of the last forward pass.
    """
    found = {}
    for name, module, layer_type in _rotary_modules(model):
        frequencies, scaling = _live(module, layer_type)
        found[f"{name}:{layer_type}" if layer_type else name] = {
            "rope_type": _live_type(module, layer_type),
            "attention_scaling": scaling,
            "inv_freq": frequencies.tolist(),
            "sha256": hashlib.sha256(frequencies.numpy().astype("<f8").tobytes()).hexdigest(),
        }
    return found


def assert_rope_applied(before: Any, model: nn.Module, expected: Any = None) -> None:
    """Raise unless the model's live rotary modules do what its overridden config asks for.

    Parameters
    ----------
    before
        The config without the override.
    model
        The loaded model.
    expected
        The config with the override; by default the model's own. It may ask for nothing new only if given.

    Raises
    ------
    InputError
        When the model has no rotary modules that follow its config, or any of them uses other frequencies,
        another attention scaling or another type than the override asks for; for ``dynamic`` and
        ``longrope`` also past the original length.
    """
    name = type(model).__name__
    own: Any = model.config
    after = (own if expected is None else expected).get_text_config(decoder=True)
    old = before.get_text_config(decoder=True)
    if expected is None and after.rope_parameters == old.rope_parameters:
        raise InputError(f"{name} was loaded without the RoPE override: its config is the original one")
    checked = 0
    for path, module, layer_type in _rotary_modules(model):
        if not isinstance(getattr(module, "config", None), type(after)):
            continue  # the rotary module of a vision or audio tower
        _check_module(name, path, module, layer_type, after)
        checked += 1
    if not checked:
        raise InputError(
            f"{name} ignores the RoPE override: it has no rotary module whose frequencies could be checked; "
            "leave rope=None, or use a model with rotary positions"
        )


def _check_module(name: str, path: str, module: nn.Module, layer_type: str | None, config: Any) -> None:
    wanted = config.rope_parameters[layer_type] if layer_type else config.rope_parameters
    kind, live_kind = wanted["rope_type"], _live_type(module, layer_type)
    where = f"{path} ({layer_type} layers)" if layer_type else path
    problem = f'rope type "{live_kind}" where "{kind}" is asked for' if live_kind != kind else None
    if problem is None and not _same(_live(module, layer_type), _computed(module, layer_type, config, None)):
        problem = "other frequencies or attention scaling than the override asks for"
    if problem is None and kind in _AT_RUN_TIME:
        original = wanted.get(_LENGTH) or config.max_position_embeddings
        try:
            past = _live_at(module, layer_type, 2 * original)
        except Exception as error:  # the module's own code, in whatever way it fails
            raise InputError(
                f'{name} cannot run the RoPE type "{kind}" at {2 * original} positions: {where} fails with '
                f"{type(error).__name__}: {error}; try another type, or another version of transformers"
            ) from error
        if not _same(past, _computed(module, layer_type, config, 2 * original)):
            problem = f"other frequencies at {2 * original} positions than the override asks for"
    if problem:
        raise InputError(
            f"{name} ignores the RoPE override: {where} uses {problem}. A loaded model cannot be changed: "
            "load it anew with rope=..., or leave rope=None if its class computes RoPE in its own way"
        )


def _rotary_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module, str | None]]:
    """Every module with inverse frequencies, once a layer type (None: not kept by layer type)."""
    for name, module in model.named_modules():
        for buffer, _ in module.named_buffers(recurse=False):
            if buffer == "inv_freq":
                yield name, module, None
            elif buffer.endswith("_inv_freq") and not buffer.endswith(("original_inv_freq", "long_inv_freq")):
                yield name, module, buffer.removesuffix("_inv_freq")


def _live(module: nn.Module, layer_type: str | None) -> tuple[torch.Tensor, float]:
    prefix = f"{layer_type}_" if layer_type else ""
    frequencies = getattr(module, f"{prefix}inv_freq").detach().to("cpu", torch.float64)
    return frequencies, float(getattr(module, f"{prefix}attention_scaling", 1.0))


def _live_type(module: nn.Module, layer_type: str | None) -> str:
    kind: Any = getattr(module, "rope_type", "default")
    return str(kind.get(layer_type, "default") if isinstance(kind, Mapping) else kind)


def _live_at(module: nn.Module, layer_type: str | None, length: int) -> tuple[torch.Tensor, float]:
    """Frequencies that a copy of the module uses for a prompt of ``length`` tokens."""
    probe = copy.deepcopy(module)
    device = next(probe.buffers()).device
    kwargs = {"layer_type": layer_type} if layer_type else {}
    positions = torch.tensor([[length - 1]], device=device)
    # the class's own forward: one that accelerate put on the instance would run the original module
    with torch.no_grad():
        for _ in range(2):  # as in generation: transformers 5.17 fails in the second call of nested longrope
            type(probe).forward(probe, torch.zeros(1, 1, 1, device=device), positions, **kwargs)
    return _live(probe, layer_type)


def _computed(
    module: nn.Module, layer_type: str | None, config: Any, length: int | None
) -> tuple[torch.Tensor, float] | None:
    """Frequencies that transformers' definition of the rope type gives; None where it has no definition."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = copy.deepcopy(config)  # these functions normalise the config they are given
    kind = (config.rope_parameters[layer_type] if layer_type else config.rope_parameters)["rope_type"]
    kwargs: dict[str, Any] = {"layer_type": layer_type} if layer_type else {}
    if kind in ROPE_INIT_FUNCTIONS:
        frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length, **kwargs)
    elif hasattr(module, f"compute_{kind}_rope_parameters"):
        frequencies, scaling = getattr(module, f"compute_{kind}_rope_parameters")(config, **kwargs)
    else:
        return None
    return frequencies.to("cpu", torch.float64), float(scaling)


def _same(live: tuple[torch.Tensor, float], computed: tuple[torch.Tensor, float] | None) -> bool:
    if computed is None or live[0].shape != computed[0].shape:
        return False
    # float32 powers differ by a few units in the last place between devices
    return torch.allclose(live[0], computed[0], rtol=1e-5, atol=0) and math.isclose(live[1], computed[1], rel_tol=1e-6)
