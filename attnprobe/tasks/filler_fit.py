"""Filler of an exact number of tokens, in stretches that end at sentence boundaries wherever there are any close by."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, product
from typing import Any

import numpy as np
import regex

from attnprobe.answer_text import answer_key, any_held, text_key
from attnprobe.errors import InputError
from attnprobe.neutral import matched_text
from attnprobe.tasks.filler import FillerSource

_ROOM = 4  # tokens that a cut sentence should have
_FEWER = 3  # sentences that may be given up for one that can be cut
_LONGEST = 0.25  # of a prompt: a longer sentence is taken as several, as depths would be far from its ends,
_PART = 0.05  # each of this part of the prompt
_WORDS = 8  # a sentence with fewer is taken for a script without spaces, and parted between graphemes
_ROUNDS = 12  # corrections of an estimated number of sentences
_BATCH = 64
_NEARBY = 2000  # characters before the cut that a short prompt is counted with
_WORD = regex.compile(r"\s*\S+")
_SPACED_WORD = regex.compile(r"\S+\s*")
_GRAPHEME = regex.compile(r"\X")
_LOOSE_END = regex.compile(r"(?V1)[\s,;:\p{Sentence_Terminal}\p{Pd}]+$")
_TERMINAL = regex.compile(r"(?V1)\p{Sentence_Terminal}")

Parts = list[str]
Count = Callable[[Sequence[str]], int]


@dataclass(frozen=True)
class Fitted:
    """Stretches of filler, and what they are made of.

    Parameters
    ----------
    parts
        One before each depth, and one behind the last; some are empty.
    sentences, repeated
        Whole sentences, and how many of them had been there before; one longer than a quarter of the prompt counts as
        several.
    left_out
        Sentences that were not used because they hold an answer.
    """

    parts: tuple[str, ...]
    sentences: int = 0
    repeated: int = 0
    left_out: int = 0


class _Stream:
    """Sentences of a source as far as they were needed, with an estimate of their tokens; long ones in parts."""

    def __init__(
        self, source: FillerSource, seed: Sequence[int], answers: Sequence[str], tokenizer: Any, length: int
    ) -> None:
        self.pieces: list[str] = []
        self.ends = np.zeros(1, dtype=np.int64)  # tokens of the first 0, 1, ... sentences, each counted alone
        self.left_out = 0
        self._source = source
        self._rest = source.pieces(seed)
        self._answers = [answer_key(answer) for answer in answers]
        self._tokenizer = tokenizer
        self._longest, self._part = _LONGEST * length, _PART * length

    def reach(self, n_tokens: int) -> bool:
        """Draw sentences of more than so many tokens; whether there are as many."""
        while self.ends[-1] <= n_tokens:
            batch = list(islice(self._rest, max(_BATCH, len(self.pieces))))
            if not batch:
                return False
            if self._source.drawn:
                kept = [piece for piece in batch if not any_held(text_key(piece), self._answers)]
                self.left_out += len(batch) - len(kept)
                if not kept:
                    raise InputError(
                        f"all sentences of the filler {self._source.name} hold an answer; choose another filler"
                    )
                batch = kept
            tokens = self._tokens(batch)
            if max(tokens) > self._longest:
                counted = zip(batch, tokens, strict=True)
                numbers = [(piece, math.ceil(n / self._part) if n > self._longest else 1) for piece, n in counted]
                batch = [part for piece, number in numbers for part in _in_parts(piece, number)]
                tokens = self._tokens(batch)
            ends = self.ends[-1] + np.cumsum(tokens)
            if ends[-1] == self.ends[-1]:
                return False  # text that the tokenizer drops would go on without end
            self.ends = np.concatenate((self.ends, ends))
            self.pieces += batch
        return True

    def _tokens(self, pieces: list[str]) -> list[int]:
        return [len(ids) for ids in self._tokenizer(pieces, add_special_tokens=False)["input_ids"]]

    def parts(self, n: int, depths: Sequence[float]) -> Parts:
        """The first ``n`` sentences in stretches, white space at their ends kept."""
        ends = self.ends[: n + 1]
        total = (ends[n] + self.ends[: n + 2][-1]) / 2  # half a sentence more, as a cut one follows
        cuts = [0, *(int(np.abs(ends - depth * total).argmin()) for depth in depths), n]
        return ["".join(self.pieces[start:stop]) for start, stop in pairwise(cuts)]


def _in_parts(sentence: str, n: int) -> list[str]:
    """A sentence in about so many parts of about as many characters; joined, they are the sentence."""
    unit = _SPACED_WORD if len(_WORD.findall(sentence)) > _WORDS else _GRAPHEME
    ends = [0, *(found.end() for found in unit.finditer(sentence)), len(sentence)]
    wanted = [len(sentence) * part / n for part in range(n + 1)]
    cuts = dict.fromkeys(min(ends, key=lambda end: abs(end - place)) for place in wanted)
    return [sentence[start:stop] for start, stop in pairwise(cuts)]


def fit(
    count: Count,
    depths: Sequence[float],
    source: FillerSource,
    seed: Sequence[int],
    answers: Sequence[str],
    length: int,
    tokenizer: Any,
) -> Fitted:
    """Fill stretches so that a prompt has an exact number of tokens, or as close as it gets.

    Whole sentences are taken, and the last one is cut after a word, or else a grapheme, and closed with the sign that
    ends the sentence before it. Where neither comes out, a short ending stands before that sign.

    Parameters
    ----------
    count
        Tokens of the prompt with its stretches; without filler it has fewer than ``length``.
    depths
        Where the stretches end, as parts of the filler's tokens, ascending.
    source, seed, answers
        Where the sentences come from, and what those that are made up must not hold.
    length, tokenizer
        Tokens of the whole prompt, and what they are counted with (``tokenizer`` for estimates).

    Raises
    ------
    InputError
        The source has too little text.
    """
    stream = _Stream(source, seed, answers, tokenizer, length)

    def whole(n: int) -> Parts:
        return [part.rstrip() for part in stream.parts(n, depths)]

    def fitted(parts: Parts, n: int) -> Fitted:
        repeated = n - len({piece.strip() for piece in stream.pieces[:n]})
        return Fitted(tuple(parts), n, repeated, stream.left_out)

    n, found = _whole_sentences(lambda n: count(whole(n)), stream, length)
    if found == length:
        return fitted(whole(n), n)
    slot = max((number for number, depth in enumerate(depths, start=1) if depth < 1), default=0)
    best: tuple[int, Parts, int] | None = None
    fewer = range(n, max(n - _FEWER, 0) - 1, -1)
    for (units, endings), first in product((((_WORD, _GRAPHEME), ()), ((_GRAPHEME, _WORD), None)), fewer):
        parts, head = whole(first), stream.parts(first, depths)[slot]
        # Twice what is missing, as sentences may have fewer tokens in their place than alone.
        stream.reach(int(stream.ends[first]) + 2 * (length - found) + _ROOM)
        cut = _Cut(count, parts, slot, head, "".join(stream.pieces[first:]), length, tokenizer)
        for unit in units:
            closest = cut.closest(unit, endings)
            if closest is not None and (best is None or closest[0] < best[0]):
                best = closest[0], [*parts[:slot], closest[1], *parts[slot + 1 :]], first
            if best is not None and best[0] == 0:
                return fitted(best[1], best[2])
    if best is None:
        raise InputError(
            f"the filler {source.name} is too short: it fills a prompt of {length} tokens up to {found}; take a "
            "longer text, or have it repeated with repeated:PATH, which the results then say"
        )
    return fitted(best[1], best[2])


def _whole_sentences(count: Callable[[int], int], stream: _Stream, length: int) -> tuple[int, int]:
    """The largest number of sentences that fit with room for a cut one, and the prompt's tokens with them."""
    n, found = 0, count(0)
    for _ in range(_ROUNDS):
        wanted = int(stream.ends[n]) + length - found
        stream.reach(wanted)
        better = int(np.searchsorted(stream.ends, wanted, side="right")) - 1
        if better == n:
            break
        n, found = better, count(better)
    while found > length or (0 < length - found < _ROOM and n):
        n -= 1
        found = count(n)
    return n, found


