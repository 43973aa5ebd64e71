"""The knee: up to which length the middle of a context stays reliable, against shorter contexts and against its ends.

A length holds if it is *shown* to hold: the lower bound of its comparison lies at or above what is asked, with all
comparisons' intervals right at once (Bonferroni). So with few items a knee comes early; ``shown_to_fail`` is what the
upper bounds say.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.arguments import fraction, positive_number
from attnprobe.errors import InputError
from attnprobe.estimates import Interval, short_number
from attnprobe.tasks.cell import Condition
from attnprobe.tasks.ends import find_ends
from attnprobe.tasks.item_intervals import item_mean, ratio_of_accuracies
from attnprobe.tasks.item_table import ItemTable, common_items, item_table, left_out_note
from attnprobe.tasks.outcome import ACCURACIES, ANSWERS, Outcome


@dataclass(frozen=True)
class KneeStep:
    """One length of a knee.

    Parameters
    ----------
    length
        As the condition has it.
    comparison
        Ratio of accuracies, or difference in nats; its interval holds at all lengths at once.
    state
        ``holds``, ``fails`` (its upper bound is too low), or ``unclear``.
    """

    length: float
    comparison: Interval
    state: str

    def __repr__(self) -> str:
        return f"KneeStep({self.length:g}: {self.comparison}, {self.state})"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {"length": self.length, "comparison": self.comparison.to_dict(), "state": self.state}


@dataclass(frozen=True)
class Knee:
    """Where a comparison stops to be shown to hold.

    Parameters
    ----------
    kind
        ``length``: the middle against the middle at the shortest length. ``position``: the middle against the mean of
        the bookends at the same length.
    metric, least
        What is compared; at least this ratio, or this difference in nats.
    length
        The largest tested length up to which every length holds; None where there is none.
    censored
        ``"above"``: it holds at every tested length, so the knee lies at ``length`` or above. ``"below"``: it is not
        shown to hold at the first comparison, so the knee lies below ``before``. None for a knee between ``length``
        and ``before``, and where nothing could be compared.
    before
        The first length that is not shown to hold; None where all are.
    shown_to_fail
        The first length that is shown not to hold; None where there is none.
    steps
        All comparisons.
    n
        Items that they rest on.
    warnings
        What the user should know.
    """

    kind: str
    metric: str
    least: float
    length: float | None
    censored: str | None
    before: float | None
    shown_to_fail: float | None
    steps: tuple[KneeStep, ...]
    n: int
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        where = {"above": f">= {short_number(self.length)}", "below": f"< {short_number(self.before)}"}
        return (
            f"Knee({self.kind}, {self.metric}: {where.get(self.censored or '', short_number(self.length))}, n={self.n})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms; None where undefined."""
        return {**vars(self), "steps": [step.to_dict() for step in self.steps], "warnings": list(self.warnings)}


@dataclass(frozen=True)
class Knees:
    """The length knee, and apart from it the position knee; that is None without a first, last and middle depth."""

    length: Knee
    position: Knee | None

    @property
    def found(self) -> tuple[Knee, ...]:
        """The knees that there are."""
        return (self.length,) if self.position is None else (self.length, self.position)

    def __repr__(self) -> str:
        return f"Knees(length={self.length}, position={self.position})"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {
            "length": self.length.to_dict(),
            "position": None if self.position is None else self.position.to_dict(),
        }


