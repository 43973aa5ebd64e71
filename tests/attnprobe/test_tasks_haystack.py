from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy_tokenizers import BUILDERS, CHATML, bytelevel, metaspace, with_template

import attnprobe as ap
from attnprobe.errors import InputError
from attnprobe.neutral import matched_text
from attnprobe.tasks.cell import CellSpec, Form, TaskCell
from attnprobe.tasks.filler import filler_source
from attnprobe.tasks.filler_control import filler_control
from attnprobe.tasks.haystack import Frame, Placed, in_filler
from attnprobe.tasks.items import NeedleItem, read_items
from attnprobe.tasks.niah import niah

ITEMS = read_items()

# Decomposed accents, a joined emoji, other scripts and line ends, and what templates write.
ODD = {
    "nfd": "Cafe\u0301 au lait est de\u0301ja\u0300 froid. Le the\u0301 aussi.\r\n\r\nUn e\u0301te\u0301 se termine. ",
    "emoji": "A family \U0001f468\u200d\U0001f469\u200d\U0001f467 met \U0001f9d1\u200d\U0001f680\U0001f680."
    " Late \u2764\ufe0f! ",
    "arabic": "هذا نص طويل جدا عن الصخور. وهذه جملة أخرى بعدها. ",
    "cjk": "岩石很古老。它们在山里！谁知道什么时候？山下面有一条很长的河流。",
    "crlf": "Here it ends.\r\nThere it goes on.\r\n\r\nAnd so on.\r\n\r\n",
    "templates": "Here {x} and <<FILLER>> and $1 with {{ user }} {% if a %}stay{% endif %}. So it is. ",
}
NEEDLE = (
    "Cafe\u0301 {x} <<FILLER>> $1 \\1 {{ user }} {% raw %} \U0001f468\u200d\U0001f469\u200d\U0001f467 "
    "keeps 47 crates.\r\n岩石 هذا نص"
)


def odd_item() -> NeedleItem:
    return NeedleItem("odd", "", (NEEDLE,), "How many crates does {x} keep?", "47 crates", "52 crates")


def n_tokens(cell: TaskCell, tokenizer: Any) -> int:
    """Tokens of the prompt, counted without what built it."""
    rendered = cell.prompt.render(tokenizer)
    ids = tokenizer(rendered.text, add_special_tokens=rendered.add_special_tokens)["input_ids"]
    ends = {tokenizer.eos_token_id, tokenizer.sep_token_id}
    return len(ids) - (rendered.add_special_tokens and ids[-1] in ends)


def built(specs: Sequence[CellSpec], tokenizer: Any) -> dict[str, TaskCell]:
    return {spec.key: spec.build(tokenizer) for spec in specs}


@pytest.mark.parametrize("name", BUILDERS)
def test_lengths_are_exact_and_depths_are_true(name: str) -> None:
    tokenizer = BUILDERS[name]()
    lengths, depths = (600, 1201), (0, 0.25, 0.5, 0.9, 1)
    cells = built(niah(ITEMS[:2], lengths=lengths, depths=depths, tokenizer=tokenizer, with_baselines=False), tokenizer)
    assert len(cells) == 20
    for cell in cells.values():
        assert n_tokens(cell, tokenizer) == cell.condition["length"] == cell.facts["prompt_tokens"]
        assert cell.facts["length_hit"] is True
        documents = cell.prompt.documents
        (place,) = cell.needles
        assert documents[place].text == ITEMS[[item.id for item in ITEMS].index(cell.item)].wording(0)
        # The depth from the spans, and within a sentence of the one that was asked for.
        spans = {s.document: s.n_tokens for s in cell.prompt.encode(tokenizer).spans if s.kind == "document"}
        before = sum(count for number, count in spans.items() if number < place)
        total = sum(spans.values()) - spans[place]
        assert cell.facts["real_depth"] == before / total
        sentence = max(len(tokenizer(s)["input_ids"]) for part in documents for s in part.text.split(". "))
        assert abs(before - cell.condition["depth"] * total) <= sentence
        # Whole sentences before the needle, and a closed one at the end.
        assert all(part.text.endswith(".") for part in documents)


