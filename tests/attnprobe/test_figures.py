"""Figures: the values that are drawn, labels and units, odd inputs, and files that come out the same each time."""

from __future__ import annotations

import functools
import math
import re
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rope_folders import write_rope
from runs import make_run
from studies import make_study
from task_data import make_task

from attnprobe.errors import InputError
from attnprobe.report.compare_figure import compare_figure
from attnprobe.report.curve_figures import curve_figure, rotations_figure
from attnprobe.report.figure_kinds import ABOUT
from attnprobe.report.figure_text import is_drawable, label, one_line, text_width, token_label, wrapped
from attnprobe.report.figures import KINDS, draw
from attnprobe.report.map_figures import answer_figure, answer_tokens, head_figure, layer_figure
from attnprobe.report.needle_figure import Needle, needle_figure
from attnprobe.report.prompt_figure import prompt_figure
from attnprobe.report.sink_figure import sink_figure
from attnprobe.report.spectrum_figure import spectrum_figure
from attnprobe.report.style import SMALL, WIDTHS, new_figure, save_figure
from attnprobe.rope_findings import RopeFindings
from attnprobe.rope_folder import read_rope
from attnprobe.row_means import prompt_edges
from attnprobe.run import Run
from attnprobe.tasks.task_summary import TaskSummary, task_summary

LONG = tuple(f"a long name of a document about retention, number {i}" for i in range(4))
ODD_NAMES = ("סיכום שנתי", "年度报告", "$a_b$ & <i>", "a\u202eb\nc\x00")


@pytest.fixture(autouse=True)
def no_warnings() -> Any:
    """A missing glyph, a layout that does not fit and a division by zero are warnings: none may pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*deprecated")  # what older versions of matplotlib call
        yield


def with_prompt(run: Run) -> Run:
    """The run with masses of the prompt's own rows: those of spans that a block can see, by their tokens."""
    edges = prompt_edges(run.n_prompt)
    tokens = np.zeros((len(edges) - 1, len(run.spans)))
    for i, span in enumerate(run.spans):
        for start, stop in span.segments:
            for block, last in enumerate(edges[1:]):
                tokens[block, i] += max(min(stop, last) - start, 0)
    mass = (tokens / tokens.sum(-1, keepdims=True)).astype(np.float32)
    wide = np.broadcast_to(mass, (*run.mass.shape[:2], *mass.shape)).copy()
    return replace(run, prompt_mass=wide, prompt_edges=edges)


@cache
def summary_of(task: str) -> TaskSummary:
    return task_summary(make_task(task, items=6, trials=2))


@cache
def scalings() -> RopeFindings:
    with tempfile.TemporaryDirectory() as folder:
        return read_rope(write_rope(Path(folder)))


def sources() -> dict[str, Any]:
    """Something to draw for every kind."""
    run = with_prompt(make_run(extras=True, secondary=(8,)))
    needle = Needle([100, 200], [0, 0.5, 1], np.array([[1, 2, 3], [4, math.nan, 6.0]]), "recall", "%")
    return {
        **dict.fromkeys(KINDS, run),
        "compare": {"one": run, "two": make_run(1), "study": make_study()},
        "needle": needle,
        **dict.fromkeys(("answers", "published", "link", "scatter"), summary_of("needle_sweep")),
        "depths": summary_of("niah"),
        **dict.fromkeys(("fillers", "parts"), summary_of("filler_control")),
        **dict.fromkeys(("scalings", "scaling-needles", "scaling-losses"), scalings()),
    }


