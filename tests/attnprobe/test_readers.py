"""Reading prompt files: every format, and every way in which a file can be wrong."""

from __future__ import annotations

import gzip
import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprobe.errors import InputError
from attnprobe.readers import PromptRecord, read_prompts, read_records

Write = Callable[..., Path]

RECORD = {"id": "q1", "documents": ["first", "second"], "question": "Which?"}
LOST = {
    "question": "who got the first nobel prize in physics",
    "answers": ["Wilhelm Conrad Röntgen", "Röntgen"],
    "ctxs": [
        {"title": "Prizes", "text": "A list.", "isgold": False, "hasanswer": False, "score": "1.2", "id": "77"},
        {"title": "Physics", "text": "In 1901, to Röntgen.", "isgold": True, "hasanswer": True},
    ],
    "nq_annotated_gold": {"title": "Physics"},
}
HOTPOT = {
    "_id": "5a7a",
    "question": "Which river?",
    "answer": "the Oder",
    "type": "bridge",
    "supporting_facts": [["B", 0], ["C", 1]],
    "context": [["A", ["One.", " Two."]], ["B", ["Three.", "Four."]], ["C", []]],
}
SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Normans",
            "paragraphs": [
                {
                    "context": "They came from Denmark.",
                    "qas": [
                        {
                            "id": "a1",
                            "question": "Whence?",
                            "answers": [
                                {"text": "Denmark", "answer_start": 15},
                                {"text": "from Denmark", "answer_start": 10},
                            ],
                            "is_impossible": False,
                        }
                    ],
                },
                {
                    "context": "They settled.",
                    "qas": [
                        {
                            "id": "a2",
                            "question": "When?",
                            "answers": [],
                            "plausible_answers": [{"text": "settled", "answer_start": 5}],
                            "is_impossible": True,
                        }
                    ],
                },
            ],
        },
        {"title": "Rhine", "paragraphs": [{"context": "A river.", "qas": [{"question": "What?", "id": "a3"}]}]},
    ],
}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write bytes, text, or one JSON value a line, and return the path."""

    def write_file(*lines: Any, name: str = "prompts.jsonl") -> Path:
        path = tmp_path / name
        if len(lines) == 1 and isinstance(lines[0], bytes):
            path.write_bytes(lines[0])
        else:
            texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
            path.write_bytes("".join(text + "\n" for text in texts).encode())
        return path

    return write_file


def refusal(path: Path, **options: Any) -> str:
    """The message with which a file is refused, without its folder."""
    with pytest.raises(InputError) as caught:
        list(read_records(path, **options))
    return str(caught.value).replace(f"{path.parent}{os.sep}", "")


def texts(record: PromptRecord) -> list[str]:
    return [document.text for document in record.prompt.documents]


def test_own_format(write: Write) -> None:
    document = {"text": "second", "id": "d7", "source": "policy.md", "score": 0.84, "timestamp": "2026-01-31"}
    path = write({**RECORD, "documents": ["first", document], "answer": "47", "system": "Be brief."})
    (prompt,) = read_prompts(path)
    first, second = prompt.documents
    assert (prompt.id, prompt.question, prompt.system, prompt.answer) == ("q1", "Which?", "Be brief.", "47")
    assert (first.text, first.source, first.score) == ("first", None, None)
    assert (second.text, second.id, second.source, second.score) == ("second", "d7", "policy.md", 0.84)
    assert second.timestamp == "2026-01-31"


def test_rendering_options_reach_the_prompt(write: Write) -> None:
    (prompt,) = read_prompts(write(RECORD), layout="question_first", markers="none", template="plain")
    assert (prompt.layout, prompt.markers, prompt.template) == ("question_first", "none", "plain")
    assert "layout" in refusal(write(RECORD), layout="sideways")


def test_numbers_are_accepted_as_ids(write: Write) -> None:
    (prompt,) = read_prompts(write({**RECORD, "id": 17, "documents": [{"text": "x", "id": 3}]}))
    assert (prompt.id, prompt.documents[0].id) == ("17", "3")


def test_missing_ids_are_named_after_lines_and_stable(write: Write) -> None:
    bare = {key: value for key, value in RECORD.items() if key != "id"}
    path = write(bare, "", "   ", bare, {**bare, "id": None})
    assert [prompt.id for prompt in read_prompts(path)] == ["line-1", "line-4", "line-5"]
    assert [prompt.id for prompt in read_prompts(write([bare, bare]))] == ["record-1", "record-2"]


def test_several_answers(write: Write) -> None:
    (record,) = read_records(write({**RECORD, "answer": ["forty-seven", "47"]}))
    assert record.prompt.answer == "forty-seven"
    assert record.answers == ("forty-seven", "47")
    (record,) = read_records(write({**RECORD, "answer": None}))
    assert (record.prompt.answer, record.answers) == (None, ())


def test_text_with_spans(write: Write) -> None:
    path = write(
        {"text": "🙂 one two", "spans": [["face", 0, 1], ["one", 2, 5]], "id": "t", "answer": "yes"},
        {"text": "One.\n\nTwo.", "by": "paragraph"},
        {"text": "as it is"},
    )
    first, second, third = read_prompts(path)
    assert (first.id, first.answer) == ("t", "yes")
    assert first.given is not None
    assert [(span.name, span.start, span.stop) for span in first.given.ranges] == [("face", 0, 1), ("one", 2, 5)]
    assert (second.id, third.id) == ("line-2", "line-3")


def test_messages_with_spans(write: Write) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one two"}]
    (prompt,) = read_prompts(write({"messages": messages, "spans": [["two", 1, 4, 7]], "id": "m"}))
    assert prompt.id == "m"
    assert prompt.given is not None
    assert prompt.given.roles == ("system", "user")
    assert [(span.name, span.part, span.start, span.stop) for span in prompt.given.ranges] == [("two", 1, 4, 7)]


def test_lost_in_the_middle(write: Write) -> None:
    (record,) = read_records(write(LOST))
    assert record.answers == ("Wilhelm Conrad Röntgen", "Röntgen")
    assert (record.prompt.answer, record.prompt.id) == ("Wilhelm Conrad Röntgen", "line-1")
    assert record.gold == (1,)
    assert [document.source for document in record.prompt.documents] == ["Prizes", "Physics"]
    # Nothing that only one of the two has may reach the model.
    assert [document.score for document in record.prompt.documents] == [None, None]
    assert {document.id for document in record.prompt.documents}.isdisjoint({"77", "gold"})


def test_hotpotqa(write: Write) -> None:
    (record,) = read_records(write([HOTPOT], name="hotpot.json"))
    assert texts(record) == ["One. Two.", "Three. Four.", ""]
    assert [document.source for document in record.prompt.documents] == ["A", "B", "C"]
    assert (record.prompt.id, record.prompt.answer, record.gold) == ("5a7a", "the Oder", (1, 2))


def test_squad(write: Write) -> None:
    first, second, third = read_records(write(SQUAD, name="squad.json"))
    assert texts(first) == texts(second) == ["They came from Denmark.", "They settled."]
    assert texts(third) == ["A river."]
    assert [document.id for document in first.prompt.documents] == ["p0", "p1"]
    assert {document.source for document in first.prompt.documents} == {"Normans"}
    assert (first.gold, second.gold, third.gold) == ((0,), (1,), (0,))
    assert (first.prompt.answer, first.answers) == ("Denmark", ("Denmark", "from Denmark"))
    assert (second.prompt.answer, third.prompt.answer) == (None, None)
    assert [record.prompt.id for record in (first, second, third)] == ["a1", "a2", "a3"]


@pytest.mark.parametrize("value", [[HOTPOT], SQUAD, [RECORD], RECORD], ids=["hotpotqa", "squad", "own", "one"])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_layout_of_the_json_does_not_matter(
    write: Write, value: Any, indent: int | None, bom: bytes, compress: Callable[[bytes], bytes]
) -> None:
    # The suffix says nothing here: content decides.
    path = write(compress(bom + json.dumps(value, indent=indent).encode()), name="data.txt")
    plain = write(value, name="plain.json")
    assert [record.prompt for record in read_records(path)] != []
    assert [(texts(r), r.answers, r.gold) for r in read_records(path)] == [
        (texts(r), r.answers, r.gold) for r in read_records(plain)
    ]


def test_format_overrides_detection(write: Write) -> None:
    record = {"question": "Which?", "context": [["A", ["One."]]]}
    assert 'unknown key "context"' in refusal(write(record))
    (prompt,) = read_prompts(write(record), format="hotpotqa")
    assert prompt.documents[0].text == "One."
    assert '"ctxs" is missing' in refusal(write(RECORD), format="lost_in_the_middle")
    assert "hotpotqa" in refusal(write(RECORD), format="hotpot")  # type: ignore[arg-type]


def test_unicode_line_separators_do_not_end_a_record(write: Write) -> None:
    text = "one\u2028two\u0085three\x0cfour"
    line = json.dumps({**RECORD, "documents": [text]}, ensure_ascii=False).replace("\\f", "\\u000c")
    (prompt,) = read_prompts(write(line))
    assert prompt.documents[0].text == text


def test_limit_reads_no_further(write: Write) -> None:
    path = write(RECORD, "{broken")
    assert len(list(read_prompts(path, limit=1))) == 1
    for limit in (0, -1, True, 1.5):
        assert "limit" in refusal(path, limit=limit)


def test_json_lines_are_streamed(tmp_path: Path) -> None:
    # A pipe whose writer waits for the first prompt before it writes the rest: reading ahead would hang.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    seen = threading.Event()
    waited: list[bool] = []

    def feed() -> None:
        with pipe.open("wb", buffering=0) as out:
            out.write(json.dumps(RECORD).encode() + b"\n")
            waited.append(seen.wait(timeout=20))
            out.write(json.dumps({**RECORD, "id": "q2"}).encode() + b"\n")

    writer = threading.Thread(target=feed)
    writer.start()
    prompts = read_prompts(pipe)
    assert next(prompts).id == "q1"
    seen.set()
    assert [prompt.id for prompt in prompts] == ["q2"]
    writer.join()
    assert waited == [True]


def test_missing_file_and_directory_raise_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="is a directory"):
        read_prompts(str(tmp_path))


@pytest.mark.parametrize(
    "content",
    [b"", b"\n \n\t\n", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)],
    ids=["nothing", "blank", "bom", "gzip"],
)
def test_empty_file(write: Write, content: bytes) -> None:
    assert refusal(write(content)).startswith("prompts.jsonl is empty")


@pytest.mark.parametrize("value", [[], {"data": []}, {"data": [{"title": "x", "paragraphs": []}]}])
def test_file_without_prompts(write: Write, value: Any) -> None:
    assert "holds no prompts" in refusal(write(value))


def test_invalid_json_names_line_and_column(write: Write) -> None:
    assert re.match(r"prompts\.jsonl:3: not valid JSON, .*column \d+", refusal(write(RECORD, "", '{"id": "b" 3}')))
    # Inside a value that spans lines, the line is counted from the start of the file, blank lines included.
    assert refusal(write("", "[", "", "  {]")).startswith("prompts.jsonl:4: not valid JSON")
    assert refusal(write("not json at all")).startswith("prompts.jsonl:1: not valid JSON")


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ('{"id": "a", "id": "b", "documents": ["x"], "question": "?"}', 'key "id" occurs twice'),
        ('{"documents": [{"text": "x", "score": NaN}], "question": "?"}', "NaN is no JSON number"),
        ('{"documents": [{"text": "x", "score": 1e999}], "question": "?"}', "document 0: score is inf"),
        ("[" * 100_000, "prompts.jsonl:1: not valid JSON"),
        ('{"documents": ["x"], "question": ' + "1" * 5000 + "}", "prompts.jsonl:1: not valid JSON"),
    ],
)
def test_json_that_python_would_let_pass_or_choke_on(write: Write, line: str, part: str) -> None:
    message = refusal(write(line))
    assert message.startswith("prompts.jsonl:1: ")
    assert part in message


def test_wrong_encoding_gives_the_byte(write: Write) -> None:
    good = json.dumps(RECORD).encode() + b"\n"
    message = refusal(write(good + b'{"documents": ["caf\xe9"]}\n'))
    assert message.startswith(f"prompts.jsonl:2: byte {len(good) + 19} (0xe9) is not UTF-8")
    assert "byte 0 (0xff) is not UTF-8" in refusal(write(json.dumps(RECORD).encode("utf-16")))


def test_damaged_gzip(write: Write) -> None:
    whole = gzip.compress(b"".join(json.dumps({**RECORD, "id": i}).encode() + b"\n" for i in range(2000)))
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    checksum = whole[:-8] + bytes(8)
    for damaged in (whole[: len(whole) // 2], bytes(flipped), checksum, whole[:5]):
        assert "prompts.jsonl" in refusal(write(damaged))
    assert "gzip data is damaged after line" in refusal(write(whole[: len(whole) // 2]))
    assert "gzip data is damaged after line 2000" in refusal(write(checksum))


def test_duplicate_id_names_both_lines(write: Write) -> None:
    message = refusal(write(RECORD, {**RECORD, "id": "q2"}, "", RECORD))
    assert re.match(r'prompts\.jsonl:4: id "q1" was already used at .*prompts\.jsonl:1;', message)
    # A number and a text that read the same are the same id, and so is an id that equals a made-up one.
    assert "already used" in refusal(write({**RECORD, "id": 1}, {**RECORD, "id": "1"}))
    assert "already used" in refusal(write({**RECORD, "id": "line-2"}, {**RECORD, "id": None}))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"question": None}, '"question" is missing'),
        ({"question": 3}, '"question" must be a text, not a whole number'),
        ({"question": ""}, "question"),
        ({"documents": "one"}, '"documents" must be a list, not a text'),
        ({"documents": []}, "document"),
        ({"documents": None}, '"documents" is missing'),
        ({"documents": ["a", 3]}, "document 1 must be a text or an object with a text, not a whole number"),
        ({"documents": ["a", {"id": "x"}]}, 'document 1: "text" is missing'),
        ({"documents": [{"text": "a", "score": "0.8"}]}, '"score" must be a whole number or a number, not a text'),
        ({"documents": [{"text": "a", "score": True}]}, "not true or false"),
        ({"documents": [{"text": "a", "sorce": "b"}]}, 'document 0: unknown key "sorce"; did you mean "source"?'),
        ({"documents": [{"text": "a", "id": "x"}, {"text": "b", "id": "x"}]}, '"x"'),
        ({"documents": ["a", "b\x00"]}, "document 1 holds a NUL character"),
        ({"documents": ["a", {"text": "b\x00"}]}, "document 1: text holds a NUL character"),
        ({"documents": ["a", {"text": "b", "id": "\ud800"}]}, "document 1: "),
        ({"Question": "x"}, 'unknown key "Question"; did you mean "question"?'),
        ({"answers": ["x"]}, 'unknown key "answers"; did you mean "answer"?'),
        ({"zzz": 1}, 'unknown key "zzz"; the keys are id, documents, question, answer, system'),
        ({"answer": 47}, '"answer" must be a text or a list, not a whole number'),
        ({"answer": ["a", 47]}, "put numbers in quotes"),
        ({"id": True}, '"id" must be a text or a whole number'),
        ({"system": ["x"]}, '"system" must be a text, not a list'),
        ({"text": "x"}, 'both "documents" and "text" are given'),
    ],
)
def test_wrong_records_are_refused_with_their_line(write: Write, change: dict[str, Any], part: str) -> None:
    message = refusal(write({**RECORD, "id": "fine"}, {**RECORD, **change}))
    assert message.startswith("prompts.jsonl:2: ")
    assert message.count("prompts.jsonl:2") == 1
    assert part in message


@pytest.mark.parametrize(
    "record",
    [
        {"text": "abc", "spans": [["a", 0]]},
        {"text": "abc", "spans": [["a", 0, "1"]]},
        {"text": "abc", "spans": [["a", 0, 1.5]]},
        {"text": "abc", "spans": [["a", False, 1]]},
        {"text": "abc", "spans": {"a": [0, 1]}},
        {"text": "abc", "spans": [["a", 0, 9]]},
        {"text": "abc", "by": "line"},
        {"text": "abc", "question": "?"},
        {"text": ["abc"]},
        {"messages": [{"role": "user", "content": "abc"}], "spans": [["a", 0, 1]]},
        {"messages": "abc"},
        {"messages": [3]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": 3}]},
        {"messages": []},
    ],
    ids=json.dumps,
)
def test_wrong_texts_and_messages(write: Write, record: dict[str, Any]) -> None:
    assert refusal(write(record)).startswith("prompts.jsonl:1: ")


@pytest.mark.parametrize("value", [3, '"text"', None, [1], [[1]]])
def test_records_that_are_no_objects(write: Write, value: Any) -> None:
    assert "must be an object" in refusal(write(value))


def broken(value: Any, *path: Any, to: Any) -> Any:
    """A copy of a JSON value with one place replaced."""
    copy = json.loads(json.dumps(value))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return copy


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (broken(LOST, "ctxs", 0, to="x"), "document 0 must be an object"),
        (broken(LOST, "ctxs", 0, "text", to=None), 'document 0: "text" is missing'),
        (broken(LOST, "ctxs", 1, "title", to="\ud800"), "document 1: source holds the lone surrogate"),
        (broken(LOST, "answers", 0, to=3), "put numbers in quotes"),
        (broken([HOTPOT], 0, "context", 1, to=["B", "text"]), "record 1: document 1 must be [title,"),
        (broken([HOTPOT], 0, "context", 0, 1, 0, to=3), "record 1: document 0 must be [title,"),
        (broken([HOTPOT], 0, "question", to=None), 'record 1: "question" is missing'),
        (broken(SQUAD, "data", 0, to=3), "article 0 must be an object"),
        (broken(SQUAD, "data", 0, "paragraphs", 1, to=3), "article 0: paragraph 1 must be an object"),
        (broken(SQUAD, "data", 0, "paragraphs", 1, "context", to=3), 'paragraph 1: "context" must be a text'),
        (broken(SQUAD, "data", 0, "paragraphs", 1, "qas", 0, to=3), "question 0 must be an object"),
        (broken(SQUAD, "data", 0, "paragraphs", 0, "qas", 0, "answers", 1, to="x"), "answer 1 must be an object"),
        (broken(SQUAD, "data", 0, "paragraphs", 0, "qas", 0, "question", to=3), '"question" must be a text'),
    ],
)
def test_wrong_data_sets(write: Write, value: Any, part: str) -> None:
    message = refusal(write(value, name="set.json"))
    assert message.startswith("set.json")
    assert part in message


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(data=st.data())
def test_texts_survive_unchanged(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    documents = data.draw(st.lists(TEXT, min_size=1, max_size=4))
    ascii_only, compress = data.draw(st.booleans()), data.draw(st.booleans())
    record = {"documents": documents, "question": "Which?"}
    content = json.dumps(record, ensure_ascii=ascii_only).encode()
    path = tmp_path_factory.mktemp("texts") / "prompts"
    path.write_bytes(gzip.compress(content) if compress else content)
    (prompt,) = read_prompts(path)
    assert [document.text for document in prompt.documents] == documents


KEYS = [
    "id",
    "_id",
    "documents",
    "text",
    "question",
    "answer",
    "ctxs",
    "context",
    "title",
    "data",
    "paragraphs",
    "qas",
    "answers",
    "supporting_facts",
    "messages",
    "spans",
    "by",
    "role",
    "content",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def complaint(path: Path, content: bytes) -> str | None:
    """What the reader says about a file of this content; None if it reads it."""
    path.write_bytes(content)
    try:
        for _ in read_records(path):
            pass
    except InputError as error:
        return str(error)
    return None


def lines_of(values: list[Any]) -> bytes:
    return "\n".join(map(json.dumps, values)).encode()


@settings(deadline=None, derandomize=True, max_examples=300)
@given(content=st.lists(JSON, min_size=1, max_size=3).map(lines_of))
def test_any_json_gives_prompts_or_a_clear_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    message = complaint(path, content)
    assert message is None or message.startswith(str(path))


@settings(deadline=None, derandomize=True, max_examples=150)
@given(content=st.binary(max_size=60) | st.binary(max_size=60).map(lambda data: b"\x1f\x8b\x08" + data))
def test_any_bytes_give_prompts_or_a_clear_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    message = complaint(path, content)
    assert message is None or message.startswith(str(path))


@pytest.mark.parametrize(
    ("gold", "places"),
    [(1, (1,)), ("b", (1,)), ([2, "a"], (0, 2)), ("7", (2,)), ([], ()), (None, ())],
)
def test_our_own_format_marks_gold_documents_by_place_or_id(tmp_path: Path, gold: Any, places: tuple[int, ...]) -> None:
    documents = [{"text": "one", "id": "a"}, {"text": "two", "id": "b"}, {"text": "three", "id": 7}]
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({**RECORD, "documents": documents, "gold": gold}) + "\n")
    (record,) = read_records(path)
    assert record.gold == places
    assert texts(record) == ["one", "two", "three"]


@pytest.mark.parametrize("gold", [2, -1, "first", True, [0, 2], 1.0, {"document": 1}])
def test_gold_that_names_no_document_is_refused(tmp_path: Path, gold: Any) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({**RECORD, "gold": gold}) + "\n")
    with pytest.raises(InputError, match=r'prompts\.jsonl:1: "gold" (names no document: .* from 0 to 1|must be)'):
        list(read_records(path))


def test_a_blank_answer_is_none(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [{**RECORD, "id": str(number), "answer": answer} for number, answer in enumerate(["", " ", ["", "x"]])]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [record.answers for record in read_records(path)] == [(), (), ("x",)]
    assert [record.prompt.answer for record in read_records(path)] == [None, None, "x"]
