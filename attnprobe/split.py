"""Cut text into paragraphs and sentences, in any script, without losing or splitting a character."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import regex

# A terminator may carry a variation selector or a combining mark; closing quotes and brackets stay with it.
_SPACED = r"[.!?…․‼‽⁇⁈⁉﹒﹖﹗]"
_DIRECT = r"[\p{Sentence_Terminal}--[.!?…․‼‽⁇⁈⁉﹒﹖﹗]]"
_UNSPACED_SCRIPT = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}\p{sc=Bopomofo}]"
_CLOSERS = r"[\p{Pe}\p{Pf}\"'*_]*+"
_END = regex.compile(
    rf"""(?V1)
    (?P<mark>(?:(?:{_SPACED}|{_DIRECT})\p{{M}}*+)++)
    {_CLOSERS}
    (?P<space>\s*+)
    """,
    regex.VERBOSE,
)
_HAS_DIRECT = regex.compile(rf"(?V1){_DIRECT}")
_SCRIPT_LETTER = regex.compile(rf"(?V1){_UNSPACED_SCRIPT}")
_GOES_ON = regex.compile(r"[\p{Ps}\p{Pi}\"'*_]*+[\p{Ll},;:]")
_WORD_BEFORE = regex.compile(r"(?:\p{L}\p{M}*+\.)*\p{L}[\p{L}\p{M}]*$")
_ACRONYM = regex.compile(r"(?:\p{L}\p{M}*\.)*\p{L}\p{M}*")
_ENUMERATOR = regex.compile(r"\s*[\p{Ps}*#-]*\s*\p{Nd}{1,4}")
# Longer than any abbreviation or acronym: how far back the word before a full stop is looked for.
_LOOK_BACK = 40

_BREAK = regex.compile(r"\s++")
_LINE_END = regex.compile(r"\r\n|[\n\r\v\f\x85\u2028]")

_ALWAYS_ABBREVIATED = regex.compile(
    r"(?i)mrs?|m[sx]|dr|prof|[sj]r|st|rev|hon|gen|col|maj|capt|cpt|lt|sgt|cmdr|gov|sen|rep|pres|mt|messrs|mme|mlle"
    r"|vs|cf|viz|al|approx|ca|bzw|ggf|usw|vgl|[nhf]r|sra|srta"
)
_ABBREVIATED_BEFORE_DIGIT = regex.compile(
    r"(?i)(?:no|fig|eq|sec|vol|art|par)s?|pp?|ch|tab|ex|para|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec"
)

# A grapheme cluster always begins at such a character unless a prepended mark is before it, so a search may
# start there instead of at the start of the text.
_STARTS_CLUSTER = regex.compile(
    r"(?V1)[[\p{GCB=Other}--\p{Extended_Pictographic}--\p{InCB=Consonant}]\p{GCB=Control}\r]"
)
_PREPENDED = regex.compile(r"\p{GCB=Prepend}")


def split_paragraphs(text: str) -> list[tuple[int, int]]:
    r"""Cut ``text`` at its blank lines.

    Parameters
    ----------
    text
        Any text. A paragraph ends with white space that holds at least two line ends (``\n``, ``\r\n``, ...) or
        a paragraph separator (U+2029); that white space belongs to the paragraph before it.

    Returns
    -------
    list of (int, int)
        Half-open character ranges that tile ``text``; empty for the empty text.
    """
    return _tile(text, _paragraph_cuts(text))


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Cut ``text`` after its sentences and at its blank lines.

    A sentence ends at a Unicode sentence terminator and its closing quotes or brackets, followed by white space
    or, where the script is written without spaces, by anything. Decimals, initials, acronyms, common
    abbreviations, numbered list heads, addresses and marks that a lower-case word follows do not end one.

    Parameters
    ----------
    text
        Any text.

    Returns
    -------
    list of (int, int)
        Half-open character ranges that tile ``text``; the white space after a sentence belongs to it.
    """
    return _tile(text, _sentence_cuts(text, deque(_paragraph_cuts(text))))


def grapheme_floor(text: str, index: int) -> int:
    """Largest grapheme-cluster boundary of ``text`` that is not after ``index`` (both in characters)."""
    if index <= 0:
        return 0
    if index >= len(text):
        return len(text)
    start = index - 1
    while start and (not _STARTS_CLUSTER.match(text, start) or _PREPENDED.match(text, start - 1)):
        start -= 1
    for cluster in regex.finditer(r"\X", text, pos=start):
        if cluster.end() > index:
            return cluster.start()
        if cluster.end() == index:
            return index
    return index


def _tile(text: str, cuts: Iterator[int]) -> list[tuple[int, int]]:
    """Ranges between the cuts, each cut moved back to a grapheme boundary."""
    pieces = []
    start = 0
    for cut in cuts:
        stop = grapheme_floor(text, cut)
        if start < stop < len(text):
            pieces.append((start, stop))
            start = stop
    if start < len(text):
        pieces.append((start, len(text)))
    return pieces


def _paragraph_cuts(text: str) -> Iterator[int]:
    for space in _BREAK.finditer(text):
        if space.start() == 0:
            continue
        run = space.group()
        if "\u2029" in run or len(_LINE_END.findall(run)) > 1:
            yield space.end()


def _sentence_cuts(text: str, paragraphs: deque[int]) -> Iterator[int]:
    """Sentence and paragraph cuts, ascending."""
    previous = 0
    for end in _END.finditer(text):
        while paragraphs and paragraphs[0] <= end.start():
            previous = paragraphs.popleft()
            yield previous
        if _ends_sentence(text, end, previous):
            previous = end.end()
            yield previous
    yield from paragraphs


def _ends_sentence(text: str, end: regex.Match[str], start: int) -> bool:
    """Whether a terminator that was found ends the sentence that began at ``start``."""
    mark, cut = end.group("mark"), end.end()
    if cut == len(text):
        return True
    if _HAS_DIRECT.search(mark):
        # A full-width full stop is also a decimal point.
        return not ("．" in mark and not end.group("space") and text[cut].isdecimal())
    if not end.group("space"):
        before = text[end.start() - 1] if end.start() else ""
        return bool(_SCRIPT_LETTER.match(before) and _SCRIPT_LETTER.match(text, cut))
    if _GOES_ON.match(text, cut):
        return False
    if mark != ".":
        return True
    if _ENUMERATOR.fullmatch(text, start, end.start()):
        return False
    word = _WORD_BEFORE.search(text, max(start, end.start() - _LOOK_BACK), end.start())
    if word is None:
        return True
    if _ACRONYM.fullmatch(word.group()):
        return bool(_SCRIPT_LETTER.match(word.group()))
    if _ABBREVIATED_BEFORE_DIGIT.fullmatch(word.group()):
        return not text[cut].isdecimal()
    return not _ALWAYS_ABBREVIATED.fullmatch(word.group())
