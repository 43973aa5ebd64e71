"""The command line as users meet it: output, exit status, resuming, and one clear line for every mistake."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from tiny_folder import prompt_records, save_tiny_model, write_prompts
from typer.testing import CliRunner, Result

import attnprobe as ap
from attnprobe import cli, cli_options, prompt, readers
from attnprobe.curve import middle_positions
from attnprobe.norms import NORMS

ENV = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    return str(write_prompts(tmp_path / "prompts.jsonl", prompt_records(3)))


def run(*arguments: str | Path, input: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, [str(a) for a in arguments], input=input)


def assert_one_line(result: Result, status: int, *parts: str) -> None:
    assert result.exit_code == status, (result.stdout, result.stderr, result.exception)
    assert result.stdout == ""
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith(("loading ", "measuring "))]
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


def test_help_and_version_import_nothing_heavy() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom attnprobe.cli import app\n"
        "for a in (['--help'], ['measure', '--help'], ['demo', '-h'], ['--version']):\n"
        "    result = CliRunner().invoke(app, a); assert result.exit_code == 0, result\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'matplotlib', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_version_of_the_installed_command() -> None:
    done = subprocess.run([sys.executable, "-m", "attnprobe", "--version"], env=ENV, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"attnprobe {ap.__version__}\n")


@pytest.mark.parametrize("command", ["measure", "check", "plan", "demo", "needle", "niah", "filler"])
def test_help_fits_80_columns_and_explains_every_option(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    result = run(command, "--help")
    assert result.exit_code == 0
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    hints = get_type_hints(getattr(cli, command), include_extras=True)
    for name, hint in hints.items():
        if name not in ("return", "ctx"):
            (option,) = hint.__metadata__
            assert option.help, name


def test_choices_are_those_of_the_library() -> None:
    hints = get_type_hints(cli.measure)
    assert get_args(hints["norm"]) == NORMS
    assert get_args(hints["format"]) == get_args(readers.Format)
    assert get_args(hints["layout"]) == get_args(prompt.Layout)
    assert get_args(hints["markers"]) == get_args(prompt.Markers)
    assert get_args(hints["template"]) == get_args(prompt.Template)
    defaults = import_module("attnprobe.measuring").measure.__kwdefaults__
    assert cli.measure.__defaults__ is not None
    given = dict(zip(list(hints)[3:], cli.measure.__defaults__[0:], strict=False))
    assert given["max_new_tokens"] == defaults["max_new_tokens"]
    assert given["rows"] == defaults["rows"]
    assert given["capture"] == defaults["capture"]


def test_measure_writes_runs_and_prints_the_curve(model: str, prompts: str, tmp_path: Path) -> None:
    result = run("measure", prompts, "-m", model, "--out", tmp_path / "out", "--max-new-tokens", "5")
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0] == "4 documents, 3 prompts: share of the documents' attention, mean over prompts"
    runs = [ap.Run.load(path) for path in sorted((tmp_path / "out" / "runs").iterdir())]
    assert [r.prompt_id for r in runs] == ["q0", "q1", "q2"]
    mean = np.mean([r.curve().values for r in runs], axis=0)
    shown = [float(line.split()[1]) for line in lines[2:6]]
    np.testing.assert_allclose(shown, 100 * mean, atol=0.051)
    middle = mean[list(middle_positions(4))].mean()
    assert f"head/middle {mean[0] / middle:.2f}   tail/middle {mean[3] / middle:.2f}" in result.stdout
    sink = np.mean([r.budget()["sink"] for r in runs])
    assert f"budget: first token {100 * sink:.1f} %" in result.stdout
    assert f"residual: {max(r.residual for r in runs):.1e} nats" in result.stdout
    assert "measured 3 prompts in" in result.stderr


def test_json_equals_the_run_files(model: str, prompts: str, tmp_path: Path) -> None:
    result = run(
        *("measure", prompts, "-m", model, "--out", tmp_path, "--max-new-tokens", "4", "--norm", "advantage"),
        *("--layers", "0,2", "--heads", "1-3", "--json"),
    )
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert (content["measured"], content["reused"]) == (3, 0)
    for one in content["prompts"]:
        file = ap.Run.load(tmp_path / one["file"])
        assert one["curve"] == file.curve("advantage", layers=[0, 2], heads=[1, 2, 3]).to_dict()
        assert one["answer"] == file.answer
        assert one["residual"] == file.residual
        assert one["answer_logprob"] == pytest.approx(float(file.answer_logprob.sum()), abs=1e-5)
    values = np.mean([one["curve"]["values"] for one in content["prompts"]], axis=0)
    np.testing.assert_allclose(content["means"][0]["curve"]["values"], values, rtol=1e-12)
    again = run(
        *("measure", prompts, "-m", model, "--out", tmp_path, "--max-new-tokens", "4", "--norm", "advantage"),
        *("--layers", "0,2", "--heads", "1-3", "--json", "--quiet"),
    )
    assert again.stderr == ""
    repeated = json.loads(again.stdout)
    assert (repeated["measured"], repeated["reused"]) == (0, 3)
    assert [{**one, "reused": False} for one in repeated["prompts"]] == content["prompts"]


def test_standard_input_and_answers_of_the_file(model: str, prompts: str, tmp_path: Path) -> None:
    text = Path(prompts).read_text()
    arguments = ("-m", model, "--answer", "file", "--json", "--quiet")
    result = run("measure", "-", "--out", tmp_path / "a", *arguments, input=text)
    assert result.exit_code == 0, result.output
    from_file = run("measure", prompts, "--out", tmp_path / "b", *arguments)
    piped, read = json.loads(result.stdout), json.loads(from_file.stdout)
    assert piped["prompts"] == read["prompts"]
    assert [one["answer"] for one in read["prompts"]] == [record["answer"] for record in prompt_records(3)]
    bad = run("plan", "-", "-m", model, input=text + "{]\n")
    assert_one_line(bad, 2, "standard input:4: not valid JSON")


def test_the_options_reach_the_measurement(model: str, prompts: str, tmp_path: Path) -> None:
    result = run(
        *("measure", prompts, "-m", model, "--out", tmp_path, "--max-new-tokens", "3", "--limit", "2", "--no-rows"),
        *("--rows", "answer", "--layout", "question_first", "--markers", "numbered", "--template", "plain"),
        *("--sample", "--temperature", "1.5", "--top-p", "0.9", "--seed", "7", "--prefill-chunk", "32"),
        *("--capture", "live", "--dtype", "float32", "--attn-implementation", "eager", "--batch-size", "2"),
    )
    assert result.exit_code == 0, result.output
    paths = sorted((tmp_path / "runs").iterdir())
    assert len(paths) == 2
    file = ap.Run.load(paths[0])
    assert file.row_mass is None
    assert file.rows == "answer"
    assert file.prompt_text.startswith("Question: What is it, 0?")
    assert "Document [1]" in file.prompt_text
    assert file.manifest["model"]["attn_implementation"] == "eager"
    assert file.manifest["capture"]["mode"] == "live"
    assert file.manifest["capture"]["prefill_chunk"] == 32
    assert file.manifest["capture"]["batch"] == 2
    generation = file.manifest["generation"]
    assert (generation["do_sample"], generation["seed"], generation["temperature"]) == (True, 7, "1.5")


BAD_LINE = '{"id": "a", "documents": ["x"], "question": "y"}\n{"id": "b", "documents": ["x"], "qestion": "y"}\n'


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["{tmp}/none.jsonl"], ["none.jsonl: no such file"]),
        (["{tmp}/bad.jsonl"], ["bad.jsonl:2", 'unknown key "qestion"', '"question"']),
        (["{tmp}/broken.jsonl"], ["broken.jsonl:1: not valid JSON"]),
        (["{prompts}", "--model", "{tmp}/nowhere"], ["nowhere", "no such file or folder", "smollm2"]),
        (["{prompts}", "--layers", "0-9"], ["layer 3 is not in this model; its layers are 0 to 2"]),
        (["{prompts}", "--layers", "two"], ['--layers is "two"', "0-5,7"]),
        (["{prompts}", "--layers", "5-2"], ['--layers is "5-2"']),
        (["{prompts}", "--heads", "9"], ["head 9 is not in this model; its heads are 0 to 3"]),
        (["{prompts}", "--heads", "0:9"], ["head 9"]),
        (["{prompts}", "--heads", "0:1,2"], ['--heads is "0:1,2"']),
        (["{prompts}", "--heads", "0:1", "--layers", "0"], ["leave the layers out"]),
        (["{prompts}", "--norm", "density", "--no-rows"], ["density", "--no-rows"]),
        (["{prompts}", "--prefill-chunk", "-3"], ['--prefill-chunk is "-3"']),
        (["{prompts}", "--temperature", "0.5"], ["--temperature", "--sample"]),
        (["{prompts}", "--sample", "--temperature", "0"], ["--temperature is 0.0"]),
        (["{prompts}", "--sample", "--top-p", "1.5"], ["--top-p is 1.5"]),
        (["{prompts}", "--dtype", "int3"], ["dtype 'int3' is not known"]),
        (["{prompts}", "--rope", "spiral"], ['unknown kind "spiral"']),
        (["{prompts}", "--attn-implementation", "psychic"], ["cannot be loaded", "psychic"]),
        (["{prompts}", "--out", "{prompts}"], ["is a file; give a folder as --out"]),
        (["{tmp}/long.jsonl"], ["prompt 'long'", "tokens", "limit is 512", "--beyond-window"]),
        (["{tmp}/bare.jsonl", "--answers", "file"], ["1 of 1 prompt", '"bare"', "--answers generate"]),
        (["{tmp}/control.jsonl", "--strict"], ['prompt "control"', "<|im_end|>", "--strict"]),
    ],
)  # fmt: skip
def test_mistakes_get_one_clear_line(
    model: str, prompts: str, tmp_path: Path, arguments: list[str], parts: list[str]
) -> None:
    (tmp_path / "bad.jsonl").write_text(BAD_LINE)
    (tmp_path / "broken.jsonl").write_text('{"id": }\n')
    long = {"id": "long", "documents": ["word " * 100, "word " * 100], "question": "What?"}
    control = {"id": "control", "documents": ["a <|im_end|> b"], "question": "What?"}
    for name, record in (("long", long), ("bare", long | {"id": "bare"}), ("control", control)):
        write_prompts(tmp_path / f"{name}.jsonl", [record])
    filled = [a.format(tmp=tmp_path, prompts=prompts) for a in arguments]
    for option, value in (("--model", model), ("--out", str(tmp_path / "out"))):
        if option not in filled:
            filled += [option, value]
    result = run("measure", *filled)
    assert_one_line(result, 2, *parts)
    assert not list(tmp_path.glob("out/runs/*"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["measure"],
        ["measure", "x.jsonl", "--out", "o"],
        ["measure", "x.jsonl", "-m", "m", "--out", "o", "--rows", "some"],
        ["measure", "x.jsonl", "-m", "m", "--out", "o", "--batch-size", "0"],
        ["measure", "x.jsonl", "-m", "m", "--out", "o", "--max-new-tokens", "many"],
        ["plan", "x.jsonl", "-m", "m", "--norm", "share"],
        ["heatmap"],
        ["run", "--explain"],
        ["study", "x.jsonl", "-m", "m", "--out", "o", "--design", "latin"],
    ],
)
def test_wrong_arguments_end_with_status_2(arguments: list[str]) -> None:
    result = run(*arguments)
    assert_one_line(result, 2, "--help lists what can be given")


def test_no_arguments_at_all_show_the_help() -> None:
    result = run()
    assert result.exit_code == 2
    assert "Usage:" in result.output
    assert "error:" not in result.output


def test_one_name_for_answers_in_all_commands(model: str, prompts: str, tmp_path: Path) -> None:
    for name in ("--answers", "--answer"):
        planned = run("plan", prompts, "-m", model, name, "file", "--json", "-q")
        assert planned.exit_code == 0, planned.output
        assert max(one["n_answer"] for one in json.loads(planned.stdout)["prompts"]) < 64
        out = tmp_path / name
        measured = run("measure", prompts, "-m", model, name, "file", "--out", out, "--json", "-q")
        assert json.loads(measured.stdout)["prompts"][0]["answer"] == prompt_records(3)[0]["answer"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--variants", "none,null"], '--variants is "none,null"; none stands alone'),
        (["--extras", "values,none"], '--extras is "values,none"; none stands alone'),
        (["--variants", "null,markers=xml"], "variant 'markers=xml' changes nothing"),
        (
            ["--variants", "layout=question_first", "--layout", "question_first"],
            "'layout=question_first' changes nothing",
        ),
        (["--keep-runs", "2"], '--keep-runs is "2"; it must be a size'),
        (["--keep-runs", "0"], "no such file"),  # of the prompts: the size is one
    ],
)
def test_studies_that_make_no_sense(arguments: list[str], message: str, tmp_path: Path) -> None:
    assert_one_line(run("study", tmp_path / "none.jsonl", "-m", "m", "--out", tmp_path / "o", *arguments), 2, message)


def test_a_planned_ratio_has_no_negative_interval() -> None:
    result = run("plan", "--power", "2", "--half-width", "99")
    assert result.exit_code == 0
    assert "95 % interval of about 0.0202 to 198" in result.stdout.replace("\n", " ")
    assert "needs --half-width" in " ".join(run("plan", "--help").stdout.split())
    assert_one_line(run("plan", "--power", "2"), 2, "--power needs --half-width")


def test_other_settings_end_with_status_2_and_force_goes_on(model: str, prompts: str, tmp_path: Path) -> None:
    arguments = ("measure", prompts, "-m", model, "--out", tmp_path / "out", "--max-new-tokens")
    assert run(*arguments, "3").exit_code == 0
    assert_one_line(run(*arguments, "4"), 2, "max_new_tokens is 3 there and 4 now", "--out", "--force")
    forced = run(*arguments, "4", "--force", "--json", "-q")
    assert json.loads(forced.stdout)["measured"] == 3


def test_bugs_keep_their_traceback(model: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("attnprobe.measure_folder.measure_many", broken)
    result = run("measure", prompts, "-m", model, "--out", tmp_path)
    assert result.exit_code == 1
    assert isinstance(result.exception, RuntimeError)
    assert str(result.exception) == "a bug"


@pytest.mark.parametrize("error", ["MemoryError", "OutOfMemoryError"])
def test_out_of_memory_gets_a_clear_line(
    model: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    import torch

    def full(*arguments: Any, **options: Any) -> None:
        raise MemoryError("no room") if error == "MemoryError" else torch.OutOfMemoryError("no room")

    monkeypatch.setattr("attnprobe.measure_folder.measure_many", full)
    result = run("measure", prompts, "-m", model, "--out", tmp_path, "--quiet")
    assert_one_line(result, 2, "out of memory (no room)", "--prefill-chunk", "finished are kept")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_full_standard_output_is_one_line(model: str, prompts: str) -> None:
    command = [sys.executable, "-m", "attnprobe", "plan", prompts, "-m", model, "--quiet"]
    for more in ([], ["--json"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run([*command, *more], stdout=full, stderr=subprocess.PIPE, env=ENV, text=True)
        assert done.returncode == 2, done.stderr
        assert done.stderr == (
            "error: standard output cannot be written: No space left on device; write it elsewhere\n"
        )


def test_interruption_says_what_is_kept(
    model: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("attnprobe.measure_folder")
    original = module.measure_many

    def interrupted(lm: Any, some: Any, *, on_run: Any, **options: Any) -> None:
        def stop_after_one(place: int, result: ap.Run) -> None:
            on_run(place, result)
            raise KeyboardInterrupt

        original(lm, some, on_run=stop_after_one, **options)

    monkeypatch.setattr(module, "measure_many", interrupted)
    arguments = ("measure", prompts, "-m", model, "--out", tmp_path / "out", "--max-new-tokens", "3")
    result = run(*arguments)
    assert result.exit_code == 130
    assert f"interrupted: 1 run kept in {tmp_path / 'out'}; the same command goes on from there" in result.stderr
    monkeypatch.undo()
    resumed = run(*arguments, "--json")
    content = json.loads(resumed.stdout)
    assert (content["measured"], content["reused"]) == (2, 1)
    assert "1 prompt measured before, 2 to go" in resumed.stderr


def test_a_killed_run_goes_on_and_repeats_nothing(model: str, tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", prompt_records(24))
    arguments = ["measure", str(prompts), "-m", model, "--out", str(tmp_path / "out"), "--max-new-tokens", "30"]
    process = subprocess.Popen([sys.executable, "-m", "attnprobe", *arguments], env=ENV, stderr=subprocess.DEVNULL)
    runs = tmp_path / "out" / "runs"
    try:
        deadline = time.monotonic() + 120
        while len(list(runs.glob("*.safetensors"))) < 3:
            assert process.poll() is None, "it ended before it was killed"
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    kept = {path.name: path.stat().st_mtime_ns for path in runs.glob("*.safetensors")}
    assert 3 <= len(kept) < 24
    for name in kept:
        ap.Run.load(runs / name)  # whole, whenever the kill came
    resumed = json.loads(run(*arguments, "--json", "--quiet").stdout)
    assert (resumed["measured"], resumed["reused"]) == (24 - len(kept), len(kept))
    assert all((runs / name).stat().st_mtime_ns == changed for name, changed in kept.items())
    whole = json.loads(run(*arguments[:5], str(tmp_path / "whole"), *arguments[6:], "--json", "--quiet").stdout)
    for one, other in zip(resumed["prompts"], whole["prompts"], strict=True):
        assert one["answer"] == other["answer"]
        np.testing.assert_allclose(one["curve"]["values"], other["curve"]["values"], atol=1e-5)


def test_check_has_a_row_a_layer(model: str) -> None:
    result = run("check", model)
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert [int(row[0]) for row in rows] == [0, 1, 2]
    assert all(len(row) == 5 and row[-1] == "ok" and max(map(float, row[1:4])) < 1e-5 for row in rows)
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    content = json.loads(run("check", model, "--json", "-q").stdout)
    assert content["passed"] is True
    assert [row["layer"] for row in content["layers"]] == [0, 1, 2]
    assert set(content["layers"][0]["differences"]) == {"single", "padded batch", "cached decode"}


def test_a_failed_check_ends_with_status_1(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("attnprobe.selfcheck")
    rows = (module.LayerCheck(0, (1e-7, 0.0, 0.0)), module.LayerCheck(4, (1e-7, float("inf"), 3e-4)))
    report = module.CheckReport(rows, 1e-5, module.EAGER, module.SCENARIOS, "sdpa")
    monkeypatch.setattr(module, "check", lambda lm, **options: report)
    result = run("check", model)
    assert result.exit_code == 1
    assert "DIFFERS" in result.stdout
    assert "1 of 2 layers differ: do not trust" in result.stdout
    as_json = run("check", model, "--json")
    assert as_json.exit_code == 1
    content = json.loads(as_json.stdout)
    assert [row["passed"] for row in content["layers"]] == [True, False]
    assert content["layers"][1]["differences"]["padded batch"] == "inf"


def test_a_model_without_the_interface_cannot_be_checked(tmp_path: Path) -> None:
    from tiny_models import tiny_model
    from toy_tokenizers import bytelevel

    tokenizer = bytelevel()
    tiny_model("bloom", vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert_one_line(run("check", str(tmp_path)), 2, "BloomForCausalLM does not use")


def test_plan_prints_tokens_and_ends_with_1_where_a_prompt_does_not_fit(
    model: str, prompts: str, tmp_path: Path
) -> None:
    result = run("plan", prompts, "-m", model, "--max-new-tokens", "5")
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    content = json.loads(run("plan", prompts, "-m", model, "--max-new-tokens", "5", "--json", "-q").stdout)
    assert content["fits"] is True
    measured = run("measure", prompts, "-m", model, "--max-new-tokens", "5", "--out", tmp_path / "o", "--json")
    counted = [(one["prompt_tokens"], one["document_tokens"]) for one in json.loads(measured.stdout)["prompts"]]
    assert [(one["n_prompt"], one["document_tokens"]) for one in content["prompts"]] == counted
    beyond = run("plan", prompts, "-m", model, "--max-new-tokens", "500")
    assert beyond.exit_code == 1
    assert "! prompt" in beyond.stdout


def test_demo_runs_on_any_model(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model", max_position_embeddings=4096)
    result = run("demo", "-m", model, "--out", tmp_path / "out", "--json", "--quiet")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert len(content["rotations"]) == 10
    assert all(Path(path).stat().st_size > 10_000 for path in (*content["pictures"], *content["pages"]))
    printed = run("demo", "-m", model, "--out", tmp_path / "out")
    assert "measured 10 prompts" not in printed.stderr
    assert "\x1b" not in printed.stdout
    assert_one_line(run("demo", "-m", model, "--out", Path(model) / "config.json"), 2, "is a file")


def test_output_survives_a_terminal_without_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "argv", ["attnprobe", "--version"])
    with pytest.raises(SystemExit):
        cli.main()
    print("é│", file=stream, flush=True)
    assert raw.getvalue().endswith(b"\\xe9\\u2502\n")
    assert not cli.speaks_unicode()


def test_number_lists() -> None:
    assert cli_options.layer_numbers("0-2, 7,1") == [0, 1, 2, 7]
    assert cli_options.layer_numbers(None) is None
    assert cli_options.head_numbers("3") == [3]
    assert cli_options.head_numbers("12:3,14:0") == [(12, 3), (14, 0)]
    assert [cli_options.chunk_tokens(text) for text in ("auto", "none", "512")] == ["auto", None, 512]
