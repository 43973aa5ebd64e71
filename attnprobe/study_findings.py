"""What a study gives back beside curves: lines of the artefact panel, the answer by position, whole runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprobe.designs import Order
from attnprobe.estimates import Band, Interval
from attnprobe.study_curve import StudyCurve, claim

if TYPE_CHECKING:
    from attnprobe.run import Run


@dataclass(frozen=True, eq=False)
class PanelRow:
    """One line of the artefact panel: the same curve with one suspect taken out.

    Parameters
    ----------
    name, about
        Of the line.
    curves
        By norm: one in each order of averaging.
    removes_artefact
        Whether it is the curve without something known to draw attention for itself, so that the claim should hold
        in it. The others (null, calibrated, other rows) answer other questions.
    """

    name: str
    about: str
    curves: Mapping[str, StudyCurve]
    removes_artefact: bool = False

    def __repr__(self) -> str:
        return f"PanelRow({self.name}: {self.verdict})"

    @property
    def verdict(self) -> str:
        """As :meth:`attnprobe.Study.claim`, of this line's curves."""
        return claim(self.curves)


@dataclass(frozen=True, eq=False)
class GoldLogprob:
    """Log-probability of the answer by the position of the document that holds it.

    Parameters
    ----------
    values
        float64 [position], nats: mean over questions, each less its own mean over positions.
    band
        Simultaneous band.
    head_minus_middle, tail_minus_middle
        Nats, t intervals over questions; None without a middle.
    n
        Questions with one known gold document that stood at every position.
    """

    values: np.ndarray
    band: Band
    head_minus_middle: Interval | None
    tail_minus_middle: Interval | None
    n: int

    def __repr__(self) -> str:
        return (
            f"GoldLogprob(head_minus_middle={self.head_minus_middle}, tail_minus_middle={self.tail_minus_middle}, "
            f"{len(self.values)} positions, n={self.n})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        head, tail = self.head_minus_middle, self.tail_minus_middle
        return {
            "values": self.values.tolist(),
            "band": self.band.to_dict(),
            "head_minus_middle": None if head is None else head.to_dict(),
            "tail_minus_middle": None if tail is None else tail.to_dict(),
            "n": self.n,
        }


@dataclass(frozen=True, eq=False)
class KeptRun:
    """One whole measurement of a study: the question's id, the order of its documents, the variant, and the run."""

    question: str
    order: Order
    variant: str
    run: Run
