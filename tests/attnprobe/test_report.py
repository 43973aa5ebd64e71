"""Reports: numbers equal those of runs and studies, texts of users stay texts, and broken sources are named."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plotly.offline import get_plotlyjs
from reports import HOSTILE, hostile_run, write_folder, write_study
from runs import make_run
from studies import make_study
from text_runs import long_run, prompt_segments, text_run
from typer.testing import CliRunner

from attnprobe import cli
from attnprobe.errors import InputError, RunFileError
from attnprobe.flatness import VERDICTS
from attnprobe.intervals import end_log_ratios, simultaneous_band
from attnprobe.report import run_series as run_series_module
from attnprobe.report import text_maps
from attnprobe.report.asked import asked_of_run
from attnprobe.report.facts import merged
from attnprobe.report.heatmap import write_heatmap
from attnprobe.report.markdown import markdown_text
from attnprobe.report.page import json_text
from attnprobe.report.report import write_report
from attnprobe.report.run_series import series_of_runs
from attnprobe.report.sections import KIND_NAMES, MOST_VALUES, budget_table, curve_table, page_data, value_text
from attnprobe.report.series import VIEW_NAMES
from attnprobe.report.sources import Loaded, Runs, distinct_names, read_sources
from attnprobe.report.study_layers import summarised
from attnprobe.report.study_series import series_of_study
from attnprobe.report.text_maps import MOST_BYTES
from attnprobe.report.texts import in_markdown, visible
from attnprobe.report.token_map import Limits, token_map
from attnprobe.report.verdicts import STUDY_WORDS, study_verdict
from attnprobe.run import Run
from attnprobe.study import Study
from attnprobe.study_cells import KINDS
from attnprobe.study_findings import PanelRow
from attnprobe.study_text import end_text, interval_text
from attnprobe.told import Table

NORMS = ("share", "log_share", "mass", "density", "advantage")


class Page(HTMLParser):
    """What a browser would make of a page: its elements, the data and the text that is shown."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data: dict[str, Any] = {}
        self.text = ""
        self.scripts = 0
        self._inside: str | None = None
        self._raw = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside, self._raw = tag, ""
            self.scripts += tag == "script"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self._raw += data
        else:
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            attributes = self.tags[-1][1]
            if attributes.get("type") == "application/json":
                self.data[str(attributes["id"])] = json.loads(self._raw)
            self._inside = None


@pytest.fixture(scope="module")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Study]:
    out = tmp_path_factory.mktemp("studies") / "two"
    return out, write_study(out, ("tiny", "other"))


def saved(path: Path, **changes: Any) -> Path:
    make_run(**changes).save(path)
    return path


def test_a_run_has_the_numbers_of_its_own_methods(tmp_path: Path) -> None:
    run = make_run(document_tokens=(4, 6, 3, 5, 2), layers=(1, 3, 4), windows=(None, 9, None), secondary=(6,))
    (series,) = series_of_runs("r", [run], False, [])
    assert list(series.curves) == ["raw", "apart"]
    for norm, view in product(NORMS, ("raw", "apart")):
        choice = {"with_sinks": view == "raw"}  # as measured, a document's sinks are its own, as in a study
        curves = series.curves[view][norm]
        np.testing.assert_allclose(curves.values, run.curve(norm, **choice).values, rtol=1e-12)
        for number, layer in enumerate(run.layers):
            expected = run.curve(norm, layers=layer, **choice)
            np.testing.assert_allclose(curves.layers[number], expected.values, rtol=1e-12)
            for head in range(3):
                expected = run.curve(norm, layers=layer, heads=head, **choice)
                assert curves.heads is not None
                np.testing.assert_allclose(curves.heads[number, head], expected.values, rtol=1e-12)
                if norm == "share" and view == "raw":
                    for name, end in (("head_middle", expected.head_middle), ("tail_middle", expected.tail_middle)):
                        found = series.ratios[name][number, head]
                        np.testing.assert_allclose(found, np.nan if end is None else end, rtol=1e-12)
    share = run.curve(with_sinks=True)
    assert (series.curves["raw"]["share"].head_text, series.middle) == (f"{share.head_middle:.2f}", share.middle)
    difference = run.curve("advantage", with_sinks=True).head_minus_middle
    assert series.curves["raw"]["advantage"].head_text == f"{difference:.2f}"
    assert series.tables["prompts"].rows[0][4] == series.curves["raw"]["share"].head_text
    (sink,) = [i for i, span in enumerate(run.spans) if span.name == "sink:6"]
    mass = run.mass[..., [*run.document_spans, sink]].sum(axis=-1, dtype=np.float64)
    np.testing.assert_allclose(series.ratios["document_mass"], mass, rtol=1e-6)
    assert list(series.tokens) == [4, 6, 3, 5, 2]


def test_runs_without_secondary_sinks_count_in_both_views() -> None:
    runs = [make_run(0, prompt_id="a"), make_run(1, prompt_id="b", secondary=(6,))]
    (series,) = series_of_runs("r", runs, True, [])
    for view, with_sinks in (("raw", True), ("apart", False)):
        expected = np.mean([run.curve(with_sinks=with_sinks).values for run in runs], axis=0)
        np.testing.assert_allclose(series.curves[view]["share"].values, expected, rtol=1e-12)
    assert list(series_of_runs("r", runs[:1], True, [])[0].curves) == ["raw"]


