"""The folder of a study: full disks, damaged files, names that no disk takes, and pictures of what is undefined."""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planted_models import additive_lm
from tiny_models import tiny_model
from toy_tokenizers import CHATML, bytelevel, with_template

import attnprobe as ap
from attnprobe import run_file, study_folder
from attnprobe.errors import InputError, RunFileError
from attnprobe.grid import read_cells
from attnprobe.report.study_figures import save_study_figures
from attnprobe.study import Study
from attnprobe.study_cells import own_answer_tokens
from attnprobe.study_command import write_results
from attnprobe.study_options import StudyOptions
from attnprobe.study_text import study_lines

WORDS = ["one", "two", "three", "four", "red", "blue", "north", "west"]


@pytest.fixture(scope="module")
def lm() -> ap.LanguageModel:
    return additive_lm(WORDS, None, {})


def prompts(n: int) -> list[ap.Prompt]:
    return [
        ap.Prompt([f"{WORDS[q]} {WORDS[i]} red" for i in range(3)], "north west", answer="north", id=f"q{q}")
        for q in range(n)
    ]


def study(lm: ap.LanguageModel, out: Path, **options: Any) -> Study:
    return ap.rotate(lm, prompts(2), answers=["north"] * 2, out=out, variants=(), **options)


def study_with_results(lm: ap.LanguageModel, out: Path) -> None:
    found = study(lm, out)
    write_results(found, found.models[0], next(out.iterdir()))


@pytest.fixture(scope="module")
def finished(lm: ap.LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished")
    study(lm, out)
    return out


@pytest.mark.parametrize("module", [study_folder, run_file])
def test_a_full_disk_ends_the_study_and_the_same_call_goes_on(
    lm: ap.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    """The arrays of a cell and its whole run are written in two modules; the disk fills in either."""
    calls: list[Path] = []

    class FullDisk:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def replace(self, source: Path, target: Path) -> None:
            calls.append(target)
            if len(calls) == 3:
                raise OSError(errno.ENOSPC, "No space left on device")
            os.replace(source, target)

    monkeypatch.setattr(module, "os", FullDisk())
    with pytest.raises(InputError, match=r"No space left on device; make room.*the same command goes on"):
        study(lm, tmp_path)
    (cells,) = tmp_path.glob("*/cells")
    assert [record["status"] for record in read_cells(cells).values()] == ["done", "done"]
    assert not list(tmp_path.rglob("*.tmp"))
    monkeypatch.undo()
    found = study(lm, tmp_path)
    assert not found.of().incomplete
    assert len(list(tmp_path.glob("*/runs/*.safetensors"))) == len(list(tmp_path.glob("*/arrays/*.safetensors")))


@pytest.mark.parametrize("full_at", ["study.json", "summary.json", "table.csv"])
def test_a_disk_that_is_full_at_a_text_is_said(
    lm: ap.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_at: str
) -> None:
    real = study_folder.write_text

    def full(path: Path, text: str) -> None:
        if path.name == full_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, text)

    monkeypatch.setattr(study_folder, "write_text", full)
    with pytest.raises(InputError, match=rf"{full_at} cannot be written: No space left.*the same command goes on"):
        study_with_results(lm, tmp_path)


def test_names_that_no_disk_takes_are_refused(lm: ap.LanguageModel, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 300)
    with pytest.raises(InputError, match=r"x/out.* cannot be .*File name too long; give another out"):
        study(lm, long / "out")
    with pytest.raises(InputError, match="File name too long"):
        study(lm, long / "out", extras=("distance",))
    with pytest.raises(InputError, match="File name too long"):
        Study.load(long)


@pytest.mark.parametrize("given", [None, 5, ["out"]])
def test_what_is_no_folder_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match="the study's folder is"):
        Study.load(given)


def _fewer_orders(about: dict[str, Any]) -> Any:
    for question in about["questions"]:
        question["orders"] = question["orders"][:-1]
    return about


