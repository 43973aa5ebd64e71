from __future__ import annotations

import pickle
import re
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from toy_tokenizers import smollm2

from attnprobe.answer_text import holds_answer, text_key
from attnprobe.errors import InputError
from attnprobe.tasks.filler import KINDS, filler_source
from attnprobe.tasks.filler_check import check_filler
from attnprobe.tasks.items import NeedleItem, Terms, read_items

ITEMS = read_items()

# Decomposed accents, a joined emoji, right-to-left and unspaced scripts, other line ends, and what templates write.
ODD = (
    "Cafe\u0301 au lait. Un deuxie\u0300me.\r\n\r\nThe family \U0001f468\u200d\U0001f469\u200d\U0001f467 went on. "
    "It was late.\r\n\r\nهذا نص طويل جدا. وهذه جملة أخرى.\n\n岩石很古老。它们在山里！谁知道？\n\n"
    "Here {x} and <<FILLER>> and $1, \\1 and {{ user }} {% if a %}stay{% endif %}. So it is.\n"
)


@cache
def text_of(kind: str, seed: int = 0, sentences: int = 400, item: NeedleItem | None = None) -> str:
    return "".join(islice(filler_source(kind, item).pieces((seed,)), sentences))


def test_prose_goes_on_without_repeating_a_sentence_or_holding_a_number() -> None:
    sentences = list(islice(filler_source("prose").pieces((7,)), 11_000))
    text = "".join(sentences)
    assert len(smollm2()(text)["input_ids"]) > 200_000
    assert len({sentence.strip() for sentence in sentences}) == len(sentences)
    assert not re.search(r"\d", text)
    assert not re.search(r"\d", text_key("".join(sentences[:2000]))), "no number word"
    # What a reader would stumble over.
    assert not re.search(r"\ba [aeiou]|\ban [^aeiou]| {2}|[{}]|\b(\w+) \1\b", text)
    assert all(re.fullmatch(r"[A-Z][^.]+\.(?: |\n\n)", sentence) for sentence in sentences)
    # Paragraphs stay with their subject, and there are many ways to say something.
    paragraphs = text.strip().split("\n\n")
    assert all(4 <= paragraph.count(".") <= 8 for paragraph in paragraphs[:-1])
    assert len({sentence.split()[0] for sentence in sentences}) > 30


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.id)
def test_the_built_in_fillers_cannot_be_taken_for_an_answer(item: NeedleItem) -> None:
    answers = (*item.answers, item.foil, *item.other_answers)
    evidence = " ".join(item.wordings)
    for kind in ("prose", "shuffled"):
        checked = check_filler(text_of(kind, 3, 1000), answers, item.question, evidence)
        assert checked.verdict == "pass", checked
    domain = text_of("same_domain", 3, 1000, item)
    assert not holds_answer(domain, answers)
    assert not re.search(r"\d", domain)
    assert check_filler(domain, answers, item.question, evidence, related=True).verdict == "pass"
    # It is on the topic where the prose is not.
    assert [row.kind for row in check_filler(domain, answers, item.question, evidence).findings] == ["overlap"]
    assert len(set(re.split(r"(?<=\.)\s+", domain.strip()))) == 1000


@pytest.mark.parametrize("kind", ["prose", "repeated", "shuffled", "same_domain"])
def test_a_filler_is_that_of_its_seed_and_travels_to_other_processes(kind: str) -> None:
    source = filler_source(kind, ITEMS[0])
    again = pickle.loads(pickle.dumps(source))
    assert list(islice(source.pieces((1, 2)), 50)) == list(islice(again.pieces((1, 2)), 50))
    assert text_of(kind, 1, 50, ITEMS[0]) != text_of(kind, 2, 50, ITEMS[0])


def test_repeated_and_shuffled_prose_are_the_sentences_of_the_prose() -> None:
    repeated = list(islice(filler_source("repeated").pieces((4,)), 40))
    assert repeated[0].strip() in text_of("prose", 4, 1)
    assert 4 <= len(set(repeated)) <= 8
    prose = [sentence.strip() for sentence in islice(filler_source("prose").pieces((4,)), 800)]
    shuffled = [sentence.strip() for sentence in islice(filler_source("shuffled").pieces((4,)), 800)]
    assert shuffled != prose
    assert sorted(shuffled) == sorted(prose)


