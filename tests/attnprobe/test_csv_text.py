"""CSV: what a spreadsheet opens is numbers and texts, never a formula that a prompt brought."""

from __future__ import annotations

import csv
import io

import pytest
from runs import make_run

from attnprobe.csv_text import csv_text, table_csv
from attnprobe.summary import Selection, curve_csv, groups, prompt_result

FORMULAS = ("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1")


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("formula", FORMULAS)
def test_formulas_are_texts(formula: str) -> None:
    assert read(csv_text(["a"], [[formula]])) == [["a"], ["'" + formula]]


def test_numbers_and_other_texts_stay_as_they_are() -> None:
    rows = [[-1.5, None, "-1.5", "+2e-3", "a=b", "", 'say "x", y\nz']]
    assert read(csv_text(["a"] * 7, rows))[1] == ["-1.5", "", "-1.5", "+2e-3", "a=b", "", 'say "x", y\nz']


def test_tables_of_measurements_and_studies_hold_no_formulas() -> None:
    run = make_run(names=FORMULAS[:4])
    result = prompt_result(run, 0, FORMULAS[0], "runs/one.safetensors", Selection(), False)
    found = read(curve_csv([result], groups([result])))
    prompt, document = (found[0].index(name) for name in ("prompt", "document"))
    assert {row[prompt] for row in found[1:5]} == {"'" + FORMULAS[0]}
    assert [row[document] for row in found[1:5]] == ["'" + name for name in FORMULAS[:4]]
    (_, row) = read(table_csv([{"question": FORMULAS[3], "value": -0.25, "nothing": None}]))
    assert row == ["'" + FORMULAS[3], "-0.25", ""]
