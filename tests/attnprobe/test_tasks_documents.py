from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_tokenizers import metaspace

from attnprobe.answer_text import holds_answer
from attnprobe.errors import InputError
from attnprobe.tasks.cell import TaskCell
from attnprobe.tasks.cell_notes import needle_notes, trial_notes
from attnprobe.tasks.items import NeedleItem, read_items
from attnprobe.tasks.multi_doc import multi_doc
from attnprobe.tasks.needle_sweep import needle_sweep

ITEMS = read_items()
SUBJECTS = ("harbour", "turbine", "orchard", "glacier", "library", "violin", "bakery", "comet")


def texts(cell: TaskCell) -> list[str]:
    return [document.text for document in cell.prompt.documents]


def built(specs: Any) -> list[TaskCell]:
    return [spec.build(metaspace()) for spec in specs]


def test_the_built_in_items_are_complete_and_can_be_restated() -> None:
    assert len(ITEMS) >= 12
    for item in ITEMS:
        assert len(item.wordings) == 3
        assert len(set(item.distractors)) >= 12
        for trial, wording in enumerate(item.wordings):
            assert holds_answer(wording, [item.answer])
            assert not holds_answer(wording, [item.foil, *item.other_answers])
            other = item.stating(trial, item.foil, item.other_subjects[0])
            assert holds_answer(other, [item.foil])
            assert not holds_answer(other, item.answers)
            assert item.other_subjects[0] in other
    assert len({text for item in ITEMS for text in (*item.wordings, *item.distractors)}) == len(ITEMS) * 16


def test_one_needle_moves_and_everything_else_stays() -> None:
    cells = built(needle_sweep(ITEMS[:2], 10, trials=3, seed=5, with_baselines=False))
    assert len(cells) == 2 * 3 * 10
    orders = set()
    for item in ITEMS[:2]:
        for trial in range(3):
            own = [cell for cell in cells if (cell.item, cell.trial) == (item.id, trial)]
            others = {tuple(text for place, text in enumerate(texts(c)) if place not in c.needles) for c in own}
            assert len(others) == 1, "the same distractors in the same order at every position"
            orders |= others
            assert set(next(iter(others))) <= set(item.distractors)
            for cell in own:
                assert cell.needles == (cell.condition["position"],)
                assert texts(cell)[cell.needles[0]] == item.wordings[trial]
                assert cell.prompt.question == item.question
                assert (cell.gold, cell.foil) == (item.answer, item.foil)
    assert len(orders) == 6
    assert built(needle_sweep(ITEMS[:2], 10, trials=3, seed=5, with_baselines=False)) == cells
    # An item's draws do not depend on which others are asked for, nor on the positions.
    alone = built(needle_sweep(ITEMS[1:2], 10, positions=[4], trials=3, seed=5, with_baselines=False))
    assert [texts(c) for c in alone] == [
        texts(c) for c in cells if c.item == ITEMS[1].id and c.condition["position"] == 4
    ]


@pytest.mark.parametrize("count", [1, 2])
def test_one_and_two_documents(count: int) -> None:
    cells = built(needle_sweep(ITEMS[:1], count))
    assert [dict(cell.condition) for cell in cells] == [
        *({"position": place} for place in range(count)),
        {"baseline": "closed_book"},
        {"baseline": "oracle"},
    ]
    assert [len(texts(cell)) for cell in cells] == [count] * count + [0, 1]
    assert texts(cells[-1]) == [ITEMS[0].wording(0)]


def test_more_documents_than_an_item_has_distractors() -> None:
    with pytest.raises(InputError, match=r'item "ferry" has 13 distractors, and 20 documents need 19; lower'):
        needle_sweep(ITEMS, 20)
    with pytest.raises(InputError, match="with other items' there are 26: lower n_documents"):
        needle_sweep(ITEMS[:2], 40, other_topics=True)
    (cell,) = built(needle_sweep(ITEMS, 20, positions=[3], other_topics=True, with_baselines=False)[:1])
    others = [text for place, text in enumerate(texts(cell)) if place != 3]
    assert len(set(others)) == 19
    assert set(ITEMS[0].distractors) < set(others)
    assert cell.facts["off_topic"] == 6
    assert not any(holds_answer(text, [*ITEMS[0].answers, ITEMS[0].foil]) for text in others)
    with pytest.raises(InputError, match="position 20 is not in a prompt of 20 documents"):
        needle_sweep(ITEMS, 20, positions=[20], other_topics=True)


