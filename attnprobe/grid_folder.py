"""The folder of a grid: what its cells were made under (``grid.json``), and who writes there.

grid.json         config, its hash, package versions, seed, number of cells; written whole
cells-<n>.jsonl   records of the cells that process n finished
.cells-<n>.lock   held by process n while it runs; free again when it dies, however it dies
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnprobe.errors import InputError
from attnprobe.grid_records import shard_name, shards
from attnprobe.run_folder import settings_hash, write_text
from attnprobe.terminal import say

GRID = "grid.json"
SCHEMA = 1

_HASHED = {
    "questions_sha256": "the questions, their order, their form (layout, markers, template) or their answers",
    "items_sha256": "the needles, or the file that they are from",
    "prompts_sha256": "the prompts' file",
    "filler_sha256": "the texts of the filler",
    "weights_sample_sha256": "the model's weights or their dtype",
    "tokenizer_sha256": "the tokenizer's vocabulary or chat template",
}
"""What the hashes in configs are of."""

_LOCK = re.compile(r"\.cells-(\d+)\.lock")
_SIBLING_SECONDS = 5.0  # a lock that is only being looked at is free again long before
_GRID_SECONDS = 60.0


def grid_content(config: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """What ``grid.json`` says of a grid that starts now.

    Raises
    ------
    InputError
        When JSON cannot hold the config.
    """
    from attnprobe.manifest import package_versions

    try:
        plain = json.loads(json.dumps(config, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"the grid's config cannot be written as JSON: {error}") from error
    return {
        "schema": SCHEMA,
        "config": plain,
        "config_sha256": settings_hash(plain),
        "versions": [package_versions()],
        "seed": plain.get("seed"),
        **cells_content(keys),
    }


def cells_content(keys: Iterable[str]) -> dict[str, Any]:
    """What ``grid.json`` says of the cells: how many, and a hash of their keys."""
    names = sorted(keys)
    return {"n_cells": len(names), "cells_sha256": hashlib.sha256(json.dumps(names).encode()).hexdigest()}


def read_grid(folder: Path) -> dict[str, Any]:
    """What ``grid.json`` in a folder says.

    Raises
    ------
    InputError
        When it is missing, damaged, or newer than this version.
    """
    path = folder / GRID
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not (
            isinstance(content["config"], dict)
            and content["config_sha256"] == settings_hash(content["config"])
            and isinstance(content["versions"], list)
            and type(content["n_cells"]) is type(content["schema"]) is int
            and isinstance(content["cells_sha256"], str)
        ):
            raise ValueError("its parts do not fit together")
    except FileNotFoundError:
        raise InputError(
            f"{folder} holds no grid ({GRID} is missing); give the folder that a grid was run in"
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is damaged or not of attnprobe ({error}), so what the cells beside it are cannot be told; "
            "give another folder"
        ) from error
    if content["schema"] > SCHEMA:
        raise InputError(f"{path} was written by a newer attnprobe; upgrade attnprobe, or give another folder")
    return dict(content)


def write_grid(folder: Path, content: Mapping[str, Any]) -> None:
    """Write ``grid.json``; a reader, or a crash, sees the old one or the new one."""
    write_text(folder / GRID, json.dumps(content, indent=1, allow_nan=False) + "\n")


def difference(there: Mapping[str, Any], here: Mapping[str, Any], words: tuple[str, str]) -> str | None:
    """The first thing in which two grids' contents differ, None where they are one grid.

    Parameters
    ----------
    there, here
        Contents of two ``grid.json``.
    words
        Where each of them is, e.g. ``("there", "now")``.
    """
    if there["config_sha256"] != here["config_sha256"]:
        return _first_difference(there["config"], here["config"], "", words)
    if (there["n_cells"], there["cells_sha256"]) != (here["n_cells"], here["cells_sha256"]):
        return (
            f"the config is the same, but makes other cells ({there['n_cells']} {words[0]}, {here['n_cells']} "
            f"{words[1]}): something that it names has changed"
        )
    return None


def _first_difference(there: Any, here: Any, name: str, words: tuple[str, str]) -> str | None:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in [*here, *(key for key in there if key not in here)]:
            inner = f"{name}.{key}" if name else key
            if key not in here or key not in there:
                return f"{inner} is given only {words[0] if key in there else words[1]}"
            found = _first_difference(there[key], here[key], inner, words)
            if found is not None:
                return found
        return None
    if isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        pairs = (
            _first_difference(a, b, f"{name}[{i}]", words) for i, (a, b) in enumerate(zip(there, here, strict=True))
        )
        return next((found for found in pairs if found is not None), None)
    a, b = json.dumps(there), json.dumps(here)  # texts, as true == 1 in Python
    if a != b and (key := name.rpartition(".")[2]) in _HASHED:
        return f"{_HASHED[key]} differ ({name})"
    return None if a == b else f"{name} is {_short(a)} {words[0]} and {_short(b)} {words[1]}"


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def same_grid(folder: Path, content: Mapping[str, Any], name: str | Path) -> dict[str, Any]:
    """What ``grid.json`` in a folder says, which errors call ``name``.

    Raises
    ------
    InputError
        When it is not of the grid with this content, or cannot be read.
    """
    known = read_grid(folder)
    found = difference(known, content, ("there", "now"))
    if found is not None:
        raise InputError(f"{name} holds results of other settings: {found}. Give another folder, or undo that")
    return known


@contextmanager
def opened_grid(
    folder: Path,
    content: Mapping[str, Any],
    process: int,
    n_processes: int,
    quiet: bool,
    name: str | Path | None = None,
) -> Iterator[Path]:
    """Hold the file of one process in a grid's folder, both made if need be; yield the file's path.

    Errors call the folder ``name``, or by its path.

    Raises
    ------
    InputError
        When the folder is of another grid, another run is at work in it, or it cannot be written.
    """
    from filelock import FileLock, Timeout

    name = folder if name is None else name
    busy = f"{name} is in use by another run; wait for it, or give another folder"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".cells-{process}.lock", timeout=0):
            _refuse_wider_launch(folder, n_processes, busy)
            with FileLock(folder / ".grid.lock", timeout=_GRID_SECONDS):
                _settle(folder, content, quiet, name)
            yield folder / shard_name(process)
    except Timeout:
        raise InputError(busy) from None
    except OSError as error:
        raise InputError(
            f"{error.filename or folder} cannot be written: {error.strerror or error}; make room or give another "
            "folder (finished cells are kept, and the same command goes on from there)"
        ) from error


def _refuse_wider_launch(folder: Path, n_processes: int, busy: str) -> None:
    """Refuse to start beside processes of a launch with more of them, whose lower ones may have ended already."""
    from filelock import FileLock, Timeout

    for path in folder.iterdir():
        match = _LOCK.fullmatch(path.name)
        if match and int(match[1]) >= n_processes:
            try:
                with FileLock(path, timeout=_SIBLING_SECONDS):
                    pass
            except Timeout:
                raise InputError(busy) from None


def _settle(folder: Path, content: Mapping[str, Any], quiet: bool, name: str | Path) -> None:
    """Write ``grid.json``, or check that the one that is there is of the same grid."""
    if not (folder / GRID).exists():
        if shards(folder):
            raise InputError(f"{folder} has cells, but no {GRID} that says of what; give another folder")
        write_grid(folder, content)
        return
    known = same_grid(folder, content, name)
    (now,) = content["versions"]
    if now not in known["versions"]:
        before = known["versions"][-1]
        changes = ", ".join(
            f"{name} {before.get(name, 'none')} -> {now.get(name, 'none')}"
            for name in sorted({*before, *now})
            if before.get(name) != now.get(name)
        )
        say(f"{folder}: going on with other packages than before ({changes}); noted in {GRID}", quiet)
        write_grid(folder, {**known, "versions": [*known["versions"], now]})