def test_a_chat_template_counts() -> None:
    tokenizer = with_template(bytelevel, CHATML)
    for spec in niah(ITEMS[:1], lengths=[700], depths=[0.3], with_baselines=False):
        cell = spec.build(tokenizer)
        assert "<|im_start|>" in cell.prompt.render(tokenizer).text
        assert n_tokens(cell, tokenizer) == 700


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(["metaspace", "wordpiece", "bytelevel"]),
    kind=st.sampled_from(["prose", "repeated", "shuffled", "same_domain"]),
    length=st.integers(260, 1500),
    depth=st.floats(0, 1),
    seed=st.integers(0, 10**6),
)
def test_any_length_depth_and_seed(name: str, kind: str, length: int, depth: float, seed: int) -> None:
    tokenizer = BUILDERS[name]()
    item = ITEMS[seed % len(ITEMS)]
    frame = Frame((Placed(item.wording(seed), depth, "needle"),), item.question, Form())
    answers = (*item.answers, item.foil)
    found = in_filler(frame, filler_source(kind, item), length, tokenizer, seed=(seed,), answers=answers)
    assert found.facts["length_hit"] is True
    assert found.prompt.encode(tokenizer).n_tokens == length
    assert found.prompt.documents[found.places[0]].text == item.wording(seed)
    again = in_filler(frame, filler_source(kind, item), length, tokenizer, seed=(seed,), answers=answers)
    assert again == found


@pytest.mark.parametrize("name", ["metaspace", "bytelevel", "smollm2"])
@pytest.mark.parametrize("script", ODD)
def test_fillers_of_any_script_keep_their_graphemes(script: str, name: str, tmp_path: Path) -> None:
    import regex

    tokenizer = BUILDERS[name]()
    file = tmp_path / "filler.txt"
    file.write_bytes((ODD[script] * 3).encode())
    source = filler_source(f"repeated:{file}")
    # A short ending may stand at the very end, where no cut of the text has the number of tokens.
    graphemes = {*regex.findall(r"\X", ODD[script]), *"\n .,soa"}
    frame = Frame((Placed(NEEDLE, 0.5, "needle"),), "How many crates?", Form())
    for length in (700, 851, 1000):
        found = in_filler(frame, source, length, tokenizer, seed=(0,), answers=["Ilse Brandvold"])
        documents = found.prompt.documents
        assert documents[found.places[0]].text == NEEDLE
        filler = [document.text for number, document in enumerate(documents) if number not in found.places]
        assert found.prompt.encode(tokenizer).n_tokens == length
        for text in filler:
            assert set(regex.findall(r"\X", text)) <= graphemes
        # Everything but the cut end is the file's own text.
        whole = ODD[script] * 200
        assert "".join(filler[0].split()) in "".join(whole.split())
        cut = regex.sub(r"(?:so|then|a|\s|[,\p{Sentence_Terminal}])+$", "", filler[-1])
        assert len(cut) > 50
        assert "".join(cut.split()) in "".join(whole.split())


def test_lengths_below_the_shortest_prompt_are_refused_with_the_minimum() -> None:
    tokenizer = metaspace()
    spec = niah(ITEMS[:1], lengths=[2000], depths=[0.5], with_baselines=False)[0]
    control = filler_control(ITEMS[:1], lengths=[2000], with_baselines=False)[0]
    shortest = control.build(tokenizer).facts["prompt_tokens"]
    assert spec.build(tokenizer).facts["length_hit"] is True
    for make in (niah, filler_control):
        options: dict[str, Any] = {"depths": [0.5]} if make is niah else {}
        short = make(ITEMS[:1], lengths=[shortest - 1], with_baselines=False, **options)[-1]
        with pytest.raises(InputError, match=rf"{shortest - 1} tokens is too short: the prompt has {shortest} without"):
            short.build(tokenizer)
        with pytest.raises(InputError, match="too short"):
            make(ITEMS[:1], lengths=[2000, shortest - 1], tokenizer=tokenizer, **options)
        bare = make(ITEMS[:1], lengths=[shortest], with_baselines=False, **options)[-1].build(tokenizer)
        assert bare.facts["length_hit"] is True
        assert bare.facts["filler_tokens"] == 0
        assert bare.facts["depths"] == [None]
        # No text has as few tokens as are missing here: said, and as close as it gets.
        close = make(ITEMS[:1], lengths=[shortest + 1], with_baselines=False, **options)[-1].build(tokenizer)
        assert close.facts["length_hit"] is (close.facts["prompt_tokens"] == shortest + 1)
        assert abs(close.facts["prompt_tokens"] - shortest - 1) <= 3