def item_row(**changes: Any) -> dict[str, Any]:
    row = {
        "id": "depot",
        "question": "How long are crates kept?",
        "answer": "47 days",
        "foil": "52 days",
        "wordings": ["Crates are kept 47 days."],
        "distractors": ["The depot has a gate.", "Crates are of wood."],
    }
    return {key: value for key, value in (row | changes).items() if value is not None}


def test_items_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    odd = "Cafe\u0301 {x} <<FILLER>> $1 {{ a }}: crates are kept 47 days.\r\n"
    file.write_text("\n".join(json.dumps(row) for row in (item_row(), item_row(id="odd", wordings=[odd]))))
    items = read_items(file)
    assert [item.id for item in items] == ["depot", "odd"]
    assert read_items(file, ["odd"])[0].wordings == (odd,)
    cell = built(needle_sweep(items[1:], 3, positions=[1]))[0]
    assert texts(cell)[1] == odd
    assert odd.encode() in cell.prompt.render(metaspace()).text.encode()
    with pytest.raises(InputError, match='has no item "dock"; its items are depot, odd'):
        read_items(file, ["dock"])
    with pytest.raises(InputError, match=r'holds "" 0 times, not once'):
        items[0].stating(0, "5 days", "boxes")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answer": "*"}, r'items.jsonl:1: item "depot": nothing of the answer "\*" can be matched'),
        ({"foil": "--"}, "nothing of the answer"),
        ({"foil": "47 days"}, "hold each other"),
        ({"answer": None}, '"answer" is missing'),
        ({"wordings": []}, "has no wording"),
        ({"wordings": ["A\x00 47 days"]}, "wording 0 holds a NUL character at 1"),
        ({"distractors": ["It was forty-seven days."]}, 'distractor 0 holds "47 days"; leave it out'),
        ({"distractors": ["Some keep them 52 days."]}, 'distractor 0 holds "52 days"'),
        ({"distractors": [" "]}, "distractor 0 is empty"),
        ({"distractors": [47]}, "must hold texts only"),
        ({"distractor": ["a"]}, 'unknown key "distractor"; did you mean "distractors"'),
        ({"id": "a/b"}, 'must not be empty or hold "/"'),
    ],
)
def test_items_that_cannot_be_asked_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text(json.dumps(item_row(**changes)))
    with pytest.raises(InputError, match=message):
        read_items(file)


