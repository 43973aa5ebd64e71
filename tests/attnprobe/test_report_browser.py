"""Reports in a real browser: what is drawn is what is in the data, and nothing is asked of a network."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Watched
from reports import hostile_run, write_folder, write_study
from runs import make_run
from text_runs import prompt_segments, text_run

from attnprobe.report.heatmap import write_heatmap
from attnprobe.report.report import write_report
from attnprobe.run import Run

pytestmark = pytest.mark.browser


@pytest.fixture
def opened(_browser: Any) -> Iterator[Any]:
    """Open a page in a context of its own; that nothing failed in it is checked at the end."""
    contexts = []
    pages = []

    def open_page(path: Path, has_plots: bool = True, **options: Any) -> Any:
        contexts.append(_browser.new_context(**options))
        watched = Watched(contexts[-1].new_page())
        pages.append(watched)
        page = watched.open(path)
        if has_plots and options.get("java_script_enabled", True):
            page.wait_for_selector("#curve-plot .main-svg", state="attached")
        return page

    yield open_page
    for watched in pages:
        watched.assert_quiet()
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def run() -> Run:
    return make_run(document_tokens=(4, 6, 3, 5, 2), layers=(1, 3, 4))


@pytest.fixture(scope="module")
def report(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    run.save(folder / "run.safetensors")
    return write_report([folder / "run.safetensors"], folder / "r.html").page


@pytest.fixture(scope="module")
def study_report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("study")
    study = write_study(folder / "s")
    return write_report([folder / "s"], folder / "r.html").page, study


def traces(page: Any, plot: str = "curve-plot", meta: str = "curve") -> list[dict[str, Any]]:
    """What plotly has drawn."""
    found: list[dict[str, Any]] = page.evaluate(
        """([plot, meta]) => document.getElementById(plot).data.filter((t) => t.meta === meta)
            .map((t) => ({ name: t.name, x: Array.from(t.x), y: Array.from(t.y), colour: (t.line || {}).color }))""",
        [plot, meta],
    )
    return found


def test_choices_draw_the_values_of_the_run(opened: Any, report: Path, run: Run) -> None:
    page = opened(report)
    for norm in ("share", "log_share", "mass", "density", "advantage"):
        page.select_option("#curve-norm", norm)
        page.select_option("#curve-layer", "all")
        np.testing.assert_allclose(traces(page)[0]["y"], run.curve(norm).values, rtol=1e-12)
        for layer in (1, 4):
            page.select_option("#curve-layer", str(layer))
            np.testing.assert_allclose(traces(page)[0]["y"], run.curve(norm, layers=layer).values, rtol=1e-5)
            for head in (0, 2):
                page.select_option("#curve-head", str(head))
                expected = run.curve(norm, layers=layer, heads=head).values
                np.testing.assert_allclose(traces(page)[0]["y"], expected, rtol=1e-5)
            page.select_option("#curve-head", "all")
    assert page.locator("#curve-caption").inner_text().startswith("layer 4, mean over its heads")


def test_a_study_draws_its_bands_in_every_view(opened: Any, study_report: tuple[Path, Any]) -> None:
    path, study = study_report
    page = opened(path)
    for view in ("raw", "trimmed", "apart", "question"):
        page.select_option("#curve-view", view)
        band = study.curve("share", view=view).scaled()
        for meta, expected in (("curve", band.estimate), ("low", band.low), ("high", band.high)):
            np.testing.assert_allclose(traces(page, meta=meta)[0]["y"], expected, rtol=1e-12)
    np.testing.assert_allclose(traces(page, meta="uniform")[0]["y"], study.uniform(), rtol=1e-12)
    variants: dict[str, dict[str, Any]] = {"null": {"variant": "null"}, "preamble": {"variant": "preamble"}}
    for view, choice in (variants | {"calibrated": {"calibrated": True}}).items():
        page.select_option("#curve-view", view)
        band = study.curve("share", **choice).scaled()
        for meta, expected in (("curve", band.estimate), ("low", band.low), ("high", band.high)):
            np.testing.assert_allclose(traces(page, meta=meta)[0]["y"], expected, rtol=1e-12)
    assert traces(page, meta="uniform")[0]["y"] == [1, 1, 1, 1]  # calibrated: a ratio, and no percentage
    assert page.evaluate("document.getElementById('curve-plot').layout.yaxis.tickformat") is None
    page.select_option("#curve-view", "raw")
    assert "secondary sinks count to the documents" in page.locator("#curve-caption").inner_text()
    assert len(traces(page, meta="member")) == 6
    page.select_option("#curve-layer", "1")
    np.testing.assert_allclose(traces(page)[0]["y"], study.curve(layers=1).scaled().estimate, rtol=1e-5)


def test_a_cell_of_the_map_shows_its_head(opened: Any, report: Path, run: Run) -> None:
    page = opened(report)

    def shown() -> tuple[int, int]:
        return int(page.input_value("#explorer-layer")), int(page.input_value("#explorer-head"))

    def check() -> None:
        layer, head = shown()
        mean, own = traces(page, "explorer-curve")
        np.testing.assert_allclose(mean["y"], run.curve().values, rtol=1e-12)
        expected = run.curve(layers=layer, heads=head)
        np.testing.assert_allclose(own["y"], expected.values, rtol=1e-5)
        assert f"head/middle of the share {expected.head_middle:.2f}" in page.locator("#explorer-status").inner_text()

    # At first the head that gives documents most, not the one with the largest ratio.
    cells = [(number, head) for number in run.layers for head in range(3)]
    mass = run.document_mass().sum(axis=-1).reshape(-1)
    ratios = [run.curve(layers=layer, heads=head).head_middle or 0.0 for layer, head in cells]
    assert shown() == cells[int(mass.argmax())] != cells[int(np.argmax(ratios))]
    check()
    cells = page.locator("#explorer-map .nsewdrag")
    area = cells.bounding_box()
    cells.click(position={"x": area["width"] * 0.5, "y": area["height"] * 5 / 6})
    assert shown() == (1, 1)  # the middle of three heads, the lowest of three layers
    check()
    page.focus("#explorer-focus")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    assert shown() == (3, 2)
    check()
    page.keyboard.press("ArrowRight")
    assert shown() == (3, 2)
    page.select_option("#explorer-layer", "4")
    assert shown() == (4, 2)
    check()
    page.select_option("#explorer-quantity", "document_mass")
    z = page.evaluate("document.getElementById('explorer-map').data[0].z")
    expected = run.document_mass().sum(axis=-1, dtype=np.float64)
    np.testing.assert_allclose(np.array(z), expected, rtol=1e-5)


def test_downloads_hold_the_data(opened: Any, report: Path, run: Run) -> None:
    page = opened(report)

    def rows(name: str) -> list[dict[str, str]]:
        with page.expect_download() as waiting:
            page.click(f"[data-download={name}]")
        assert waiting.value.suggested_filename == f"attnprobe-{name}.csv"
        return list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text(encoding="utf-8"))))

    curves = rows("curves")
    assert len(curves) == 5 * 5 * (1 + 3 + 9)
    for norm in ("share", "advantage"):
        for layer, head in (("all", "all"), ("3", "all"), ("4", "2")):
            found = [row for row in curves if (row["norm"], row["layer"], row["head"]) == (norm, layer, head)]
            choice = {k: int(v) for k, v in (("layers", layer), ("heads", head)) if v != "all"}
            expected = run.curve(norm, **choice)
            np.testing.assert_allclose([float(row["value"]) for row in found], expected.values, rtol=1e-5)
            assert [row["document"] for row in found] == list(run.documents)
            assert [float(row["tokens"]) for row in found] == [4, 6, 3, 5, 2]
    budget = {row["kind"]: float(row["mass"]) for row in rows("budget")}
    assert budget["document"] == pytest.approx(run.budget()["document"], abs=1e-9)
    assert sum(budget.values()) == pytest.approx(1, abs=1e-6)
    (prompt,) = rows("prompts")
    assert (prompt["prompt"], prompt["answer"]) == ("q1", "47 days")
    assert float(prompt["head/middle"]) == run.curve().head_middle
    assert float(prompt["sinks"]) == pytest.approx(run.budget()["sink"], abs=1e-9)


def test_hostile_texts_run_nothing(opened: Any, tmp_path: Path) -> None:
    text = replace(
        text_run(
            prompt_segments(["<script>window.hacked = 1</script>", "</script><img src=x onerror=window.hacked=1>"])
        ),
        prompt_id="<img src=x onerror='window.hacked=1'>",
    )
    sources = [
        write_folder(tmp_path / "<img src=x onerror='window.hacked=1'>", [hostile_run()]),
        write_folder(tmp_path / "text", [text]),
    ]
    written = write_report(sources, tmp_path / "r.html")
    page = opened(written.page)
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img").count() == 0
    name = next(trace["name"] for trace in traces(page))
    assert "&lt;img src=x" in name  # plotly shows this as it was written
    assert page.locator("#curve-plot svg a").count() == 0
    with page.expect_download() as waiting:
        page.click("[data-download=prompts]")
    rows = list(csv.reader(io.StringIO(Path(waiting.value.path()).read_text(encoding="utf-8"))))
    assert len(rows) == 3
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "@"))]


def test_the_text_of_a_run_is_shown(opened: Any, tmp_path: Path) -> None:
    runs = [
        replace(text_run(prompt_segments([f"Readings number {seed}.", "Others."]), seed=seed), prompt_id=f"t{seed}")
        for seed in range(2)
    ]
    page = opened(write_report([write_folder(tmp_path / "m", runs)], tmp_path / "r.html").page)
    place = page.locator("#text-map")
    for seed in (0, 1, 0):
        page.select_option("#text-choice", str(seed))
        place.scroll_into_view_if_needed()
        place.get_by_text(f"number {seed}.").first.wait_for()  # drawn when it comes into sight
        assert f"number {1 - seed}." not in place.inner_text()


def test_sources_with_other_numbers_of_documents_share_axes(opened: Any, tmp_path: Path) -> None:
    runs = [
        make_run(0),
        make_run(1, document_tokens=(4, 6, 3, 5, 2, 2), layers=(0, 1, 2)),
        make_run(2, document_tokens=(7,)),
    ]
    paths = [tmp_path / f"r{number}.safetensors" for number in range(3)]
    for one, path in zip(runs, paths, strict=True):
        one.save(path)
    page = opened(write_report(paths, tmp_path / "r.html").page)
    found = traces(page)
    assert [trace["name"] for trace in found] == ["r0", "r1", "r2"]
    for one, trace in zip(runs, found, strict=True):
        np.testing.assert_allclose(trace["y"], one.curve().values)
        assert trace["x"] == list(range(len(one.documents)))
    page.select_option("#curve-axis", "relative")
    assert [trace["x"][-1] for trace in traces(page)] == [1, 1, 0]
    page.select_option("#curve-layer", "2")
    assert [trace["name"] for trace in traces(page)] == ["r1"]
    assert "not there in this choice: r0, r2" in page.locator("#curve-caption").inner_text()
    page.select_option("#explorer-source", "1")
    np.testing.assert_allclose(traces(page, "explorer-curve")[0]["y"], runs[1].curve().values)


def test_plots_follow_the_colour_scheme(opened: Any, report: Path) -> None:
    page = opened(report, color_scheme="light")
    ink = "document.getElementById('curve-plot').layout.font.color"
    light, line = page.evaluate(ink), traces(page)[0]["colour"]
    page.emulate_media(color_scheme="dark")
    # The event comes before the next frame; waiting for an expression is what the page's policy forbids.
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    dark = page.evaluate(ink)
    assert dark != light
    assert _contrast(light, "#ffffff") > 4.5
    assert _contrast(dark, "#15171a") > 4.5
    for colour, paper in ((line, "#ffffff"), (traces(page)[0]["colour"], "#15171a")):
        assert _contrast(colour, paper) > 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(opened: Any, study_report: tuple[Path, Any], scheme: str) -> None:
    page = opened(study_report[0], color_scheme=scheme)
    pairs = page.evaluate(
        """() => [...document.querySelectorAll("main *, header *")]
            .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) && !e.closest("svg"))
            .filter((e) => e.offsetParent && !e.disabled && !e.closest("select:disabled, noscript"))
            .map((e) => {
              let up = e;
              while (up && getComputedStyle(up).backgroundColor === "rgba(0, 0, 0, 0)") up = up.parentElement;
              return [getComputedStyle(e).color, getComputedStyle(up || document.body).backgroundColor, e.outerHTML];
            })"""
    )
    assert len(pairs) > 50
    for ink, paper, where in pairs:
        assert _contrast(ink, paper) >= 4.5, where[:200]


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_does_not_scroll_sideways(
    opened: Any, report: Path, study_report: tuple[Path, Any], width: int
) -> None:
    for path in (report, study_report[0]):
        page = opened(path, viewport={"width": width, "height": 800})
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        drawn = page.locator("#curve-plot .main-svg").first.bounding_box()
        assert 0.85 * width * (0.8 if width > 1000 else 1) < drawn["width"] <= width


LONG = "x" * 200


@pytest.fixture(scope="module")
def long_report(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Reports of names, ids, questions and answers of 200 characters without a space; one and two sources."""
    folder = tmp_path_factory.mktemp("long")
    run = text_run(prompt_segments(["One.", "Two.", "Three."], question=LONG), f" {LONG}")
    spans = tuple(replace(span, name=LONG + span.name) if span.kind == "document" else span for span in run.spans)
    manifest = {"model": {"name": LONG}, "capture": {"answer": "forced"}}
    runs = [replace(run, spans=spans, prompt_id=f"{number}{LONG}", manifest=manifest) for number in range(2)]
    sources = [write_folder(folder / f"{number}{LONG}", runs[: number + 1]) for number in range(2)]
    write_heatmap(runs[0], folder / f"{LONG}.html")
    pages = [write_report(sources[:n], folder / f"{n}.html").page for n in (1, 2)]
    return [*pages, folder / f"{LONG}.html"]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_long_names_stay_inside_the_page(opened: Any, long_report: list[Path], width: int, number: int) -> None:
    page = opened(long_report[number], has_plots=number < 2, viewport={"width": width, "height": 800})
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = page.evaluate(
        """(width) => [...document.querySelectorAll("main *, header *, .tm *")]
            .filter((e) => !e.closest("svg, .scrolls, .unseen, .js-plotly-plot"))
            .filter((e) => e.getBoundingClientRect().right > width + 1)
            .map((e) => e.outerHTML.slice(0, 100))""",
        width,
    )
    assert wide == []


