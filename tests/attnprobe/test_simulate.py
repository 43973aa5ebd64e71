from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnprobe.decompose import decompose
from attnprobe.errors import InputError
from attnprobe.intervals import end_log_ratios, ratio_interval, simultaneous_band
from attnprobe.simulate import Truth, draw_components, draw_permutations, simulate_study

CURVE = (1.2, 0.5, 0.1, 0.0, 0.2, 0.6)


def test_values_are_log_shares_of_the_planted_curve() -> None:
    study = simulate_study(Truth(CURVE, prompt=2.0), 3, bases=2, seed=1)
    assert study.log_values.shape == study.permutations.shape == (3, 2, 6, 6)
    assert np.exp(study.log_values).sum(axis=-1) == pytest.approx(np.ones((3, 2, 6)))
    assert study.log_values == pytest.approx(
        np.broadcast_to(np.array(CURVE) - np.log(np.exp(CURVE).sum()), (3, 2, 6, 6))
    )
    assert study.log_profiles.shape == (3, 6)


def test_a_balanced_design_takes_the_content_out_of_the_profile() -> None:
    truth = Truth(CURVE, content=1.0)
    study = simulate_study(truth, 4, seed=2)
    profiles = study.log_profiles - study.log_profiles.mean(axis=1, keepdims=True)
    assert profiles == pytest.approx(np.broadcast_to(truth.centred_curve, (4, 6)), abs=1e-12)
    assert np.abs(study.log_values[:, 0, 0] - study.log_values[:, 0, 1]).max() > 0.1


def test_planted_spreads_come_back() -> None:
    ends = np.zeros(6)
    slopes = simulate_study(Truth(tuple(ends), slope=0.3), 4000, seed=3).log_profiles
    assert (slopes[:, -1] - slopes[:, 0]).std() == pytest.approx(0.6, rel=0.05)
    own = simulate_study(Truth(tuple(ends), question_position=0.3), 4000, seed=4).log_profiles
    assert (own[:, -1] - own[:, 0]).std() == pytest.approx(0.3 * np.sqrt(2), rel=0.05)
    one = simulate_study(Truth(tuple(ends), noise=0.3), 500, seed=5).log_values
    assert (one[..., 0] - one[..., 1]).std() == pytest.approx(0.3 * np.sqrt(2), rel=0.05)
    # The mean of many heads strays less: by the relative error of a mean of log-normal values.
    many = simulate_study(Truth(tuple(ends), noise=0.3, heads=25), 500, seed=6).log_values
    expected = np.sqrt(2 * (np.exp(0.09) - 1) / 25)
    assert (many[..., 0] - many[..., 1]).std() == pytest.approx(expected, rel=0.05)
    both = simulate_study(Truth(tuple(ends), interaction=0.3), 500, seed=7).log_values
    assert (both[..., 0] - both[..., 1]).std() == pytest.approx(0.3 * np.sqrt(2), rel=0.05)


@pytest.mark.parametrize("questions", [5, 8, 12, 24])
def test_the_whole_chain_finds_what_is_planted(questions: int) -> None:
    truth = Truth(CURVE, slope=0.1, question_position=0.05, content=0.3, interaction=0.1, noise=0.3, heads=8)
    study = simulate_study(truth, questions, bases=2, seed=(8, questions))
    head, tail = end_log_ratios(study.log_profiles)
    for end, values in ((0, head), (-1, tail)):
        found = ratio_interval(values)
        assert found.low is not None
        assert found.high is not None
        assert found.low < np.exp(CURVE[end]) / np.exp(CURVE[2:4]).mean() < found.high
    band = simultaneous_band(study.log_profiles)
    assert band.critical is not None
    assert band.low is not None
    error = (band.estimate - band.low) / band.critical
    off = np.abs(band.estimate - band.estimate.mean() - truth.centred_curve)
    assert (off < 2 * band.critical * error).all()
    parts = decompose(study.log_values, study.permutations)
    position = np.var(CURVE) + 0.05**2 + 0.1**2 * np.var(np.linspace(-1, 1, 6))
    content, both, noise = 0.3**2 * 5 / 6, 0.1**2 * 25 / 36, (np.exp(0.09) - 1) / 8
    total = position + content + both + noise
    assert parts.interaction is not None
    for part, expected in ((parts.position, position), (parts.content, content), (parts.interaction, both)):
        assert part.estimate == pytest.approx(expected / total, abs=0.4 / np.sqrt(questions))


def test_components_have_exactly_the_variances_asked_for() -> None:
    permutations = draw_permutations(5, 3, "williams", 1, np.random.default_rng(0))
    position = draw_components((0.7, 0, 0, 0), permutations, np.random.default_rng(1))
    assert (position[:, 0, 0] ** 2).mean(axis=1) == pytest.approx(np.full(3, 0.7))
    assert position == pytest.approx(np.broadcast_to(position[:, :, :1], position.shape))
    content = draw_components((0, 0.7, 0, 0), permutations, np.random.default_rng(1))
    by_document = np.take_along_axis(content, np.argsort(permutations, axis=-1), axis=-1)
    assert by_document == pytest.approx(np.broadcast_to(by_document[:, :, :1], content.shape))
    both = draw_components((0, 0, 0.7, 0), permutations, np.random.default_rng(1))
    assert both.mean(axis=2) == pytest.approx(np.zeros((3, 1, 5)), abs=1e-12)
    assert (both**2).mean(axis=(1, 2, 3)) == pytest.approx(np.full(3, 0.7))


def test_the_seed_fixes_everything() -> None:
    truth = Truth(CURVE, slope=0.1, noise=0.3)
    same, again, other = (simulate_study(truth, 2, seed=seed).log_values for seed in (1, 1, 2))
    assert np.array_equal(same, again)
    assert not np.array_equal(same, other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"questions": 0}, "questions must be at least 1"),
        ({"design": "insertion"}, "simulate williams or cyclic"),
        ({"truth": Truth(CURVE, noise=1, heads=0)}, "truth.heads must be at least 1"),
        ({"seed": "a"}, "seed must be an int"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate_study(**{"truth": Truth(CURVE), "questions": 2, **arguments})