def test_budget_of_a_run_tells_sinks_apart() -> None:
    run = make_run(secondary=(6,), learned_sink=True)
    (series,) = series_of_runs("r", [run], False, [])
    budget = run.budget()
    assert series.budget["sink"] == pytest.approx(budget["sink"], abs=1e-9)
    assert series.budget["secondary_sink"] == pytest.approx(budget["secondary_sink"], abs=1e-9)
    (place,) = [i for i, span in enumerate(run.spans) if span.name == "sink:6"]
    assert series.budget["secondary_sink"] == pytest.approx(
        float(run.mass[..., place].mean(dtype=np.float64)), abs=1e-9
    )
    for kind in ("document", "learned_sink", "question", "answer"):
        assert series.budget[kind] == pytest.approx(budget[kind], abs=1e-9)
    assert sum(series.budget.values()) == pytest.approx(1, abs=1e-6)
    assert set(KIND_NAMES) == set(KINDS)
    shown = {row[0]: row[1] for row in budget_table([series]).rows}
    assert shown["documents"] == f"{100 * budget['document']:.1f} %"


def test_uniform_is_what_a_model_without_preferences_gives() -> None:
    run = make_run(uniform=True, document_tokens=(4, 6, 3, 5), windows=(None, 9), secondary=(6,))
    (series,) = series_of_runs("r", [run], False, [])
    for norm, view in product(NORMS, ("raw", "apart")):
        curves = series.curves[view][norm]
        assert curves.uniform is not None
        np.testing.assert_allclose(curves.values, curves.uniform, atol=1e-6)


def test_the_mean_of_prompts_is_that_of_their_curves(tmp_path: Path) -> None:
    runs = [make_run(seed, prompt_id=f"p{seed}", document_tokens=(4, 6, 3, 5)) for seed in range(3)]
    (series,) = series_of_runs("r", runs, True, [])
    for norm in ("share", "mass", "density", "advantage"):
        expected = np.mean([run.curve(norm).values for run in runs], axis=0)
        np.testing.assert_allclose(series.curves["raw"][norm].values, expected, rtol=1e-12)
        expected = np.mean([run.curve(norm, layers=1, heads=2).values for run in runs], axis=0)
        heads = series.curves["raw"][norm].heads
        assert heads is not None
        np.testing.assert_allclose(heads[1, 2], expected, rtol=1e-12)
    geometric = np.exp(np.mean([np.log(run.curve("log_share").values) for run in runs], axis=0))
    np.testing.assert_allclose(series.curves["raw"]["log_share"].values, geometric, rtol=1e-12)
    assert [id for id, _ in series.members] == ["p0", "p1", "p2"]
    np.testing.assert_array_equal(series.members[1][1]["share"], runs[1].curve().values)


def rotated_run(shift: int, n_documents: int = 4, **changes: Any) -> Run:
    """A run in which the same documents, words and ids with them, stand further up by so many places."""
    texts = {f"d{i}": " ".join(f"word{i}{j}" for j in range(3 + i)) for i in range(n_documents)}
    order = [f"d{(position + shift) % n_documents}" for position in range(n_documents)]
    segments = [("sink", "sink", None, "<|start|>")]
    segments += [("document", name, position, texts[name]) for position, name in enumerate(order)]
    run = text_run([*segments, ("question", "question", None, " How long?")], n_layers=2, seed=shift)
    assert run.token_chars is not None
    text = run.prompt_text + run.answer
    ids = tuple(zlib.crc32(text[a:b].encode()) % 50_000 for a, b in run.token_chars)
    manifest = {"model": {"name": "none"}, "capture": {"answer": "forced"}}
    return replace(
        run, token_ids=ids, answer_ids=ids[run.n_prompt :], prompt_id=f"r{shift}", manifest=manifest, **changes
    )


def with_shares(run: Run, shares: Sequence[float]) -> Run:
    """The run, its documents having so much of half the mass in every layer, head and row."""
    assert run.row_mass is not None
    mass = np.zeros(len(run.spans))
    mass[list(run.document_spans)] = np.asarray(shares) / np.sum(shares) / 2
    mass[0] = 0.5
    row_mass = np.where(run.visible[:, None] > 0, mass, 0).astype(np.float32)
    row_mass = np.broadcast_to(row_mass, run.row_mass.shape)
    means = row_mass.mean(axis=2, dtype=np.float64).astype(np.float32)
    return replace(
        run,
        mass=means,
        row_mass=row_mass,
        top_mass=None,
        top_token=None,
        key_mass=None,
        key_token=None,
        column_mass=None,
    )


@pytest.mark.parametrize(
    ("shares", "words"),
    [((4, 1, 1, 3), "the mean curve is a U;"), ((1, 1, 1.1, 1), "is flat;"), ((1, 1, 1, 2), "is raised at its tail;")],
)
def test_runs_of_every_document_at_every_position_say_what_their_mean_shows(
    shares: tuple[float, ...], words: str
) -> None:
    runs = [with_shares(rotated_run(shift), shares) for shift in range(4)]
    (series,) = series_of_runs("r", runs, True, [])
    assert words in series.verdict.headline
    assert "no verdict" not in series.verdict.headline
    assert series.verdict.lines[0].startswith("Every document stood once at every position")
    assert "at least five questions" in series.verdict.lines[-1]
    (twice,) = series_of_runs("r", [*runs, *runs], True, [])
    assert "stood 2 times at every position" in twice.verdict.lines[0]
    for some in (runs[:3], [*runs, runs[0]], [*runs[:3], make_run(prompt_id="x", manifest=runs[0].manifest)]):
        (other,) = series_of_runs("r", some, True, [])
        assert "no verdict on position is possible" in other.verdict.headline


def test_orders_of_averaging_that_differ_are_both_said() -> None:
    runs = [with_shares(rotated_run(shift), (4, 1, 1, 4)) for shift in range(4)]
    mixed = []
    for run in runs:  # one head with nearly all the mass has a U, the others the contrary
        mass = np.array(run.mass)
        mass[:, 1:, list(run.document_spans)] = np.array([1, 4, 4, 1]) * 1e-4
        mass[:, 1:, 0] = 1 - 1e-3
        mixed.append(replace(run, mass=mass, row_mass=None, row_total=None))
    (series,) = series_of_runs("r", mixed, True, [])
    assert "pooled over heads and layers the mean curve is a U, per head an inverted U" in series.verdict.headline