def test_files_stay_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "odd.txt"
    file.write_bytes(ODD.encode())
    once = text_of(f"file:{file}")
    wanted = ODD.rstrip() + "\n\n"
    # From a paragraph that the seed draws, once around.
    start = wanted.index(once[:20])
    assert once == wanted[start:] + wanted[:start]
    assert len({text_of(f"file:{file}", seed)[:10] for seed in range(60)}) == 5
    again = text_of(f"repeated:{file}", sentences=100)
    assert again.startswith(once * 3)
    mixed = list(filler_source(f"shuffled:{file}").pieces((1,)))
    assert sorted(piece.strip() for piece in mixed) == sorted(
        p.strip() for p in filler_source(f"file:{file}").pieces((0,))
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"A text.\x00", "holds a NUL character at 7"),
        (b"caf\xe9", "not UTF-8 at byte 3"),
        (None, "cannot be read: No such file"),
    ],
)
def test_files_that_are_no_text_are_refused_at_once(content: bytes | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "filler.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        filler_source(f"file:{file}")
    assert "filler.txt" in str(caught.value)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "filler.txt"
    file.write_text("Old text.")
    source = filler_source(f"file:{file}")
    assert list(source.pieces((0,))) == ["Old text.\n\n"]
    file.write_text("New text, and longer.")
    assert list(source.pieces((0,))) == ["Old text.\n\n"], "what was read is what it is"
    assert list(filler_source(f"file:{file}").pieces((0,))) == ["New text, and longer.\n\n"]


@pytest.mark.parametrize("kind", ["poem", "file:", "book:/x", ""])
def test_unknown_kinds_are_refused(kind: str) -> None:
    with pytest.raises(InputError, match=r"is unknown; choose one of prose, same_domain"):
        filler_source(kind)
    assert "prose" in KINDS


def test_same_domain_needs_terms() -> None:
    bare = NeedleItem("x", "d", ("It is 5 days.",), "How long?", "5 days", "6 days", terms=Terms(("cook",), ("pot",)))
    with pytest.raises(InputError, match=r'item "x" has none; give the item people, things and places'):
        filler_source("same_domain", bare)
    with pytest.raises(InputError, match="this task has none"):
        filler_source("same_domain")


TASK: dict[str, Any] = {
    "question": "How long is telemetry of the depot kept?",
    "evidence": "Telemetry is kept 47 days.",
}


@pytest.mark.parametrize(
    ("text", "kind", "verdict", "found"),
    [
        ("Basalt rests here for forty-seven days.", "answer", "refuse", "47 days"),
        ("A survey took thirty days and more.", "duration", "refuse", "30 days"),
        ("The survey took a 12-week break.", "duration", "refuse", "12 week"),
        ("The dig ended on 12 March 1987.", "date", "flag", "12 March"),
        ("See the map of 2014-05-01.", "date", "flag", "2014-05-01"),
        ("Found in June 2019 by chance.", "date", "flag", "June 2019"),
        ("The year was 1987.", "date", "flag", "1987"),
        ("Sample 9 was lost.", "number", "refuse", "9"),
        ("The depot keeps telemetry where basalt ends.", "overlap", "flag", "depot"),
    ],
)
def test_planted_text_is_caught(text: str, kind: str, verdict: str, found: str) -> None:
    prose = text_of("prose", 1, 30)
    assert check_filler(prose, ["47 days"], **TASK).verdict == "pass"
    checked = check_filler(f"{prose}{text} {prose}", ["47 days"], **TASK)
    finding = next(row for row in checked.findings if row.kind == kind)
    assert finding.verdict == verdict
    assert found in finding.texts
    if verdict == "refuse":
        with pytest.raises(InputError, match=r"the filler geology holds .*" + re.escape(found)):
            checked.require("geology")
    else:
        assert checked.facts["findings"][0]["count"] >= 1  # type: ignore[index]


def test_what_has_the_form_of_the_answer_is_refused_and_other_forms_are_flagged() -> None:
    text = "The dig ended on 12 March 1987 at 14:30 after nine weeks near shaft QX-41."
    verdicts = {
        answer: {row.kind: row.verdict for row in check_filler(text, [answer], "Which?", "It.").findings}
        for answer in ("1 May 2020", "6 hours", "09:15", "AB-12", "Ilse Brandvold")
    }
    assert verdicts["1 May 2020"]["date"] == verdicts["6 hours"]["duration"] == "refuse"
    assert verdicts["09:15"]["time"] == verdicts["AB-12"]["code"] == "refuse"
    assert verdicts["Ilse Brandvold"] == {"date": "flag", "duration": "flag"}


def test_an_answer_is_refused_even_where_all_else_is_allowed() -> None:
    text = "It took 30 days, or 47 days."
    for allowed in ({"strict": False}, {"related": True}):
        assert [
            row.kind for row in check_filler(text, ["47 days"], "q", "e", **allowed).findings if row.verdict == "refuse"
        ] == ["answer"]
        assert check_filler("It took 30 days.", ["47 days"], "q", "e", **allowed).verdict == "flag"