def test_only_what_there_is_can_be_chosen(opened: Any, study_report: tuple[Path, Any]) -> None:
    page = opened(study_report[0])

    def open_options(name: str) -> list[str]:
        return page.evaluate(  # type: ignore[no-any-return]
            "(id) => [...document.getElementById(id).options].filter(o => !o.disabled).map(o => o.value)", name
        )

    page.select_option("#curve-layer", "1")
    page.select_option("#curve-view", "first")  # of which there is the mean over all layers alone
    assert page.locator("#curve-layer").input_value() == "all"
    assert open_options("curve-layer") == ["all"]
    assert "advantage" not in open_options("curve-norm")
    assert traces(page)
    page.select_option("#curve-view", "raw")
    page.select_option("#curve-norm", "advantage")
    page.select_option("#curve-view", "first")
    assert page.locator("#curve-norm").input_value() == "share"
    for view in open_options("curve-view"):
        page.select_option("#curve-view", view)
        for norm in open_options("curve-norm"):
            page.select_option("#curve-norm", norm)
            for layer in open_options("curve-layer"):
                page.select_option("#curve-layer", layer)
                assert page.locator("#curve-plot").is_visible(), (view, norm, layer)
                caption = page.locator("#curve-caption").inner_text()
                assert "No row sees" not in caption, (view, norm, layer)


