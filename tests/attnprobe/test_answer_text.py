from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprobe.answer_text import holds_answer, is_blank

PROPERTY = settings(max_examples=150, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("In 2026 it is 47 days.", "47"),
        ("forty-seven days", "47"),
        ("47 days", "Forty seven"),
        ("10 000 people", "10000"),
        ("10,000 people", "10 000"),
        ("ten thousand people", "10,000"),
        ("in 123 300 people", "300"),
        ("on 18.05.2018 it opened", "2018"),
        ("nineteen eighty four", "84"),
        ("one hundred and five", "105"),
        ("1.5 million", "1,500,000"),
        ("two thousand eighteen", "2018"),
        ("pi to 1.50", "1.5"),
        ("twenty-one pilots", "Twenty One Pilots"),
        ("May 18, 2018", "may 18 2018"),
        ("Rontgen won", "Röntgen"),
        ("cafe\u0301 au lait", "Café"),
        ("they saw Beatles", "The Beatles"),
        ("vitamin A is", "A"),
        ("東京都に住む", "東京"),
        ("Einstein's papers", "einstein"),
        ("at 5 %", "5%"),
        ("٤٧ يوم", "47"),
        ("१,२३४", "1234"),
        ("١٬٢٣٤٫٥", "1234.5"),
        ("CO₂ and H₂O", "h2o"),
        ("47¹ days", "47"),
    ],
)
def test_holds(text: str, answer: str) -> None:
    assert holds_answer(text, ["no such thing", answer])


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("It is 2014.", "14"),
        ("costs $1.5 now", "15"),
        ("costs $1.5 now", "5"),
        ("two and three", "5"),
        ("nineteen eighty four", "1984"),
        ("a category", "cat"),
        ("New Jersey and York", "New York"),
        ("anything * here", "*"),
        ("10½ days", "101"),
        ("10² m", "102"),
        ("की", "कि"),
        (f"the code is {'1' * 39}2", "1" * 40),
        ("", "x"),
    ],
)
def test_does_not_hold(text: str, answer: str) -> None:
    assert not holds_answer(text, [answer])


def test_blank_answers() -> None:
    assert [is_blank(answer) for answer in ("*", "", "  ?!", "U2", "the", "0", "№")] == [
        True,
        True,
        True,
        False,
        False,
        False,
        False,
    ]


@PROPERTY
@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_an_answer_between_spaces_is_always_found(before: str, answer: str, after: str) -> None:
    lines = f"{before}.\n{answer}\n.{after}"
    assert is_blank(answer) or holds_answer(lines, [answer])


ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def in_words(number: int) -> str:
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10 - 2] + (f"-{ONES[number % 10]}" if number % 10 else "")
    for size, name in ((10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = f" {in_words(number % size)}" if number % size else ""
            return f"{in_words(number // size)} {name}{rest}"
    raise AssertionError


@PROPERTY
@given(st.integers(0, 10**9 - 1))
def test_every_notation_of_a_number_matches_every_other(number: int) -> None:
    notations = [str(number), f"{number:,}", f"{number:,}".replace(",", " "), in_words(number)]
    for text in notations:
        for answer in notations:
            assert holds_answer(f"it was {text}, they say", [answer]), (text, answer)
    assert not holds_answer(f"it was {number}", [str(number + 1)])
