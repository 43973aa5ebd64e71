"""Measuring into a folder: what is written, resuming, and what is refused."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from runs import make_run
from tiny_folder import prompt_records

import attnprobe as ap
from attnprobe import measure_folder as module
from attnprobe.measure_folder import measure_folder
from attnprobe.run_folder import opened_folder, run_name
from attnprobe.summary import Selection, curve_csv, groups, prompt_result
from attnprobe.summary_text import group_lines, ratio_line, summary_lines, warning_lines


def some_prompts(n: int, **changes: Any) -> list[ap.Prompt]:
    records = [{"id": f"q{i}", **record, **changes} for i, record in enumerate(prompt_records(n))]
    return [ap.Prompt(**record) for record in records]


def masses(folder: Path) -> dict[str, np.ndarray]:
    return {path.name: ap.Run.load(path).mass for path in sorted((folder / "runs").glob("*.safetensors"))}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the prompts that are measured from now on."""
    ids: list[str] = []
    original = module.measure_many

    def watched(lm: Any, prompts: Any, **options: Any) -> Any:
        ids.extend(prompt.id for prompt in prompts)
        return original(lm, prompts, **options)

    monkeypatch.setattr(module, "measure_many", watched)
    return ids


def test_a_folder_holds_what_measure_gives(make_lm: Any, tmp_path: Path) -> None:
    lm, prompts = make_lm(), [*some_prompts(3), ap.Prompt(["One.", "Two."], "Which?", id="pair", answer="One.")]
    result = measure_folder(lm, prompts, tmp_path / "out", max_new_tokens=5, batch_size=2)
    assert [r.id for r in result.results] == ["q0", "q1", "q2", "pair"]
    assert [r.file for r in result.results] == [f"runs/000{i}-{p.id}.safetensors" for i, p in enumerate(prompts)]
    for prompt, one in zip(prompts, result.results, strict=True):
        run = ap.Run.load(tmp_path / "out" / one.file)
        direct = ap.measure(lm, prompt, max_new_tokens=5)
        np.testing.assert_allclose(run.mass, direct.mass, atol=1e-5)
        assert one.curve is not None
        assert one.curve.values.tolist() == run.curve().values.tolist()
        assert one.answer == direct.answer
        assert sum(one.budget.values()) == pytest.approx(1)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [r["id"] for r in manifest["runs"]] == ["q0", "q1", "q2", "pair"]
    assert manifest["settings_sha256"] == result.settings_sha256


def test_the_csv_has_every_curve_and_the_means(make_lm: Any, tmp_path: Path) -> None:
    prompts = [*some_prompts(3), ap.Prompt(["One.", "Two."], "Which?", id="pair, of two")]
    result = measure_folder(make_lm(), prompts, tmp_path, max_new_tokens=4)
    rows = list(csv.DictReader((tmp_path / "curve.csv").open(newline="")))
    assert len(rows) == 3 * 4 + 2 + 4 + 2
    for one in result.results:
        assert one.curve is not None
        mine = [row for row in rows if row["row"] == "prompt" and row["prompt"] == one.id]
        assert [float(row["value"]) for row in mine] == one.curve.values.tolist()
        assert [int(row["tokens"]) for row in mine] == list(one.document_tokens)
    mean = [float(row["value"]) for row in rows if row["row"] == "mean" and row["documents"] == "4"]
    expected = np.mean([r.curve.values for r in result.results[:3] if r.curve], axis=0)
    np.testing.assert_allclose(mean, expected, rtol=1e-12)
    assert {row["prompts"] for row in rows if row["row"] == "mean" and row["documents"] == "4"} == {"3"}


def test_a_second_call_measures_nothing(make_lm: Any, tmp_path: Path, counted: list[str]) -> None:
    lm, prompts = make_lm(), some_prompts(3)
    first = measure_folder(lm, prompts, tmp_path, max_new_tokens=4)
    table = (tmp_path / "curve.csv").read_bytes()
    counted.clear()
    second = measure_folder(lm, prompts, tmp_path, max_new_tokens=4, capture="live", prefill_chunk=16, batch_size=3)
    assert counted == []
    assert (first.n_measured, second.n_measured) == (3, 0)
    assert all(one.is_reused for one in second.results)
    assert (tmp_path / "curve.csv").read_bytes() == table