def test_question_and_answer_stand_at_the_head_of_a_page(tmp_path: Path) -> None:
    runs = [rotated_run(shift) for shift in range(2)]
    assert asked_of_run(runs[0]) == (("Question", "How long?"), ("Answer, forced", "They are kept for 47 days."))
    own = replace(runs[0], manifest={"capture": {"answer": "generated"}}, token_chars=None)
    assert asked_of_run(own) == (("Answer, the model's own", "They are kept for 47 days."),)
    folder = write_folder(tmp_path / "m", [runs[0], replace(runs[1], answer=" Two.", token_chars=None)])
    written = write_report([folder], tmp_path / "r.html")
    (series,) = written.series
    assert series.asked == (
        ("Question", "How long?"),
        ("Answer, forced", "2 different ones, see Prompts and answers"),
    )
    head = Page(written.page).text.split("Verdict")[0]
    assert "How long?" in head
    assert "2 different ones" in head
    assert "- Question: How long?" in written.summary.read_text(encoding="utf-8")


def test_a_study_says_whether_the_answer_suffers(study_folder: tuple[Path, Study]) -> None:
    out, study = study_folder
    gold = study.gold_logprob(model="tiny")
    assert gold is not None
    assert gold.head_minus_middle is not None
    series = series_of_study(read_sources([out / "tiny"], [])[0])  # type: ignore[arg-type]
    (line,) = [line for line in series.verdict.lines if line.startswith("Does the answer suffer?")]
    assert f", {interval_text(gold.head_minus_middle)} nats; with it last:" in line
    estimate = gold.head_minus_middle.estimate
    assert estimate is not None
    assert series.asked[0] == ("Asked", "6 questions, listed under Prompts and answers")

    def said(low: float | None, high: float | None) -> str:
        end = replace(gold.head_minus_middle, low=low, high=high)
        curves = {norm: study.curve(norm, model="tiny") for norm in ("share", "log_share")}
        one = study_verdict(
            Study({"tiny": study.of("tiny")}, study.options),
            curves,
            study.artefact_panel("tiny"),
            replace(gold, head_minus_middle=end),
        )
        return (
            next(line for line in one.lines if line.startswith("Does"))
            .split("middle: ")[1]
            .split("; with")[0]
            .split(",")[0]
        )

    assert [said(0.1, 0.5), said(-0.5, -0.1), said(-0.1, 0.1), said(None, None)] == [
        "higher",
        "lower",
        "no difference shown",
        f"{abs(estimate):.2f} nats {'higher' if estimate > 0 else 'lower'} in 6 questions (an interval takes five)",
    ]


def test_tables_of_prompts_keep_plain_numbers(study_folder: tuple[Path, Study]) -> None:
    run = make_run(document_tokens=(4, 6, 3, 5, 2))
    (series,) = series_of_runs("r", [run], False, [])
    table = page_data([series])["series"][0]["prompts"]
    row = dict(zip(table["header"], table["rows"][0], strict=True))
    assert row["head/middle"] == run.curve(with_sinks=True).head_middle
    assert row["sinks"] == pytest.approx(run.budget()["sink"], abs=1e-9)
    assert row["tokens"] == run.n_prompt
    assert row["log-prob. of answer"] == pytest.approx(float(run.answer_logprob.sum()), rel=1e-6)
    out, study = study_folder
    of_study = series_of_study(read_sources([out / "tiny"], [])[0]).tables["prompts"]  # type: ignore[arg-type]
    ratio = np.exp(end_log_ratios(study.curve(model="tiny").profiles)[0][2])
    assert of_study.values[2][3] == pytest.approx(ratio)
    assert of_study.rows[2][3] == f"{ratio:.2f}"
    assert of_study.rows[2][:2] == ("q2", "which page")
    assert "in orders" not in of_study.header  # one own answer a question says nothing of orders


def test_own_answers_of_several_orders_say_how_often_they_came(tmp_path: Path) -> None:
    study = write_study(tmp_path / "s", n_questions=5, answers=None)
    (source,) = read_sources([tmp_path / "s"], [])
    table = series_of_study(source).tables["prompts"]  # type: ignore[arg-type]
    own = study.of().own_answers["q1"]
    assert len(own) == 4
    most, n = Counter(own).most_common(1)[0]
    assert table.values[1][-2:] == (most, n / 4)


def test_captions_say_what_is_done_with_secondary_sinks() -> None:
    (without,) = series_of_runs("r", [make_run()], False, [])
    (apart,) = series_of_runs("r", [make_run(secondary=(6,))], False, [])
    assert "No secondary sinks were set apart" in curve_table(without).note
    assert "No secondary sinks were set apart" in budget_table([without]).note
    assert "another view leaves them out" in curve_table(apart).note
    assert "Secondary sinks are apart here" in budget_table([without, apart]).note


def test_heatmaps_in_the_folder_of_a_report_are_linked(tmp_path: Path) -> None:
    run = saved(tmp_path / "run.safetensors")
    write_heatmap(text_run(prompt_segments(["One two.", "Three."])), tmp_path / "a b#1.html")
    write_report([run], tmp_path / "other.html")
    (tmp_path / "mine.html").write_text("<title>Attention</title>")
    page = Page(write_report([run], tmp_path / "r.html").page)
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert [link for link in links if not str(link).startswith("#")] == ["./a%20b%231.html"]
    assert "(a b#1.html)" in page.text


def test_a_heatmap_whose_name_is_not_utf_8_is_linked(tmp_path: Path) -> None:
    run = saved(tmp_path / "run.safetensors")
    made = write_heatmap(text_run(prompt_segments(["One two.", "Three."])), tmp_path / "a.html")
    os.rename(os.fsencode(made), os.fsencode(tmp_path) + b"/caf\xe9.html")
    page = Page(write_report([run], tmp_path / "r.html").page)
    assert "./caf%E9.html" in [attributes["href"] for tag, attributes in page.tags if tag == "a"]


