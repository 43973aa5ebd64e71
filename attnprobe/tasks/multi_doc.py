"""Multi-document questions from files: the gold document at chosen places among the distractors."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from attnprobe.answer_text import holds_answer, is_blank
from attnprobe.arguments import whole_number
from attnprobe.distractors import with_distractors
from attnprobe.document import Document, quoted
from attnprobe.errors import InputError
from attnprobe.readers import Format, PromptRecord, read_records
from attnprobe.tasks.cell import Asked, Built, CellSpec, Form, closed_book, draw_seed, oracle, unique
from attnprobe.terminal import count as count_of
from attnprobe.terminal import named

TASK = "multi_doc"


@dataclass(frozen=True)
class MultiDoc:
    """The cells of a file, and what was left out of it.

    Parameters
    ----------
    specs
        The cells.
    refused
        Questions left out: where they stand, their id, and why.
    rejected
        Distractors thrown out, by reason: ``own_holds_answer`` (of the question's own, not marked as evidence, but
        holding an accepted answer); ``holds_answer`` and ``near_duplicate`` (drawn from other questions).
    warnings
        What a reader of results must know.
    """

    specs: tuple[CellSpec, ...]
    refused: tuple[str, ...]
    rejected: Mapping[str, int]
    warnings: tuple[str, ...]


def multi_doc(
    path: str | os.PathLike[str],
    n_documents: int,
    *,
    positions: Sequence[int] | None = None,
    limit: int | None = None,
    trials: int = 1,
    shuffle: bool = True,
    seed: int = 0,
    format: Format = "auto",
    form: Form | None = None,
    with_baselines: bool = True,
) -> MultiDoc:
    """Cells with the gold document of each question at each position; conditions are ``{"position": p}``.

    A question keeps its own distractors, in the file's order, as far as they hold no accepted answer and there is room;
    what is missing is drawn from other questions' documents (:func:`attnprobe.distractors.with_distractors`). Where a
    question has several gold documents they stay together, and the position is the first one's.

    Parameters
    ----------
    path, format
        A file that :func:`attnprobe.readers.read_records` reads: Lost in the Middle, HotpotQA, SQuAD, JSON lines. Where
        it marks no gold document, the only one that holds an accepted answer is taken for it, and a warning says so.
    n_documents
        Documents a prompt.
    positions
        Places of the gold document from 0; None for all that every question has.
    limit
        The first so many questions that are not refused.
    trials, shuffle, seed
        A trial shuffles the distractors, in the same way for every position; without ``shuffle`` they keep their order
        (best first, in files of a retriever), and one trial is all there is.
    form
        How prompts are written; None for numbered documents and the question last.
    with_baselines
        Add ``{"baseline": "closed_book"}`` and ``{"baseline": "oracle"}``, the gold documents alone.

    Raises
    ------
    InputError
        As the readers; no question is usable, a position is out of range, or too few distractors can be found.
    """
    count = whole_number("n_documents", n_documents, 1)
    if whole_number("trials", trials, 1) > 1 and not shuffle:
        raise InputError("without shuffle all trials are the same; set trials to 1, or shuffle")
    if limit is not None:
        whole_number("limit", limit, 1)
    if positions is not None and not positions:
        raise InputError("positions is empty; name some, or leave it out for all")
    form = form or Form(markers="numbered")
    refused: list[str] = []
    rejected: Counter[str] = Counter()
    usable: list[PromptRecord] = []
    unmarked: list[bool] = []
    for read in read_records(path, format=format):
        record = _with_gold(read)
        if why := _why_refused(record, count):
            refused.append(f"{record.where}: question {quoted(record.prompt.id or '')}: {why}")
        else:
            usable.append(_gold_first(record, count, rejected))
            unmarked.append(not read.gold)
    if not usable:
        raise InputError(f"{path}: every question was refused; the first: {refused[0]}")
    chosen = usable[:limit]
    warnings: tuple[str, ...] = ()
    if any(unmarked[:limit]):
        what = count_of(sum(unmarked[:limit]), "question marks no evidence", "questions mark no evidence")
        warnings = (f"{what}; the only document that holds the answer was taken for it",)
    if any(len(record.prompt.documents) < count for record in chosen):
        filled = with_distractors(usable, count, seed=seed, limit=limit)
        chosen, warnings = list(filled.records), (*warnings, *filled.warnings)
        rejected.update(filled.rejected)
    twice = [text for text, times in Counter(record.prompt.question for record in chosen).items() if times > 1]
    if twice:
        what = count_of(len(twice), "question stands", "questions stand")
        warnings = (*warnings, f"{what} in the file more than once, each time as an item of its own: {named(twice, 3)}")
    most = count - max(len(record.gold) for record in chosen) + 1
    places = range(most) if positions is None else [whole_number("position", place, 0) for place in positions]
    if out := [place for place in places if place >= most]:
        raise InputError(
            f"position {out[0]} is not possible: the gold documents of {count} can begin at 0 to {most - 1} in all "
            "questions; lower it or raise n_documents"
        )
    specs = []
    for record in chosen:
        asked = Asked(record.prompt.id or "", record.prompt.question, record.answers[0], record.answers)
        gold = record.prompt.documents[: len(record.gold)]
        for trial in range(trials):
            specs += [
                CellSpec(
                    TASK,
                    asked,
                    {"position": place},
                    trial,
                    MultiDocPrompt(record, place, trial if shuffle else None, seed, form),
                )
                for place in places
            ]
        if with_baselines:
            specs += [closed_book(TASK, asked, form), oracle(TASK, asked, gold, form)]
    return MultiDoc(unique(specs), tuple(refused), MappingProxyType(dict(rejected)), warnings)


def _with_gold(record: PromptRecord) -> PromptRecord:
    """The question; where the file marks no evidence, with the only document that holds an accepted answer as such."""
    if record.gold or any(map(is_blank, record.answers)):
        return record
    documents = record.prompt.documents
    holding = [place for place, document in enumerate(documents) if holds_answer(document.text, record.answers)]
    return replace(record, gold=tuple(holding)) if len(holding) == 1 else record


def _why_refused(record: PromptRecord, count: int) -> str | None:
    """Why a question cannot be asked, or None."""
    if record.prompt.given is not None:
        return "it is a text of the user's own, without documents"
    if not record.answers:
        return "it has no answer"
    if blank := [answer for answer in record.answers if is_blank(answer)]:
        return f"nothing of its answer {quoted(blank[0])} can be matched"
    if not record.gold:
        return "the file marks none of its documents as evidence, and not exactly one of them holds the answer"
    if len(record.gold) > count:
        return f"it has {len(record.gold)} gold documents, more than n_documents={count}"
    return None


def _gold_first(record: PromptRecord, count: int, rejected: Counter[str]) -> PromptRecord:
    """The question with its gold documents in front, and behind them distractors of its own without the answer."""
    documents = record.prompt.documents
    gold = [documents[place] for place in record.gold]
    others = [document for place, document in enumerate(documents) if place not in record.gold]
    kept = [document for document in others if not holds_answer(document.text, record.answers)]
    rejected["own_holds_answer"] += len(others) - len(kept)
    # Ids and scores that only some documents have would tell the model which ones belong together.
    chosen = [Document(document.text, source=document.source) for document in [*gold, *kept][:count]]
    prompt = replace(record.prompt, documents=tuple(chosen))
    return replace(record, prompt=prompt, gold=tuple(range(len(gold))))


@dataclass(frozen=True)
class MultiDocPrompt:
    """The recipe of one cell: the gold documents of a record, which come first in it, among its others."""

    record: PromptRecord
    position: int
    trial: int | None
    seed: int
    form: Form

    def __call__(self, tokenizer: Any) -> Built:
        """Build the prompt."""
        n_gold = len(self.record.gold)
        documents = self.record.prompt.documents
        others = list(documents[n_gold:])
        if self.trial is not None:
            rng = np.random.default_rng(draw_seed(self.seed, self.record.prompt.id or "", self.trial))
            others = [others[place] for place in rng.permutation(len(others))]
        others[self.position : self.position] = documents[:n_gold]
        facts = {**self.form.facts, "n_documents": len(documents), "shuffled": self.trial is not None}
        prompt = self.form.prompt(others, self.record.prompt.question)
        return Built(prompt, tuple(range(self.position, self.position + n_gold)), facts)