def test_documents_that_no_row_sees_have_a_sentence_and_no_axes(opened: Any, tmp_path: Path) -> None:
    make_run(windows=(2, 2)).save(tmp_path / "blind.safetensors")
    page = opened(write_report([tmp_path / "blind.safetensors"], tmp_path / "r.html").page, has_plots=False)
    caption = page.locator("#curve-caption")
    caption.wait_for()
    assert "No row sees any of the documents" in caption.inner_text()
    assert not page.locator("#curve-plot").is_visible()


def test_a_caption_tells_series_apart_that_differ(opened: Any, study_report: tuple[Path, Any], tmp_path: Path) -> None:
    make_run(secondary=(6,)).save(tmp_path / "one.safetensors")
    make_run(1).save(tmp_path / "two.safetensors")
    page = opened(write_report([tmp_path / "one.safetensors", tmp_path / "two.safetensors"], tmp_path / "r.html").page)
    caption = page.locator("#curve-caption").inner_text()
    assert "one: As measured, secondary sinks count" in caption
    assert "two: No secondary sinks were set apart" in caption


def test_the_point_of_one_document_is_inside_the_axes(opened: Any, tmp_path: Path) -> None:
    make_run(document_tokens=(5,)).save(tmp_path / "one.safetensors")
    page = opened(write_report([tmp_path / "one.safetensors"], tmp_path / "r.html").page)
    axes = page.evaluate("['xaxis', 'yaxis'].map((a) => document.getElementById('curve-plot')._fullLayout[a].range)")
    assert axes[0] == [-0.5, 0.5]
    assert 1 < axes[1][1] < 1.1


