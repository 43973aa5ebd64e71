"""Replies of endpoints kept as JSON lines, each written whole and synced, so that a run that is stopped goes on."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnprobe.errors import InputError


@dataclass(frozen=True)
class Reply:
    """What an endpoint answered.

    Parameters
    ----------
    text
        The message's text; empty where the model wrote none.
    finish_reason
        Why it ended, in the server's words: ``stop``, ``length`` (cut off at ``max_tokens``), ``content_filter``.
    model
        The model in the server's words, which may name a version.
    prompt_tokens, completion_tokens
        What the server counted; None where it does not say.
    """

    text: str
    finish_reason: str | None
    model: str | None
    prompt_tokens: int | None
    completion_tokens: int | None


def request_key(request: Mapping[str, Any]) -> str:
    """SHA-256, in hexadecimal, of everything that a reply depends on."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


@contextmanager
def opened_cache(file_path: str | Path | None) -> Iterator[tuple[dict[str, Reply], Callable[[str, Reply], None]]]:
    """Hold a cache file, made if need be; yield the replies in it by key, and a function that adds one.

    The function may be called from several threads. The end of a line that was cut off in writing is taken away.
    Without a path nothing is kept.

    Raises
    ------
    InputError
        When the file cannot be read or written, a line is damaged, or another run uses the file.
    """
    from filelock import FileLock, Timeout

    if file_path is None:
        yield {}, lambda key, reply: None
        return
    path = Path(file_path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=0), path.open("a+b") as file:
            file.seek(0)
            known, whole = _read(path, file.read())
            file.truncate(whole)
            writing = threading.Lock()

            def add(key: str, reply: Reply) -> None:
                line = json.dumps({"key": key, **asdict(reply)}) + "\n"
                with writing:
                    file.write(line.encode())
                    file.flush()
                    os.fsync(file.fileno())

            yield known, add
    except Timeout:
        raise InputError(f"{path} is in use by another run; wait for it, or give another file") from None
    except OSError as error:
        raise InputError(
            f"{path} cannot be used: {error.strerror or error}; make room or give another file (replies in it are kept)"
        ) from error


def _read(path: Path, data: bytes) -> tuple[dict[str, Reply], int]:
    """Replies by key, and how many bytes they take: what is after them was cut off in writing."""
    known, offset = {}, 0
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            record = json.loads(line)
            key = record.pop("key")
            known[key] = Reply(**record)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise InputError(
                f"{path}:{number} is no kept reply; delete that line, and its request is sent again"
            ) from None
        offset += len(line)
    return known, offset