def test_an_id_is_used_once(tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text("\n".join(json.dumps(item_row()) for _ in range(2)))
    with pytest.raises(InputError, match=r'items.jsonl:2: the id "depot" is used twice'):
        read_items(file)
    with pytest.raises(InputError, match="is listed twice"):
        needle_sweep(ITEMS[:1], 3, positions=[1, 1])


def passage(number: int, extra: str = "") -> dict[str, Any]:
    subject = SUBJECTS[number % len(SUBJECTS)]
    town = chr(65 + number % 26)
    return {
        "title": f"t{number}",
        "text": f"Report {1000 + number} on the {subject} of {town}: code zk{number}.{extra}",
    }


def record(number: int, answers: list[str] | None = None, others: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {
        "question": f"Which code has report {1000 + number}?",
        "answers": [f"zk{number}"] if answers is None else answers,
        "ctxs": [*others[:1], {**passage(number), "isgold": True}, *others[1:]],
    }


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def test_gold_documents_move_among_the_files_own_distractors(tmp_path: Path) -> None:
    # Four distractors of its own each, one of which holds the answer.
    rows = [
        record(n, others=(passage(100 + n), passage(200 + n), passage(300 + n, f" See ZK{n}."), passage(400 + n)))
        for n in range(5)
    ]
    found = multi_doc(written(tmp_path / "q.jsonl.gz", rows), 4, shuffle=False)
    assert (found.warnings, found.refused) == ((), ())
    assert found.rejected["own_holds_answer"] == 5
    cells = built(found.specs)
    assert len(cells) == 5 * 6
    for n in range(5):
        own = [cell for cell in cells if cell.item == f"line-{n + 1}"]
        for place in range(4):
            wanted = [passage(k + n)["text"] for k in (100, 200, 400)]
            wanted.insert(place, passage(n)["text"])
            assert texts(own[place]) == wanted
            assert own[place].needles == (place,)
            assert own[place].accepted == (f"zk{n}",)
            assert f"(Title: t{n})" in own[place].prompt.render(metaspace()).text
        closed, oracle = own[4:]
        assert (closed.prompt.closed_book, texts(closed)) == (True, [])
        assert texts(oracle) == [passage(n)["text"]]


def test_missing_distractors_are_drawn_and_trials_shuffle_them(tmp_path: Path) -> None:
    rows = [record(n) for n in range(12)]
    rows.append(record(20, others=({"title": "x", "text": "An odd remark that zk0 and zk1 and zk2 were there."},)))
    path = written(tmp_path / "q.jsonl.gz", rows)
    found = multi_doc(path, 6, trials=2, limit=3, with_baselines=False)
    assert "not comparable" in found.warnings[0]
    cells = built(found.specs)
    assert len(cells) == 3 * 2 * 6
    for cell in cells:
        assert len(set(texts(cell))) == 6
        held = [place for place, text in enumerate(texts(cell)) if holds_answer(text, cell.accepted)]
        assert held == list(cell.needles) == [cell.condition["position"]]
    first = [tuple(t for t in texts(c) if t != passage(0)["text"]) for c in cells if c.item == "line-1"]
    assert len(set(first)) == 2
    assert len({frozenset(order) for order in first}) == 1
    assert multi_doc(path, 6, trials=2, limit=1, with_baselines=False).specs == found.specs[:12]


def test_blank_answers_are_refused_by_name(tmp_path: Path) -> None:
    rows = [record(n) for n in range(6)] + [record(6, answers=["*"]), record(7, answers=[])]
    found = multi_doc(written(tmp_path / "q.jsonl.gz", rows), 3)
    assert len(found.refused) == 2
    assert 'question "line-7": nothing of its answer "*" can be matched' in found.refused[0]
    assert 'question "line-8": it has no answer' in found.refused[1]
    assert not {spec.item for spec in found.specs} & {"line-7", "line-8"}
    only = written(tmp_path / "blank.jsonl.gz", rows[6:])
    with pytest.raises(InputError, match=r'every question was refused; the first: .*"line-1": nothing of its answer'):
        multi_doc(only, 3)


def test_several_gold_documents_stay_together(tmp_path: Path) -> None:
    file = tmp_path / "hotpot.json"
    file.write_text(
        json.dumps(
            [
                {
                    "_id": f"q{n}",
                    "question": f"Which code has report {1000 + n}?",
                    "answer": f"zk{n}",
                    "supporting_facts": [["a", 0], ["b", 0]],
                    "context": [
                        ["x", [f"Nothing is said about {SUBJECTS[n]} here."]],
                        ["a", [passage(n)["text"]]],
                        ["y", [f"The {SUBJECTS[n]} of the town was closed in spring."]],
                        ["b", [f"The {SUBJECTS[n]} is near the {SUBJECTS[n + 1]}."]],
                    ],
                }
                for n in range(3)
            ]
        )
    )
    found = multi_doc(file, 4)
    cells = built(found.specs)
    assert [cell.needles for cell in cells[:5]] == [(0, 1), (1, 2), (2, 3), (), (0, 1)]
    for cell in cells[:3]:
        assert [cell.prompt.documents[place].source for place in cell.needles] == ["a", "b"]
    with pytest.raises(InputError, match="position 3 is not possible: the gold documents of 4 can begin at 0 to 2"):
        multi_doc(file, 4, positions=[3])
    with pytest.raises(InputError, match="more than n_documents=1"):
        multi_doc(file, 1)


def test_squad_paragraphs_are_distractors_of_their_article(tmp_path: Path) -> None:
    paragraphs = [
        {"context": passage(n)["text"], "qas": [{"id": f"s{n}", "question": "Which?", "answers": [{"text": f"zk{n}"}]}]}
        for n in range(4)
    ]
    file = tmp_path / "squad.json"
    file.write_text(json.dumps({"data": [{"title": "Codes", "paragraphs": paragraphs}]}))
    cells = built(multi_doc(file, 3, positions=[1]).specs)
    assert [cell.needles for cell in cells] == [(1,), (), (0,)] * 4
    for n in range(4):
        assert texts(cells[3 * n])[1] == passage(n)["text"]
        assert len(set(texts(cells[3 * n]))) == 3


def test_trials_without_shuffling_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "q.jsonl.gz", [record(n) for n in range(6)])
    with pytest.raises(InputError, match="without shuffle all trials are the same"):
        multi_doc(path, 3, trials=2, shuffle=False)


def test_a_cell_that_cannot_be_built_is_named() -> None:
    item = NeedleItem("long", "", ("It is 5 days.",), "How long?", "5 days", "6 days")
    (spec,) = needle_sweep([item], 1, with_baselines=False)
    cell = spec.build(metaspace())
    assert cell.facts["prompt_tokens"] == cell.prompt.encode(metaspace()).n_tokens

    class NoOffsets:
        chat_template = None
        is_fast = False
        name_or_path = "slow"

    with pytest.raises(InputError, match="needle_sweep/long/position=0/0: "):
        spec.build(NoOffsets())


def test_where_no_evidence_is_marked_the_only_document_with_the_answer_is_taken(tmp_path: Path) -> None:
    def record(id: str, *documents: str) -> str:
        return json.dumps({"id": id, "question": "How many?", "answer": "62 boats", "documents": documents})

    file = tmp_path / "prompts.jsonl"
    one, two = "There are sixty-two boats.", "Another 62 boats came."
    file.write_text("\n".join([record("a", "No.", one), record("b", one, two), record("c", "No.", "Nothing here.")]))
    found = multi_doc(file, 2, with_baselines=False)
    assert [(cell.item, cell.needles, texts(cell)[cell.needles[0]]) for cell in built(found.specs)] == [
        ("a", (0,), one),
        ("a", (1,), one),
    ]
    assert found.warnings == ("1 question marks no evidence; the only document that holds the answer was taken for it",)
    assert [line.split("question ")[1][:3] for line in found.refused] == ['"b"', '"c"']
    assert all("not exactly one of them holds the answer" in line for line in found.refused)


def test_no_position_at_all_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "q.jsonl.gz", [record(n) for n in range(6)])
    with pytest.raises(InputError, match="positions is empty"):
        needle_sweep(ITEMS, 3, positions=[])
    with pytest.raises(InputError, match="positions is empty"):
        multi_doc(path, 3, positions=[])


