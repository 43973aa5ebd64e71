"""The command ``attnprobe study``: several models, what is refused, and in which words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_folder import prompt_records, save_tiny_model, write_prompts
from typer.testing import CliRunner, Result

from attnprobe import cli


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("file") / "prompts.jsonl", prompt_records(2, n_documents=3))


def said(result: Result) -> str:
    assert result.exit_code == 2, (result.output, result.exception)
    return " ".join(result.stderr.split())


def test_the_results_of_the_models_before_one_that_cannot_be_loaded_are_written_and_said(
    model: Path, file: Path, tmp_path: Path
) -> None:
    broken = save_tiny_model(tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-2000])
    out = tmp_path / "out"
    result = run("study", file, "-m", model, "-m", broken, "--out", out, "--variants", "none", "--keep-runs", "0")
    text = said(result)
    assert f'"{broken}"' in text
    assert f"what was measured before, on {model}, is kept in {out}, and the same command goes on" in text
    (summary,) = out.glob("*/summary.json")
    assert json.loads(summary.read_text())["n_questions"] == 2
    assert {path.name for path in summary.parent.iterdir()} >= {"table.csv", "curve.png", "layers.png"}


def test_one_model_under_two_names_is_refused(model: Path, file: Path, tmp_path: Path) -> None:
    for other in (f"{model}/", f"{model.parent}/./{model.name}", f"{model}/../{model.name}"):
        text = said(run("study", file, "-m", model, "-m", other, "--out", tmp_path / "out"))
        assert f'the model "{other}" is given twice, first as "{model}"; give each model once' in text
    assert "is given twice" in said(run("study", file, "-m", "a/b", "-m", "a/b", "--out", tmp_path / "out"))


def test_of_several_models_the_one_that_cannot_be_studied_is_named(model: Path, file: Path, tmp_path: Path) -> None:
    from tiny_models import tiny_model
    from toy_tokenizers import CHATML, bytelevel, with_template

    tokenizer = with_template(bytelevel, CHATML)
    bloom = tmp_path / "bloom"
    tiny_model("bloom", vocab_size=len(tokenizer)).save_pretrained(bloom)
    tokenizer.save_pretrained(bloom)
    text = said(run("study", file, "-m", model, "-m", bloom, "--out", tmp_path / "out"))
    assert f'model "{bloom}": BloomForCausalLM does not use' in text
    assert not (tmp_path / "out").exists()


def test_a_blank_answer_is_refused_as_a_missing_one(tmp_path: Path) -> None:
    records = prompt_records(3)
    records[1]["answer"] = ""
    file = write_prompts(tmp_path / "prompts.jsonl", records)
    text = said(run("study", file, "-m", "nothing", "--out", tmp_path / "out"))
    assert "1 of 3 questions" in text
    assert "e.g. 'q1'" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gold-only",), "--gold-only fills questions up to --n-documents; give --n-documents, too"),
        (("--n-documents", "2"), "but --n-documents is 2"),
        (("--n-documents", "2", "--gold-only"), "marks none of its documents"),
        (("--preamble", "Read.", "--variants", "null"), '--preamble has no effect with --variants "null"; add'),
        (("--keep-runs", "1 KiB"), '--keep-runs is "1 KiB"; it must be a size in B, kB, MB, GB or TB'),
    ],
)
def test_refusals_speak_of_options(file: Path, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    text = said(run("study", file, "-m", "nothing", "--out", tmp_path / "out", *options))
    assert message in text
    assert "n_documents" not in text
    assert "gold_only" not in text


def test_a_plan_of_power_takes_no_prompts_and_no_model(file: Path) -> None:
    power = ("--power", "2", "--half-width", "0.5")
    assert "PROMPTS has no effect with --power" in said(run("plan", file, *power))
    assert "--model has no effect with --power" in said(run("plan", "-m", "smollm2", *power))
    assert run("plan", *power).exit_code == 0
