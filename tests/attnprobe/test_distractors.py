from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from attnprobe.answer_text import holds_answer
from attnprobe.distractors import RANDOM_DISTRACTORS, study_records, with_distractors
from attnprobe.errors import InputError
from attnprobe.readers import read_records

SUBJECTS = ["harbour", "turbine", "orchard", "glacier", "library", "violin", "bakery", "comet"]


def passage(number: int) -> str:
    subject = SUBJECTS[number % len(SUBJECTS)]
    return f"Report {1000 + number} on the {subject} of town {chr(65 + number % 26)}: code zk{number} was noted."


def oracle(path: Path, count: int = 12, extra: Iterable[dict[str, Any]] = ()) -> Path:
    """A file in the Lost-in-the-Middle oracle format."""
    items = [
        {
            "question": f"which code has report {1000 + number}",
            "answers": [f"zk{number}"],
            "ctxs": [{"title": f"t{number}", "text": passage(number), "hasanswer": True, "isgold": True}],
        }
        for number in range(count)
    ]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(item) + "\n" for item in [*items, *extra])
    return path


def item(answers: list[str], text: str) -> dict[str, Any]:
    return {"question": "which", "answers": answers, "ctxs": [{"title": "t", "text": text, "isgold": True}]}


def texts(record: Any) -> list[str]:
    return [document.text for document in record.prompt.documents]


def test_questions_are_filled_up(tmp_path: Path) -> None:
    found = study_records(oracle(tmp_path / "o.jsonl.gz"), 5, seed=3)
    assert len(found.records) == 12
    assert found.warnings == (RANDOM_DISTRACTORS,)
    assert "not comparable" in RANDOM_DISTRACTORS
    for number, record in enumerate(found.records):
        assert texts(record)[0] == passage(number)
        assert record.gold == (0,)
        assert len(set(texts(record))) == 5
        assert not any(holds_answer(text, record.answers) for text in texts(record)[1:])
        assert record.prompt.documents[0].source == f"t{number}"
        assert record.prompt.answer == f"zk{number}"


def test_draws_depend_on_the_seed_and_not_on_the_limit(tmp_path: Path) -> None:
    path = oracle(tmp_path / "o.jsonl.gz")
    all_of_them, three = study_records(path, 5, seed=1), study_records(path, 5, seed=1, limit=3)
    assert three.records == all_of_them.records[:3]
    assert study_records(path, 5, seed=2).records != all_of_them.records
    # Two questions do not draw the same.
    assert len({tuple(texts(record)[1:]) for record in all_of_them.records}) == 12
    # More documents are the same ones and further ones.
    assert [texts(record)[:5] for record in study_records(path, 7, seed=1).records] == list(
        map(texts, all_of_them.records)
    )


def test_what_holds_the_answer_or_repeats_a_document_is_no_distractor(tmp_path: Path) -> None:
    gold = "The tower of Brell was built in the spring of 1871 by masons from the south of the country."
    extra = [
        item(["1871"], gold),
        item(["somewhere"], "It opened in eighteen seventy-one, or in 1871, they say there, far to the east."),
        item(["masons"], gold.replace("1871", "1872") + " Nobody knows more than that."),
        item(["Masons"], gold),
    ]
    path = oracle(tmp_path / "o.jsonl.gz", 6, extra)
    found = study_records(path, 7, seed=0)
    tower = found.records[6]
    assert tower.answers == ("1871",)
    assert sorted(texts(tower)) == sorted([gold, *map(passage, range(6))])
    assert found.rejected["holds_answer"] >= 1
    assert found.rejected["near_duplicate"] >= 1
    with pytest.raises(InputError) as caught:
        study_records(path, 8, seed=0)
    assert "lower n_documents" in str(caught.value)
    assert "distractors it needs" in str(caught.value)


def test_items_without_a_matchable_answer_are_refused_by_name(tmp_path: Path) -> None:
    extra = [item(["the symbol x", "*"], "It is a star."), item([], "Nothing is asked.")]
    found = study_records(oracle(tmp_path / "o.jsonl.gz", 8, extra), 4)
    assert len(found.records) == 8
    assert [text.split(": ")[1:] for text in found.refused] == [
        ['question "line-9"', 'nothing of its answer "*" can be matched'],
        ['question "line-10"', "it has no answer, so no document can be known not to hold it"],
    ]
    assert ":9: " in found.refused[0]
    with pytest.raises(InputError, match=r"every question was refused; .*line-1"):
        study_records(oracle(tmp_path / "none.jsonl.gz", 0, extra[:1]), 1)


