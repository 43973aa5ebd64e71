"""The command ``attnprobe figure``: files and folders in, pictures out, errors in one line."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from reports import write_folder, write_study
from rope_folders import write_rope
from runs import make_run
from task_data import make_task, write_task
from typer.testing import CliRunner, Result

from attnprobe import cli
from attnprobe.report.figure_kinds import ABOUT, EXAMPLES, NEEDLE_FILE
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


def test_help_lists_every_kind_with_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    shown = command("--help").stdout
    assert all(len(line) <= 80 for line in shown.splitlines())
    for kind, about in ABOUT.items():
        assert f"  {kind:16}{about}\n" in shown
        assert f"attnprobe figure {EXAMPLES[kind]}\n" in shown


@pytest.mark.parametrize("kind", list(ABOUT))
def test_every_example_of_the_help_works(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = EXAMPLES[kind].split()
    for folder in ("a", "b", "runs"):
        write_folder(Path(folder), [make_run(seed, layers=(0, 12), extras=True) for seed in range(2)])
    if "study" in words:
        write_study(Path("study"))
    make_run(layers=(0, 12), extras=True).save("run.safetensors")
    Path("recall.json").write_text("".join(NEEDLE_FILE))
    if "rope" in words:
        write_rope(Path("rope"))
    for folder, task in (("sweep", "needle_sweep"), ("niah", "niah"), ("control", "filler_control")):
        if folder in words:
            write_task(Path(folder), make_task(task, items=6, trials=2))
    assert command(*words).exit_code == 0
    assert Path(words[-1]).stat().st_size


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


def test_what_is_compared_has_the_names_that_are_given(files: Path) -> None:
    runs = [files / "one.safetensors", files / "two.safetensors"]
    out = files / "a.svg"
    result = command("compare", *runs, "-o", out, "--label", "RoPE, plain", "--label", "YaRN 4x")
    assert result.exit_code == 0, result.stderr
    assert ">RoPE, plain<" in out.read_text()
    assert ">YaRN 4x<" in out.read_text()
    assert ">one<" not in out.read_text()


@pytest.mark.parametrize("kind", ["curve", "layers", "sinks", "compare"])
@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_a_damaged_run_is_named_and_fails_the_command(kind: str, quiet: list[str], tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "out", [make_run(seed) for seed in range(3)])
    other = tmp_path / "whole.safetensors"
    make_run(7).save(other)
    damaged = folder / "runs" / "0001-q1.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-5])
    out = tmp_path / "x.svg"
    result = command(kind, folder, *[other] * (kind == "compare"), "-o", out, *quiet)
    assert result.exit_code == 1
    (line,) = [line for line in result.stderr.splitlines() if "left out" in line]
    assert str(damaged) in line
    assert "run again, writes it anew" in line
    assert out.exists()
    assert kind == "compare" or "2 prompts" in out.read_text()  # the others are drawn


def test_nothing_is_drawn_where_every_run_is_damaged(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "out", [make_run(seed) for seed in range(2)])
    for file in (folder / "runs").iterdir():
        file.write_bytes(b"x")
    for given in (folder, folder / "runs" / "0000-q1.safetensors"):
        result = command("curve", given, "-o", tmp_path / "x.png")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert str(folder / "runs" / "0000-q1.safetensors") in result.stderr
        assert re.search("run again, writes it anew|measure it again", result.stderr)
        assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_file_of_others_is_not_drawn_over(suffix: str, files: Path) -> None:
    out = files / f"a{suffix}"
    drawn = ("curve", files / "one.safetensors", "-o", out)
    out.write_text("precious")
    result = command(*drawn)
    assert result.exit_code == 2
    assert "is there already and no picture of attnprobe; give another --out, or --force" in result.stderr
    assert out.read_text() == "precious"
    assert command(*drawn, "--force").exit_code == 0
    assert command(*drawn).exit_code == 0  # over its own
    assert command(*drawn[:-1], files / "new" / out.name).exit_code == 0


def test_runs_of_different_models_are_not_averaged(tmp_path: Path) -> None:
    runs = [tmp_path / f"{name}.safetensors" for name in ("a", "b")]
    for number, file in enumerate(runs):
        make_run(number, prompt_id="same", manifest={"model": {"name": f"m{number}"}}).save(file)
    for kind in ("curve", "layers", "heads", "sinks"):
        result = command(kind, *runs, "-o", tmp_path / "x.png")
        assert result.exit_code == 2
        assert f"{runs[1]} is of m1, but {runs[0]} of m0" in result.stderr
        assert 'the kind "compare"' in result.stderr
        assert not (tmp_path / "x.png").exists()
    assert command("compare", *runs, "-o", tmp_path / "x.png").exit_code == 0


def test_runs_that_do_not_fit_are_named_by_their_files(tmp_path: Path) -> None:
    runs = [tmp_path / f"{name}.safetensors" for name in ("a", "b")]
    for number, file in enumerate(runs):
        make_run(number, prompt_id="same", document_tokens=(3, 4, 5)[number:]).save(file)
    result = command("curve", *runs, "-o", tmp_path / "x.png")
    assert f"{runs[1]} has 2 documents, but {runs[0]} has 3" in result.stderr


def test_a_needle_file_is_drawn(files: Path) -> None:
    assert command("needle", files / "needle.json", "-o", files / "a.svg").exit_code == 0
    assert "recall (%)" in (files / "a.svg").read_text()


def test_a_needle_is_drawn_from_a_niah_folder_by_metric(tmp_path: Path) -> None:
    data = make_task("niah", items=6, trials=1)
    folder = write_task(tmp_path / "out", data)
    for words, shown in (((), "strict accuracy (%)"), (("--metric", "advantage"), "advantage of the")):
        result = command("needle", folder.parent, "-o", tmp_path / "a.svg", *words)
        assert result.exit_code == 0, result.stderr
        assert shown in (tmp_path / "a.svg").read_text()
    write_task(tmp_path / "out", replace(data, model="other"))
    (tmp_path / "runs").mkdir()
    for words, message in (
        (("needle", folder, "--metric", "speed"), "the speed was not measured in tiny; choose one of strict, lenient"),
        (("answers", folder, "--metric", "mass"), "only a needle of the folder of a niah task has metrics"),
        (
            ("published", folder),
            "published is drawn from needle_sweep or multi_doc; of this folder draw needle, depths",
        ),
        (("fillers", folder), "holds a niah task; a figure of kind fillers is drawn from filler_control; of this"),
        (("needle", tmp_path / "out"), "holds 2 models: other, tiny; give the folder of one"),
        (("link", tmp_path / "runs"), "holds no task; give the folder that"),
        (("link", folder, folder), "2 files or folders"),
    ):
        result = command(*words, "-o", tmp_path / "b.png")
        assert result.exit_code == 2
        assert message in " ".join(result.stderr.replace('"', "").split())
    assert not (tmp_path / "b.png").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("curve", "one.safetensors", "-o", "x.gif"), 'ends in ".gif"; a picture is written as .png, .svg, .pdf'),
        (("curves", "one.safetensors", "-o", "x.png"), "choose one of curve, compare"),
        (("prompt", "bare.safetensors", "-o", "x.png"), "measure it with --extras prompt"),
        (("answer", "one.safetensors", "two.safetensors", "-o", "x.png"), "drawn from one run"),
        (("sinks", "one.safetensors", "-o", "x.png", "--layer", "1"), "no choice of layers"),
        (("sinks", "one.safetensors", "-o", "x.png", "--norm", "mass"), "no choice of norm"),
        (("curve", "one.safetensors", "-o", "x.png", "--norm", "no"), "norm 'no' is unknown"),
        (("curve", "one.safetensors", "-o", "x.png", "--layer", "7"), "layer 7 is not in this run"),
        (("curve", "none.safetensors", "-o", "x.png"), "does not exist"),
        (("needle", "one.safetensors", "-o", "x.png"), "is no needle file"),
        (("compare", "one.safetensors", "-o", "x.png"), "give 2 to 7"),
        (("curve", "one.safetensors", "-o", "x.png", "--label", "a"), "no lines to label; leave out --label"),
        (
            ("compare", "one.safetensors", "two.safetensors", "-o", "x.png", "--label", "a"),
            "--label is given 1 times (a) for one, two; give one for each, all different",
        ),
        (
            ("compare", "one.safetensors", "two.safetensors", "-o", "x.png", "--label", "a", "--label", "a"),
            "give one for each, all different",
        ),
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
