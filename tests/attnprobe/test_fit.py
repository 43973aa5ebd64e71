from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from attnprobe.curve import Curve, effective_attention
from attnprobe.errors import InputError
from attnprobe.fit import fit_curve, fit_profiles

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
NAMES = ("head", "alpha_head", "tail", "alpha_tail", "floor")


def two_sided(K: int, head: float, alpha_head: float, tail: float, alpha_tail: float, floor: float) -> np.ndarray:
    i = np.arange(K)
    return head * np.exp(-alpha_head * i) + tail * np.exp(-alpha_tail * (K - 1 - i)) + floor


def curve(values: np.ndarray, norm: str = "share") -> Curve:
    return Curve(values, norm, tuple(map(str, range(len(values)))), (1,), (0,), (0,))


@PROPERTY
@given(st.integers(3, 60), st.floats(0.02, 5.0), st.floats(1e-6, 1e6))
def test_symmetric_recovers_a_planted_alpha(K: int, alpha: float, scale: float) -> None:
    fit = fit_curve(scale * effective_attention(K, alpha), "symmetric")
    assert fit.converged
    assert fit.reason is None
    assert fit.parameters["alpha"] == pytest.approx(alpha, abs=1e-6)
    assert fit.r2 == pytest.approx(1, abs=1e-9)
    np.testing.assert_allclose(fit.fitted, effective_attention(K, alpha), atol=1e-9)


@PROPERTY
@given(
    st.integers(5, 40),
    st.floats(0.05, 1),
    st.floats(0.1, 2.5),
    st.floats(0.05, 1),
    st.floats(0.1, 2.5),
    st.one_of(st.just(0.0), st.floats(0.01, 0.3)),
)
def test_two_sided_recovers_planted_parameters(
    K: int, head: float, alpha_head: float, tail: float, alpha_tail: float, floor: float
) -> None:
    values = two_sided(K, head, alpha_head, tail, alpha_tail, floor)
    fit = fit_curve(values, "two_sided")
    total = values.sum()
    planted = dict(zip(NAMES, (head / total, alpha_head, tail / total, alpha_tail, floor / total), strict=True))
    assert fit.converged
    assert dict(fit.parameters) == pytest.approx(planted, abs=1e-6)


@pytest.mark.parametrize("K", [3, 4, 10, 21])
def test_symmetric_fit_is_the_least_squares_one(K: int) -> None:
    rng = np.random.default_rng(K)
    for _ in range(10):
        shares = effective_attention(K, 0.4) * np.exp(rng.normal(0, 0.5, K))
        shares /= shares.sum()

        def loss(alpha: float, shares: np.ndarray = shares) -> float:
            i = np.arange(len(shares))
            raw = np.exp(-alpha * i) + np.exp(-alpha * (len(shares) - 1 - i))
            return float(np.sum((raw / raw.sum() - shares) ** 2))

        best = min(
            minimize_scalar(loss, bounds=(low, low + 2), method="bounded", options={"xatol": 1e-9}).fun
            for low in np.arange(0, 20, 2)
        )
        fit = fit_curve(shares, "symmetric")
        assert float(np.sum(fit.residuals**2)) <= best * (1 + 1e-9) + 1e-15
        assert fit.r2 == pytest.approx(1 - np.sum(fit.residuals**2) / np.sum((shares - 1 / K) ** 2))


def test_two_sided_fits_no_worse_than_many_random_starts() -> None:
    from scipy.optimize import least_squares

    rng = np.random.default_rng(5)
    for _ in range(6):
        K = int(rng.choice([5, 8, 12]))
        shares = two_sided(K, *rng.uniform([0.1, 0.1, 0.1, 0.1, 0], [1, 2, 1, 2, 0.2]))
        shares *= np.exp(rng.normal(0, 0.3, K))
        shares /= shares.sum()
        costs = [
            least_squares(
                lambda x, shares=shares, K=K: two_sided(K, *x) - shares,
                rng.uniform([0, 0.01, 0, 0.01, 0], [0.5, 4, 0.5, 4, 1 / K]),
                bounds=([0, 1e-3, 0, 1e-3, 0], [np.inf, 20, np.inf, 20, np.inf]),
            ).cost
            for _ in range(15)
        ]
        assert float(np.sum(fit_curve(shares, "two_sided").residuals ** 2)) <= 2 * min(costs) * (1 + 1e-6) + 1e-14


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_a_flat_curve_has_no_decay_to_report(noise: float) -> None:
    values = 0.1 * (1 + noise * np.random.default_rng(0).uniform(-1, 1, 10))
    symmetric, two = fit_curve(values, "symmetric"), fit_curve(values, "two_sided")
    assert symmetric.parameters == {"alpha": 0.0}
    assert symmetric.reason is not None
    assert "flat" in symmetric.reason
    assert symmetric.r2 is None
    assert two.parameters["alpha_head"] is None
    assert two.parameters["alpha_tail"] is None
    assert two.parameters["floor"] == pytest.approx(0.1)
    np.testing.assert_array_equal(two.fitted, np.full(10, 0.1))


