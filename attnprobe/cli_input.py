"""Prompt files as the command line is given them: a path, or standard input."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnprobe.errors import InputError


@contextmanager
def given_file(file: str) -> Iterator[Path]:
    """The path of a prompt file; what comes from standard input (``-``) is a file while the context lasts."""
    if file != "-":
        yield Path(file)
        return
    with tempfile.TemporaryDirectory() as folder:
        # Readers look twice at the beginning of a file, which a pipe does not allow.
        path = Path(folder) / "stdin"
        path.write_bytes(sys.stdin.buffer.read())
        try:
            yield path
        except InputError as error:
            raise InputError(str(error).replace(str(path), "standard input")) from error
