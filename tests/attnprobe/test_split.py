import time

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprobe.split import grapheme_floor, split_paragraphs, split_sentences

CLEAN = st.characters(exclude_categories=["Cs"], exclude_characters="\x00")
AWKWARD = st.sampled_from(
    [
        ". ",
        "! ",
        "。",
        "…",
        "\r\n",
        "\n\n",
        "\n \n",
        "\u0301",
        "👨‍👩‍👧",
        "🇫🇷",
        "क्षि",
        "\u200d",
        "‼️",
        '"',
        "3.14",
        "Mr. ",
        "\u0600",
        " ",
    ]
)
TEXTS = st.lists(st.one_of(AWKWARD, CLEAN, st.text(CLEAN, max_size=5)), max_size=30).map("".join)


def sentences(text):
    return [text[start:stop] for start, stop in split_sentences(text)]


def boundaries(text):
    return {0} | {cluster.end() for cluster in regex.finditer(r"\X", text)}


@pytest.mark.parametrize(
    "parts",
    [
        ["Mr. Smith paid 3.14 dollars. ", "He left! ", '"Really?" he asked. ', "(Yes.) ", "Done"],
        ["Wait... what? ", "See https://a.b/c?d=1. ", "J. R. R. Tolkien, e.g. here, i.e. now. ", "End."],
        ["In the U.S. Army Dr. No. 5 met Prof. X. Y. Zed. ", "See Fig. 3 and No. 5. ", "He said no. ", "Then"],
        ["1. Do this. ", "2. Do that."],
        ["今天天气好。", "「真的吗？」", "他问。", "是的！"],
        ["真的吗?", "是的."],
        ["३．１４ है। ", "वह है॥ ", "क्ष"],
        ["ما هذا؟ ", "نعم۔ ", "جی"],
        ["Բարեւ։ ", "Ո՞վ"],
        ["ខ្ញុំ។", "អ្នក"],
        ["ሰላም። ", "ደህና"],
        ["Wow‼️ ", "Yes?!! ", "No."],
        ["A title\n\n", "Text without an end\r\n \r\n", "more"],
        ["Hard\nwrapped. ", "Line."],
    ],
    ids=lambda parts: parts[0].strip()[:12],
)
def test_sentences(parts):
    assert sentences("".join(parts)) == parts


def test_paragraphs():
    text = "\n\nA\nb\r\n\r\n  C\n \nD\u2029E\n\n"
    assert [text[a:b] for a, b in split_paragraphs(text)] == ["\n\nA\nb\r\n\r\n  ", "C\n \n", "D\u2029", "E\n\n"]


@pytest.mark.parametrize("split", [split_paragraphs, split_sentences])
def test_empty_and_white(split):
    assert split("") == []
    assert split(" \n\n ") == [(0, 4)]


@settings(deadline=None, derandomize=True, max_examples=300)
@given(TEXTS)
def test_pieces_tile_and_keep_graphemes(text):
    safe = boundaries(text)
    for split in (split_paragraphs, split_sentences):
        pieces = split(text)
        assert "".join(text[start:stop] for start, stop in pieces) == text
        assert all(start < stop for start, stop in pieces)
        assert {edge for piece in pieces for edge in piece} <= safe
    assert {a for a, _ in split_paragraphs(text)} <= {a for a, _ in split_sentences(text)}


@settings(deadline=None, derandomize=True, max_examples=200)
@given(TEXTS)
def test_grapheme_floor_is_the_last_boundary(text):
    safe = boundaries(text)
    for index in range(len(text) + 1):
        assert grapheme_floor(text, index) == max(edge for edge in safe if edge <= index)


@pytest.mark.parametrize("unit", ["今天。", "👨‍👩‍👧。", "A.", ".", " ", "क्षि है। ", "x" * 9, "\n\n("])
def test_time_is_linear(unit):
    text = unit * (200_000 // len(unit))
    start = time.process_time()
    split_sentences(text)
    split_paragraphs(text)
    assert time.process_time() - start < 5
