"""What is answered from memory, and from the evidence alone: how much a context gives, and how much it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from attnprobe.estimates import Interval
from attnprobe.tasks.item_intervals import clustered_interval, item_mean, wilson_interval
from attnprobe.tasks.item_table import condition_table
from attnprobe.tasks.outcome import ACCURACIES, ANSWERS, NATS, Outcome


@dataclass(frozen=True)
class Baseline:
    """One way to ask without the context, and what the context adds to it.

    Parameters
    ----------
    name
        ``closed_book``, ``oracle``, or ``context`` for the cells that they are compared with.
    values
        By metric, its mean over items: accuracies with Wilson's interval (clustered by item), total log-probability
        and margin in nats with t intervals. Metrics that were not measured are left out.
    context_less
        By metric, the context's value less this one's, mean over the items that have both; empty for the context. Less
        the oracle's, whose evidence has its first wording, only prompts with that wording count.
    """

    name: str
    values: dict[str, Interval]
    context_less: dict[str, Interval]

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {
            "name": self.name,
            "values": {metric: interval.to_dict() for metric, interval in self.values.items()},
            "context_less": {metric: interval.to_dict() for metric, interval in self.context_less.items()},
        }


def baselines(
    outcomes: Iterable[Outcome], in_context: Callable[[Outcome], bool], level: float = 0.95
) -> tuple[Baseline, ...]:
    """The baselines that were measured, and the context before them; empty without any baseline.

    Parameters
    ----------
    outcomes
        All cells.
    in_context
        Which cells are the context to compare with, e.g. those with the evidence in the middle.
    level
        Of the intervals.
    """
    cells = list(outcomes)
    context = [cell for cell in cells if in_context(cell)]
    found = []
    for name in ("closed_book", "oracle"):
        alone = [cell for cell in cells if cell.condition.get("baseline") == name]
        if alone:
            # The evidence alone is shown in its first wording, so it is compared with that one in the context.
            same = [cell for cell in context if name != "oracle" or cell.facts.get("wording", 0) == 0]
            found.append(Baseline(name, _values(alone, level), _context_less(same, alone, level)))
    return (Baseline("context", _values(context, level), {}), *found) if found else ()


def item_means(outcomes: Iterable[Outcome], metric: str) -> dict[str, float]:
    """Mean over each item's cells; items that lack a condition that others have are left out."""
    table = condition_table(outcomes, metric).complete()
    return {item: float(own.mean()) for item, own in zip(table.items, table.values, strict=True)}


def _values(outcomes: Sequence[Outcome], level: float) -> dict[str, Interval]:
    found = {}
    for metric in ANSWERS:
        table = condition_table(outcomes, metric).complete()
        if not table.items:
            continue
        means, trials = table.values.mean(axis=1).tolist(), int(table.trials.sum())
        if metric in NATS:
            found[metric] = item_mean(means, level)
        elif trials == len(means):
            found[metric] = wilson_interval(round(sum(means)), trials, trials, level)
        else:
            found[metric] = clustered_interval(means, trials, level)
    return found


def _context_less(context: Sequence[Outcome], alone: Sequence[Outcome], level: float) -> dict[str, Interval]:
    found = {}
    for metric in ANSWERS:
        here, there = item_means(context, metric), item_means(alone, metric)
        both = [here[item] - there[item] for item in here if item in there]
        if both:
            # Two items' differences of accuracies are 2 apart at most; nats have no bound.
            found[metric] = item_mean(both, level, 2.0 if metric in ACCURACIES else None)
    return found
