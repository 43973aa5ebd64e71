from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprobe.decompose import COMPONENTS, decompose
from attnprobe.designs import orders
from attnprobe.errors import InputError
from attnprobe.simulate import draw_components, draw_permutations


def shown(K: int, bases: int, questions: int = 5, design: str = "williams", seed: int = 0) -> np.ndarray:
    return draw_permutations(K, questions, design, bases, np.random.default_rng(seed))


def estimates(values: np.ndarray, permutations: np.ndarray) -> list[float | None]:
    found = decompose(values, permutations)
    parts = [getattr(found, name) for name in COMPONENTS]
    return [0.0 if part is None else part.estimate for part in parts]


DESIGNS = [(3, 1, "cyclic"), (4, 1, "williams"), (5, 1, "williams"), (10, 1, "cyclic"),
           (3, 2, "cyclic"), (4, 2, "williams"), (5, 2, "williams"), (6, 3, "cyclic"), (10, 2, "williams")]  # fmt: skip


@pytest.mark.parametrize(("K", "bases", "design"), DESIGNS)
def test_pure_effects_without_noise_are_found_exactly(K: int, bases: int, design: str) -> None:
    permutations = shown(K, bases, design=design)
    rng = np.random.default_rng(1)
    level = rng.normal(size=(*permutations.shape[:3], 1))  # a prompt's own level is no component
    for pure in range(3 if bases > 1 else 2):
        parts = tuple(float(i == pure) for i in range(4))
        values = draw_components(parts, permutations, rng) + level  # type: ignore[arg-type]
        assert estimates(values, permutations) == pytest.approx(list(parts), abs=1e-10)


@pytest.mark.parametrize(("K", "bases", "design"), DESIGNS)
def test_mixed_effects_without_noise_are_found_exactly(K: int, bases: int, design: str) -> None:
    permutations = shown(K, bases, design=design, seed=3)
    parts = (0.5, 0.3, 0.2 if bases > 1 else 0.0, 0.0)
    values = draw_components(parts, permutations, np.random.default_rng(2))
    assert estimates(values, permutations) == pytest.approx([part / sum(parts) for part in parts], abs=1e-10)


def least_squares(y: np.ndarray, permutations: np.ndarray, interaction: bool) -> list[float]:
    """Omega squared of one question from a full design matrix, [base, order, position]."""
    K = y.shape[-1]
    n_orders, N = y.size // K, y.size
    effect = np.vstack([np.eye(K - 1), -np.ones(K - 1)])
    position, document = effect[np.tile(np.arange(K), n_orders)], effect[permutations.ravel()]
    blocks = [np.eye(n_orders)[np.repeat(np.arange(n_orders), K)], position, document]
    codings = [effect, effect]
    if interaction:
        blocks.append((position[:, :, None] * document[:, None, :]).reshape(N, -1))
        codings.append(np.kron(effect, effect))
    X = np.hstack(blocks)
    inverse = np.linalg.pinv(X.T @ X)
    coefficients = inverse @ X.T @ y.ravel()
    noise = ((y.ravel() - X @ coefficients) ** 2).sum() / (N - np.linalg.matrix_rank(X))
    parts, start = [], n_orders
    for coding in codings:
        part = slice(start, start + coding.shape[1])
        added = noise * np.trace(coding @ inverse[part, part] @ coding.T) / len(coding)
        parts.append(((coding @ coefficients[part]) ** 2).mean() - added)
        start += coding.shape[1]
    if not interaction:
        parts.append(0.0)
    parts.append(noise)
    return [part / sum(parts) for part in parts]


