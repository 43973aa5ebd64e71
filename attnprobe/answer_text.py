"""Whether a text holds an accepted answer: at token boundaries, after normalisation, numbers in any notation.

Meant for throwing documents out, so it errs towards "holds": accents, case, punctuation and a leading article
do not count, and ``forty-seven``, ``47`` and ``10,000``, ``10 000``, ``ten thousand`` are the same.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

# fmt: off
_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SMALL = {word: value for value, word in enumerate(_ONES)} | {word: 10 * i for i, word in enumerate(_TENS, start=2)}
_LARGE = {"thousand": 1000, "million": 10**6, "billion": 10**9}
_ARTICLES = ("a", "an", "the")
# A token of any text once numbers are in one notation: scripts without spaces by character, a decimal number
# (but not part of a date such as 18.05.2018), a whole number, a word.
_TOKEN = (
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
    r"|(?<!\d\.)\d+\.\d+(?!\.?\d)|\d+|[\p{L}\p{N}--\d]+"
)


def holds_answer(text: str, answers: Iterable[str]) -> bool:
    """Whether a text holds one of the answers at token boundaries.

    Numbers match as wholes: 14 is not in 2014, nor 15 in 1.5. An answer that normalises to nothing, such as
    ``*``, is held by no text; see ``is_blank``.
    """
    return any_held(text_key(text), [answer_key(answer) for answer in answers])


def is_blank(answer: str) -> bool:
    """Whether nothing of an answer is left to be matched, such as of ``*``."""
    return not answer_key(answer)


def text_key(text: str) -> str:
    """What ``any_held`` searches: the readings of a text, each a line of space-separated tokens."""
    return "\n".join(f" {' '.join(reading)} " for reading in _readings(text))


def answer_key(answer: str) -> tuple[str, ...]:
    """The readings of an answer for ``any_held``, without a leading article; empty for a blank one."""
    keys = []
    for tokens in _readings(answer):
        rest = tokens[1:] if len(tokens) > 1 and tokens[0] in _ARTICLES else tokens
        if rest:
            keys.append(f" {' '.join(rest)} ")
    return tuple(dict.fromkeys(keys))


def any_held(key: str, answers: Iterable[Sequence[str]]) -> bool:
    """Whether the text of ``key`` holds a reading of one of the answers (``answer_key``)."""
    return any(reading in key for answer in answers for reading in answer)


def _readings(text: str) -> list[list[str]]:
    """Tokens as written, and with number words as digits, 10 000 taken as two numbers and as one."""
    pattern, thousands, spaced = _patterns()
    folded = unicodedata.normalize("NFKD", text.casefold())
    # Marks are dropped, accents with them; a text may be written with or without.
    plain = "".join(char for char in folded if not unicodedata.combining(char))
    joined = thousands.sub(lambda match: match.group().replace(",", ""), plain)
    readings = []
    for form in dict.fromkeys((joined, spaced.sub(lambda match: "".join(match.group().split()), joined))):
        tokens = pattern.findall(form)
        for reading in (tokens, _numbers_as_digits(tokens)):
            if reading not in readings:
                readings.append(reading)
    return readings


@lru_cache(maxsize=1)
def _patterns() -> tuple[Any, Any, Any]:
    import regex

    return (
        regex.compile(_TOKEN, regex.V1),
        regex.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!,?\d)"),
        regex.compile(r"(?<![\d.,])\d{1,3}(?:[ ']\d{3})+(?!\d)"),
    )


def _numbers_as_digits(tokens: Sequence[str]) -> list[str]:
    """Tokens with every run of number words (and digits before thousand, million, billion) as one number."""
    out: list[str] = []
    place = 0
    while place < len(tokens):
        value, used = _number_at(tokens, place)
        out.append(tokens[place] if value is None else f"{value:f}")
        place += max(used, 1)
    return out


def _number_at(tokens: Sequence[str], start: int) -> tuple[Decimal | None, int]:
    """The number that starts at a token and how many tokens it takes; (None, 0) where there is none."""
    total, current, last, place = Decimal(0), Decimal(-1), Decimal(0), start
    while place < len(tokens):
        token = tokens[place]
        # "one hundred and five": the "and" belongs to the number only between its parts.
        if token == "and" and place > start and last >= 100 and place + 1 < len(tokens):
            if tokens[place + 1] not in _SMALL:
                break
            place += 1
            token = tokens[place]
        if token in _SMALL or (place == start and _is_digits(token)):
            value = Decimal(_SMALL.get(token, token))
            if place > start and not (last >= 100 or (20 <= last < 100 and 0 < value < 10)):
                break
            current = value if current < 0 else current + value
            last = value
        elif token == "hundred" and 0 < current < 100:
            current, last = current * 100, Decimal(100)
        elif token in _LARGE and current > 0:
            total, current, last = total + current * _LARGE[token], Decimal(0), Decimal(_LARGE[token])
        else:
            break
        place += 1
    if place == start:
        return None, 0
    number = total + current
    return (number.to_integral_value() if number == number.to_integral_value() else number.normalize()), place - start


def _is_digits(token: str) -> bool:
    return token.isascii() and token.replace(".", "", 1).isdigit()
