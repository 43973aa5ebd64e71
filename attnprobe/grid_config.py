"""Configs of ``attnprobe run``: YAML files with a ``kind``, checked by the kind's pydantic model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprobe.errors import InputError
from attnprobe.json_file import check_keys, kind_of
from attnprobe.yaml_file import Place, YamlValue, parse_yaml, read_yaml

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from attnprobe.config_fields import Config

Runner = Callable[..., int]
"""``runner(config, *, quiet, retry_failed, as_json)`` runs a config, and returns the exit status."""


@dataclass(frozen=True)
class Kind:
    """What stands behind a ``kind``: the import paths (``module:name``) of its pydantic model and its runner."""

    model: str
    runner: str


KINDS: dict[str, Kind] = {
    "study": Kind("attnprobe.study_config:StudyConfig", "attnprobe.study_command:run_study_config"),
    "rope": Kind("attnprobe.rope_config:RopeConfig", "attnprobe.rope_command:run_rope_config"),
    **{
        name: Kind(f"attnprobe.tasks.task_config:{model}", "attnprobe.tasks.task_command:run_task_config")
        for name, model in (
            ("needle_sweep", "NeedleSweepConfig"),
            ("niah", "NiahConfig"),
            ("filler_control", "FillerControlConfig"),
            ("multi_doc", "MultiDocConfig"),
        )
    },
}
"""Every kind of config, by name."""

# What a value must be, by pydantic's name of the error.
_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a text",
    "path_type": "a path",
    "list_type": "a list",
    "dict_type": "a mapping",
}


def load_config(path: str | Path, changes: Sequence[str] = ()) -> Config:
    """Read and check a config.

    Parameters
    ----------
    path
        The YAML file. Paths in it are relative to the folder that it is in.
    changes
        ``key=value`` each, the value in YAML: replaces what the file says, or adds to it. ``a.b=value`` reaches into
        a mapping. Paths in these are relative to the current folder.

    Returns
    -------
    Config
        An instance of the kind's model.

    Raises
    ------
    InputError
        When the file cannot be read or is no YAML, its kind or a key is unknown (with the nearest name), a key is
        missing, or a value is of the wrong type (with the line).
    """
    from pydantic import ValidationError

    path = Path(path)
    given = _changed(read_yaml(path), changes)
    kind = _kind_of(given, path)
    model = _imported(KINDS[kind].model)
    for key in given.value:
        check_keys({key: None}, tuple(model.model_fields), given.places[(key,)])
    options = [place[0] for place, where in given.places.items() if place and where.startswith("--set ")]
    try:
        config: Config = model.model_validate_json(
            json.dumps(given.value), context={"folder": path.parent, "options": options}
        )
    except ValidationError as error:
        messages = [_message(one, given, model, path) for one in error.errors(include_url=False)]
        raise InputError("; ".join(messages)) from error
    return config


def runner_of(config: Config) -> Runner:
    """The function that runs a config."""
    runner: Runner = _imported(KINDS[config.kind].runner)
    return runner


def model_of(kind: str) -> type[Config]:
    """The pydantic model of a kind.

    Raises
    ------
    InputError
        When there is no such kind.
    """
    _check_kind(kind, "--explain")
    model: type[Config] = _imported(KINDS[kind].model)
    return model


def _imported(place: str) -> Any:
    module, name = place.split(":")
    return getattr(import_module(module), name)


def _changed(given: YamlValue, changes: Sequence[str]) -> YamlValue:
    """The config with ``key=value`` applied."""
    value, places = given.value, dict(given.places)
    if not isinstance(value, dict):
        raise InputError(f"{given.where} must hold keys and values, not {kind_of(value)}; see attnprobe run --explain")
    for change in changes:
        key, equals, text = change.partition("=")
        names = tuple(name.strip() for name in key.split("."))
        if not equals or not all(names):
            raise InputError(f'--set is "{change}"; give key=value')
        where = f"--set {key.strip()}"
        new = parse_yaml(text, where)
        value = _with(value, names, new.value, where)
        places = {place: w for place, w in places.items() if place[: len(names)] != names}
        places |= {names + place: where for place in new.places}
        places |= {names[:n]: where for n in range(1, len(names) + 1) if names[:n] not in places}
    return YamlValue(value, places, given.where)


def _with(value: Any, names: tuple[str, ...], new: Any, where: str) -> Any:
    if not names:
        return new
    if not isinstance(value, dict):
        raise InputError(f"{where}: there is no mapping to set {names[0]} in, but {kind_of(value)}")
    return {**value, names[0]: _with(value.get(names[0], {}), names[1:], new, where)}


def _kind_of(given: YamlValue, path: Path) -> str:
    kind = given.value.get("kind")
    if kind is None:
        raise InputError(f'{path}: "kind" is missing; the kinds are {", ".join(KINDS)}')
    if not isinstance(kind, str):
        raise InputError(f'{given.places[("kind",)]}: "kind" must be a text, not {kind_of(kind)}')
    _check_kind(kind, given.places[("kind",)])
    return kind


def _check_kind(kind: str, where: str) -> None:
    if kind not in KINDS:
        raise InputError(f'{where}: unknown kind "{kind}"; {_nearest(kind, tuple(KINDS), "the kinds are")}')


def _nearest(text: str, names: Sequence[str], otherwise: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(text.casefold(), names, n=1)
    return f'did you mean "{close[0]}"?' if close else f"{otherwise} {', '.join(names)}"


def _message(error: ErrorDetails, given: YamlValue, model: type[Config], path: Path) -> str:
    """One of pydantic's errors in the words of the file."""
    place: Place = error["loc"]
    while place and place not in given.places:  # what is missing has no place of its own
        place = place[:-1]
    where = given.places[place] if place else str(path)
    if error["type"] == "missing":
        name = _name(error["loc"])
        field = model.model_fields.get(str(error["loc"][0])) if len(error["loc"]) == 1 else None
        hint = f": {field.description}" if field is not None and field.description else ""
        return f'{where}: "{name}" is missing{hint}'
    if not place and error["type"] == "value_error":  # of several keys together
        return f"{path}: {error['ctx']['error']}"
    name, value = _name(place), given.at(place)
    if error["type"] == "too_short":
        least = error["ctx"]["min_length"]
        return f'{where}: "{name}" has {error["ctx"]["actual_length"]} entries; give {least} or more'
    if error["type"] == "extra_forbidden":
        return f'{where}: unknown key "{name}"'
    if error["type"] == "literal_error":
        expected = str(error["ctx"]["expected"])
        return f'{where}: "{name}" must be {expected}, not {_shown(value)}'
    if error["type"] in _WANTED:
        return f'{where}: "{name}" must be {_WANTED[error["type"]]}, not {_shown(value)}'
    if error["type"] == "value_error" and isinstance(error["ctx"]["error"], InputError):  # a sentence of its own
        return f"{where}: {error['ctx']['error']}"
    said = str(error["ctx"]["error"]) if error["type"] == "value_error" else error["msg"]
    said = said.removeprefix("Input should ").removeprefix("must ").removeprefix("be ")
    return f'{where}: "{name}" must be {said[:1].lower()}{said[1:]}, not {_shown(value)}'


def _name(place: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")


def _shown(value: Any) -> str:
    """A value and what it is: ``a text ("ten")``; lists and mappings by kind alone."""
    if value is None or isinstance(value, (bool, list, dict)):
        return {True: "true", False: "false"}[value] if isinstance(value, bool) else kind_of(value)
    return f"{kind_of(value)} ({json.dumps(value)})"
