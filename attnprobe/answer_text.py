"""Whether a text holds an accepted answer: at token boundaries, after normalisation, numbers in any notation.

Meant for throwing documents out, so it errs towards "holds": accents, case, punctuation and a leading article
do not count, and ``forty-seven``, ``47`` and ``10,000``, ``10 000``, ``ten thousand`` are the same.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal, localcontext

import regex

# fmt: off
_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SMALL = {word: value for value, word in enumerate(_ONES)} | {word: 10 * i for i, word in enumerate(_TENS, start=2)}
_LARGE = {"thousand": 1000, "million": 10**6, "billion": 10**9}
_ARTICLES = ("a", "an", "the")
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
"""Scripts without spaces between words, for a character class of ``regex``."""
AFTER_DIGIT = regex.compile(r"(?<=\d)(?=\p{No})")
"""Where a raised, small or circled digit or a fraction follows a digit, which compatibility forms would fuse."""
# A token of any text once numbers are in one notation: scripts without spaces by character, a decimal number
# (but not part of a date such as 18.05.2018), a whole number, a word.
_TOKEN = regex.compile(
    rf"[{UNSPACED}]|(?<!\d\.)\d+\.\d+(?!\.?\d)|\d+|[\p{{L}}\p{{M}}\p{{N}}--\d]+",
    regex.V1,
)
_THOUSANDS = regex.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!,?\d)")
_SPACED_THOUSANDS = regex.compile(r"(?<![\d.,])\d{1,3}(?:[ ']\d{3})+(?!\d)")
_ARABIC_SEPARATORS = {0x66B: ".", 0x66C: ","}


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
    folded = unicodedata.normalize("NFKD", AFTER_DIGIT.sub(" ", text.casefold())).translate(_ARABIC_SEPARATORS)
    # Accents and points are dropped, as a text may be written with or without; digits of any script become 0 to 9.
    plain = "".join(str(unicodedata.decimal(char, char)) for char in folded if not unicodedata.combining(char))
    joined = _THOUSANDS.sub(lambda match: match.group().replace(",", ""), plain)
    readings = []
    for form in dict.fromkeys((joined, _SPACED_THOUSANDS.sub(lambda match: "".join(match.group().split()), joined))):
        tokens = _TOKEN.findall(form)
        for reading in (tokens, _numbers_as_digits(tokens)):
            if reading not in readings:
                readings.append(reading)
    return readings


def _numbers_as_digits(tokens: Sequence[str]) -> list[str]:
    """Tokens with every run of number words (and digits before thousand, million, billion) as one number."""
    out: list[str] = []
    place = 0
    with localcontext() as context:
        context.prec = 10**6  # a long number, such as a code, must not be rounded
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
