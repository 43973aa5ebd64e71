"""Outcomes as a table of items by conditions, each entry the mean over repetitions: what all comparisons start from.

A repetition is a trial, and a value of each further key that is averaged over. Lengths and positions are no alike, so a
mean over other repetitions here than there would take the one for the other: what is compared has the same repetitions
of an item everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnprobe.errors import InputError
from attnprobe.tasks.cell import Condition
from attnprobe.tasks.outcome import ConditionValue, Outcome, check_metric
from attnprobe.terminal import count


@dataclass(frozen=True, eq=False)
class ItemTable:
    """One metric by item, level of one axis, and repetition.

    Parameters
    ----------
    metric, axis
        What was measured, and the key of the condition that is laid out.
    items, levels, repetitions
        Of the three axes; levels that are numbers ascend, everything else stands as it came.
    cells
        float64 [item, level, repetition]; NaN where there is none.
    lengths
        The same of the fact ``prompt_tokens``.
    """

    metric: str
    axis: str
    items: tuple[str, ...]
    levels: tuple[Any, ...]
    repetitions: tuple[Any, ...]
    cells: np.ndarray
    lengths: np.ndarray

    def __repr__(self) -> str:
        return f"ItemTable({self.metric}: {len(self.items)} items by {len(self.levels)} levels of {self.axis})"

    @property
    def trials(self) -> np.ndarray:
        """int64 [item, level]: how many repetitions have a value."""
        found: np.ndarray = (~np.isnan(self.cells)).sum(axis=2)
        return found

    @property
    def values(self) -> np.ndarray:
        """float64 [item, level]: mean over repetitions; NaN where there is none."""
        return self._mean(self.cells)

    @property
    def tokens(self) -> np.ndarray:
        """float64 [item, level]: mean of the prompts' tokens; NaN where one with a value does not say them."""
        known: np.ndarray = (~np.isnan(self.lengths)).sum(axis=2) == self.trials
        return np.where(known, self._mean(self.lengths), np.nan)

    def _mean(self, cells: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):  # 0 / 0 is the NaN that is meant
            mean: np.ndarray = np.nansum(cells, axis=2) / (~np.isnan(cells)).sum(axis=2)
        return mean

    def _aligned(self, items: Sequence[str], repetitions: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """``cells`` and ``lengths`` of some items, at places of all these repetitions."""
        rows, places = [self.items.index(one) for one in items], [repetitions.index(one) for one in self.repetitions]
        found = np.full((2, len(rows), len(self.levels), len(repetitions)), np.nan)
        found[..., places] = self.cells[rows], self.lengths[rows]
        return found[0], found[1]

    def complete(self) -> ItemTable:
        """What can be compared: see :func:`common_items`."""
        return common_items([self])[0]


def common_items(tables: Sequence[ItemTable]) -> list[ItemTable]:
    """Of every item the repetitions that have a value at every level of all tables; items without any are left out."""
    shared = [item for item in tables[0].items if all(item in table.items for table in tables)]
    repetitions = tuple(dict.fromkeys(one for table in tables for one in table.repetitions))
    aligned = [table._aligned(shared, repetitions) for table in tables]
    full = np.all([~np.isnan(cells).any(axis=1) for cells, _ in aligned], axis=0)  # [item, repetition]
    kept = full.any(axis=1)
    items = tuple(item for item, keep in zip(shared, kept, strict=True) if keep)
    return [
        replace(
            table,
            items=items,
            repetitions=repetitions,
            cells=np.where(full[:, None], cells, np.nan)[kept],
            lengths=np.where(full[:, None], lengths, np.nan)[kept],
        )
        for table, (cells, lengths) in zip(tables, aligned, strict=True)
    ]


def left_out_note(before: Sequence[ItemTable], after: Sequence[ItemTable]) -> str | None:
    """What :func:`common_items` left out, counted; None where nothing was."""
    given, kept = {item for table in before for item in table.items}, set(after[0].items)
    known = sum(int(table.trials[[item in kept for item in table.items]].sum()) for table in before)
    cells = known - sum(int(table.trials.sum()) for table in after)
    parts = []
    if len(kept) < len(given):
        parts.append(f"{len(given) - len(kept)} of {count(len(given), 'item')} left out: no value there")
    if cells:
        parts.append(
            f"{count(cells, 'cell')} of the other items left out, as what they would be compared with is missing"
        )
    return "; ".join(parts) or None


def item_table(
    outcomes: Iterable[Outcome],
    metric: str,
    axis: str,
    where: Condition | None = None,
    pool: Collection[str] = (),
) -> ItemTable:
    """Lay outcomes out by item and one key of their condition.

    Parameters
    ----------
    outcomes
        Those without the key in their condition (a closed-book baseline beside a sweep) are left out.
    metric
        One of :data:`attnprobe.tasks.outcome.METRICS`.
    axis
        The key to lay out.
    where
        Keep the outcomes whose condition has these values.
    pool
        Other keys that may differ between outcomes of one entry: with the trial they tell its repetitions apart.

    Raises
    ------
    InputError
        When no outcome is left or none has the metric, one occurs twice, or they differ in a key that is neither in
        ``where`` nor in ``pool``.
    """
    check_metric(metric)
    where = {} if where is None else where
    chosen = [
        outcome
        for outcome in outcomes
        if outcome.condition.get(axis) is not None
        and all(key in outcome.condition and outcome.condition[key] == wanted for key, wanted in where.items())
    ]
    wanted = "".join(f", {key}={value!r}" for key, value in where.items())
    if not any(outcome.value(metric) is not None for outcome in chosen):
        raise InputError(f"no outcome has {metric} and a condition with {axis!r}{wanted}; check the axis and the task")
    _check_repeats(chosen)
    for key in sorted({key for outcome in chosen for key in outcome.condition} - {axis, *where, *pool}):
        found = list(dict.fromkeys(outcome.condition.get(key) for outcome in chosen))
        if len(found) > 1:
            shown = ", ".join(map(repr, found[:4])) + (", ..." if len(found) > 4 else "")
            raise InputError(f"the outcomes differ in {key!r} ({shown}) beside {axis!r}; choose one value of it")
    table = laid_out(
        chosen,
        metric,
        axis,
        lambda outcome: outcome.condition[axis],
        lambda outcome: (outcome.trial, *(outcome.condition.get(key) for key in pool)),
    )
    levels = _levels(axis, table.levels)
    order = [table.levels.index(level) for level in levels]
    return replace(table, levels=levels, cells=table.cells[:, order], lengths=table.lengths[:, order])


def condition_table(outcomes: Iterable[Outcome], metric: str) -> ItemTable:
    """The outcomes that have the metric, by item and whole condition, trials as repetitions; may be empty."""
    return laid_out(
        [outcome for outcome in outcomes if outcome.value(metric) is not None],
        metric,
        "condition",
        lambda outcome: frozenset(outcome.condition.items()),
        lambda outcome: outcome.trial,
    )


def laid_out(
    outcomes: Sequence[Outcome],
    metric: str,
    axis: str,
    level: Callable[[Outcome], Hashable],
    repetition: Callable[[Outcome], Hashable],
) -> ItemTable:
    """Outcomes by item, level and repetition, each as it came first."""
    names = [[of(outcome) for outcome in outcomes] for of in (lambda outcome: outcome.item, level, repetition)]
    axes = [{name: place for place, name in enumerate(dict.fromkeys(own))} for own in names]
    cells, lengths = (np.full([len(one) for one in axes], np.nan) for _ in range(2))
    for outcome, *entry in zip(outcomes, *names, strict=True):
        value = outcome.value(metric)
        if value is not None:
            place = tuple(one[name] for one, name in zip(axes, entry, strict=True))
            cells[place] = value
            tokens = outcome.facts.get("prompt_tokens")
            lengths[place] = tokens if type(tokens) is int and tokens > 0 else np.nan
    items, levels, repetitions = (tuple(one) for one in axes)
    return ItemTable(metric, axis, items, levels, repetitions, cells, lengths)  # type: ignore[arg-type]


def _check_repeats(outcomes: list[Outcome]) -> None:
    seen = set()
    for outcome in outcomes:
        key = outcome.item, outcome.trial, frozenset(outcome.condition.items())
        if key in seen:
            raise InputError(f"{outcome!r} occurs twice; number the trials of an item apart")
        seen.add(key)


def _levels(axis: str, levels: tuple[ConditionValue, ...]) -> tuple[ConditionValue, ...]:
    texts = sum(isinstance(level, str) for level in levels)
    if 0 < texts < len(levels):
        raise InputError(f"the condition {axis!r} is a text in some outcomes and a number in others; use one of them")
    return levels if texts else tuple(sorted(levels))  # type: ignore[type-var]