def test_only_what_is_missing_is_measured(make_lm: Any, tmp_path: Path, counted: list[str]) -> None:
    lm, prompts = make_lm(), some_prompts(4)
    measure_folder(lm, prompts[:2], tmp_path, max_new_tokens=4)
    before = masses(tmp_path)
    counted.clear()
    result = measure_folder(lm, prompts, tmp_path, max_new_tokens=4)
    assert sorted(counted) == ["q2", "q3"]
    assert result.n_measured == 2
    after = masses(tmp_path)
    assert len(after) == 4
    assert all((after[name] == mass).all() for name, mass in before.items())


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_a_damaged_run_is_measured_again_and_said(
    make_lm: Any, tmp_path: Path, counted: list[str], capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    lm, prompts = make_lm(), some_prompts(3)
    measure_folder(lm, prompts, tmp_path, max_new_tokens=4)
    before = masses(tmp_path)
    path = tmp_path / "runs" / "0001-q1.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-6] ^= 0x40  # the exponent of the last number
    path.write_bytes({"truncate": content[:-40], "flip": content, "empty": b""}[damage])
    left_over = tmp_path / "runs" / ".attnprobe-0123456789abcdef.tmp"
    left_over.write_bytes(b"half a run")
    counted.clear()
    measure_folder(lm, prompts, tmp_path, max_new_tokens=4, quiet=False)
    assert counted == ["q1"]
    assert not left_over.exists()
    assert "0001-q1.safetensors" in capsys.readouterr().err
    np.testing.assert_allclose(masses(tmp_path)[path.name], before[path.name], atol=1e-6)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_new_tokens": 5}, "max_new_tokens is 4 there and 5 now"),
        ({"rows": "answer"}, 'rows is "predicting" there and "answer" now'),
        ({"answers": "file"}, 'answers is "generate" there and "file" now'),
        ({"settings": {"layout": "question_first"}}, 'layout is null there and "question_first" now'),
    ],
)
def test_other_settings_are_refused(make_lm: Any, tmp_path: Path, options: dict[str, Any], named: str) -> None:
    lm, prompts = make_lm(), some_prompts(2)
    measure_folder(lm, prompts, tmp_path, max_new_tokens=4)
    before = masses(tmp_path)
    with pytest.raises(ap.InputError, match="other settings") as caught:
        measure_folder(lm, prompts, tmp_path, **({"max_new_tokens": 4} | options))
    assert named in str(caught.value)
    assert "--force" in str(caught.value)
    assert all((masses(tmp_path)[name] == mass).all() for name, mass in before.items())


def test_another_model_is_refused(make_lm: Any, tmp_path: Path) -> None:
    prompts = some_prompts(1)
    measure_folder(make_lm(), prompts, tmp_path, max_new_tokens=3)
    other = make_lm(seed=1)
    with pytest.raises(ap.InputError, match="weights_sample_sha256"):
        measure_folder(other, prompts, tmp_path, max_new_tokens=3)


def test_force_measures_everything_again(make_lm: Any, tmp_path: Path, counted: list[str]) -> None:
    lm, prompts = make_lm(), some_prompts(3)
    measure_folder(lm, prompts, tmp_path, max_new_tokens=4)
    (tmp_path / "runs" / "notes.txt").write_text("mine")
    counted.clear()
    result = measure_folder(lm, prompts[:2], tmp_path, max_new_tokens=5, force=True)
    assert sorted(counted) == ["q0", "q1"]
    assert result.n_measured == 2
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == [
        "0000-q0.safetensors",
        "0001-q1.safetensors",
        "notes.txt",
    ]


@pytest.mark.parametrize("what", ["text", "id of a document", "answer"])
def test_a_changed_prompt_is_not_overwritten(make_lm: Any, tmp_path: Path, what: str) -> None:
    lm, prompts = make_lm(), some_prompts(2)
    measure_folder(lm, prompts, tmp_path, answers="file")
    before = masses(tmp_path)
    documents = list(prompts[1].documents)
    documents[0] = replace(documents[0], **({"text": "New."} if what == "text" else {"source": None, "id": "x"}))
    answer = "Another one." if what == "answer" else prompts[1].answer
    kept = list(prompts[1].documents) if what == "answer" else documents
    changed = ap.Prompt(kept, prompts[1].question, answer=answer, id="q1")
    with pytest.raises(ap.InputError, match=r"0001-q1\.safetensors was measured on another prompt.*--force"):
        measure_folder(lm, [prompts[0], changed], tmp_path, answers="file")
    assert all((masses(tmp_path)[name] == mass).all() for name, mass in before.items())