def test_a_file_that_is_too_short_is_refused_unless_it_is_to_be_repeated(tmp_path: Path) -> None:
    file = tmp_path / "short.txt"
    file.write_text("Rain fell on the slate. " * 4 + "\n\n" + "Moss grew over the marl. " * 3)
    tokenizer = bytelevel()
    options: dict[str, Any] = {"lengths": [900], "with_baselines": False}
    with pytest.raises(InputError, match=r"short.txt is too short: it fills a prompt of 900 tokens up to \d+; take"):
        filler_control(ITEMS[:1], fillers=[f"file:{file}"], **options)[-1].build(tokenizer)
    cell = filler_control(ITEMS[:1], fillers=[f"repeated:{file}"], **options)[-1].build(tokenizer)
    assert cell.facts["length_hit"] is True
    assert cell.facts["filler_sentences"] - cell.facts["filler_repeated_sentences"] == 2


def test_evidence_is_the_same_in_every_condition() -> None:
    tokenizer = bytelevel()
    kinds, placements = ("prose", "repeated", "shuffled"), ("after", "before", "split")
    specs = filler_control([odd_item()], lengths=(900, 1300), fillers=kinds, placements=placements, trials=2)
    cells = built(specs, tokenizer)
    assert len(cells) == 2 * (1 + 3 * 3 * 2) + 1
    texts, starts = set(), {}
    for cell in cells.values():
        assert cell.prompt.question == "How many crates does {x} keep?"
        if "baseline" in cell.condition:
            continue
        (place,) = cell.needles
        document = cell.prompt.documents[place]
        texts.add((document.text, document.id))
        rendered = cell.prompt.render(tokenizer).text
        assert rendered.encode().count(NEEDLE.encode()) == 1
        assert cell.facts["layout"] == "question_last"
        if cell.condition["placement"] == "after":
            assert [document.id for document in cell.prompt.documents] == ["evidence", "filler_1"]
            starts[cell.key] = cell.facts["starts"][0]
        elif cell.condition["placement"] == "before":
            assert [document.id for document in cell.prompt.documents] == ["filler_0", "evidence"]
        elif cell.condition["placement"] == "split":
            assert [document.id for document in cell.prompt.documents] == ["filler_0", "evidence", "filler_1"]
            assert cell.facts["depths"][0] == pytest.approx(0.5, abs=0.15)
        if cell.condition["length"]:
            assert n_tokens(cell, tokenizer) == cell.condition["length"]
    assert texts == {(NEEDLE, "evidence")}
    # With the filler behind it the evidence stays where it is.
    assert len(set(starts.values())) == 1
    # Where ids are shown they say nothing, and the evidence keeps its own.
    marked = filler_control(
        [odd_item()], lengths=[900], placements=placements, form=Form(markers="xml"), with_baselines=False
    )
    shown = [spec.build(tokenizer).prompt for spec in marked]
    assert all('<doc id="text-a">Cafe\u0301 {x}' in prompt.render(tokenizer).text for prompt in shown)


def test_longer_fillers_begin_with_the_shorter_ones() -> None:
    tokenizer = metaspace()
    cells = [s.build(tokenizer) for s in filler_control(ITEMS[:1], lengths=[600, 2000], with_baselines=False)[1:]]
    short, long = (cell.prompt.documents[1].text for cell in cells)
    assert long.startswith(short[:-40])
    other = filler_control(ITEMS[1:2], lengths=[600], with_baselines=False)[1].build(tokenizer).prompt.documents[1].text
    assert other[:40] != short[:40]


