"""Text in pictures: fonts that are there, names that they can draw, lines that fit."""

from __future__ import annotations

import functools
import unicodedata
from typing import Any

# The first comes with matplotlib; the others, where they are installed, draw what it lacks.
_FAMILIES = (
    "DejaVu Sans",
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR"),
    *("Source Han Sans SC", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "IPAGothic", "Droid Sans Fallback"),
    *("PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic"),
    *("Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Tamil"),
    *("Noto Sans Telugu", "Noto Sans Thai", "Noto Emoji", "Arial Unicode MS", "FreeSans"),
)
_RIGHT_TO_LEFT = ("R", "AL", "AN")
_SPACES = {"\n": "⏎", "\r": "⏎", "\t": "⇥"}
_POINTS = 72.0  # an inch


@functools.cache
def families() -> tuple[str, ...]:
    """Names of the fonts to draw with, those that are installed."""
    from matplotlib import font_manager

    there = set(font_manager.get_font_names())
    return tuple(name for name in _FAMILIES if name in there)


@functools.cache
def _characters() -> frozenset[int]:
    from matplotlib import font_manager

    paths = [font_manager.findfont(font_manager.FontProperties(family=name)) for name in families()]
    return frozenset(code for path in paths for code in font_manager.get_font(path).get_charmap())


@functools.cache
def _shapes_scripts() -> bool:
    """Whether this matplotlib joins letters and turns right-to-left text round."""
    from matplotlib import ft2font

    return hasattr(ft2font, "__libraqm_version__")


def one_line(text: str) -> str:
    """The text on one line without characters that are invisible or move others, bidi overrides among them."""
    spaced = "".join(" " if c.isspace() else c for c in unicodedata.normalize("NFC", text))
    return " ".join("".join(c for c in spaced if not unicodedata.category(c).startswith("C")).split())


def is_drawable(text: str) -> bool:
    """Whether every character has a glyph in an installed font and would stand where it belongs."""
    if any(ord(c) not in _characters() for c in text):
        return False
    needs_shaping = any(unicodedata.bidirectional(c) in _RIGHT_TO_LEFT or unicodedata.combining(c) for c in text)
    return not needs_shaping or _shapes_scripts()


def shown(name: str, otherwise: str) -> str:
    """A name on one line, or something else where it cannot be drawn."""
    text = one_line(name)
    return text if text and is_drawable(text) else otherwise


def label(name: str, room: float, size: float) -> str | None:
    """A name as a label ``room`` inches long at most, cut with an ellipsis; None where it cannot be drawn."""
    text = shown(name, "")
    if not text:
        return None
    if text_width(text, size) <= room:
        return text
    low, high = 0, len(text)
    while low < high:  # the most characters that fit before the ellipsis
        middle = (low + high + 1) // 2
        low, high = (middle, high) if text_width(text[:middle] + "…", size) <= room else (low, middle - 1)
    return text[:low].rstrip() + "…" if low else None


def token_label(text: str) -> str:
    """A token as a label 0.9 inches long at most: line ends and lone spaces as signs, what cannot be drawn as codes."""
    signs = "".join(_SPACES.get(c) or (c if c == " " or _has_place(c) else _code(c)) for c in text)
    signs = signs.strip(" ") or "␣" * len(signs)
    if not is_drawable(signs):  # single letters would, but not joined or turned round
        signs = "".join(c if c.isascii() else _code(c) for c in signs)
    return label(signs, 0.9, 7.0) or "(no text)"


def _has_place(character: str) -> bool:
    return is_drawable(character) and not unicodedata.category(character).startswith("C")


def _code(character: str) -> str:
    return character.encode("ascii", "backslashreplace").decode() if ord(character) > 31 else f"\\x{ord(character):02x}"


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Width of one line of text in inches; ``size`` in points."""
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(text, _font(size, bold), ismath=False)
    return float(width) / _POINTS


@functools.cache
def _font(size: float, bold: bool) -> Any:
    from matplotlib.font_manager import FontProperties

    return FontProperties(family=list(families()), size=size, weight="bold" if bold else "normal")


def wrapped(text: str, room: float, size: float, bold: bool = False) -> list[str]:
    """Words in lines ``room`` inches long at most; a longer word gets a line and is cut."""
    lines: list[str] = []
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(joined, size, bold) <= room:
            lines[-1] = joined
        else:
            lines.append(word if text_width(word, size, bold) <= room else label(word, room, size) or "…")
    return lines
