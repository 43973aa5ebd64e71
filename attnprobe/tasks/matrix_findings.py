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
from attnprobe.tasks.contest import Contest, contests, is_contest
from attnprobe.tasks.ends import DEPTH
from attnprobe.tasks.item_table import laid_out, left_out_note
from attnprobe.tasks.knee import Knees, find_knees
from attnprobe.tasks.outcome import ACCURACIES, ANSWERS, Outcome, measured
from attnprobe.tasks.position_means import PositionMeans, means_by_position
from attnprobe.tasks.price import LengthCurve, length_curve
from attnprobe.tasks.published import BY_LENGTH

LENGTH = "length"
CONFLICT = (
    "two statements conflict and neither is true: the answer and what is scored are the gold one's, of which none is "
    "right and none is lost; no knee and no loss by length"
)


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
        Items with a value in every cell; the others are left out.
    note
        What was left out; None where nothing was.
    """

    metric: str
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    values: np.ndarray
    n: int
    note: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms; None where undefined."""
        return {
            "metric": self.metric,
            "lengths": list(self.lengths),
            "depths": list(self.depths),
            "values": json_values(self.values.tolist()),
            "n": self.n,
            "note": self.note,
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
    contests
        Where two statements conflict, which one wins, by depth. Then no answer is right, and there are no knees and no
        ``by_length``; empty elsewhere.
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
    contests: tuple[Contest, ...]
    baselines: tuple[Baseline, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        parts = ("matrices", "knees", "by_length", "accuracy", "means")
        return {
            **{part: {name: one.to_dict() for name, one in getattr(self, part).items()} for part in parts},
            "contests": [one.to_dict() for one in self.contests],
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
    known = measured(cells)
    knees: dict[str, Knees] = {}
    curves: dict[str, LengthCurve] = {}
    notes: dict[str, None] = {}
    if is_contest(cells):
        notes[CONFLICT] = None
    for name in known if not is_contest(cells) else ():
        if name in ANSWERS and name != "margin":
            try:
                knees[name] = find_knees(cells, name)
            except InputError as error:
                notes[f"no knee: {error}"] = None
        if name in ANSWERS:
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
        contests=contests(cells, (LENGTH,)),
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
    kept = [
        outcome
        for outcome in outcomes
        if isinstance(outcome.condition.get(LENGTH), int)
        and isinstance(outcome.condition.get(DEPTH), int | float)
        and outcome.value(metric) is not None
    ]
    if not kept:
        raise InputError(f"no outcome has {metric} at a length and a depth; check the metric and the task")
    given = laid_out(
        kept,
        metric,
        f"{LENGTH} and {DEPTH}",
        lambda outcome: (outcome.condition[LENGTH], outcome.condition[DEPTH]),
        lambda outcome: outcome.trial,
    )
    table = given.complete()
    lengths, depths = (sorted(set(axis)) for axis in zip(*table.levels, strict=True))
    values = np.full((len(lengths), len(depths)), np.nan)
    for (length, depth), column in zip(table.levels, table.values.T, strict=True):
        if len(column):
            values[lengths.index(length), depths.index(depth)] = column.mean()
    if metric == "logprob":
        values -= table.values.mean() if table.items else 0.0
    return Matrix(
        metric, tuple(lengths), tuple(map(float, depths)), values, len(table.items), left_out_note([given], [table])
    )
