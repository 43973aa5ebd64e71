"""What was measured of a model under several RoPE scalings, as arrays that have scalings, lengths and texts as axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.crossed import crossed_interval
from attnprobe.estimates import Interval
from attnprobe.intervals import mean_interval
from attnprobe.rope_options import RopeOptions

BY_NEEDLE = ("logprob", "advantage", "mass", "retrieval")
"""Metrics of one needle: their values share texts and items. Those of a whole text have one value a text."""
BY_TEXT = ("loss", "sink", "entropy", "moved")


@dataclass(frozen=True)
class RopePlan:
    """What was to be measured.

    Parameters
    ----------
    model
        Its name.
    scalings
        ``none`` first.
    options
        Of the measurement.
    window
        Positions that the unscaled model was trained on.
    """

    model: str
    scalings: tuple[str, ...]
    options: RopeOptions
    window: int

    @property
    def lengths(self) -> tuple[int, ...]:
        """Ascending."""
        return self.options.lengths

    @property
    def inside(self) -> tuple[int, ...]:
        """Numbers of the lengths within the window."""
        return tuple(i for i, length in enumerate(self.lengths) if length <= self.window)

    def reference(self, length: int) -> int | None:
        """Number of the length at which the unscaled model shows what it can do in its window: the same length (by
        number) where that is inside, else the longest one that is; None where none is."""
        return length if length in self.inside else (self.inside[-1] if self.inside else None)


@dataclass(frozen=True, eq=False)
class RopeData:
    """Arrays have the axes [scaling, length, text, ...], in the plan's order; NaN where nothing was measured.

    Parameters
    ----------
    plan
        What was to be measured.
    items
        [text][depth]: which needle was asked for; empty for a text that nothing was measured of.
    needle
        ``BY_NEEDLE``: float64 [..., depth]. ``logprob``: nats of the whole answer; ``mass`` and ``advantage`` (nats) of
        the asked needle, mean over layers and heads; ``retrieval``: mean retrieval score of the chosen heads.
    text
        ``BY_TEXT``: float64 [...]. ``loss``: mean over the prompt's tokens, nats; ``sink``: mass of the first token;
        ``entropy``: see :func:`attnprobe.rope_cells.spread`; ``moved``: half the sum of absolute differences between
        a head's mass by distance and that of the same head of the unscaled model in its window
        (:meth:`RopePlan.reference`), each made up to 1 over the bins that both have; mean over heads.
    slices
        float64 [..., part]: share of ten equal parts of the documents.
    distance, distance_edges
        float64 [..., bin], mass by distance from the row, mean over heads and needles; int [bin + 1], tokens.
    loss_by_position, loss_edges
        float64 [..., bin], and int [bin + 1], positions.
    heads
        Of each half of the items, the ``(layer, head)`` that were chosen on the other half, the highest first.
    rope
        [scaling][length]: the frequencies in use, of the first text.
    incomplete
        Cells without a result, and why.
    weights
        SHA-256 of a sample of the model's weights, the same in all cells.
    warnings
        Of the measurements.
    """

    plan: RopePlan
    items: tuple[tuple[str, ...], ...]
    needle: Mapping[str, np.ndarray]
    text: Mapping[str, np.ndarray]
    slices: np.ndarray
    distance: np.ndarray
    distance_edges: tuple[int, ...]
    loss_by_position: np.ndarray
    loss_edges: np.ndarray
    heads: tuple[tuple[tuple[int, int], ...], ...]
    rope: tuple[tuple[Mapping[str, Any] | None, ...], ...]
    incomplete: Mapping[str, str]
    weights: str
    warnings: tuple[str, ...]

    @property
    def n_items(self) -> int:
        """How many needles were asked for."""
        return len({name for own in self.items for name in own})

    def of(self, metric: str) -> np.ndarray:
        """A metric by name."""
        return self.text[metric] if metric in BY_TEXT else self.needle[metric]

    def unscaled_at(self, scaling: int) -> tuple[int, ...]:
        """Numbers of the lengths at which a scaling uses the unscaled model's frequencies, as dynamic does inside."""
        return tuple(i for i, own in enumerate(self.rope[scaling]) if own and _turns_like(own, self.rope[0][i]))

    def interval(self, metric: str, values: np.ndarray, depths: Sequence[int] | None = None) -> Interval:
        """Interval of a metric's mean.

        Parameters
        ----------
        metric
            Its name.
        values
            [text, depth] of a needle's metric, [text] of a text's; NaN where there is none.
        depths
            Which depths count; None for all.

        Returns
        -------
        Interval
            Of a needle's metric, whose values share texts and items, :func:`attnprobe.crossed.crossed_interval`; of a
            text's, t over texts.
        """
        level = self.plan.options.level
        if metric in BY_TEXT:
            return mean_interval(values, level)
        chosen = range(values.shape[1]) if depths is None else depths
        places = [(number, depth) for number, own in enumerate(self.items) if own for depth in chosen]
        texts, items = [number for number, _ in places], [self.items[number][depth] for number, depth in places]
        return crossed_interval([values[place] for place in places], texts, items, level)


def _turns_like(first: Mapping[str, Any], second: Mapping[str, Any] | None) -> bool:
    one, other = (
        {name: (used["sha256"], used["attention_scaling"]) for name, used in (in_use or {}).items()}
        for in_use in (first, second)
    )
    return one == other
