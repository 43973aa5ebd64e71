from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprobe.bands import ARTICLE_BANDS, BAND_NAMES, UNITS, band_table, judge, read_band_table
from attnprobe.errors import InputError
from attnprobe.estimates import Interval

PROPERTY = settings(max_examples=200, deadline=None, derandomize=True)
RATIO = "citation_head_middle_ratio"


def interval(estimate: float | None, low: float | None, high: float | None, reason: str | None = None) -> Interval:
    return Interval(estimate, low, high, 0.95, 9, "given", reason)


@pytest.mark.parametrize(
    ("signal", "bands"),
    [
        ("average_k", {0: 0, 3.99: 0, 4: 1, 4.99: 1, 5: 2, 8: 2, 8.99: 2, 9: 3, 100: 3}),
        ("p95_prompt_tokens", {0: 0, 3999: 0, 4000: 2, 16000: 2, 16001: 3}),
        (RATIO, {0: 0, 1.99: 0, 2: 2, 4: 2, 4.01: 3, math.inf: 3}),
        ("accuracy_best_worst_ratio", {1: 0, 1.49: 0, 1.5: 2, 3: 2, 3.01: 3, math.inf: 3}),
        ("context_rot_gap", {-1: 0, 0.049: 0, 0.05: 1, 0.099: 1, 0.1: 2, 0.2: 2, 0.201: 3, 1: 3, 0.9 - 0.8: 2}),
    ],
)
def test_the_article_s_numbers(signal: str, bands: dict[float, int]) -> None:
    for value, place in bands.items():
        verdict = judge(signal, value)
        assert (verdict.verdict, verdict.band) == (BAND_NAMES[place],) * 2, value
        assert verdict.unit == UNITS[signal]
        assert verdict.reason == "a point estimate without interval"


@PROPERTY
@given(st.sampled_from(list(UNITS)), st.floats(0, 1), st.floats(0, 1e9))
def test_every_value_lies_in_exactly_one_band(signal: str, fraction: float, number: float) -> None:
    value = fraction * 2 - 1 if UNITS[signal] == "fraction" else number
    holding = [band.name for band in ARTICLE_BANDS.signals[signal] if band.holds(value)]
    assert len(holding) == 1


def test_a_verdict_needs_both_bounds_in_one_band() -> None:
    assert judge(RATIO, interval(3, 2.1, 3.9)).verdict == "suspect"
    across = judge(RATIO, interval(3, 1.2, 4.5))
    assert (across.verdict, across.band, across.low_band, across.high_band) == (
        "inconclusive",
        "suspect",
        "healthy",
        "confirmed",
    )
    assert across.reason == "between healthy and confirmed"
    assert judge(RATIO, interval(math.inf, 4.1, math.inf)).verdict == "confirmed"
    # A t interval of a ratio may reach below 0.
    assert judge(RATIO, interval(0.8, -0.3, 1.9)).verdict == "healthy"
    json.dumps(judge(RATIO, interval(math.inf, 4.1, math.inf)).to_dict(), allow_nan=False)


def test_without_bounds_or_value() -> None:
    few = judge(RATIO, interval(5, None, None, "fewer than 5 questions"))
    assert (few.verdict, few.band, few.reason) == ("inconclusive", "confirmed", "fewer than 5 questions")
    for value in (None, math.nan, interval(None, None, None, "no middle"), np.float32("nan")):
        undefined = judge("context_rot_gap", value)
        assert (undefined.verdict, undefined.band) == ("undefined", None)
    assert judge("context_rot_gap", interval(None, None, None, "no middle")).reason == "no middle"
    assert judge("context_rot_gap", np.float32(0.3)).verdict == "confirmed"


@pytest.mark.parametrize("signal", ["head_middle", "tail_middle", "attention_head_middle", "share", "Head-Middle"])
def test_attention_has_no_bands(signal: str) -> None:
    with pytest.raises(InputError, match="no evidence behind any for attention"):
        judge(signal, 3.0)
    with pytest.raises(InputError, match="no evidence behind any for attention"):
        band_table({signal: {"healthy": {}}})