def test_sentences_that_hold_the_answer_are_left_out_of_what_is_made_up(tmp_path: Path) -> None:
    tokenizer = bytelevel()
    item = NeedleItem("stone", "", ("The altar is of granite.",), "What is the altar of?", "granite", "basalt")
    cell = filler_control([item], lengths=[3000], with_baselines=False)[1].build(tokenizer)
    assert cell.facts["filler_left_out"] > 0
    assert not {"granite", "basalt"} & set(cell.prompt.documents[1].text.split())
    file = tmp_path / "stones.txt"
    file.write_text("The cliff is of slate and marl. " * 4 + "The gorge is of granite. ")
    with pytest.raises(InputError, match=r'filler_control/stone/.*holds the answer: "granite"'):
        filler_control([item], lengths=[600], fillers=[f"repeated:{file}"])[1].build(tokenizer)


@pytest.mark.parametrize(
    "text",
    [
        "ภาษาไทยไม่มีช่องว่างระหว่างคำ",
        "moss grows on the old wall and nobody minds ",
        "\U0001faa8\U0001f3d4\ufe0f",
        "岩石很古老它们在山里",
    ],
    ids=["thai", "unpunctuated", "emoji", "chinese"],
)
def test_depths_hold_in_filler_without_ends_of_sentences(text: str, tmp_path: Path) -> None:
    file, tokenizer = tmp_path / "text.txt", bytelevel()
    file.write_text(text * 40)
    for spec in niah(
        ITEMS[:1], lengths=[900], depths=[0, 0.25, 0.5, 0.75, 1], filler=f"repeated:{file}", with_baselines=False
    ):
        cell = spec.build(tokenizer)
        assert cell.facts["real_depth"] == pytest.approx(spec.condition["depth"], abs=0.08)
        filler = "".join(document.text for n, document in enumerate(cell.prompt.documents) if n not in cell.needles)
        assert filler.rstrip(".")[:200].replace("\n", "").startswith(text[:8])


def test_strict_filler_refuses_the_form_of_the_answer(tmp_path: Path) -> None:
    file = tmp_path / "dig.txt"
    file.write_text("The dig lasted thirty days in the marl. The slate was left alone. " * 20)
    item = NeedleItem("depot", "", ("Crates stay 47 days.",), "How long do crates stay?", "47 days", "52 days")
    options: dict[str, Any] = {"lengths": [500], "fillers": [f"file:{file}"], "with_baselines": False}
    with pytest.raises(InputError, match=r'looks like the answer \(a duration\): "30 days"'):
        filler_control([item], **options)[1].build(bytelevel())
    cell = filler_control([item], strict_filler=False, **options)[1].build(bytelevel())
    finding = cell.facts["filler_check"]["findings"][0]
    assert finding["verdict"] == "flag"
    assert finding["texts"] == ["30 days"]


def test_needles_with_other_keys_and_values() -> None:
    tokenizer = metaspace()
    item = ITEMS[0]
    options: dict[str, Any] = {"lengths": [1500], "depths": [0, 0.6], "n_needles": 4, "with_baselines": False}
    for spec in niah([item], mode="multi_key", **options):
        cell = spec.build(tokenizer)
        texts = [document.text for document in cell.prompt.documents]
        assert (cell.gold, cell.needles) == (item.answer, (texts.index(item.wording(0)),))
        assert {texts[place] for place in cell.facts["other_needles"]} == {
            item.stating(0, answer, subject)
            for answer, subject in zip(item.other_answers, item.other_subjects, strict=True)
        }
        assert all(item.subject not in texts[place] for place in cell.facts["other_needles"])
        assert n_tokens(cell, tokenizer) == 1500
    values = [spec.build(tokenizer) for spec in niah([item], mode="multi_value", **options)]
    for cell in values:
        assert cell.facts["scoring"] == "all"
        assert cell.facts["all_of"] == ("62 cars", "35 cars", "74 cars", "91 cars")
        held = [cell.prompt.documents[place].text for place in cell.needles]
        assert len(held) == 4
        assert all(sum(value in text for text in held) == 1 for value in cell.facts["all_of"])
        assert cell.prompt.question == item.question_all
        assert cell.foil is None
    assert {cell.gold for cell in values} == {"62 cars, 35 cars, 74 cars and 91 cars"}


