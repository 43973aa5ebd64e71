"""The context-rot gap and the best/worst ratio: what they are, may be, and would be without any effect of position.

Both pick the largest of several means, so chance alone makes them larger than 0 or 1. With a flat accuracy of 80 % and
50 trials at each of 10 positions, the gap of the better bookend to the article's middle exceeds 5 points in 37 % of
studies, that of the mean bookend, which is not biased, still in 16 %; the best/worst ratio of a flat 30 % has a median
of 2.0. So each comes with an interval, and with what it is where position has no effect: every item's whole profile
over positions, less its mean, is turned over or not at random. Items may have effects of position of their own; dealing
their hits out over the positions instead raises false alarms in 12 to 50 % of studies of such items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.arguments import Seed, fraction, whole_number
from attnprobe.bands import BandTable, Verdict, judge
from attnprobe.errors import InputError
from attnprobe.estimates import Interval, json_values, short_number
from attnprobe.flatness import sign_patterns
from attnprobe.tasks.ends import Ends
from attnprobe.tasks.item_intervals import MIN_ITEMS, item_mean, ratio_bounds, too_few
from attnprobe.tasks.item_table import ItemTable
from attnprobe.tasks.paired_cells import MIN_TEST_ITEMS

BOOKENDS = ("max", "mean")
FLOOR = 0.05
"""Below this accuracy everywhere no gap could leave the healthy band, so none is given."""
BEYOND = f"less than {100 * FLOOR:.0f} % of replies hold the answer at every place, so no effect on them can be told"


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
        Median and 95 % quantile of the statistic without an effect of position, from the same items; None below 6 of
        them.
    p
        Of no effect of position, one-sided: the part of such values that reach the estimate. Of this statistic alone,
        not adjusted for the others.
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


def context_rot_gap(accuracy: np.ndarray, ends: Ends, bookend: str = "max") -> np.ndarray:
    """Accuracy at the bookends less the middle's.

    Parameters
    ----------
    accuracy
        float64 [..., position].
    ends
        Which positions are the first, the last and the middle.
    bookend
        ``"max"``: the better one, as the context-rot article has it; ``"mean"``: their mean.

    Returns
    -------
    numpy.ndarray
        float64 [...].

    Raises
    ------
    InputError
        For an unknown bookend.
    """
    if bookend not in BOOKENDS:
        raise InputError(f'bookend {bookend!r} is unknown; expected "max" or "mean"')
    both = ends.differences(accuracy)
    result: np.ndarray = both.max(-1) if bookend == "max" else both.mean(-1)
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
    ends: Ends | None,
    reason: str | None = None,
    level: float = 0.95,
    draws: int = 2000,
    seed: Seed = 0,
    bands: BandTable | None = None,
) -> tuple[RotStatistic, RotStatistic, RotStatistic]:
    """``gap_max``, ``gap_mean`` and ``best_worst`` of an accuracy by position.

    The interval of the better bookend is made of the two ends' own, each at half the error (Bonferroni), and that of
    best/worst of every pair of positions' ratio; so both hold whichever position is best, and are wide.

    Parameters
    ----------
    table
        Of a metric of 0 and 1; items without a value somewhere are left out.
    ends, reason
        Of :func:`attnprobe.tasks.ends.find_ends`; without them there is no gap.
    level
        Of the intervals.
    draws
        How many profiles are turned over at random where items are more than 14, at least 99; fewer in every way.
    seed
        What draws them.
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
    beyond = BEYOND if n and accuracy.max() < FLOOR else None
    few = f"{K} position{'' if K == 1 else 's'}: there is no middle" if K <= 2 else None
    flipped = turned_over(full.values, draws, seed) if n >= MIN_TEST_ITEMS else None
    found: list[tuple[Interval, np.ndarray | None]] = []
    if ends is None or beyond or few:
        gone = Interval(None, None, None, level, n, "none", few or beyond or reason)
        found += [(gone, None), (gone, None)]
    else:
        gaps = [None if flipped is None else context_rot_gap(flipped, ends, bookend) for bookend in BOOKENDS]
        means = context_rot_gap(full.values, ends, "mean")
        found += [(_better_end(full.values, ends, level), gaps[0]), (item_mean(means, level, span=2.0), gaps[1])]
    if few or beyond:
        found.append((Interval(None, None, None, level, n, "none", few or beyond), None))
    else:
        found.append((_best_worst(full, level), None if flipped is None else best_worst_ratio(flipped)))
    gap, mean, ratio = (
        _statistic(name, signal, *one, note, bands)
        for (name, signal, note), one in zip(_STATISTICS, found, strict=True)
    )
    return gap, mean, ratio


_STATISTICS = (
    ("gap_max", "context_rot_gap", "biased upward: the better of two bookends is above 0 by chance"),
    ("gap_mean", "context_rot_gap", "not biased, but often far from 0 by chance where there are few trials"),
    ("best_worst", "accuracy_best_worst_ratio", "biased upward: the best over the worst is above 1 by chance"),
)


def turned_over(values: np.ndarray, draws: int, seed: Seed) -> np.ndarray:
    """Mean accuracies float64 [pattern, position] of items whose profiles are turned over or not.

    A profile is an item's values [item, position] less their mean, so the pooled accuracy stays. It is as likely as its
    mirror image where position has no effect on the whole, whatever it has on single items. The
    first pattern turns none over.
    """
    levels = values.mean(axis=1, keepdims=True)
    signs = _both_ways(sign_patterns(len(values), draws, seed))
    flipped: np.ndarray = np.clip(levels.mean() + signs @ (values - levels) / len(values), 0.0, 1.0)
    return flipped


def _both_ways(signs: np.ndarray) -> np.ndarray:
    """With the mirror images, which a one-sided statistic tells apart."""
    return np.vstack([signs, -signs])


def _better_end(values: np.ndarray, ends: Ends, level: float) -> Interval:
    n, method = len(values), "max of two ends, t on items' differences, Bonferroni"
    estimate = float(context_rot_gap(values.mean(axis=0), ends, "max")) if n else None
    if n < MIN_ITEMS:
        return Interval(estimate, None, None, level, n, method, too_few(n))
    both = [item_mean(own, (1 + level) / 2, span=2.0) for own in ends.differences(values).T]
    low, high = (max(getattr(end, bound) for end in both) for bound in ("low", "high"))
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
    p = float((null >= interval.estimate - 1e-10).mean())  # the data as they are stand among them
    return RotStatistic(name, interval, median, threshold, p, verdict, note)
