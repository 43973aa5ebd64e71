"""The curve of a study: attention by position over questions, with intervals, and what may be said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from attnprobe.curve import middle_positions
from attnprobe.curve_models import LEAST_POSITIONS
from attnprobe.errors import InputError
from attnprobe.estimates import Band, Interval, defined, json_number
from attnprobe.fit import StudyFit, fit_profiles
from attnprobe.flatness import Flatness, flatness_test, verdict
from attnprobe.intervals import end_log_ratios, mean_interval, ratio_interval, simultaneous_band
from attnprobe.norms import mean_of_defined

AVERAGING = {"share": "pooled", "log_share": "per head"}
"""Names of the two orders of averaging, by norm: heads and layers first, then the share; or each head's share first."""


@dataclass(frozen=True, eq=False)
class StudyCurve:
    """Attention by position, the unit of all intervals being the question.

    Parameters
    ----------
    norm, view, variant
        What was averaged: see :meth:`attnprobe.study_data.StudyData.log_values`.
    profiles
        float64 [question, position]: logs, nats, averaged over each question's orders. For ``advantage`` these are the
        values themselves.
    values
        float64 [position]: geometric mean over questions (arithmetic for ``advantage``) that have all positions.
    band
        Simultaneous band of all positions in the unit of ``values``; ``scaled()`` gives both as they are shown.
    middle
        Positions that count as the middle; empty for two documents or fewer.
    head_middle, tail_middle
        First and last position over the middle's mean, with t intervals of the questions' log ratios. None without a
        middle, and for ``advantage``.
    head_minus_middle, tail_minus_middle
        For ``advantage``, whose values are logs: the difference in nats, with t intervals. None for other norms.
    flatness
        Test of no position effect by sign-flipped profiles.
    verdict
        One of the verdicts of :func:`attnprobe.flatness.verdict`.
    is_whole
        Whether the positions are shares of one whole; not so where one document was moved through the others, nor for
        ratios (calibrated) and norms that are no shares.
    """

    norm: str
    view: str
    variant: str
    profiles: np.ndarray
    values: np.ndarray
    band: Band
    middle: tuple[int, ...]
    head_middle: Interval | None
    tail_middle: Interval | None
    head_minus_middle: Interval | None
    tail_minus_middle: Interval | None
    flatness: Flatness
    verdict: str
    is_whole: bool

    def __repr__(self) -> str:
        if self.norm == "advantage":
            ends = f"head_minus_middle={self.head_minus_middle}, tail_minus_middle={self.tail_minus_middle}"
        else:
            ends = f"head_middle={self.head_middle}, tail_middle={self.tail_middle}"
        return (
            f"StudyCurve({self.norm}, {self.view}, {self.variant}: {self.verdict}, {ends}, "
            f"{len(self.values)} positions, n={self.band.n})"
        )

    def scaled(self) -> Band:
        """Values (``estimate``) and band as the terminal and the pictures show them.

        Shares of a whole are scaled to sum to 1, which geometric means over questions do not by themselves; the band
        by the same factor. What is no share of a whole stays as it is.
        """
        total = float(self.values.sum()) if self.is_whole else 1.0
        return self.band.scaled(1 / total)

    def can_fit(self, model: str) -> bool:
        """Whether the curve has positions enough for a model, each with something in every question."""
        return len(self.values) >= LEAST_POSITIONS[model] and bool(np.isfinite(self.profiles).all())

    def fit(self, model: str = "symmetric") -> StudyFit:
        """Fit ``symmetric``, ``two_sided`` or ``flat`` to the curve; see :func:`attnprobe.fit.fit_profiles`."""
        if self.norm == "advantage":
            raise InputError("an advantage is a difference of logs, which the models do not describe; fit a share")
        return fit_profiles(np.exp(self.profiles), model)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the profiles, as JSON values."""
        return {
            "norm": self.norm,
            "view": self.view,
            "variant": self.variant,
            "n_questions": len(self.profiles),
            "values": [json_number(defined(float(value))) for value in self.values],
            "band": self.band.to_dict(),
            "middle": list(self.middle),
            "head_middle": None if self.head_middle is None else self.head_middle.to_dict(),
            "tail_middle": None if self.tail_middle is None else self.tail_middle.to_dict(),
            "head_minus_middle": None if self.head_minus_middle is None else self.head_minus_middle.to_dict(),
            "tail_minus_middle": None if self.tail_minus_middle is None else self.tail_minus_middle.to_dict(),
            "flatness": asdict(self.flatness),
            "verdict": self.verdict,
        }


def question_profiles(log_values: np.ndarray) -> np.ndarray:
    """Each question's mean over its orders, float64 [..., question, position]; undefined orders are left out."""
    return mean_of_defined(log_values, axis=-2)


def study_curve(
    log_values: np.ndarray,
    *,
    norm: str,
    view: str = "raw",
    variant: str = "asked",
    level: float = 0.95,
    middle: str = "default",
    seed: int = 0,
    is_whole: bool = True,
) -> StudyCurve:
    """Make the curve of log values ``[question, order, position]``; NaN orders are left out of a question's mean."""
    profiles = question_profiles(log_values)
    is_log = norm != "advantage"
    positions = middle_positions(profiles.shape[1], middle)
    ends = end_log_ratios(profiles, middle) if is_log else _differences(profiles, positions)
    has_ratios, has_differences = bool(positions) and is_log, bool(positions) and not is_log
    head, tail = (ratio_interval(end, level=level) if has_ratios else None for end in ends)
    head_less, tail_less = (mean_interval(end, level=level) if has_differences else None for end in ends)
    as_ratios = [ratio_interval(end, level=level) for end in ends]
    band = simultaneous_band(profiles, level=level, seed=seed)
    band = band.exp() if is_log else band
    return StudyCurve(
        norm=norm,
        view=view,
        variant=variant,
        profiles=profiles,
        values=band.estimate,
        band=band,
        middle=positions,
        head_middle=head,
        tail_middle=tail,
        head_minus_middle=head_less,
        tail_minus_middle=tail_less,
        flatness=flatness_test(profiles, seed=seed),
        verdict=verdict(as_ratios[0], as_ratios[1]),
        is_whole=is_whole and norm in AVERAGING,
    )


def _differences(profiles: np.ndarray, middle: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """First and last position less the middle's mean, nats; the values are logs themselves."""
    centre = profiles[:, list(middle)].mean(axis=1) if middle else np.full(len(profiles), np.nan)
    return profiles[:, 0] - centre, profiles[:, -1] - centre


def claim(curves: Mapping[str, StudyCurve]) -> str:
    """The verdict of curves in both orders of averaging, by norm: see :meth:`attnprobe.Study.claim`."""
    verdicts = {AVERAGING[norm]: curve.verdict for norm, curve in curves.items()}
    if len(set(verdicts.values())) == 1:
        return next(iter(verdicts.values()))
    return f"depends on the order of averaging ({', '.join(f'{name}: {v}' for name, v in verdicts.items())})"
