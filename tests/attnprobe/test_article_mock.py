"""The mock model of the context-rot article, and why it does not give the numbers that are printed beside it.

The mock draws one document with probabilities of the article's curve and replies with the first number in it. The
texts are our own, of the same form: the needle names its year before its answer, as the article's does.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import attnprobe as ap
from attnprobe.bands import judge
from attnprobe.tasks import score_answer
from attnprobe.tasks.accuracy import accuracy_by_position
from attnprobe.tasks.context_rot import BEYOND, best_worst_ratio, context_rot_gap
from attnprobe.tasks.ends import Ends
from attnprobe.tasks.outcome import Outcome

K, TRIALS, ALPHA = 10, 50, 0.45
NEEDLE = "As of 2026 the harbour office keeps the logs of the tugs for 47 days, and those of the pilots for 7 years."
DISTRACTORS = [
    "In 2024 the harbour office kept the logs of the tugs for 30 days.",
    *(f"Berth {number} has room for {12 * number} boats." for number in range(2, 6)),
    "Pilots sign their logs at noon.",
    "The office moved to the pier in 2023.",
    "Tugs refuel on Mondays.",
    "A log that is lost is written anew within 90 days.",
]
GOLD = "47"

PRINTED = np.array([0.30, 0.18, 0.12, 0.06, 0.06, 0.04, 0.06, 0.14, 0.20, 0.32])
"""What the article says that its mock gives."""


def first_number(text: str) -> str:
    """What the mock replies: the first number, whatever it is."""
    found = re.search(r"\b(\d{1,4})\b", text)
    return f"The answer is {found[1]} days." if found else "I don't know."


def days(text: str) -> str:
    """What the mock was meant to reply: the number of days."""
    found = re.search(r"\b(\d+) days", text)
    return f"It is {found[1]} days." if found else "I don't know."


def swept(read: Callable[[str], str], score: Callable[[str], int], trials: int = TRIALS) -> list[Outcome]:
    """The sweep of the article with its mock; seeded as there."""
    rng = np.random.RandomState(42)
    weights = ap.effective_attention(K, ALPHA)
    outcomes = []
    for position in range(K):
        for trial in range(trials):
            order = [DISTRACTORS[place] for place in rng.permutation(len(DISTRACTORS))]
            texts = [*order[:position], NEEDLE, *order[position:]]
            reply = read(texts[rng.choice(K, p=weights)])
            outcomes.append(Outcome("tugs", trial, {"position": position}, strict=score(reply)))
    return outcomes


def rates(outcomes: list[Outcome]) -> np.ndarray:
    """Accuracy by position."""
    at = [[one.strict for one in outcomes if one.condition["position"] == position] for position in range(K)]
    return np.array(at, dtype=np.float64).mean(axis=1)


def test_as_printed_it_is_wrong_everywhere_because_the_year_comes_first() -> None:
    assert first_number(NEEDLE) == "The answer is 2026 days."
    outcomes = swept(first_number, lambda reply: int(GOLD in reply))
    assert rates(outcomes).tolist() == [0.0] * K
    found = accuracy_by_position(outcomes)
    assert BEYOND in found.warnings  # the gap of 0 is no sign of health
    assert "healthy" not in {one.verdict.verdict for one in (found.gap_max, found.gap_mean, found.best_worst)}


def test_with_the_answer_read_it_gives_its_own_curve_which_is_not_the_printed_one() -> None:
    curve = ap.effective_attention(K, ALPHA)
    many = rates(swept(days, lambda reply: score_answer(reply, GOLD).strict, trials=1000))
    assert many == pytest.approx(curve, abs=0.045)  # 3.6 standard errors
    # Printed: bookends of 31 %, best/worst 8.0, a gap of 26 to 28 %. The curve itself has none of them.
    assert PRINTED[[0, -1]].mean() == pytest.approx(0.31)
    assert curve[[0, -1]] == pytest.approx([0.186, 0.186], abs=0.001)
    assert float(best_worst_ratio(PRINTED)) == pytest.approx(8.0)
    assert float(best_worst_ratio(curve)) == pytest.approx(3.76, abs=0.02)
    article = Ends(0, 9, (4, 5, 6))
    printed_gap, own_gap = (float(context_rot_gap(one, article)) for one in (PRINTED, curve))
    assert printed_gap == pytest.approx(0.267, abs=0.001)
    assert own_gap == pytest.approx(0.133, abs=0.001)
    # The mock's own curve is "suspect" by the article's table; what is printed beside it is "confirmed".
    assert judge("context_rot_gap", own_gap).verdict == "suspect"
    assert judge("context_rot_gap", printed_gap).verdict == "confirmed"
    # Not by chance either: both bookends at 30 % or more of 50 happen in less than one of a hundred such studies.
    rng = np.random.default_rng(0)
    bookends = rng.binomial(TRIALS, curve[0], size=(100_000, 2)) / TRIALS
    assert (bookends >= PRINTED[[0, -1]]).all(axis=1).mean() < 0.01


def test_one_needle_is_one_cluster_whatever_its_shuffles() -> None:
    found = accuracy_by_position(swept(days, lambda reply: score_answer(reply, GOLD).strict))
    assert found.n == 1
    for cell in found.cells:
        assert (cell.trials, cell.items, cell.interval.low) == (TRIALS, 1, None)
    assert found.gap_mean.interval.low is None
    assert found.gap_mean.threshold is None


def test_a_year_that_holds_the_answer_s_digits_is_no_hit() -> None:
    assert int(GOLD in "The answer is 1947 days.") == 1
    assert score_answer("The answer is 1947 days.", GOLD).strict == 0


def test_the_citation_fixture_gives_3_9_and_not_7_3() -> None:
    """200 requests whose citations are drawn without replacement, the seed as printed."""
    rng = np.random.RandomState(42)
    weights = ap.effective_attention(K, ALPHA)
    cited = np.zeros(K)
    for _ in range(200):
        n = rng.choice([1, 2, 3], p=[0.5, 0.35, 0.15])
        cited[rng.choice(K, size=n, replace=False, p=weights)] += 1
    ratio = cited[0] / cited[K // 2]
    assert ratio == pytest.approx(3.9, abs=0.05)
    assert judge("citation_head_middle_ratio", float(ratio)).verdict == "suspect"
    assert judge("citation_head_middle_ratio", 7.3).verdict == "confirmed"
