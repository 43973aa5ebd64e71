"""A kind of config in words: a YAML file with every key, what it means, and what it may be."""

from __future__ import annotations

import types
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from attnprobe.grid_config import model_of
from attnprobe.terminal import wrapped

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_WIDTH = 100
_COMMANDS = {"needle": "needle_sweep", "filler": "filler_control"}  # kinds, by the command that does the same
_NAMES = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}


def config_lines(kind: str) -> list[str]:
    """Lines of an example config of a kind, or of what a command does, which ``attnprobe run`` takes as it is.

    Raises
    ------
    InputError
        When there is no such kind.
    """
    kind = _COMMANDS.get(kind, kind)
    model = model_of(kind)
    lines = [
        *wrapped(f"# {(model.__doc__ or kind).splitlines()[0]}", _WIDTH, "# "),
        *wrapped(
            "# Its paths are relative to the folder that this file is in; those of --set to where you are.",
            _WIDTH,
            "# ",
        ),
    ]
    for name, field in model.model_fields.items():
        lines += ["", *wrapped(f"# {field.description}", _WIDTH, "# ")]
        if name != "kind":
            needed = "Must be given." if field.is_required() else "May be left out."
            lines += wrapped(f"# ({_words(field.annotation)}. {needed})", _WIDTH, "# ")
        lines.append(f"{name}: {_yaml(kind if name == 'kind' else _example(field))}")
    return lines


def _example(field: FieldInfo) -> Any:
    return (field.examples or [None])[0] if field.is_required() else field.get_default(call_default_factory=True)


def _yaml(value: Any) -> str:
    import yaml
    from pydantic_core import to_jsonable_python

    text: str = yaml.safe_dump([to_jsonable_python(value)], default_flow_style=True, width=10**6, allow_unicode=True)
    return text.strip()[1:-1]


def _words(annotation: Any) -> str:
    """A type in words: ``A whole number, or null``."""
    text = _phrase(annotation)
    return text[:1].upper() + text[1:]


def _phrase(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _phrase(arguments[0])
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (Union, types.UnionType):
        parts = [_phrase(one) for one in arguments if one is not type(None)]
        return " or ".join(parts) + (", or null" if type(None) in arguments else "")
    if origin is list:
        return f"a list, each {_phrase(arguments[0])}"
    name = _NAMES.get(annotation, "mapping")
    return name if annotation is bool else f"a {name}"