def test_the_overview_marks_what_the_pane_shows_wherever_the_page_is(opened: Any, tmp_path: Path) -> None:
    run = text_run(prompt_segments(["Some words are here. " * 400] * 3))
    run.save(tmp_path / "run.safetensors")
    page = opened(write_report([tmp_path / "run.safetensors"], tmp_path / "r.html").page)
    page.locator(".tm-on-screen").wait_for(state="attached")
    mark = "['left', 'width'].map((side) => parseFloat(document.querySelector('.tm-on-screen').style[side]))"
    page.evaluate("document.querySelector('.tm-scroll').scrollTop = 3000")
    page.wait_for_timeout(200)
    left, width = page.evaluate(mark)  # the map is far below what the window shows
    page.locator("#text-map").scroll_into_view_if_needed()
    page.evaluate("document.querySelector('.tm-scroll').scrollTop += 1")
    page.wait_for_timeout(200)
    seen = page.evaluate(mark)
    assert 5 < left < 95
    assert width > 1
    assert seen == pytest.approx([left, width], abs=3)


def test_tables_fit_wide_screens_and_are_cards_on_narrow_ones(opened: Any, study_report: tuple[Path, Any]) -> None:
    wider = "(id) => [...document.querySelectorAll(`#${id} .scrolls`)].map((e) => e.scrollWidth > e.clientWidth)"
    for width in (1280, 390):
        page = opened(study_report[0], viewport={"width": width, "height": 800})
        for section in ("panel", "prompts"):
            assert page.evaluate(wider, section) == [False], (width, section)
    page.set_viewport_size({"width": 700, "height": 900})  # of a sheet of paper between its margins
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    page.emulate_media(media="screen")
    label = "getComputedStyle(document.querySelector('#panel td:nth-child(3)'), '::before').content"
    assert page.evaluate(label) == '"head/middle, pooled"'


