"""Filler: text without end, or as long as a file, that has nothing to do with a task, or only with its topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from attnprobe.document import check_text, quoted
from attnprobe.errors import InputError
from attnprobe.split import split_paragraphs, split_sentences
from attnprobe.tasks.filler_grammar import Grammar
from attnprobe.tasks.filler_prose import GEOLOGY, domain_grammar
from attnprobe.tasks.items import NeedleItem

KINDS = ("prose", "same_domain", "repeated", "shuffled", "file:PATH", "repeated:PATH", "shuffled:PATH")

_BLOCK = 400  # sentences of prose that are shuffled together

Seed = Sequence[int]


@dataclass(frozen=True)
class FillerSource:
    """Where filler comes from.

    Parameters
    ----------
    name
        The kind; of a file, without the folder that it lies in.
    about
        What it is, for results.
    pieces
        The filler for a seed: sentences in order, each with the white space behind it, so that joined they are the
        text. The same ones for the same seed; more are only drawn as needed.
    drawn
        Made up sentence by sentence, so that one which holds an answer may be left out. A file is taken as it is.
    related
        On the topic of the task.
    """

    name: str
    about: str
    pieces: Callable[[Seed], Iterator[str]]
    drawn: bool = False
    related: bool = False


def filler_source(kind: str, item: NeedleItem | None = None) -> FillerSource:
    """The source of a kind of filler.

    Parameters
    ----------
    kind
        ``prose``: built-in sentences on geology, without end, none twice, without digits. ``same_domain``: sentences
        on the item's own domain in between its distractors; they hold no answer and no foil. ``repeated``: one
        paragraph of prose again and again. ``shuffled``: the sentences of prose in random order. ``file:PATH``: a text
        file as it is, from a paragraph that the seed draws, once around. ``repeated:PATH``: the same, again and again.
        ``shuffled:PATH``: its sentences in random order, once.
    item
        For ``same_domain``.

    Raises
    ------
    InputError
        The kind is unknown, the file cannot be used, or the item has no terms to make sentences of.
    """
    if kind == "prose":
        return FillerSource(kind, "built-in prose on geology", _prose, drawn=True)
    if kind == "repeated":
        return FillerSource(kind, "one paragraph of built-in prose on geology, repeated", _repeated, drawn=True)
    if kind == "shuffled":
        about = "sentences of built-in prose on geology in random order"
        return FillerSource(kind, about, _shuffled, drawn=True)
    if kind == "same_domain":
        return _same_domain(item)
    how, _, path = kind.partition(":")
    if path and how in ("file", "repeated", "shuffled"):
        file = Path(path).expanduser()
        paragraphs = file_paragraphs(file)
        again = {"file": "", "repeated": ", repeated", "shuffled": ", its sentences in random order"}[how]
        return FillerSource(f"{how}:{file.name}", f"the file {file}{again}", partial(_of_file, how, paragraphs))
    raise InputError(f"filler {kind!r} is unknown; choose one of {', '.join(KINDS)}")


def _sentences(grammar: Grammar, rng: np.random.Generator) -> Iterator[str]:
    for paragraph in grammar.paragraphs(rng):
        yield from _spaced(paragraph)


def _spaced(paragraph: Sequence[str]) -> Iterator[str]:
    for sentence in paragraph[:-1]:
        yield f"{sentence} "
    yield f"{paragraph[-1]}\n\n"


def _prose(seed: Seed) -> Iterator[str]:
    return _sentences(GEOLOGY, np.random.default_rng(list(seed)))


def _repeated(seed: Seed) -> Iterator[str]:
    paragraph = next(GEOLOGY.paragraphs(np.random.default_rng(list(seed))))
    return cycle(tuple(_spaced(paragraph)))


def _shuffled(seed: Seed) -> Iterator[str]:
    rng = np.random.default_rng([*seed, 1])
    sentences = _prose(seed)
    while block := list(islice(sentences, _BLOCK)):
        for number in rng.permutation(len(block)):
            yield f"{block[number].strip()} "


def _same_domain(item: NeedleItem | None) -> FillerSource:
    if item is None or not all((item.terms.people, item.terms.things, item.terms.places)):
        name = "this task" if item is None else f"item {quoted(item.id)}"
        raise InputError(
            f"filler 'same_domain' is made of an item's terms, and {name} has none; give the item people, things and "
            "places, or use file:PATH with a text on its topic"
        )
    about = f"built-in sentences on {item.domain or 'the domain of the needle'}, with the item's distractors"
    return FillerSource("same_domain", about, partial(_domain_pieces, item), drawn=True, related=True)


def _domain_pieces(item: NeedleItem, seed: Seed) -> Iterator[str]:
    """Paragraphs of the domain, a distractor at the end of each as long as there are any."""
    rng = np.random.default_rng(list(seed))
    distractors = [item.distractors[number] for number in rng.permutation(len(item.distractors))]
    for paragraph in domain_grammar(item.terms).paragraphs(rng):
        if distractors:
            paragraph.append(distractors.pop())
        yield from _spaced(paragraph)


def _of_file(how: str, paragraphs: tuple[tuple[str, ...], ...], seed: Seed) -> Iterator[str]:
    rng = np.random.default_rng(list(seed))
    if how == "shuffled":
        sentences = [sentence for paragraph in paragraphs for sentence in paragraph]
        for number in rng.permutation(len(sentences)):
            yield f"{sentences[number].rstrip()} "
        return
    first = int(rng.integers(len(paragraphs)))
    while True:
        for paragraph in (*paragraphs[first:], *paragraphs[:first]):
            yield from paragraph
        if how == "file":
            return


def file_paragraphs(file: Path) -> tuple[tuple[str, ...], ...]:
    """The sentences of a text file by paragraph, byte for byte but for a blank line behind the last.

    Raises ``InputError`` if it cannot be read, is not UTF-8, is empty, or holds NUL.
    """
    try:
        return _file_paragraphs(file, file.stat().st_mtime_ns)
    except OSError as error:
        raise InputError(f"the filler {file} cannot be read: {error.strerror or error}") from error


@lru_cache(maxsize=4)
def _file_paragraphs(file: Path, _changed: int) -> tuple[tuple[str, ...], ...]:
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"the filler {file} is not UTF-8 at byte {error.start}; save it as UTF-8") from error
    check_text(text, f"the filler {file}")
    if not text.strip():
        raise InputError(f"the filler {file} is empty; name a file that holds text")
    if len(text[len(text.rstrip()) :].splitlines()) < 2:
        text = text.rstrip() + "\n\n"
    paragraphs = (text[start:stop] for start, stop in split_paragraphs(text))
    return tuple(tuple(paragraph[start:stop] for start, stop in split_sentences(paragraph)) for paragraph in paragraphs)
