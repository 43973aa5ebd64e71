"""How many questions a study needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from attnprobe.arguments import fraction, positive_number, whole_number
from attnprobe.errors import InputError
from attnprobe.intervals import MIN_QUESTIONS

SD_LOG = 0.35
"""Standard deviation over questions of a log ratio that is assumed when no pilot tells: an order of magnitude."""

ASSURANCE = 0.8
"""Probability with which a planned study's interval is no wider than asked for."""

_MOST_QUESTIONS = 10_000_000


@dataclass(frozen=True)
class PlannedQuestions:
    """How many questions a study needs.

    Parameters
    ----------
    ratio, half_width, sd_log
        What was asked for.
    n_typical
        Questions with which the interval is about so wide in the middle; half of all studies find a wider one.
    n_assured
        Questions with which it is no wider with the probability ``ASSURANCE``.
    half_widths
        Half-widths that a study of some numbers of questions may expect.
    detectable
        For each of those, the smallest ratio above 1 that it tells from 1 with probability 0.8.
    """

    ratio: float
    half_width: float
    sd_log: float
    n_typical: int
    n_assured: int
    half_widths: Mapping[int, float]
    detectable: Mapping[int, float]

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of that half-width around the ratio, symmetric in logs: ratio * exp(+-h)."""
        high = math.hypot(self.ratio, self.half_width) + self.half_width
        return self.ratio**2 / high, high

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "interval": list(self.interval), "assurance": ASSURANCE}


def planned_questions(ratio: float, half_width: float, sd_log: float = SD_LOG) -> PlannedQuestions:
    """Plan a study of a ratio; arguments as in :func:`questions_needed`."""
    typical = questions_needed(ratio, half_width, sd_log)
    assured = questions_needed(ratio, half_width, sd_log, assurance=ASSURANCE)
    numbers = sorted({5, 8, 12, 24, 48, typical, assured})
    return PlannedQuestions(
        ratio,
        half_width,
        sd_log,
        typical,
        assured,
        {n: ratio_half_width(n, ratio, sd_log) for n in numbers},
        {n: detectable_ratio(n, sd_log) for n in numbers},
    )


def ratio_half_width(
    n: int, ratio: float, sd_log: float = SD_LOG, level: float = 0.95, assurance: float | None = None
) -> float:
    """Half the width of the t interval of a ratio, as :func:`attnprobe.intervals.ratio_interval` makes it.

    The interval is ratio * exp(+-h) with h = t * s / sqrt(n), so half its width is ratio * sinh(h).

    Parameters
    ----------
    n
        Questions, at least 2.
    ratio
        The ratio that the study finds.
    sd_log
        Standard deviation over questions of the log ratio, nats: a pilot's.
    level
        Confidence level.
    assurance
        The half-width that a study stays within with this probability, the standard deviation that it finds being
        random itself: ``sd_log`` is multiplied by sqrt(chi2 quantile / (n - 1)). None: with ``sd_log`` as it is,
        which about half of all studies exceed.

    Raises
    ------
    InputError
        For an argument out of range.
    """
    from scipy import stats

    n = whole_number("n", n, 2)
    sd = positive_number("sd_log", sd_log)
    if assurance is not None:
        sd *= math.sqrt(stats.chi2.ppf(fraction("assurance", assurance), n - 1) / (n - 1))
    h = stats.t.isf((1 - fraction("level", level)) / 2, n - 1) * sd / math.sqrt(n)
    ratio = positive_number("ratio", ratio)
    return ratio * math.sinh(h) if h < 700 else math.inf


def questions_needed(
    ratio: float,
    half_width: float,
    sd_log: float = SD_LOG,
    level: float = 0.95,
    assurance: float | None = None,
) -> int:
    """Fewest questions, at least 5, whose interval of a ratio has at most the half-width.

    Parameters
    ----------
    ratio, sd_log, level, assurance
        As in :func:`ratio_half_width`.
    half_width
        Half the width of the interval, on the scale of the ratio: 0.5 for a ratio of 2 is 1.56 to 2.56.

    Raises
    ------
    InputError
        For an argument out of range, or when more than ten million questions would be needed.
    """
    wanted = positive_number("half_width", half_width)

    def enough(n: int) -> bool:
        return ratio_half_width(n, ratio, sd_log, level, assurance) <= wanted

    high = MIN_QUESTIONS
    while not enough(high):
        if high > _MOST_QUESTIONS:
            raise InputError(
                f"a half-width of {wanted:g} around a ratio of {ratio:g} with sd_log={sd_log:g} needs more than "
                f"{_MOST_QUESTIONS:,} questions; ask for a wider interval"
            )
        high *= 2
    low = max(MIN_QUESTIONS, high // 2)
    while low < high:  # the half-width falls with every question, so that halving finds the first that is enough
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high


def detectable_ratio(n: int, sd_log: float = SD_LOG, level: float = 0.95, power: float = 0.8) -> float:
    """Smallest ratio above 1 whose interval leaves out 1 with the given probability.

    Its inverse is the largest such ratio below 1.

    Parameters
    ----------
    n
        Questions, at least 5.
    sd_log
        Standard deviation over questions of the log ratio, nats: a pilot's.
    level
        Confidence level.
    power
        The probability.

    Raises
    ------
    InputError
        For an argument out of range.
    """
    from statsmodels.stats.power import TTestPower

    n = whole_number("n", n, MIN_QUESTIONS)
    sd = positive_number("sd_log", sd_log)
    alpha = 1 - fraction("level", level)
    power = fraction("power", power)
    if power <= alpha:
        raise InputError(f"power={power:g} must be above {alpha:g}, which a ratio of 1 reaches by chance")
    effect = TTestPower().solve_power(nobs=n, alpha=alpha, power=power, alternative="two-sided")
    return math.exp(float(effect) * sd)
