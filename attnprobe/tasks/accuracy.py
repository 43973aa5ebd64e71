"""Accuracy by position of the evidence: each position alone, and the same items compared across positions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.arguments import Seed
from attnprobe.bands import BandTable
from attnprobe.errors import InputError
from attnprobe.estimates import Interval, short_number
from attnprobe.multiplicity import sign_flip_max_t
from attnprobe.tasks.cell import Condition
from attnprobe.tasks.context_rot import BEYOND, FLOOR, RotStatistic, rot_statistics
from attnprobe.tasks.ends import Ends, find_ends
from attnprobe.tasks.item_intervals import clustered_interval, item_mean, wilson_interval
from attnprobe.tasks.item_table import ItemTable, item_table, left_out_note
from attnprobe.tasks.outcome import ACCURACIES, ConditionValue, Outcome
from attnprobe.tasks.paired_cells import MIN_TEST_ITEMS, PairedCells, paired_cells


@dataclass(frozen=True)
class PositionCell:
    """Accuracy at one position.

    Parameters
    ----------
    position
        As the condition has it.
    accuracy
        Mean of items' accuracies; None without an item.
    hits, trials, items
        What it rests on.
    wilson
        Wilson interval over trials; right where each item has one.
    clustered
        Where items have several trials: the interval with the item as the unit. None elsewhere.
    """

    position: ConditionValue
    accuracy: float | None
    hits: int
    trials: int
    items: int
    wilson: Interval
    clustered: Interval | None

    def __repr__(self) -> str:
        return f"PositionCell({self.position}: {self.interval}, {self.hits} of {self.trials}, items={self.items})"

    @property
    def interval(self) -> Interval:
        """The one to go by: ``clustered`` where there is one."""
        return self.wilson if self.clustered is None else self.clustered

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        clustered = None if self.clustered is None else self.clustered.to_dict()
        return {**vars(self), "wilson": self.wilson.to_dict(), "clustered": clustered}


@dataclass(frozen=True)
class EndContrast:
    """One end of the context less its middle.

    Parameters
    ----------
    interval
        Mean over items of their differences.
    p
        That it is 0: sign flips of whole items, adjusted over the two ends (max-T); None below 6 items.
    """

    interval: Interval
    p: float | None

    def __repr__(self) -> str:
        return f"EndContrast({self.interval}, p={short_number(self.p)}, n={self.interval.n})"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {"interval": self.interval.to_dict(), "p": self.p}


@dataclass(frozen=True)
class PositionAccuracy:
    """Result of :func:`accuracy_by_position`.

    Parameters
    ----------
    metric
        ``strict`` or ``lenient``.
    cells
        By position: everything that was measured there; where other conditions are pooled, what can be compared.
    ends
        Columns of the first, last and middle positions; None where they were not tested, for which a warning says why.
    head_minus_middle, tail_minus_middle
        None without ends.
    gap_max, gap_mean, best_worst
        See :class:`RotStatistic`.
    paired
        Cochran's Q over positions; McNemar of each end against each middle position.
    n
        Items with a value at every position: what comparisons rest on.
    warnings
        What the user should know.
    """

    metric: str
    cells: tuple[PositionCell, ...]
    ends: Ends | None
    head_minus_middle: EndContrast | None
    tail_minus_middle: EndContrast | None
    gap_max: RotStatistic
    gap_mean: RotStatistic
    best_worst: RotStatistic
    paired: PairedCells
    n: int
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        curve = " ".join(short_number(cell.accuracy) for cell in self.cells)
        return f"PositionAccuracy({self.metric}: {curve}; gap_mean={self.gap_mean.interval}, n={self.n})"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms; None where undefined."""
        ends = {name: getattr(self, name) for name in ("head_minus_middle", "tail_minus_middle")}
        return {
            "metric": self.metric,
            "cells": [cell.to_dict() for cell in self.cells],
            **{name: None if end is None else end.to_dict() for name, end in ends.items()},
            **{name: getattr(self, name).to_dict() for name in ("gap_max", "gap_mean", "best_worst", "paired")},
            "n": self.n,
            "warnings": list(self.warnings),
        }


