"""Whether a reply gives an accepted answer, by rules: as written, in any notation, as a whole, by words in common.

``strict`` errs towards 0 and ``lenient`` towards 1: report both. They differ in

- signs, decimals, units. ``lenient`` drops what is neither letter nor digit and parts letters from digits: ``-47``,
  ``47 %``, ``$47``, ``47kg``, ``B47`` hold ``47`` and the first three the other way round, ``1,5`` holds ``5``. For
  ``strict`` a number is all of ``-47``, ``1,5``, ``10:47``, ``1/47``, ``18.05.2018``, ``10 000``, ``47kg``, and no part
  of it is found. A unit that stands apart (``47 %``, ``$47``) is no part of it, nor a hyphen after a letter or digit.
- notation. ``lenient`` takes ``forty-seven``, ``10,000``, ``10 000``, Arabic-Indic digits, ``Rontgen`` for ``Röntgen``,
  a missing article; ``strict`` takes what is the same after NFKC and case folding, with white space as one space.

Neither understands the reply. Both count an answer that is denied, quoted or one of several ("I don't know, not 47";
"46 or 47"; a reply that repeats the documents), one end of a range (``40-47``), a part of a hyphenated word (``known``
in ``well-known``), any run of characters of a script without spaces between words (Chinese, Japanese, Thai). Neither
finds a paraphrase, an inflected or glued form (Korean particles), number words of other languages than English,
``10k``, or ``10.000`` for ten thousand. For those there is ``attnprobe.tasks.judge``, or a ``pattern`` of one's own.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import regex

from attnprobe.answer_text import AFTER_DIGIT, UNSPACED, holds_answer, is_blank
from attnprobe.errors import InputError

PATTERN_SECONDS = 2.0
"""How long a pattern may take on one reply."""

_WORD = rf"[[\p{{L}}\p{{M}}\p{{N}}]--[{UNSPACED}]]"
_JOINER = "\u2060"
# What a match may not begin or end within: a character of a script without spaces; a word; a number with its sign, and
# with whatever joins its digits: a point, a comma, a colon, a slash, a raised digit, a space before three more digits.
_TOKEN = regex.compile(
    rf"[{UNSPACED}]"
    rf"|(?:(?<!{_WORD})[-–](?=\.?\d))?(?:(?<!{_WORD}|\.)\.(?=\d))?{_WORD}+"
    rf"(?:(?<=\d)(?:[.,:/⁄{_JOINER}]|(?<=(?<!\d)\d{{1,3}})[ '’](?=\d{{3}}(?!\d)))(?=\d){_WORD}+)*",
    regex.V1,
)

# What may stand around a whole reply; not a sign, a currency or a percent, nor the point of .5.
_BEFORE = " \"'`“‘«([{*_"
_AFTER = " \"'`”’»)]}*_.,;:!?…。"


@dataclass(frozen=True)
class Score:
    """How a reply compares with the accepted answers: the best of them for each measure.

    Parameters
    ----------
    strict
        1 if the reply holds an answer as it is written, between token boundaries.
    lenient
        1 if it does, or holds one in another notation (``attnprobe.answer_text.holds_answer``).
    exact
        1 if the whole reply is an answer as ``strict`` takes it, but for quotes, brackets and stops around it.
    f1
        Token F1 of SQuAD's evaluation (Rajpurkar et al. 2016), 0 to 1. Its tokens end at white space, and it drops
        ASCII punctuation within them: ``$1.5`` is ``15`` to it.
    pattern
        1 if the pattern is found in the reply; None without one.
    """

    strict: int
    lenient: int
    exact: int
    f1: float
    pattern: int | None = None


def score_answer(reply: str, gold: str | Sequence[str], *, pattern: str | None = None) -> Score:
    """Compare a reply with the accepted answers.

    Parameters
    ----------
    reply
        What the model wrote.
    gold
        The accepted answer, or several.
    pattern
        A regular expression (of the ``regex`` package; ``(?i)`` ignores case) to search the reply for.

    Raises
    ------
    InputError
        If there is no accepted answer or one is blank (nothing but punctuation, such as ``*``, which would be found
        in any reply), or the pattern is none or takes longer than ``PATTERN_SECONDS``.
    """
    if not isinstance(reply, str):
        raise InputError(f"reply is {reply!r}; give the text that the model wrote")
    golds = [gold] if isinstance(gold, str) else list(gold)
    if not golds:
        raise InputError("gold is empty; give at least one accepted answer")
    for answer in golds:
        if not isinstance(answer, str):
            raise InputError(f"the gold answer {answer!r} is no text; put it in quotes")
        if is_blank(answer):
            raise InputError(
                f'the gold answer "{answer}" holds no letter and no digit to look for; give another, or leave the item '
                "out"
            )
    text, answers = _folded(reply), [_folded(answer) for answer in golds]
    strict = int(_held_as_written(text, answers))
    tokens = _squad_tokens(reply)
    return Score(
        strict=strict,
        lenient=int(strict or holds_answer(reply, golds)),
        exact=int(text in answers or text.lstrip(_BEFORE).rstrip(_AFTER) in answers),
        f1=max(_f1(tokens, _squad_tokens(answer)) for answer in golds),
        pattern=None if pattern is None else int(_found(pattern, reply)),
    )


def _held_as_written(text: str, answers: Sequence[str]) -> bool:
    inside = bytearray(len(text) + 1)  # 1 at each position within a token
    for match in _TOKEN.finditer(text):
        start, stop = match.span()
        inside[start + 1 : stop] = b"\x01" * (stop - start - 1)
    return any(_stands_alone(answer, text, inside) for answer in answers)


def _stands_alone(answer: str, text: str, inside: bytearray) -> bool:
    start = text.find(answer)
    while start >= 0:
        if not inside[start] and not inside[start + len(answer)]:
            return True
        start = text.find(answer, start + 1)
    return False


def _folded(text: str) -> str:
    # A raised or small digit stays apart from the one before: 10² is not 102.
    apart = AFTER_DIGIT.sub(_JOINER, text)
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", apart).casefold())
    return " ".join(folded.replace("\N{MINUS SIGN}", "-").split())


def _squad_tokens(text: str) -> list[str]:
    """Tokens as SQuAD's evaluation has them, but an answer of articles alone (vitamin A) keeps them."""
    plain = "".join(char for char in text.lower() if char not in string.punctuation)
    return re.sub(r"\b(?:a|an|the)\b", " ", plain).split() or plain.split()


def _f1(reply: Sequence[str], answer: Sequence[str]) -> float:
    common = sum((Counter(reply) & Counter(answer)).values())
    return 2 * common / (len(reply) + len(answer)) if common else 0.0


def _found(pattern: str, reply: str) -> bool:
    try:
        return regex.search(pattern, reply, timeout=PATTERN_SECONDS) is not None
    except (regex.error, TypeError) as error:
        raise InputError(f'the pattern "{pattern}" is no regular expression: {error}') from None
    except TimeoutError:
        raise InputError(
            f'the pattern "{pattern}" took longer than {PATTERN_SECONDS:g} s on a reply of {len(reply)} characters; '
            "leave out nested repetitions such as (a+)+"
        ) from None
