"""Is the answer more probable where its evidence gets more attention? Rank correlations, with confounders held fixed.

Over all cells, items that get more mass may simply be easier; within an item, both may follow position. So the headline
compares shuffles of one item in one condition. Even that is an association, no effect of mass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.arguments import table
from attnprobe.errors import InputError
from attnprobe.estimates import short_number
from attnprobe.multiplicity import adjust_p_values
from attnprobe.ranks import RankCorrelation, ranked_cells
from attnprobe.tasks.outcome import ACCURACIES, ATTENTION, NATS, Outcome


@dataclass(frozen=True)
class Association:
    """One predictor's rank correlation with the answer.

    Parameters
    ----------
    name
        ``mass``, ``advantage``, or the name of a given predictor (a layer, a head).
    correlation
        ``pooled``; ``within_question``: within item; ``within_position``: within item and condition, the headline.
        Intervals are over items.
    p_adjusted
        The headline's p, adjusted over all predictors (Holm); None where there is none.
    """

    name: str
    correlation: RankCorrelation
    p_adjusted: float | None

    def __repr__(self) -> str:
        headline = self.correlation.within_position
        return f"Association({self.name}: {headline}, p={short_number(self.p_adjusted)}, n={headline.n})"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms; what correlations call a question is an item here."""
        correlation = {name.replace("question", "item"): value for name, value in self.correlation.to_dict().items()}
        return {"name": self.name, "correlation": correlation, "p_adjusted": self.p_adjusted}


@dataclass(frozen=True)
class Associations:
    """Result of :func:`associate`: by name, and the metric that they are of."""

    metric: str
    by_name: Mapping[str, Association]

    def __repr__(self) -> str:
        return f"Associations({self.metric}: {', '.join(map(repr, self.by_name.values()))})"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {"metric": self.metric, "by_name": {name: one.to_dict() for name, one in self.by_name.items()}}


def associate(
    outcomes: Iterable[Outcome],
    metric: str = "logprob",
    predictors: Mapping[str, Sequence[float] | np.ndarray] | None = None,
    level: float = 0.95,
) -> Associations:
    """Rank correlation (Spearman's) of the evidence's mass and advantage with the answer.

    Parameters
    ----------
    outcomes
        Cells; one without a value of the predictor or the metric (a closed-book baseline) has no part. The headline
        needs several trials of an item in a condition.
    metric
        ``logprob``, ``margin`` or an accuracy.
    predictors
        Others, each with one value a cell, [cell], NaN where there is none: the evidence's mass in one layer, by one
        head; :func:`by_layer` takes [cell, layer] apart.
    level
        Of the intervals.

    Raises
    ------
    InputError
        For another metric, a predictor that has not one finite value (or NaN) a cell or a name that is taken.
    """
    if metric not in (*NATS, *ACCURACIES):
        raise InputError(f"metric {metric!r} is no answer; expected one of {', '.join((*NATS, *ACCURACIES))}")
    cells = list(outcomes)
    effect = _column(cells, metric)
    columns = {name: _column(cells, name) for name in ATTENTION}
    for name, given in (predictors or {}).items():
        if name in columns:
            raise InputError(f"the predictor {name!r} is there already; give it another name")
        values = table(f"predictor {name!r}", given, ("cell",))
        if len(values) != len(cells) or np.isinf(values).any():
            raise InputError(
                f"predictor {name!r} has {len(values)} values; give one a cell ({len(cells)}), finite or NaN"
            )
        columns[name] = values
    items = {item: place for place, item in enumerate(dict.fromkeys(cell.item for cell in cells))}
    item = np.array([items[cell.item] for cell in cells], dtype=np.int64)
    conditions = [frozenset(cell.condition.items()) for cell in cells]
    places = {condition: place for place, condition in enumerate(dict.fromkeys(conditions))}
    place = np.array([places[condition] for condition in conditions], dtype=np.float64)
    found = {name: _correlation(item, place, values, effect, level) for name, values in columns.items()}
    tested = [name for name, one in found.items() if one.p_value is not None]
    adjusted = (
        dict(zip(tested, adjust_p_values([found[name].p_value for name in tested]).tolist(), strict=True))
        if tested
        else {}
    )
    return Associations(metric, {name: Association(name, one, adjusted.get(name)) for name, one in found.items()})


def by_layer(values: np.ndarray, layers: Sequence[int]) -> dict[str, np.ndarray]:
    """Predictors ``layer 0``, ... for :func:`associate`, of values [cell, layer] and the layers' numbers.

    Raises
    ------
    InputError
        When there are not as many layers as numbers.
    """
    array = table("values", values, ("cell", "layer"))
    if array.shape[1] != len(layers):
        raise InputError(f"values has {array.shape[1]} layers and {len(layers)} numbers; give one a layer")
    return {f"layer {layer}": array[:, i] for i, layer in enumerate(layers)}


def _column(cells: Sequence[Outcome], name: str) -> np.ndarray:
    values = (cell.value(name) for cell in cells)
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _correlation(
    item: np.ndarray, place: np.ndarray, values: np.ndarray, effect: np.ndarray, level: float
) -> RankCorrelation:
    kept = ~(np.isnan(values) | np.isnan(effect))
    rows = np.stack([place, values, effect], axis=1)
    return ranked_cells([rows[kept & (item == one)] for one in np.unique(item)], level, "item")