def test_conflicting_needles_mirror_each_other() -> None:
    tokenizer = metaspace()
    specs = niah(ITEMS[:1], lengths=[1500], depths=[0, 0.2, 0.5, 1], mode="conflicting", trials=2, with_baselines=False)
    for spec in specs:
        cell = spec.build(tokenizer)
        (gold,), foil = cell.needles, cell.facts["foil_needle"]
        documents = cell.prompt.documents
        assert "62 cars" in documents[gold].text
        assert "48 cars" in documents[foil].text
        assert documents[gold].text.replace("62", "48") == documents[foil].text
        depth = cell.condition["depth"]
        assert cell.facts["gold_first"] is (gold < foil)
        assert cell.facts["gold_first"] is (depth < 0.5 or (depth == 0.5 and cell.trial == 0))
        assert sum(cell.facts["depths"]) == pytest.approx(1, abs=0.1)


def test_baselines_have_the_question_alone_and_the_evidence_alone(make_lm: Any) -> None:
    lm = make_lm(tokenizer="bytelevel")
    item = ITEMS[0]
    for mode, count in (("single", 1), ("multi_key", 1), ("multi_value", 3), ("conflicting", 1)):
        closed, oracle = niah([item], lengths=[900], depths=[0.5], mode=mode)[1:]  # type: ignore[arg-type]
        cell = closed.build(lm.tokenizer)
        assert (cell.condition, cell.prompt.documents, cell.needles) == ({"baseline": "closed_book"}, (), ())
        assert "text" not in cell.prompt.render(lm.tokenizer).text.split("Question")[0]
        assert len(oracle.build(lm.tokenizer).needles) == count
    run = ap.measure(lm, closed.build(lm.tokenizer).prompt, answer=item.answer)
    assert {span.kind for span in run.spans} == {"sink", "other", "template", "question", "answer"}
    assert run.mass.sum(-1) == pytest.approx(1, abs=1e-5)


def test_cells_are_light_until_they_are_built() -> None:
    specs = niah(ITEMS, lengths=range(10_000, 110_000, 10_000), depths=[0, 0.5, 1], trials=3, with_baselines=False)
    assert len(specs) == len({spec.key for spec in specs}) == 13 * 10 * 3 * 3
    assert max(len(pickle.dumps(spec)) for spec in specs[::50]) < 20_000
    spec = niah(ITEMS[:1], lengths=[800], depths=[0.5])[0]
    copy = pickle.loads(pickle.dumps(spec))
    assert copy.build(metaspace()).prompt == spec.build(metaspace()).prompt
    assert spec.build(metaspace()).key == spec.key == spec.build(metaspace()).prompt.id


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depths": [1.2]}, "depth 1.2 is not between 0 and 1"),
        ({"depths": [0.5, 0.5]}, "is listed twice"),
        ({"lengths": [0]}, "length must be at least 1"),
        ({"trials": 0}, "trials must be at least 1"),
        ({"mode": "double"}, "mode is 'double'; choose one of single"),
        ({"mode": "multi_key", "n_needles": 5}, "allows 4 needles of multi_key, not 5"),
        ({"mode": "multi_value", "items": [odd_item()]}, 'item "odd" has no question_all'),
        ({"mode": "multi_key", "items": [odd_item()]}, 'item "odd" has no subject'),
        ({"filler": "file:/nowhere.txt"}, "nowhere.txt cannot be read"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_arguments_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    given = {"items": ITEMS[:1], "lengths": [900], "depths": [0.5], "tokenizer": metaspace(), **options}
    with pytest.raises(InputError, match=message):
        niah(given.pop("items"), **given)


def test_words_may_bring_their_own_white_space_and_go_without_endings() -> None:
    class Letters:
        def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
            return {"input_ids": list(range(len(text)))}

    def count(text: str) -> tuple[int, int]:
        return len(text), len(text) + 5

    words = ["ab ", "cdef ", "岩", "石", " gh"]
    exact = matched_text(iter([*words, "x" * 50]), count, (10, 15), Letters(), joint="", endings=())
    assert (exact.text, exact.exact) == ("ab cdef 岩石", True)
    close = matched_text(iter([*words, "x" * 50]), count, (7, 12), Letters(), joint="", endings=())
    assert (close.text, close.exact) == ("ab cdef ", False) or close.text == "ab "
    assert json.dumps(close.text)
