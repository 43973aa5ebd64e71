"""Texts at chosen depths of a filler, in a prompt of an exact number of tokens.

Each text is a document of its own, and so is each stretch of filler between two of them, so that a measurement gives
the mass of every one. By default there are no markers: blank lines part them, as paragraphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnprobe.document import Document
from attnprobe.errors import InputError
from attnprobe.prompt import Prompt
from attnprobe.tasks.cell import Form
from attnprobe.tasks.filler import FillerSource
from attnprobe.tasks.filler_check import check_filler
from attnprobe.tasks.filler_fit import fit


@dataclass(frozen=True)
class Placed:
    """A text at a depth: the part of the filler's tokens that stands before it, 0 to 1; and the span's name."""

    text: str
    depth: float
    name: str


@dataclass(frozen=True)
class Haystack:
    """A prompt with texts in filler.

    Parameters
    ----------
    prompt
        What the model reads.
    places
        The document of each placed text, in the order in which they were given.
    facts
        What was built; ``depths`` as in `Placed`, in real tokens of the prompt.
    """

    prompt: Prompt
    places: tuple[int, ...]
    facts: dict[str, Any]


@dataclass(frozen=True)
class Frame:
    """What a prompt consists of besides filler.

    Filler is given as stretches: one before each text, by depth, and one behind the last.
    """

    placed: tuple[Placed, ...]
    question: str
    form: Form

    @property
    def order(self) -> list[int]:
        """Numbers of the texts by depth; as given where they have the same."""
        return sorted(range(len(self.placed)), key=lambda number: self.placed[number].depth)

    def prompt(self, parts: Sequence[str] = ()) -> Prompt:
        """The prompt with stretches of filler; empty ones are left out."""
        documents = []
        for slot, part in enumerate(parts or [""] * (len(self.placed) + 1)):
            if part:
                documents.append(Document(part, id=self._id(f"filler_{slot}", len(self.placed) + slot)))
            if slot < len(self.placed):
                number = self.order[slot]
                documents.append(Document(self.placed[number].text, id=self._id(self.placed[number].name, number)))
        return self.form.prompt(documents, self.question)

    def require(self, length: int, tokenizer: Any) -> None:
        """Raise InputError if a length is below that of the prompt without filler."""
        shortest = self.prompt().encode(tokenizer).n_tokens
        if length < shortest:
            raise InputError(
                f"a length of {length} tokens is too short: the prompt has {shortest} without any filler, the minimum"
            )

    def places(self, prompt: Prompt) -> tuple[int, ...]:
        """The document of each text in a prompt of this frame."""
        names = [self._id(text.name, number) for number, text in enumerate(self.placed)]
        return tuple(prompt.document_names.index(name) for name in names)

    def _id(self, name: str, number: int) -> str:
        """The name; where ids are shown, a letter that says nothing and is the same wherever the text stands."""
        return name if self.form.markers == "none" else f"text-{chr(ord('a') + number)}"


def in_filler(
    frame: Frame,
    source: FillerSource,
    length: int,
    tokenizer: Any,
    *,
    seed: Sequence[int],
    answers: Sequence[str],
    strict: bool = True,
) -> Haystack:
    """Fill a prompt up to an exact number of tokens, its texts at the sentence boundaries closest to their depths.

    A sentence longer than a quarter of the prompt may be parted between words, or graphemes where there are no spaces.

    Parameters
    ----------
    frame
        The texts, the question and the form.
    source, seed
        Where the filler comes from. A longer one begins with a shorter one of the same seed.
    length
        Tokens of the whole prompt, without the answer. Where no cut of the filler's last sentence gives the very
        number (:func:`attnprobe.tasks.filler_fit.fit`), ``facts["length_hit"]`` is false.
    tokenizer
        Of the model.
    answers
        What the filler must not hold: accepted answers, foils.
    strict
        As in :func:`attnprobe.tasks.filler_check.check_filler`.

    Raises
    ------
    InputError
        The length is below the shortest possible prompt; the filler is too short; or its check refuses it.
    """
    frame.require(length, tokenizer)

    def count(parts: Sequence[str]) -> int:
        return frame.prompt(parts).encode(tokenizer).n_tokens

    depths = [frame.placed[number].depth for number in frame.order]
    fitted = fit(count, depths, source, seed, answers, length, tokenizer)
    checked = check_filler(
        "\n\n".join(fitted.parts),
        answers,
        frame.question,
        " ".join(text.text for text in frame.placed),
        related=source.related,
        strict=strict,
    ).require(source.name)
    prompt = frame.prompt(fitted.parts)
    encoded = prompt.encode(tokenizer)
    places = frame.places(prompt)
    spans = {span.document: span for span in encoded.spans if span.kind == "document"}
    filler = [0 if number in places else spans[number].n_tokens for number in range(len(prompt.documents))]
    total = sum(filler)
    facts = {
        "length": length,
        "prompt_tokens": encoded.n_tokens,
        "length_hit": encoded.n_tokens == length,
        "filler": source.name,
        "filler_about": source.about,
        "filler_tokens": total,
        "filler_sentences": fitted.sentences,
        "filler_repeated_sentences": fitted.repeated,
        "filler_left_out": fitted.left_out,
        "filler_check": checked.facts,
        "depths": [sum(filler[:place]) / total if total else None for place in places],
        "starts": [spans[place].segments[0][0] if spans[place].segments else None for place in places],
    }
    return Haystack(prompt, places, facts)
