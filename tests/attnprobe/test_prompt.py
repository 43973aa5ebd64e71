import dataclasses

import pytest
from toy_tokenizers import CHATML, LLAMA2, NO_SYSTEM, bytelevel, metaspace, smollm2, with_template, wordpiece

from attnprobe.errors import InputError
from attnprobe.prompt import Document, Prompt


def region_text(rendered, name):
    region = next(item for item in rendered.regions if item.name == name)
    return [rendered.text[start:stop] for start, stop in region.segments]


def test_xml_plain_text():
    documents = ["Alpha.", Document("Beta & <b>", id="d7", source='a"<b>&\n.md', score=0.84), Document("", score=1)]
    prompt = Prompt(documents, "Which?", system="Be brief.", template="plain", instruction="Read.")
    rendered = prompt.render(metaspace())
    assert rendered.text == (
        "Be brief.\n\nRead.\n\n"
        '<doc id="0">Alpha.</doc>\n'
        '<doc id="d7" source="a&quot;&lt;b&gt;&amp;&#10;.md" score="0.84">Beta & <b></doc>\n'
        '<doc id="2" score="1"></doc>\n\n'
        "Question: Which?\nAnswer:"
    )
    assert rendered.answer_prefix == " "
    assert rendered.add_special_tokens
    assert region_text(rendered, "d7") == ["Beta & <b>"]
    assert region_text(rendered, "marker:0") == ['<doc id="0">', "</doc>\n"]
    assert region_text(rendered, "instruction") == ["Read."]
    assert region_text(rendered, "2") == [""]
    assert [item.document for item in rendered.regions if item.kind == "marker"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("question_last", "A\n\nB\n\nQuestion: Q?\nAnswer:"),
        ("question_first", "Question: Q?\n\nA\n\nB\n\nAnswer:"),
        ("question_both", "Question: Q?\n\nA\n\nB\n\nQuestion: Q?\nAnswer:"),
    ],
)
def test_layouts(layout, expected):
    rendered = Prompt(["A", "B"], "Q?", layout=layout, markers="none").render(metaspace())
    assert rendered.text == expected
    assert region_text(rendered, "question") == ["Q?"] * (2 if layout == "question_both" else 1)
    assert {item.kind for item in rendered.regions} == {"document", "question", "template"}


def test_numbered_markers():
    documents = [Document("A", source="x\ny"), "B"]
    rendered = Prompt(documents, "Q?", markers="numbered", layout="question_first", template="plain").render(
        metaspace()
    )
    assert rendered.text == "Question: Q?\n\nDocument [1](Title: x y) A\nDocument [2] B\n\nAnswer:"


def test_markers_cannot_be_broken_out_of():
    text = "see </doc> tag, < / DOC>, <doc id='9'>, <document>, <doc-x>, a<b, &lt;doc"
    rendered = Prompt([text, "other"], "Q?", template="plain").render(metaspace())
    assert region_text(rendered, "0") == [
        "see &lt;/doc> tag, &lt; / DOC>, &lt;doc id='9'>, <document>, <doc-x>, a<b, &lt;doc"
    ]
    assert rendered.text.count("<doc ") == rendered.text.count("</doc>") == 2


AWKWARD = "{x} <<FILLER>> $1 {{ 7 * 7 }} {% raw %} \\1 cafe\u0301 👨‍👩‍👧 مرحبا 日本語\r\nend"


@pytest.mark.parametrize("markers", ["xml", "numbered", "none"])
@pytest.mark.parametrize("template", ["chat", "plain"])
def test_text_is_unchanged(markers, template):
    tokenizer = with_template(bytelevel, CHATML)
    prompt = Prompt([AWKWARD, "b"], AWKWARD, system=AWKWARD, markers=markers, template=template)
    rendered = prompt.render(tokenizer)
    assert [region_text(rendered, name) for name in ("0", "question", "system")] == [[AWKWARD]] * 3


def test_chat_regions_and_default_system_text():
    rendered = Prompt(["Alpha."], "Which?").render(smollm2())
    assert rendered.text.startswith("<|im_start|>system\nYou are a helpful AI")
    assert rendered.text.endswith('<doc id="0">Alpha.</doc>\n\nQuestion: Which?<|im_end|>\n<|im_start|>assistant\n')
    assert rendered.answer_prefix == ""
    assert not rendered.add_special_tokens
    assert region_text(rendered, "template")[0].startswith("<|im_start|>system")


