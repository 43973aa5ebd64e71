"""Tasks from configs and commands: measured, resumed, merged, refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tiny_folder import save_tiny_model
from typer.testing import CliRunner, Result

import attnprobe as ap
from attnprobe import cli
from attnprobe.errors import InputError, RunFileError
from attnprobe.grid import read_cells
from attnprobe.grid_config import load_config
from attnprobe.tasks import task_measuring
from attnprobe.tasks.cell import Form
from attnprobe.tasks.items import read_items
from attnprobe.tasks.niah import niah
from attnprobe.tasks.task_data import TASKS, TaskData
from attnprobe.tasks.task_folder import TaskFolder
from attnprobe.tasks.task_options import TaskOptions

CONFIGS = Path(__file__).parents[2] / "configs"
TINY = {  # what each tiny config has to become for a model with a tokenizer that needs more tokens
    "needle_sweep_tiny": {"positions": [0, 2, 4], "n_documents": 5},
    "niah_matrix_tiny": {"lengths": [700, 900]},
    "filler_control_tiny": {"lengths": [900]},
    "multi_doc_qa_tiny": {},
}
SWEEP = ("--only", "ferry,museum", "--n-documents", "3", "--max-new-tokens", "4")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


def done(result: Result) -> Result:
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def refused(result: Result) -> str:
    assert result.exit_code == 2, (result.output, result.exception)
    return " ".join(result.stderr.split())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "model", max_position_embeddings=4096)


@pytest.fixture(scope="module")
def swept(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one model's needle sweep."""
    out = tmp_path_factory.mktemp("swept")
    done(run("needle", "-m", model, "--out", out, *SWEEP))
    return next(path for path in out.iterdir() if path.is_dir())