@pytest.mark.parametrize(
    ("signal", "value", "words"),
    [
        ("context_rot_gp", 0.1, "did you mean 'context_rot_gap'"),
        ("zzz", 0.1, "unknown; known: average_k"),
        ("context_rot_gap", 12, "12, outside -1 to 1 .fraction.; a fraction of 1 is expected, 0.12 for 12 %"),
        ("average_k", -1, "outside 0 to inf"),
        ("average_k", "3", "average_k is '3'"),
        ("average_k", True, "average_k is True"),
    ],
)
def test_wrong_signals_and_values(signal: str, value: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        judge(signal, value)


def test_own_bands_replace_a_signal_s() -> None:
    table = band_table(
        {
            "context_rot_gap": {"unit": "percent_points", "healthy": {"under": 3}, "suspect": {"from": 3}},
            "average_k": {"healthy": {"to": 6}, "watch": {"over": 6, "to": 8}, "confirmed": {"over": 8}},
        }
    )
    assert [judge("context_rot_gap", gap, table).verdict for gap in (0.029, 0.03)] == ["healthy", "suspect"]
    assert [judge("average_k", k, table).verdict for k in (6, 6.1, 8, 9)] == ["healthy", "watch", "watch", "confirmed"]
    assert judge(RATIO, 5, table).verdict == "confirmed"
    assert judge("average_k", 4).verdict == "watch"


@pytest.mark.parametrize(
    ("signal", "bands", "words"),
    [
        (
            "average_k",
            {"healthy": {"under": 4}, "suspect": {"from": 5}},
            "a gap lies between healthy .to 4.",
        ),
        (
            "average_k",
            {"healthy": {"under": 4}, "suspect": {"over": 4}},
            "a gap lies between healthy .to 4.",
        ),
        (
            "average_k",
            {"healthy": {"to": 4}, "suspect": {"from": 4}},
            "healthy .to 4. and suspect .from 4. overlap",
        ),
        ("average_k", {"healthy": {"to": 5}, "suspect": {"from": 4}}, "overlap"),
        ("average_k", {"healthy": {"from": 1, "under": 4}, "suspect": {"from": 4}}, "no band holds values below 1"),
        ("average_k", {"healthy": {"under": 4}, "suspect": {"from": 4, "to": 9}}, "no band holds values above 9"),
        ("average_k", {"suspect": {"under": 4}, "healthy": {"from": 4}}, "in the order healthy, watch, suspect, conf"),
        ("average_k", {"helthy": {"under": 4}}, "did you mean 'healthy'"),
        ("average_k", {"healthy": {"below": 4}}, "unknown edge 'below'"),
        ("average_k", {"healthy": {"under": "4"}}, "under is '4'; give a finite number"),
        ("average_k", {"healthy": {"under": 4, "to": 4}}, "both to and under"),
        ("average_k", {"healthy": {"from": 4, "under": 4}}, "holds no value"),
        ("average_k", {"unit": "percent_points", "healthy": {"to": 4}}, "measured in documents"),
        ("average_k", {}, "has no bands"),
        ("average_k", [1], "must be a mapping"),
        ("context_rot_gap", {"healthy": {"under": 5}, "suspect": {"from": 5}}, '"unit": "percent_points"'),
    ],
)
def test_tables_with_faults_are_refused_by_name(signal: str, bands: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        band_table({signal: bands})
    assert str(caught.value).startswith(signal)


def test_tables_from_files(tmp_path: Path) -> None:
    file = tmp_path / "bands.yaml"
    file.write_text("average_k:\n  healthy: {under: 6}\n  confirmed: {from: 6}\n")
    assert judge("average_k", 5, read_band_table(file)).verdict == "healthy"
    file.write_text("average_k: [")
    with pytest.raises(InputError, match=r"bands\.yaml is not valid YAML"):
        read_band_table(file)
    file.write_text("average_j: {healthy: {}}")
    with pytest.raises(InputError, match=r"bands\.yaml: signal 'average_j' is unknown; did you mean 'average_k'"):
        read_band_table(file)
    with pytest.raises(InputError, match="cannot be read"):
        read_band_table(tmp_path / "none.yaml")
