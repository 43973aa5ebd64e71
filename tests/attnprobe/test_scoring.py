from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attnprobe.answer_text import is_blank
from attnprobe.errors import InputError
from attnprobe.tasks import Score, score_answer, scoring

PROPERTY = settings(max_examples=150, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("reply", "gold", "strict", "lenient"),
    [
        # Numbers as wholes, in the notation given or in another one.
        ("It is 2014.", "14", 0, 0),
        ("In 2026 it is 47 days.", "47", 1, 1),
        ("10 000", "10000", 0, 1),
        ("10,000", "10000", 0, 1),
        ("forty-seven", "47", 0, 1),
        ("It costs $1.5.", "15", 0, 0),
        ("It costs $1.5.", "1.5", 1, 1),
        ("It was ...47.", "47", 1, 1),
        ("it is .47", "47", 0, 1),
        ("47.", "47", 1, 1),
        ("10½ days", "101", 0, 0),
        ("10² m", "102", 0, 0),
        ("10² m", "10²", 1, 1),
        ("47¹ days", "47", 0, 1),
        ("٤٧ يوم", "47", 0, 1),
        ("١٬٢٣٤٫٥", "1234.5", 0, 1),
        ("47 days", "47", 1, 1),
        ("10 000 people", "10", 0, 1),
        ("in 2026 300 people", "300", 1, 1),
        ("10 000 people", "10 000", 1, 1),
        # Signs, ranges, parts of numbers.
        ("-47 degrees", "47", 0, 1),
        ("(-47)", "-47", 1, 1),
        ("−47 degrees", "-47", 1, 1),
        ("47 degrees", "-47", 0, 1),
        ("40-47 days", "47", 1, 1),
        ("40–47 days", "40", 1, 1),
        ("10:47", "47", 0, 1),
        ("1,5 km", "5", 0, 1),
        ("18.05.2018", "2018", 0, 1),
        # Units.
        ("5 apples", "5%", 0, 1),
        ("5% of them", "5", 1, 1),
        ("5 %", "5%", 0, 1),
        ("47kg", "47", 0, 1),
        ("47日です", "47", 1, 1),
        # Letters.
        ("PARIS, of course", "paris", 1, 1),
        ("Straße", "STRASSE", 1, 1),
        ("Rontgen won", "Röntgen", 0, 1),
        ("a Cafe\u0301", "Café", 1, 1),
        ("a Café", "Cafe\u0301", 1, 1),
        ("a Café", "Cafe", 0, 1),
        ("they saw Beatles", "The Beatles", 0, 1),
        ("a category", "cat", 0, 0),
        ("a well-known fact", "known", 1, 1),
        ("in New\n York", "New York", 1, 1),
        ("it was\u00a0**Ada**", "Ada", 1, 1),
        ("C++ it is", "C++", 1, 1),
        ("東京都に住む", "東京", 1, 1),
        ("की", "कि", 0, 0),
        ("서울은 크다", "서울", 0, 0),
        # What no rule sees: denial, hedging, paraphrase.
        ("I don't know, not 47", "47", 1, 1),
        ("46 or 47", "47", 1, 1),
        ("about seven weeks", "49 days", 0, 0),
        ("10k", "10000", 0, 0),
        ("10.000", "10000", 0, 0),
        ("", "47", 0, 0),
    ],
)
def test_strict_and_lenient(reply: str, gold: str, strict: int, lenient: int) -> None:
    score = score_answer(reply, gold)
    assert (score.strict, score.lenient) == (strict, lenient)


@pytest.mark.parametrize(
    ("reply", "gold", "exact"),
    [
        ("47", "47", 1),
        (" **47**. ", "47", 1),
        ('"paris."', "Paris", 1),
        ("47 days", "47", 0),
        ("-47", "47", 0),
        ("$1.5", "15", 0),
        (".5", "5", 0),
        ("C++.", "C++", 1),
        ("C", "C++", 0),
        ("The Beatles", "Beatles", 0),
    ],
)
def test_exact(reply: str, gold: str, exact: int) -> None:
    assert score_answer(reply, gold).exact == exact


