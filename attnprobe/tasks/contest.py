"""Two statements that conflict, of which neither is true: which one wins, by place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnprobe.estimates import Interval
from attnprobe.tasks.ends import DEPTH
from attnprobe.tasks.item_intervals import clustered_interval, item_mean
from attnprobe.tasks.item_table import item_table
from attnprobe.tasks.outcome import Outcome


@dataclass(frozen=True)
class Contest:
    """The gold statement at one depth, the foil at the mirrored one.

    Parameters
    ----------
    depth
        Of the gold statement.
    wins
        Part of prompts in which the gold answer is more probable than the foil.
    margin
        Its log-probability less the foil's, nats, mean over items.
    """

    depth: float
    wins: Interval
    margin: Interval

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {"depth": self.depth, "wins": self.wins.to_dict(), "margin": self.margin.to_dict()}


def is_contest(outcomes: Sequence[Outcome]) -> bool:
    """Whether every prompt holds two statements that conflict."""
    return bool(outcomes) and all(outcome.facts.get("mode") == "conflicting" for outcome in outcomes)


def contests(outcomes: Sequence[Outcome], pool: Sequence[str]) -> tuple[Contest, ...]:
    """Which statement wins, by depth of the gold one, over the conditions of ``pool``; empty without a margin."""
    if not is_contest(outcomes) or all(outcome.value("margin") is None for outcome in outcomes):
        return ()
    table = item_table(outcomes, "margin", DEPTH, pool=pool).complete()
    found = []
    for place, depth in enumerate(table.levels):
        wins = (table.cells[:, place] > 0).sum(axis=1) / table.trials[:, place]
        trials = int(table.trials[:, place].sum())
        found.append(Contest(float(depth), clustered_interval(wins, trials), item_mean(table.values[:, place])))
    return tuple(found)
