"""A planned study against the study itself: its cells, its tokens, its files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_folder import prompt_records, save_tiny_model, write_prompts
from typer.testing import CliRunner, Result

import attnprobe as ap
from attnprobe import cli
from attnprobe.blueprint import blueprint
from attnprobe.errors import InputError
from attnprobe.estimate import Rates
from attnprobe.plan_study import plan_study
from attnprobe.plan_text import study_plan_lines
from attnprobe.rotating import questions_of
from attnprobe.study_options import StudyOptions

RATES = Rates(flops=1e11, bytes=1e10)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=1024))


@pytest.fixture(autouse=True)
def quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnprobe.plan_study.probe", lambda *_: RATES)


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--design", "cyclic", "--variants", "dummy", "--answers", "generate", "--max-new-tokens", "6"),
        ("--variants", "none", "--extras", "distance,values"),
        ("--layout", "question_first", "--bases", "2"),
    ],
    ids=["default", "generate", "extras", "question first"],
)
def test_a_plan_foretells_the_study(model: str, tmp_path: Path, options: tuple[str, ...]) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", prompt_records(2))
    planned = run("plan", prompts, "-m", model, "--study", "--json", "-q", *options)
    assert planned.exit_code == 0, planned.output
    plan = json.loads(planned.stdout)
    done = run("study", prompts, "-m", model, "--out", tmp_path / "out", "-q", *options)
    assert done.exit_code == 0, done.output
    (folder,) = (path for path in (tmp_path / "out").iterdir() if path.is_dir())

    cells = [json.loads(line)["key"] for file in folder.glob("cells/cells-*") for line in file.open()]
    own = [line for file in folder.glob("own/cells-*") for line in file.open()]
    found = {name: sum(key.endswith(f"-{name}") for key in cells) for name in plan["cells"] if name != "own"}
    assert plan["cells"] == {"own": len(own), **found}
    assert sum(found.values()) == len(cells)
    assert plan["orders"] * plan["questions"] == found["asked"]

    arrays = [array for file in folder.glob("arrays/*") for array in load_file(file).values()]
    assert plan["disk"]["arrays"] == pytest.approx(sum(array.nbytes for array in arrays), rel=0.02)
    runs = [ap.Run.load(file) for file in folder.glob("runs/*")]
    kept = sum(array.nbytes for one in runs for array in vars(one).values() if isinstance(array, np.ndarray))
    assert plan["disk"]["runs"] == pytest.approx(kept, rel=0.05)
    reused = [one.manifest["capture"].get("reused_tokens", 0) for one in runs]
    fed = sum(len(one.token_ids) - n for one, n in zip(runs, reused, strict=True))
    fed += sum(runs[0].n_prompt + len(json.loads(line)["result"]["answer_ids"]) for line in own)
    assert plan["tokens"] == pytest.approx(fed, rel=0.05)


def asked(n: int, n_documents: int = 4) -> Any:
    prompts = [ap.Prompt(**record) for record in prompt_records(n, n_documents)]
    return questions_of(prompts, [prompt.answer for prompt in prompts])


def test_more_to_measure_takes_more(model: str) -> None:
    drawn = blueprint(model)

    def seconds(n: int = 2, **options: Any) -> float:
        return plan_study(drawn, asked(n), StudyOptions(**options), 10**9).seconds

    assert seconds(4) == pytest.approx(2 * seconds(2), rel=0.1)
    assert seconds(bases=2) > 1.8 * seconds()
    assert seconds(variants=()) < seconds(variants=("null",)) < seconds() < seconds(extras=("effects",))
    assert seconds(variants=("null",)) < 1.9 * seconds(variants=())  # the documents are fed once for both


def test_runs_are_kept_up_to_a_size(model: str) -> None:
    drawn = blueprint(model)
    everything = plan_study(drawn, asked(2), StudyOptions(), 10**12).disk["runs"]
    assert everything > 1000
    assert plan_study(drawn, asked(2), StudyOptions(), 1000).disk["runs"] == 1000
    assert plan_study(drawn, asked(2), StudyOptions(), 0).disk["runs"] == 0


def test_questions_beyond_the_window_are_named(model: str, tmp_path: Path) -> None:
    records = prompt_records(3)
    records[1]["documents"][0] = "word " * 1200
    prompts = write_prompts(tmp_path / "prompts.jsonl", records)
    result = run("plan", prompts, "-m", model, "--study")
    assert result.exit_code == 1
    assert "! 1 question too long for the model's window: q1" in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--design", "cyclic"], "--design has no effect without --study; add it"),
        (["--keep-runs", "0"], "--keep-runs has no effect without --study"),
        (["--gold-only"], "--gold-only has no effect without --study"),
        (["--study", "--batch-size", "2"], "--batch-size has no effect with --study"),
        (["--study", "--no-rows"], "--no-rows has no effect with --study"),
        (["--study", "--keep-runs", "2"], '--keep-runs is "2"; it must be a size'),
        (["--study", "--variants", "none,null"], "none stands alone"),
        (["--study", "--variants", "markers=xml"], "changes nothing"),
        (["--study", "--design", "insertion"], "the insertion design moves the document that holds the answer"),
        (["--study", "--bases", "99"], "has no more than"),
    ],
)
def test_what_is_refused(model: str, tmp_path: Path, arguments: list[str], message: str) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", prompt_records(2))
    result = run("plan", prompts, "-m", model, "-q", *arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_a_model_outside_the_interface_is_refused(make_lm: Any, model: str) -> None:
    with pytest.raises(InputError, match="BloomForCausalLM does not use"):
        plan_study(replace(blueprint(model), lm=make_lm("bloom")), asked(1), StudyOptions(), 0)


def test_the_probe_is_part_of_what_is_printed(model: str) -> None:
    text = " ".join(study_plan_lines(plan_study(blueprint(model), asked(1), StudyOptions(), 0)))
    assert "1 question of 4 documents in 4 orders each" in text
    assert "100 GFLOP/s" in text
