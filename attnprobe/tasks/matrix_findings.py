"""Findings of a needle in a haystack: matrices of length by depth, the knees, and both axes for themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.errors import InputError
from attnprobe.estimates import json_values
from attnprobe.tasks.accuracy import PositionAccuracy, accuracy_by_position
from attnprobe.tasks.baselines import Baseline, baselines
from attnprobe.tasks.knee import Knees, find_knees
from attnprobe.tasks.outcome import ACCURACIES, METRICS, NATS, Outcome
from attnprobe.tasks.position_means import PositionMeans, means_by_position
from attnprobe.tasks.price import LengthCurve, length_curve
from attnprobe.tasks.published import BY_LENGTH

LENGTH, DEPTH = "length", "depth"
PRICED = (*ACCURACIES, *NATS)


@dataclass(frozen=True, eq=False)
class Matrix:
    """One metric by length and depth.

    Parameters
    ----------
    metric
        One of :data:`attnprobe.tasks.outcome.METRICS`.
    lengths
        Of the prompt, tokens.
    depths
        Of the evidence, 0 to 1.
    values
        float64 [length, depth]: mean over items of their means over trials; of ``logprob`` each item less its own mean
        over all cells. NaN where there is none.
    n
        Items with a value in every cell; of ``logprob`` the others are left out.
    """

    metric: str
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    values: np.ndarray
    n: int

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms; None where undefined."""
        return {
            "metric": self.metric,
            "lengths": list(self.lengths),
            "depths": list(self.depths),
            "values": json_values(self.values.tolist()),
            "n": self.n,
        }


@dataclass(frozen=True, eq=False)
class MatrixFindings:
    """Result of :func:`matrix_findings`.

    Parameters
    ----------
    matrices
        By metric, those that were measured.
    knees
        By ``strict``, ``lenient`` and ``logprob``: how long a context may be.
    by_length
        Mean over depths against the prompt's tokens, by accuracy, ``logprob`` and ``margin``.
    accuracy, means
        By depth, over all lengths; metrics as in a sweep.
    baselines
        Beside all cells.
    notes
        What could not be said, and why.
    """

    matrices: Mapping[str, Matrix]
    knees: Mapping[str, Knees]
    by_length: Mapping[str, LengthCurve]
    accuracy: Mapping[str, PositionAccuracy]
    means: Mapping[str, PositionMeans]
    baselines: tuple[Baseline, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        parts = ("matrices", "knees", "by_length", "accuracy", "means")
        return {
            **{part: {name: one.to_dict() for name, one in getattr(self, part).items()} for part in parts},
            "baselines": [one.to_dict() for one in self.baselines],
            "published_by_length": [one.to_dict() for one in BY_LENGTH],
            "notes": list(self.notes),
        }


def matrix_findings(outcomes: Sequence[Outcome]) -> MatrixFindings:
    """Analyse a length by depth matrix.

    Parameters
    ----------
    outcomes
        With the conditions ``length`` and ``depth``, and baselines.

    Raises
    ------
    InputError
        Outcomes that do not fit together.
    """
    cells = [outcome for outcome in outcomes if outcome.condition.get(LENGTH) is not None]
    known = [name for name in METRICS if any(one.value(name) is not None for one in cells)]
    knees: dict[str, Knees] = {}
    curves: dict[str, LengthCurve] = {}
    notes: dict[str, None] = {}
    for name in known:
        if name in PRICED and name != "margin":
            try:
                knees[name] = find_knees(cells, name)
            except InputError as error:
                notes[f"no knee: {error}"] = None
        if name in PRICED:
            try:
                curves[name] = length_curve(cells, name, pool=(DEPTH,))
            except InputError as error:
                notes[f"no loss by length: {error}"] = None
    by_depth: dict[str, Any] = {"axis": DEPTH, "pool": (LENGTH,)}
    return MatrixFindings(
        matrices={name: matrix(cells, name) for name in known},
        knees=knees,
        by_length=curves,
        accuracy={name: accuracy_by_position(cells, name, **by_depth) for name in known if name in ACCURACIES},
        means={name: means_by_position(cells, name, **by_depth) for name in known if name not in ACCURACIES},
        baselines=baselines(outcomes, lambda outcome: outcome.condition.get(LENGTH) is not None),
        notes=tuple(notes),
    )


def matrix(outcomes: Sequence[Outcome], metric: str) -> Matrix:
    """Lay one metric out by length and depth.

    Parameters
    ----------
    outcomes
        With the conditions ``length`` and ``depth``; others are left out.
    metric
        One of :data:`attnprobe.tasks.outcome.METRICS`.

    Raises
    ------
    InputError
        For an unknown metric, or when no outcome has it.
    """
    places: dict[tuple[str, int, float], list[float]] = {}
    for outcome in outcomes:
        length, depth, value = outcome.condition.get(LENGTH), outcome.condition.get(DEPTH), outcome.value(metric)
        if isinstance(length, int) and isinstance(depth, int | float) and value is not None:
            places.setdefault((outcome.item, length, float(depth)), []).append(value)
    if not places:
        raise InputError(f"no outcome has {metric} at a length and a depth; check the metric and the task")
    items, lengths, depths = (sorted(set(axis)) for axis in zip(*places, strict=True))
    values = np.full((len(items), len(lengths), len(depths)), np.nan)
    for (item, length, depth), found in places.items():
        values[items.index(item), lengths.index(length), depths.index(depth)] = np.mean(found)
    full = ~np.isnan(values).any(axis=(1, 2))
    if metric == "logprob":
        values = values[full] - values[full].mean(axis=(1, 2), keepdims=True)
    with np.errstate(invalid="ignore"):
        mean = np.nansum(values, axis=0) / (~np.isnan(values)).sum(axis=0)
    return Matrix(metric, tuple(lengths), tuple(depths), mean, int(full.sum()))
