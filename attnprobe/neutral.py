"""Neutral text of a wanted number of tokens, to stand where a document stood."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.errors import InputError

_THINGS = (
    *("road", "garden", "table", "window", "morning", "river", "house", "letter"),
    *("field", "chair", "wall", "bridge", "cloud", "door", "path", "hill"),
)
_QUALITIES = ("quiet", "small", "plain", "old", "wide", "long", "simple", "grey", "warm", "usual", "common", "even")
_VERBS = ("stands", "rests", "lies", "stays", "waits", "remains", "appears", "turns")
_PLACES = ("near", "beside", "behind", "before", "along", "above", "under", "past")
_ENDINGS = (" so", " then", " here", " now", " too", ".", ",", " a", " and", " of", "!", ";", "?", ")", "s", "a")
_FEWER_WORDS = 6


@dataclass(frozen=True)
class NeutralText:
    """A neutral text, and how well it matches.

    Parameters
    ----------
    text
        It ends where its tokens are used up, if need be in the middle of a sentence.
    wanted, found
        Tokens of the text in its place: to be matched, and reached.
    wanted_prompt, found_prompt
        Tokens of the whole prompt; equal where nothing behind the text moves.
    """

    text: str
    wanted: int
    found: int
    wanted_prompt: int
    found_prompt: int

    @property
    def exact(self) -> bool:
        """Whether text and prompt have the very number of tokens that was wanted."""
        return self.wanted == self.found and self.wanted_prompt == self.found_prompt


def neutral_words(seed: int) -> Iterator[str]:
    """Words of plain sentences without names or numbers, without end; the same for the same seed."""
    rng = np.random.default_rng(seed)

    def one_of(words: tuple[str, ...]) -> str:
        return words[int(rng.integers(len(words)))]

    while True:
        first, second = one_of(_THINGS), one_of(_THINGS)
        yield from ("The", one_of(_QUALITIES), first, one_of(_VERBS), one_of(_PLACES), "the", one_of(_QUALITIES))
        yield f"{second}."


def matched_text(
    words: Iterator[str], count: Callable[[str], tuple[int, int]], wanted: tuple[int, int], tokenizer: Any
) -> NeutralText:
    """The beginning of a text that has a wanted number of tokens in its place.

    Whole words are taken as long as they fit, then short endings, a token at a time. With one to six words fewer, the
    same is tried again. Where nothing fits exactly, the closest text is given, and says so.

    Parameters
    ----------
    words
        Where the words come from; no more are drawn than needed.
    count
        Tokens of a text in its place and of the whole prompt with it.
    wanted
        What it is to give.
    tokenizer
        The prompt's; for a first guess.

    Raises
    ------
    InputError
        The words run out.
    """
    if wanted[0] == 0:
        return NeutralText("", 0, 0, wanted[1], count("")[1])

    def alone(n_words: int) -> int:
        return len(tokenizer(" ".join(taken[:n_words]), add_special_tokens=False)["input_ids"])

    taken: list[str] = []
    while (missing := wanted[0] - alone(len(taken))) >= 0:
        more = [word for _, word in zip(range(missing // 4 + 1), words, strict=False)]
        if not more:
            raise InputError(
                f"the neutral text has {len(taken)} words and is shorter than a document of {wanted[0]} tokens; give "
                "a longer one, or none for the built-in sentences"
            )
        taken += more
    low, high = 0, len(taken)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if alone(middle) <= wanted[0] else (low, middle)
    best: NeutralText | None = None
    for n_words in range(low, max(low - _FEWER_WORDS, 0) - 1, -1):
        found = _filled(" ".join(taken[:n_words]), count, wanted)
        if best is None or _distance(found) < _distance(best):
            best = found
        if found.exact:
            return found
    assert best is not None
    return best


def _filled(text: str, count: Callable[[str], tuple[int, int]], wanted: tuple[int, int]) -> NeutralText:
    """A text with short endings, as long as one brings text and prompt closer to the wanted tokens."""

    def ending_in(ending: str) -> NeutralText:
        longer = (text + ending).lstrip()
        own, whole = count(longer)
        return NeutralText(longer, wanted[0], own, wanted[1], whole)

    found = ending_in("")
    while not found.exact:
        text = found.text
        better = (other for ending in _ENDINGS if _distance(other := ending_in(ending)) < _distance(found))
        if (nearer := next(better, None)) is None:
            return found
        found = nearer
    return found


def _distance(text: NeutralText) -> int:
    """How many tokens text and prompt are off."""
    return abs(text.wanted - text.found) + abs(text.wanted_prompt - text.found_prompt)


def holds(text: str, answer: str) -> bool:
    """Whether an answer's words occur in a text, next to each other and as whole words, whatever their case."""
    words = re.findall(r"\w+", answer.casefold())
    return bool(words) and re.search(r"\b" + r"\W+".join(map(re.escape, words)) + r"\b", text.casefold()) is not None
