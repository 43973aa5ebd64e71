"""Reports of tasks: one page and Markdown, escaped, without requests; damage and mixtures said."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runs import make_run
from task_data import changed, make_task, write_task
from typer.testing import CliRunner

from attnprobe import cli
from attnprobe.errors import InputError
from attnprobe.report.report import write_report
from attnprobe.report.task_facts import facts_table, replies_tables, task_facts
from attnprobe.tasks.outcome import Outcome
from attnprobe.tasks.task_folder import TaskFolder
from attnprobe.tasks.task_summary import task_summary
from attnprobe.tasks.task_tables import task_tables


def written(tmp_path: Path, task: str = "needle_sweep", **changes: Any) -> Path:
    return write_task(tmp_path / task, replace(make_task(task, items=6, trials=2), **changes))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    data = make_task(items=6, trials=1)
    folder = write_task(tmp_path, data)
    read = TaskFolder.at(folder).load()
    assert json.dumps(task_summary(read).to_dict()["findings"]) == json.dumps(task_summary(data).to_dict()["findings"])


@pytest.mark.parametrize("task", ["needle_sweep", "niah", "filler_control"])
def test_a_page_has_the_verdict_every_table_and_every_picture(task: str, tmp_path: Path) -> None:
    folder = written(tmp_path, task, missing={f"{task}/<b>x</b>/position=1/0": "too <i>long</i> \x1b[31m"})
    report = write_report([folder.parent], tmp_path / "page.html")
    page, summary = report.page.read_text(), report.summary.read_text()
    result = task_summary(TaskFolder.at(folder).load())
    assert [series.name for series in report.series] == [f"{task} of tiny"]
    plain = page.replace("&#x27;", "'")
    for text in (result.verdict.headline, *result.verdict.lines):
        assert text.replace("<", "&lt;") in plain
        assert text.split(":")[0].split("<")[0] in summary
    for table in task_tables(result):
        assert f"<span>{table.caption}</span>" in plain
        assert f"### {table.caption}" in summary.replace("\\", "")
    images = re.findall(r'<img id="(\w+)" alt="([^"]+)" src="data:image/png;base64,', page)
    assert "link" in dict(images)
    assert len(images) == {"needle_sweep": 4, "niah": 10, "filler_control": 4}[task]
    assert all("tiny; 6 items, up to 2 trials each." in alt for _, alt in images)
    assert "too &lt;i&gt;long" in page
    assert "<b>x" not in page
    assert "\x1b" not in page + summary
    assert "<script" not in page
    assert len(page) < 2_000_000


def test_a_second_report_goes_over_the_first_and_not_over_other_files(tmp_path: Path) -> None:
    folder = written(tmp_path)
    page = tmp_path / "page.html"
    first = write_report([folder], page).page.read_bytes()
    assert write_report([folder], page).page.read_bytes() == first
    page.write_text("mine")
    with pytest.raises(InputError, match="no page of attnprobe"):
        write_report([folder], page)


def test_several_tasks_stand_in_one_page_and_damage_is_said(tmp_path: Path) -> None:
    sweep, matrix = written(tmp_path), written(tmp_path, "niah")
    damaged = write_task(tmp_path / "needle_sweep", replace(make_task(items=6, trials=1), model="broken"))
    (damaged / "task.json").write_text("{")
    words = ["report", str(sweep.parent), str(matrix), "-o", str(tmp_path / "page.html"), "--json"]
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert list(told["verdicts"]) == ["needle_sweep of needle_sweep/tiny", "niah of niah/tiny"]
    assert len(told["faults"]) == 1
    assert "task.json is damaged" in told["faults"][0]
    page = (tmp_path / "page.html").read_text()
    assert "Not in this report" in page
    assert "Tables: niah of niah/tiny" in page


def test_what_cannot_be_reported_together_is_refused(tmp_path: Path) -> None:
    folder, page = written(tmp_path), tmp_path / "page.html"
    make_run().save(tmp_path / "run.safetensors")
    with pytest.raises(InputError, match="is a task and others are not; report tasks by themselves"):
        write_report([tmp_path / "run.safetensors", folder], page)
    with pytest.raises(InputError, match="is given twice"):
        write_report([folder, folder.parent], page)
    assert not page.exists()


def test_it_says_how_it_was_measured(tmp_path: Path) -> None:
    folder = written(tmp_path)
    about = json.loads((folder / "task.json").read_text()) | {
        "versions": {"torch": "2.13", "numpy": "2.4"},
        "asked": {"model": "TinyLM", "weights_sample_sha256": "abc123", "dtype": "bfloat16", "rope": None},
        "options": {"seed": 7, "trials": 2, "form": {"layout": "question_last", "instruction": "Answer | <b>."}},
        "hashes": {"items_sha256": "def456"},
        "fillers": [{"kind": "prose", "about": "a report"}],
    }
    (folder / "task.json").write_text(json.dumps(about))
    report = write_report([folder], tmp_path / "page.html")
    facts = dict(facts_table(about).rows)
    assert facts == {
        "model": "tiny",
        "class": "TinyLM",
        "weights, SHA-256 of a sample": "abc123",
        "dtype": "bfloat16",
        "seed": "7",
        "trials": "2",
        "layout": "question_last",
        "instruction": "Answer | <b>.",
        "items, SHA-256": "def456",
        "filler prose": "a report",
        "versions": "torch 2.13, numpy 2.4",
    }
    page, markdown = report.page.read_text(), report.summary.read_text()
    assert 'id="measured-0"' in page
    assert "Answer | &lt;b&gt;." in page
    assert "| instruction | Answer \\| \\<b\\>. |" in markdown


@pytest.mark.parametrize("value", [None, 3, "text", [3], {"rows": {}}, [{"about": 3}]])
def test_odd_descriptions_are_read_as_far_as_they_go(value: Any) -> None:
    about = dict.fromkeys(("asked", "options", "hashes", "fillers", "versions"), value)
    assert task_facts({"model": "tiny", **about})[0] == ("model", "tiny")


def test_a_server_is_told_from_the_task_and_a_tokenizer_s_folder_is_kept_private() -> None:
    server = {"model": "big", "base_url": "http://127.0.0.1:8000/v1", "seed": 3}
    asked = {"endpoint": server, "tokenizer": "/data/models/tiny"}
    facts = dict(task_facts({"model": "big", "asked": asked, "options": {"seed": 0, "trials": 1}}))
    assert (facts["seed"], facts["server: seed"]) == ("0", "3")
    assert facts["tokenizer"] == "tiny"
    assert not any("/data" in value for value in facts.values())


def test_wrong_replies_stand_beside_their_answers_of_as_many_items_as_there_are() -> None:
    def reply(outcome: Outcome) -> Outcome:
        is_wrong = outcome.item != "item 1"
        return replace(
            outcome,
            strict=0,
            lenient=int(not is_wrong),
            facts={**outcome.facts, "reply": f"no <{outcome.item}>\n" + "x" * 300, "reply_cut": True},
        )

    data = make_task(items=4, trials=2)
    rows = task_summary(changed(data, reply)).table()
    (table,) = replies_tables(rows)
    assert [row[0] for row in table.rows] == ["item 0", "item 2", "item 3", "item 0", "item 0"]
    assert [row[1] for row in table.rows[:4]] == ["position 0", "position 0", "position 0", "position 0"]
    assert {row[2] for row in table.rows} == {"62 cars"}
    assert table.rows[0][3] == f"no <item 0> {'x' * 188}… (cut at the limit of tokens)"
    assert table.note == "5 of 36 replies; all are in table.csv."
    assert replies_tables([row for row in rows if row["item"] == "item 1"]) == []


@pytest.mark.browser
def test_the_page_fits_narrow_screens_and_asks_for_nothing(tmp_path: Path, browser_page: Any) -> None:
    report = write_report([written(tmp_path)], tmp_path / "page.html")
    page = browser_page.open(report.page)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 300)")
    browser_page.assert_quiet()