def own(path: Path, *counts: int) -> Path:
    items = [
        {
            "id": f"q{number}",
            "documents": [
                {"id": f"d{number}-{place}", "text": passage(10 * number + place), "score": 0.5}
                for place in range(count)
            ],
            "question": "which code",
            "answer": f"zk{10 * number}",
        }
        for number, count in enumerate(counts)
    ]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in items))
    return path


def test_questions_with_enough_documents_stay_as_they_are(tmp_path: Path) -> None:
    path = own(tmp_path / "q.jsonl", 3, 3, 3)
    as_they_are = tuple(read_records(path))
    for n_documents in (None, 3):
        found = study_records(path, n_documents)
        assert found.records == as_they_are
        assert (found.warnings, dict(found.rejected), found.refused) == ((), {}, ())
    assert study_records(path, limit=2).records == as_they_are[:2]


def test_fewer_documents_are_filled_up_and_lose_what_tells_them_apart(tmp_path: Path) -> None:
    found = study_records(own(tmp_path / "q.jsonl", 2, 3, 2), 5)
    for number, record in enumerate(found.records):
        kept = 3 if number == 1 else 2
        assert texts(record)[:kept] == [passage(10 * number + place) for place in range(kept)]
        assert len(record.prompt.documents) == 5
        assert all(document.id is None and document.score is None for document in record.prompt.documents)


def test_mixed_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'q\.jsonl:2: question "q1" has 4 documents, but .*q\.jsonl:1 has 3'):
        study_records(own(tmp_path / "q.jsonl", 3, 4), None)
    with pytest.raises(InputError, match=r'question "q0" has 3 documents, but n_documents is 4'):
        study_records(own(tmp_path / "q.jsonl", 3, 4), 4)
    with pytest.raises(InputError, match="gold_only"):
        study_records(own(tmp_path / "q.jsonl", 6, 6), 4)
    assert len(study_records(own(tmp_path / "q.jsonl", 3, 4), 3, limit=1).records) == 1


def hotpot(path: Path) -> Path:
    items = [
        {
            "_id": f"h{number}",
            "question": "which code",
            "answer": f"zk{100 * number}",
            "supporting_facts": [["t1", 0]],
            "context": [[f"t{place}", [passage(100 * number + (place + 3) % 4)]] for place in range(4)],
        }
        for number in range(5)
    ]
    path.write_text(json.dumps(items))
    return path


def test_gold_only_takes_the_evidence_alone(tmp_path: Path) -> None:
    path = hotpot(tmp_path / "h.json")
    whole = study_records(path, 4)
    assert [record.gold for record in whole.records] == [(1,)] * 5
    assert whole.warnings == ()
    found = study_records(path, 3, gold_only=True)
    for number, record in enumerate(found.records):
        assert record.gold == (0,)
        assert texts(record)[0] == passage(100 * number)
        own_texts = {passage(100 * number + place) for place in range(4)}
        assert not own_texts & set(texts(record)[1:])
    with pytest.raises(InputError, match="give n_documents"):
        study_records(path, gold_only=True)
    with pytest.raises(InputError, match="marks none of its documents"):
        study_records(own(tmp_path / "q.jsonl", 2, 2), 4, gold_only=True)


def test_answers_in_documents_that_are_not_evidence_are_counted(tmp_path: Path) -> None:
    path = hotpot(tmp_path / "h.json")
    items = json.loads(path.read_text())
    items[2]["context"][3][1] = ["Elsewhere, too, zk200 was seen."]
    path.write_text(json.dumps(items))
    assert study_records(path, 4).warnings == (
        "in 1 of 5 questions a document that is not marked as evidence holds an accepted answer",
    )


def test_prompts_of_text_and_wrong_arguments(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"text": "One. Two.", "by": "sentence", "answer": "One"}) + "\n")
    with pytest.raises(InputError, match="a text of the user's own"):
        with_distractors(read_records(path), 3)
    for arguments in ({"n_documents": 0}, {"n_documents": 2, "limit": 0}, {"n_documents": 2, "seed": -1}):
        with pytest.raises(InputError, match="must be at least"):
            study_records(oracle(tmp_path / "o.jsonl.gz"), **arguments)  # type: ignore[arg-type]