def test_a_question_that_stands_twice_in_a_file_is_noted(tmp_path: Path) -> None:
    path = written(tmp_path / "q.jsonl.gz", [record(n) for n in (0, 1, 2, 1)])
    (warning,) = (text for text in multi_doc(path, 2).warnings if "more than once" in text)
    assert warning.startswith("1 question stands in the file more than once")


def test_trials_without_anything_to_draw_are_noted() -> None:
    item = replace(ITEMS[0], wordings=ITEMS[0].wordings[:1])
    one = needle_sweep([item], 1, trials=3)
    assert trial_notes(one) == (
        f"1 item has fewer different prompts than trials, and equal ones tell nothing new: {item.id} (1 of 3)",
    )
    assert trial_notes(needle_sweep([ITEMS[0]], 1, trials=2)) == (), "two wordings are two prompts"
    assert trial_notes(needle_sweep([item], 5, trials=3)) == ()


def test_a_wording_without_its_answer_is_noted() -> None:
    item = replace(ITEMS[0], wordings=(*ITEMS[0].wordings, "It takes a great many of them."))
    assert needle_notes(ITEMS) == ()
    place = len(ITEMS[0].wordings)
    assert needle_notes([item]) == (f"no accepted answer stands in 1 wording: {item.id} ({place})",)