def _uneven_orders(about: dict[str, Any]) -> Any:
    about["questions"][0]["orders"].pop()
    return about


def _other_permutation(about: dict[str, Any]) -> Any:
    about["questions"][1]["orders"][0]["permutation"] = [0, 0, 1]
    return about


@pytest.mark.parametrize(
    "change",
    [
        lambda about: {**about, "questions": [{}]},
        lambda about: {**about, "questions": 5},
        lambda about: {**about, "questions": []},
        lambda about: {**about, "options": None},
        lambda about: {**about, "options": {"design": "none"}},
        lambda about: {**about, "variants": 1},
        lambda about: {**about, "variants": ["asked", "dummy"]},
        lambda about: {**about, "model": None},
        lambda about: {**about, "schema": "1"},
        lambda about: {"schema": 1},
        lambda about: 5,
        lambda about: [],
        _fewer_orders,
        _uneven_orders,
        _other_permutation,
    ],
)
def test_an_altered_description_is_damage_and_named(
    finished: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    shutil.copytree(finished, tmp_path / "out")
    (file,) = (tmp_path / "out").glob("*/study.json")
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(RunFileError, match=r"study\.json is damaged: "):
        Study.load(tmp_path / "out")


def test_a_newer_description_is_refused_as_such(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "out")
    (file,) = (tmp_path / "out").glob("*/study.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": 99}))
    with pytest.raises(InputError, match="newer attnprobe; upgrade"):
        Study.load(tmp_path / "out")


def small(max_positions: int, name: str = "llama", **options: Any) -> ap.LanguageModel:
    tokenizer = with_template(bytelevel, CHATML)
    model = tiny_model(name, vocab_size=len(tokenizer), max_position_embeddings=max_positions, **options)
    model.generation_config.eos_token_id = None
    return ap.LanguageModel(model, tokenizer)


def test_an_own_answer_takes_the_room_that_the_window_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = [ap.Prompt(["Refunds take 30 days.", "Members wait."], "How long?", answer="30", id="q0")]
    n_prompt = shown[0].encode(small(512).tokenizer).n_tokens
    near = small(n_prompt + 5)
    found = ap.rotate(near, shown, answers=["30"], variants=(), out=tmp_path, quiet=False)
    (own,) = found.of().own_answers["q0"]
    expected = ap.measure(near, shown[0], max_new_tokens=5).answer
    assert own == expected
    assert "own answers to 1 question (q0) are cut where the model's window ends, after 5 tokens" in (
        " ".join(capsys.readouterr().err.split())
    )
    assert own_answer_tokens(near, n_prompt, StudyOptions(max_new_tokens=3)) == 3
    assert own_answer_tokens(near, n_prompt, StudyOptions(beyond_window=True)) == 32


def test_a_failed_own_answer_is_said(
    lm: ap.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from attnprobe import rotating

    def fail(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("no luck")

    monkeypatch.setattr(rotating, "measure", fail)
    found = study(lm, tmp_path, quiet=False)
    assert not found.of().own_answers
    assert "2 own answers failed and cannot be shown beside the forced" in capsys.readouterr().err
    assert "  q0: 'north', own: none, it failed" in study_lines(found)


@pytest.mark.parametrize("family", ["mistral", "qwen2_window"])
def test_windows_that_reach_no_document_draw_gaps_without_warnings(family: str, tmp_path: Path) -> None:
    windowed = small(512, family)
    shown = [
        ap.Prompt([f"Refunds {q} take {i} days." for i in range(3)], "How long, please?", answer="3 days", id=f"q{q}")
        for q in range(2)
    ]
    found = ap.rotate(windowed, shown, answers=["3 days"] * 2, variants=())
    assert any((found.layer_profiles()[layer] != found.layer_profiles()[layer]).all() for layer in range(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = save_study_figures(found, tmp_path)
    assert "layers.png" in {path.name for path in paths}
