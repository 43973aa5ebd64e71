from __future__ import annotations

import io
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from attnprobe import terminal
from attnprobe.terminal import bars, count, decimal, duration, fit, percent, size, table, time_left, work_bar, wrapped

FAST = settings(deadline=None, derandomize=True, max_examples=100)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@FAST
@given(ANY_TEXT, st.integers(1, 30), st.booleans())
def test_fit_takes_exactly_its_cells_and_no_control_characters(text: str, width: int, right: bool) -> None:
    line = fit(text, width, right)
    assert cell_len(line) == width
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in line)


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("abc", 5, "abc  "),
        ("abcdef", 4, "abc…"),
        ("文字幅です", 6, "文字 …"),
        ("\x1b[31mred\x1b[0m", 12, " [31mred [0m"),
    ],
)
def test_fit(text: str, width: int, expected: str) -> None:
    assert fit(text, width) == expected


def test_numbers() -> None:
    assert percent(0.1234) == "12.3 %"
    assert percent(None) == percent(math.nan) == decimal(None) == "-"
    assert percent(math.inf) == decimal(math.inf) == "inf"
    assert decimal(-0.456) == "-0.46"
    assert (decimal(-0.004), decimal(-0.4, 0), decimal(-0.005001)) == ("0.00", "0", "-0.01")
    assert [count(n, "prompt") for n in (0, 1, 1234)] == ["0 prompts", "1 prompt", "1,234 prompts"]


@pytest.mark.parametrize(
    ("n_bytes", "expected"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1234567, "1.23 MB"), (538_060_032, "538 MB"), (1.2e16, "12000 TB")],
)
def test_size(n_bytes: float, expected: str) -> None:
    assert size(n_bytes) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (59.4, "59 s"),
        (60, "1 min 00 s"),
        (3599.6, "1 h 00 min"),
        (7260, "2 h 01 min"),
    ],
)
def test_duration(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def test_time_left_follows_the_mean_pace() -> None:
    assert time_left(0, 10, 5.0) == ""
    assert time_left(2, 10, 5.0) == "about 20 s left"
    assert time_left(12, 10, 5.0) == "about 0.0 s left"


def test_table_aligns_and_stays_within_its_width() -> None:
    lines = table(("n", "name"), [("1", "a"), ("100", "b" * 100)], (True, False), width=20)
    assert lines == ["  n  name", "  1  a", "100  " + "b" * 14 + "…"]


@FAST
@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT), min_size=1, max_size=5))
def test_table_lines_have_one_row_each(rows: list[tuple[str, str]]) -> None:
    lines = table(("a", "b"), rows, (True, False), width=200)
    assert len(lines) == len(rows) + 1
    assert all("\n" not in line and cell_len(line) <= 200 for line in lines)


def test_wrapped_keeps_units_with_their_numbers() -> None:
    assert wrapped("it takes a share of 12.3 % and then", 24, "  ") == ["it takes a share of", "  12.3 % and then"]
    assert wrapped("a correlation of 0.37, p = 0.018", 25) == ["a correlation of 0.37,", "p = 0.018"]
    assert wrapped("a correlation of 0.37, p < 0.001", 28) == ["a correlation of 0.37,", "p < 0.001"]
    assert wrapped("") == [""]


def test_bars_are_proportional_and_marked() -> None:
    assert bars([0.5, 0.25, 0.0, None], 8, mark=0.25) == ["████│███", "████│", "    │", "    │"]
    assert bars([0.5, 0.25], 8, mark=0.25, unicode=False) == ["####|###", "####|"]
    assert bars([1.0, 0.5625], 8) == ["█" * 8, "████▌"]


def test_bars_of_signed_values_share_a_zero() -> None:
    assert bars([-1.0, 1.0, math.inf, math.nan], 8, mark=0.0) == ["████│", "    │███", "    │", "    │"]


@FAST
@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=8), st.integers(1, 60), st.none() | st.floats(-1e6, 1e6))
def test_bars_fit_their_width(values: list[float | None], width: int, mark: float | None) -> None:
    for unicode in (True, False):
        lines = bars(values, width, mark, unicode)
        assert len(lines) == len(values)
        assert all(cell_len(line) <= width for line in lines)


def test_no_bar_without_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "PROGRESS_AFTER", 0.0)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with work_bar("measuring", 10) as advance:
        advance(5, "half")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("total", [10, None])
def test_bar_in_a_terminal_shows_note_and_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, total: float | None
) -> None:
    monkeypatch.setattr(terminal, "PROGRESS_AFTER", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes any stream for a terminal
    monkeypatch.setenv("COLUMNS", "80")
    with work_bar("measuring", total) as advance:
        terminal.time.sleep(0.3)
        advance(5, "1/2, prefill")
        terminal.time.sleep(0.3)
    out, error = capsys.readouterr()
    assert out == ""
    assert "measuring" in error
    assert "1/2, prefill" in error
    assert ("left" in error) is (total is not None)


def test_quick_work_shows_no_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with work_bar("measuring", 10) as advance:
        advance(10, "done")
    assert "measuring" not in capsys.readouterr().err


def test_what_standard_output_cannot_show_counts_with_its_true_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert fit("a long answer", 8) == "a lon..."
    assert fit("café", 9) == "caf\\xe9  "
    assert fit("ab", 1) == "."
