"""JSON files as values that know their place: lines, an array or one value, gzipped or not."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any

from attnprobe.errors import InputError

_NAMES: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
    bool: "true or false",
    type(None): "null",
}


@dataclass(frozen=True)
class Entry:
    """One JSON value of a file, the place to name in errors, and an id for it should it have none."""

    value: Any
    where: str
    fallback_id: str


def entries(file: Path) -> Iterator[Entry]:
    """Yield the JSON values of a file: of every line, of an array, or the one that fills the file.

    Only an array, or a value that spans lines, is read whole. Raises ``InputError`` for a file that is empty,
    cannot be read, is not UTF-8 (a byte-order mark is dropped), is damaged gzip, or does not hold JSON.
    """
    try:
        with file.open("rb") as raw:
            lines = _lines(file, raw)
            first = next(((n, text) for n, text in lines if text.strip()), None)
            if first is None:
                raise InputError(f"{file} is empty; write one JSON object a line")
            number, text = first
            # JSON breaks lines only after these, so such a first line begins a value that spans several.
            if not text.lstrip().startswith("[") and text.rstrip()[-1] not in "{[,:":
                for number, text in chain([first], lines):
                    if text.strip():
                        yield Entry(_parse(file, number, text), f"{file}:{number}", f"line-{number}")
                return
            value = _parse(file, number, "".join(chain([text], (rest for _, rest in lines))))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from error
    if isinstance(value, list):
        for place, item in enumerate(value, start=1):
            yield Entry(item, f"{file}, record {place}", f"record-{place}")
    else:
        yield Entry(value, str(file), "record-1")


def _lines(file: Path, raw: BufferedReader) -> Iterator[tuple[int, str]]:
    """Numbered lines as text, split at line feeds alone, with byte offsets in errors."""
    number, offset = 0, 0
    stream: Any = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
    try:
        for number, line in enumerate(stream, start=1):
            bom = 3 if number == 1 and line.startswith(b"\xef\xbb\xbf") else 0
            try:
                text = line[bom:].decode("utf-8")
            except UnicodeDecodeError as error:
                place = offset + bom + error.start
                raise InputError(
                    f"{file}:{number}: byte {place} (0x{line[bom + error.start]:02x}) is not UTF-8; "
                    "save the file as UTF-8"
                ) from error
            offset += len(line)
            yield number, text
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(
            f"{file}: the gzip data is damaged after line {number} ({error}); fetch or compress the file again"
        ) from error


def _parse(file: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        last = text.rstrip("\n").count("\n")  # what is missing at the end is missing on the last line
        raise InputError(
            f"{file}:{number + min(error.lineno - 1, last)}: not valid JSON, {error.msg} (column {error.colno}); "
            "write one JSON object a line, or one array"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}:{number}: not valid JSON, {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f'the key "{twice}" occurs twice in one object')
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number; use null")


def check_keys(value: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
    """Refuse a key that is not one of ``allowed``, naming the one that was likely meant."""
    for key in value:
        if key not in allowed:
            close = get_close_matches(key.casefold(), allowed, n=1)
            hint = f'did you mean "{close[0]}"?' if close else f"the keys are {', '.join(allowed)}"
            raise InputError(f'{where}: unknown key "{key}"; {hint}')


def kind_of(value: Any) -> str:
    """What a JSON value is, in words for a message."""
    return _NAMES[type(value)]


def require_object(value: Any, where: str) -> None:
    """Refuse a value that is no JSON object."""
    if not isinstance(value, dict):
        raise InputError(f"{where} must be an object, not {kind_of(value)}")


def take(value: Mapping[str, Any], key: str, types: type | tuple[type, ...], where: str, required: bool = True) -> Any:
    """The value of a key, of one of the types; a null counts as absent."""
    found = value.get(key)
    if found is None and not required:
        return None
    wanted = types if isinstance(types, tuple) else (types,)
    if type(found) in wanted:
        return found
    names = " or ".join(_NAMES[kind] for kind in wanted)
    if found is None:
        raise InputError(f'{where}: "{key}" is missing; give {names}')
    raise InputError(f'{where}: "{key}" must be {names}, not {kind_of(found)}')