def test_runs_of_prompts_that_are_gone_are_mentioned(
    make_lm: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm, prompts = make_lm(), some_prompts(3)
    measure_folder(lm, prompts, tmp_path, max_new_tokens=3)
    measure_folder(lm, prompts[:2], tmp_path, max_new_tokens=3, quiet=False)
    assert "also holds 1 run of prompts that are not in this file, e.g. 0002-q2" in capsys.readouterr().err
    assert "q2" not in (tmp_path / "curve.csv").read_text()


def test_forced_answers_come_from_the_prompts(make_lm: Any, tmp_path: Path) -> None:
    lm, prompts = make_lm(), some_prompts(2)
    result = measure_folder(lm, prompts, tmp_path, answers="file")
    for prompt, one in zip(prompts, result.results, strict=True):
        direct = ap.measure(lm, prompt, answer=prompt.answer)
        np.testing.assert_allclose(ap.Run.load(tmp_path / one.file).mass, direct.mass, atol=1e-6)
    without = [*prompts, *(ap.Prompt(["A."], "What?", id=f"n{i}") for i in range(7))]
    with pytest.raises(ap.InputError, match=r'7 of 9 prompts have no answer.*"n0", .*"n4" and 2 more'):
        measure_folder(lm, without, tmp_path, answers="file")


def test_a_folder_in_use_is_refused(make_lm: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with FileLock(tmp_path / "out" / ".lock"), pytest.raises(ap.InputError, match="in use by another attnprobe"):
        measure_folder(make_lm(), some_prompts(1), tmp_path / "out", max_new_tokens=2)


def test_folders_of_others_are_refused(make_lm: Any, tmp_path: Path) -> None:
    lm, prompts = make_lm(), some_prompts(1)
    (tmp_path / "file").write_text("")
    with pytest.raises(ap.InputError, match="is a file"):
        measure_folder(lm, prompts, tmp_path / "file", max_new_tokens=2)
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "curve.csv").write_text("mine")
    with pytest.raises(ap.InputError, match=r"has a curve\.csv but no manifest\.json"):
        measure_folder(lm, prompts, tmp_path / "csv", max_new_tokens=2)
    assert (tmp_path / "csv" / "curve.csv").read_text() == "mine"
    for content in ("{", '{"schema": 1}', "[1]"):
        (tmp_path / "damaged").mkdir(exist_ok=True)
        (tmp_path / "damaged" / "manifest.json").write_text(content)
        with pytest.raises(ap.InputError, match=r"manifest\.json is damaged or not of attnprobe"):
            measure_folder(lm, prompts, tmp_path / "damaged", max_new_tokens=2, force=True)
    newer = {"schema": 99, "settings": {}}
    (tmp_path / "damaged" / "manifest.json").write_text(json.dumps(newer))
    with pytest.raises(ap.InputError, match="newer attnprobe"):
        measure_folder(lm, prompts, tmp_path / "damaged", max_new_tokens=2)


def test_a_refused_prompt_does_not_bind_the_folder(make_lm: Any, tmp_path: Path) -> None:
    lm = make_lm()
    long = ap.Prompt(["long " * 60, "long " * 70], "What?", id="long")
    with pytest.raises(ap.InputError, match="'long' has"):
        measure_folder(lm, [*some_prompts(2), long], tmp_path, max_new_tokens=4)
    assert list((tmp_path / "runs").iterdir()) == []
    assert measure_folder(lm, some_prompts(2), tmp_path, max_new_tokens=5).n_measured == 2


def test_selections_that_no_run_could_serve_are_refused_first(make_lm: Any, tmp_path: Path, counted: list[str]) -> None:
    lm, prompts = make_lm(), some_prompts(1)
    for selection, message in (
        (Selection(layers=[0, 3]), "layer 3 is not in this model; its layers are 0 to 2"),
        (Selection(heads=[4]), "head 4 is not in this model; its heads are 0 to 3"),
        (Selection(heads=[(5, 0)]), "layer 5 is not"),
        (Selection(layers=[0], heads=[(1, 0)]), "leave the layers out"),
        (Selection(norm="advantage"), "needs every row"),
    ):
        with pytest.raises(ap.InputError, match=message):
            measure_folder(lm, prompts, tmp_path, selection=selection, keep_rows=selection.norm != "advantage")
    assert counted == []


def test_the_budget_is_that_of_the_chosen_heads(make_lm: Any, tmp_path: Path) -> None:
    selection = Selection(heads=[(1, 2), (2, 0)])
    result = measure_folder(make_lm(), some_prompts(1), tmp_path, selection=selection, max_new_tokens=4)
    run = ap.Run.load(tmp_path / result.results[0].file)
    sink = next(i for i, span in enumerate(run.spans) if span.kind == "sink")
    expected = (run.mass[1, 2, sink] + run.mass[2, 0, sink]) / 2
    assert result.results[0].budget["sink"] == pytest.approx(float(expected), abs=1e-7)


def test_a_prompt_without_documents_has_a_budget_and_no_curve(make_lm: Any, tmp_path: Path) -> None:
    prompt = ap.Prompt.from_text("The lazy dog sleeps.", id="raw")
    result = measure_folder(make_lm(), [prompt], tmp_path, max_new_tokens=3)
    assert result.results[0].curve is None
    assert sum(result.results[0].budget.values()) == pytest.approx(1)
    text = "\n".join(summary_lines(result.results, result.means))
    assert "1 prompt without documents" in text
    assert (tmp_path / "curve.csv").read_text().count("\n") == 1


def test_runs_are_not_held_in_memory(make_lm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original = module.measure_many
    monkeypatch.setattr(module, "measure_many", lambda lm, p, **o: sizes.append(len(p)) or original(lm, p, **o))
    measure_folder(make_lm(), some_prompts(20), tmp_path, max_new_tokens=2, batch_size=3)
    assert sizes == [15, 5]


@pytest.mark.parametrize(
    ("id", "name"),
    [
        ("q1", "0003-q1"),
        ("a/b c", "0003-a_b_c"),
        ("../x", "0003-.._x"),
        ("é", "0003-_"),
        ("y" * 99, "0003-" + "y" * 60),
    ],
)
def test_run_names_are_safe(id: str, name: str) -> None:
    assert run_name(3, id) == f"{name}.safetensors"


def results_of(*runs: ap.Run, selection: Selection | None = None) -> list[Any]:
    return [prompt_result(run, i, f"q{i}", "f", selection or Selection(), False) for i, run in enumerate(runs)]


def test_undefined_positions_are_left_out_of_means() -> None:
    whole = make_run(0, document_tokens=(4, 6, 3))
    hole = make_run(1, document_tokens=(4, 0, 3))  # an empty document has no value
    results = results_of(whole, hole)
    (group,) = groups(results)
    assert group.curve is not None
    assert group.defined == (2, 1, 2)
    assert group.curve.values[1] == results[0].curve.values[1]
    assert group.curve.values[0] == pytest.approx((results[0].curve.values[0] + results[1].curve.values[0]) / 2)
    assert "prompts" in group_lines(group)[1]
    empty = [row for row in csv.DictReader(curve_csv(results, [group]).splitlines()) if row["value"] == ""]
    assert [(row["prompt"], row["position"]) for row in empty] == [("q1", "1")]


def test_log_shares_are_averaged_as_logarithms() -> None:
    results = results_of(make_run(0), make_run(1), selection=Selection("log_share"))
    (group,) = groups(results)
    assert group.curve is not None
    expected = np.exp(np.mean([np.log(r.curve.values) for r in results], axis=0))
    np.testing.assert_allclose(group.curve.values, expected, rtol=1e-12)


@pytest.mark.parametrize("n_documents", [1, 2])
def test_one_or_two_documents_have_no_ratios(n_documents: int) -> None:
    (group,) = groups(results_of(make_run(document_tokens=(4,) * n_documents)))
    assert group.curve is not None
    assert ratio_line(group.curve) == "head/middle -   tail/middle -   (two documents or fewer have no middle)"
    assert group.to_dict()["curve"]["head_middle"] is None


@pytest.mark.parametrize("norm", ["share", "log_share", "mass", "density", "advantage"])
@pytest.mark.parametrize("n_prompts", [1, 12])
def test_summaries_fit_80_columns(norm: str, n_prompts: int) -> None:
    names = tuple(f"a very long name of a document, number {i}" for i in range(60))
    runs = [
        make_run(i, document_tokens=(3,) * 60, names=names, warnings=(f"document {i} is " + "dull " * 40,))
        for i in range(n_prompts)
    ]
    results = results_of(*runs, selection=Selection(norm))
    lines = summary_lines(results, groups(results))
    assert all(len(line) <= 80 for line in lines)
    assert any("20 positions more" in line for line in lines)
    if n_prompts == 12:
        assert any("2 prompts more" in line or "2 prompt" in line for line in lines)
        assert "12 warnings, the first 3:" in lines


def test_equal_warnings_are_told_once() -> None:
    runs = [make_run(i, warnings=("documents are dull",)) for i in range(4)]
    assert warning_lines(results_of(*runs)) == ["4 warnings:", '- "q0" and 3 more prompts: documents are dull']
    assert warning_lines(results_of(make_run(warnings=()))) == []


@pytest.mark.parametrize("kind", ["dangling link", "below a file"])
def test_a_place_where_no_folder_can_be_made_is_an_input_error(tmp_path: Path, kind: str) -> None:
    if kind == "dangling link":
        (tmp_path / "out").symlink_to(tmp_path / "gone" / "away")
        out = tmp_path / "out"
    else:
        (tmp_path / "file").write_text("")
        out = tmp_path / "file" / "sub"
    with pytest.raises(ap.InputError, match="give another --out"), opened_folder(out, {}, {}, force=False):
        pass
