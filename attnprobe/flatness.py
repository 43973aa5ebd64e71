"""Is a curve flat? A test that it is not, and a verdict that needs evidence either way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.arguments import Seed, generator, table, whole_number
from attnprobe.errors import InputError
from attnprobe.estimates import Interval, short_number

MIN_QUESTIONS = 6
"""With 5 questions no sign-flip test can reach p = 0.05: the smallest possible p is 2 / 2^5."""

_EXACT_QUESTIONS = 14
DRAWS = 9999
"""Flips drawn beyond so many questions, unless other ones are asked for."""

BOUNDS = (0.8, 1.25)
"""Ratios between which a difference from the middle does not matter."""

_ROUNDING = 1e-5
"""Masses are known no better than float32 sums: an interval nearer to 1 does not exclude it."""

_VERDICTS: dict[tuple[str | None, str | None], str] = {
    ("even", "even"): "flat",
    ("raised", "raised"): "U",
    ("raised", "even"): "head",
    ("raised", "lowered"): "head",
    ("even", "raised"): "tail",
    ("lowered", "raised"): "tail",
    ("lowered", "lowered"): "inverted",
    ("lowered", "even"): "weak head",
    ("even", "lowered"): "weak tail",
    ("raised", "unclear"): "head or U",
    ("unclear", "raised"): "tail or U",
}

VERDICTS = (*dict.fromkeys(_VERDICTS.values()), "inconclusive", "too few questions", "undefined")
"""Everything that :func:`verdict` can say."""


@dataclass(frozen=True)
class Flatness:
    """Result of :func:`flatness_test`.

    Parameters
    ----------
    p
        Probability of a statistic at least as large if the mean curve is flat; None when there is no test.
    statistic
        Mean over positions of the squared mean centred profile, nats squared; None when no question is left.
    n
        Questions that it rests on.
    reason
        Why there is no test, or which questions are left out; else None.
    smallest_p
        The smallest p that so many questions and flips can give; None when there is no test.
    """

    p: float | None
    statistic: float | None
    n: int
    reason: str | None = None
    smallest_p: float | None = None

    def __repr__(self) -> str:
        note = f"; {self.reason}" if self.reason else ""
        return f"Flatness(p={short_number(self.p)}, statistic={short_number(self.statistic)}, n={self.n}{note})"


def flatness_test(log_profiles: Any, seed: Seed = 0, draws: int = DRAWS) -> Flatness:
    """Test that the mean curve over questions is flat, by flipping whole questions.

    Each question's log profile is centred over positions. If the mean curve is flat and questions stray from it to
    either side alike, a profile is as likely as its mirror image, so the sign of each whole profile is flipped: all
    2^n ways up to 14 questions, which is exact; beyond that at random, with (1 + hits) / (1 + draws) for p. Questions
    may have slopes of their own, which makes permuting the positions within questions reject too often.

    The statistic is the sum of squares of the mean centred profile, not of its positions' t values or their maximum.
    In simulations of 8 to 24 questions by 10 positions with equal noise it finds a raised head, a U, a slope and a
    lowered position more often than either (8 questions, raised head: 0.65 against 0.52 and 0.49); where the ends
    vary three times as much as the middle, the t values are better from about 24 questions on.

    Parameters
    ----------
    log_profiles
        [question, position], nats, two positions or more. A question with an undefined or infinite value is left
        out, and ``reason`` says how many are.
    seed
        What draws the flips of more than 14 questions.
    draws
        Flips drawn, at least 99.

    Raises
    ------
    InputError
        For a wrong shape, seed or number of draws.
    """
    profiles = table("log_profiles", log_profiles, ("question", "position"))
    draws = whole_number("draws", draws, 99)
    if profiles.shape[1] < 2:
        raise InputError(f"log_profiles has shape {profiles.shape}; flatness needs two positions or more")
    kept = profiles[np.isfinite(profiles).all(axis=1)]
    n, left_out = len(kept), len(profiles) - len(kept)
    note = f"{left_out} of {len(profiles)} questions left out: undefined or infinite there" if left_out else None
    statistic = float((centred(kept).mean(axis=0) ** 2).mean()) if n else None
    if n < MIN_QUESTIONS:
        few = f"{n} question{'' if n == 1 else 's'}; the test needs at least {MIN_QUESTIONS}"
        return Flatness(None, statistic, n, f"{few}; {note}" if note else few)
    signs = sign_patterns(n, draws, seed)
    return Flatness(float(sign_flip_p(centred(kept)[None], signs)[0]), statistic, n, note, smallest_p(n, draws))


def centred(log_profiles: np.ndarray) -> np.ndarray:
    """Profiles [..., position] less their means over positions."""
    result: np.ndarray = log_profiles - log_profiles.mean(axis=-1, keepdims=True)
    return result


def sign_patterns(n: int, draws: int, seed: Seed) -> np.ndarray:
    """Signs to flip questions with, float64 [pattern, question]; the first is all +1, the data as they are.

    Up to 14 questions every pattern in which the first question keeps its sign: the others are their mirror images,
    which no statistic here tells apart. Beyond that ``draws`` random ones after the first.
    """
    if n <= _EXACT_QUESTIONS:
        bits = np.arange(2 ** (n - 1))[:, None] >> np.arange(n - 1)[::-1] & 1
        return np.hstack([np.ones((len(bits), 1)), 1.0 - 2.0 * bits])
    random = generator(seed).integers(2, size=(draws, n)) * 2.0 - 1.0
    return np.vstack([np.ones((1, n)), random])


def smallest_p(n: int, draws: int = DRAWS) -> float:
    """The smallest p that so many questions and the flips of :func:`sign_patterns` can give."""
    return 1 / 2 ** (n - 1) if n <= _EXACT_QUESTIONS else 1 / (1 + draws)


def sign_flip_p(profiles: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """p of the sum of squares of the mean profile, for many samples at once.

    Parameters
    ----------
    profiles
        float64 [sample, question, position], centred.
    signs
        Of :func:`sign_patterns`.

    Returns
    -------
    numpy.ndarray
        float64 [sample].
    """
    # |sum of s_q x_q|^2 = s' G s with G the questions' inner products.
    inner = profiles @ profiles.transpose(0, 2, 1)
    p = np.empty(len(profiles))
    for i, gram in enumerate(inner):
        flipped = ((signs @ gram) * signs).sum(axis=1)
        p[i] = (flipped >= flipped[0] - 1e-10 * gram.trace()).mean()  # equal up to rounding counts as reached
    return p


def verdict(head: Interval, tail: Interval, bounds: Sequence[float] = BOUNDS) -> str:
    """Shape of a curve, from the intervals of its head/middle and tail/middle ratios.

    An end is *even* if its whole interval lies inside the bounds: equivalence is shown, not assumed. Else it is
    *raised* if its whole interval lies above 1, *lowered* if below 1, and *unclear* otherwise. Even wins over raised
    and lowered, so a small difference that is known precisely counts as none; :func:`end_state` says which way it is.

    =========  =========  ====================
    head       tail       verdict
    =========  =========  ====================
    even       even       ``flat``
    raised     raised     ``U``
    raised     even       ``head``
    raised     lowered    ``head``
    even       raised     ``tail``
    lowered    raised     ``tail``
    lowered    lowered    ``inverted``
    lowered    even       ``weak head``
    even       lowered    ``weak tail``
    raised     unclear    ``head or U``
    unclear    raised     ``tail or U``
    any other             ``inconclusive``
    no interval           ``too few questions``
    no estimate           ``undefined``
    =========  =========  ====================

    With 95 % intervals a curve whose end lies at a bound is called even in at most 2.5 % of studies.

    Parameters
    ----------
    head, tail
        Of :func:`attnprobe.intervals.ratio_interval`.
    bounds
        Ratios between which a difference does not matter; around 1.

    Raises
    ------
    InputError
        For bounds that do not hold 1.
    """
    if len(bounds) != 2 or not 0 < bounds[0] < 1 < bounds[1] or math.isinf(bounds[1]):
        raise InputError(f"bounds must be two numbers, one between 0 and 1, one above 1, not {tuple(bounds)}")
    if head.estimate is None or tail.estimate is None:
        return "undefined"
    ends = _end(head, bounds), _end(tail, bounds)
    return "too few questions" if None in ends else _VERDICTS.get(ends, "inconclusive")


def end_state(ratio: Interval | None) -> str | None:
    """State of an end, as :func:`verdict` takes it: ``raised``, ``even``, ``lowered`` or ``unclear``; None for none.

    An even end whose interval excludes 1 is ``even (slightly above 1)`` or ``even (slightly below 1)``.
    """
    state = None if ratio is None else _end(ratio, BOUNDS)
    if state == "even" and ratio is not None and ratio.low is not None and ratio.high is not None:
        if ratio.low > 1 + _ROUNDING:
            return "even (slightly above 1)"
        if ratio.high < 1 - _ROUNDING:
            return "even (slightly below 1)"
    return state


def _end(ratio: Interval, bounds: Sequence[float]) -> str | None:
    if ratio.low is None or ratio.high is None:
        return None
    if bounds[0] <= ratio.low and ratio.high <= bounds[1]:
        return "even"
    if ratio.low > 1:
        return "raised"
    return "lowered" if ratio.high < 1 else "unclear"
