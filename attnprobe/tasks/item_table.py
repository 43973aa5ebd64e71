"""Outcomes as a table of items by conditions, each entry the mean over trials: what all comparisons start from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from attnprobe.errors import InputError
from attnprobe.tasks.cell import Condition
from attnprobe.tasks.outcome import ConditionValue, Outcome, check_metric


@dataclass(frozen=True, eq=False)
class ItemTable:
    """One metric by item and level of one axis.

    Parameters
    ----------
    metric, axis
        What was averaged, and the key of the condition that is laid out.
    items, levels
        Of the two axes; numbers ascend, texts stand as they came.
    values
        float64 [item, level]: mean over trials; NaN where there is none.
    trials
        int64 [item, level]: how many trials have a value.
    tokens
        float64 [item, level]: mean of the trials' fact ``prompt_tokens``; NaN where a
        trial has none.
    """

    metric: str
    axis: str
    items: tuple[str, ...]
    levels: tuple[ConditionValue, ...]
    values: np.ndarray
    trials: np.ndarray
    tokens: np.ndarray

    def __repr__(self) -> str:
        return f"ItemTable({self.metric}: {len(self.items)} items by {len(self.levels)} levels of {self.axis})"

    def complete(self) -> ItemTable:
        """The items that have a value at every level: those that can be compared in pairs."""
        kept = ~np.isnan(self.values).any(axis=1)
        return self.of([item for item, keep in zip(self.items, kept, strict=True) if keep])

    def of(self, items: Sequence[str]) -> ItemTable:
        """The same of some items, in their order."""
        rows = [self.items.index(item) for item in items]
        arrays = (self.values[rows], self.trials[rows], self.tokens[rows])
        return ItemTable(self.metric, self.axis, tuple(items), self.levels, *arrays)


def common_items(tables: Sequence[ItemTable]) -> list[ItemTable]:
    """The tables with the items alone that have a value everywhere in all of them, in one order."""
    full = [set(table.complete().items) for table in tables]
    kept = [item for item in tables[0].items if all(item in one for one in full)]
    return [table.of(kept) for table in tables]


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
        Other keys that may differ between outcomes of one entry.

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
    items = tuple(dict.fromkeys(outcome.item for outcome in chosen))
    levels = _levels(axis, [outcome.condition[axis] for outcome in chosen])
    row, column = ({name: place for place, name in enumerate(names)} for names in (items, levels))
    total, trials, tokens = (np.zeros((len(items), len(levels))) for _ in range(3))
    for outcome in chosen:
        value = outcome.value(metric)
        if value is not None:
            entry = row[outcome.item], column[outcome.condition[axis]]
            total[entry] += value
            trials[entry] += 1
            length = outcome.facts.get("prompt_tokens")
            tokens[entry] += length if type(length) is int and length > 0 else np.nan
    with np.errstate(invalid="ignore"):  # 0 / 0 is the NaN that is meant
        return ItemTable(metric, axis, items, levels, total / trials, trials.astype(np.int64), tokens / trials)


def _check_repeats(outcomes: list[Outcome]) -> None:
    seen = set()
    for outcome in outcomes:
        key = outcome.item, outcome.trial, frozenset(outcome.condition.items())
        if key in seen:
            raise InputError(f"{outcome!r} occurs twice; number the trials of an item apart")
        seen.add(key)


def _levels(axis: str, found: list[ConditionValue]) -> tuple[ConditionValue, ...]:
    levels = tuple(dict.fromkeys(found))
    texts = sum(isinstance(level, str) for level in levels)
    if 0 < texts < len(levels):
        raise InputError(f"the condition {axis!r} is a text in some outcomes and a number in others; use one of them")
    return levels if texts else tuple(sorted(levels))  # type: ignore[type-var]