@pytest.mark.parametrize("n", [1, 2])
def test_one_document_is_not_said_to_stand_at_every_position(n: int) -> None:
    runs = [make_run(seed, document_tokens=(4,)) for seed in range(n)]
    (series,) = series_of_runs("r", runs, n > 1, [])
    said = " ".join((series.verdict.headline, *series.verdict.lines))
    assert "its share says nothing" in series.verdict.headline
    assert "every position" not in said
    assert "100.0 %" not in said


def test_runs_of_several_models_are_a_curve_each(tmp_path: Path) -> None:
    runs = [make_run(seed, prompt_id="p", manifest={"model": {"name": f"m{seed % 2}"}}) for seed in range(4)]
    scaled = replace(runs[0], manifest={"model": {"name": "m0", "rope": "yarn:4"}})
    all_series = series_of_runs("r", [*runs, scaled], True, [])
    assert [series.name for series in all_series] == ["r, m0", "r, m0, RoPE yarn:4", "r, m1"]
    for series, own in zip(all_series, ([runs[0], runs[2]], [scaled], [runs[1], runs[3]]), strict=True):
        expected = np.mean([run.curve(with_sinks=True).values for run in own], axis=0)
        np.testing.assert_allclose(series.curves["raw"]["share"].values, expected, rtol=1e-12)


def test_a_study_that_is_not_whole_says_so_and_fails_the_command(tmp_path: Path) -> None:
    study = write_study(tmp_path / "s")
    assert len(study.of().questions) == 6
    for cells in (tmp_path / "s" / "tiny" / "cells").glob("cells-*.jsonl"):
        lines = cells.read_text().splitlines(keepends=True)
        cells.write_text("".join(line for line in lines if not re.search(r'"question": ?[45]\b', line)))
    out = tmp_path / "r.html"
    for words in (
        ["report", str(tmp_path / "s"), "-o", str(out)],
        ["figure", "curve", str(tmp_path / "s"), "-o", "c.svg"],
    ):
        words = [str(tmp_path / word) if word == "c.svg" else word for word in words]
        result = CliRunner().invoke(cli.app, words)
        assert result.exit_code == 1, result.output
        assert "4 of 6 questions complete" in result.stderr
        assert "run again, goes on" in result.stderr
    assert "4 of 6 questions" in " ".join(re.findall(">([^<]+)<", (tmp_path / "c.svg").read_text()))
    assert "4 of 6 questions complete" in Page(out).text


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_documents_have_no_middle(tmp_path: Path, n: int) -> None:
    run = saved(tmp_path / "few.safetensors", document_tokens=(4, 6)[:n])
    written = write_report([run], tmp_path / "few.html")
    page = Page(written.page)
    (data,) = page.data["report-data"]["series"]
    assert data["middle"] == []
    assert ("no curve" in page.text) == (n == 0)
    assert ("no middle" in page.text) == (n == 2)
    assert "nan" not in page.text.lower()


def test_runs_without_rows_have_the_norms_of_means(tmp_path: Path) -> None:
    (series,) = series_of_runs("r", [make_run(keep_rows=False)], False, [])
    assert set(series.curves["raw"]) == {"share", "log_share", "mass"}
    assert "means only" in dict(series.facts)["query rows"]


def test_a_study_has_the_numbers_of_its_own_methods(study_folder: tuple[Path, Study]) -> None:
    out, study = study_folder
    source = read_sources([out / "tiny"], [])[0]
    series = series_of_study(source)  # type: ignore[arg-type]
    choices: dict[str, dict[str, Any]] = {view: {"view": view} for view in ("raw", "apart", "trimmed")}
    choices |= {"null": {"variant": "null"}, "preamble": {"variant": "preamble"}, "calibrated": {"calibrated": True}}
    assert set(choices) < set(series.curves)
    assert set(series.curves) <= set(VIEW_NAMES)
    for view, choice in choices.items():
        for norm in NORMS:
            curves, curve = series.curves[view][norm], study.curve(norm, model="tiny", **choice)
            band = curve.scaled()
            np.testing.assert_array_equal(curves.values, band.estimate)
            np.testing.assert_array_equal(curves.low, band.low)
            np.testing.assert_array_equal(curves.high, band.high)
            one = study.curve(norm, layers=1, model="tiny", **choice).scaled()
            np.testing.assert_allclose(curves.layers[1], one.estimate, rtol=1e-9)
    assert series.verdict.lines[0].startswith(
        f"Pooled over heads and layers (share): {study.curve('share', model='tiny').verdict}; head/middle "
        f"{end_text(study.interval(model='tiny'))}"
    )
    without = study.claim_without_artefacts("tiny")
    assert set(without.sentences) <= set(series.verdict.lines)
    panel = series.tables["panel"]
    for cells, row in zip(panel.rows, study.artefact_panel("tiny"), strict=True):
        assert cells[0] == row.name
        assert ", ".join(cells[2].split("\n")) == end_text(row.curves["share"].head_middle)
        assert ", ".join(cells[5].split("\n")) == end_text(row.curves["log_share"].tail_middle)
    parts = study.decompose(model="tiny")
    assert series.tables["decomposition"].rows[0] == ("position", interval_text(parts.position))
    assert series.budget == study.budget("tiny")


