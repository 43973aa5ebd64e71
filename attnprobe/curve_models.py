"""The models that ``attnprobe.fit`` fits to the shares of K positions, and the search for their parameters.

Each search gives the parameters (None: not determined), the model's values, whether it ended within its
tolerance, and what is wrong or undetermined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Solution = tuple[dict[str, float | None], np.ndarray, bool, str | None]

# Rates a position. At the upper bound a neighbour holds 2e-9 of the end's value; below the lower one, a decay
# cannot be told from the floor. A symmetric U flattens with alpha squared, so it needs no lower bound but 0.
_MAX_RATE = 20.0
_MIN_RATE = 1e-3
# An exponential whose largest value is below this fraction of 1/K is absent.
_ABSENT = 1e-7
LEAST_POSITIONS = {"symmetric": 3, "two_sided": 5, "flat": 1}
_TOLERANCE = 1e-12


def flat_parameters(K: int, model: str) -> tuple[dict[str, float | None], str]:
    """What a curve that is flat to rounding leaves of a model's parameters, and the reason."""
    if model == "symmetric":
        return {"alpha": 0.0}, "the curve is flat to rounding: there is no decay to measure (alpha 0)"
    parameters: dict[str, float | None] = {
        "head": 0.0,
        "alpha_head": None,
        "tail": 0.0,
        "alpha_tail": None,
        "floor": 1 / K,
    }
    return parameters, "the curve is flat to rounding: there is no decay whose rate could be told"


def fit_symmetric(shares: np.ndarray) -> Solution:
    """Fit exp(-alpha i) + exp(-alpha (K - 1 - i)), over its sum, to shares [K]."""
    grid = np.geomspace(5e-4, _MAX_RATE, 80)
    i = np.arange(len(shares))
    values = np.exp(-np.outer(grid, i)) + np.exp(-np.outer(grid, i[::-1]))
    distances = np.sum((values / values.sum(axis=1, keepdims=True) - shares) ** 2, axis=1)
    # A slope of 0 at alpha = 0 would hold the search there, so it starts above it.
    solution = _solve(
        lambda x: _symmetric(x[0], len(shares))[0] - shares,
        lambda x: _symmetric(x[0], len(shares))[1][:, None],
        [float(grid[np.argmin(distances)])],
        ([0.0], [_MAX_RATE]),
    )
    alpha, converged = float(solution.x[0]), bool(solution.success)
    at_zero = np.full(len(shares), 1 / len(shares))
    if np.sum((at_zero - shares) ** 2) <= 2 * solution.cost * (1 + 1e-9):
        return {"alpha": 0.0}, at_zero, True, "the ends do not stand above the middle: alpha is at its bound 0 (flat)"
    reason = None if converged else f"the search did not end: {solution.message}"
    if alpha > 0.999 * _MAX_RATE:
        reason = "only the first and last position hold anything: alpha is too large to be told"
    parameters: dict[str, float | None] = {"alpha": None if alpha > 0.999 * _MAX_RATE else alpha}
    return parameters, _symmetric(alpha, len(shares))[0], converged, reason


def _symmetric(alpha: float, K: int) -> tuple[np.ndarray, np.ndarray]:
    """The symmetric model and its derivative by alpha, float64 [K] each."""
    i = np.arange(K, dtype=np.float64)
    head, tail = np.exp(-alpha * i), np.exp(-alpha * i[::-1])
    raw, slope = head + tail, -i * head - i[::-1] * tail
    total = raw.sum()
    return raw / total, slope / total - raw * slope.sum() / total**2


