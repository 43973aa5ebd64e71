"""Names and texts of users in what the command line shows: nothing of them may be obeyed by a terminal."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from runs import make_run
from tiny_folder import prompt_records, save_tiny_model, write_prompts
from typer.testing import CliRunner, Result

import attnprobe
from attnprobe import cli, models, terminal
from attnprobe.terminal import plain

ODD = "x\x1b[31m\x1b]0;t\x07\r\x9b2J\u202ey\u2066\u200f"
"""Colours the screen, renames the window, goes back to the line's start, clears the screen, turns the text round."""

WRITES = r"print|(sys\.)?std(out|err)\.write|typer\.s?echo|(\w*console|status)\.(print|log)|os\.write"
OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def run(*words: object) -> Result:
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def assert_plain(result: Result, *statuses: int) -> None:
    assert result.exit_code in statuses, (result.output, result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)  # else it is a bug, whose status is 1
    assert not OBEYED.search(result.stdout + result.stderr), result.output
    assert "[31m" in result.output  # the name is there, so something was at stake


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model") / ODD)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Prompts whose names are odd, in a file whose name is."""
    records = prompt_records(2, prefix=ODD)
    for record in records:
        record["documents"] = [{"text": text, "id": f"{ODD}{i}"} for i, text in enumerate(record["documents"])]
        record["answer"] += ODD
        record["gold"] = 0
    return write_prompts(tmp_path / f"{ODD}.jsonl", records)


def test_plain_keeps_what_a_terminal_only_shows() -> None:
    assert plain("naïve 文字 שלום 👩‍🚀 \\x1b") == "naïve 文字 שלום 👩‍🚀 \\x1b"
    assert plain(ODD) == "x [31m ]0;t 2J y "


def test_results_of_every_measuring_command(model: Path, prompts: Path, tmp_path: Path) -> None:
    common = ("--model", model, "--dtype", "float32")
    out = [tmp_path / f"{name}{ODD}" for name in ("runs", "study", "pages", "heads")]
    assert_plain(run("measure", prompts, *common, "--out", out[0], "--answers", "file", "--max-new-tokens", 2), 0)
    assert_plain(run("measure", prompts, *common, "--out", out[0], "--answers", "file"), 0)
    assert_plain(run("plan", prompts, *common), 0)
    assert_plain(run("plan", prompts, *common, "--study"), 0)
    assert_plain(run("study", prompts, *common, "--out", out[1], "--variants", "none"), 0)
    assert_plain(run("heads", prompts, *common, "--out", out[3], "--answers", "file", "--needle", "document"), 0)
    assert_plain(run("heatmap", prompts, *common, "--out", out[2], "--answers", "file"), 0)
    assert_plain(run("heatmap", prompts, *common, "--prompt", f"no{ODD}"), 2)
    assert_plain(run("report", out[0], "--out", tmp_path / f"{ODD}.html"), 0)
    assert_plain(run("figure", "layers", out[0], "--out", tmp_path / f"{ODD}.png"), 0)
    assert_plain(run("check", model, "--tokens", 16), 0)


