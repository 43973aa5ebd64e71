"""A folder of run files that can be filled in several sittings: what is in it, and under which settings.

    manifest.json                   settings, their hash, the prompt file, and, once finished, the list of runs
    runs/0000-<id>.safetensors      one run a prompt, by its place in the prompt file
    curve.csv                       the curves, written last

Every file is complete or absent, and one process at a time writes here. A run says itself under which settings it was
made, so there is no list of finished prompts that could disagree with the files.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnprobe.errors import InputError, RunFileError
from attnprobe.prompt import EncodedPrompt
from attnprobe.run import Run

SCHEMA = 1
MANIFEST, CURVE, RUNS = "manifest.json", "curve.csv", "runs"

UNWRITABLE = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG),
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO),
}
"""Numbers of the errors that say that a folder, or the disk that it is on, cannot be written."""

_OWN_RUN = re.compile(r"\d{4,}-.+\.safetensors")
_LEFT_OVER = re.compile(r"\.attnprobe-[0-9a-f]{16}\.tmp")


def run_name(number: int, id: str) -> str:
    """File name of a prompt's run: ``0003-q17.safetensors``; the id with only letters, digits and ``._-``."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", id)[:60]
    return f"{number:04d}-{safe}.safetensors"


def finished_runs(folder: Path) -> list[str]:
    """Names of the run files in a folder, sorted."""
    return sorted(path.name for path in (folder / RUNS).glob("*.safetensors") if _OWN_RUN.fullmatch(path.name))


def settings_hash(settings: Mapping[str, Any]) -> str:
    """SHA-256 of settings, in hexadecimal; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def check_folder(folder: Path, force: bool) -> None:
    """Refuse a folder that cannot be written, or whose ``runs`` or ``curve.csv`` are somebody else's.

    Raises
    ------
    InputError
        Naming the folder, the reason, and the way out.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder as --out")
    if (folder / MANIFEST).exists():
        _read_manifest(folder)
    elif not force:
        for name in (RUNS, CURVE):
            if (folder / name).exists():
                raise InputError(
                    f"{folder} has a {name} but no {MANIFEST} of attnprobe, so it may be something else; "
                    "give another --out, or --force to write there anyway"
                )


@contextmanager
def opened_folder(folder: Path, settings: Mapping[str, Any], about: Mapping[str, Any], force: bool) -> Iterator[None]:
    """Hold a folder for writing, made if need be, after checking that it is of the same settings.

    Parameters
    ----------
    folder
        Where the runs go.
    settings
        What every run in the folder must have been measured with, as JSON values.
    about
        More to write into the manifest.
    force
        Take away what was measured here before.

    Raises
    ------
    InputError
        When the folder has runs of other settings, is in use, is somebody else's, or cannot be written.
    """
    from filelock import FileLock, Timeout

    check_folder(folder, force)
    try:
        (folder / RUNS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made a folder: {error.strerror}; give another --out") from error
    try:
        with FileLock(folder / ".lock", timeout=0):
            known = _read_manifest(folder) if (folder / MANIFEST).exists() else None
            if force:
                _clear(folder)
            elif known is not None and finished_runs(folder):
                _check_settings(folder, known["settings"], settings)
            remove_left_over(folder / RUNS)
            write_manifest(folder, settings, about)
            yield
    except Timeout:
        raise InputError(f"{folder} is in use by another attnprobe; wait for it, or give another --out") from None
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise InputError(
            f"{error.filename or folder} cannot be written: {error.strerror}; make room or give another --out (what "
            "was finished is kept, and the same command goes on from it)"
        ) from error


def write_manifest(
    folder: Path, settings: Mapping[str, Any], about: Mapping[str, Any], runs: list[dict[str, Any]] | None = None
) -> None:
    """Write the manifest; ``runs`` lists the finished runs once all of them are."""
    from attnprobe import __version__

    content = {
        "schema": SCHEMA,
        "attnprobe": __version__,
        "settings": dict(settings),
        "settings_sha256": settings_hash(settings),
        **about,
        "runs": runs,
    }
    write_text(folder / MANIFEST, json.dumps(content, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new one."""
    temporary = path.with_name(f".attnprobe-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_left_over(folder: Path, older_than: float = -math.inf) -> None:
    """Delete what a process that was killed in :func:`write_text` left in a folder, if older than so many seconds."""
    for path in folder.iterdir():
        if _LEFT_OVER.fullmatch(path.name) and time.time() - path.stat().st_mtime > older_than:
            path.unlink(missing_ok=True)


def stored_run(
    path: Path, encoded: EncodedPrompt, answer_ids: tuple[int, ...] | None, settings_sha256: str
) -> tuple[Run | None, str | None]:
    """The run in a file, if it is the one that measuring this prompt would give.

    Returns
    -------
    (Run or None, str or None)
        The run; or None where it has to be measured, and what is wrong with the file there, if there is one.

    Raises
    ------
    InputError
        When the file is whole but of another prompt or other settings: it is not overwritten unasked.
    """
    if not path.exists():
        return None, None
    try:
        run = Run.load(path)
    except RunFileError as error:
        return None, str(error)
    n_spans = len(encoded.spans)
    if (
        run.token_ids[: run.n_prompt] != encoded.token_ids
        or run.spans[:n_spans] != encoded.spans
        or (answer_ids is not None and run.answer_ids != answer_ids)
    ):
        raise InputError(
            f"{path} was measured on another prompt of the same number and id; give another --out, or delete that "
            "file to have it measured again, or --force to measure everything again"
        )
    if run.manifest.get("settings_sha256") != settings_sha256:
        raise InputError(
            f"{path} was measured with other settings; give another --out, or delete that file to have it measured "
            "again, or --force to measure everything again"
        )
    return run, None


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content["settings"], dict) or type(content["schema"]) is not int:
            raise ValueError("its settings are missing")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is damaged or not of attnprobe ({error}), so what is in the folder cannot be told; give another "
            "--out, or move that file away"
        ) from error
    if content["schema"] > SCHEMA:
        raise InputError(f"{path} was written by a newer attnprobe; upgrade attnprobe, or give another --out")
    return dict(content)


def _check_settings(folder: Path, known: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    different = [
        f"{name} is {json.dumps(known.get(name))} there and {json.dumps(wanted.get(name))} now"
        for name in sorted({*known, *wanted})
        if known.get(name) != wanted.get(name)
    ]
    if different:
        raise InputError(
            f"{folder} holds runs of other settings: {'; '.join(different)}. Give another --out, or --force to "
            "measure everything again"
        )


def _clear(folder: Path) -> None:
    """Take away what attnprobe wrote; the manifest first, so that no run is ever under a manifest not its own."""
    for path in (folder / MANIFEST, folder / CURVE, *(folder / RUNS / name for name in finished_runs(folder))):
        path.unlink(missing_ok=True)