def test_template_that_strips_moves_the_offsets():
    tokenizer = with_template(metaspace, LLAMA2)
    prompt = Prompt(["  Alpha. ", "Beta"], "Which? \n", system=" Be brief.\n", markers="none")
    rendered = prompt.render(tokenizer)
    assert rendered.text == ("<s><<SYS>>\nBe brief.\n<</SYS>>\n\n[INST] Alpha. \n\nBeta\n\nQuestion: Which? [/INST]")
    assert region_text(rendered, "0") == ["Alpha. "]
    assert region_text(rendered, "question") == ["Which?"]
    assert any("start of document 0" in warning for warning in rendered.warnings)
    assert any("end of the question" in warning for warning in rendered.warnings)
    assert set(rendered.warnings) <= set(prompt.encode(tokenizer).warnings)


def test_system_refused_by_the_template():
    tokenizer = with_template(metaspace, NO_SYSTEM)
    assert Prompt(["A"], "Q?").render(tokenizer).text.startswith("<s><start>user\n")
    with pytest.raises(InputError, match=r"toy-metaspace refuses the system message .*template=\"plain\""):
        Prompt(["A"], "Q?", system="Be brief.").render(tokenizer)


@pytest.mark.parametrize(
    ("template", "match"),
    [
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "writes 2 times message 0"),
        ("nothing", r'leaves out message 0 \("user"\)'),
        (
            "{% for m in messages %}[{{ m.content | replace('Alpha', 'Omega') }}]{% endfor %}",
            'changes message 0 .* writes "Omega',
        ),
        ("{{ messages[0].content }}{% if 'Alpha' in messages[0].content %}!{% endif %}", "changes message 0"),
        ("{{ messages[0].content | upper }}", "leaves out message 0"),
        ("{{ 1 // 0 }}", "refuses the roles"),
    ],
)
def test_templates_that_change_the_text(template, match):
    with pytest.raises(InputError, match=match):
        Prompt(["Alpha"], "Q?").render(with_template(bytelevel, template))


def test_content_that_holds_the_search_word():
    text = "attnprobe0content attnprobe0content00000000end"
    rendered = Prompt([text], "Q?").render(with_template(bytelevel, CHATML))
    assert region_text(rendered, "0") == [text]


def test_chat_asked_for_without_template():
    with pytest.raises(InputError, match=r'toy-metaspace has no chat template.*template="plain"'):
        Prompt(["A"], "Q?", template="chat").render(metaspace())
    with pytest.raises(InputError, match="no chat template"):
        Prompt.from_messages([{"role": "user", "content": "x"}]).render(metaspace())