@pytest.mark.parametrize("design", ["cyclic", "insertion"])
def test_heads_of_a_study_are_their_own_curves(design: str) -> None:
    study = make_study(n_questions=7, n_layers=3, n_heads=2)
    if design == "insertion":  # of each question one document is followed, which stands elsewhere in every order
        facts = [[{"gold_position": (q + o) % 4} for o in range(4)] for q in range(7)]
        data = replace(study.of(), facts={"asked": facts})
        study = Study({"tiny": data}, replace(study.options, design=design))
    for norm in ("share", "log_share", "mass"):
        profiles = study.head_profiles(norm)
        values, bounds = summarised(profiles, is_log=True)
        for layer in range(3):
            for head in range(2):
                curve = study.curve(norm, layers=layer, heads=head)
                np.testing.assert_allclose(profiles[layer, head], curve.profiles, rtol=1e-9)
                np.testing.assert_allclose(values[layer, head], curve.values, rtol=1e-9)
                np.testing.assert_allclose(bounds[0, layer, head], curve.band.pointwise_low, rtol=1e-9)
                np.testing.assert_allclose(bounds[1, layer, head], curve.band.pointwise_high, rtol=1e-9)


def test_questions_with_undefined_values_are_left_out_of_heads() -> None:
    profiles = np.random.default_rng(0).normal(size=(2, 8, 4))
    profiles[1, 3, 2] = np.nan
    values, bounds = summarised(profiles, is_log=False)
    for number in range(2):
        band = simultaneous_band(profiles[number])
        np.testing.assert_allclose(values[number], band.estimate)
        np.testing.assert_allclose(bounds[:, number], [band.pointwise_low, band.pointwise_high])
    assert np.isnan(summarised(profiles[:, :4], is_log=False)[1]).all()


def test_a_verdict_on_the_raw_curve_says_whether_it_holds_without_artefacts() -> None:
    study = make_study(n_questions=12)  # position 0 gets three times as much
    mass = np.random.default_rng(0).lognormal(0, 0.01, (12, 4, 3, 2, 4)).astype(np.float32)
    flat = make_study(n_questions=12, **{"mass.raw": mass})
    raised, even = ({norm: one.curve(norm) for norm in ("share", "log_share")} for one in (study, flat))
    rows = (
        PanelRow("raw", "as measured", raised),
        PanelRow("sinks apart", "without sinks", even, removes_artefact=True),
        PanelRow("trimmed", "without the heaviest", raised, removes_artefact=True),
        PanelRow("null", "nothing asked", even),
    )
    assert (study.claim(), flat.claim()) == ("head", "flat")
    found = study_verdict(study, raised, rows, None)
    assert "without known artefacts the verdict is not the same" in found.headline
    assert (
        'The verdict is not the same without known artefacts: with sinks apart it is "flat", not "head".' in found.lines
    )
    assert "Head: raised in raw, trimmed; even in sinks apart." in found.lines
    assert "Nothing was there to take out, so it is the raw curve again: trimmed." in found.lines
    assert not [line for line in found.lines if "null" in line]
    robust = study_verdict(study, raised, (rows[0], rows[2]), None)
    assert robust.headline == STUDY_WORDS["head"]


def test_every_verdict_has_words() -> None:
    assert set(STUDY_WORDS) == set(VERDICTS)


def test_studies_of_several_models_are_compared(study_folder: tuple[Path, Study], tmp_path: Path) -> None:
    written = write_report([study_folder[0]], tmp_path / "r.html")
    assert [series.name for series in written.series] == ["other", "tiny"]
    page = Page(written.page)
    assert "Side by side" in page.text
    assert [one["name"] for one in page.data["report-data"]["series"]] == ["other", "tiny"]


def test_every_section_but_the_verdict_is_in_the_navigation(study_folder: tuple[Path, Study], tmp_path: Path) -> None:
    page = Page(write_report([study_folder[0] / "tiny"], tmp_path / "r.html").page)
    sections = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    links = [str(attributes["href"])[1:] for tag, attributes in page.tags if tag == "a"]
    assert {"decomposition", "answer"} <= set(sections)
    assert links == sections[1:]


def test_a_study_does_not_embed_its_runs(study_folder: tuple[Path, Study], tmp_path: Path) -> None:
    assert list((study_folder[0] / "tiny" / "runs").glob("*.safetensors"))
    written = write_report([study_folder[0] / "tiny"], tmp_path / "r.html")
    page = Page(written.page)
    assert page.data["report-texts"] == []
    assert len(json.dumps(page.data)) < 200_000


def test_a_folder_has_a_series_for_each_number_of_documents(tmp_path: Path) -> None:
    runs = [make_run(0, prompt_id="a"), make_run(1, prompt_id="b", document_tokens=(4, 6)), make_run(2, prompt_id="c")]
    written = write_report([write_folder(tmp_path / "m", runs)], tmp_path / "r.html")
    assert [series.name for series in written.series] == ["m, 2 documents", "m, 4 documents"]
    assert written.series[1].verdict.headline.startswith("2 prompts")


def test_a_long_folder_lists_some_prompts_and_counts_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_series_module, "MOST_ROWS", 2)
    runs = [make_run(seed, prompt_id=f"p{seed}") for seed in range(4)]
    (series,) = series_of_runs("r", runs, True, [])
    assert len(series.tables["prompts"].rows) == 2
    assert series.tables["prompts"].note.startswith("2 more prompts")
    expected = np.mean([run.curve().values for run in runs], axis=0)
    np.testing.assert_allclose(series.curves["raw"]["share"].values, expected)


def test_runs_of_another_shape_are_left_out_and_named() -> None:
    faults: list[str] = []
    runs = [make_run(0, prompt_id="a"), make_run(1, prompt_id="b", n_heads=2)]
    (series,) = series_of_runs("m", runs, True, faults)
    assert faults == ["m: the run of prompt 'b' has other layers or heads than the first; left out"]
    np.testing.assert_allclose(series.curves["raw"]["share"].values, runs[0].curve().values)