def accuracy_by_position(
    outcomes: Iterable[Outcome],
    metric: str = "strict",
    axis: str = "position",
    where: Condition | None = None,
    pool: Collection[str] = (),
    level: float = 0.95,
    draws: int = 2000,
    seed: Seed = 0,
    bands: BandTable | None = None,
) -> PositionAccuracy:
    """Compare how often items are answered with their evidence at different positions.

    Parameters
    ----------
    outcomes
        Of a sweep of the evidence through positions or depths.
    metric
        ``strict`` or ``lenient``.
    axis, where, pool
        As in :func:`attnprobe.tasks.item_table.item_table`.
    level, draws, seed, bands
        As in :func:`attnprobe.tasks.context_rot.rot_statistics`.

    Raises
    ------
    InputError
        For a metric that is no accuracy, outcomes that do not fit together, arguments out of range.
    """
    check_accuracy(metric)
    outcomes = list(outcomes)
    table = item_table(outcomes, metric, axis, where, pool)
    full = table.complete()
    ends, reason = find_ends(table.levels, axis, outcomes)
    gap_max, gap_mean, best_worst = rot_statistics(full, ends, reason, level, draws, seed, bands)
    head, tail = end_contrasts(full.values, ends, level, seed, span=2.0)
    pairs = [] if ends is None else [(end, place) for end in (ends.first, ends.last) for place in ends.middle]
    note = left_out_note([table], [full])
    warnings = [f"comparisons: {note}"] if note else []
    # Without other conditions to average over, a place's mean is right with whatever it has.
    shown = full if pool else table
    cells = tuple(_cell(shown, column, level) for column in range(len(table.levels)))
    if max(cell.accuracy or 0.0 for cell in cells) < FLOOR:
        warnings.append(BEYOND)
    if reason and len(table.levels) > 2:
        warnings.append(reason)
    return PositionAccuracy(
        metric=metric,
        cells=cells,
        ends=ends,
        head_minus_middle=head,
        tail_minus_middle=tail,
        gap_max=gap_max,
        gap_mean=gap_mean,
        best_worst=best_worst,
        paired=paired_cells(full, pairs),
        n=len(full.items),
        warnings=tuple(warnings),
    )


def check_accuracy(metric: str) -> None:
    """``InputError`` when the metric is no accuracy."""
    if metric not in ACCURACIES:
        raise InputError(f"metric {metric!r} is no accuracy; expected one of {', '.join(ACCURACIES)}")


def end_contrasts(
    values: np.ndarray, ends: Ends | None, level: float, seed: Seed, span: float | None
) -> tuple[EndContrast | None, EndContrast | None]:
    """First and last position less the middle, of values float64 [item, position] without gaps; ``span`` as in
    :func:`item_mean`."""
    if ends is None:
        return None, None
    differences = ends.differences(values)
    tested = len(values) >= MIN_TEST_ITEMS
    p = sign_flip_max_t(differences, seed).tolist() if tested else [None, None]
    head, tail = (EndContrast(item_mean(differences[:, end], level, span), p[end]) for end in (0, 1))
    return head, tail


def _cell(table: ItemTable, column: int, level: float) -> PositionCell:
    values, counts = table.values[:, column], table.trials[:, column]
    kept = ~np.isnan(values)
    hits, trials, items = round(float((values * counts)[kept].sum())), int(counts.sum()), int(kept.sum())
    clustered = clustered_interval(values[kept], trials, level) if trials > items else None
    accuracy = float(values[kept].mean()) if items else None
    wilson = wilson_interval(hits, trials, items, level)
    return PositionCell(table.levels[column], accuracy, hits, trials, items, wilson, clustered)
