from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnprobe import validate
from attnprobe.errors import InputError
from attnprobe.estimates import Interval
from attnprobe.flatness import centred, flatness_test
from attnprobe.intervals import mean_interval, ratio_interval, simultaneous_band, t_bounds
from attnprobe.multiplicity import sign_flip_max_t, step_down_p
from attnprobe.simulate import simulate_study


def test_the_small_form_passes() -> None:
    found = list(validate.checks(repetitions=200))
    assert [check for check in found if not check.passed] == []
    assert len(found) == 4 * (3 + 4) + 3 * 4 + 2 * (3 + 4 + 4)


@pytest.mark.parametrize("questions", [5, 12])
def test_intervals_that_are_too_short_do_not_pass(questions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def normal_quantile(values: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mean, _, high = t_bounds(values, level)
        shrunk = 0.7 * (high - mean)
        return mean, mean - shrunk, mean + shrunk

    monkeypatch.setattr(validate, "t_bounds", normal_quantile)
    monkeypatch.setattr(validate, "band_critical", lambda *_: 2.3)
    monkeypatch.setattr(validate, "QUESTIONS", (questions,))
    found = itertools.islice(validate.checks(repetitions=200), 3)
    names = ["head/middle interval", "tail/middle interval", "simultaneous band"]
    assert [(check.name, check.passed) for check in found] == [(name, False) for name in names]


def test_tests_that_reject_too_often_do_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_position(profiles: np.ndarray, signs: np.ndarray) -> np.ndarray:
        """Flip every value by itself, as permuting positions within questions would: blind to slopes."""
        rng = np.random.default_rng(0)
        p = np.empty(len(profiles))
        for i, x in enumerate(profiles):
            flips = rng.integers(2, size=(199, *x.shape)) * 2 - 1
            p[i] = (((flips * x).mean(axis=1) ** 2).sum(axis=1) >= (x.mean(axis=0) ** 2).sum()).mean()
        return p

    def one_by_one(values: np.ndarray, signs: np.ndarray) -> np.ndarray:
        return np.array([step_down_p(values[:, [head]], signs)[0] for head in range(values.shape[1])])

    monkeypatch.setattr(validate, "sign_flip_p", by_position)
    monkeypatch.setattr(validate, "step_down_p", one_by_one)
    found = validate.false_alarms(8, 200, 0)
    assert found["flatness false alarms"] > 0.1
    assert found["max-T family-wise error"] > 0.15


def test_intervals_that_take_needles_of_a_text_for_independent_do_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def over_items(values: np.ndarray, texts: list[int], items: list[int], level: float) -> Interval:
        means = [values[np.array(items) == item].mean() for item in sorted(set(items))]
        return mean_interval(means, level)

    monkeypatch.setattr(validate, "crossed_interval", over_items)
    found = validate.crossed(5, 200, 0)
    assert {name.rpartition(": ")[2]: rate < 0.9 for name, rate in found.items()} == {
        "items differ": False, "texts differ": True, "both differ": True, "neither": False,
    }  # fmt: skip


def test_what_is_validated_is_what_is_public() -> None:
    """The simulations call the parts; the public functions must give the same decisions."""
    study = simulate_study(validate.STRAY, 8, seed=3)
    profiles = study.log_profiles
    shape = centred(profiles)
    band = simultaneous_band(profiles, draws=40_000)
    residuals = shape - shape.mean(axis=0)
    normals = validate.normal_samples(8, validate.DOCUMENTS, 40_000, np.random.default_rng(1))
    critical = validate.band_critical(residuals, 0.95, normals)
    assert band.critical == pytest.approx(critical, rel=0.02)
    assert band.low is not None
    error = shape.std(axis=0, ddof=1) / np.sqrt(8)
    assert (band.estimate - band.low) / band.critical == pytest.approx(error)
    signs = validate.sign_patterns(8, 999, 0)
    assert flatness_test(profiles).p == validate.sign_flip_p(shape[None], signs)[0]
    assert np.array_equal(sign_flip_max_t(shape), step_down_p(shape, signs))
    _, low, high = t_bounds(profiles[:, 0], 0.95)
    interval = ratio_interval(profiles[:, 0])
    assert (interval.low, interval.high) == pytest.approx((np.exp(low), np.exp(high)))


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def two(value: float) -> Any:
        return lambda repetitions, seed: iter([validate.Check("one", 5, 0.95, 0.94, 0.96),
                                               validate.Check("two", 8, value, 0.04, 0.06)])  # fmt: skip

    monkeypatch.setattr(validate, "checks", two(0.05))
    file = tmp_path / "found.json"
    assert validate.main(["--repetitions", "7", "--json", str(file)]) == 0
    assert "2 of 2 in range, 7 repetitions, seed 0" in capsys.readouterr().out
    record = json.loads(file.read_text())
    assert record["repetitions"] == 7
    assert record["checks"][1] == {"name": "two", "questions": 8, "value": 0.05, "low": 0.04, "high": 0.06,
                                   "passed": True}  # fmt: skip
    monkeypatch.setattr(validate, "checks", two(0.07))
    assert validate.main([]) == 1
    out = capsys.readouterr().out
    assert "OUT OF RANGE" in out
    assert "1 of 2 in range" in out
    with pytest.raises(InputError, match="--repetitions must be at least 1"):
        validate.main(["--repetitions", "0"])


@pytest.mark.parametrize("value", [0.94, 0.96])
def test_a_check_passes_up_to_its_bounds(value: float) -> None:
    assert validate.Check("", 5, value, 0.94, 0.96).passed
    assert not validate.Check("", 5, value + (0.001 if value > 0.95 else -0.001), 0.94, 0.96).passed