def test_damaged_runs_of_a_folder_are_listed_and_the_rest_is_kept(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", [make_run(seed, prompt_id=f"p{seed}") for seed in range(3)])
    broken = folder / "runs" / "0001-p1.safetensors"
    broken.write_bytes(b"no run")
    (folder / "runs" / "0002-p2.safetensors").unlink()
    written = write_report([folder], tmp_path / "r.html")
    assert len(written.faults) == 2
    assert str(broken) in written.faults[0]
    page = Page(written.page)
    assert str(broken) in page.text
    assert str(broken) in written.summary.read_text().replace("\\", "")
    assert written.series[0].verdict.headline.startswith("One prompt")
    result = CliRunner().invoke(cli.app, ["report", str(folder), "-o", str(tmp_path / "c.html")])
    assert (result.exit_code, "left out" in result.stderr) == (1, True)


def test_a_folder_that_is_not_finished_is_reported_as_far_as_it_is(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", [make_run()], finished=False)
    written = write_report([folder], tmp_path / "r.html")
    assert "not finished" in written.faults[0]


def test_a_damaged_model_of_a_study_is_listed(study_folder: tuple[Path, Study], tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "study"
    shutil.copytree(study_folder[0], folder)
    (folder / "other" / "study.json").write_text("{")
    written = write_report([folder], tmp_path / "r.html")
    assert [series.name for series in written.series] == ["tiny"]
    assert str(folder / "other" / "study.json") in written.faults[0]
    (folder / "tiny" / "study.json").write_text("{")
    with pytest.raises(RunFileError, match=re.escape(str(folder / "other" / "study.json"))):
        write_report([folder], tmp_path / "r.html")


def test_what_is_no_source_is_refused_by_name(tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "empty").mkdir()
    loose = tmp_path / "loose"
    loose.mkdir()
    saved(loose / "one.safetensors")
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"no run")
    broken = write_folder(tmp_path / "broken", [make_run()])
    (broken / "manifest.json").write_text("[")
    good = saved(tmp_path / "good.safetensors")
    for sources, words in (
        ([tmp_path / "nowhere"], "nowhere does not exist; a report takes run files"),
        ([tmp_path / "notes.txt"], "notes.txt is no run file; a report takes run files"),
        ([tmp_path / "empty"], "empty holds neither manifest.json with runs/ nor a study"),
        ([loose], "one by one"),
        ([damaged], "damaged.safetensors"),
        ([broken], "manifest.json is damaged"),
        ([good, tmp_path / "." / "good.safetensors"], "given twice"),
        ([], "no source"),
    ):
        with pytest.raises(InputError, match=re.escape(words)):
            write_report(sources, out)
        assert not out.exists()


def test_a_folder_without_a_readable_run_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", [make_run()])
    (folder / "runs" / "0000-q1.safetensors").write_bytes(b"")
    with pytest.raises(RunFileError, match="no run of it can be read"):
        write_report([folder], tmp_path / "r.html")


def test_names_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "x" / "run", tmp_path / "b" / "x" / "run", tmp_path / "other"]
    assert distinct_names(paths, ["run", "run", "other"]) == ["a/x/run", "b/x/run", "other"]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        saved(tmp_path / name / "run.safetensors")
    found = read_sources([tmp_path / "a" / "run.safetensors", tmp_path / "b" / "run.safetensors"], [])
    assert [source.name for source in found] == ["a/run", "b/run"]


def test_output_is_named_html_and_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = saved(tmp_path / "run.safetensors")
    for out, words in (
        (tmp_path / "r.pdf", "does not end in .html"),
        (tmp_path / "r.htm", "does not end in .html"),
        (run / "r.html", "cannot be made a folder"),
        (tmp_path / ("n" * 252 + ".html"), "cannot be used: File name too long"),
    ):
        with pytest.raises(InputError, match=words):
            write_report([run], out)
    out = tmp_path / "r.html"
    write_report([run], out)
    assert write_report([run], out).page == out  # over its own
    old = out.read_text()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("attnprobe.run_folder.os.fsync", fail)
    with pytest.raises(InputError, match=r"r\.html cannot be written: No space left"):
        write_report([run], out)
    assert out.read_text() == old
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.md", "run.safetensors"]
    monkeypatch.undo()
    assert write_report([run], tmp_path / "new" / "r.html").page.exists()


def test_a_link_stays_one_and_pipes_are_refused(tmp_path: Path) -> None:
    run = saved(tmp_path / "run.safetensors")
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "r.html", tmp_path / "link.html"
    link.symlink_to(target)
    write_report([run], link)
    write_report([run], link)
    assert link.is_symlink()
    assert target.is_file()
    link.unlink()
    target.write_text("somebody else's")
    link.symlink_to(target)
    with pytest.raises(InputError, match=r"link\.html is there already and no page"):
        write_report([run], link)
    assert target.read_text() == "somebody else's"
    os.mkfifo(tmp_path / "pipe.html")
    with pytest.raises(InputError, match="is a pipe or a device"):
        write_report([run], tmp_path / "pipe.html")


def test_what_a_killed_process_left_goes_with_the_next_page(tmp_path: Path) -> None:
    run = saved(tmp_path / "run.safetensors")
    old, young, theirs = (tmp_path / f".attnprobe-{name}.tmp" for name in ("0" * 16, "1" * 16, "mine"))
    for file in (old, young, theirs):
        file.write_text("half")
    for file in (old, theirs):
        os.utime(file, (0, 0))
    write_report([run], tmp_path / "r.html")
    assert [file.exists() for file in (old, young, theirs)] == [False, True, True]


@pytest.mark.parametrize(("theirs", "what"), [("README.md", "summary"), ("README.html", "page")])
def test_files_of_others_are_not_written_over(tmp_path: Path, theirs: str, what: str) -> None:
    run = saved(tmp_path / "run.safetensors")
    file = tmp_path / theirs
    file.write_text("# Ours\n")
    for source in (run, tmp_path / "nowhere"):  # before anything is read
        with pytest.raises(InputError, match=rf"{theirs} is there already and no {what} of attnprobe; give another"):
            write_report([source], tmp_path / "README.html")
    assert file.read_text() == "# Ours\n"
    file.unlink()
    file.mkdir()
    with pytest.raises(InputError, match=f"{theirs} is a folder"):
        write_report([run], tmp_path / "README.html")


def test_texts_of_users_stay_texts(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "<b>m & 'x'", [hostile_run()])
    written = write_report([folder], tmp_path / "r.html")
    plain = write_report([saved(tmp_path / "plain.safetensors")], tmp_path / "plain.html")
    page, harmless = Page(written.page), Page(plain.page)
    # The same elements as of a page without any such text: none came from a text.
    assert page.scripts == harmless.scripts
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in harmless.tags} | {"li", "ul"}
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert not str(attributes.get("href", "#")).startswith("javascript")
    for text in HOSTILE[:4]:
        assert text in page.text
    assert "\u202e" not in page.text
    assert "\u202e" not in json.dumps(page.data, ensure_ascii=False)
    assert HOSTILE[0] in page.data["report-data"]["series"][0]["documents"]
    markdown = written.summary.read_text(encoding="utf-8")
    assert not re.search(r"(?<!\\)[<`]", re.sub("<!-- .*?-->", "", markdown))
    assert "\u202e" not in markdown


