"""Read prompts from files: our own JSON lines, Lost in the Middle, HotpotQA and SQuAD, gzipped or not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from attnprobe.errors import InputError
from attnprobe.json_file import Entry, check_keys, entries, kind_of, require_object, take
from attnprobe.prompt import Document, Prompt

Format = Literal["auto", "prompts", "lost_in_the_middle", "hotpotqa", "squad"]

_DOCUMENT_KEYS = ("text", "id", "source", "score", "timestamp")
# What holds a record's text, and the keys that may stand beside it.
_PROMPT_KEYS = {
    "documents": ("id", "documents", "question", "answer", "system", "gold"),
    "text": ("id", "text", "spans", "by", "answer"),
    "messages": ("id", "messages", "spans", "by", "answer"),
}


@dataclass(frozen=True)
class PromptRecord:
    """A prompt and what its file says beside it.

    Parameters
    ----------
    prompt
        The prompt; ``prompt.answer`` is the first of ``answers``.
    answers
        Every accepted answer, in the file's order; empty when the file gives none.
    gold
        Indices of the documents that hold the evidence, ascending; empty when the file does not say. They
        are no part of the documents' ids or markers, where the model would see them.
    where
        File and line (or record) that it came from, for messages.
    """

    prompt: Prompt
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    where: str


def read_prompts(
    path: str | os.PathLike[str],
    *,
    format: Format = "auto",
    layout: str = "question_last",
    markers: str = "xml",
    template: str = "auto",
    limit: int | None = None,
) -> Iterator[Prompt]:
    """Yield the prompts of a file, one at a time; JSON lines are never held in memory as a whole.

    The formats, told apart by content, never by suffix; each may be gzipped:

    - ``prompts``: one JSON object a line, ``{"id"?, "documents", "question", "answer"?, "system"?, "gold"?}``; a
      document is its text or ``{"text", "id"?, "source"?, "score"?, "timestamp"?}``, an answer one text or a
      list of them, the first being the one to force; blank ones count as none. ``gold`` names the document that
      holds the answer, or a list of several: each by its place in the list, a whole number from 0, or by its id, a
      text. Or ``{"text", "spans"? | "by"?}`` with spans
      ``[name, start, stop]`` in code points, or ``{"messages", "spans"? | "by"?}`` with spans
      ``[name, message, start, stop]``.
    - ``lost_in_the_middle``: JSON lines with ``question``, ``answers`` and ``ctxs``; a document's source is
      its title. Retrieval scores are left out: the gold document has none, and would stand out.
    - ``hotpotqa``: an array of questions with ``context``, a list of ``[title, sentences]``.
    - ``squad``: v1 or v2. One document for every paragraph of the question's article, named ``p0``, ``p1``,
      ..., in the article's order; an unanswerable question has the answer None.

    An array of records in place of JSON lines is read too, whole. A record without id is called after its
    line (``line-17``) or its place in the array (``record-17``).

    Parameters
    ----------
    path
        The file.
    format
        One of the names above, or ``"auto"``.
    layout, markers, template
        As for ``Prompt``; they do not concern records of ``text`` or ``messages``.
    limit
        Stop after so many prompts; what follows them is not read.

    Raises
    ------
    InputError
        With file and line: a missing, empty, damaged or wrongly encoded file, JSON that does not parse, a
        missing, unknown or mistyped key, an id used twice, or whatever ``Prompt`` refuses. A missing file and
        wrong arguments raise at once, the rest as the prompts are drawn.
    """
    records = read_records(path, format=format, layout=layout, markers=markers, template=template, limit=limit)
    return (record.prompt for record in records)


def read_records(
    path: str | os.PathLike[str],
    *,
    format: Format = "auto",
    layout: str = "question_last",
    markers: str = "xml",
    template: str = "auto",
    limit: int | None = None,
) -> Iterator[PromptRecord]:
    """Yield what ``read_prompts`` yields together with all answers and the places of the gold documents."""
    if format not in get_args(Format):
        raise InputError(f"format {format!r} is unknown; use one of {', '.join(get_args(Format))}")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InputError(f"limit must be a whole number of at least 1, or None for all, not {limit!r}")
    file = Path(path)
    if not file.exists():
        raise InputError(f"{file}: no such file; check the path (it was looked up from {Path.cwd()})")
    if file.is_dir():
        raise InputError(f"{file} is a directory; name one file in it")
    options = {"layout": layout, "markers": markers, "template": template}
    return islice(_records(file, format, options), limit)


def _records(file: Path, format: Format, options: Mapping[str, Any]) -> Iterator[PromptRecord]:
    seen: dict[str | None, str] = {}
    for entry in entries(file):
        require_object(entry.value, entry.where)
        if format == "auto":
            format = _detect(entry.value)
        for record in _CONVERTERS[format](entry, options):
            known = record.prompt.id
            if known in seen:
                raise InputError(f'{record.where}: id "{known}" was already used at {seen[known]}; make the ids unique')
            seen[known] = record.where
            yield record
    if not seen:
        raise InputError(f"{file} holds no prompts; it is an empty array or an empty data set")


def _detect(value: Mapping[str, Any]) -> Format:
    """The format of a file, from its first record."""
    if "ctxs" in value:
        return "lost_in_the_middle"
    if "data" in value:
        return "squad"
    if "context" in value and ("_id" in value or "supporting_facts" in value):
        return "hotpotqa"
    return "prompts"


def _from_prompts(entry: Entry, options: Mapping[str, Any]) -> Iterator[PromptRecord]:
    value, where = entry.value, entry.where
    bodies = [key for key in _PROMPT_KEYS if key in value]
    if len(bodies) > 1:
        raise InputError(f'{where}: both "{bodies[0]}" and "{bodies[1]}" are given; keep one of them')
    check_keys(value, _PROMPT_KEYS[bodies[0] if bodies else "documents"], where)
    answers = _answers(value, "answer", where)
    answer, identity = (answers[0] if answers else None), _identity(value, "id", entry)
    gold: tuple[int, ...] = ()
    try:
        if bodies in (["text"], ["messages"]):
            prompt = replace(_from_body(value, bodies[0], identity, where), answer=answer)
        else:
            documents = take(value, "documents", list, where)
            prompt = Prompt(
                documents=[_document(item, f"{where}: document {i}") for i, item in enumerate(documents)],
                question=take(value, "question", str, where),
                system=take(value, "system", str, where, required=False),
                answer=answer,
                id=identity,
                **options,
            )
            gold = _gold(value, prompt, where)
    except InputError as error:
        raise _at(where, error) from error
    yield PromptRecord(prompt, answers, gold, where)


def _gold(value: Mapping[str, Any], prompt: Prompt, where: str) -> tuple[int, ...]:
    """Places of the documents that the key ``gold`` names, ascending."""
    given = take(value, "gold", (int, str, list), where, required=False)
    ids = {document.id: place for place, document in enumerate(prompt.documents) if document.id is not None}
    places = set()
    for one in given if isinstance(given, list) else [] if given is None else [given]:
        place = ids.get(one) if isinstance(one, str) else one if type(one) is int else None
        if place is None or not 0 <= place < len(prompt.documents):
            raise InputError(
                f'{where}: "gold" names no document: {json.dumps(one)}; give its place in the list, a whole number '
                f"from 0 to {len(prompt.documents) - 1}, or its id, a text"
            )
        places.add(place)
    return tuple(sorted(places))


def _from_body(value: Mapping[str, Any], body: str, identity: str, where: str) -> Prompt:
    """A prompt from the user's own text or messages, with the user's own spans."""
    names = ["name", "start", "stop"] if body == "text" else ["name", "message", "start", "stop"]
    spans = take(value, "spans", list, where, required=False)
    for i, span in enumerate(spans or ()):
        types = [type(part) for part in span] if isinstance(span, list) else []
        if types != [str] + [int] * (len(names) - 1):
            raise InputError(f"{where}: span {i} must be [{', '.join(names)}], a text and whole numbers")
    make = Prompt.from_text if body == "text" else Prompt.from_messages
    return make(
        take(value, body, str if body == "text" else list, where),
        spans=None if spans is None else [tuple(span) for span in spans],
        by=take(value, "by", str, where, required=False),
        id=identity,
    )


def _document(item: Any, where: str) -> str | Document:
    if isinstance(item, str):
        return item
    if not isinstance(item, dict):
        raise InputError(f"{where} must be a text or an object with a text, not {kind_of(item)}")
    check_keys(item, _DOCUMENT_KEYS, where)
    identity = take(item, "id", (str, int), where, required=False)
    text = take(item, "text", str, where)
    source = take(item, "source", str, where, required=False)
    score = take(item, "score", (int, float), where, required=False)
    timestamp = take(item, "timestamp", (str, int, float), where, required=False)
    try:
        return Document(text, None if identity is None else str(identity), source, score, timestamp)
    except InputError as error:
        raise InputError(f"{where}: {str(error).removeprefix('document: ')}") from error


def _from_lost_in_the_middle(entry: Entry, options: Mapping[str, Any]) -> Iterator[PromptRecord]:
    value, where = entry.value, entry.where
    passages = take(value, "ctxs", list, where)
    documents, gold = [], []
    for i, passage in enumerate(passages):
        here = f"{where}: document {i}"
        require_object(passage, here)
        text = take(passage, "text", str, here)
        documents.append({"text": text, "source": take(passage, "title", str, here, required=False)})
        if passage.get("isgold") is True:
            gold.append(i)
    yield _foreign(entry, options, documents, gold, _answers(value, "answers", where), "id")


def _from_hotpotqa(entry: Entry, options: Mapping[str, Any]) -> Iterator[PromptRecord]:
    value, where = entry.value, entry.where
    facts = take(value, "supporting_facts", list, where, required=False) or []
    titles = {fact[0] for fact in facts if isinstance(fact, list) and fact and isinstance(fact[0], str)}
    documents, gold = [], []
    for i, paragraph in enumerate(take(value, "context", list, where)):
        match paragraph:
            case [str(title), list(sentences)] if all(isinstance(sentence, str) for sentence in sentences):
                documents.append({"text": _join(sentences), "source": title})
            case _:
                raise InputError(f"{where}: document {i} must be [title, [sentence, ...]]")
        if title in titles:
            gold.append(i)
    yield _foreign(entry, options, documents, gold, _answers(value, "answer", where), "_id")


def _join(sentences: list[str]) -> str:
    """Sentences as they are; a space where an edition of the data has none between two of them."""
    text = ""
    for sentence in sentences:
        gap = text and sentence and not text[-1].isspace() and not sentence[0].isspace()
        text += " " + sentence if gap else sentence
    return text


def _from_squad(entry: Entry, options: Mapping[str, Any]) -> Iterator[PromptRecord]:
    number = 0
    for a, article in enumerate(take(entry.value, "data", list, entry.where)):
        here = f"{entry.where}: article {a}"
        require_object(article, here)
        title = take(article, "title", str, here, required=False)
        paragraphs = take(article, "paragraphs", list, here)
        for p, paragraph in enumerate(paragraphs):
            require_object(paragraph, f"{here}: paragraph {p}")
        documents = [
            {"text": take(paragraph, "context", str, f"{here}: paragraph {p}"), "id": f"p{p}", "source": title}
            for p, paragraph in enumerate(paragraphs)
        ]
        for p, paragraph in enumerate(paragraphs):
            for q, item in enumerate(take(paragraph, "qas", list, f"{here}: paragraph {p}")):
                number += 1
                question = Entry(item, f"{here}: paragraph {p}: question {q}", f"question-{number}")
                require_object(item, question.where)
                found = take(item, "answers", list, question.where, required=False) or []
                for i, answer in enumerate(found):
                    require_object(answer, f"{question.where}: answer {i}")
                answers = tuple(take(answer, "text", str, question.where) for answer in found)
                yield _foreign(question, options, documents, [p], answers, "id")


def _foreign(
    entry: Entry,
    options: Mapping[str, Any],
    documents: list[dict[str, Any]],
    gold: list[int],
    answers: tuple[str, ...],
    id_key: str,
) -> PromptRecord:
    """A record of a published data set, with its documents in our own format; further keys are ignored."""
    identity = _identity(entry.value, id_key, entry)
    try:
        prompt = Prompt(
            documents=[_document(item, f"{entry.where}: document {i}") for i, item in enumerate(documents)],
            question=take(entry.value, "question", str, entry.where),
            answer=answers[0] if answers else None,
            id=identity,
            **options,
        )
    except InputError as error:
        raise _at(entry.where, error) from error
    return PromptRecord(prompt, answers, tuple(gold), entry.where)


_CONVERTERS = {
    "prompts": _from_prompts,
    "lost_in_the_middle": _from_lost_in_the_middle,
    "hotpotqa": _from_hotpotqa,
    "squad": _from_squad,
}


def _at(where: str, error: InputError) -> InputError:
    """The error with its place in front, once."""
    message = str(error)
    return error if message.startswith(where) else InputError(f"{where}: {message}")


def _identity(value: Mapping[str, Any], key: str, entry: Entry) -> str:
    identity = take(value, key, (str, int), entry.where, required=False)
    return entry.fallback_id if identity is None else str(identity)


def _answers(value: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    given = take(value, key, (str, list), where, required=False)
    answers = (given,) if isinstance(given, str) else tuple(given or ())
    if not all(isinstance(answer, str) for answer in answers):
        raise InputError(f'{where}: "{key}" must hold texts only; put numbers in quotes')
    return tuple(answer for answer in answers if answer.strip())