def test_errors_of_every_command(tmp_path: Path) -> None:
    folder = tmp_path / ODD
    folder.mkdir()
    damaged, whole = folder / f"{ODD}.safetensors", folder / f"whole{ODD}.safetensors"
    damaged.write_bytes(b"x" * 9)
    make_run(prompt_id=ODD).save(whole)
    broken, config = folder / f"{ODD}.jsonl", folder / f"{ODD}.yaml"
    broken.write_text(json.dumps({"id": ODD, "documents": ["a"], ODD: 1}) + "\n")
    config.write_text(json.dumps({"kind": ODD}))
    for words in (
        ("figure", "curve", damaged, "-o", "x.png"),
        ("figure", "curve", whole, "-o", f"x.{ODD}"),
        ("figure", "curve", whole, "-o", whole / f"{ODD}.png"),  # in a file, as if it were a folder
        ("figure", "curve", whole, "-o", "x.png", "--norm", ODD),
        ("figure", "distance", whole, "-o", folder / "x.png"),
        ("figure", ODD, whole, "-o", "x.png"),
        ("figure", "needle", broken, "-o", "x.png"),
        ("report", damaged),
        ("report", folder),
        ("report", whole, "--out", f"{folder}/"),
        ("heatmap", damaged),
        ("measure", broken, "--model", "no", "--out", folder / "out"),
        ("measure", folder / "none", "--model", "no", "--out", folder / "out"),
        ("study", broken, "--model", "no", "--out", folder / "out"),
        ("heads", broken, "--model", "no", "--out", folder / "out"),
        ("plan", broken, "--model", ODD),
        ("check", folder),
        ("check", ODD),
        ("run", config),
        ("run", folder / "none"),
        ("run", "--explain", ODD),
        ("merge", folder, "--out", folder / "out"),
        (ODD,),
        ("measure", f"--{ODD}"),
        ("measure", broken, "--model", "m", "--out", "o", "--answers", ODD),
        ("measure", broken, "--model", "m", "--out", "o", "--heads", ODD),
        ("demo", "--model", ODD, "--out", folder / "out"),
        ("rope", ODD, "--out", folder / "out"),
        ("rope", "inspect", folder),
        ("niah", "--lengths", "64", "--model", ODD, "--out", folder / "out"),
        ("needle", "--model", ODD, "--out", folder / "out", "--only", ODD),
        ("filler", "--lengths", "64", "--model", ODD, "--out", folder / "out"),
    ):
        result = run(*words)
        assert_plain(result, 2)
        assert len(result.stderr.splitlines()) <= 2  # a step on the way, and the error


def test_nothing_is_shown_but_by_the_two_modules_that_make_it_plain() -> None:
    """``say`` and ``print_lines`` take out what a terminal obeys, so nothing else may write to it."""
    package = Path(attnprobe.__file__).parent
    writers = set()
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and re.fullmatch(WRITES, ast.unparse(node.func)):
                writers.add(str(file.relative_to(package)))
    assert writers == {"terminal.py", "cli_output.py", "validate.py"}  # the last has no texts of users


def test_a_damaged_run_among_others_is_named_plainly(tmp_path: Path, model: Path, prompts: Path) -> None:
    out = tmp_path / "runs"
    assert run("measure", prompts, "--model", model, "--out", out, "--answers", "file").exit_code == 0
    first = min((out / "runs").iterdir())
    first.write_bytes(b"")
    assert_plain(run("figure", "curve", out, "--out", tmp_path / f"{ODD}.png"), 1)
    assert_plain(run("report", out, "--out", tmp_path / f"{ODD}.html"), 1)


def test_the_traceback_of_a_bug_is_plain() -> None:
    code = f"from attnprobe import cli\ndef bug(*a, **k): raise ZeroDivisionError({ODD!r})\n"
    code += "cli.reported = bug\nimport sys\nsys.argv = ['attnprobe', 'check', 'm']\ncli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ZeroDivisionError: x [31m ]0;t 2J y" in done.stderr
    assert not OBEYED.search(done.stderr)


def test_what_is_said_while_loading_and_measuring_is_plain(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In a terminal, where spinner and bar move the cursor themselves: nothing of the text does."""
    monkeypatch.setattr(terminal, "PROGRESS_AFTER", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with terminal.work_bar(ODD, 10) as advance:
        terminal.time.sleep(0.2)
        advance(5, ODD)
        terminal.time.sleep(0.2)
    with models._notice(f"[bold]{ODD}", True, after=0.0) as change:
        terminal.time.sleep(0.2)
        change(f"[i]{ODD}")
        terminal.time.sleep(0.2)
    shown = capsys.readouterr().err
    assert "x [31m ]0;t 2J y" in shown
    assert "[bold]x" in shown
    assert "[i]x" in shown
    for obeyed in ("\x1b[31m", "\x1b]0", "\x07", "\x9b", "\u202e", "\u2066", "\u200f"):
        assert obeyed not in shown
