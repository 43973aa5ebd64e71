"""What a RoPE scaling costs inside the trained window, and how far beyond it the model still reads.

Everything is a difference from the unscaled model on the same texts, with intervals that take texts (and items of
needles) as a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.curve import middle_positions
from attnprobe.estimates import Interval
from attnprobe.norms import mean_of_defined
from attnprobe.rope_data import RopeData

JUDGED = ("logprob", "advantage", "loss")
"""Metrics with a margin. Plain mass is none of them: it falls with length by dilution alone."""
GAINED, KEPT, LOST, LOWERED, UNCLEAR, UNKNOWN = "gained", "kept", "lost", "lowered", "unclear", "unknown"


@dataclass(frozen=True)
class Contrast:
    """A scaling less the unscaled model.

    Parameters
    ----------
    metric
        One of ``JUDGED``.
    interval
        Of the difference, in the metric's unit.
    margin
        What still counts as kept.
    state
        ``kept``: the interval leaves out a loss of the margin or more, though all of it may be a smaller loss.
        ``gained``: it also lies above 0 and reaches a gain of the margin or more. ``lost``: all of it is a loss beyond
        the margin. ``lowered``: all of it is a loss, which may be the margin or more. ``unclear``: none of these.
        ``unknown``: there is no interval.
    """

    metric: str
    interval: Interval
    margin: float
    state: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "metric": self.metric,
            **self.interval.to_dict(),
            "margin": self.margin,
            "state": self.state,
        }


@dataclass(frozen=True)
class AtLength:
    """One length under one scaling.

    Parameters
    ----------
    length
        Tokens.
    inside
        Whether it is within the trained window.
    same_length
        Against the unscaled model at the same length: a cost where that is inside the window, a gain beyond it.
    middle
        Of the needles in the middle, against the unscaled model in its window: at the same length inside it, at the
        longest length inside it beyond; empty where no length is inside.
    """

    length: int
    inside: bool
    same_length: tuple[Contrast, ...]
    middle: tuple[Contrast, ...]

    @property
    def middle_state(self) -> str:
        """The worst of the middle needles' states: ``kept`` where advantage and log-probability both are."""
        order = (LOST, LOWERED, UNKNOWN, UNCLEAR, KEPT, GAINED)
        return min((one.state for one in self.middle), key=order.index, default=UNKNOWN)


@dataclass(frozen=True)
class ScalingVerdict:
    """What a scaling does.

    Parameters
    ----------
    scaling
        Its name.
    cost
        In the window: each metric's mean over the lengths inside; empty for the unscaled model and where no length is.
    lengths
        Every length by itself.
    """

    scaling: str
    cost: tuple[Contrast, ...]
    lengths: tuple[AtLength, ...]

    @property
    def reach(self) -> int | None:
        """The longest length up to which the middle needles keep advantage and log-probability at every length.

        In the window the unscaled model is its own reference. One scaling's lengths and metrics need no adjustment for
        their number, as a length counts only where all of them agree up to it.
        """
        reached = None
        for one in self.lengths:
            if one.middle_state not in (KEPT, GAINED):
                break
            reached = one.length
        return reached

    @property
    def fails_at(self) -> int | None:
        """The shortest length at which the middle needles' advantage or log-probability is lost or lowered."""
        return next((one.length for one in self.lengths if one.middle_state in (LOST, LOWERED)), None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "scaling": self.scaling,
            "in_window_cost": [one.to_dict() for one in self.cost],
            "reach": self.reach,
            "fails_at": self.fails_at,
            "lengths": [
                {
                    "length": one.length,
                    "inside_window": one.inside,
                    "against_unscaled_at_same_length": [contrast.to_dict() for contrast in one.same_length],
                    "middle_against_unscaled_in_window": [contrast.to_dict() for contrast in one.middle],
                    "middle": one.middle_state,
                }
                for one in self.lengths
            ],
        }


def verdicts(data: RopeData) -> tuple[ScalingVerdict, ...]:
    """The verdict of every scaling, in the plan's order; of the unscaled model its reach alone."""
    plan = data.plan
    middle = middle_positions(len(plan.options.depths))
    found = []
    for scaling, name in enumerate(plan.scalings):
        lengths = []
        for number, length in enumerate(plan.lengths):
            reference = plan.reference(number)
            lengths.append(
                AtLength(
                    length=length,
                    inside=number in plan.inside,
                    same_length=tuple(
                        _contrast(data, metric, scaling, [(number, number)]) for metric in JUDGED if scaling
                    ),
                    middle=tuple(
                        _contrast(data, metric, scaling, [(number, reference)], middle)
                        for metric in ("logprob", "advantage")
                        if reference is not None and middle
                    ),
                )
            )
        inside = [(number, number) for number in plan.inside]
        cost = tuple(_contrast(data, metric, scaling, inside) for metric in JUDGED if scaling and inside)
        found.append(ScalingVerdict(name, cost, tuple(lengths)))
    return tuple(found)


def _contrast(
    data: RopeData,
    metric: str,
    scaling: int,
    pairs: Sequence[tuple[int, int]],
    depths: Sequence[int] | None = None,
) -> Contrast:
    """A scaling at some lengths less the unscaled model at theirs: on each text and needle."""
    values = data.of(metric)
    with np.errstate(invalid="ignore"):  # inf - inf is the NaN that is meant
        differences = [values[scaling, own] - values[0, other] for own, other in pairs]
    options = data.plan.options
    interval = data.interval(metric, mean_of_defined(np.stack(differences), axis=0), depths)
    margin = options.margins.of(metric)
    return Contrast(metric, interval, margin, state_of(interval, margin, higher_is_better=metric != "loss"))


def state_of(interval: Interval, margin: float, higher_is_better: bool = True) -> str:
    """Where an interval of a difference lies; see :class:`Contrast`."""
    if interval.low is None or interval.high is None:
        return UNKNOWN
    worst, best = (interval.low, interval.high) if higher_is_better else (-interval.high, -interval.low)
    if worst > -margin:
        return GAINED if worst > 0 and best >= margin else KEPT
    if best < -margin:
        return LOST
    return LOWERED if best < 0 else UNCLEAR
