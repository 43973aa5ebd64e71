"""Texts of users made safe to show: in HTML, in Markdown, and in plots."""

from __future__ import annotations

import html
import re

# Control characters, and those that turn the direction of the text around them: line and paragraph separators too.
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>#|~$&])")
MOST = 2000


def visible(value: object, most: int = MOST) -> str:
    """A text without characters that are not seen or that rearrange others, and not longer than ``most``."""
    text = str(value)
    if len(text) > most:
        text = f"{text[:most]}… ({len(text):,} characters)"
    return _UNSEEN.sub("\ufffd", text)


def escaped(value: object) -> str:
    """A text as HTML, for contents and attributes."""
    return html.escape(visible(value), quote=True)


def in_markdown(value: object) -> str:
    """A text as one line of Markdown that is shown as it is, in tables too."""
    return _MARKDOWN.sub(r"\\\1", " ".join(visible(value).split()))
