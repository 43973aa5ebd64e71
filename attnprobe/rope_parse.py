"""RoPE overrides as text or a mapping: reading, checking, and writing them back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from attnprobe.errors import InputError

RopeValue = float | int | bool | tuple[float, ...]

LENGTH = "original_max_position_embeddings"
# kind -> (required keys, optional keys)
_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": (("factor",), (LENGTH, "rope_theta")),
    "dynamic": (("factor",), (LENGTH, "rope_theta")),
    "ntk": (("factor",), (LENGTH, "rope_theta")),
    "yarn": (
        ("factor",),
        (
            *(LENGTH, "rope_theta", "attention_factor", "beta_fast", "beta_slow"),
            *("mscale", "mscale_all_dim", "truncate"),
        ),
    ),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), (LENGTH, "rope_theta")),
    "longrope": (("short_factor", "long_factor"), (LENGTH, "rope_theta", "factor", "attention_factor")),
    "proportional": (("factor",), (LENGTH, "rope_theta")),
    "theta": (("rope_theta",), ()),
    "none": ((), (LENGTH, "rope_theta")),
}
_SYNONYMS = {"ntk-aware": "ntk", "default": "none", "rope_theta": "theta"}
_LEAST, _MOST = 1e-12, 1e12  # with these as base and factor, frequencies are normal numbers in float32
SCALING_KEYS = {key for required, optional in _KEYS.values() for key in (*required, *optional)} - {"rope_theta"}
_EXAMPLES = '"yarn:factor=4", "linear:2", "dynamic:factor=4", "ntk:factor=4", "theta=500000", "none"'


@dataclass(frozen=True)
class RopeOverride:
    """A checked RoPE override; ``parse_rope(str(override)) == override``.

    Parameters
    ----------
    kind
        ``linear``, ``dynamic``, ``ntk`` (a base that slows the slowest frequency down by the factor), ``yarn``,
        ``llama3``, ``longrope``, ``proportional`` (linear, for models that rotate a part of each head in this way),
        ``theta`` (another base only) or ``none`` (the config's own scaling removed).
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
    except (ValueError, RecursionError) as error:
        raise InputError(
            f'rope override "{spec}": {key} is "{value}"; give a number, true, false, or a list: [1, 1.5]'
        ) from error


def _read_mapping(spec: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    values = {str(key): value for key, value in spec.items() if value is not None}
    kinds = [values.pop(key) for key in ("rope_type", "type") if key in values]
    if len(kinds) == 2 and kinds[0] != kinds[1]:
        raise InputError(f'rope override {dict(spec)}: "rope_type" and "type" differ; give one of them')
    if not kinds and set(values) == {"rope_theta"}:
        return "theta", values
    if not kinds:
        raise InputError(f'rope override {dict(spec)} has no "rope_type"; valid ones: {", ".join(_KEYS)}')
    return str(kinds[0]).lower(), values


def _check_value(spec: object, key: str, value: Any) -> RopeValue:
    """One value in its canonical type; numbers are positive and of a size that float32 can work with."""

    def wrong(need: str) -> InputError:
        return InputError(f'rope override "{spec}": {key} must be {need}, got {value!r}')

    if key == "truncate":
        if not isinstance(value, bool):
            raise wrong("true or false")
        return value
    if key in ("short_factor", "long_factor"):
        if not isinstance(value, list | tuple) or not value or not all(is_usable(v) for v in value):
            raise wrong("a list of positive numbers, one for each rotary frequency (half the rotary dimension)")
        return tuple(float(v) for v in value)
    if not is_usable(value):
        raise wrong("a positive number (1e-12 to 1e12)")
    if key == "factor" and value < 1:
        raise wrong("at least 1 (it multiplies the original length)")
    if key == "rope_theta" and value <= 1:
        raise wrong("above 1 (else no pair turns slower than the one before it)")
    if key == LENGTH:
        if value != int(value) or value < 2:
            raise wrong("a whole number of positions, 2 or more")
        return int(value)
    return float(value)


def is_usable(value: Any) -> TypeGuard[float]:
    """Whether a value is a positive number of a size that float32 frequencies survive."""
    return isinstance(value, int | float) and not isinstance(value, bool) and _LEAST <= value <= _MOST


def _check_pairs(spec: object, kind: str, values: Mapping[str, Any]) -> None:
    if kind == "yarn" and values.get("beta_fast", 32.0) <= values.get("beta_slow", 1.0):
        raise InputError(f'rope override "{spec}": beta_fast (default 32) must exceed beta_slow (default 1)')
    scales = [key for key in ("mscale", "mscale_all_dim") if key in values]
    if len(scales) == 1 or (scales and "attention_factor" in values):
        raise InputError(
            f'rope override "{spec}": {scales[0]} would be ignored; give mscale and mscale_all_dim together, without '
            "attention_factor"
        )
    if kind == "llama3" and values["high_freq_factor"] <= values["low_freq_factor"]:
        raise InputError(f'rope override "{spec}": high_freq_factor must exceed low_freq_factor')
    if kind == "longrope" and len(values["short_factor"]) != len(values["long_factor"]):
        raise InputError(f'rope override "{spec}": short_factor and long_factor must have the same length')