def test_an_inverted_u_is_no_u() -> None:
    fit = fit_curve([1, 2, 3, 3, 2, 1], "symmetric")
    assert fit.parameters == {"alpha": 0.0}
    assert fit.reason is not None
    assert "do not stand above" in fit.reason
    assert fit.r2 == pytest.approx(0, abs=1e-12)


def test_undetermined_rates_are_named() -> None:
    one_end = fit_curve(two_sided(10, 1, 0.7, 0, 1, 0.1), "two_sided")
    assert one_end.parameters["alpha_head"] == pytest.approx(0.7, abs=1e-6)
    assert one_end.parameters["alpha_tail"] is None
    assert one_end.reason == "the tail does not stand above the floor: no alpha_tail"
    spike = fit_curve([0.55, 0.05, 0.05, 0.05, 0.05, 0.05, 0.2], "two_sided")
    assert spike.parameters["alpha_head"] is None
    assert spike.parameters["head"] == pytest.approx(0.5, abs=1e-6)
    assert spike.reason is not None
    assert "alpha_head is too large to be told" in spike.reason
    ends = fit_curve([0.5, 0, 0, 0.5], "symmetric")
    assert ends.parameters == {"alpha": None}
    assert ends.reason is not None
    np.testing.assert_allclose(ends.fitted, [0.5, 0, 0, 0.5], atol=1e-8)


