"""Are the same items answered alike in all conditions? Cochran's Q and McNemar's test, of one trial an item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.arguments import table as checked_table
from attnprobe.errors import InputError
from attnprobe.estimates import short_number
from attnprobe.flatness import MIN_QUESTIONS
from attnprobe.multiplicity import adjust_p_values
from attnprobe.tasks.item_intervals import too_few
from attnprobe.tasks.item_table import ItemTable
from attnprobe.tasks.outcome import ConditionValue

MIN_TEST_ITEMS = MIN_QUESTIONS


@dataclass(frozen=True)
class McNemar:
    """Two conditions of the same items.

    Parameters
    ----------
    first, second
        The conditions.
    only_first, only_second
        Items that were answered in one of them alone.
    p
        Exact binomial, two-sided; None where there is no test.
    p_adjusted
        Holm, over the pairs that were tested together.
    """

    first: ConditionValue
    second: ConditionValue
    only_first: int
    only_second: int
    p: float | None
    p_adjusted: float | None

    def __repr__(self) -> str:
        return (
            f"McNemar({self.first} against {self.second}: {self.only_first} to {self.only_second}, "
            f"p={short_number(self.p_adjusted)})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return dict(vars(self))


@dataclass(frozen=True)
class PairedCells:
    """Result of :func:`paired_cells`.

    Parameters
    ----------
    q, df, p
        Cochran's Q that all conditions are answered alike, its degrees of freedom, its p by chi-squared; None where
        there is no test.
    pairs
        McNemar's tests.
    n
        Items with a value in every condition.
    reason
        Why there is no test; else None.
    """

    q: float | None
    df: int | None
    p: float | None
    pairs: tuple[McNemar, ...]
    n: int
    reason: str | None = None

    def __repr__(self) -> str:
        note = f"; {self.reason}" if self.reason else ""
        found = f"Q={short_number(self.q)}, p={short_number(self.p)}"
        return f"PairedCells({found}, {len(self.pairs)} pairs, n={self.n}{note})"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        numbers = {name: getattr(self, name) for name in ("q", "df", "p", "n", "reason")}
        return {**numbers, "pairs": [pair.to_dict() for pair in self.pairs]}


def paired_cells(table: ItemTable, pairs: Sequence[tuple[int, int]]) -> PairedCells:
    """Cochran's Q over all conditions, and McNemar's exact test of some pairs of them.

    Both need one trial of 0 or 1 an item and condition, as several trials of an item are no independent pairs; 6 items.

    Parameters
    ----------
    table
        Of a metric of 0 and 1; items without a value somewhere are left out.
    pairs
        Columns of the table to compare; their p values are adjusted together.

    Raises
    ------
    InputError
        When the table's values are no accuracies, or a pair names no two columns.
    """
    from statsmodels.stats.contingency_tables import cochrans_q

    full = table.complete()
    values = checked_table("values", full.values, ("item", table.axis))
    n, K = values.shape
    if ((values < 0) | (values > 1)).any():
        raise InputError(f"{table.metric} is no accuracy; Cochran's Q and McNemar's test are of 0 and 1")
    for pair in pairs:
        if len(set(pair)) != 2 or not all(0 <= column < K for column in pair):
            raise InputError(f"the pair {pair} does not name two of the {K} conditions (0 to {K - 1})")
    reason = None
    if n < MIN_TEST_ITEMS:
        reason = too_few(n, needed=MIN_TEST_ITEMS)
    elif (full.trials > 1).any():
        reason = "several trials an item: they are one cluster, not pairs; the sign-flip test takes their means"
    if reason:
        return PairedCells(None, None, None, (), n, reason)
    tested = _mcnemar(values, table.levels, pairs)
    # Items that are answered alike everywhere drop out of Q; without any other, nothing is left to divide by.
    if K < 2 or not (values != values[:, :1]).any():
        return PairedCells(None, None, None, tested, n, "every item is answered alike in all conditions")
    found = cochrans_q(values)
    return PairedCells(float(found.statistic), K - 1, float(found.pvalue), tested, n)


def _mcnemar(
    values: np.ndarray, levels: tuple[ConditionValue, ...], pairs: Sequence[tuple[int, int]]
) -> tuple[McNemar, ...]:
    from statsmodels.stats.contingency_tables import mcnemar

    if not pairs:
        return ()
    counts, p = [], []
    for first, second in pairs:
        a, b = values[:, first], values[:, second]
        only = int(((a == 1) & (b == 0)).sum()), int(((a == 0) & (b == 1)).sum())
        counts.append(only)
        p.append(min(1.0, float(mcnemar([[0, only[0]], [only[1], 0]], exact=True).pvalue)))
    adjusted = adjust_p_values(p).tolist()
    return tuple(
        McNemar(levels[first], levels[second], *only, one, corrected)
        for (first, second), only, one, corrected in zip(pairs, counts, p, adjusted, strict=True)
    )
