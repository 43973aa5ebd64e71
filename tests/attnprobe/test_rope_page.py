"""A comparison of RoPE scalings read from its folder: what it says of itself, its report and its figures."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rope_folders import SCALINGS, rope_plan, write_rope
from runs import make_run
from safetensors.numpy import load_file, save_file
from task_data import make_task, write_task
from typer.testing import CliRunner, Result

from attnprobe import cli
from attnprobe.errors import InputError, RunFileError
from attnprobe.report.figures import draw
from attnprobe.report.report import write_report
from attnprobe.report.rope_matrix_figure import ROPE_DRAWINGS, save_rope_figures
from attnprobe.rope_findings import RopeFindings, findings
from attnprobe.rope_folder import ABOUT, read_rope
from attnprobe.rope_options import Margins
from attnprobe.rope_text import rope_lines
from attnprobe.rope_told import rope_tables, verdict_of

LAST = (SCALINGS[2], 2048, 5)


def command(*words: object) -> Result:
    return CliRunner().invoke(cli.app, list(map(str, words)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rope(tmp_path_factory.mktemp("compared") / "rope")


@pytest.fixture(scope="module")
def found(folder: Path) -> RopeFindings:
    return read_rope(folder)


def test_the_plan_is_read_back(tmp_path: Path) -> None:
    plan = rope_plan("a/b", texts=5, seed=3, n_heads=4, margins=Margins(0.5, 0.1, 0.02), level=0.9)
    assert read_rope(str(write_rope(tmp_path / "out", plan))).data.plan == plan


def test_what_was_planted_is_told(found: RopeFindings) -> None:
    verdict = verdict_of(found)
    reached = "none 1,024 (2,048 lost); linear:2 lost at 512; yarn:2 2,048 or more"
    assert verdict.headline == f"Reach in tokens (trained window 1,024): {reached}"
    assert "none: middle needles: 512 reference, 1,024 reference, 2,048 lost" in verdict.lines
    assert "yarn:2: middle needles: 512 kept, 1,024 kept, 2,048 kept" in verdict.lines
    assert verdict.lines[1].startswith(
        "Reach: the longest length measured up to which the needles in the middle (depth 0.5) "
    )
    assert "beyond the window" not in verdict.lines[0]
    (cost,) = (line for line in verdict.lines if line.startswith("linear:2: in-window cost: "))
    planted = r"logprob -(4\.9|5\.0)\d \(-5\.\d\d to -4\.\d\d\) nats, lost; advantage -(0\.9|1\.0)\d .*"
    assert re.search(planted + r"; loss \+(0\.9|1\.0)\d\d \(", cost)  # three digits: its margin is 0.05
    costs, means, middle, same = (table.rows for table in rope_tables(found))
    assert [row[-1] for row in costs] == ["1,024 (2,048 lost)", "lost at 512", "2,048 or more"]
    assert [row[:2] for row in means[:4]] == [
        ("none", "512"),
        ("none", "1,024"),
        ("none", "2,048*"),
        ("linear:2", "512"),
    ]
    assert middle[0][2:] == ("reference", "reference", "reference")
    assert middle[2][-1] == "lost"
    assert [row[:2] for row in same] == [row[:2] for row in means[3:]]
    assert same[5][2].endswith("gained")  # yarn beyond the window, where the unscaled model falls
    assert not any(
        re.search(r"-0\.0+(?!\d)", cell) for rows in (costs, means, middle, same) for row in rows for cell in row
    )


def test_every_state_and_what_was_not_measured_are_explained(found: RopeFindings) -> None:
    (note,) = (table.note for table in rope_tables(found) if table.caption == "In-window cost and reach")
    for state in ("kept", "gained", "lowered", "lost", "unclear", "unknown"):
        assert f"{state}: " in note
    assert "worse by 1 nat (logprob), 0.25 nats (advantage) or 0.05 nats a token (loss)" in note
    plan = found.data.plan
    inside = findings(replace(found.data, plan=replace(plan, window=plan.lengths[-1])))
    assert verdict_of(inside).lines[0].endswith("; none of the lengths lies beyond the window")
    assert "none 2,048 or more; " in verdict_of(inside).headline


def test_two_depths_have_no_middle(tmp_path: Path) -> None:
    verdict = verdict_of(read_rope(write_rope(tmp_path / "out", rope_plan(depths=(0.0, 1.0)))))
    assert verdict.headline.endswith("none unknown at 512; linear:2 unknown at 512; yarn:2 unknown at 512")
    assert verdict.lines[1] == "Reach: unknown, as none of 2 depths lies in the middle; it takes three depths"


def test_the_terminal_and_the_page_say_the_same(found: RopeFindings) -> None:
    terminal = " ".join(" ".join(rope_lines(found)).split())
    for line in verdict_of(found).lines[1:]:
        assert line.partition(": ")[2] in terminal
    for table in rope_tables(found)[:2]:
        assert table.note in terminal
        for row in table.rows:
            assert " ".join(row[1:]) in terminal


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about: "{", "is damaged"),
        (lambda about: "[" * 100_000, "is damaged"),
        (lambda about: {**about, "schema": 9}, "written by a newer attnprobe"),
        (lambda about: {name: about[name] for name in about if name != "window"}, "'window' is missing"),
        (lambda about: {**about, "scalings": about["scalings"][1:]}, "its scalings do not begin with none"),
        (lambda about: {**about, "options": {**about["options"], "level": 2}}, "level must lie between 0 and 1"),
        (lambda about: {**about, "options": {**about["options"], "filler": 3}}, "its model or filler is no text"),
        (lambda about: {**about, "options": {**about["options"], "texts": 5}}, "does not name the cells of"),
    ],
)
def test_an_about_file_that_is_damaged_is_named(change: Callable[[Any], Any], message: str, tmp_path: Path) -> None:
    folder = write_rope(tmp_path / "out", rope_plan(texts=1))
    changed = change(json.loads((folder / ABOUT).read_text()))
    (folder / ABOUT).write_text(changed if isinstance(changed, str) else json.dumps(changed))
    with pytest.raises(InputError, match=message) as error:
        read_rope(folder)
    assert str(folder / ABOUT) in str(error.value)


def test_cells_that_are_damaged_are_said(tmp_path: Path) -> None:
    folder = write_rope(tmp_path / "out", rope_plan(texts=2))
    array = next((folder / "none" / "arrays").iterdir())
    content = array.read_bytes()
    array.write_bytes(content[:-9])
    with pytest.raises(RunFileError, match="is damaged"):
        read_rope(folder)
    array.write_bytes(content)
    shutil.copy(folder / "none" / "arrays" / "n0002048-t000.safetensors", array.parent / "n0000512-t001.safetensors")
    with pytest.raises(RunFileError, match=r"n0000512-t001.* distance has the shape \[2, 3, 12\], not \[2, 3, 10\]"):
        read_rope(folder)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"advantage", ', '"advantage", "more", ', "it lacks more"),
        ('"needles"', '"other"', "'needles' is missing"),
        ('"text": 0', '"text": 1', "it is text 1 of 512 tokens"),
        ('{"item": "item 0"}, ', "", "it has 2 needles, not 3"),
        ('"item": "item 0"', '"item": 0', "a text or a number is none"),
        ('"warnings": []', '"warnings": [7]', "a text or a number is none"),
        ('"sha256": "', '"sha256": 1, "was": "', "a text or a number is none"),
        ('"attention_scaling": 1.0', '"attention_scaling": "one"', "a text or a number is none"),
        ('"rope": {', '"rope": [], "was": {', "'list' object has no attribute 'values'"),
    ],
)
def test_a_line_that_is_damaged_is_said(old: str, new: str, message: str, tmp_path: Path) -> None:
    folder = write_rope(tmp_path / "out", rope_plan(texts=1, lengths=(512,)))
    (shard,) = (folder / "none" / "cells").glob("cells-*.jsonl")
    assert old in shard.read_text()
    shard.write_text(shard.read_text().replace(old, new))
    with pytest.raises(RunFileError, match=f"n0000512-t000.* or its cell's line in cells/ is damaged: {message}; "):
        read_rope(folder)


def test_warnings_that_differ_in_numbers_are_told_once(tmp_path: Path) -> None:
    """A warning of every text must not hide one of the model."""
    folder = write_rope(tmp_path / "out", rope_plan(texts=6, lengths=(512,)))
    (shard,) = (folder / "none" / "cells").glob("cells-*.jsonl")
    records = [json.loads(line) for line in shard.read_text().splitlines()]
    for number, record in enumerate(records):
        record["result"]["warnings"] = [f"{number} tokens straddle two spans: token {number} of x", "losses: left out"]
    shard.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = read_rope(folder)
    straddling = "0 tokens straddle two spans: token 0 of x (5 more like this)"
    assert found.data.warnings == (straddling, "losses: left out")
    assert f"note: {straddling}" in " ".join(" ".join(rope_lines(found)).split())


def test_modules_of_other_names_turn_in_another_way(tmp_path: Path) -> None:
    folder = write_rope(tmp_path / "out", rope_plan(texts=1, lengths=(512,)))
    (shard,) = (folder / "none" / "cells").glob("cells-*.jsonl")
    shard.write_text(shard.read_text().replace("model.rotary_emb", "rotary_emb"))
    assert read_rope(folder).data.unscaled_at(1) == ()


def test_infinite_advantages_leave_a_difference_undefined(tmp_path: Path) -> None:
    """An advantage is infinite where a mass underflows to 0; where both are, there is no difference."""
    folder = write_rope(tmp_path / "out", rope_plan(texts=1, lengths=(512,)))
    for array in folder.glob("*/arrays/*"):
        arrays = load_file(array)
        arrays["advantage"][0] = np.inf
        save_file(arrays, array)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read_rope(folder)
    reason = found.verdicts[1].cost[1].interval.reason
    assert reason is not None
    assert "1 of 3 values left out: undefined there" in reason


def test_a_folder_without_a_comparison_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty holds no comparison of RoPE scalings; give the folder that"):
        read_rope(tmp_path / "empty")


def test_a_page_has_the_verdict_every_table_and_every_picture(
    folder: Path, found: RopeFindings, tmp_path: Path
) -> None:
    report = write_report([folder], tmp_path / "page.html")
    page, summary = report.page.read_text(), report.summary.read_text()
    assert [series.name for series in report.series] == ["RoPE scalings of tiny"]
    assert report.faults == ()
    verdict = verdict_of(found)
    for text in (verdict.headline, *verdict.lines):
        assert text in page.replace("&#x27;", "'")
        assert text in summary
    for table in rope_tables(found):
        assert f"<span>{table.caption}</span>" in page
        assert f"### {table.caption}" in summary
    images = re.findall(r'<img id="([\w-]+)" class="page" alt="([^"]+)" src="data:image/png;base64,', page)
    assert [name for name, _ in images] == list(ROPE_DRAWINGS)
    assert all(alt.startswith("tiny: ") and "by RoPE scaling and length. " in alt for _, alt in images)
    for text in ("1,024 tokens", "sdpa", "float32", "f" * 64, "item 0, item 1", "advantage 0.25 nats", "torch "):
        assert text in page
        assert text in summary
    assert "<td>000000000000</td>" in page  # the hash of the unscaled frequencies
    assert "Missing" not in page
    assert "<script" not in page
    assert len(page) < 2_000_000


def test_an_unfinished_comparison_is_shown_and_what_it_lacks_is_said(tmp_path: Path) -> None:
    left_out = {LAST, *((SCALINGS[1], length, text) for length in (512, 1024, 2048) for text in range(6))}
    folder = write_rope(tmp_path / "out", left_out=left_out)
    result = command("report", folder, "-o", tmp_path / "page.html", "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert "linear:2 unknown at 512" in told["verdicts"]["RoPE scalings of tiny"]
    (fault,) = told["faults"]
    assert "out: 35 of 54 cells have a result; the first that has none, linear:factor=2.0, 512 tokens" in fault
    assert "run again, goes on with it" in fault
    page = (tmp_path / "page.html").read_text()
    assert "Not in this report" in page
    assert "Missing: 19 cells." in page
    assert "no &lt;luck&gt;" in page
    result = command("figure", "scalings", folder, "-o", tmp_path / "x.svg")
    assert result.exit_code == 1
    assert "left out: " in result.stderr
    assert (tmp_path / "x.svg").read_text().count(">no result<") == 3


def test_nothing_measured_and_not_begun(tmp_path: Path) -> None:
    plan = rope_plan(texts=1)
    everything = {(scaling, length, 0) for scaling in SCALINGS for length in plan.lengths}
    folder = write_rope(tmp_path / "out", plan, left_out=everything)
    result = command("report", folder, "-o", tmp_path / "page.html")
    assert result.exit_code == 2
    assert "nothing was measured; the first cell, none, 512 tokens, text 0: no <luck>" in result.stderr
    assert not (tmp_path / "page.html").exists()
    begun = write_rope(tmp_path / "begun", plan)
    for scaling in ("linear", "yarn"):
        (begun / f"{scaling}-factor=2.0" / "cells").rename(tmp_path / scaling)
    assert len(read_rope(begun).data.incomplete) == 6


def test_names_are_escaped_and_not_run(tmp_path: Path) -> None:
    model = "<script>alert(1)</script>|*x*"
    report = write_report([write_rope(tmp_path / "out", rope_plan(model, texts=1))], tmp_path / "page.html")
    page, summary = report.page.read_text(), report.summary.read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert r"\<script\>" in summary
    assert "<script" not in summary.replace(r"\<", "")


def test_several_comparisons_stand_in_one_page_and_others_are_refused(tmp_path: Path) -> None:
    plan, page = rope_plan(texts=1), tmp_path / "page.html"
    one, two = (write_rope(tmp_path / name, plan) for name in ("one", "two"))
    other = write_rope(tmp_path / "other", replace(plan, model="large"))
    report = write_report([one, two, other], page)
    names = ["RoPE scalings of tiny (one)", "RoPE scalings of tiny (two)", "RoPE scalings of large"]
    assert [series.name for series in report.series] == names
    assert "Tables: RoPE scalings of tiny (two)" in page.read_text()
    (two / ABOUT).write_text("{")
    assert "rope.json is damaged" in write_report([one, two], page).faults[0]
    make_run().save(tmp_path / "run.safetensors")
    task = write_task(tmp_path / "tasks", make_task(items=6, trials=1))
    before = page.read_bytes()
    for sources, message in (
        (
            [tmp_path / "run.safetensors", one],
            "one is a comparison of RoPE scalings and others are not; report compari",
        ),
        ([one, task], "is a task and others are not; report tasks by themselves"),
        ([one, one], "is given twice"),
        ([two], "rope.json is damaged"),
    ):
        with pytest.raises(InputError, match=message):
            write_report(sources, page)
    assert page.read_bytes() == before


@pytest.mark.parametrize("width", ["column", "page"])
@pytest.mark.parametrize("kind", ["scalings", "scaling-needles", "scaling-losses"])
def test_the_command_draws_what_python_does(
    kind: str, width: str, folder: Path, found: RopeFindings, tmp_path: Path
) -> None:
    result = command("figure", kind, folder, "-o", tmp_path / "a.svg", "--width", width)
    assert result.exit_code == 0, result.stderr
    draw(kind, found, tmp_path / "b.svg", width=width)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    for name in ("none", "linear:2", "yarn:2"):
        assert text.count(f">{name}<") == 1


def test_pictures_of_the_command_are_those_beside_the_cells(found: RopeFindings, tmp_path: Path) -> None:
    for path in save_rope_figures(found, tmp_path):
        assert draw(path.stem, found, tmp_path / "again.png", width="page").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("window", [1024, 2048])
def test_every_line_of_the_losses_is_named(window: int, found: RopeFindings) -> None:
    plan = replace(found.data.plan, window=window)
    figure = ROPE_DRAWINGS["scaling-losses"](findings(replace(found.data, plan=plan)), width="page")
    note = " ".join(figure._supxlabel.get_text().split())
    assert "Black: the unscaled model; blue: with the scaling" in note
    is_drawn = any(line.get_linewidth() == 3 for line in figure.axes[0].lines)
    assert is_drawn == ("grey line: the end of the window" in note) == (window == 1024)


def test_no_panel_cuts_what_another_shows(found: RopeFindings) -> None:
    """The axes are those of all panels, not of the first."""
    slices = found.data.slices.copy()
    slices[2] = 0.5 ** np.arange(10) / (0.5 ** np.arange(10)).sum()
    figure = ROPE_DRAWINGS["scalings"](findings(replace(found.data, slices=slices)), width="page")
    low, high = figure.axes[0].get_ylim()
    assert low < 10 * slices[2].min()
    assert 10 * slices[2].max() < high


def test_the_label_below_is_written_once_and_titles_fit(found: RopeFindings) -> None:
    figure = ROPE_DRAWINGS["scalings"](found, width="column")
    renderer = figure.canvas.get_renderer()
    figure.draw(renderer)
    titles = [axes.title.get_window_extent(renderer) for axes in figure.axes if axes.get_title()]
    assert all(left.x1 < right.x0 for left, right in pairwise(titles))
    assert titles[-1].x1 <= figure.bbox.x1
    texts = [text for axes in figure.axes for text in axes.texts if text.get_text().startswith("place in the text")]
    (below,) = (text.get_window_extent(renderer) for text in texts)
    ticks = [label.get_window_extent(renderer) for label in figure.axes[-1].get_xticklabels()]
    assert below.y1 <= min(tick.y0 for tick in ticks)
    note = figure._supxlabel.get_window_extent(renderer)
    assert note.y1 <= below.y0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("scalings", "task"), "task holds no comparison of RoPE scalings; give the folder that rope or run wrote"),
        (("scalings", "run.safetensors"), "run.safetensors holds no comparison of RoPE scalings"),
        (("scalings", "rope", "rope"), "2 files or folders"),
        (("answers", "rope"), "rope holds no task"),
        (("curve", "rope"), "rope holds neither"),
        (("scalings", "rope", "--layer", "1"), "no choice of layers"),
        (("scalings", "rope", "--metric", "mass"), "only a needle of the folder of a niah task has metrics"),
    ],
)
def test_figures_of_other_folders_are_refused(
    words: tuple[str, ...], message: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rope").symlink_to(folder)
    write_task(Path("task"), make_task(items=6, trials=1))
    make_run().save("run.safetensors")
    result = command("figure", *words, "-o", "x.png")
    assert result.exit_code == 2
    assert message in result.stderr.replace('"', "")
    assert result.stderr.count("\n") == 1
    assert not Path("x.png").exists()


def test_python_is_told_what_a_figure_is_drawn_from(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is drawn from RopeFindings \(attnprobe\.rope_findings\), not from a Run"):
        draw("scalings", make_run(), tmp_path / "x.png")


@pytest.mark.browser
def test_the_page_fits_screens_and_asks_for_nothing(folder: Path, tmp_path: Path, browser_page: Any) -> None:
    report = write_report([folder], tmp_path / "page.html")
    page = browser_page.open(report.page)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].length") == 3
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 1000)")
    browser_page.assert_quiet()
