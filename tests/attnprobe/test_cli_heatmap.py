"""``attnprobe heatmap``: pages of prompts and of saved runs, and one clear line for every mistake."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from runs import make_run
from tiny_folder import prompt_records, save_tiny_model, write_prompts
from typer.testing import CliRunner, Result

from attnprobe import cli


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    return str(write_prompts(tmp_path / "prompts.jsonl", prompt_records(3)))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, ["heatmap", *(str(a) for a in arguments)])


def data_of(page: Path) -> Any:
    text = page.read_text(encoding="utf-8")
    (data,) = re.findall(r'id="token-map-data">(.*?)</script>', text, re.DOTALL)
    return json.loads(data)


def test_every_prompt_gets_a_page(model: str, prompts: str, tmp_path: Path) -> None:
    out = tmp_path / "pages"
    result = run(prompts, "-m", model, "--out", out, "--max-new-tokens", "4", "--limit", "2", "-q")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert sorted(path.name for path in out.iterdir()) == ["0000-q0.html", "0001-q1.html"]
    assert [line.split("  ")[0] for line in result.stdout.splitlines()] == [
        str(out / "0000-q0.html"),
        str(out / "0001-q1.html"),
    ]
    data = data_of(out / "0001-q1.html")
    assert "What is it, 1?" in data["text"]
    assert data["n_rows"] == 4
    assert data["keys"] is not None
    assert data["row_heads"] is not None


def test_one_prompt_by_id_or_number_with_the_files_answer_and_chosen_heads(
    model: str, prompts: str, tmp_path: Path
) -> None:
    page = tmp_path / "one.html"
    for wanted in ("q2", "2"):
        result = run(
            prompts,
            "-m",
            model,
            "-o",
            page,
            "--prompt",
            wanted,
            "--answers",
            "file",
            "--heads",
            "2:3,0:1",
            "--json",
            "-q",
        )
        assert result.exit_code == 0, result.output
        (written,) = json.loads(result.stdout)["pages"]
        assert written["prompt"] == "q2"
        assert written["page"] == str(page)
        assert written["bytes"] == page.stat().st_size
        data = data_of(page)
        assert data["text"].endswith("It is 2 days.")
        assert data["chosen"] == [[2, 3], [0, 1]]


def test_a_saved_run_needs_no_model(tmp_path: Path) -> None:
    saved = tmp_path / "saved.safetensors"
    make_run(extras=True).save(saved)
    result = run(saved, "--out", tmp_path / "pages")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "pages" / "saved.html").exists()


def assert_refused(result: Result, *parts: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


def test_mistakes_are_refused_before_the_model_is_loaded(
    model: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("attnprobe.models"), "load", lambda *_, **__: pytest.fail("loaded"))
    out = tmp_path / "pages"
    assert_refused(run(prompts, "--out", out), "is no saved run (.safetensors), so give --model")
    assert_refused(run(prompts, "-m", model, "--out", out / "a.html"), "is one page, but there are 3 prompts")
    assert_refused(run(prompts, "-m", model, "--out", out, "--prompt", "q9"), '--prompt is "q9"', '"q0", "q1", "q2"')
    assert_refused(run(prompts, "-m", model, "--out", out, "--heads", "0-3"), "give layer:head pairs like 12:3")
    assert_refused(run(tmp_path / "no.jsonl", "-m", model, "--out", out), "no.jsonl: no such file")
    (tmp_path / "mine.html").write_text("mine")
    assert_refused(run(prompts, "-m", model, "--out", tmp_path / "mine.html", "--limit", "1"), "no page of attnprobe")
    assert (tmp_path / "mine.html").read_text() == "mine"
    assert_refused(run(prompts, "-m", model, "--out", tmp_path / "mine.html" / "x", "--limit", "1"), "cannot be made")
    result = run(prompts, "-m", model, "--out", out, "--heads", "7:0", "-q")
    assert_refused(result, "layer 7 is not in this model; its layers are 0 to 2")
    long = {"id": "long", "documents": ["word " * 3000], "question": "What?"}
    path = write_prompts(tmp_path / "long.jsonl", [*prompt_records(1), long])
    assert_refused(run(path, "-m", model, "--out", out, "-q"), "prompt 'long'", "the model's limit is", "shorten it")
    assert not out.exists()


def test_mistakes_with_runs(model: str, tmp_path: Path) -> None:
    out = tmp_path / "pages"
    plain = tmp_path / "plain.safetensors"
    make_run().save(plain)
    assert_refused(
        run(plain, "--out", out), f"{plain}: the run has no mass", "measure it with --extras columns,keys,top"
    )
    assert_refused(run(plain, "-m", model, "--out", out), "is a saved run, which needs no --model")
    assert_refused(run(plain, "--prompt", "1", "--out", out), "leave out --prompt")
    assert_refused(run(tmp_path / "none.safetensors", "--out", out), "none.safetensors")
    assert not out.exists()


@pytest.mark.parametrize("about", ["tiny", ["tiny"], None])
def test_a_run_whose_manifest_is_odd_is_shown(about: Any, tmp_path: Path) -> None:
    saved = tmp_path / "saved.safetensors"
    make_run(extras=True, manifest={"model": about, "capture": "none"}).save(saved)
    result = run(saved, "--out", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    shown = "tiny, " if about == "tiny" else "a model, "
    assert f"<small>{shown}" in (tmp_path / "page.html").read_text()


def test_pages_of_prompts_measured_before_an_interrupt_stay(
    model: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("attnprobe.heatmap_command")
    original, calls = module.write_heatmap, []

    def interrupted(*arguments: Any) -> Path:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*arguments)  # type: ignore[no-any-return]

    monkeypatch.setattr(module, "write_heatmap", interrupted)
    result = run(prompts, "-m", model, "--out", tmp_path / "pages", "--max-new-tokens", "2", "-q")
    assert result.exit_code == 130
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["0000-q0.html"]
