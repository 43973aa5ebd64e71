"""One HTML page in one file that asks the network for nothing: styles, scripts and data inside, all text escaped."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attnprobe.errors import InputError

Kind = Literal["heatmap", "report"]

_KIND_MARK = '<meta name="attnprobe-page" content="{}">'
_MADE_HERE = '<meta name="generator" content="attnprobe">'

# What ends a script element or begins a comment inside it, and the line ends that JSON allows and older scripts do not.
_UNSAFE = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def asset(name: str) -> str:
    """Text of a file in ``assets``."""
    return files("attnprobe.report").joinpath("assets", name).read_text(encoding="utf-8")


def json_text(value: Any) -> str:
    """JSON that may stand inside a script element whatever its strings hold.

    Raises
    ------
    ValueError
        For NaN and infinities, which are no JSON: give None.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_UNSAFE)


def array_text(array: np.ndarray) -> str:
    """An array's bytes, little endian and in C order, as base64; the reader knows its dtype and shape."""
    return base64.b64encode(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()).decode("ascii")


def html_page(
    title: str,
    body: str,
    *,
    kind: Kind,
    styles: Sequence[str],
    scripts: Sequence[str],
    data: Mapping[str, Any],
) -> str:
    """Put a page together.

    A Content-Security-Policy forbids every request and every script but the given ones, known by their hashes; so
    even text that got in unescaped could neither run nor call home.

    Parameters
    ----------
    title
        Plain text.
    body
        HTML; whatever comes from a user is escaped in it already.
    kind
        What the page is, for :func:`pages_beside`.
    styles, scripts
        Texts of style sheets and scripts, ours or a library's, in their order.
    data
        JSON values by the id of the script element of type ``application/json`` that will hold them.
    """
    allowed = " ".join(f"'sha256-{_digest(script)}'" for script in scripts) or "'none'"
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    holders = "".join(
        f'<script type="application/json" id="{html.escape(id)}">{json_text(value)}</script>\n'
        for id, value in data.items()
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"{_MADE_HERE}\n{_KIND_MARK.format(kind)}\n"
        f"<title>{html.escape(title)}</title>\n"
        + "".join(f"<style>{style}</style>\n" for style in styles)
        + f"</head>\n<body>\n{body}\n{holders}"
        + "".join(f"<script>{script}</script>\n" for script in scripts)
        + "</body>\n</html>\n"
    )


def check_page(path: Path) -> None:
    """Refuse a page that is not named as one, or that would go over what attnprobe did not make.

    Raises
    ------
    InputError
        Naming the page, what is wrong, and the way out.
    """
    if path.suffix.lower() != ".html":
        raise InputError(f"{path} does not end in .html; name the page so")
    check_own(path, "page", _MADE_HERE)


def check_own(path: Path, what: str, mark: str) -> None:
    """Refuse to write over a folder, or over a file that does not have the mark of ours near its beginning.

    Raises
    ------
    InputError
        Naming the file, what is wrong, and the way out.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; give another --out")
    if not path.is_file():
        return
    try:
        is_own = _is_marked(path, mark)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}; give another --out") from error
    if not is_own:
        raise InputError(f"{path} is there already and no {what} of attnprobe; give another --out, or move it away")


def pages_beside(page: Path, kind: Kind) -> list[Path]:
    """Other pages of attnprobe in a page's folder, of one kind, by name."""
    found = []
    for path in sorted(page.parent.glob("*.html")):
        try:
            if path.name != page.name and path.is_file() and _is_marked(path, _KIND_MARK.format(kind)):
                found.append(path)
        except OSError:  # somebody else's page, and a link the less
            continue
    return found


def _is_marked(path: Path, mark: str) -> bool:
    with path.open("rb") as file:
        return mark.encode() in file.read(4096)


def _digest(script: str) -> str:
    if "</script" in script.lower():
        raise ValueError("a script holds the end tag of its own element")
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
