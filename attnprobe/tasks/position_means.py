"""Log-probability of the answer, and attention to its evidence, by position: means over items, contrasts within them.

Log-probabilities are sums over the answer's tokens, without the end of sequence, in nats. Answers differ in length and
in how likely they are anyway, so the level of ``logprob`` says nothing across items: each item's mean over positions is
taken out. ``margin``, the gold answer's less that of a wrong one of the same form, keeps its level: above 0 the gold
one wins. So do ``mass`` and ``advantage`` of the evidence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from attnprobe.arguments import Seed, fraction
from attnprobe.errors import InputError
from attnprobe.estimates import Band, short_number
from attnprobe.intervals import simultaneous_band
from attnprobe.tasks.accuracy import EndContrast, end_contrasts
from attnprobe.tasks.cell import Condition
from attnprobe.tasks.ends import Ends, find_ends
from attnprobe.tasks.item_table import item_table, left_out_note
from attnprobe.tasks.outcome import ATTENTION, NATS, ConditionValue, Outcome


@dataclass(frozen=True, eq=False)
class PositionMeans:
    """Result of :func:`means_by_position`.

    Parameters
    ----------
    metric
        ``logprob``, ``margin``, ``mass`` or ``advantage``.
    positions
        As the condition has them.
    band
        In the metric's unit, mean over items, with a simultaneous band. Of ``logprob`` each item less its own mean over
        positions. The band is that of the shape, items' levels taken out, but for ``margin``.
    ends
        Columns of the first, last and middle positions; None where they were not tested, for which a warning says why.
    head_minus_middle, tail_minus_middle
        None without ends.
    n
        Items with a value at every position; the others are left out.
    warnings
        What the user should know.
    """

    metric: str
    positions: tuple[ConditionValue, ...]
    band: Band
    ends: Ends | None
    head_minus_middle: EndContrast | None
    tail_minus_middle: EndContrast | None
    n: int
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        curve = " ".join(short_number(float(value)) for value in self.band.estimate)
        return f"PositionMeans({self.metric}: {curve}, n={self.n})"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        head, tail = self.head_minus_middle, self.tail_minus_middle
        return {
            "metric": self.metric,
            "positions": list(self.positions),
            "band": self.band.to_dict(),
            "head_minus_middle": None if head is None else head.to_dict(),
            "tail_minus_middle": None if tail is None else tail.to_dict(),
            "n": self.n,
            "warnings": list(self.warnings),
        }


def means_by_position(
    outcomes: Iterable[Outcome],
    metric: str = "logprob",
    axis: str = "position",
    where: Condition | None = None,
    pool: Collection[str] = (),
    level: float = 0.95,
    seed: Seed = 0,
) -> PositionMeans:
    """Compare how probable the answer is, or how much attention the evidence gets, at different positions of it.

    Parameters
    ----------
    outcomes
        Of a sweep of the evidence through positions or depths.
    metric
        ``logprob``, ``margin``, ``mass`` or ``advantage``.
    axis, where, pool
        As in :func:`attnprobe.tasks.item_table.item_table`.
    level, seed
        Of intervals and band; what draws the band's samples and the tests' flips.

    Raises
    ------
    InputError
        For another metric, outcomes that do not fit together, arguments out of range.
    """
    if metric not in (*NATS, *ATTENTION):
        raise InputError(f"metric {metric!r} has no mean here; expected one of {', '.join((*NATS, *ATTENTION))}")
    outcomes = list(outcomes)
    table = item_table(outcomes, metric, axis, where, pool)
    full = table.complete()
    values = full.values - full.values.mean(axis=1, keepdims=True) if metric == "logprob" else full.values
    ends, reason = find_ends(table.levels, axis, outcomes)
    head, tail = end_contrasts(full.values, ends, fraction("level", level), seed, span=None)
    notes = (left_out_note([table], [full]), reason if len(table.levels) > 2 else None)
    return PositionMeans(
        metric=metric,
        positions=table.levels,
        band=simultaneous_band(values, level, seed, centred=metric != "margin"),
        ends=ends,
        head_minus_middle=head,
        tail_minus_middle=tail,
        n=len(full.items),
        warnings=tuple(filter(None, notes)),
    )