@pytest.mark.parametrize(
    ("reply", "gold", "f1"),
    [
        # Worked out by hand from SQuAD's definition: 2 * common / (tokens of the reply + tokens of the answer).
        ("The cat, the mat", "a cat", 2 / 3),
        ("to be or not to be", "to be", 4 / 8),
        ("New York City", "York", 2 / 4),
        ("U.S.", "us", 1.0),
        ("vitamin A", "A", 0.0),
        ("A", "A", 1.0),
        ("", "A", 0.0),
        ("nothing", "47", 0.0),
    ],
)
def test_f1(reply: str, gold: str, f1: float) -> None:
    assert score_answer(reply, gold).f1 == pytest.approx(f1)


def test_the_best_of_several_answers_counts_for_each_measure() -> None:
    assert score_answer("It is 47.", ["46", "it is 47", "days"]) == Score(1, 1, 1, 1.0)


@pytest.mark.parametrize("gold", ["*", "", " ?! ", ["47", "*"], [], [47]])
def test_an_answer_that_anything_would_hold_is_refused(gold: list[str] | str) -> None:
    with pytest.raises(InputError, match="gold"):
        score_answer("anything * at all", gold)


def test_a_reply_that_is_no_text_is_refused() -> None:
    with pytest.raises(InputError, match="reply is None"):
        score_answer(None, "47")  # type: ignore[arg-type]


def test_a_pattern_is_searched_for_in_the_reply_as_it_is() -> None:
    found = [
        score_answer("Answer: 47 days", "48", pattern=pattern).pattern for pattern in (r"\b4\d\b", "(?i)ANSWER", "X")
    ]
    assert found == [1, 1, 0]
    assert score_answer("47", "47").pattern is None


@pytest.mark.parametrize("pattern", ["(47", 47])
def test_a_faulty_pattern_is_named(pattern: str) -> None:
    with pytest.raises(InputError, match=rf'the pattern "{re.escape(str(pattern))}" is no regular expression'):
        score_answer("47", "47", pattern=pattern)


def test_a_pattern_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "PATTERN_SECONDS", 0.05)
    with pytest.raises(InputError, match=r"took longer than 0\.05 s on a reply of 40 characters"):
        score_answer("a" * 39 + "!", "47", pattern=r"^(a|aa|a\w)+$")


WORDS = st.text(st.sampled_from("abcXYZéß東кλ"), min_size=1, max_size=6)
ANSWERS = st.one_of(WORDS, st.integers(0, 10**6).map(str), st.tuples(WORDS, WORDS).map(" ".join))
BEFORE = st.sampled_from(["", "It is ", "In 2026 it was ", "(", '"', "**", "Answer: ", "東", "one\n"])
AFTER = st.sampled_from(["", " days.", ".", ")", '"', "**", ", they say", "、", "\nand more"])


@PROPERTY
@given(ANSWERS, BEFORE, AFTER)
def test_an_answer_between_boundaries_is_held_as_written(answer: str, before: str, after: str) -> None:
    score = score_answer(f"{before}{answer}{after}", answer)
    assert (score.strict, score.lenient) == (1, 1)


@PROPERTY
@given(st.integers(1, 10**6), st.integers(0, 9), st.booleans())
def test_a_number_with_one_more_digit_is_another_number(number: int, digit: int, after: bool) -> None:
    assume(after or digit)  # 047 is the number 47, written otherwise
    glued = f"{number}{digit}" if after else f"{digit}{number}"
    score = score_answer(f"It is {glued}.", str(number))
    assert (score.strict, score.lenient) == (0, 0)


@PROPERTY
@given(st.text(max_size=30), st.text(max_size=6))
def test_case_makes_no_difference_and_strict_is_never_above_lenient(reply: str, gold: str) -> None:
    assume(not is_blank(gold))
    # Some letters have no upper case that folds back to them, such as the dotless i.
    assume(all(text.upper().casefold() == text.casefold() for text in (reply, gold)))
    score, *changed = (score_answer(*texts) for texts in ((reply, gold), (reply.upper(), gold), (reply, gold.upper())))
    assert score.exact <= score.strict <= score.lenient
    for other in changed:
        assert (other.strict, other.lenient, other.exact) == (score.strict, score.lenient, score.exact)


@PROPERTY
@given(st.text(max_size=20), st.text(max_size=6))
def test_composed_and_decomposed_accents_are_the_same(reply: str, gold: str) -> None:
    assume(not is_blank(gold))
    one = score_answer(unicodedata.normalize("NFC", reply), unicodedata.normalize("NFD", gold))
    two = score_answer(unicodedata.normalize("NFD", reply), unicodedata.normalize("NFC", gold))
    assert (one.strict, one.lenient, one.exact) == (two.strict, two.lenient, two.exact)
