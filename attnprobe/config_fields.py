"""Types of config values that several kinds share. Imports pydantic: only for modules that define a config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationInfo

from attnprobe.rope_parse import parse_rope
from attnprobe.terminal import bytes_of


class Config(BaseModel):
    """What the models of all kinds have in common: unknown keys and silent conversions are refused.

    Every field has a description, and one without a default an example: ``attnprobe run --explain`` prints them.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)

    kind: str


def placed(path: Path, info: ValidationInfo) -> Path:
    """A path as seen from the config file; one given as an option stays as seen from the current folder."""
    places = info.context or {}
    if info.field_name in places.get("options", ()):
        return path.expanduser()
    return places.get("folder", Path()) / path.expanduser()


def _placed_model(name: str, info: ValidationInfo) -> str:
    """A model that is written as a path (with ``./``, ``../``, ``~`` or ``/`` in front), as seen from the file."""
    return str(placed(Path(name), info)) if re.match(r"[~/]|\.\.?[/\\]", name) else name


def _zero(value: Any) -> Any:
    """``0`` needs no unit, so that it may be a number as well."""
    return "0" if type(value) is int and value == 0 else value


def _sized(text: str) -> str:
    bytes_of(text)
    return text


def _rope(value: Any) -> Any:
    """A RoPE scaling as a text, also where it is written out as keys and values."""
    return str(parse_rope(value)) if isinstance(value, str | Mapping) else value


ConfigPath = Annotated[Path, AfterValidator(placed)]
"""A file or folder; relative to the config file."""

ConfigModel = Annotated[str, AfterValidator(_placed_model)]
"""A model as ``attnprobe.load`` takes it; a path that begins with ``./`` or ``../`` is relative to the config file."""

RopeText = Annotated[str, BeforeValidator(_rope)]
"""A RoPE scaling as :func:`attnprobe.rope_parse.parse_rope` reads it, text or mapping, in its full form."""

Size = Annotated[str, BeforeValidator(_zero), AfterValidator(_sized)]
"""A number of bytes as text; see :func:`attnprobe.terminal.bytes_of`."""
