"""Prompts of K documents: each question's own, filled up with documents of other questions.

The distractors are drawn at random and are mostly off the topic. Published Lost-in-the-Middle curves come from
distractors that a retriever ranked high for the question: curves made with these are not comparable with them, and
every result says so.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from attnprobe.answer_text import answer_key, any_held, holds_answer, is_blank, text_key
from attnprobe.arguments import whole_number
from attnprobe.document import Document, quoted
from attnprobe.errors import InputError
from attnprobe.readers import Format, PromptRecord, read_records

RANDOM_DISTRACTORS = (
    "distractors were drawn at random from other questions' documents, so they are mostly off the topic: the curve is "
    "not comparable with published ones, whose distractors a retriever had ranked high for the question"
)

REJECTIONS = ("holds_answer", "near_duplicate")

# Two texts are near duplicates if they share at least this part of the shorter one's runs of so many tokens.
_SHARED, _RUN = 0.5, 4


@dataclass(frozen=True)
class StudyRecords:
    """Questions with equally many documents, and what was left out of them.

    Parameters
    ----------
    records
        The questions. Where distractors were added, a question's own documents come first (``gold`` counts them
        from there); documents then have no id and no score, by which the model could tell them apart.
    rejected
        Candidates that were drawn and thrown out, by reason (``REJECTIONS``); empty where none was drawn.
    refused
        Questions left out, each with its place, its id and why.
    warnings
        What a reader of the results must know.
    """

    records: tuple[PromptRecord, ...]
    rejected: Mapping[str, int]
    refused: tuple[str, ...]
    warnings: tuple[str, ...]


def study_records(
    path: str | os.PathLike[str],
    n_documents: int | None = None,
    *,
    limit: int | None = None,
    seed: int = 0,
    gold_only: bool = False,
    format: Format = "auto",
    layout: str = "question_last",
    markers: str = "xml",
    template: str = "auto",
) -> StudyRecords:
    """Read the questions of a study from a file in any format that ``read_records`` knows.

    Parameters
    ----------
    path
        The file.
    n_documents
        Documents a question. Questions that have as many stay as they are; if all have fewer, distractors are
        added (``with_distractors``) from the whole file. None: as many as they have.
    limit
        The first so many questions that are not refused. It does not change the documents of any.
    seed
        Draws the distractors.
    gold_only
        Take of each question only the documents that the file marks as evidence, and fill up from there: the
        way to equally many documents from SQuAD, and from questions with more than ``n_documents``.
    format, layout, markers, template
        As for ``read_records``.

    Raises
    ------
    InputError
        As ``read_records`` and ``with_distractors``; for questions with more documents than ``n_documents``, or
        with different numbers of them, and when every question is refused.
    """
    if limit is not None:
        whole_number("limit", limit, 1)
    if n_documents is not None:
        whole_number("n_documents", n_documents, 1)
    if gold_only and n_documents is None:
        raise InputError("gold_only fills questions up to n_documents; give n_documents, too")
    everything = list(read_records(path, format=format, layout=layout, markers=markers, template=template))
    if gold_only and n_documents is not None:
        return with_distractors(everything, n_documents, seed=seed, limit=limit, gold_only=True)
    refused: list[str] = []
    usable: list[PromptRecord] = []
    for record in everything:
        if limit is not None and len(usable) == limit:
            break
        if blank := [answer for answer in record.answers if is_blank(answer)]:
            refused.append(_refusal(record, f"nothing of its answer {quoted(blank[0])} can be matched"))
        else:
            usable.append(record)
    if not usable:
        raise InputError(f"every question was refused; the first: {refused[0]}")
    K = len(usable[0].prompt.documents) if n_documents is None else n_documents
    fewer = [record for record in usable if len(record.prompt.documents) < K]
    if n_documents is not None and len(fewer) == len(usable):
        return with_distractors(everything, n_documents, seed=seed, limit=limit)
    for record in usable:
        if (count := len(record.prompt.documents)) != K:
            wanted = f"n_documents is {K}" if n_documents is not None else f"{usable[0].where} has {K}"
            raise InputError(
                f"{record.where}: question {quoted(record.prompt.id or '')} has {count} documents, but {wanted}; a "
                "study needs equally many. Leave such questions out, or set n_documents and gold_only to take only the "
                "marked evidence and fill up with other questions' documents"
            )
    warnings = [text] if (text := _answers_elsewhere(usable)) else []
    return StudyRecords(tuple(usable), MappingProxyType({}), tuple(refused), tuple(warnings))


def _answers_elsewhere(records: Sequence[PromptRecord]) -> str | None:
    """A warning about answers in documents that the file does not mark as evidence."""
    marked = [record for record in records if record.gold and record.answers]
    count = sum(
        any(
            place not in record.gold and holds_answer(document.text, record.answers)
            for place, document in enumerate(record.prompt.documents)
        )
        for record in marked
    )
    if not count:
        return None
    return f"in {count} of {len(marked)} questions a document that is not marked as evidence holds an accepted answer"


def with_distractors(
    records: Iterable[PromptRecord],
    n_documents: int,
    *,
    seed: int = 0,
    limit: int | None = None,
    gold_only: bool = False,
) -> StudyRecords:
    """Fill every question up to ``n_documents`` with other questions' documents.

    No distractor holds an accepted answer (``answer_text.holds_answer``), none is the same as or a near duplicate of
    another document of the prompt (half of the shorter one's runs of four tokens in common). What a question gets
    depends on the seed, its id and the pool of documents, not on which other questions are asked for.

    Parameters
    ----------
    records
        Questions; all of their documents are the pool.
    n_documents
        Documents a prompt.
    seed
        Draws the distractors.
    limit
        Make only the first so many.
    gold_only
        Keep of a question's documents only its gold ones; a question without any is refused.

    Returns
    -------
    StudyRecords
        With the warning ``RANDOM_DISTRACTORS``. A question is refused, by name, if an answer normalises to nothing
        (``*``) or it has no answer, as no candidate could be tested then.

    Raises
    ------
    InputError
        For a prompt of the user's own text, a question with more documents than ``n_documents``, too few usable
        candidates, no question left, or arguments out of range.
    """
    n_documents = whole_number("n_documents", n_documents, 1)
    seed = whole_number("seed", seed, 0)
    given = list(records)
    pool = _Pool(given)
    made: list[PromptRecord] = []
    refused: list[str] = []
    rejected = Counter(dict.fromkeys(REJECTIONS, 0))
    for number, record in enumerate(given):
        if limit is not None and len(made) == limit:
            break
        if why := _why_refused(record, gold_only):
            refused.append(_refusal(record, why))
            continue
        made.append(_filled(record, number, pool, n_documents, seed, gold_only, rejected))
    if not made:
        raise InputError(f"no question can be given distractors; the first refused: {(refused or ['none given'])[0]}")
    return StudyRecords(tuple(made), MappingProxyType(dict(rejected)), tuple(refused), (RANDOM_DISTRACTORS,))


class _Pool:
    """Every different document of the questions, with what a draw asks of it."""

    def __init__(self, records: Sequence[PromptRecord]) -> None:
        self.documents: list[Document] = []
        self.keys: list[str] = []
        self.owners: list[set[int]] = []
        self._runs: dict[str, frozenset[tuple[str, ...]]] = {}
        keys: dict[str, str] = {}  # of texts; questions of one article share theirs
        places: dict[str, int] = {}
        for number, record in enumerate(records):
            for document in record.prompt.documents:
                key = keys.get(document.text) or keys.setdefault(document.text, text_key(document.text))
                if not key.strip():
                    continue
                if key not in places:
                    places[key] = len(self.keys)
                    self.documents.append(document)
                    self.keys.append(key)
                    self.owners.append(set())
                self.owners[places[key]].add(number)

    def runs(self, key: str) -> frozenset[tuple[str, ...]]:
        """Runs of ``_RUN`` tokens of a text as written; a shorter text is one run."""
        if key not in self._runs:
            tokens = key.split("\n", 1)[0].split()
            count = max(len(tokens) - _RUN + 1, 1)
            self._runs[key] = frozenset(tuple(tokens[i : i + _RUN]) for i in range(count))
        return self._runs[key]


def _why_refused(record: PromptRecord, gold_only: bool) -> str | None:
    if not record.answers:
        return "it has no answer, so no document can be known not to hold it"
    if blank := [answer for answer in record.answers if is_blank(answer)]:
        return f"nothing of its answer {quoted(blank[0])} can be matched"
    if gold_only and not record.gold:
        return "the file marks none of its documents as evidence"
    return None


def _refusal(record: PromptRecord, why: str) -> str:
    return f"{record.where}: question {quoted(record.prompt.id or '')}: {why}"


def _filled(
    record: PromptRecord,
    number: int,
    pool: _Pool,
    n_documents: int,
    seed: int,
    gold_only: bool,
    rejected: Counter[str],
) -> PromptRecord:
    name = f"{record.where}: question {quoted(record.prompt.id or '')}"
    if record.prompt.given is not None:
        raise InputError(f"{name} is a text of the user's own; distractors can be added to documents only")
    kept = record.gold if gold_only else tuple(range(len(record.prompt.documents)))
    own = [record.prompt.documents[place] for place in kept]
    if len(own) > n_documents:
        hint = "raise n_documents" if gold_only else "raise n_documents, or set gold_only to keep only the evidence"
        raise InputError(f"{name} has {len(own)} documents, more than n_documents={n_documents}; {hint}")
    chosen = list(own)
    held = [text_key(document.text) for document in own]
    answers = [answer_key(answer) for answer in record.answers]
    reasons = Counter[str]()
    for place in _order(len(pool.keys), seed, record):
        if len(chosen) == n_documents:
            break
        if number in pool.owners[place]:
            continue
        reason = _rejection(pool.keys[place], held, answers, pool)
        if reason is not None:
            reasons[reason] += 1
            continue
        chosen.append(pool.documents[place])
        held.append(pool.keys[place])
    rejected.update(reasons)
    if len(chosen) < n_documents:
        thrown = ", ".join(f"{reason} {count}" for reason, count in reasons.items()) or "none"
        raise InputError(
            f"{name}: only {len(chosen) - len(own)} of the {n_documents - len(own)} distractors it needs are in the "
            f"file (thrown out: {thrown}); lower n_documents, or use a file of more questions"
        )
    # Ids and scores that only some documents have would show the model which ones belong to the question.
    documents = tuple(Document(document.text, source=document.source) for document in chosen)
    gold = tuple(kept.index(place) for place in record.gold)
    return replace(record, prompt=replace(record.prompt, documents=documents), gold=gold)


def _order(count: int, seed: int, record: PromptRecord) -> np.ndarray:
    """The order in which a question tries the pool: its own, whatever other questions there are."""
    digest = hashlib.sha256((record.prompt.id or record.prompt.question).encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "little")]).permutation(count)


def _rejection(key: str, held: Sequence[str], answers: Sequence[Sequence[str]], pool: _Pool) -> str | None:
    if any_held(key, answers):
        return "holds_answer"
    runs = pool.runs(key)
    for other in held:
        others = pool.runs(other)
        if len(runs & others) >= _SHARED * min(len(runs), len(others)):
            return "near_duplicate"
    return None
