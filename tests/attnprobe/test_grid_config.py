"""Configs of attnprobe run: what is taken, what is refused and in which words, and the command itself."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, Literal

import grid_jobs
import pytest
from pydantic import Field
from typer.testing import CliRunner, Result

from attnprobe import cli, grid_config
from attnprobe.config_fields import Config, ConfigPath
from attnprobe.config_text import config_lines
from attnprobe.designs import DESIGNS
from attnprobe.errors import InputError
from attnprobe.grid import run_cells
from attnprobe.grid_config import KINDS, Kind, load_config
from attnprobe.study_options import StudyOptions
from attnprobe.terminal import bytes_of


class Inner(Config):
    kind: Literal["inner"] = "inner"
    depth: int = 1


class FakeConfig(Config):
    """A grid without a model."""

    kind: Literal["fake"] = Field(description="What is run.")
    n: int = Field(examples=[4], ge=1, description="Number of cells: one or more.")
    out: ConfigPath = Field(examples=["out"], description="Where results go.")
    data: ConfigPath | None = Field(None, description="A file.")
    inner: Inner = Field(Inner(), description="More.")
    ratio: float = Field(0.5, description="A ratio.")
    flag: bool = Field(False, description="A flag.")


def run_fake(config: FakeConfig, *, quiet: bool, retry_failed: bool, as_json: bool) -> int:
    content = config.model_dump(mode="json", exclude={"out"})
    result = run_cells(
        config.out, content, grid_jobs.cells(config.n), grid_jobs.do, quiet=quiet, retry_failed=retry_failed
    )
    print(json.dumps({"done": result.done, "as_json": as_json, "retry_failed": retry_failed}))
    return 1 if config.flag else 0


@pytest.fixture(autouse=True)
def fake_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("fake_kind")
    module.__dict__.update(FakeConfig=FakeConfig, run=run_fake)
    monkeypatch.setitem(sys.modules, "fake_kind", module)
    monkeypatch.setitem(KINDS, "fake", Kind("fake_kind:FakeConfig", "fake_kind:run"))


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return path


STUDY = "kind: study\nmodels: [smollm2]\nprompts: p.jsonl\nout: o\n"


def test_a_study(tmp_path: Path) -> None:
    path = write(tmp_path, STUDY + "null: false\nn_documents: 10\n")
    config: Any = load_config(path)
    assert (config.kind, config.models, config.null, config.n_documents) == ("study", ["smollm2"], False, 10)
    assert (config.prompts, config.out) == (tmp_path / "p.jsonl", tmp_path / "o")
    assert config.preamble == StudyOptions.preamble


def test_study_options_agree_with_the_study() -> None:
    from typing import get_args

    from attnprobe.study_config import StudyConfig

    fields = StudyConfig.model_fields
    assert get_args(fields["design"].annotation) == DESIGNS
    options = StudyOptions()
    for name in ("design", "bases", "seed", "preamble", "length_matched", "rows", "max_new_tokens", "beyond_window"):
        assert fields[name].default == getattr(options, name)
    assert tuple(fields["extras"].default) == options.extras
    assert all(field.description for field in fields.values())


def test_paths_are_relative_to_the_file_and_options_to_the_folder(tmp_path: Path) -> None:
    path = write(tmp_path, STUDY.replace("[smollm2]", "[smollm2, ./m, ../m, org/m, ~/m, /m]"))
    config: Any = load_config(path)
    home = str(Path("~/m").expanduser())
    assert config.models == ["smollm2", str(tmp_path / "m"), f"{tmp_path}/../m", "org/m", home, "/m"]
    config = load_config(path, ["out=here", "models=[./x]", "prompts=/abs"])
    assert (config.out, config.models, config.prompts) == (Path("here"), ["x"], Path("/abs"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; attnprobe run --explain"),
        ("- a\n", "must hold keys and values, not a list"),
        ("seed: 1\n", '"kind" is missing; the kinds are study'),
        ("kind: 7\n", ':1: "kind" must be a text, not a whole number'),
        ("kind: stduy\n", ':1: unknown kind "stduy"; did you mean "study"?'),
        (STUDY + "n_docments: 3\n", ':5: unknown key "n_docments"; did you mean "n_documents"?'),
        (STUDY + "Seed: 3\n", 'did you mean "seed"?'),
        (STUDY + "zzz: 3\n", ':5: unknown key "zzz"; the keys are kind, models'),
        (STUDY + "seed: ten\n", ':5: "seed" must be a whole number, not a text ("ten")'),
        (STUDY + "seed: '10'\n", ':5: "seed" must be a whole number, not a text ("10")'),
        (STUDY + "seed: true\n", ':5: "seed" must be a whole number, not true'),
        (STUDY + "seed: 1.5\n", ':5: "seed" must be a whole number, not a number (1.5)'),
        (STUDY + "seed: -1\n", ':5: "seed" must be greater than or equal to 0, not a whole number (-1)'),
        (STUDY + "seed: null\n", ':5: "seed" must be a whole number, not null'),
        (STUDY + "null: 1\n", ':5: "null" must be true or false, not a whole number (1)'),
        (STUDY + "limit: a\n", ':5: "limit" must be a whole number, not a text'),
        (STUDY + "rope: {a: 1}\n", ":5: rope override {'a': 1} has no \"rope_type\""),
        (STUDY + "rope: yarn\n", ':5: rope override "yarn" lacks "factor"'),
        (STUDY + "rope: 4\n", ':5: "rope" must be a text, not a whole number (4)'),
        (
            STUDY + "design: latin\n",
            ":5: \"design\" must be 'williams', 'cyclic' or 'insertion', not a text (\"latin\")",
        ),
        (STUDY + "extras:\n- values\n- 3\n", ':7: "extras[1]" must be'),
        (STUDY + "keep_runs: 2 gigs\n", ':5: "keep_runs" must be a size in B, kB, MB, GB or TB, like "2 GB"'),
        (STUDY + "seed: 1\nseed: 2\n", ':6: the key "seed" is given twice'),
        (STUDY + "seed: [1\n", ":6: not valid YAML"),
        (STUDY + "seed: !!python/name:os.system x\n", ":5: tag:yaml.org,2002:python/name:os.system is not understood"),
        (STUDY + "extras: &a [*a]\n", "not valid YAML"),
        (STUDY + "? [a]\n: 1\n", ":5: a key must be a text"),
        ("kind: study\nmodels: smollm2\nprompts: p\n", ':2: "models" must be a list, not a text'),
        ("kind: study\nmodels: []\nprompts: p\nout: o\n", ':2: "models" has 0 entries; give 1 or more'),
        (STUDY + "variants: [markers=xml]\n", "c.yaml: variant 'markers=xml' changes nothing"),
        (STUDY + "keep_runs: 7\n", ':5: "keep_runs" must be a text, not a whole number (7)'),
        ("kind: study\nmodels: [a]\nprompts: p\n", '"out" is missing: Folder for the results'),
        ("kind: fake\nn: 1\nout: o\ninner:\n  deep: 1\n", ':5: unknown key "inner.deep"'),
        ("kind: fake\nn: 1\nout: o\ninner: {depth: x}\n", ':4: "inner.depth" must be a whole number, not a text ("x")'),
        (STUDY + "---\na: 1\n", "not valid YAML"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_config(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_values_that_look_odd_and_are_fine(tmp_path: Path) -> None:
    config: Any = load_config(write(tmp_path, STUDY + "keep_runs: 0\nmarkers: numbered\nvariants: [markers=xml]\n"))
    assert bytes_of(config.keep_runs) == 0
    assert config.variants == ["markers=xml"]


def test_a_rope_scaling_is_a_text_or_keys_and_values(tmp_path: Path) -> None:
    """As pasted from a config.json; what a run records is the same."""
    texts = ["rope: yarn:4\n", "rope: {rope_type: yarn, factor: 4}\n", "rope: {type: yarn, factor: 4.0}\n"]
    for kind in (STUDY, "kind: needle_sweep\nmodels: [m]\nout: o\n"):
        assert {load_config(write(tmp_path, kind + text)).rope for text in texts} == {"yarn:factor=4.0"}  # type: ignore[attr-defined]


def test_all_mistakes_are_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r':2: "models" must be.*; .*:5: "seed" must be'):
        load_config(write(tmp_path, "kind: study\nmodels: 3\nprompts: p\nout: o\nseed: x\n"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "c.yaml").write_bytes(b"kind: \xff")
    with pytest.raises(InputError, match="is not UTF-8"):
        load_config(tmp_path / "c.yaml")


def test_keys_and_dates_stay_texts(tmp_path: Path) -> None:
    path = write(tmp_path, STUDY.replace("p.jsonl", "2024-01-02") + "preamble: null\nnull: true\n")
    config: Any = load_config(path)
    assert (config.prompts.name, config.preamble, config.null) == ("2024-01-02", None, True)


def test_changes(tmp_path: Path) -> None:
    path = write(tmp_path, "kind: fake\nn: 1\nout: o\n")
    config: Any = load_config(path, ["n=3", "n = 5", "inner.depth=2", "ratio=1", "data="])
    assert (config.n, config.inner.depth, config.ratio, config.data) == (5, 2, 1.0, None)
    for change, message in [
        ("n", '--set is "n"; give key=value'),
        ("=3", "give key=value"),
        ("m=3", '--set m: unknown key "m"'),
        ("n=x", '--set n: "n" must be a whole number'),
        ("n=[", "--set n: not valid YAML"),
        ("n.a=1", "--set n.a: there is no mapping to set a in, but a whole number"),
        ("kind=fkae", '--set kind: unknown kind "fkae"; did you mean "fake"?'),
        ("inner.depth=x", '--set inner.depth: "inner.depth" must be a whole number'),
    ]:
        with pytest.raises(InputError) as caught:
            load_config(path, [change])
        assert message in str(caught.value)


def test_sizes() -> None:
    assert [bytes_of(text) for text in ("2 GB", "1.5kB", "1 KB", " 7 B ", "0")] == [2_000_000_000, 1500, 1000, 7, 0]
    for text in ("2", "2 gb", "1 KiB", "-1 GB", ""):
        with pytest.raises(ValueError, match="must be a size in B, kB, MB, GB or TB"):
            bytes_of(text)


@pytest.mark.parametrize("kind", ["study", "needle_sweep", "niah", "filler_control", "multi_doc", "fake"])
def test_the_explained_example_is_a_config(tmp_path: Path, kind: str) -> None:
    lines = config_lines(kind)
    config = load_config(write(tmp_path, "\n".join(lines)))
    assert all(len(line) <= 100 or not line.startswith("#") for line in lines)
    for name, field in type(config).model_fields.items():
        assert any(line.startswith(f"{name}:") for line in lines)
        if not field.is_required():
            assert getattr(config, name) == field.default


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def test_run_and_resume(tmp_path: Path) -> None:
    path = write(tmp_path, "kind: fake\nn: 3\nout: o\n")
    first = invoke("run", path, "--quiet", "--json")
    assert first.exit_code == 0, first.exception
    assert json.loads(first.stdout) == {"done": 3, "as_json": True, "retry_failed": False}
    assert json.loads(invoke("run", path, "-q", "--retry-failed").stdout) == {
        "done": 0,
        "as_json": False,
        "retry_failed": True,
    }
    other = invoke("run", path, "--set", "ratio=0.25")
    assert other.exit_code == 2
    assert "error: " in other.stderr
    assert "ratio is 0.5 there and 0.25 now" in other.stderr
    assert invoke("run", path, "--set", "flag=true", "--set", f"out={tmp_path / 'b'}").exit_code == 1


def test_an_interrupt_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(config: Any, **options: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(grid_config, "runner_of", lambda config: interrupted)
    result = invoke("run", write(tmp_path, "kind: fake\nn: 3\nout: o\n"))
    assert result.exit_code == 130
    assert "the same command goes on from there" in result.stderr


def test_explain(tmp_path: Path) -> None:
    shown = invoke("run", "--explain", "study")
    assert shown.exit_code == 0
    assert "kind: study" in shown.stdout
    assert "Its paths are relative to the folder that this file is in" in shown.stdout.splitlines()[1]
    assert "(One of williams, cyclic, insertion. May be left out.)\ndesign: williams" in shown.stdout.replace("# ", "")
    assert "(A whole number, or null. May be left out.)\nlimit: null" in shown.stdout.replace("# ", "")
    wrong = invoke("run", "--explain", "studdy")
    assert wrong.exit_code == 2
    assert 'unknown kind "studdy"; did you mean "study"?' in wrong.stderr
    assert "give a CONFIG file" in invoke("run").stderr


def test_merge_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for process in range(2):
        monkeypatch.setenv("RANK", str(process))
        monkeypatch.setenv("WORLD_SIZE", "2")
        run_cells(tmp_path / str(process), {}, grid_jobs.cells(5), grid_jobs.do, quiet=True)
    (tmp_path / "0" / "note.txt").write_text("a")
    (tmp_path / "1" / "note.txt").write_text("b")
    result = invoke("merge", tmp_path / "0", tmp_path / "1", "--out", tmp_path / "all")
    assert result.exit_code == 0
    assert result.stdout == "5 cells: 5 done, 0 failed, 0 missing\n"
    assert "1 file not the same in all folders; the first folder's was taken: note.txt" in result.stderr
    assert (tmp_path / "all" / "note.txt").read_text() == "a"
    half = invoke("merge", tmp_path / "0", "--out", tmp_path / "half", "--json")
    assert half.exit_code == 1
    assert json.loads(half.stdout) == {
        "out": str(tmp_path / "half"),
        "cells": 5,
        "done": 3,
        "failed": 0,
        "missing": 2,
        "differing": [],
    }
    assert invoke("merge", tmp_path / "0", "--out", tmp_path / "half").exit_code == 2


def test_modules_import_without_pydantic_and_yaml_and_help_without_torch() -> None:
    code = (
        "import sys; sys.modules['pydantic'] = sys.modules['yaml'] = None\n"
        "import attnprobe.cli_grid, attnprobe.grid_config, attnprobe.config_text, attnprobe.yaml_file\n"
        "print([m for m in ('torch', 'numpy', 'transformers', 'scipy') if m in sys.modules])\n"
        "import attnprobe.grid"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