def test_print_keeps_the_text_of_a_run(opened: Any, tmp_path: Path) -> None:
    run = text_run(prompt_segments(["Some words are here. " * 400] * 3))
    run.save(tmp_path / "run.safetensors")
    page = opened(write_report([tmp_path / "run.safetensors"], tmp_path / "r.html").page)
    page.evaluate(
        "addEventListener('beforeprint', () => { globalThis.printed = document.querySelectorAll('.tm-t').length; })"
    )
    page.pdf()
    assert page.evaluate("globalThis.printed") == len(run.token_ids)
    page.emulate_media(media="print")
    height, inner = page.evaluate("['#text-map', '.tm-text'].map((name) => document.querySelector(name).offsetHeight)")
    assert height >= inner > 1000


def test_print_has_the_tables_and_light_plots(opened: Any, report: Path, run: Run) -> None:
    page = opened(report, color_scheme="dark")
    assert page.locator("details").first.get_attribute("open") is None
    page.evaluate(
        """() => {
          window.printed = null;
          window.addEventListener("beforeprint", () => {
            const plot = document.getElementById("curve-plot");
            window.printed = {
              open: [...document.querySelectorAll("details")].every((one) => one.open),
              ink: plot.layout.font.color,
            };
          });
        }"""
    )
    content = page.pdf()
    assert content.startswith(b"%PDF")
    assert page.evaluate("window.printed") == {"open": True, "ink": "#000000"}
    assert page.locator("details").first.get_attribute("open") is None
    page.emulate_media(media="print")
    assert page.locator("#curve details table").is_visible()
    assert not page.locator("#download button").first.is_visible()


def test_without_javascript_the_numbers_are_there(opened: Any, report: Path, run: Run) -> None:
    page = opened(report, java_script_enabled=False)
    table = page.locator("#curve details table")
    assert table.is_visible()
    assert f"{100 * run.curve().values[0]:.1f} %" in table.inner_text()
    assert page.locator("#budget table").is_visible()


def test_hover_gives_the_value(opened: Any, report: Path, run: Run) -> None:
    page = opened(report)
    page.locator("#curve-plot").scroll_into_view_if_needed()
    point = page.locator("#curve-plot .scatterlayer .points path").nth(2).bounding_box()
    page.mouse.move(point["x"] + point["width"] / 2, point["y"] + point["height"] / 2)
    page.wait_for_selector("#curve-plot .hovertext")
    text = page.locator("#curve-plot .hovertext").text_content()
    assert f"{100 * run.curve().values[2]:.2f}%" in text
    assert "position 2 d2, 3 tokens" in text


def _contrast(ink: str, paper: str) -> float:
    """Contrast ratio of WCAG 2."""

    def luminance(colour: str) -> float:
        if colour.startswith("#"):
            parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        else:
            parts = [int(float(x)) for x in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in parts]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
