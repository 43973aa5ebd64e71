"""Files that pages, summaries and pictures go to: what attnprobe did not make is not written over."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from attnprobe.errors import InputError
from attnprobe.run_folder import remove_left_over, write_text

Kind = Literal["heatmap", "report"]

MADE_HERE = '<meta name="generator" content="attnprobe">'
"""In every page, near its beginning."""
PICTURE_MARKS: Mapping[str, str] = {
    ".png": "Software\0attnprobe",
    ".svg": "<dc:title>attnprobe</dc:title>",
    ".pdf": "/Creator (attnprobe)",
}
"""In every picture, by its suffix: what the metadata of :mod:`attnprobe.report.style` become."""

_NEAR = 65_536  # bytes of a file's beginning and of its end, where PDF has its metadata
_TITLE = re.compile(r"<title>([^<]*)</title>")
_OLD = 3600.0  # seconds; a younger one may be of a process that writes now


def kind_mark(kind: Kind) -> str:
    """In every page of a kind, near its beginning."""
    return f'<meta name="attnprobe-page" content="{kind}">'


def check_page(path: Path) -> None:
    """Refuse a page that is not named as one, or that would go over what attnprobe did not make.

    Raises
    ------
    InputError
        Naming the page, what is wrong, and the way out.
    """
    if path.suffix.lower() != ".html":
        raise InputError(f"{path} does not end in .html; name the page so")
    check_own(path, "page", MADE_HERE)


def check_own(path: Path, what: str, mark: str, remedy: str = "give another --out, or move it away") -> None:
    """Refuse to write over a folder, a pipe or device, or a file that does not have a mark of ours near its ends.

    Raises
    ------
    InputError
        Naming the file, what is wrong, and the way out.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder; give another --out")
        if not path.exists():
            _check_folder(path.parent)
            return
        if not path.is_file():
            raise InputError(f"{path} is a pipe or a device, not a file; give another --out")
        is_own = _is_marked(path, mark)
    except OSError as error:
        raise InputError(f"{path} cannot be used: {error.strerror or error}; give another --out") from error
    if not is_own:
        raise InputError(f"{path} is there already and no {what} of attnprobe; {remedy}")


def _check_folder(folder: Path) -> None:
    """Whether a folder is there or can be made, without making it."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    if not there.is_dir():
        raise InputError(f"{folder} cannot be made a folder, as {there} is none; give another --out")
    if not os.access(there, os.W_OK):
        raise InputError(f"{there} cannot be written; give another --out")


def make_folder(folder: Path) -> None:
    """Make the folder of a page or picture, where it is missing.

    Raises
    ------
    InputError
        It cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made a folder: {error.strerror or error}; give another --out") from error


def write_own(path: Path, text: str) -> None:
    """Write a page or summary so that a reader sees the old content or the new one; a link stays one.

    What a process that was killed while writing left in the folder goes.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    target = Path(os.path.realpath(path))
    make_folder(target.parent)
    try:
        remove_left_over(target.parent, older_than=_OLD)
        write_text(target, text)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}; give another --out") from error


def pages_beside(page: Path, kind: Kind) -> list[tuple[str, str]]:
    """Name and title of the other pages of attnprobe in a page's folder, of one kind, by name."""
    found = []
    for path in sorted(page.parent.glob("*.html")):
        try:
            if path.name == page.name or not path.is_file():
                continue
            with path.open("rb") as file:
                head = file.read(_NEAR).decode("utf-8", "replace")
        except OSError:  # somebody else's page, and a link the less
            continue
        if kind_mark(kind) in head:
            title = _TITLE.search(head)
            found.append((path.name, html.unescape(title[1]) if title else path.name))
    return found


def _is_marked(path: Path, mark: str) -> bool:
    with path.open("rb") as file:
        if mark.encode() in file.read(_NEAR):
            return True
        file.seek(max(0, file.seek(0, os.SEEK_END) - _NEAR))
        return mark.encode() in file.read()
