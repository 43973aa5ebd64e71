"""Types of config values that several kinds share. Imports pydantic: only for modules that define a config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from attnprobe.rope_parse import parse_rope
from attnprobe.several_models import LOADING
from attnprobe.terminal import bytes_of


class Config(BaseModel):
    """What the models of all kinds have in common: unknown keys and silent conversions are refused.

    Every field has a description, and one without a default an example: ``attnprobe run --explain`` prints them.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)

    kind: str


class ModelConfig(Config):
    """A config of a kind that loads models.

    Each kind declares those of the fields below that it has, in the order in which they are explained.
    """

    @property
    def loading(self) -> dict[str, Any]:
        """Arguments of :func:`attnprobe.load`."""
        return {name: getattr(self, name) for name in LOADING if name in type(self).model_fields}


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

Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Part = Annotated[float, Field(ge=0, le=1)]

Dtype = Annotated[
    str | None,
    Field(description="float32, bfloat16, float16 or auto. null: float32 on a CPU, else the checkpoint's own."),
]
DeviceMap = Annotated[
    str | None,
    Field(
        description="cpu, cuda:1, auto, ... null: the first CUDA device, else the CPU; under accelerate launch, each "
        "process's own device."
    ),
]
AttnImplementation = Annotated[
    str | None, Field(description="sdpa, eager, flash_attention_2, ... null: transformers' choice.")
]
Revision = Annotated[str | None, Field(description="Branch, tag or commit of a hub id. null: main.")]
TrustRemoteCode = Annotated[bool, Field(description="Run code that comes with the model.")]
Rope = Annotated[
    RopeText | None,
    Field(
        description='RoPE override, e.g. "yarn:factor=4", or its keys and values as in a config.json. null: the '
        "model's own."
    ),
]
