"""Needles: short facts with a question, an answer, a wrong answer of the same form and texts on the same topic."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnprobe.answer_text import holds_answer, is_blank
from attnprobe.document import check_text, quoted
from attnprobe.errors import InputError
from attnprobe.json_file import Entry, check_keys, entries, require_object, take
from attnprobe.tasks.cell import Asked
from attnprobe.tasks.scoring import score_answer

BUILT_IN = Path(__file__).with_name("needles.jsonl")

_KEYS = (
    *("id", "domain", "question", "question_all", "answer", "accepted", "foil", "pattern", "subject"),
    *("other_subjects", "other_answers", "wordings", "distractors", "terms"),
)


@dataclass(frozen=True)
class Terms:
    """Words of a domain, singular and without article: people, things; and places with their preposition."""

    people: tuple[str, ...] = ()
    things: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class NeedleItem:
    """A fact that can be hidden in other text.

    Parameters
    ----------
    id, domain
        The item's name, unique in its file, and what it is about.
    wordings
        The fact in different words; what a needle with another key or value is to be made of holds ``subject`` and
        ``answer`` once each.
    question, answer, accepted, foil, pattern
        As in :class:`attnprobe.tasks.cell.Asked`; the foil takes the answer's place in a contradicting needle.
    distractors
        Texts on the same topic that hold neither an accepted answer nor a foil.
    subject, other_subjects
        What the fact is about, and what else it could be about (needles with other keys).
    other_answers
        Further values of the same form (needles with other values), none of them in a distractor.
    question_all
        Asks for every value.
    terms
        The domain's words, for filler on the same topic.
    """

    id: str
    domain: str
    wordings: tuple[str, ...]
    question: str
    answer: str
    foil: str
    accepted: tuple[str, ...] = ()
    distractors: tuple[str, ...] = ()
    subject: str | None = None
    other_subjects: tuple[str, ...] = ()
    other_answers: tuple[str, ...] = ()
    question_all: str | None = None
    pattern: str | None = None
    terms: Terms = field(default_factory=Terms)

    def __post_init__(self) -> None:
        _check(self)

    @property
    def answers(self) -> tuple[str, ...]:
        """Every accepted answer, the one to force first."""
        return tuple(dict.fromkeys((self.answer, *self.accepted)))

    @property
    def asked(self) -> Asked:
        """The question with its answers."""
        return Asked(self.id, self.question, self.answer, self.answers, self.foil, self.pattern)

    def wording(self, trial: int) -> str:
        """The wording of a trial: they take turns."""
        return self.wordings[trial % len(self.wordings)]

    def stating(self, trial: int, answer: str, subject: str | None = None) -> str:
        """A trial's wording with another answer, and about another subject where one is given.

        Raises ``InputError`` where the wording does not hold what is to be replaced exactly once.
        """
        text = self.wording(trial)
        for old, new in ((self.subject or "", subject), (self.answer, answer)):
            if new is None:
                continue
            if not old or text.count(old) != 1:
                raise InputError(
                    f"item {quoted(self.id)}: wording {trial % len(self.wordings)} holds {quoted(old)} "
                    f"{text.count(old) if old else 0} times, not once, so no needle with another value can be made of "
                    "it; give a subject, and write it and the answer once in every wording"
                )
            text = text.replace(old, new)
        return text


def read_items(path: str | os.PathLike[str] | None = None, ids: Sequence[str] | None = None) -> tuple[NeedleItem, ...]:
    """Read needles from JSON lines; the built-in ones where no file is given.

    Parameters
    ----------
    path
        One object a line, with the fields of `NeedleItem`; ``id``, ``question``, ``answer``, ``foil`` and ``wordings``
        are needed. None: the built-in items.
    ids
        Take only these, in this order.

    Raises
    ------
    InputError
        With file and line: JSON that does not parse, a missing, unknown or mistyped key, an id used twice, and
        whatever `NeedleItem` refuses.
    """
    file = BUILT_IN if path is None else Path(path)
    found: dict[str, NeedleItem] = {}
    for entry in entries(file):
        item = _item(entry)
        if item.id in found:
            raise InputError(f"{entry.where}: the id {quoted(item.id)} is used twice; make the ids unique")
        found[item.id] = item
    if ids is None:
        return tuple(found.values())
    if unknown := [name for name in ids if name not in found]:
        raise InputError(f"{file} has no item {quoted(unknown[0])}; its items are {', '.join(found)}")
    return tuple(found[name] for name in ids)


def _item(entry: Entry) -> NeedleItem:
    value, where = entry.value, entry.where
    require_object(value, where)
    check_keys(value, _KEYS, where)
    terms = take(value, "terms", dict, where, required=False) or {}
    check_keys(terms, ("people", "things", "places"), f"{where}: terms")
    try:
        return NeedleItem(
            id=take(value, "id", str, where),
            domain=take(value, "domain", str, where, required=False) or "",
            wordings=_texts(value, "wordings", where, required=True),
            question=take(value, "question", str, where),
            answer=take(value, "answer", str, where),
            foil=take(value, "foil", str, where),
            accepted=_texts(value, "accepted", where),
            distractors=_texts(value, "distractors", where),
            subject=take(value, "subject", str, where, required=False),
            other_subjects=_texts(value, "other_subjects", where),
            other_answers=_texts(value, "other_answers", where),
            question_all=take(value, "question_all", str, where, required=False),
            pattern=take(value, "pattern", str, where, required=False),
            terms=Terms(**{name: _texts(terms, name, f"{where}: terms") for name in ("people", "things", "places")}),
        )
    except InputError as error:
        message = str(error)
        raise error if message.startswith(where) else InputError(f"{where}: {message}") from error


def _texts(value: dict[str, Any], key: str, where: str, required: bool = False) -> tuple[str, ...]:
    found = take(value, key, list, where, required=required) or []
    if not all(isinstance(text, str) for text in found):
        raise InputError(f'{where}: "{key}" must hold texts only; put numbers in quotes')
    return tuple(found)


def _check(item: NeedleItem) -> None:
    """Raise InputError for an item whose question could be answered from a distractor, or not at all."""
    name = f"item {quoted(item.id)}"
    texts = {
        "wording": item.wordings,
        "distractor": item.distractors,
        "accepted answer": item.answers,
        "other answer": item.other_answers,
        "foil": (item.foil,),
        "question": (item.question,),
    }
    for kind, values in texts.items():
        for number, text in enumerate(values):
            check_text(text, f"{name}: {kind} {number}")
            if not text.strip():
                raise InputError(f"{name}: {kind} {number} is empty; leave it out or write it")
    if not item.id.strip() or "/" in item.id:
        raise InputError(f'{name}: the id must not be empty or hold "/", as it is part of the names of cells')
    if not item.wordings:
        raise InputError(f"{name} has no wording; give at least one")
    for answer in (*item.answers, item.foil, *item.other_answers):
        if is_blank(answer):
            raise InputError(f"{name}: nothing of the answer {quoted(answer)} can be matched; give words or a number")
    if item.pattern is not None and not score_answer(item.answer, item.answers, pattern=item.pattern).pattern:
        raise InputError(f"{name}: its pattern {quoted(item.pattern)} does not find its answer {quoted(item.answer)}")
    wrong = (item.foil, *item.other_answers)
    for value in wrong:
        if holds_answer(value, item.answers) or holds_answer(item.answer, [value]):
            raise InputError(
                f"{name}: the answer {quoted(item.answer)} and {quoted(value)} hold each other; change one"
            )
    for number, text in enumerate(item.distractors):
        if held := [value for value in (*item.answers, *wrong) if holds_answer(text, [value])]:
            raise InputError(f"{name}: distractor {number} holds {quoted(held[0])}; leave it out or rewrite it")