def test_a_policy_forbids_all_but_the_page_s_own_scripts(tmp_path: Path) -> None:
    page = Page(write_report([saved(tmp_path / "run.safetensors")], tmp_path / "r.html").page)
    (policy,) = [a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    assert not re.search(r"script-src[^;]*'unsafe-inline'", policy)


def test_long_texts_are_cut(tmp_path: Path) -> None:
    run = replace(make_run(), answer="a" * 1_000_000)
    run.save(tmp_path / "run.safetensors")
    written = write_report([tmp_path / "run.safetensors"], tmp_path / "r.html")
    text = Page(written.page).text
    assert "1,000,000 characters" in text
    assert "a" * 2001 not in text
    assert written.summary.stat().st_size < 20_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a|b\nc", "a\\|b c"),
        (
            "*x* _y_ [z](u) <b> `c` $m$ ~s~ &amp; #1",
            "\\*x\\* \\_y\\_ \\[z\\](u) \\<b\\> \\`c\\` \\$m\\$ \\~s\\~ \\&amp; \\#<!-- -->1",
        ),
        ("a\u202eb\x00", "a\\[U+202E\\]b\\[U+0000\\]"),
        ("@name a@b.c at @ 5", "@<!-- -->name a@<!-- -->b.c at @ 5"),
        ("https://x.y WWW.x.y", "https:<!-- -->//x.y WWW<!-- -->.x.y"),
    ],
)
def test_markdown_is_escaped(text: str, expected: str) -> None:
    assert in_markdown(text) == expected


def test_surrogates_and_controls_do_not_break_a_page() -> None:
    assert visible("a\ud800b\x1b[31m\u2028") == "a[U+D800]b[U+001B][31m[U+2028]"


@pytest.mark.parametrize("code", [0xAD, 0x180E, 0x200B, 0x2060, 0x206F, 0x3164, 0xFEFF, 0xFFF9, 0xE0001, 0xE007F])
def test_characters_that_are_not_seen_are_shown(code: int) -> None:
    assert visible(f"a{chr(code)}b") == f"a[U+{code:04X}]b"  # as in the text that is shaded


def test_long_ids_are_cut_where_they_are_shown_and_whole_in_downloads(tmp_path: Path) -> None:
    id = "".join(f"part{number} " for number in range(700)) + "end"
    runs = [make_run(seed, prompt_id=f"{seed} {id}", names=(id, "b", "c", "d")) for seed in range(2)]
    page = Page(write_report([write_folder(tmp_path / "m", runs)], tmp_path / "r.html").page)
    assert "end" not in page.text
    assert f"0 {id}" in [attributes.get("title") for tag, attributes in page.tags if tag == "span"]
    (series,) = page.data["report-data"]["series"]
    assert [row[0] for row in series["prompts"]["rows"]] == [f"0 {id}", f"1 {id}"]
    runs[0].save(tmp_path / "one.safetensors")
    page = Page(write_report([tmp_path / "one.safetensors"], tmp_path / "one.html").page)
    assert page.data["report-data"]["series"][0]["documents"][0] == id


def test_the_head_of_a_page_names_model_and_study(study_folder: tuple[Path, Study], tmp_path: Path) -> None:
    page = Page(write_report([study_folder[0] / "tiny"], tmp_path / "r.html").page)
    assert "attnprobe report of tiny" in page.text
    assert "two/tiny" in page.text


def test_questions_stand_in_the_table_that_is_referred_to(tmp_path: Path) -> None:
    runs = [
        replace(text_run(prompt_segments(["One.", "Two."], f"Which is number {n}?"), seed=n), prompt_id=f"p{n}")
        for n in range(2)
    ]
    written = write_report([write_folder(tmp_path / "m", runs)], tmp_path / "r.html")
    page = Page(written.page)
    assert "2 different ones, see Prompts and answers" in page.text
    rows = page.data["report-data"]["series"][0]["prompts"]["rows"]
    assert [row[:2] for row in rows] == [[f"p{n}", f"Which is number {n}?"] for n in range(2)]
    for shown in (page.text, written.summary.read_text()):
        assert "Which is number 1?" in shown


def test_joiners_of_scripts_and_emoji_are_kept() -> None:
    text = "\u0645\u06cc\u200c\u062e \U0001f469\u200d\U0001f469"
    assert visible(text) == text


def test_cells_that_are_cut_say_so() -> None:
    table = Table("t", ("a", "b"), (("x" * 300, "y" * 301),), (False, False))
    text = markdown_text("t", [replace(series_of_runs("r", [make_run()], False, [])[0], tables={"prompts": table})], [])
    assert f"| {'x' * 300} | {'y' * 300}… (301 characters) |" in text


