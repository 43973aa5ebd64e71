"""Texts of users made safe to show: in HTML, in Markdown, and in plots."""

from __future__ import annotations

import html
import re

# Control characters, line and paragraph separators, those that turn the direction of the text around them, and those
# that take no room, such as tags. Not the joiners U+200C and U+200D, which scripts and emoji are written with.
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    r"\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_MARKDOWN = re.compile(r"([\\`*_\[\]<>#|~$&])")
# Where GitHub would make a link of plain text: names, numbers of issues, addresses. A comment there is not seen.
_LINKED = re.compile(r"(?<=@)(?=\w)|(?<=\\#)(?=\d)|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
MOST = 2000


def visible(value: object, most: int = MOST) -> str:
    """A text with codes for characters that are not seen or that rearrange others, and not longer than ``most``."""
    text = str(value)
    if len(text) > most:
        text = f"{text[:most]}… ({len(text):,} characters)"
    return _UNSEEN.sub(lambda match: f"[U+{ord(match[0]):04X}]", text)


def escaped(value: object, most: int = MOST) -> str:
    """A text as HTML, for contents and attributes, and not longer than ``most``."""
    return html.escape(visible(value, most), quote=True)


def in_markdown(value: object, most: int = MOST) -> str:
    """A text as one line of Markdown that is shown as it is, in tables too, and not longer than ``most`` of it."""
    return _LINKED.sub("<!-- -->", _MARKDOWN.sub(r"\\\1", " ".join(visible(value, most).split())))