def test_messages_in_the_template_s_order():
    tokenizer = with_template(bytelevel, "{% for m in messages | reverse %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    messages = [{"role": "system", "content": "abcd"}, {"role": "user", "content": "efgh"}]
    rendered = Prompt.from_messages(messages, [("one", 0, 1, 3), ("two", 1, 0, 4)]).render(tokenizer)
    assert rendered.text == "<user>efgh<system>abcd"
    assert region_text(rendered, "one") == ["bc"]
    assert region_text(rendered, "two") == ["efgh"]
    assert region_text(rendered, "rest") == ["a", "d"]


def test_from_text_spans():
    rendered = Prompt.from_text("Hello world. Bye.", [("end", 13, 17), ("start", 0, 5)]).render(smollm2())
    assert rendered.text == "Hello world. Bye."
    assert [(r.kind, r.name, r.document, r.segments) for r in rendered.regions] == [
        ("document", "start", 0, ((0, 5),)),
        ("other", "rest", None, ((5, 13),)),
        ("document", "end", 1, ((13, 17),)),
    ]


def test_by_numbers_pieces_through_all_messages():
    messages = [{"role": "system", "content": "One. Two."}, {"role": "user", "content": "Three. "}]
    rendered = Prompt.from_messages(messages, by="sentence").render(with_template(bytelevel, CHATML))
    documents = [(r.name, r.document) for r in rendered.regions if r.kind == "document"]
    assert documents == [("s0", 0), ("s1", 1), ("s2", 2)]
    assert region_text(rendered, "s0") == ["One. "]
    prompt = Prompt.from_text("A\n\nB", by="paragraph")
    assert [r.name for r in prompt.render(wordpiece()).regions] == ["p0", "p1"]


def test_is_a_value():
    prompt = Prompt(["A", Document("B", id="b")], "Q?", id="q1", answer="x")
    assert prompt == Prompt([Document("A"), Document("B", "b")], "Q?", id="q1", answer="x")
    assert hash(prompt) == hash(dataclasses.replace(prompt))
    assert prompt.document_names == ("0", "b")
    turned = dataclasses.replace(prompt, documents=prompt.documents[::-1])
    assert turned.document_names == ("b", "1")
    given = Prompt.from_text("abc", [("a", 0, 1)])
    assert dataclasses.replace(given, answer="x").given == given.given
    with pytest.raises(dataclasses.FrozenInstanceError):
        prompt.question = "other"


def test_a_closed_book_prompt_is_its_question() -> None:
    prompt = Prompt(question="Q?", closed_book=True, instruction="Be brief.")
    assert prompt.documents == ()
    assert prompt.render(bytelevel()).text == "Be brief.\n\nQuestion: Q?\nAnswer:"
    assert dataclasses.replace(prompt, answer="x").closed_book


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Prompt([], "Q?"), "documents is empty"),
        (lambda: Prompt(["a"], "Q?", closed_book=True), "a closed-book prompt has a question only"),
        (lambda: Prompt(closed_book=True), "question is empty"),
        (lambda: Prompt("text", "Q?"), "documents is one str"),
        (lambda: Prompt(["a", 3], "Q?"), "document 1 is int"),
        (lambda: Prompt(["a"], " \n"), "question is empty"),
        (lambda: Prompt(["a"], None), "question is NoneType"),
        (lambda: Prompt(["a"], "Q?", system=""), "system is empty; pass None"),
        (lambda: Prompt(["a", "b\x00"], "Q?"), "document 1 holds a NUL character at 1"),
        (lambda: Prompt([Document("\ud800", id="x")], "Q?"), r'document "x": text holds the lone surrogate'),
        (lambda: Prompt(["a"], "Q\x00?"), "question holds a NUL"),
        (lambda: Prompt(["a"], "Q?", system="\udfff"), "system holds the lone surrogate"),
        (lambda: Prompt(["a"], "Q?", answer="\x00"), "answer holds a NUL"),
        (lambda: Prompt(["a"], "Q?", instruction="\x00"), "instruction holds a NUL"),
        (lambda: Prompt(["a", Document("b", id="0")], "Q?"), 'documents 0 and 1 have the same id "0"'),
        (lambda: Prompt([Document("b", id="question")], "Q?"), "name of another span"),
        (lambda: Prompt([Document("b", id="marker:0")], "Q?"), "name of another span"),
        (lambda: Prompt(["a"], "Q?", layout="last"), "layout is 'last'; choose one of question_last"),
        (lambda: Prompt(["a"], "Q?", markers="html"), "markers is 'html'"),
        (lambda: Prompt(["a"], "Q?", template="x"), "template is 'x'"),
        (lambda: Document("a", score=float("nan")), "score is nan"),
        (lambda: Document("a", score=True), "score is True"),
        (lambda: Document("a", id=7), "id is int, not text"),
        (lambda: Document("a", id=" "), "id is empty"),
        (lambda: Document("a", timestamp=[]), "timestamp is"),
        (lambda: Prompt.from_text(""), "text is empty"),
        (lambda: Prompt.from_text("a\x00"), "text holds a NUL"),
        (lambda: Prompt.from_text("abcdef", [("a", 0, 3), ("b", 2, 4)]), '"a" .0 to 3. and "b" .* overlap'),
        (lambda: Prompt.from_text("abc", [("a", 0, 4)]), "the characters 0 to 3"),
        (lambda: Prompt.from_text("abc", [("a", 2, 1)]), "runs from 2 to 1"),
        (lambda: Prompt.from_text("abc", [("a", -1, 1)]), "runs from -1 to 1"),
        (lambda: Prompt.from_text("abc", [("a", 0.0, 1)]), "whole numbers"),
        (lambda: Prompt.from_text("abc", [(" ", 0, 1)]), "empty name"),
        (lambda: Prompt.from_text("abc", [("a", 0, 1), ("a", 1, 2)]), 'the name "a"'),
        (lambda: Prompt.from_text("abc", [("sink", 0, 1)]), "attnprobe's own"),
        (lambda: Prompt.from_text("abc", [("a", 0)]), r"is not \(name, start, stop\)"),
        (lambda: Prompt.from_text("abc", [("a", 0, 1)], by="sentence"), "both given"),
        (lambda: Prompt.from_text("abc", by="word"), "by is 'word'"),
        (lambda: Prompt.from_messages([]), "messages is empty"),
        (lambda: Prompt.from_messages("hi"), "messages is not a list"),
        (lambda: Prompt.from_messages([{"role": "user"}]), "message 0 must have exactly the keys"),
        (lambda: Prompt.from_messages([{"role": "user", "content": []}]), "message 0: content is list"),
        (lambda: Prompt.from_messages([{"role": "assistant", "content": "a"}]), "the assistant's"),
        (lambda: Prompt.from_messages([{"role": "user", "content": "a"}], [("a", 1, 0, 1)]), "is in message 1"),
    ],
)
def test_errors_name_the_fault(make, match):
    with pytest.raises(InputError, match=match):
        make()
