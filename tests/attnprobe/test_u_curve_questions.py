"""The questions of the position study: that each has one document with the answer, said once, anywhere among ten."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import attnprobe as ap

QUESTIONS = Path(__file__).parents[2] / "experiments" / "u_curve" / "questions.jsonl"
RECORDS = list(ap.read_records(QUESTIONS))


def gold_positions(prompt: ap.Prompt) -> list[int]:
    """Positions of the documents that hold the answer."""
    assert prompt.answer is not None
    return [place for place, document in enumerate(prompt.documents) if holds(document.text, prompt.answer)]


def holds(text: str, answer: str) -> int:
    return text.casefold().count(answer.casefold())


def test_there_are_24_questions_with_ten_documents() -> None:
    assert [len(record.prompt.documents) for record in RECORDS] == [10] * 24
    assert all(record.answers == (record.prompt.answer,) for record in RECORDS)
    for kind in ("id", "question", "answer"):
        assert len({getattr(record.prompt, kind).casefold() for record in RECORDS}) == 24


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.prompt.id)
def test_the_answer_is_said_once(record: ap.PromptRecord) -> None:
    prompt = record.prompt
    assert prompt.answer is not None
    assert len(gold_positions(prompt)) == 1
    # Names and sources stand in the prompt too, so they may not say it either.
    said = [prompt.question, *prompt.document_names, *(document.text for document in prompt.documents)]
    core = prompt.answer.casefold().removeprefix("a ").removeprefix("the ")
    assert sum(holds(text, core) for text in said) == 1
    assert 2 <= len(prompt.answer.split()) <= 5


def test_the_gold_document_stands_at_every_position() -> None:
    counts = Counter(gold_positions(record.prompt)[0] for record in RECORDS)
    assert set(counts) == set(range(10))
    assert max(counts.values()) - min(counts.values()) <= 1


def test_no_document_is_used_twice() -> None:
    documents = [document for record in RECORDS for document in record.prompt.documents]
    assert len({document.text for document in documents}) == 240
    sentences = [sentence for document in documents for sentence in document.text.split(". ")]
    assert len(set(sentences)) == len(sentences)


def test_names_tell_nothing() -> None:
    """A letter for the question and a digit that is no position: the gold one cannot be told by its name."""
    for record in RECORDS:
        names = record.prompt.document_names
        assert {name[1:] for name in names} == set("0123456789")
        assert len({name[0] for name in names}) == 1
        assert [int(name[1:]) for name in names] != sorted(int(name[1:]) for name in names)
        assert all(document.source is None and document.score is None for document in record.prompt.documents)
    gold = [record.prompt.document_names[gold_positions(record.prompt)[0]][1:] for record in RECORDS]
    assert max(Counter(gold).values()) <= 6


def test_documents_are_of_similar_length() -> None:
    for record in RECORDS:
        words = [len(document.text.split()) for document in record.prompt.documents]
        assert min(words) >= 35
        assert max(words) <= 50
