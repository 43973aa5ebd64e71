"""The run file: one ``.safetensors`` file, tensors and one JSON entry in its header; nothing executable.

Tensors: ``mass``, ``visible``, ``answer_logprob``, ``row_mass`` and ``row_total`` when rows were kept, and the
optional ones that the header lists: ``token_chars`` and those of the extras that were measured (schema 2 knows fewer of
them, and schema 1 none). Everything else is JSON under the header's ``attnprobe`` key. Size: 4 bytes a number, so
4 * layers * spans * (heads + rows) bytes, plus 4 * layers * heads * rows * (spans + 1) with rows kept, plus some
kilobytes of ids and text: 32 layers, 32 heads, 256 rows and 40 spans make 44 MB, and 1.5 MB without the rows. The extra
``top`` takes twice as much as the rows do, ``columns`` 4 * layers * heads * tokens bytes, ``keys`` 512 * layers * rows,
``prompt`` up to 64 times as much as ``mass``; the other extras are as small as ``mass``.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from attnprobe.errors import InputError, RunFileError
from attnprobe.run_extras import ARRAY_NAMES, TOKEN_NAMES
from attnprobe.spans import Span

if TYPE_CHECKING:
    from attnprobe.run import Run

SCHEMA = 3
KEY = "attnprobe"
SUFFIX = ".safetensors"
MAX_HEADER = 100_000_000  # bytes; the format's own limit
DTYPES = {"mass": "F32", "visible": "I32", "answer_logprob": "F32"}
ROW_DTYPES = {"row_mass": "F32", "row_total": "F32"}
EXTRA_DTYPES = {"token_chars": "I32"} | {name: "I32" if name in TOKEN_NAMES else "F32" for name in ARRAY_NAMES}
FIELDS: dict[str, type | tuple[type, ...]] = {
    "schema": int,
    "rows_kept": bool,
    "layers": list,
    "spans": list,
    "token_ids": list,
    "n_prompt": int,
    "answer": str,
    "answer_ids": list,
    "rows": str,
    "prompt_text": str,
    "prompt_id": (str, type(None)),
    "warnings": list,
    "residual": float,
    "manifest": dict,
}
NEWER_FIELDS: dict[str, tuple[int, type | tuple[type, ...], Any]] = {
    "extras": (2, list, []),
    "distance_edges": (2, (list, type(None)), None),
    "prompt_edges": (3, (list, type(None)), None),
}
"""Header fields that came later: the schema that they came with, their types, and what they are in older files."""


def write_run_file(run: Run, path: str | os.PathLike[str]) -> None:
    """Write a run; the old file, if any, stays whole until the new one is on disk.

    Raises
    ------
    InputError
        When the name does not end in ``.safetensors``, the folder does not exist, or the header would be too
        long.
    OSError
        When the file cannot be written.
    """
    target = _run_path(path)
    if not target.parent.is_dir():
        raise InputError(f"{target}: the folder {target.parent} does not exist; create it first")
    if target.is_dir():
        raise InputError(f"{target}: this is a folder; give the name of a file")
    names = (*DTYPES, *ROW_DTYPES) if run.row_mass is not None else tuple(DTYPES)
    names += _extras(run)
    tensors = {name: np.ascontiguousarray(getattr(run, name)) for name in names}
    content = save(tensors, metadata={KEY: json.dumps(_to_json(run), allow_nan=False)})
    header = int.from_bytes(content[:8], "little")
    if header > MAX_HEADER:
        raise InputError(f"{target}: texts and ids take {header} bytes; the format allows {MAX_HEADER}")
    temporary = target.with_name(f".attnprobe-{secrets.token_hex(8)}.tmp")
    try:
        # Not safetensors' own save_file: it makes files that only their owner can read.
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(target.parent)


def read_run_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a run file into the fields of ``Run``, checked for form; ``Run`` checks that they agree.

    Raises
    ------
    RunFileError
        When the file is damaged, not a run or of a newer schema.
    InputError
        When there is no such file, it cannot be read, or its name does not end in ``.safetensors``.
    """
    source = _run_path(path)
    try:
        _check_header_length(source)
        return _read(source)
    except FileNotFoundError:
        raise InputError(f"{source}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{source}: this is a folder; give the name of a run file") from None
    except OSError as error:
        raise InputError(f"{source}: cannot read the file: {error.strerror or error}") from error


def _run_path(path: str | os.PathLike[str]) -> Path:
    result = Path(path)
    if result.suffix != SUFFIX:
        raise InputError(f'{result}: a run file\'s name must end in "{SUFFIX}"')
    return result


