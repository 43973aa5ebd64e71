"""The context-rot gap and the best/worst ratio: what they are, may be, and would be without any effect of position.

Both pick the largest of several means, so chance alone makes them larger than 0 or 1. With a flat accuracy of 80 % and
50 trials at each of 10 positions, the gap of the better bookend to the article's middle exceeds 5 points in 37 % of
studies, that of the mean bookend, which is not biased, still in 16 %; the best/worst ratio of a flat 30 % has a median
of 2.0. So each comes with an interval, and with what it is when every item's own hits are dealt out over the positions
at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.arguments import Seed, fraction, generator, whole_number
from attnprobe.bands import BandTable, Verdict, judge
from attnprobe.curve import middle_positions
from attnprobe.errors import InputError
from attnprobe.estimates import Interval, json_values, short_number
from attnprobe.tasks.item_intervals import MIN_ITEMS, item_mean, ratio_bounds, too_few
from attnprobe.tasks.item_table import ItemTable

BOOKENDS = ("max", "mean")
FLOOR = 0.05
"""Below this accuracy everywhere no gap could leave the healthy band, so none is given."""
BEYOND = (
    f"less than {FLOOR:.0%} are answered everywhere: the task is beyond the model, which says nothing of the context"
)


@dataclass(frozen=True)
class RotStatistic:
    """A statistic of accuracy by position.

    Parameters
    ----------
    name
        ``gap_max``: the better bookend less the middle; ``gap_mean``: the mean bookend less the middle;
        ``best_worst``: the best position's accuracy over the worst one's.
    interval
        The estimate and its bounds, paired over items. ``inf`` where the worst position is never answered.
    null_median, threshold
        Median and 95 % quantile of the statistic without an effect of position, from the same items; None without
        them.
    p
        Of no effect of position: the part of such draws that reach the estimate.
    verdict
        Of :func:`attnprobe.bands.judge`, on the interval.
    note
        What to bear in mind: the direction of its bias.
    """

    name: str
    interval: Interval
    null_median: float | None
    threshold: float | None
    p: float | None
    verdict: Verdict
    note: str

    def __repr__(self) -> str:
        return (
            f"RotStatistic({self.name}: {self.interval}, by chance up to {short_number(self.threshold)}, "
            f"{self.verdict.verdict})"
        )

    @property
    def exceeds(self) -> bool | None:
        """Whether the estimate lies above the threshold; None where there is none."""
        if self.threshold is None or self.interval.estimate is None:
            return None
        return self.interval.estimate > self.threshold

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        numbers = {name: getattr(self, name) for name in ("null_median", "threshold", "p", "exceeds")}
        return {
            "name": self.name,
            "interval": self.interval.to_dict(),
            **json_values(numbers),
            "verdict": self.verdict.to_dict(),
            "note": self.note,
        }


def context_rot_gap(accuracy: np.ndarray, bookend: str = "max", middle: str = "default") -> np.ndarray:
    """Accuracy at the bookends less the middle's.

    Parameters
    ----------
    accuracy
        float64 [..., position].
    bookend
        ``"max"``: the better one, as the context-rot article has it; ``"mean"``: their mean.
    middle
        As in :func:`attnprobe.curve.middle_positions`.

    Returns
    -------
    numpy.ndarray
        float64 [...]; NaN with two positions or fewer.

    Raises
    ------
    InputError
        For an unknown bookend or middle.
    """
    if bookend not in BOOKENDS:
        raise InputError(f'bookend {bookend!r} is unknown; expected "max" or "mean"')
    positions = list(middle_positions(accuracy.shape[-1], middle))
    if not positions:
        return np.full(accuracy.shape[:-1], np.nan)
    ends = accuracy[..., [0, -1]]
    result: np.ndarray = (ends.max(-1) if bookend == "max" else ends.mean(-1)) - accuracy[..., positions].mean(-1)
    return result


def best_worst_ratio(accuracy: np.ndarray) -> np.ndarray:
    """Best over worst accuracy, float64 [...], of [..., position].

    ``inf`` where the worst is 0; NaN where all are, and with two positions or fewer.
    """
    if accuracy.shape[-1] <= 2:
        return np.full(accuracy.shape[:-1], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        result: np.ndarray = accuracy.max(-1) / accuracy.min(-1)
    return result


def rot_statistics(
    table: ItemTable,
    level: float = 0.95,
    draws: int = 2000,
    seed: Seed = 0,
    middle: str = "default",
    bands: BandTable | None = None,
) -> tuple[RotStatistic, RotStatistic, RotStatistic]:
    """``gap_max``, ``gap_mean`` and ``best_worst`` of an accuracy by position.

    The interval of the better bookend is made of the two ends' own, each at half the error (Bonferroni), and that of
    best/worst of every pair of positions' ratio; so both hold whichever position is best, and are wide.

    Parameters
    ----------
    table
        Of a metric of 0 and 1; items without a value somewhere are left out.
    level
        Of the intervals.
    draws
        How often the hits are dealt out anew, at least 99.
    seed
        What deals them.
    middle
        As in :func:`attnprobe.curve.middle_positions`.
    bands
        Other than the article's.

    Raises
    ------
    InputError
        For arguments out of range.
    """
    level, draws = fraction("level", level), whole_number("draws", draws, 99)
    full = table.complete()
    n, K = full.values.shape
    accuracy = full.values.mean(axis=0) if n else np.full(K, np.nan)
    gone = None
    if K <= 2:
        gone = f"{K} position{'' if K == 1 else 's'}: there is no middle"
    elif n and accuracy.max() < FLOOR:
        gone = BEYOND
    intervals: list[Interval]
    if gone:
        intervals = [Interval(None, None, None, level, n, "none", gone)] * 3
    else:
        intervals = [
            _better_end(full.values, level, middle),
            item_mean(context_rot_gap(full.values, "mean", middle), level, span=2.0),
            _best_worst(full, level),
        ]
    null = None
    if not gone and n >= MIN_ITEMS:
        dealt = dealt_accuracies(full, draws, seed)
        null = [
            context_rot_gap(dealt, "max", middle),
            context_rot_gap(dealt, "mean", middle),
            best_worst_ratio(dealt),
        ]
    gap, mean, ratio = (
        _statistic(name, signal, intervals[i], None if null is None else null[i], note, bands)
        for i, (name, signal, note) in enumerate(_STATISTICS)
    )
    return gap, mean, ratio


_STATISTICS = (
    ("gap_max", "context_rot_gap", "biased upward: the better of two bookends is above 0 by chance"),
    ("gap_mean", "context_rot_gap", "not biased, but often far from 0 by chance where there are few trials"),
    ("best_worst", "accuracy_best_worst_ratio", "biased upward: the best over the worst is above 1 by chance"),
)


def dealt_accuracies(table: ItemTable, draws: int, seed: Seed) -> np.ndarray:
    """Mean accuracies float64 [draw, position] of items whose own hits are dealt over their trials at random.

    That is each item with its pooled accuracy and no effect of position. The number of hits stays as it was, so nothing
    is lost by estimating the accuracy. It takes an item's trials as independent: where each item has effects of
    position of its own, which cancel over items, use the sign-flip test.
    """
    rng = generator(seed)
    total = np.zeros((draws, len(table.levels)))
    for values, trials in zip(table.values, table.trials, strict=True):
        hits = round(float(values @ trials))
        total += rng.multivariate_hypergeometric(trials, hits, size=draws) / trials
    result: np.ndarray = total / len(table.items)
    return result


def _better_end(values: np.ndarray, level: float, middle: str) -> Interval:
    centre = values[:, list(middle_positions(values.shape[1], middle))].mean(axis=1)
    n, method = len(values), "max of two ends, t on items' differences, Bonferroni"
    estimate = float(context_rot_gap(values.mean(axis=0), "max", middle)) if n else None
    if n < MIN_ITEMS:
        return Interval(estimate, None, None, level, n, method, too_few(n))
    ends = [item_mean(values[:, end] - centre, (1 + level) / 2, span=2.0) for end in (0, -1)]
    low, high = (max(getattr(end, bound) for end in ends) for bound in ("low", "high"))
    return Interval(estimate, low, high, level, n, method)


def _best_worst(table: ItemTable, level: float) -> Interval:
    values, n = table.values, len(table.items)
    K = values.shape[1]
    method = "all pairs of positions, MOVER ratios, Bonferroni"
    estimate = float(best_worst_ratio(values.mean(axis=0))) if n else None
    if n < MIN_ITEMS:
        return Interval(estimate, None, None, level, n, method, too_few(n))
    trials = table.trials.sum(axis=0).tolist()
    each = 1 - (1 - level) / (K * (K - 1) / 2)
    bounds = [
        ratio_bounds(values[:, i], values[:, j], (trials[i], trials[j]), each)
        for i in range(K)
        for j in range(K)
        if i != j and values[:, [i, j]].any()
    ]
    low, high = max(low for low, _ in bounds), max(high for _, high in bounds)
    return Interval(estimate, max(1.0, low), high, level, n, method)


def _statistic(
    name: str, signal: str, interval: Interval, null: np.ndarray | None, note: str, bands: BandTable | None
) -> RotStatistic:
    verdict = judge(signal, interval, bands)
    if null is None or interval.estimate is None:
        return RotStatistic(name, interval, None, None, None, verdict, note)
    median, threshold = (float(np.quantile(null, q, method="higher")) for q in (0.5, 0.95))
    p = (1 + int((null >= interval.estimate - 1e-10).sum())) / (1 + len(null))
    return RotStatistic(name, interval, median, threshold, p, verdict, note)