class _Cut:
    """The end of a stretch: a part of the sentences that follow, so that the prompt has its tokens."""

    def __init__(
        self, count: Count, parts: Parts, slot: int, head: str, following: str, length: int, tokenizer: Any
    ) -> None:
        self._count, self._parts, self._slot, self._head = count, parts, slot, head
        self._following, self._length, self._tokenizer = following, length, tokenizer
        sign = _TERMINAL.search(head.rstrip()[-2:]) or _TERMINAL.search(following)
        self._mark = sign[0] if sign else "."
        # What stands far from the cut does not change what it adds: a prompt without it is counted much faster.
        self._short = [part[-_NEARBY:] for part in parts]
        self._found = count(parts)
        self._missed = self._found - count([*self._short[:slot], head[-_NEARBY:].rstrip(), *self._short[slot + 1 :]])

    def closest(self, unit: Any, endings: Sequence[str] | None) -> tuple[int, str] | None:
        """How many tokens the prompt is off with the best cut between units, and the stretch; None: too little text."""
        words = (found[0] for found in unit.finditer(self._following))
        wanted = self._length - self._found, self._length
        try:
            text = matched_text(words, self._in_short, wanted, self._tokenizer, joint="", endings=endings).text
        except InputError:
            return None
        stretch = self._closed(text, self._head)
        tokens = self._count([*self._parts[: self._slot], stretch, *self._parts[self._slot + 1 :]])
        return abs(tokens - self._length), stretch

    def _in_short(self, text: str) -> tuple[int, int]:
        parts = [*self._short[: self._slot], self._closed(text, self._head[-_NEARBY:]), *self._short[self._slot + 1 :]]
        tokens = self._count(parts) + self._missed
        return tokens - self._found, tokens

    def _closed(self, text: str, before: str) -> str:
        kept = _LOOSE_END.sub("", text)
        return before + kept + self._mark if kept else before.rstrip()