def test_markdown_tables_hold_the_numbers(tmp_path: Path) -> None:
    path = saved(tmp_path / "run.safetensors", document_tokens=(4, 6, 3, 5, 2))
    written = write_report([path], tmp_path / "r.html")
    (series,) = written.series
    lines = written.summary.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    table = curve_table(series)
    for row in table.rows:
        assert list(row) in rows
    values = make_run(document_tokens=(4, 6, 3, 5, 2)).curve().values
    shares = [row[table.header.index("share")] for row in table.rows]
    assert shares == [value_text("share", value) for value in values]
    # Every table has as many cells in each line.
    for above, below in pairwise(lines):
        if above.startswith("|") and below.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", above)) == len(re.findall(r"(?<!\\)\|", below))


def test_the_page_says_the_essentials_without_scripts(tmp_path: Path) -> None:
    written = write_report([saved(tmp_path / "run.safetensors", document_tokens=(4, 6, 3, 5, 2))], tmp_path / "r.html")
    page = Page(written.page)
    (series,) = written.series
    for row in curve_table(series).rows:
        for cell in row:
            assert cell in page.text
    assert all("open" in attributes for tag, attributes in page.tags if tag == "details")
    assert any(tag == "noscript" for tag, _ in page.tags)
    assert all(attributes.get("aria-label") for tag, attributes in page.tags if attributes.get("role") == "img")


def test_heads_that_take_too_much_room_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    (series,) = series_of_runs("r", [make_run()], False, [])
    # 2 layers x 3 heads x 4 documents in five norms
    for most, has_share, has_mass in ((120, True, True), (119, True, False), (24, True, False), (23, False, False)):
        monkeypatch.setattr("attnprobe.report.sections.MOST_VALUES", most)
        curves = page_data([series])["series"][0]["curves"]["raw"]
        assert (curves["share"]["heads"] is not None, curves["mass"]["heads"] is not None) == (has_share, has_mass)
        assert curves["share"]["layers"] is not None


def test_texts_are_shown_of_runs_that_hold_what_it_takes(tmp_path: Path) -> None:
    runs = [replace(text_run(prompt_segments(["One two.", "Three."]), seed=s), prompt_id=f"t{s}") for s in range(4)]
    folder = write_folder(tmp_path / "m", [*runs, make_run(prompt_id="plain", document_tokens=(4, 6))])
    written = write_report([folder], tmp_path / "r.html")
    page = Page(written.page)
    assert len(page.data["report-texts"]) == 3
    assert "1 more run could be shown" in page.text
    without = Page(write_report([saved(tmp_path / "run.safetensors")], tmp_path / "w.html").page)
    assert "No run here holds masses of single tokens" in without.text


def test_a_report_of_100_000_tokens_is_below_15_mb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = long_run()
    assert len(run.token_ids) > 100_000
    # Saved, it would take half a gigabyte: masses that are alike take none in memory.
    monkeypatch.setattr(Runs, "read", lambda self, faults: iter([Loaded(run, tmp_path / "run.safetensors")]))
    written = write_report([saved(tmp_path / "run.safetensors")], tmp_path / "r.html")
    assert written.page.stat().st_size < 15_000_000
    (payload,) = Page(written.page).data["report-texts"]
    assert payload["text"] == run.prompt_text + run.answer
    assert (payload["by_layer"]["kind"], payload["by_head"]["kind"]) == ("sentence", "block")
    # Beside any text, heads may take what they do at most.
    assert len(get_plotlyjs()) + MOST_BYTES + MOST_VALUES * 16 / 3 < 14_700_000


def test_only_texts_that_do_not_fit_are_coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    run = text_run(prompt_segments(["One two. " * 300, "Three. " * 200]))
    fine = len(json_text(token_map(run)))
    monkeypatch.setattr(text_maps, "_COARSE", Limits(tokens=0))
    coarse = len(json_text(token_map(run, limits=Limits(tokens=0))))
    for most, kinds in (
        (2 * fine, ["token", "token"]),
        (fine + coarse, ["token", "sentence"]),
        (fine + coarse - 1, ["token"]),
        (coarse - 1, ["sentence"]),  # the first is there at any size
    ):
        monkeypatch.setattr(text_maps, "MOST_BYTES", most)
        maps = text_maps.TextMaps()
        assert len(list(maps.watched("m", iter([run, run])))) == 2
        assert [payload["by_head"]["kind"] for payload in maps.payloads] == kinds
        assert maps.note().startswith("1 more run" if len(kinds) == 1 else "")


def test_facts_of_several_runs_are_ranges_or_lists() -> None:
    facts = merged(
        (
            ("tokens", tokens),
            ("dtype", "float32"),
            ("time", seconds),
            ("created", f"2026-01-0{day}T10:00"),
            ("model", name),
        )
        for tokens, seconds, day, name in (
            ("1,200", "0.5 s", 3, "a"),
            ("300", "1.25 s", 1, "b"),
            ("40", "0.75 s", 2, "a"),
        )
    )
    assert dict(facts) == {
        "tokens": "40 to 1,200",
        "dtype": "float32",
        "time": "0.5 s to 1.25 s",
        "created": "2026-01-01T10:00 to 2026-01-03T10:00",
        "model": "a; b",
    }


def test_the_command_writes_page_and_summary(tmp_path: Path) -> None:
    run = saved(tmp_path / "run.safetensors")
    result = CliRunner().invoke(cli.app, ["report", str(run), "-o", str(tmp_path / "r.html")])
    assert result.exit_code == 0
    assert "no verdict on position" in result.stdout
    assert (tmp_path / "r.md").read_text().splitlines()[1] == "# Attention: run"
    result = CliRunner().invoke(cli.app, ["report", str(tmp_path / "no"), "-o", str(tmp_path / "x.html")])
    assert result.exit_code == 2
    assert "does not exist" in result.stderr
    result = CliRunner().invoke(cli.app, ["report", str(run), "-o", str(tmp_path / "j.html"), "--json"])
    assert json.loads(result.stdout)["page"] == str(tmp_path / "j.html")
