"""The command ``attnprobe figure``: files and folders in, pictures out, errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runs import make_run
from typer.testing import CliRunner, Result

from attnprobe import cli
from attnprobe.report.figure_kinds import ABOUT
from attnprobe.report.figures import draw


def command(*words: object) -> Result:
    return CliRunner().invoke(cli.app, ["figure", *map(str, words)])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for seed, name in enumerate(("one", "two")):
        make_run(seed, extras=True).save(tmp_path / f"{name}.safetensors")
    content = {"lengths": [10, 20], "depths": [0, 1], "values": [[1, None], [2, 3]], "label": "recall", "unit": "%"}
    (tmp_path / "needle.json").write_text(json.dumps(content))
    return tmp_path


def test_help_lists_every_kind() -> None:
    shown = command("--help").stdout
    for kind, about in ABOUT.items():
        assert kind in shown
        assert about in shown


def test_the_command_draws_what_python_does(files: Path) -> None:
    result = command("heads", files / "one.safetensors", "-o", files / "a.svg", "--layer", 1, "--width", "page")
    assert result.exit_code == 0, result.stderr
    draw("heads", make_run(0, extras=True), files / "b.svg", layers=[1], width="page")
    assert (files / "a.svg").read_bytes() == (files / "b.svg").read_bytes()
    result = command("curve", files / "one.safetensors", "-o", files / "a.svg", "--norm", "density")
    assert result.exit_code == 0, result.stderr
    draw("curve", make_run(0, extras=True), files / "b.svg", norm="density")
    assert (files / "a.svg").read_bytes() == (files / "b.svg").read_bytes()


def test_several_files_are_several_runs_or_compared(files: Path) -> None:
    runs = [files / "one.safetensors", files / "two.safetensors"]
    assert command("curve", *runs, "-o", files / "a.svg").exit_code == 0
    assert "2 prompts" in (files / "a.svg").read_text()
    assert command("compare", *runs, "-o", files / "b.svg").exit_code == 0
    shown = (files / "b.svg").read_text()
    assert ">one<" in shown
    assert ">two<" in shown


def test_a_needle_file_is_drawn(files: Path) -> None:
    assert command("needle", files / "needle.json", "-o", files / "a.svg").exit_code == 0
    assert "recall (%)" in (files / "a.svg").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("curve", "one.safetensors", "-o", "x.gif"), 'ends in ".gif"; a picture is written as .png, .svg, .pdf'),
        (("curves", "one.safetensors", "-o", "x.png"), "choose one of curve, compare"),
        (("prompt", "bare.safetensors", "-o", "x.png"), 'measure it with extras=("prompt",)'),
        (("answer", "one.safetensors", "two.safetensors", "-o", "x.png"), "drawn from one run"),
        (("sinks", "one.safetensors", "-o", "x.png", "--layer", "1"), "no choice of layers"),
        (("sinks", "one.safetensors", "-o", "x.png", "--norm", "mass"), "no choice of norm"),
        (("curve", "one.safetensors", "-o", "x.png", "--norm", "no"), "norm 'no' is unknown"),
        (("curve", "one.safetensors", "-o", "x.png", "--layer", "7"), "layer 7 is not in this run"),
        (("curve", "none.safetensors", "-o", "x.png"), "does not exist"),
        (("needle", "one.safetensors", "-o", "x.png"), "is no needle file"),
        (("compare", "one.safetensors", "-o", "x.png"), "give 2 to 7"),
    ],
)
def test_wrong_input_is_one_line_and_exit_status_2(
    words: tuple[str, ...], message: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    make_run().save("bare.safetensors")
    result = command(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path(words[words.index("-o") + 1]).exists()
