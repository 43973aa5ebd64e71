"""Models of a curve over document positions: the article's symmetric U, a two-sided one with floor, and flat.

Every fit is least squares on shares (values divided by their sum), with bounds, from the best of many starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np

from attnprobe.arguments import fraction, table
from attnprobe.curve_models import LEAST_POSITIONS, fit_symmetric, fit_two_sided, flat_parameters
from attnprobe.errors import InputError
from attnprobe.estimates import Interval, short_number

Model = Literal["symmetric", "two_sided", "flat"]
MODELS: tuple[str, ...] = get_args(Model)

# Shares that differ from 1/K by less than this fraction of it are float32 rounding, not a shape.
_FLAT = 1e-5


@dataclass(frozen=True, eq=False)
class Fit:
    """A model fitted to one curve of K positions.

    Parameters
    ----------
    model
        One of ``MODELS``.
    parameters
        ``symmetric``: ``alpha``. ``two_sided``: ``head``, ``alpha_head``, ``tail``, ``alpha_tail``, ``floor``;
        head, tail and floor in shares, the alphas per position. ``flat``: none. None where the curve does not
        determine the parameter; ``reason`` says why.
    shares, fitted, residuals
        float64 [K], read-only: the curve divided by its sum, the model's values, their difference.
    r2
        1 - (residual sum of squares) / (sum of squares about 1/K); None for a curve that is flat to rounding.
    converged
        Whether the search ended within its tolerance.
    reason
        What is wrong or undetermined, in words; None when nothing is.
    """

    model: str
    parameters: Mapping[str, float | None]
    shares: np.ndarray
    fitted: np.ndarray
    r2: float | None
    converged: bool
    reason: str | None

    def __post_init__(self) -> None:
        # Read-only, so that a fit stays what was fitted.
        object.__setattr__(self, "parameters", MappingProxyType(dict(self.parameters)))
        for name in ("shares", "fitted"):
            values = np.array(getattr(self, name), dtype=np.float64)
            values.flags.writeable = False
            object.__setattr__(self, name, values)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={short_number(value)}" for name, value in {**self.parameters, "r2": self.r2}.items())
        return f"Fit({self.model}: {parts})"

    @property
    def residuals(self) -> np.ndarray:
        """float64 [K]: shares less fitted."""
        return self.shares - self.fitted

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {
            "model": self.model,
            "parameters": dict(self.parameters),
            "shares": self.shares.tolist(),
            "fitted": self.fitted.tolist(),
            "r2": self.r2,
            "converged": self.converged,
            "reason": self.reason,
        }


@dataclass(frozen=True, eq=False)
class StudyFit:
    """A model fitted to the mean profile of several questions.

    Parameters
    ----------
    fit
        The fit of the mean profile: geometric over questions, divided by its sum.
    intervals
        One ``Interval`` a parameter: t over jackknifed questions; without bounds, and with the
        reason, where there is none.
    standard_errors
        The jackknife's, one a parameter; None where its interval has no bounds.
    error, flat_error
        Prediction error of the model and of ``flat``: each question's profile is predicted by the fit of the
        others; mean squared difference of shares, over positions and questions. None for one question.
    gain
        ``flat_error`` less ``error`` with its t interval over questions: positive where the model predicts a
        new question better than flat does. None for one question and for ``flat`` itself.
    n
        Number of questions.
    """

    fit: Fit
    intervals: Mapping[str, Interval]
    standard_errors: Mapping[str, float | None]
    error: float | None
    flat_error: float | None
    gain: Interval | None
    n: int

    def __repr__(self) -> str:
        parts = "".join(f"{name}={interval}, " for name, interval in self.intervals.items())
        return (
            f"StudyFit({self.fit.model}: {parts}r2={short_number(self.fit.r2)}, n={self.n}, "
            f"predicts better: {self.predicts_better})"
        )

    @property
    def predicts_better(self) -> str:
        """``"model"``, ``"flat"`` or ``"inconclusive"``, by the bounds of ``gain``."""
        if self.gain is None or self.gain.low is None or self.gain.high is None:
            return "inconclusive"
        if self.gain.low > 0:
            return "model"
        return "flat" if self.gain.high < 0 else "inconclusive"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {
            "fit": self.fit.to_dict(),
            "intervals": {name: interval.to_dict() for name, interval in self.intervals.items()},
            "standard_errors": dict(self.standard_errors),
            "error": self.error,
            "flat_error": self.flat_error,
            "gain": None if self.gain is None else self.gain.to_dict(),
            "predicts_better": self.predicts_better,
            "n": self.n,
        }


def fit_curve(values: np.ndarray | Sequence[float], model: str = "symmetric") -> Fit:
    """Fit a model to the values of a curve.

    - ``symmetric``: exp(-alpha i) + exp(-alpha (K - 1 - i)), divided by its sum (the context-rot article's
      curve). The shape does not depend on alpha's sign: it is a U or flat, never an inverted U.
    - ``two_sided``: head exp(-alpha_head i) + tail exp(-alpha_tail (K - 1 - i)) + floor.
    - ``flat``: 1 / K.

    Parameters
    ----------
    values
        [K], one finite value >= 0 a position. They are divided by their sum first.
    model
        One of ``MODELS``.

    Returns
    -------
    Fit

    Raises
    ------
    InputError
        For an unknown model, fewer positions than the model has shape (3 for ``symmetric``, 5 for
        ``two_sided``), and values that are undefined, negative, infinite or all 0.
    """
    _check_model(model)
    given = table("values", values, ("position",))
    _check_positions(len(given), model)
    return _fit_shares(_shares(given, "position {}"), model)


def fit_profiles(
    values: np.ndarray | Sequence[Sequence[float]], model: str = "symmetric", level: float = 0.95
) -> StudyFit:
    """Fit a model to the mean profile of several questions, and see whether it predicts a new one.

    The model is fitted again without each question in turn. These refits give both the standard errors (the
    delete-one jackknife: deterministic, and right for a smooth function of the mean log profile, which a fit
    away from its bounds is) and the prediction of the question left out.

    Parameters
    ----------
    values
        [question, position], finite and > 0; each question's values are divided by their sum first.
    model
        As for ``fit_curve``.
    level
        Of the intervals.

    Returns
    -------
    StudyFit
        Intervals need five questions.

    Raises
    ------
    InputError
        As ``fit_curve``, and for a value of 0, whose geometric mean over questions would be 0.
    """
    from attnprobe.intervals import mean_interval

    _check_model(model)
    level = fraction("level", level)
    given = table("values", values, ("question", "position"))
    if len(given) == 0:
        raise InputError("values holds no questions; give at least one profile")
    Q, K = given.shape
    _check_positions(K, model)
    shares = np.stack([_shares(row, f"question {question}, position {{}}") for question, row in enumerate(given)])
    for question, position in np.argwhere(shares == 0)[:1]:
        raise InputError(
            f"the value at question {question}, position {position} is 0; the mean over questions is geometric and "
            "needs values > 0: leave that question out, or fit one curve of averages"
        )
    fit = _fit_shares(_mean_profile(shares), model)
    if Q == 1:
        return StudyFit(fit, *_jackknife(fit, [], level), error=None, flat_error=None, gain=None, n=1)
    refits = [_fit_shares(_mean_profile(np.delete(shares, question, axis=0)), model) for question in range(Q)]
    errors = np.mean((shares - np.stack([refit.fitted for refit in refits])) ** 2, axis=1)
    flat_errors = np.mean((shares - 1 / K) ** 2, axis=1)
    return StudyFit(
        fit,
        *_jackknife(fit, refits, level),
        error=float(errors.mean()),
        flat_error=float(flat_errors.mean()),
        gain=None if model == "flat" else mean_interval(flat_errors - errors, level=level),
        n=Q,
    )


def _mean_profile(shares: np.ndarray) -> np.ndarray:
    mean = np.exp(np.mean(np.log(shares), axis=0))
    return mean / mean.sum()


def _jackknife(fit: Fit, refits: Sequence[Fit], level: float) -> tuple[dict[str, Interval], dict[str, float | None]]:
    """Interval and standard error of every parameter, from the fits without each question."""
    from scipy.stats import t

    n = max(len(refits), 1)
    intervals: dict[str, Interval] = {}
    errors: dict[str, float | None] = {}
    for name, estimate in fit.parameters.items():
        found = [refit.parameters[name] for refit in refits]
        low = high = errors[name] = None
        reason = _no_error(name, estimate, found)
        if reason is None and estimate is not None:
            replicates = np.array(found, dtype=np.float64)
            error = math.sqrt((n - 1) / n * float(np.sum((replicates - replicates.mean()) ** 2)))
            half = float(t.ppf((1 + level) / 2, n - 1)) * error
            low, high, errors[name] = estimate - half, estimate + half, error
        intervals[name] = Interval(estimate, low, high, level, n, "t over jackknifed questions", reason)
    return intervals, errors


def _no_error(name: str, estimate: float | None, found: Sequence[float | None]) -> str | None:
    from attnprobe.intervals import MIN_QUESTIONS

    if estimate is None:
        return f"{name} is not determined by the mean profile"
    if len(found) < MIN_QUESTIONS:
        return f"fewer than {MIN_QUESTIONS} questions"
    # Where a parameter sits on a bound it is no smooth function of the data, and the jackknife is wrong there.
    at_bound = sum(value is None or value <= 0 for value in (estimate, *found))
    if at_bound:
        return f"{name} is undetermined or at its bound 0 in {at_bound} of {len(found) + 1} fits"
    return None


def _check_model(model: str) -> None:
    if model not in MODELS:
        raise InputError(f"model {model!r} is unknown; expected one of {', '.join(MODELS)}")


def _check_positions(K: int, model: str) -> None:
    least = LEAST_POSITIONS[model]
    if least > K:
        raise InputError(
            f"the {model} model needs at least {least} positions, and the curve has {K}; "
            "with fewer its parameters are not determined"
        )


def _shares(values: np.ndarray, where: str) -> np.ndarray:
    """Values over their sum; ``where`` names a position, with the number left open."""
    for position in np.flatnonzero(~(np.isfinite(values) & (values >= 0))):
        value = values[position]
        what = "undefined" if math.isnan(value) else f"{value:g}"
        raise InputError(
            f"the value at {where.format(position)} is {what}; a fit needs finite values >= 0, such as shares"
        )
    total = values.sum()
    if total == 0:
        raise InputError(f"the value at {where.format(0)} and all others are 0; there is no curve to fit")
    return values / total


def _fit_shares(shares: np.ndarray, model: str) -> Fit:
    K = len(shares)
    about_flat = float(np.sum((shares - 1 / K) ** 2))
    is_flat = float(np.max(np.abs(shares * K - 1))) < _FLAT
    if model == "flat":
        parameters: dict[str, float | None] = {}
        fitted, converged = np.full(K, 1 / K), True
        reason: str | None = None
    elif is_flat:
        fitted, converged = np.full(K, 1 / K), True
        parameters, reason = flat_parameters(K, model)
    elif model == "symmetric":
        parameters, fitted, converged, reason = fit_symmetric(shares)
    else:
        parameters, fitted, converged, reason = fit_two_sided(shares)
    r2 = None if is_flat else 1 - float(np.sum((shares - fitted) ** 2)) / about_flat
    return Fit(model, parameters, shares, fitted, r2, converged, reason)
