"""Sentences without end from a small grammar, none of them twice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_SLOT = re.compile(r"\{(\w+)\}")
_BEFORE_VOWEL = re.compile(r"\b([Aa]) (?=[aeiou])")
_SHORTEST, _LONGEST = 4, 8  # sentences of a paragraph
_FRUITLESS = 200  # draws in a row that give sentences used before: the grammar has nothing more


@dataclass(frozen=True)
class Grammar:
    """Sentence patterns with slots, and the words that may stand in each.

    Parameters
    ----------
    patterns
        Sentences with ``{slot}``; two slots of one name take different words.
    words
        What may stand in a slot.
    topic
        The slot that keeps its word through a paragraph.
    """

    patterns: tuple[str, ...]
    words: Mapping[str, Sequence[str]]
    topic: str

    def paragraphs(self, rng: np.random.Generator) -> Iterator[list[str]]:
        """Paragraphs of four to eight sentences, until nearly every sentence of the grammar has been used."""
        used: set[str] = set()
        subjects = self.words[self.topic]
        while True:
            subject = subjects[int(rng.integers(len(subjects)))]
            paragraph: list[str] = []
            wanted = int(rng.integers(_SHORTEST, _LONGEST + 1))
            fruitless = 0
            last = -1
            while len(paragraph) < wanted:
                number = int(rng.integers(len(self.patterns)))
                sentence = self._sentence(number, subject, rng)
                if number == last or sentence in used:
                    fruitless += 1
                    if fruitless == _FRUITLESS:
                        return
                    continue
                fruitless, last = 0, number
                used.add(sentence)
                paragraph.append(sentence)
            yield paragraph

    def _sentence(self, number: int, subject: str, rng: np.random.Generator) -> str:
        taken = {subject}

        def word(match: re.Match[str]) -> str:
            if match[1] == self.topic:
                return subject
            choices = self.words[match[1]]
            start = int(rng.integers(len(choices)))
            for step in range(len(choices)):
                found = choices[(start + step) % len(choices)]
                if found not in taken:
                    break
            taken.add(found)
            return found

        text = _SLOT.sub(word, self.patterns[number])
        text = _BEFORE_VOWEL.sub(r"\1n ", text)
        return text[0].upper() + text[1:]
