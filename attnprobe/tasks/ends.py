"""First, last and middle places of a context, by what they are and not by their rank among those that were tested."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.curve import middle_positions
from attnprobe.tasks.outcome import Outcome

DEPTH = "depth"
_MIDDLE = (0.2, 0.8)
"""Between these parts of the way from the first place to the last a place may count as the middle."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Ends:
    """Columns of the first and last place, and of those that count as the middle."""

    first: int
    last: int
    middle: tuple[int, ...]

    def differences(self, values: np.ndarray) -> np.ndarray:
        """First and last less the middle's mean, float64 [..., 2], of values [..., place]."""
        ends: np.ndarray = values[..., [self.first, self.last]]
        return ends - values[..., list(self.middle)].mean(axis=-1, keepdims=True)


def find_ends(levels: Sequence[Any], axis: str, outcomes: Iterable[Outcome]) -> tuple[Ends | None, str | None]:
    """The ends and the middle of tested places, or why there are none.

    The middle is of the places from a fifth to four fifths of the way the ones nearest to its centre, as many as
    :func:`attnprobe.curve.middle_positions` has of so many places; of evenly spaced ones these are the same.

    Parameters
    ----------
    levels
        Tested places, ascending.
    axis
        Their key: of ``depth`` the first is 0 and the last 1; of anything else 0 and ``n_documents`` - 1, a fact of the
        outcomes. Where no outcome says it, the largest place counts as the last.
    outcomes
        Those without a place on the axis, such as baselines, are left out.
    """
    if len(levels) <= 2 or any(isinstance(level, str) for level in levels):
        return None, f"{len(levels)} {axis}{'' if len(levels) == 1 else 's'}: there is no middle"
    counts: set[Any] = {one.facts.get("n_documents") for one in outcomes if one.condition.get(axis) is not None}
    first, last = 0, 1 if axis == DEPTH else levels[-1]
    if axis != DEPTH and counts - {None}:
        if len(counts) > 1:
            return None, "prompts differ in their number of documents, so no place is the last one of all"
        last = counts.pop() - 1
    missing = [f"{end:g}" for end in (first, last) if end not in levels]
    if missing:
        return None, (
            f"the {axis}s that were tested go from {levels[0]:g} to {levels[-1]:g}, of {first:g} to {last:g}: nothing "
            f"is said of first and last against the middle; test {' and '.join(missing)}, too"
        )
    way = (np.array(levels, dtype=np.float64) - first) / (last - first)
    inside = np.flatnonzero((way >= _MIDDLE[0] - _ROUNDING) & (way <= _MIDDLE[1] + _ROUNDING))
    if not len(inside):
        return None, f"no {axis} near the middle was tested, so nothing is said of first and last against it"
    off = np.abs(way[inside] - 0.5)
    wanted = min(len(middle_positions(len(levels))), len(inside))
    middle = inside[off <= np.sort(off)[wanted - 1] + _ROUNDING]
    return Ends(list(levels).index(first), list(levels).index(last), tuple(middle.tolist())), None
