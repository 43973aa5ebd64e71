"""Neutral text of a wanted number of tokens, to stand where a document stood."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.answer_text import holds_answer
from attnprobe.document import quoted
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
_TRIES = 20  # seeds tried for sentences that do not hold an answer


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


def neutral_text(
    seed: int, count: Callable[[str], tuple[int, int]], wanted: tuple[int, int], tokenizer: Any, answers: Sequence[str]
) -> NeutralText:
    """Built-in sentences of a wanted number of tokens that hold none of the answers.

    Parameters
    ----------
    seed
        Draws the sentences.
    count, wanted, tokenizer
        As in :func:`matched_text`.
    answers
        As in :func:`attnprobe.answer_text.holds_answer`.

    Raises
    ------
    InputError
        Whatever is drawn holds one of them.
    """
    for attempt in range(_TRIES):
        text = matched_text(neutral_words(seed + 1000 * attempt), count, wanted, tokenizer)
        if not holds_answer(text.text, answers):
            return text
    raise InputError(f"the built-in neutral sentences hold the answer {' or '.join(map(quoted, answers))}")


def matched_text(
    words: Iterator[str],
    count: Callable[[str], tuple[int, int]],
    wanted: tuple[int, int],
    tokenizer: Any,
    joint: str = " ",
    endings: Sequence[str] | None = None,
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
    joint
        What stands between two words; empty where they bring their own white space, or need none.
    endings
        Short texts to put behind the words where their tokens do not come out; empty to take words only, None for the
        built-in ones.

    Raises
    ------
    InputError
        The words run out.
    """
    if wanted[0] == 0:
        return NeutralText("", 0, 0, wanted[1], count("")[1])

    def alone(n_words: int) -> int:
        return len(tokenizer(joint.join(taken[:n_words]), add_special_tokens=False)["input_ids"])

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
        found = _filled(joint.join(taken[:n_words]), count, wanted, _ENDINGS if endings is None else endings)
        if best is None or _distance(found) < _distance(best):
            best = found
        if found.exact:
            return found
    assert best is not None
    return best


def _filled(
    text: str, count: Callable[[str], tuple[int, int]], wanted: tuple[int, int], endings: Sequence[str]
) -> NeutralText:
    """A text with short endings, as long as one brings text and prompt closer to the wanted tokens."""

    def ending_in(ending: str) -> NeutralText:
        longer = (text + ending).lstrip()
        own, whole = count(longer)
        return NeutralText(longer, wanted[0], own, wanted[1], whole)

    found = ending_in("")
    while not found.exact:
        text = found.text
        better = (other for ending in endings if _distance(other := ending_in(ending)) < _distance(found))
        if (nearer := next(better, None)) is None:
            return found
        found = nearer
    return found


def _distance(text: NeutralText) -> int:
    """How many tokens text and prompt are off."""
    return abs(text.wanted - text.found) + abs(text.wanted_prompt - text.found_prompt)