def texts_of(figure: Any) -> list[Any]:
    """Every text of a figure that is seen."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    beyond = set()  # matplotlib keeps ticks beyond the limits, which it does not draw
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        ticks = [tick for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high]
        beyond |= {label for tick in ticks for label in (tick.label1, tick.label2)}
    texts = figure.findobj(Text)
    return [text for text in texts if text.get_visible() and text.get_text().strip() and text not in beyond]


def said(figure: Any) -> str:
    return " ".join(" ".join(text.get_text().split()) for text in texts_of(figure))


def drawn(axes: Any) -> np.ndarray:
    """What a map shows, NaN where it shows nothing."""
    array = axes.images[0].get_array()
    return np.ma.filled(array.astype(float), np.nan)


# What is drawn


@pytest.mark.parametrize("norm", ["share", "log_share", "mass", "density", "advantage"])
def test_a_runs_curve_is_drawn_with_its_unit(norm: str) -> None:
    run = make_run()
    (axes,) = curve_figure(run, norm=norm).axes
    scale = 1 if norm in ("density", "advantage") else 100
    curve, uniform = axes.lines
    np.testing.assert_allclose(curve.get_ydata(), scale * run.curve(norm).values, rtol=1e-12)
    even = make_run(uniform=True)  # the same tokens, all logits 0
    np.testing.assert_allclose(uniform.get_ydata(), scale * even.curve(norm).values, rtol=1e-6, atol=1e-7)
    assert re.search(r"\(%\)|\(nats\)|1 = uniform", axes.get_ylabel())
    assert "position" in axes.get_xlabel()


def test_one_prompt_says_so_and_gives_its_ratios() -> None:
    run = make_run()
    figure = curve_figure(run)
    assert "One prompt, so no interval" in said(figure)
    assert f"head/middle {run.curve().head_middle:.2f}" in said(figure)
    assert "uniform: every token alike" in said(figure)
    assert "mean of 2 layers × 3 heads" in said(figure)
    assert "layer 1, 3 heads" in said(curve_figure(run, layers=1))


def test_several_runs_have_their_mean_and_every_value() -> None:
    runs = [make_run(seed) for seed in range(5)]
    (axes,) = curve_figure(iter(runs)).axes
    values = 100 * np.stack([run.curve().values for run in runs])
    dots, mean, uniform = axes.lines
    np.testing.assert_allclose(dots.get_ydata().reshape(5, 4), values, rtol=1e-12)
    np.testing.assert_allclose(dots.get_xdata().reshape(5, 4), np.tile(np.arange(4), (5, 1)))
    np.testing.assert_allclose(mean.get_ydata(), values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(uniform.get_ydata(), 100 * np.array([4, 6, 3, 5]) / 18, rtol=1e-12)


def test_uniform_is_what_even_attention_gives_the_layers_that_are_drawn() -> None:
    choice: dict[str, Any] = {"windows": (None, 9), "secondary": (6,)}
    run, even = make_run(**choice), make_run(uniform=True, **choice)
    for norm in ("share", "log_share", "mass"):
        for layers in (None, 0, 1):
            (axes,) = curve_figure(run, norm=norm, layers=layers).axes
            np.testing.assert_allclose(axes.lines[1].get_ydata(), 100 * even.curve(norm, layers).values, rtol=1e-6)


def test_the_mean_of_log_shares_is_geometric() -> None:
    runs = [make_run(seed) for seed in range(3)]
    (axes,) = curve_figure(runs, norm="log_share").axes
    product = np.prod([run.curve("log_share").values for run in runs], axis=0)
    np.testing.assert_allclose(axes.lines[1].get_ydata(), 100 * product ** (1 / 3), rtol=1e-9)


def test_a_study_has_both_orders_of_averaging_and_bands() -> None:
    study = make_study()
    figure = curve_figure(study)
    (axes,) = figure.axes
    for norm, line, band in zip(("share", "log_share"), axes.lines, axes.collections, strict=False):
        curve = study.curve(norm).scaled()
        np.testing.assert_allclose(line.get_ydata(), 100 * curve.estimate, rtol=1e-12)
        drawn_band = band.get_paths()[0].vertices[:, 1]
        assert curve.low is not None
        assert curve.high is not None
        for bound in (curve.low, curve.high):
            assert all(np.isclose(drawn_band, 100 * value).any() for value in bound)
    np.testing.assert_allclose(axes.lines[2].get_ydata(), 100 * study.uniform(), rtol=1e-12)
    assert study.claim() in said(figure)
    assert "95 %" in said(figure)


def test_a_study_s_curve_says_where_its_verdict_does_not_hold() -> None:
    steady = np.array([6, 1, 1, 5]) / 26 * np.ones((8, 4, 3, 2, 1))
    noise = np.random.default_rng(0).lognormal(0, 0.02, steady.shape)
    raw, even = (steady * noise).astype(np.float32), (noise / 8).astype(np.float32)
    kept = curve_figure(make_study(n_questions=8, **{"mass.raw": raw}))
    lost = curve_figure(make_study(n_questions=8, **{"mass.raw": raw, "mass.trimmed": even}))
    for figure, holds in ((kept, True), (lost, False)):
        assert "raw curve: U" in said(figure)
        assert ("The verdict is not the same without known artefacts" in said(figure)) != holds
    assert 'with trimmed it is "flat", not "U"' in said(lost)
    assert "of all attention) count to their documents" in said(lost)
    assert "if any" not in said(lost)


def test_a_study_of_few_questions_has_no_bands_and_says_why() -> None:
    figure = curve_figure(make_study(n_questions=3))
    assert not figure.axes[0].collections
    assert "No bands: 3 questions" in said(figure)
    check_legible(figure)
    for width in WIDTHS:
        check_legible(curve_figure(make_study(n_documents=2), width=width))


def test_rotations_mark_the_document_with_the_answer() -> None:
    curves = [make_run(seed).curve() for seed in range(4)]
    figure = rotations_figure(curves, [2, 0, 1, 3], "A title", "A note")
    marked = figure.axes[0].lines[-1]
    np.testing.assert_array_equal(marked.get_xdata(), [2, 0, 1, 3])
    wanted = [100 * curve.values[place] for curve, place in zip(curves, (2, 0, 1, 3), strict=True)]
    np.testing.assert_allclose(marked.get_ydata(), wanted)
    assert "A title" in said(figure)
    assert "A note" in said(figure)


def test_comparison_has_direct_labels_on_the_same_axes() -> None:
    run, study = make_run(), make_study()
    figure = compare_figure({"ours": run, "theirs": study})
    (axes,) = figure.axes
    curves, even = ([line for line in axes.lines if line.get_linestyle() == style] for style in ("-", "--"))
    np.testing.assert_allclose(curves[0].get_ydata(), 100 * run.curve().values)
    np.testing.assert_allclose(curves[1].get_ydata(), 100 * study.curve().scaled().estimate)
    np.testing.assert_allclose(even[0].get_ydata(), 100 * np.array([4, 6, 3, 5]) / 18)
    np.testing.assert_allclose(even[1].get_ydata(), 100 * study.uniform())
    assert [line.get_color() for line in even] == [line.get_color() for line in curves]
    assert {"ours", "theirs"} <= {text.get_text() for text in axes.texts}
    assert len({line.get_color() for line in curves}) == 2
    (axes,) = compare_figure({"one": run, "two": make_run(1)}).axes
    assert len(axes.lines) == 3
    np.testing.assert_allclose(axes.lines[2].get_ydata(), 100 * np.array([4, 6, 3, 5]) / 18)


def test_comparison_of_unequal_numbers_of_documents_is_relative() -> None:
    few, many = make_run(document_tokens=(4, 5, 6)), make_run(document_tokens=(3,) * 9)
    (axes,) = compare_figure({"few": few, "many": many}).axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), few.curve().values * 15 / np.array([4, 5, 6]))
    np.testing.assert_allclose(axes.lines[1].get_xdata(), np.linspace(0, 1, 9))
    assert set(axes.lines[2].get_ydata()) == {1}
    assert "relative" in axes.get_xlabel()


def test_layer_map_equals_the_curves_of_single_layers() -> None:
    run = make_run(layers=(3, 7, 11))
    axes, bar = layer_figure(run).axes
    wanted = np.stack([run.curve(layers=layer).values for layer in run.layers], axis=1)
    np.testing.assert_allclose(drawn(axes), 100 * wanted, rtol=1e-12)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["3", "7", "11"]
    assert "%" in bar.get_ylabel()


def test_layer_map_of_several_runs_and_of_a_study_is_their_mean() -> None:
    runs = [make_run(seed) for seed in range(3)]
    wanted = np.mean([[run.curve(layers=layer).values for layer in run.layers] for run in runs], axis=0).T
    np.testing.assert_allclose(drawn(layer_figure(runs).axes[0]), 100 * wanted, rtol=1e-12)
    study = make_study()
    mass = study.of().array("asked", "mass.raw").mean(axis=3)
    shares = (mass / mass.sum(-1, keepdims=True)).mean(axis=(0, 1))
    np.testing.assert_allclose(drawn(layer_figure(study).axes[0]), 100 * shares.T, rtol=1e-12)


def test_head_map_of_one_layer_equals_the_curves_of_its_heads() -> None:
    run = make_run(layers=(3, 7))
    axes = head_figure(run, layers=7).axes[0]
    wanted = np.stack([run.curve(heads=[(7, head)]).values for head in range(3)], axis=1)
    np.testing.assert_allclose(drawn(axes), 100 * wanted, rtol=1e-6)
    assert axes.get_xlabel() == "head"


@pytest.mark.parametrize("width", list(WIDTHS))
def test_head_map_of_all_layers_has_a_panel_for_each_document(width: Any) -> None:
    run = make_run(n_heads=5, layers=(2, 3, 9))
    figure = head_figure(run, width=width)
    *panels, bar = figure.axes
    shown = np.stack([drawn(axes) for axes in panels])  # [document, layer, head]
    wanted = [[run.curve(heads=[(layer, head)]).values for head in range(5)] for layer in run.layers]
    np.testing.assert_allclose(shown, 100 * np.moveaxis(np.array(wanted), 2, 0), rtol=1e-6)
    assert len({axes.images[0].get_clim() for axes in panels}) == 1  # one scale for all
    titles = [axes.get_title() for axes in panels]
    assert titles == [f"{i}: d{i}" for i in range(4)]
    assert [text.get_text() for text in panels[0].get_yticklabels()] == ["2", "3", "9"]
    first = sum(int(values.argmax() == 0) for layer in wanted for values in layer)
    assert f"Most at the first document: {first} of 15 heads" in said(figure)
    assert "White line on the scale: uniform, 25 %" in said(figure)
    np.testing.assert_allclose(bar.lines[-1].get_ydata(), [25, 25])
    check_legible(figure)


def test_many_documents_share_panels() -> None:
    run = make_run(document_tokens=(2,) * 45)
    figure = head_figure(run)
    *panels, _ = figure.axes
    shown = [axes for axes in panels if axes.get_visible()]
    assert [axes.get_title() for axes in shown][::14] == ["0–2", "42–44"]
    wanted = sum(run.curve(heads=[(1, 2)]).values[42:45])
    np.testing.assert_allclose(drawn(shown[14])[1, 2], 100 * wanted, rtol=1e-6)
    assert "the sum over 3 documents" in said(figure)
    assert f"uniform, {100 * 3 / 45:.3g} %" in said(figure)


def test_a_chosen_few_layers_are_drawn_alone() -> None:
    run = make_run(layers=(2, 4, 6))
    axes = head_figure(run, layers=[6, 2]).axes
    assert [text.get_text() for text in axes[0].get_yticklabels()] == ["2", "6"]
    wanted = [[run.curve(heads=[(layer, head)]).values[3] for head in range(3)] for layer in (2, 6)]
    np.testing.assert_allclose(drawn(axes[3]), 100 * np.array(wanted), rtol=1e-6)


def test_answer_map_shows_tokens_below_each_other() -> None:
    run = make_run(extras=True, n_answer=4)
    axes = answer_figure(run, layers=1).axes[0]
    assert run.row_mass is not None
    mass = run.row_mass[1].mean(axis=0)[:, list(run.document_spans)]
    np.testing.assert_allclose(drawn(axes), 100 * mass, rtol=1e-6)
    assert run.token_chars is not None
    text = run.prompt_text + run.answer
    pieces = [text[a:b].strip() for a, b in run.token_chars[run.n_prompt :]]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == pieces
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [f"{i}: d{i}" for i in range(4)]


@pytest.mark.parametrize(("n_answer", "step"), [(64, 2), (40, 1), (200, 5)])
def test_answer_map_names_as_many_tokens_as_fit(n_answer: int, step: int) -> None:
    words = [f"w{number} " for number in range(n_answer)]
    run = make_run(extras=True, n_answer=n_answer, answer="".join(words))
    assert run.token_chars is not None
    chars, begin = run.token_chars.copy(), len(run.prompt_text)
    ends = begin + np.cumsum([len(word) for word in words])
    chars[run.n_prompt :] = np.stack([[begin, *ends[:-1]], ends], axis=1)
    figure = answer_figure(replace(run, token_chars=chars))
    axes = figure.axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [word.strip() for word in words[::step]]
    assert axes.get_yticks().tolist() == list(range(0, n_answer, step))
    assert ("Not every token is named" in said(figure)) is (step > 1)
    check_legible(figure)


def test_answer_map_numbers_tokens_that_it_does_not_know() -> None:
    axes = answer_figure(make_run(extras=True, n_answer=3, token_chars=None)).axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0", "1", "2"]
    assert "0 = first" in axes.get_ylabel()


def test_pieces_of_one_character_are_named_once() -> None:
    run = make_run(extras=True, n_answer=4)
    assert run.token_chars is not None
    chars, begin = run.token_chars.copy(), len(run.prompt_text)
    chars[run.n_prompt :] = np.array([[0, 2], [1, 2], [2, 3], [3, 3]]) + begin  # the first has the space as well
    assert answer_tokens(replace(run, answer=" Ça", token_chars=chars)) == ["Ç", "…", "a", "(no text)"]


def test_notes_say_what_is_done_with_secondary_sinks() -> None:
    counted, apart = make_run(), make_run(secondary=(8,))
    for draw_one in (curve_figure, layer_figure, head_figure):
        assert "Secondary sinks, if any, count to their documents." in said(draw_one(counted))
        assert "Secondary sinks are left out." in said(draw_one(apart))
        both = said(draw_one([counted, apart, counted]))
        assert "Secondary sinks are left out in 1 of 3 prompts, where they were set apart." in both
        study = make_study()
        mass = f"{100 * study.budget()['secondary_sink']:.1f} %"
        assert f"Secondary sinks ({mass} of all attention) count to their documents." in said(draw_one(study))
    assert "Secondary sinks are left out." in said(answer_figure(apart))


def test_a_comparison_names_what_is_compared() -> None:
    one, two = make_run(prompt_id="one prompt's name"), make_run(1, n_answer=5, secondary=(8,))
    text = said(compare_figure({"plain": one, "same": one, "YaRN": [two, two], "study": make_study()}, layers=1))
    assert (
        "plain, same: model; one prompt (one prompt's name), 40 prompt tokens, 3 answer rows; layer 1, 3 heads." in text
    )
    assert (
        "YaRN: model; 2 prompts, 40 prompt tokens, 5 answer rows; layer 1, 3 heads. Secondary sinks are left out."
        in text
    )
    assert "study: " in text
    assert "6 questions" in text
    text = said(compare_figure({"a": one, "b": make_run(2, prompt_id="b")}))
    assert text.count("Secondary sinks, if any, count to their documents.") == 1


def test_prompt_map_sums_markers_and_leaves_out_what_is_not_written_yet() -> None:
    run = with_prompt(make_run(extras=True, secondary=(8,)))
    axes = prompt_figure(run, width="page").axes[0]
    shown = drawn(axes)
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert run.prompt_mass is not None
    assert run.prompt_edges is not None
    mean = 100 * run.prompt_mass.mean(axis=(0, 1))
    for name, kind in (("markers", "marker"), ("question", "question"), ("template", "template")):
        wanted = mean[:, [i for i, span in enumerate(run.spans) if span.kind == kind]].sum(axis=1)
        begin = min(a for span in run.spans if span.kind == kind for a, _ in span.segments)
        hidden = np.array(run.prompt_edges[1:]) <= begin
        np.testing.assert_allclose(shown[names.index(name)], np.where(hidden, np.nan, wanted), rtol=1e-6)
    assert np.isnan(shown).any()
    np.testing.assert_allclose(np.nansum(shown, axis=0), 100, rtol=1e-5)
    last = shown[names.index("2: d2")][-1]
    np.testing.assert_allclose(last, mean[-1, run.document_spans[2]], rtol=1e-6)


def test_distance_spectrum_shows_mean_and_chosen_layers() -> None:
    run = make_run(extras=True, layers=(2, 4, 6))
    assert run.distance_mass is not None
    assert run.distance_edges is not None
    figure = spectrum_figure(run, layers=[6])
    (axes,) = figure.axes
    steps = {step.get_label(): step.get_data() for step in axes.patches}
    np.testing.assert_allclose(steps["mean"].values, 100 * run.distance_mass.mean(axis=(0, 1)), rtol=1e-6)
    np.testing.assert_allclose(steps["layer 6"].values, 100 * run.distance_mass[2].mean(axis=0), rtol=1e-6)
    # On a log scale with base 2, with a place for distance 0 before it.
    np.testing.assert_allclose(steps["mean"].edges[1:], np.log2(run.distance_edges[1:]))
    ticks = dict(zip(axes.get_xticks(), (t.get_text() for t in axes.get_xticklabels()), strict=True))
    assert ticks[-1] == "0"
    assert ticks[2] == "4"
    assert "tokens" in axes.get_xlabel()
    assert "%" in axes.get_ylabel()


def test_distance_spectrum_of_a_study() -> None:
    study = make_study()
    (axes,) = spectrum_figure(study).axes
    steps = {step.get_label(): step.get_data().values for step in axes.patches}
    np.testing.assert_allclose(steps["mean"], 100 * study.distance()[0], rtol=1e-9)
    np.testing.assert_allclose(steps["layer 2"], 100 * study.distance(layers=2)[0], rtol=1e-9)


def test_sinks_are_stacked_by_layer() -> None:
    run = make_run(learned_sink=True, secondary=(8, 12))
    (axes,) = sink_figure(run).axes
    first, learned, secondary = axes.containers
    mass = 100 * run.mass.mean(axis=1)
    names = [span.name for span in run.spans]
    np.testing.assert_allclose([bar.get_height() for bar in first], mass[:, names.index("sink")], rtol=1e-6)
    np.testing.assert_allclose([bar.get_height() for bar in learned], mass[:, names.index("learned_sink")], rtol=1e-6)
    both = mass[:, names.index("sink:8")] + mass[:, names.index("sink:12")]
    np.testing.assert_allclose([bar.get_height() for bar in secondary], both, rtol=1e-6)
    tops = [bar.get_y() for bar in secondary]
    np.testing.assert_allclose(tops, mass[:, [names.index("sink"), names.index("learned_sink")]].sum(axis=1), rtol=1e-6)
    assert "%" in axes.get_ylabel()


def test_sinks_of_a_study_and_of_a_run_without_secondary_ones() -> None:
    study = make_study()
    (axes,) = sink_figure(study).axes
    budget = study.of().array("asked", "budget").mean(axis=(0, 1))
    np.testing.assert_allclose([bar.get_height() for bar in axes.containers[0]], 100 * budget[:, 0], rtol=1e-6)
    np.testing.assert_allclose([bar.get_height() for bar in axes.containers[2]], 100 * budget[:, -1], rtol=1e-6)
    assert "No secondary sinks were set apart" in said(sink_figure(make_run()))


def test_needle_map_writes_numbers_and_hatches_gaps() -> None:
    values = np.array([[1, 2, 3], [4, math.nan, math.inf]])
    figure = needle_figure(Needle([1000, 2000], [0, 0.5, 1], values, "recall", "%"))
    axes, bar = figure.axes
    shown = drawn(axes)  # [depth, length]
    np.testing.assert_allclose(shown[:, 0], [1, 2, 3])
    assert np.isnan(shown[1, 1])
    assert sorted(text.get_text() for text in axes.texts) == ["1", "2", "3", "4", "∞"]
    assert [patch.get_hatch() is not None for patch in axes.patches] == [True]
    assert bar.get_ylabel() == "recall (%)"
    assert axes.images[0].get_clim() == (0, 4)
    assert "Hatched" in said(figure)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1,000", "2,000"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0", "50", "100"]


def test_numbers_that_do_not_fit_are_left_out() -> None:
    wide = Needle(range(1, 61), [0, 1], np.full((60, 2), 0.123), "recall")
    assert not needle_figure(wide).axes[0].texts


# Odd inputs


@functools.cache
def odd_runs() -> dict[str, Run]:
    many = tuple([2] * 300)
    seen = make_run(windows=(3, 3), document_tokens=(4, 6, 3, 5))  # no row sees the first documents
    dead = make_run()
    mass = np.zeros_like(dead.row_mass)
    mass[..., 0] = 1
    return {
        "1 document": make_run(document_tokens=(5,)),
        "2 documents": make_run(document_tokens=(5, 4)),
        "300 documents": make_run(document_tokens=many, extras=True),
        "1 layer": make_run(layers=(4,), extras=True),
        "100 layers": make_run(layers=tuple(range(100)), n_heads=1),
        "long names": make_run(names=LONG),
        "odd names": make_run(names=ODD_NAMES),
        "unseen documents": seen,
        "no mass for documents": replace(dead, row_mass=mass, mass=mass.mean(2), row_total=dead.row_total),
        "1 answer token": make_run(n_answer=1, extras=True),
        "500 answer tokens": make_run(n_answer=500, extras=True),
        "an odd prompt id": make_run(prompt_id="年度 $x_1$ \n" + "long " * 60),
    }


ON_RUNS = (curve_figure, layer_figure, head_figure, answer_figure, sink_figure)


WIDE = ("300 documents", "100 layers", "long names", "500 answer tokens")


@pytest.mark.parametrize(
    ("name", "width"), [(name, "column") for name in odd_runs()] + [(name, "page") for name in WIDE]
)
def test_odd_runs_are_drawn_and_legible(name: str, width: Any) -> None:
    run = odd_runs()[name]
    for draw_one in ON_RUNS:
        check_legible(draw_one(run, width=width))
    check_legible(prompt_figure(with_prompt(run), width=width))
    check_legible(compare_figure({"a": run, ODD_NAMES[0]: run}, width=width))
    if run.distance_mass is not None:
        check_legible(spectrum_figure(run, width=width))


def check_legible(figure: Any) -> None:
    """All text is inside the figure, large enough, of characters that fonts have, and the axes have room."""
    wide, high = figure.canvas.get_width_height()
    for text in texts_of(figure):
        assert text.get_fontsize() >= SMALL
        assert is_drawable(text.get_text().replace("\n", " ")), text.get_text()
        box = text.get_window_extent()
        inside = box.x0 > -1 and box.y0 > -1 and box.x1 < wide + 1 and box.y1 < high + 1
        assert inside, (text.get_text(), box)
    for axes in figure.axes:
        assert axes.get_window_extent().height > 0.3 * figure.dpi
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts_of(figure)]
    for i, (text, box) in enumerate(boxes):
        assert not any(box.overlaps(other) for _, other in boxes[i + 1 :]), text


def test_undefined_documents_are_said_and_hatched() -> None:
    run = odd_runs()["unseen documents"]
    assert "Not drawn" in said(curve_figure(run))
    figure = layer_figure(run)
    assert "Hatched: undefined" in said(figure)
    assert figure.axes[0].patches[0].get_hatch()


def test_a_middle_without_mass_gives_an_infinite_ratio() -> None:
    run = make_run(document_tokens=(4, 5, 6))
    assert run.row_mass is not None
    mass = run.row_mass.copy()
    mass[..., 0] += mass[..., run.document_spans[1]]
    mass[..., run.document_spans[1]] = 0
    changed = replace(run, row_mass=mass, mass=mass.mean(axis=2, dtype=np.float64).astype(np.float32))
    assert "head/middle ∞" in said(curve_figure(changed))
    figure = curve_figure(changed, norm="advantage")
    assert "1 position of 3" in said(figure)


def test_names_that_cannot_be_drawn_become_positions() -> None:
    axes = layer_figure(make_run(names=ODD_NAMES), width="page").axes[0]
    labels = [text.get_text() for text in axes.get_yticklabels()]
    wanted = [name if name is not None else None for name in (label(name, 2, SMALL) for name in ODD_NAMES)]
    assert labels == [f"{i}" if name is None else f"{i}: {name}" for i, name in enumerate(wanted)]
    assert labels[2] == "2: $a_b$ & <i>"  # no mathematics
    assert labels[3] == "3: ab c"


def test_text_is_cut_wrapped_and_cleaned() -> None:
    cut = label("a long name of a document", 0.8, SMALL)
    assert cut is not None
    assert cut.endswith("…")
    assert text_width(cut, SMALL) <= 0.8
    assert label("\ue000", 1, SMALL) is None  # no font has a glyph for private use
    assert one_line("a\n b\u202e\x00c") == "a bc"
    lines = wrapped("some words and averyverylongwordthatdoesnotfitatall", 1.0, SMALL)
    assert all(text_width(line, SMALL) <= 1.0 for line in lines)
    assert [token_label(text) for text in (" days", "  ", "\n\t", "")] == ["days", "␣␣", "⏎⇥", "(no text)"]
    assert [token_label(text) for text in ("\ue000", "\x1b[", "a\u202e")] == ["\\ue000", "\\x1b[", "a\\u202e"]


# Files


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_every_kind_is_written_in_every_format_the_same_each_time(kind: str, suffix: str, tmp_path: Path) -> None:
    one, two = tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"
    draw(kind, sources()[kind], one)
    draw(kind, sources()[kind], two)
    content = one.read_bytes()
    assert content == two.read_bytes()
    assert content.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])
    assert not re.search(rb"20\d\d-\d\d-\d\d|CreationDate", content)
    if suffix == ".svg":
        assert b"<text" in content  # text stays text
    if suffix == ".pdf":
        assert b"/Type3" not in content


@pytest.mark.parametrize("width", list(WIDTHS))
def test_figures_are_as_wide_as_they_say(width: Any) -> None:
    for kind, source in sources().items():
        assert KINDS[kind].draw(source, width=width).get_figwidth() == WIDTHS[width]


def test_every_kind_is_described_and_takes_a_study_or_refuses_it() -> None:
    assert list(ABOUT) == list(KINDS)
    for kind, one in KINDS.items():
        figure: Callable[..., Any] = one.draw
        if one.takes == "measured":
            assert figure(make_study()).axes
        else:
            with pytest.raises(InputError, match="not from a Study"):
                draw(kind, make_study(), "x.png")


def test_settings_of_the_user_change_nothing_and_stay(tmp_path: Path) -> None:
    import matplotlib

    draw("curve", make_run(), tmp_path / "one.svg")
    with matplotlib.rc_context({"font.size": 20, "lines.linewidth": 9, "text.usetex": True, "svg.fonttype": "path"}):
        draw("curve", make_run(), tmp_path / "two.svg")
        assert matplotlib.rcParams["font.size"] == 20
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.parametrize(
    ("kind", "source", "path", "options", "message"),
    [
        ("curve", make_run(), "x.jpg", {}, r'x\.jpg ends in "\.jpg"; a picture is written as \.png, \.svg, \.pdf'),
        ("curve", make_run(), "x", {}, "has no suffix"),
        ("curves", make_run(), "x.png", {}, "no figure of kind"),
        ("curve", make_run(), "x.png", {"width": "wide"}, "'column' or 'page'"),
        ("curve", make_run(), "x.png", {"layers": 9}, "layer 9 is not in this run"),
        ("sinks", make_run(), "x.png", {"layers": 1}, "no choice of layers"),
        ("curve", make_study(), "x.png", {"norm": "mass"}, "no effect"),
        ("curve", [], "x.png", {}, "no run to draw"),
        ("curve", [make_run(), make_run(document_tokens=(3, 4))], "x.png", {}, "has 2 documents, but run 0"),
        ("layers", [make_run(), make_run(layers=(5,))], "x.png", {}, "other layers"),
        ("curve", make_run(document_tokens=()), "x.png", {}, "no document spans"),
        ("answer", make_run(keep_rows=False), "x.png", {}, "keep_rows=True"),
        ("answer", make_run(document_tokens=()), "x.png", {}, "no document spans"),
        ("distance", make_run(), "x.png", {}, r'extras=\("distance",\)'),
        ("prompt", make_run(), "x.png", {}, r'extras=\("prompt",\)'),
        ("distance", make_run(layers=tuple(range(9)), extras=True), "x.png", {"layers": range(8)}, "at most 6"),
        ("compare", {"one": make_run()}, "x.png", {}, "give 2 to 7"),
        ("compare", make_run(), "x.png", {}, "in a dict, not from a Run"),
        ("needle", make_run(), "x.png", {}, "Needle"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(
    kind: str, source: Any, path: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        draw(kind, source, tmp_path / path, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (([1], [0, 1], [[1.0]]), "shape"),
        (([], [0], []), "shape"),
        (([1], [50], [[1.0]]), "0 .start. to 1 .end."),
        (([1], [0], [["x"]]), "no matrix"),
    ],
)
def test_a_needle_whose_parts_do_not_fit_is_refused(parts: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Needle(*parts, "recall")


def test_a_figure_of_ones_own_can_be_saved(tmp_path: Path) -> None:
    figure = new_figure("column", 2.0)
    figure.add_subplot().plot([1, 2])
    save_figure(figure, tmp_path / "own.PDF")
    assert (tmp_path / "own.PDF").read_bytes().startswith(b"%PDF")