def find_knees(
    outcomes: Iterable[Outcome],
    metric: str = "strict",
    length_axis: str = "length",
    depth_axis: str | None = "depth",
    where: Condition | None = None,
    pool: Collection[str] = (),
    least_ratio: float = 0.9,
    nats: float = math.log(2),
    level: float = 0.95,
) -> Knees:
    """Find how long a context may be.

    Parameters
    ----------
    outcomes
        Of a sweep over lengths, or over lengths and depths of the evidence: the same depths at every length.
    metric
        An accuracy (compared as a ratio), or ``logprob`` or ``margin`` (as a difference in nats, within items).
    length_axis, depth_axis
        Keys of the condition. With a depth axis of None, or without a first, last and middle depth, everything of a
        length counts as its middle.
    where, pool
        As in :func:`attnprobe.tasks.item_table.item_table`.
    least_ratio
        Of accuracies: what part of the reference must be kept.
    nats
        How much less log-probability than the reference still holds. The default log 2: the answer may be half as
        probable.
    level
        That all intervals of a knee hold at once.

    Raises
    ------
    InputError
        For another metric, fewer than two lengths, depths that differ, arguments out of range.
    """
    if metric not in ANSWERS:
        raise InputError(f"metric {metric!r} has no knee; expected one of {', '.join(ANSWERS)}")
    level = fraction("level", level)
    least = fraction("least_ratio", least_ratio) if metric in ACCURACIES else -positive_number("nats", nats)
    outcomes = list(outcomes)
    lengths = item_table(outcomes, metric, length_axis, where, {*pool, *filter(None, [depth_axis])}).levels
    if len(lengths) < 2 or any(isinstance(length, str) for length in lengths):
        raise InputError(f"the lengths are {', '.join(map(repr, lengths))}; a knee needs two or more, as numbers")
    tables = [
        item_table(outcomes, metric, depth_axis or length_axis, {**(where or {}), length_axis: length}, pool)
        for length in lengths
    ]
    for length, table in zip(lengths, tables, strict=True):
        if depth_axis and table.levels != tables[0].levels:
            raise InputError(
                f"{length_axis}={length} has the depths {table.levels}, {lengths[0]} has {tables[0].levels}; "
                "test the same ones"
            )
    given, tables = tables, common_items(tables)
    note = left_out_note(given, tables)
    ends, reason = find_ends(tables[0].levels, depth_axis, outcomes) if depth_axis else (None, None)
    few = depth_axis is None or len(tables[0].levels) <= 2
    warnings = tuple(
        filter(None, (note, None if few or reason is None else f"all depths count as the middle: {reason}"))
    )
    centre = list(range(len(tables[0].levels))) if ends is None else list(ends.middle)
    parts = [_part(table, centre) for table in tables]
    numbers = [float(length) for length in lengths]
    compared = _compared(numbers[1:], parts[1:], [parts[0]] * (len(parts) - 1), metric, least, level)
    length_knee = _knee("length", metric, least, compared, warnings, first=numbers[0])
    if ends is None:
        return Knees(length_knee, None)
    bookends = [_part(table, [ends.first, ends.last]) for table in tables]
    compared = _compared(numbers, parts, bookends, metric, least, level)
    return Knees(length_knee, _knee("position", metric, least, compared, warnings, first=None))


_Part = tuple[np.ndarray, int]
"""Values by item, and how many trials they rest on."""


def _part(table: ItemTable, columns: list[int]) -> _Part:
    return table.values[:, columns].mean(axis=1), int(table.trials[:, columns].sum())


def _compared(
    lengths: list[float], values: list[_Part], references: list[_Part], metric: str, least: float, level: float
) -> tuple[KneeStep, ...]:
    each = 1 - (1 - level) / len(lengths)
    steps = []
    for length, (value, trials), (reference, of) in zip(lengths, values, references, strict=True):
        if metric in ACCURACIES:
            found = ratio_of_accuracies(value, reference, (trials, of), each)
        else:
            found = item_mean(value - reference, each)
        state = "unclear"
        if found.low is not None and found.high is not None:
            state = "holds" if found.low >= least else "fails" if found.high < least else "unclear"
        steps.append(KneeStep(length, found, state))
    return tuple(steps)


def _knee(
    kind: str, metric: str, least: float, steps: tuple[KneeStep, ...], warnings: tuple[str, ...], first: float | None
) -> Knee:
    """``first``: the length that the others are compared with, if it has no step of its own."""
    n = steps[0].comparison.n
    failing = next((step.length for step in steps if step.state == "fails"), None)
    place = next((place for place, step in enumerate(steps) if step.state != "holds"), None)
    start = steps[0].comparison
    missing = start.reason if start.low is None else None
    if first is not None and start.estimate == math.inf:
        missing = f"nothing is answered at {first:g}, which the others are compared with"
    if missing:
        return Knee(kind, metric, least, None, None, None, failing, steps, n, (*warnings, f"not determined: {missing}"))
    if place is None:
        return Knee(kind, metric, least, steps[-1].length, "above", None, failing, steps, n, warnings)
    before = steps[place].length
    if place == 0:
        if first is not None:
            warnings = (
                *warnings,
                f"{first:g} is what the others are compared with: whether it is reliable is not tested",
            )
        return Knee(kind, metric, least, None, "below", before, failing, steps, n, warnings)
    return Knee(kind, metric, least, steps[place - 1].length, None, before, failing, steps, n, warnings)
