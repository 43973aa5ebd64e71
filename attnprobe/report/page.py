"""One HTML page in one file that asks the network for nothing: styles, scripts and data inside, all text escaped."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from attnprobe.report.own_files import MADE_HERE, Kind, kind_mark

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
        What the page is, for :func:`attnprobe.report.own_files.pages_beside`.
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
        f"{MADE_HERE}\n{kind_mark(kind)}\n"
        f"<title>{html.escape(title)}</title>\n"
        + "".join(f"<style>{style}</style>\n" for style in styles)
        + f"</head>\n<body>\n{body}\n{holders}"
        + "".join(f"<script>{script}</script>\n" for script in scripts)
        + "</body>\n</html>\n"
    )


def _digest(script: str) -> str:
    if "</script" in script.lower():
        raise ValueError("a script holds the end tag of its own element")
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
