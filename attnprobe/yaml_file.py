"""YAML as plain values that know their lines. Keys are the texts that stand there: ``null:`` and ``on:`` are names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnprobe.errors import InputError

Place = tuple[str | int, ...]
"""The way to a value: keys of mappings and numbers of list items."""

_SCALARS = ("null", "bool", "int", "float", "str")


@dataclass(frozen=True)
class YamlValue:
    """A value, where each part of it stands (``file:line``), and what to call the whole."""

    value: Any
    places: Mapping[Place, str]
    where: str

    def at(self, place: Place) -> Any:
        """The part of the value at a place."""
        value = self.value
        for part in place:
            value = value[part]
        return value


def read_yaml(path: Path) -> YamlValue:
    """Read a YAML file of one document.

    Raises
    ------
    InputError
        When it cannot be read, is empty, is not UTF-8 or no YAML, or has a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}); save the file as UTF-8") from error
    found = parse_yaml(text, str(path), with_lines=True)
    if found.value is None:
        raise InputError(f"{path} is empty; attnprobe run --explain study prints an example")
    return found


def parse_yaml(text: str, where: str, with_lines: bool = False) -> YamlValue:
    """Parse YAML text; empty text is null. ``with_lines``: places name the line after ``where``."""
    import yaml

    loader = yaml.SafeLoader("")
    places: dict[Place, str] = {}

    def spot(node: Any) -> str:
        return f"{where}:{node.start_mark.line + 1}" if with_lines else where

    def plain(node: Any, place: Place, name: Any) -> Any:
        places[place] = spot(name)
        if isinstance(node, yaml.MappingNode):
            value: dict[str, Any] = {}
            for key, inner in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise InputError(f"{spot(key)}: a key must be a text")
                if key.value in value:
                    raise InputError(f'{spot(key)}: the key "{key.value}" is given twice; delete one of them')
                value[key.value] = plain(inner, (*place, key.value), key)
            return value
        if isinstance(node, yaml.SequenceNode):
            return [plain(inner, (*place, number), inner) for number, inner in enumerate(node.value)]
        tag = node.tag.removeprefix("tag:yaml.org,2002:")
        if tag == "timestamp":  # written without quotes, and not meant as one
            return node.value
        if tag not in _SCALARS:
            raise InputError(f"{spot(node)}: {node.tag} is not understood here; write a plain value")
        return loader.construct_object(node)

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = None if node is None else plain(node, (), node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if with_lines and mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise InputError(f"{where}{line}: not valid YAML, {' '.join(str(problem).split())}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}: not valid YAML, {error}") from error
    return YamlValue(value, places or {(): where}, where)