@pytest.fixture
def one_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this process one of several."""

    def become(process: int, n_processes: int) -> None:
        monkeypatch.setenv("RANK", str(process))
        monkeypatch.setenv("WORLD_SIZE", str(n_processes))

    return become


def loaded(folder: Path) -> TaskData:
    return TaskFolder.at(folder).load()


def assert_same(data: TaskData, other: TaskData) -> None:
    assert [o.condition for o in data.outcomes] == [o.condition for o in other.outcomes]
    for first, second in zip(data.outcomes, other.outcomes, strict=True):
        assert (first.item, first.trial, first.strict, first.facts["reply"]) == (
            *(second.item, second.trial, second.strict),
            second.facts["reply"],
        )
        assert first.logprob == pytest.approx(second.logprob, abs=1e-4)
    np.testing.assert_allclose(data.needle_mass, other.needle_mass, atol=1e-6)
    np.testing.assert_allclose(data.needle_advantage, other.needle_advantage, atol=1e-4)


@pytest.mark.parametrize("name", TINY)
def test_each_tiny_config_gives_results(name: str, model: Path, tmp_path: Path) -> None:
    changes = {"models": [str(model)], "out": str(tmp_path / "out"), "max_new_tokens": 2, **TINY[name]}
    settings = [part for key, value in changes.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    result = done(run("run", CONFIGS / f"{name}.yaml", *settings, "--json"))
    (printed,) = json.loads(result.stdout).values()
    (folder,) = (tmp_path / "out").iterdir()
    assert printed == json.loads((folder / "summary.json").read_text())
    assert printed["work"]["fed_tokens"] < printed["work"]["prompt_tokens"]
    assert (folder / "table.csv").read_text().count("\n") > 6
    assert list(folder.glob("*.png"))
    assert ", 0 failed" in result.stderr


def test_a_plan_tells_the_tokens_that_are_fed(model: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    for task in (
        "needle_sweep\nn_documents: 3\n",
        "filler_control\nlengths: [500]\nplacements: [after, before]\n",
    ):
        config.write_text(f"kind: {task}models: [{model}]\nout: out/{task[:3]}\nonly: [ferry]\nmax_new_tokens: 2\n")
        planned = json.loads(done(run("plan", config, "--json")).stdout)[0]
        (found,) = json.loads(done(run("run", config, "--json")).stdout).values()
        names = ("cells", "prompt_tokens", "tokens")
        assert [planned[name] for name in names] == [found["work"][name] for name in (*names[:2], "fed_tokens")]
        assert planned["fits"]
        arrays = sum(file.stat().st_size for file in (tmp_path / "out" / task[:3]).rglob("*.safetensors"))
        assert 0.1 * arrays < planned["disk"] < arrays, "without the files' headers"


def test_a_plan_of_a_config_takes_no_other_options(model: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"kind: niah\nmodels: [{model}]\nout: out\nlimit: 1\nlengths: [4090]\ndepths: [0.5]\n")
    assert "--dtype has no effect with a config" in refused(run("plan", config, "--dtype", "float16"))
    result = run("plan", config)
    assert result.exit_code == 1
    assert "! 1 cell too long for the model's window" in result.stdout
    assert "kind study" in refused(run("plan", CONFIGS / "u_curve.yaml"))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_config_loads_and_has_a_comment_for_every_key(path: Path) -> None:
    config = load_config(path)
    if config.kind not in TASKS:
        return
    assert config.options().task == config.kind
    lines = path.read_text().splitlines()
    for key in yaml.safe_load(path.read_text()):
        place = next(number for number, line in enumerate(lines) if line.startswith(f"{key}:"))
        assert "#" in lines[place] or lines[place - 1].startswith("#"), f"{path.name}: {key} has no comment"


def test_what_is_kept_are_the_numbers_of_plain_measurements(model: Path, swept: Path) -> None:
    """Cells go on from one another; measured one by one, nothing shared, they have the same masses."""
    data, lm = loaded(swept), ap.load(model, progress=False)
    options = load_config(CONFIGS / "needle_sweep_tiny.yaml", ["n_documents=3", "positions=null"]).options()
    specs = {spec.key: spec for spec in options.listed(lm.tokenizer).specs}
    assert list(specs) == data.about["cells"]
    for number, (spec, outcome) in enumerate(zip(specs.values(), data.outcomes, strict=True)):
        cell = spec.build(lm.tokenizer)
        plain = ap.measure(lm, cell.prompt, answer=cell.gold)
        documents = plain.mass[..., list(plain.document_spans)]
        np.testing.assert_allclose(data.document_mass[number], documents, atol=1e-6)
        assert outcome.facts["needles"] == list(cell.needles)
        if cell.needles:
            needle = documents[..., list(cell.needles)].sum(axis=-1)
            np.testing.assert_allclose(data.needle_mass[number], needle, atol=1e-6)
            assert outcome.mass == pytest.approx(float(needle.mean()), abs=1e-6)
            if len(cell.prompt.documents) > 1:
                assert outcome.advantage == pytest.approx(float(data.needle_advantage[number].mean()), abs=1e-4)
        else:
            assert np.isnan(data.needle_mass[number]).all()
        assert outcome.logprob == pytest.approx(float(plain.answer_logprob.sum()), abs=1e-4)


def test_a_run_that_was_stopped_goes_on_and_finds_the_same(
    model: Path, swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    real = task_measuring.measured_cell

    def stopped_at(n: int) -> None:
        def measure(lm: Any, spec: Any, *rest: Any) -> Any:
            if len(measured) == n:
                raise KeyboardInterrupt
            measured.append(spec.key)
            return real(lm, spec, *rest)

        monkeypatch.setattr(task_measuring, "measured_cell", measure)

    stopped_at(4)
    result = run("needle", "-m", model, "--out", tmp_path, *SWEEP)
    assert result.exit_code == 130
    assert "every finished cell is kept" in result.stderr
    (folder,) = tmp_path.iterdir()
    partial = loaded(folder)
    assert (len(partial.outcomes), set(partial.missing.values())) == (4, {"not measured yet"})
    stopped_at(-1)
    done(run("needle", "-m", model, "--out", tmp_path, *SWEEP))
    assert len(measured) == len(set(measured)) == 10
    assert_same(loaded(folder), loaded(swept))


def test_a_folder_of_another_task_is_refused_and_left_as_it_is(model: Path, swept: Path, tmp_path: Path) -> None:
    shutil.copytree(swept, tmp_path / swept.name)
    before = (tmp_path / swept.name / "task.json").read_bytes()
    for change, words in (
        (("--seed", "1"), "options.seed is 0 there and 1 now"),
        (("--positions", "0"), "options.positions is null there and"),
        (("--only", "ferry"), "options.only"),
    ):
        said = refused(run("needle", "-m", model, "--out", tmp_path, *SWEEP, *change))
        assert f"{tmp_path} holds results of other settings: {words}" in said
    assert (tmp_path / swept.name / "task.json").read_bytes() == before


def test_changed_needles_are_refused(model: Path, tmp_path: Path) -> None:
    lines = (Path(ap.__file__).parent / "tasks" / "needles.jsonl").read_text().splitlines(keepends=True)
    items = tmp_path / "items.jsonl"
    items.write_text("".join(lines[:2]))
    common = ("needle", "-m", model, "--out", tmp_path / "out", "--items", items, "--n-documents", 2, "--positions", 0)
    done(run(*common, "--max-new-tokens", 0, "--no-baselines"))
    items.write_text("".join(lines[:2]).replace("62 cars", "63 cars"))
    said = refused(run(*common, "--max-new-tokens", 0, "--no-baselines"))
    assert "the needles, or the file that they are from differ" in said


def test_a_cell_that_fails_is_named_and_the_status_is_1(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = task_measuring.measured_cell

    def measure(lm: Any, spec: Any, *rest: Any) -> Any:
        if spec.condition == {"position": 1} and spec.item == "ferry":
            raise InputError("it is raining")
        return real(lm, spec, *rest)

    monkeypatch.setattr(task_measuring, "measured_cell", measure)
    result = run("needle", "-m", model, "--out", tmp_path, *SWEEP)
    assert result.exit_code == 1
    assert "1 cell failed, e.g. needle_sweep/ferry/position=1/0: InputError: it is raining" in result.stderr
    monkeypatch.undo()
    assert run("needle", "-m", model, "--out", tmp_path, *SWEEP).exit_code == 1
    done(run("needle", "-m", model, "--out", tmp_path, *SWEEP, "--retry-failed"))


def test_two_processes_and_a_merge_find_what_one_process_finds(
    model: Path, swept: Path, tmp_path: Path, one_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for process in range(2):
        one_of(process, 2)
        result = done(run("needle", "-m", model, "--out", tmp_path / str(process), *SWEEP))
        assert "other processes are still measuring" in result.stderr
    swept_items = [
        {key.split("/")[1] for key in keys_of(tmp_path / str(process)) if "/position=" in key} for process in range(2)
    ]
    assert sorted(map(sorted, swept_items)) == [["ferry"], ["museum"]], "prompts that begin alike stay together"
    for process in range(2):
        monkeypatch.delenv(("RANK", "WORLD_SIZE")[process])
    done(run("merge", tmp_path / "0", tmp_path / "1", "--out", tmp_path / "all"))
    (folder,) = (path for path in (tmp_path / "all").iterdir() if path.is_dir())
    assert_same(loaded(folder), loaded(swept))
    assert {path.name for path in folder.glob("*.png")} == {path.name for path in swept.glob("*.png")}
    ours, theirs = (json.loads((path / "summary.json").read_text()) for path in (folder, swept))
    assert ours["work"]["prompt_tokens"] == theirs["work"]["prompt_tokens"]
    # Both did one cell more or less: how much of a prompt was fed depends on what was measured before it.
    one_of(0, 1)
    done(run("needle", "-m", model, "--out", tmp_path / "0", *SWEEP))
    done(run("merge", tmp_path / "0", tmp_path / "1", "--out", tmp_path / "again"))


def keys_of(out: Path) -> Iterator[str]:
    (cells,) = out.glob("*/cells")
    yield from read_cells(cells)


def test_damage_is_named(swept: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(swept, folder)
    arrays = sorted((folder / "arrays").iterdir())
    arrays[0].unlink()
    with pytest.raises(RunFileError, match=r"is missing, though its cell is finished; delete its cell's line"):
        loaded(folder)
    shutil.copy(arrays[1], arrays[0])
    about = json.loads((folder / "task.json").read_text())
    for broken, words in (
        ({**about, "cells": about["cells"][1:]}, "it does not name the cells of"),
        ({**about, "task": "dance"}, "task.json is damaged"),
        ({key: value for key, value in about.items() if key != "cells"}, "'cells' is missing"),
    ):
        (folder / "task.json").write_text(json.dumps(broken))
        with pytest.raises(RunFileError, match=words):
            loaded(folder)
    (folder / "task.json").write_text(json.dumps({**about, "schema": 99}))
    with pytest.raises(InputError, match="newer attnprobe"):
        loaded(folder)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("niah", "--lengths", "60"), "too short: the prompt has"),
        (("niah", "--lengths", "8k"), "model's limit is 4,096"),
        (("niah", "--lengths", "900", "--depths", "0,0.5,0.5"), 'depth 0.5 of item "ferry" is listed twice'),
        (("niah", "--lengths", "900", "--depths", "1.5"), "depth 1.5 is not between 0 and 1"),
        (("niah", "--lengths", "900", "--filler", "poem"), "filler 'poem' is unknown"),
        (("niah", "--lengths", "900", "--filler", "file:nowhere.txt"), "nowhere.txt cannot be read"),
        (("filler", "--lengths", "900", "--placements", "beside"), "beside"),
        (("needle", "--only", "zeppelin"), 'has no item "zeppelin"; its items are ferry,'),
        (("needle", "--n-documents", "40"), "other_topics"),
        (("needle", "--positions", "12"), "positions are 0 to 9"),
        (("needle", "--no-shuffle"), "--no-shuffle is of --prompts"),
        (("needle", "--tokenizer", "x"), "--tokenizer has no effect without --endpoint"),
        (("needle", "--endpoint", "http://127.0.0.1:9/v1"), "--endpoint needs --endpoint-model"),
        (("needle", "--endpoint", "http://127.0.0.1:9/v1", "--dtype", "float16"), "--dtype has no effect with"),
        (("needle", "--endpoint", "http://127.0.0.1:9/v1", "--beyond-window"), "--beyond-window has no effect with"),
        (("needle", "--only", ""), "only names no needle"),
        (("niah", "--lengths", "x"), 'error: --lengths is "x"'),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_done_is_said_before_anything_is_measured(
    arguments: tuple[str, ...], words: str, model: Path, tmp_path: Path
) -> None:
    said = refused(run(*arguments, "-m", model, "--out", tmp_path / "out"))
    assert words.replace("other_topics", "--other-topics") in said
    assert not (tmp_path / "out").exists()


def test_files_are_read_once(model: Path, tmp_path: Path) -> None:
    """What a command has read is what its cells are made of and what their hashes are of, for every model of it."""
    lines = (Path(ap.__file__).parent / "tasks" / "needles.jsonl").read_text().splitlines(keepends=True)
    items, walls = tmp_path / "items.jsonl", tmp_path / "walls.txt"
    items.write_text("".join(lines[:2]))
    walls.write_text("The old wall is made of stone and moss.\n\n" * 9)
    choices = {"lengths": [700], "depths": [0.5], "filler": f"repeated:{walls}", "with_baselines": False}
    options = TaskOptions("niah", choices, Form(), source=items)
    lm = ap.load(model, progress=False)
    specs, hashes = options.listed(lm.tokenizer).specs, options.hashes()
    items.write_text(lines[2])
    assert [spec.item for spec in options.listed(lm.tokenizer).specs] == [spec.item for spec in specs]
    walls.write_text("The new wall is made of glass.\n\n" * 9)
    texts = " ".join(document.text for document in specs[0].build(lm.tokenizer).prompt.documents)
    assert "stone" in texts, "cells that were listed keep the text"
    assert "glass" not in texts
    assert options.hashes() == hashes != TaskOptions("niah", choices, Form(), source=items).hashes()
    with pytest.raises(InputError, match=r"walls\.txt\) has changed since the command began"):
        options.listed(lm.tokenizer)


def test_a_filler_of_every_items_domain_is_described_by_all_of_them() -> None:
    choices = {"lengths": [700], "depths": [0.5], "filler": "same_domain"}
    (about,) = TaskOptions("niah", choices, Form(), only=("ferry", "museum")).fillers()
    assert "a ferry company" in about["about"]
    assert "a museum" in about["about"]


def test_depths_that_are_one_place_are_noted(model: Path) -> None:
    tokenizer = ap.load(model, progress=False).tokenizer
    shortest = niah(read_items()[:1], lengths=[600], depths=[0])[0].make(tokenizer).prompt
    n = replace(shortest, documents=shortest.documents[:1]).encode(tokenizer).n_tokens
    choices = {"lengths": [n + 12, 900], "depths": [0, 0.1, 1]}
    (note,) = TaskOptions("niah", choices, Form(), limit=1).listed(tokenizer).notes
    assert note.startswith(f"at a length of {n + 12} the depths 0, 0.1")
    assert TaskOptions("niah", {**choices, "lengths": [900]}, Form(), limit=1).listed(tokenizer).notes == ()


def test_arrays_of_another_cell_are_refused(swept: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(swept, folder)
    first, second = [path for path in sorted((folder / "arrays").iterdir()) if "position" in path.name][:2]
    shutil.copy(first, second)
    with pytest.raises(RunFileError, match=r"is not what its cell's line says: mass .*delete its cell's line"):
        loaded(folder)


def test_a_folder_is_named_by_a_text_too(swept: Path) -> None:
    assert_same(TaskFolder.at(str(swept)).load(), loaded(swept))


def test_a_config_of_an_endpoint_takes_nothing_of_a_loaded_model(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    server = "models: []\nout: out\nendpoint: {base_url: 'http://127.0.0.1:9/v1', model: m}\n"
    config.write_text(f"kind: needle_sweep\n{server}dtype: float16\n")
    assert "dtype has no effect with endpoint" in refused(run("run", config))
    config.write_text(f"kind: needle_sweep\n{server}positions: []\n")
    assert "positions" in refused(run("run", config))


def test_items_are_checked_before_weights_are_loaded(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("attnprobe.models.load", load)
    said = refused(run("needle", "-m", model, "--out", tmp_path / "out", "--n-documents", "40"))
    assert "distractors, and 40 documents need 39" in said


@pytest.mark.parametrize(("command", "kind"), [("needle", "needle_sweep"), ("filler", "filler_control")])
def test_a_kind_is_explained_by_the_name_of_its_command(command: str, kind: str) -> None:
    explained = done(run("run", "--explain", command)).stdout
    assert explained == done(run("run", "--explain", kind)).stdout
    assert f"kind: {kind}" in explained


def test_a_pattern_of_an_item_is_scored(model: Path, tmp_path: Path) -> None:
    line = json.loads((Path(ap.__file__).parent / "tasks" / "needles.jsonl").read_text().splitlines()[0])
    items = tmp_path / "items.jsonl"
    common = ("needle", "-m", model, "--items", items, "--n-documents", 2, "--positions", "0", "--no-baselines")
    found = {}
    for pattern in ("62", "62|(?s).*"):
        items.write_text(json.dumps({**line, "pattern": pattern}))
        out = tmp_path / str(len(found))
        done(run(*common, "--max-new-tokens", 2, "--out", out))
        (folder,) = out.iterdir()
        (outcome,) = loaded(folder).outcomes
        found[pattern] = outcome.facts["pattern"], outcome.strict
        assert ",pattern," in (folder / "table.csv").read_text().splitlines()[0]
    assert found == {"62": (0, 0), "62|(?s).*": (1, 0)}
    for pattern, words in (("(", "is no regular expression"), ("sixty", 'pattern "sixty" does not find its answer')):
        items.write_text(json.dumps({**line, "pattern": pattern}))
        assert words in refused(run(*common, "--out", tmp_path / "none"))


def test_no_model_and_no_endpoint(tmp_path: Path) -> None:
    assert "give models to measure, or an endpoint" in refused(run("needle", "--out", tmp_path))
    config = tmp_path / "config.yaml"
    config.write_text("kind: needle_sweep\nmodels: []\nout: out\n")
    assert "give models to measure, or an endpoint" in refused(run("run", config))


def test_a_filler_file_is_known_by_its_name_wherever_it_lies(model: Path, tmp_path: Path) -> None:
    text = "".join(f"The {word} wall is made of stone and moss.\n\n" for word in ("old", "grey", "long", "low")) * 3
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "walls.txt").write_text(text)
    config = tmp_path / "config.yaml"
    config.write_text(
        f"kind: niah\nmodels: [{model}]\nout: out\nlimit: 1\nlengths: [700]\ndepths: [0.5]\n"
        "filler: repeated:texts/walls.txt\nmax_new_tokens: 0\n"
    )
    done(run("run", config))
    (folder,) = (tmp_path / "out").iterdir()
    about = loaded(folder).about
    assert about["fillers"][0]["kind"] == "repeated:walls.txt"
    assert str(tmp_path / "texts" / "walls.txt") in about["fillers"][0]["about"]
    (tmp_path / "texts" / "walls.txt").write_text(text.replace("moss", "clay"))
    assert "the texts of the filler differ" in refused(run("run", config))