def _extras(run: Run) -> tuple[str, ...]:
    """Names of the optional arrays that the run has."""
    return tuple(name for name in EXTRA_DTYPES if getattr(run, name) is not None)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where folders can be opened (not on Windows)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _to_json(run: Run) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "rows_kept": run.row_mass is not None,
        "layers": run.layers,
        "spans": [
            {"kind": span.kind, "name": span.name, "document": span.document, "segments": span.segments}
            for span in run.spans
        ],
        "token_ids": run.token_ids,
        "n_prompt": run.n_prompt,
        "answer": run.answer,
        "answer_ids": run.answer_ids,
        "rows": run.rows,
        "prompt_text": run.prompt_text,
        "prompt_id": run.prompt_id,
        "warnings": run.warnings,
        "residual": run.residual,
        "manifest": run.manifest,
        "extras": _extras(run),
        "distance_edges": run.distance_edges,
        "prompt_edges": run.prompt_edges,
    }


def _check_header_length(path: Path) -> None:
    """Compare the declared header length with the file before anything is read on its word."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(9)
    if size == 0:
        raise RunFileError(f"{path}: the file is empty")
    if len(start) < 9:
        raise RunFileError(f"{path}: the file is truncated: {size} bytes")
    header = int.from_bytes(start[:8], "little")
    if header > min(size - 8, MAX_HEADER) or start[8:] != b"{":
        raise RunFileError(
            f"{path}: not a safetensors file, or a truncated one: it declares a header of {header} bytes "
            f"and holds {size} bytes"
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, framework="np") as file:
            fields = _from_json(path, file.metadata())
            dtypes = {**DTYPES, **ROW_DTYPES} if fields.pop("rows_kept") else dict(DTYPES)
            dtypes |= {name: EXTRA_DTYPES[name] for name in fields.pop("extras")}
            names = set(file.keys())
            if missing := sorted(set(dtypes) - names):
                raise RunFileError(f'{path}: tensor "{missing[0]}" is missing')
            if unknown := sorted(names - set(dtypes)):
                raise RunFileError(f'{path}: tensor "{unknown[0]}" does not belong in this run')
            for name, dtype in dtypes.items():
                found = file.get_slice(name).get_dtype()
                if found != dtype:
                    raise RunFileError(f'{path}: tensor "{name}" is {found}; expected {dtype}')
            tensors = {
                name: file.get_tensor(name) if name in dtypes else None
                for name in (*DTYPES, *ROW_DTYPES, *EXTRA_DTYPES)
            }
    except SafetensorError as error:
        raise RunFileError(f"{path}: damaged: {error}") from error
    return {**fields, **tensors}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _from_json(path: Path, header: dict[str, str] | None) -> dict[str, Any]:
    if not header or KEY not in header:
        raise RunFileError(f'{path}: not an attnprobe run: the header has no "{KEY}" entry')
    try:
        fields = json.loads(header[KEY], parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RunFileError(f'{path}: the header\'s "{KEY}" entry is not valid JSON: {error}') from error
    if not isinstance(fields, dict) or type(fields.get("schema")) is not int:
        raise RunFileError(f'{path}: the header\'s "{KEY}" entry has no schema number')
    schema = fields["schema"]
    if schema > SCHEMA:
        raise RunFileError(
            f"{path}: written by a newer attnprobe (schema {schema}; this version reads up to {SCHEMA}): "
            "upgrade attnprobe"
        )
    if schema < 1:
        raise RunFileError(f"{path}: schema {schema} does not exist; this version reads 1 to {SCHEMA}")
    kinds = FIELDS | {name: kind for name, (since, kind, _) in NEWER_FIELDS.items() if schema >= since}
    if different := sorted(set(kinds) ^ set(fields)):
        what = "missing" if different[0] in kinds else "unknown"
        raise RunFileError(f'{path}: header field "{different[0]}" is {what}')
    for name, kind in kinds.items():
        # Exact for numbers: True is an int to isinstance.
        ok = type(fields[name]) is kind if isinstance(kind, type) else isinstance(fields[name], kind)
        if not ok:
            raise RunFileError(f'{path}: header field "{name}" has the wrong type {type(fields[name]).__name__}')
    del fields["schema"]
    fields = {name: value for name, (_, _, value) in NEWER_FIELDS.items()} | fields
    for name in fields["extras"]:
        if name not in list(EXTRA_DTYPES):
            raise RunFileError(f'{path}: header field "extras" names {name!r}, which is no array of a run')
    for name in ("distance_edges", "prompt_edges"):
        if fields[name] is not None:
            fields[name] = tuple(fields[name])
    for name in ("layers", "token_ids", "answer_ids", "warnings"):
        fields[name] = tuple(fields[name])
    fields["spans"] = tuple(_span(path, i, entry) for i, entry in enumerate(fields["spans"]))
    return fields


def _span(path: Path, i: int, entry: Any) -> Span:
    keys = {"kind", "name", "document", "segments"}
    if not isinstance(entry, dict) or set(entry) != keys:
        raise RunFileError(f"{path}: span {i} must be an object with {', '.join(sorted(keys))}")
    segments = entry["segments"]
    if not isinstance(segments, list) or not all(isinstance(segment, list) for segment in segments):
        raise RunFileError(f"{path}: span {i}: segments must be a list of [start, stop]")
    return Span(entry["kind"], entry["name"], entry["document"], tuple(tuple(pair) for pair in segments))