@given(st.sampled_from(DESIGNS), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_components_are_those_of_a_full_least_squares_fit(case: tuple[int, int, str], seed: int) -> None:
    K, bases, design = case
    permutations = shown(K, bases, 2, design, seed)
    rng = np.random.default_rng(seed)
    values = draw_components((0.2, 0.3, 0.1, 0.4), permutations, rng) + rng.normal(size=(2, bases, 1, 1))
    found = decompose(values, permutations).per_question
    for question in range(2):
        expected = least_squares(values[question], permutations[question], bases > 1)
        assert found[question] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("bases", [1, 2])
def test_pure_noise_has_no_effects_on_average(bases: int) -> None:
    permutations = shown(10, bases, 600)
    values = np.random.default_rng(4).normal(size=permutations.shape)
    found = decompose(values, permutations)
    for name in ("position", "content"):
        part = getattr(found, name)
        assert abs(part.estimate) < 4 * found.per_question[:, COMPONENTS.index(name)].std() / math.sqrt(600)
        assert part.estimate < 0.01  # a share of the sum of squares would be about 0.09
    if bases == 2:
        assert found.interaction is not None
        assert found.interaction.estimate == pytest.approx(0, abs=0.02)
    assert found.residual.estimate == pytest.approx(1, abs=0.02)


def test_one_base_cannot_tell_interaction_and_says_so() -> None:
    permutations = shown(5, 1)
    found = decompose(draw_components((0.2, 0.2, 0.5, 0.1), permutations, np.random.default_rng(0)), permutations)
    assert found.interaction is None
    assert found.reason is not None
    assert found.reason.startswith("one base order cannot tell interaction from noise")
    assert found.to_dict()["interaction"] is None
    unlinked = np.array([[[0, 1, 3, 2], [1, 2, 0, 3], [2, 3, 1, 0], [3, 0, 2, 1]],
                         [[0, 3, 1, 2], [3, 2, 0, 1], [2, 1, 3, 0], [1, 0, 2, 3]]])[None]  # fmt: skip
    apart = decompose(np.random.default_rng(0).normal(size=unlinked.shape), unlinked)
    assert apart.interaction is None
    assert apart.reason is not None
    assert "too little in common" in apart.reason
    two = shown(5, 2)
    assert decompose(draw_components((0.2, 0.2, 0.5, 0.1), two, np.random.default_rng(0)), two).reason is None
    json.dumps(found.to_dict(), allow_nan=False)


def test_intervals_are_over_questions() -> None:
    permutations = shown(6, 1, 6)
    rng = np.random.default_rng(5)
    values = draw_components((0.4, 0.3, 0, 0.3), permutations, rng)
    found = decompose(values, permutations, level=0.9)
    assert found.position.low is not None
    assert found.position.high is not None
    x = found.per_question[:, 0]
    half = 2.0150483733330233 * x.std(ddof=1) / math.sqrt(6)  # t quantile 0.95 of 5 degrees of freedom
    assert (found.position.low, found.position.high) == pytest.approx((x.mean() - half, x.mean() + half))
    few = decompose(values[:4], permutations[:4])
    assert (few.position.low, few.position.n) == (None, 4)
    assert few.per_question == pytest.approx(found.per_question[:4])


def test_undefined_and_constant_questions_are_left_out() -> None:
    permutations = shown(4, 1, 7)
    values = draw_components((0.4, 0.3, 0, 0.3), permutations, np.random.default_rng(6))
    values[0, 0, 0, 0] = math.nan
    values[1] = 0.1
    found = decompose(values, permutations)
    assert np.isnan(found.per_question[:2]).all()
    assert np.isfinite(found.per_question[2:]).all()
    assert (found.position.n, found.position.reason) == (5, "2 of 7 questions left out: undefined there")
    assert decompose(np.full(permutations.shape, math.nan), permutations).position.estimate is None


def test_orders_that_cannot_tell_position_from_content_are_refused() -> None:
    def refused(permutations: Any, message: str, values: Any = None) -> None:
        permutations = np.asarray(permutations)
        with pytest.raises(InputError, match=message):
            decompose(np.zeros(permutations.shape) if values is None else values, permutations)

    moved = [order.permutation for order in orders("insertion", 4, needle=0)]
    refused([[moved]], "every document at every position equally often")
    square = shown(4, 1, 1)
    refused(square[:, :, :3], "every document at every position equally often")
    refused(square * 1.0, "must be whole numbers of the shape of values")
    refused(square, "of the shape of values", np.zeros((2, 1, 4, 4)))
    refused(square % 3, "every document, 0 to 3, once in each order")
    refused(shown(2, 1, 1), "3 or more")
    refused(square, r"expected \[question, base, order, position\]", np.zeros(4))
    between = np.array([[[[0, 1, 2], [1, 2, 0]], [[2, 0, 1], [0, 1, 2]]]])  # balanced over both bases, in neither
    refused(between, "equally often")