@pytest.mark.parametrize(
    ("values", "model", "words"),
    [
        ([0.5, 0.5], "symmetric", "at least 3 positions, and the curve has 2"),
        ([0.3, 0.2, 0.2, 0.3], "two_sided", "at least 5 positions"),
        ([0.5, math.nan, 0.5], "symmetric", "position 1 is undefined"),
        ([0.5, -0.1, 0.6], "symmetric", "position 1 is -0.1"),
        ([0.5, math.inf, 0.6], "flat", "position 1 is inf"),
        ([0, 0, 0], "symmetric", "all others are 0"),
        ([0.5, 0.2, 0.3], "u", "model 'u' is unknown; expected one of symmetric, two_sided, flat"),
        ([[0.5, 0.2, 0.3]], "symmetric", "shape"),
    ],
)
def test_what_cannot_be_fitted(values: list[float], model: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        fit_curve(values, model)


def test_curve_fit() -> None:
    u = curve(3 * effective_attention(10, 0.45), "mass")
    assert u.fit().parameters["alpha"] == pytest.approx(0.45, abs=1e-6)
    assert u.fit("flat").r2 == pytest.approx(0)
    json.dumps(u.fit("two_sided").to_dict(), allow_nan=False)
    with pytest.raises(InputError, match="advantage"):
        curve(np.array([0.5, -0.2, 0.1]), "advantage").fit()
    with pytest.raises(ValueError, match="read-only"):
        u.fit().fitted[0] = 1


def profiles(truth: np.ndarray, questions: int, sd: float, rng: np.random.Generator) -> np.ndarray:
    """Positive profiles around a truth, each on a scale of its own."""
    scale = rng.uniform(0.1, 10, (questions, 1))
    return scale * truth * np.exp(rng.normal(0, sd, (questions, len(truth))))


def test_profiles_are_averaged_geometrically() -> None:
    values = profiles(effective_attention(6, 0.5), 7, 0.4, np.random.default_rng(3))
    mean = np.exp(np.log(values).mean(axis=0))
    study = fit_profiles(values)
    np.testing.assert_allclose(study.fit.shares, mean / mean.sum(), rtol=1e-12)
    assert study.fit.parameters == pytest.approx(fit_curve(mean).parameters, rel=1e-9)
    # Whatever scale a question has.
    assert fit_profiles(values / values.sum(axis=1, keepdims=True)).fit.parameters["alpha"] == pytest.approx(
        study.fit.parameters["alpha"], abs=1e-9
    )


def test_standard_error_and_prediction_error_by_hand() -> None:
    values = profiles(effective_attention(8, 0.5), 6, 0.3, np.random.default_rng(4))
    shares = values / values.sum(axis=1, keepdims=True)
    alphas, errors = [], []
    for q in range(6):
        others = np.exp(np.log(shares[[o for o in range(6) if o != q]]).mean(axis=0))
        alpha = fit_curve(others).parameters["alpha"]
        assert alpha is not None
        alphas.append(alpha)
        errors.append(np.mean((shares[q] - effective_attention(8, alpha)) ** 2))
    study = fit_profiles(values)
    error = math.sqrt(5 / 6 * np.sum((np.array(alphas) - np.mean(alphas)) ** 2))
    assert study.standard_errors["alpha"] == pytest.approx(error, rel=1e-9)
    interval = study.intervals["alpha"]
    assert interval.low is not None
    assert interval.estimate is not None
    assert interval.estimate - interval.low == pytest.approx(2.570581835636314 * error, rel=1e-9)  # t of 5 df
    flat = np.mean((shares - 1 / 8) ** 2, axis=1)
    assert study.error == pytest.approx(np.mean(errors), rel=1e-9)
    assert study.flat_error == pytest.approx(np.mean(flat), rel=1e-12)
    assert study.gain is not None
    assert study.gain.estimate == pytest.approx(np.mean(flat) - np.mean(errors), rel=1e-9)
    assert study.gain.n == 6


def test_too_few_questions_have_no_interval() -> None:
    values = profiles(effective_attention(6, 0.5), 4, 0.1, np.random.default_rng(0))
    four, one = fit_profiles(values), fit_profiles(values[:1])
    assert four.intervals["alpha"].low is None
    assert four.standard_errors == {"alpha": None}
    assert four.intervals["alpha"].reason == "fewer than 5 questions"
    assert four.predicts_better == "inconclusive"
    assert four.error is not None
    assert one.error is None
    assert one.gain is None
    json.dumps([four.to_dict(), one.to_dict()], allow_nan=False)


def test_no_error_for_a_parameter_on_its_bound() -> None:
    study = fit_profiles(profiles(np.full(8, 1 / 8), 6, 0.2, np.random.default_rng(6)))
    assert study.intervals["alpha"].low is None
    assert study.intervals["alpha"].reason is not None
    assert "at its bound 0" in study.intervals["alpha"].reason


def test_flat_is_what_models_are_compared_with() -> None:
    study = fit_profiles(profiles(effective_attention(6, 0.5), 6, 0.1, np.random.default_rng(0)), "flat")
    assert study.gain is None
    assert study.error == study.flat_error
    assert study.intervals == {}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([[0.5, 0.2, 0.3], [0.4, 0.0, 0.6]], "question 1, position 1 is 0"),
        ([[0.5, 0.2, 0.3], [0.4, math.nan, 0.6]], "question 1, position 1 is undefined"),
        ([0.5, 0.2, 0.3], "question, position"),
        (np.zeros((0, 3)), "no questions"),
        ([[0.5, 0.5]] * 6, "at least 3 positions"),
    ],
)
def test_profiles_that_cannot_be_fitted(values: list[list[float]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        fit_profiles(values)


def test_coverage_and_prediction_in_simulated_studies() -> None:
    """120 studies of 8 questions: coverage within 3 binomial errors of 95 %, and U and flat told apart."""
    rng = np.random.default_rng(20)
    found = [fit_profiles(profiles(effective_attention(8, 0.45), 8, 0.3, rng)) for _ in range(120)]
    intervals = [study.intervals["alpha"] for study in found]
    assert all(interval.low is not None for interval in intervals)
    covered = np.mean([interval.low <= 0.45 <= interval.high for interval in intervals])  # type: ignore[operator]
    assert covered >= 0.89
    errors = np.array([study.standard_errors["alpha"] for study in found], dtype=float)
    spread = np.std([interval.estimate for interval in intervals], ddof=1)
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(spread, rel=0.2)  # 3 standard errors of a spread of 120
    assert np.mean([study.predicts_better == "model" for study in found]) > 0.95
    flat = [fit_profiles(profiles(np.full(8, 1 / 8), 8, 0.3, rng)) for _ in range(50)]
    assert sum(study.predicts_better == "model" for study in flat) <= 4  # 2.5 % expected at most


@pytest.mark.slow
def test_two_sided_coverage_in_simulated_studies() -> None:
    rng = np.random.default_rng(21)
    planted = dict(zip(NAMES, (0.3, 0.9, 0.15, 0.6, 0.05), strict=True))
    truth = two_sided(10, **planted)
    found = [fit_profiles(profiles(truth, 12, 0.15, rng), "two_sided") for _ in range(24)]
    for name in NAMES:
        true = planted[name] / (1 if name.startswith("alpha") else truth.sum())
        intervals = [study.intervals[name] for study in found if study.intervals[name].low is not None]
        assert len(intervals) > 21
        covered = np.mean([i.low <= true <= i.high for i in intervals])  # type: ignore[operator]
        assert covered >= 0.81  # 3 binomial errors below 95 % of 24
    assert all(study.predicts_better == "model" for study in found)
