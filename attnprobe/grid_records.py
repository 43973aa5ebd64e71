"""Records of finished cells: JSON lines in one file a process, each written whole and synced, or not there at all.

    cells-0.jsonl    {"key": ..., "status": "done", "result": {...}, "seconds": ..., "process": 0, "relief": 0}
    cells-1.jsonl    {"key": ..., "status": "failed", "error": "InputError: ...", ...}

A process that is killed can leave part of a line at the end of its file. Readers leave it out, and the next writer cuts
it off. Anything else that is no record is damage, and said.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnprobe.errors import InputError

Record = dict[str, Any]
"""``key``, ``status`` (``done`` or ``failed``), ``result`` or ``error``, ``seconds``, ``process``, ``relief``."""

_SHARD = re.compile(r"cells-(\d+)\.jsonl")


def shard_name(process: int) -> str:
    """Name of the file that a process writes its records to."""
    return f"cells-{process}.jsonl"


def shards(folder: Path) -> list[Path]:
    """Files of records in a folder, by number of the process."""
    numbered = [(int(match[1]), path) for path in folder.iterdir() if (match := _SHARD.fullmatch(path.name))]
    return [path for _, path in sorted(numbered)]


def read_cells(folder: str | Path) -> dict[str, Record]:
    """The record of every cell that is done or has failed, by key, from all processes' files.

    A cell that has failed and was done later is done. Two results of one cell count once when they are equal.

    Raises
    ------
    InputError
        When the folder cannot be read, a line is damaged, or one cell has two different results; naming the file.
    """
    folder = Path(folder)
    try:
        return joined((path, record) for path in shards(folder) for record in read_shard(path)[0])
    except OSError as error:
        raise InputError(f"{error.filename or folder} cannot be read: {error.strerror or error}") from error


SAME = 1e-4
"""Relative and absolute difference up to which two numbers of a result are the same."""

HOW = "how"
"""The part of a result that says how it was reached, which depends on what the process did before."""


def joined(records: Iterable[tuple[Path, Record]]) -> dict[str, Record]:
    """One record a cell, of many in files; done before failed, the last failure before earlier ones.

    Results of one cell are the same when their numbers are within ``SAME``: what was computed before in a process may
    change how floating-point numbers are rounded. What is in them under ``HOW`` is not compared.

    Raises
    ------
    InputError
        When two results of one cell differ.
    """
    known: dict[str, tuple[Path, Record]] = {}
    for path, record in records:
        key = record["key"]
        if key not in known or known[key][1]["status"] == "failed":
            known[key] = path, record
        elif record["status"] == "done" and not _same(*map(_compared, (record, known[key][1]))):
            raise InputError(
                f'cell "{key}" has one result in {known[key][0]} and another one in {path}: its work is not '
                "reproducible, or was changed in between; delete the line that is wrong"
            )
    return {key: record for key, (_, record) in known.items()}


def _compared(record: Record) -> dict[str, Any]:
    return {name: value for name, value in record["result"].items() if name != HOW}


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_same(first[name], second[name]) for name in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, float) and isinstance(second, float):
        return math.isclose(first, second, rel_tol=SAME, abs_tol=SAME)
    return bool(first == second)


def read_shard(path: Path) -> tuple[list[Record], int]:
    """Records of one file, and how many bytes they take: what is after them was cut off in writing.

    Raises
    ------
    InputError
        When a line that others follow is no record.
    """
    data = path.read_bytes()
    records, offset = [], 0
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        fault = _fault(line)
        if fault is not None:
            if offset + len(line) < len(data):
                raise InputError(f"{path}:{number} is damaged ({fault}); delete that line, and its cell is done again")
            break
        records.append(json.loads(line))
        offset += len(line)
    return records, offset


def _fault(line: bytes) -> str | None:
    """What is wrong with a line, None for a record."""
    if not line.endswith(b"\n"):
        return "it has no end"
    try:
        record = json.loads(line)
    except ValueError as error:  # also bytes that are not UTF-8
        return str(error)
    outcome = {"done": ("result", dict), "failed": ("error", str)}
    if not isinstance(record, dict) or not isinstance(record.get("key"), str) or record.get("status") not in outcome:
        return "it has no key, or no status of done or failed"
    name, kind = outcome[record["status"]]
    if not isinstance(record.get(name), kind):
        return f"its {name} is missing"
    seconds = record.get("seconds")
    return None if isinstance(seconds, (int, float)) and seconds >= 0 else "its seconds are missing"


def record_line(record: Record) -> bytes:
    """A record as it stands in a file; ``ValueError`` or ``TypeError`` where JSON cannot hold it."""
    return json.dumps(record, allow_nan=False).encode() + b"\n"


@contextmanager
def opened_shard(path: Path) -> Iterator[Callable[[Record], None]]:
    """Open a process's file for more records, cut off what is not whole, and yield ``append(record)``.

    When ``append`` returns, the record is on the disk; when it raises, the file is as before. The caller holds the
    file's lock.
    """
    # Unbuffered: what could not be written must not be tried again when the file is closed.
    with path.open("ab", buffering=0) as file:
        file.truncate(read_shard(path)[1])

        def append(record: Record) -> None:
            line = memoryview(record_line(record))
            begin = file.seek(0, os.SEEK_END)
            try:
                while line:
                    line = line[file.write(line) :]
                os.fsync(file.fileno())
            except BaseException:
                file.truncate(begin)
                raise

        yield append