def fit_two_sided(shares: np.ndarray) -> Solution:
    """Fit head exp(-alpha_head i) + tail exp(-alpha_tail (K - 1 - i)) + floor to shares [K]."""
    from scipy.optimize import nnls

    K = len(shares)
    # For given rates the model is linear: the best grid point of each quadrant (slow or fast decay at either end)
    # is a start, so that neighbours on one slope do not crowd out another valley.
    rates = np.geomspace(0.01, 10.0, 8)
    starts: dict[tuple[bool, bool], tuple[float, list[float]]] = {}
    for alpha_head in rates:
        for alpha_tail in rates:
            weights, distance = nnls(_columns(alpha_head, alpha_tail, K), shares)
            quadrant = (bool(alpha_head > 0.5), bool(alpha_tail > 0.5))
            if quadrant not in starts or distance < starts[quadrant][0]:
                starts[quadrant] = (distance, [weights[0], alpha_head, weights[1], alpha_tail, weights[2]])
    bounds = ([0.0, _MIN_RATE, 0.0, _MIN_RATE, 0.0], [np.inf, _MAX_RATE, np.inf, _MAX_RATE, np.inf])
    solutions = [
        _solve(lambda x: _two_sided(x, K)[0] - shares, lambda x: _two_sided(x, K)[1], start, bounds)
        for _, start in starts.values()
    ]
    best = min(solutions, key=lambda solution: solution.cost)
    fitted = _two_sided(best.x, K)[0]
    parameters, reasons = _undetermined(best.x, K)
    if not best.success:
        reasons.append(f"the search did not end: {best.message}")
    if LEAST_POSITIONS["two_sided"] == K:
        reasons.append("five positions have no residual degrees of freedom: r2 says nothing")
    return parameters, fitted, bool(best.success), "; ".join(reasons) or None


def _columns(alpha_head: float, alpha_tail: float, K: int) -> np.ndarray:
    i = np.arange(K, dtype=np.float64)
    return np.stack([np.exp(-alpha_head * i), np.exp(-alpha_tail * i[::-1]), np.ones(K)], axis=1)


def _two_sided(x: np.ndarray, K: int) -> tuple[np.ndarray, np.ndarray]:
    """The two-sided model [K] and its derivatives [K, 5]; x: head, alpha_head, tail, alpha_tail, floor."""
    head, alpha_head, tail, alpha_tail, floor = x
    i = np.arange(K, dtype=np.float64)
    left, right, ones = _columns(alpha_head, alpha_tail, K).T
    value = head * left + tail * right + floor
    return value, np.stack([left, -head * i * left, right, -tail * i[::-1] * right, ones], axis=1)


def _undetermined(x: np.ndarray, K: int) -> tuple[dict[str, float | None], list[str]]:
    """Parameters with None for those that the fit leaves open, and why."""
    parameters: dict[str, float | None] = dict(
        zip(("head", "alpha_head", "tail", "alpha_tail", "floor"), map(float, x), strict=True)
    )
    reasons = []
    for end, rate, first in (("head", "alpha_head", "first"), ("tail", "alpha_tail", "last")):
        size, value = float(parameters[end] or 0), float(parameters[rate] or 0)
        if size * K < _ABSENT:
            parameters[end], parameters[rate] = 0.0, None
            reasons.append(f"the {end} does not stand above the floor: no {rate}")
        elif value > 0.999 * _MAX_RATE:
            parameters[rate] = None
            reasons.append(f"only the {first} position stands above the floor: {rate} is too large to be told")
        elif value < 1.001 * _MIN_RATE:
            parameters[end] = parameters[rate] = parameters["floor"] = None
            reasons.append(f"the {end} does not decay: {end} and floor cannot be told apart")
    return parameters, reasons


def _solve(
    residuals: Callable[[np.ndarray], np.ndarray],
    slopes: Callable[[np.ndarray], np.ndarray],
    start: Sequence[float],
    bounds: tuple[list[float], list[float]],
) -> Any:
    from scipy.optimize import least_squares

    # The dogleg box method reaches a solution on a bound (a floor of 0) exactly, where "trf" only nears it.
    inside = np.clip(start, np.array(bounds[0]) + 1e-9, np.array(bounds[1]) - 1e-9)
    return least_squares(
        residuals,
        inside,
        slopes,
        bounds,
        method="dogbox",
        xtol=_TOLERANCE,
        ftol=_TOLERANCE,
        gtol=_TOLERANCE,
        max_nfev=2000,
    )
