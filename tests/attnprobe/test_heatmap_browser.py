"""Heatmap pages in a real browser: what they show is what was measured, whatever the text holds."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Watched
from runs import make_run
from text_runs import long_run, prompt_segments, text_run

from attnprobe.report import heatmap, token_map
from attnprobe.report.heatmap import write_heatmap
from attnprobe.report.quantised import RELATIVE_ERROR as ERROR
from attnprobe.run import Run

pytestmark = pytest.mark.browser

DOCUMENTS = [
    "Readings are kept for 47 days. A nightly job then erases them. Files of customers are kept apart.",
    "A vehicle sends fifty readings a second. Beyond that the gateway answers with an error.",
    "Nobody knows how long the trail is kept.",
]
APART = ("sink", "template", "marker")


@pytest.fixture
def run() -> Run:
    return text_run(prompt_segments(DOCUMENTS))


@pytest.fixture
def page(run: Run, tmp_path: Path, browser_page: Watched) -> Any:
    page = browser_page.open(write_heatmap(run, tmp_path / "page.html"))
    page.wait_for_selector(".tm-t")
    yield page
    browser_page.assert_quiet()


def choose(page: Any, name: str, value: str | int) -> None:
    page.select_option(f".tm-{name}", str(value))


def in_scale(run: Run) -> np.ndarray:
    inside = np.ones(len(run.token_ids), dtype=bool)
    for span in run.spans:
        for start, stop in span.segments:
            inside[start:stop] = span.kind not in APART
    return inside


def alphas(page: Any) -> dict[int, float]:
    """Opacity of every token's own background, as the browser computed it."""
    found = page.evaluate(
        "[...document.querySelectorAll('.tm-t')].map("
        "t => [Number(t.dataset.cell), getComputedStyle(t).backgroundColor])"
    )
    return {cell: _alpha(colour) for cell, colour in found}


def _alpha(colour: str) -> float:
    parts = re.findall(r"[\d.]+", colour)
    return float(parts[3]) if len(parts) == 4 else 1.0


def wanted_alphas(mass: np.ndarray, inside: np.ndarray, log: bool = True) -> np.ndarray:
    """Opacity by the scale's definition: linear to the largest mass in it, or three decades down from it."""
    top = mass[inside].max()
    with np.errstate(divide="ignore"):
        scaled = 1 + np.log10(mass / top) / 3 if log else mass / top
    return np.where(inside, np.clip(scaled, 0, 1), 0)


def assert_shaded(page: Any, mass: np.ndarray, inside: np.ndarray, log: bool = True) -> None:
    found = alphas(page)
    assert sorted(found) == list(range(len(mass)))
    np.testing.assert_allclose([found[i] for i in range(len(mass))], wanted_alphas(mass, inside, log), atol=0.004)


def wait_until(page: Any, condition: str) -> None:
    """Wait for an expression of JavaScript to hold; playwright's own way is against the pages' policy."""
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never: {condition}")


def tooltip(page: Any, token: int) -> str:
    page.locator(f'.tm-t[data-cell="{token}"]').hover()
    return page.locator(".tm-tooltip").inner_text()


def number_in(text: str, label: str) -> float:
    found = re.search(rf"{label} ([\d.e+-]+)", text)
    assert found, text
    return float(found[1])


def test_shading_follows_the_chosen_layers_and_heads(run: Run, page: Any) -> None:
    column = np.asarray(run.column_mass, np.float64)
    inside = in_scale(run)
    assert_shaded(page, column.mean((0, 1)), inside)
    choose(page, "source", "band:3")
    assert_shaded(page, column[4:].mean((0, 1)), inside)
    choose(page, "source", "layer")
    choose(page, "layer", 3)
    assert_shaded(page, column[3].mean(0), inside)
    choose(page, "source", "head")
    choose(page, "head-choice", 2)
    assert_shaded(page, column[3, 2], inside)
    choose(page, "scale-choice", "linear")
    assert_shaded(page, column[3, 2], inside, log=False)
    page.check(".tm-all")
    assert_shaded(page, column[3, 2], np.ones_like(inside), log=False)


def times_even(text: str) -> float:
    found = re.search(r"([\d.e+-]+) × even", text)
    assert found, text
    return float(found[1])


def even_mass(run: Run, layer: int, window: int | None = None) -> np.ndarray:
    """Mass of every token, float64 [row, token], where every row of a layer gives what it sees the same."""
    row, token = run.n_prompt - 1 + np.arange(run.visible.shape[1])[:, None], np.arange(len(run.token_ids))
    seen = (token <= row) & (token > row - (window or len(run.token_ids)))
    return seen / seen.sum(1, keepdims=True)


def test_hover_gives_token_position_and_mass(run: Run, page: Any) -> None:
    assert run.token_chars is not None
    text = run.prompt_text + run.answer
    choose(page, "source", "head")
    choose(page, "layer", 2)
    choose(page, "head-choice", 1)
    mass = np.asarray(run.column_mass, np.float64)[2, 1]
    even = even_mass(run, 2).mean(0)
    for token in (0, 8, 20, run.n_prompt + 1):
        shown = tooltip(page, token)
        start, stop = run.token_chars[token]
        assert shown.splitlines()[0] == text[start:stop].replace(" ", "␣").replace("\n", "↵")
        assert f"token {token} of {len(run.token_ids)}" in shown
        assert number_in(shown, "mass") == pytest.approx(mass[token], rel=0.006)  # three digits
        assert times_even(shown) == pytest.approx(mass[token] / even[token], rel=0.006)
    start = run.spans[run.document_spans[1]].segments[0][0]
    shown = tooltip(page, start)
    assert "document 1, d1" in shown
    assert number_in(shown, "density") == pytest.approx(run.curve("density", [2], [1]).values[1], rel=0.006)


def test_even_attention_has_density_1_and_what_no_row_sees_is_not_seen(tmp_path: Path, browser_page: Watched) -> None:
    run = make_run(uniform=True, windows=(9, 9), extras=True)
    page = browser_page.open(write_heatmap(run, tmp_path / "page.html"))
    curve = run.curve("density").values
    np.testing.assert_array_equal(np.isnan(curve), [True, True, True, False])
    assert curve[3] == pytest.approx(1)
    for row in ("", "0", "2"):
        page.select_option(".tm-row", row)
        seen = run.visible[0] if row == "" else run.visible[0, int(row)][None]
        for kind, spans in (
            ("document", run.document_spans),
            ("answer", [i for i, span in enumerate(run.spans) if span.kind == "answer"]),
        ):
            for span, text in zip(spans, page.locator(f".tm-{kind} .tm-share").all_inner_texts(), strict=True):
                if seen[:, span].any():
                    assert text.endswith("· density 1"), (row, kind, text)
                else:
                    assert text == "not seen"
        assert ("not seen by any row" if row == "" else "not seen by this row") in tooltip(page, 4)
    page.select_option(".tm-row", "")
    for token in range(run.n_prompt - 9, len(run.token_ids) - 1):
        assert times_even(tooltip(page, token)) == pytest.approx(1, abs=0.002)
    browser_page.assert_quiet()


def test_density_is_the_packages_in_every_view(tmp_path: Path, browser_page: Watched) -> None:
    run = make_run(seed=3, windows=(None, 14, 22), layers=(0, 1, 2), extras=True, document_tokens=(4, 6, 3, 8))
    page = browser_page.open(write_heatmap(run, tmp_path / "page.html"))

    def assert_shown(**options: Any) -> None:
        wanted = run.curve("density", **options).values
        shown = page.locator(".tm-document .tm-share").all_inner_texts()
        for text, value in zip(shown, wanted, strict=True):
            if np.isnan(value):
                assert text == "not seen"
            else:
                assert number_in(text, "density") == pytest.approx(value, rel=0.006)

    for row, options in (("", {}), ("1", {"rows": slice(1, 2)})):
        page.select_option(".tm-source", "band:0")
        page.select_option(".tm-row", row)
        assert_shown(**options)
        page.select_option(".tm-source", "layer")
        for layer in range(3):
            page.select_option(".tm-layer", str(layer))
            assert_shown(layers=[layer], **options)
        page.select_option(".tm-source", "head")
        page.select_option(".tm-layer", "1")
        page.select_option(".tm-head-choice", "2")
        assert_shown(layers=[1], heads=[2], **options)
    browser_page.assert_quiet()


@pytest.mark.parametrize(("rows", "said"), [("predicting", "the token before it"), ("answer", "this token itself")])
def test_the_page_says_whose_attention_an_answer_token_has(
    tmp_path: Path, browser_page: Watched, rows: str, said: str
) -> None:
    page = browser_page.open(write_heatmap(make_run(extras=True, rows=rows), tmp_path / "page.html"))
    page.select_option(".tm-row", "1")
    assert f"(attention of {said}" in page.locator(".tm-status").inner_text()


def test_an_answer_token_shows_what_it_looked_at(run: Run, page: Any) -> None:
    assert run.key_mass is not None
    assert run.key_token is not None
    choose(page, "source", "layer")
    choose(page, "layer", 4)
    choose(page, "row", 3)
    mass = np.zeros(len(run.token_ids))
    listed = run.key_token[4, 3] >= 0
    mass[run.key_token[4, 3][listed]] = run.key_mass[4, 3][listed]
    assert_shaded(page, mass, in_scale(run))
    best = int(run.key_token[4, 3, 1])
    assert number_in(tooltip(page, best), "mass") == pytest.approx(mass[best], rel=0.006)
    document = run.document_spans[0]
    wanted = 100 * np.asarray(run.row_mass, np.float64)[4, :, 3, document].mean()
    assert number_in(page.locator(".tm-document .tm-share").first.inner_text(), "mass") == pytest.approx(
        wanted, abs=0.06
    )


def test_a_band_of_one_answer_token_adds_its_layers_and_says_what_it_does_not_know(
    tmp_path: Path, browser_page: Watched
) -> None:
    run = text_run(prompt_segments([*DOCUMENTS, "Words to fill the list of keys. " * 20]))
    page = browser_page.open(write_heatmap(run, tmp_path / "page.html"))
    assert run.key_mass is not None
    assert run.key_token is not None
    page.select_option(".tm-row", "2")
    low = np.zeros(len(run.token_ids))
    high = np.zeros(len(run.token_ids))
    for layer in range(6):
        own = dict(zip(run.key_token[layer, 2].tolist(), run.key_mass[layer, 2].tolist(), strict=True))
        for token in range(len(low)):
            low[token] += own.get(token, 0) / 6
            high[token] += own.get(token, run.key_mass[layer, 2, -1]) / 6
    assert_shaded(page, low, in_scale(run))
    row_mass = np.asarray(run.row_mass)
    partly = int(np.argmax(np.where((low > 0) & (high > 1.01 * low), low, 0)))
    never = int(np.flatnonzero(low == 0)[0])
    shown = tooltip(page, partly)
    assert number_in(shown, "mass") == pytest.approx(low[partly], rel=0.006)
    assert number_in(shown, "to") == pytest.approx(high[partly], rel=0.006)
    assert number_in(tooltip(page, never), "mass at most") == pytest.approx(high[never], rel=0.006)
    assert row_mass.shape[2] == page.locator(".tm-row option").count() - 1
    browser_page.assert_quiet()


def test_one_head_of_an_answer_token_shows_the_heaviest_token_of_each_span(run: Run, page: Any) -> None:
    assert run.top_mass is not None
    assert run.top_token is not None
    choose(page, "source", "head")
    choose(page, "layer", 1)
    choose(page, "head-choice", 2)
    page.locator(f'.tm-t[data-cell="{run.n_prompt + 4}"]').click()
    assert page.input_value(".tm-row") == "4"
    assert page.locator(".tm-picked").get_attribute("data-cell") == str(run.n_prompt + 4)
    mass = np.zeros(len(run.token_ids))
    for top, token in zip(run.top_mass[1, 2, 4], run.top_token[1, 2, 4], strict=True):
        if token >= 0:
            mass[token] = top
    assert_shaded(page, mass, in_scale(run))
    other = run.spans[run.document_spans[2]].segments[0]
    quiet = next(token for token in range(*other) if mass[token] == 0)
    assert run.row_mass is not None
    # What the heaviest token leaves of the document, where that is less than the heaviest token itself.
    document = run.document_spans[2]
    top, whole = (float(values[1, 2, 4, document]) for values in (run.top_mass, run.row_mass))
    bound = min(top, whole * (1 + ERROR) - top * (1 - ERROR))
    assert number_in(tooltip(page, quiet), "mass at most") == pytest.approx(bound, rel=0.006)


def test_sentences_have_their_mean_and_say_so(
    run: Run, tmp_path: Path, browser_page: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = token_map.Limits(tokens=0, rows=10_000, heads=0)
    monkeypatch.setattr(heatmap, "token_map", lambda run, heads: token_map.token_map(run, heads, limits))
    page = browser_page.open(write_heatmap(run, tmp_path / "page.html", heads=[(0, 0)]))
    page.select_option(".tm-source", "layer")
    page.select_option(".tm-layer", "2")
    mass = np.asarray(run.column_mass, np.float64)[2].mean(0)
    text = run.prompt_text
    start = 1 + int(np.searchsorted(run.token_chars[:, 0], text.index("A nightly") - 1)) - 1
    stop = int(np.searchsorted(run.token_chars[:, 0], text.index(" Files of")))
    shown = tooltip(page, start + 2)
    assert f"its sentence, {stop - start} tokens" in shown
    assert number_in(shown, "mass") == pytest.approx(mass[start:stop].sum(), rel=0.006)
    assert all(alpha == 0 for alpha in alphas(page).values())
    found = page.locator(".tm-s", has_text="A nightly job").evaluate("e => getComputedStyle(e).backgroundColor")
    sentences = page.locator(".tm-s").evaluate_all(
        "all => all.map(e => [[...e.children].map(t => Number(t.dataset.cell)), getComputedStyle(e).backgroundColor])"
    )
    spread = np.zeros(len(mass))
    for tokens, _ in sentences:
        spread[tokens] = mass[tokens].mean()
    wanted = wanted_alphas(spread, in_scale(run))
    for tokens, colour in sentences:
        assert _alpha(colour) == pytest.approx(wanted[tokens[0]], abs=0.004)
    assert _alpha(found) > 0
    assert "Numbers are kept for sentences" in page.locator(".tm-status").inner_text()
    page.select_option(".tm-source", "head:0:0")
    assert_shaded(page, np.asarray(run.column_mass, np.float64)[0, 0], in_scale(run))
    assert page.locator(".tm-status").inner_text().startswith("Layer 0, head 0; mean over 6 answer tokens. Every token")
    page.select_option(".tm-source", "head")
    page.select_option(".tm-head-choice", "1")
    page.select_option(".tm-row", "1")
    assert "No numbers are kept for this choice" in page.locator(".tm-status").inner_text()
    assert all(alpha == 0 for alpha in alphas(page).values())
    browser_page.assert_quiet()


def heaviest(page: Any) -> list[tuple[int, str]]:
    """Cell and mass of every entry of the list."""
    return [
        (int(cell), mass)
        for cell, mass in page.locator(".tm-heaviest button").evaluate_all(
            "all => all.map(b => [b.dataset.cell, b.querySelector('.tm-heaviest-mass').textContent])"
        )
    ]


def test_the_heaviest_tokens_are_listed_and_lead_to_them(run: Run, page: Any) -> None:
    column = np.asarray(run.column_mass, np.float64)
    inside = in_scale(run)

    def check(mass: np.ndarray) -> list[tuple[int, str]]:
        found = heaviest(page)
        wanted = np.argsort(-np.where(inside, mass, 0), kind="stable")[: len(found)]
        assert len(found) == min(25, (mass[inside] > 0).sum())
        for (cell, text), token in zip(found, wanted, strict=True):
            assert mass[cell] == pytest.approx(mass[token], rel=2e-3)  # as near as codes are
            assert float(text.split()[0]) == pytest.approx(100 * mass[cell], rel=0.05)
        return found

    check(column.mean((0, 1)))
    choose(page, "source", "head")
    choose(page, "layer", 2)
    found = check(column[2, 0])
    page.locator(".tm-heaviest button").nth(3).click()
    assert page.locator(".tm-cursor").get_attribute("data-cell") == str(found[3][0])
    page.keyboard.press("Escape")
    page.keyboard.press("h")
    for key in ("ArrowDown", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    assert page.locator(".tm-cursor").get_attribute("data-cell") == str(found[1][0])
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")  # the first one is the end
    assert page.locator(".tm-cursor").get_attribute("data-cell") == str(found[0][0])
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowRight")
    assert page.locator(".tm-cursor").get_attribute("data-cell") == str(found[0][0] + 1)
    page.check(".tm-all")
    inside = np.ones_like(inside)
    check(column[2, 0])
    choose(page, "row", 2)
    assert run.top_mass is not None
    assert max(run.top_mass[2, 0, 2]) == pytest.approx(float(heaviest(page)[0][1].split()[0]) / 100, rel=0.05)


def test_sentences_are_listed_where_only_these_have_numbers(
    run: Run, tmp_path: Path, browser_page: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = token_map.Limits(tokens=0)
    monkeypatch.setattr(heatmap, "token_map", lambda run, heads: token_map.token_map(run, heads, limits))
    page = browser_page.open(write_heatmap(run, tmp_path / "page.html"))
    page.select_option(".tm-source", "layer")
    assert page.locator(".tm-heaviest summary").inner_text() == "Heaviest sentences"
    mass = np.asarray(run.column_mass, np.float64)[0].mean(0)
    sentences = page.locator(".tm-s").evaluate_all("all => all.map(e => [...e.children].map(t => +t.dataset.cell))")
    inside = in_scale(run)
    sums = sorted(((mass[tokens].sum(), tokens[0]) for tokens in sentences if inside[tokens[0]]), reverse=True)
    assert [cell for cell, _ in heaviest(page)] == [first for _, first in sums]
    browser_page.assert_quiet()


def test_what_a_page_does_not_have_cannot_be_chosen_and_says_how_to_get_it(
    run: Run, tmp_path: Path, browser_page: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run.row_mass is not None
    one = run.row_mass[0, 0].size * 8 * 4 / 3
    limits = token_map.Limits(rows=int(1.5 * one), heads=0)
    monkeypatch.setattr(heatmap, "token_map", lambda run, heads: token_map.token_map(run, heads, limits))
    page = browser_page.open(write_heatmap(run, tmp_path / "page.html", heads=[(2, 1)]))
    page.select_option(".tm-source", "head:2:1")
    enabled = "[...document.querySelectorAll('.tm-head-choice option')].map(o => !o.disabled)"
    assert page.evaluate(enabled) == [True, True, True]
    page.select_option(".tm-row", "3")
    assert page.evaluate(enabled) == [False, True, False]
    assert "The heaviest token of every document" in page.locator(".tm-status").inner_text()
    assert page.locator(".tm-legend").is_visible()
    page.select_option(".tm-layer", "4")
    assert "its single answer tokens did not fit; a page made with --heads 4:1 has them" in (
        page.locator(".tm-status").inner_text()
    )
    assert not page.locator(".tm-legend").is_visible()
    assert not page.locator(".tm-heaviest").is_visible()
    browser_page.assert_quiet()


def test_a_page_says_why_a_single_answer_token_has_no_densities(
    run: Run, tmp_path: Path, browser_page: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run.row_mass is not None
    limits = token_map.Limits(rows=5 * run.row_mass[0, 0].size * 2 * 4 // 3)
    monkeypatch.setattr(heatmap, "token_map", lambda run, heads: token_map.token_map(run, heads, limits))
    page = browser_page.open(write_heatmap(run, tmp_path / "page.html"))
    page.select_option(".tm-row", "2")
    why = "no density: for one answer token, these are kept for bands of layers only"
    assert "density" in page.locator(".tm-document .tm-share").first.inner_text()
    assert why not in page.locator(".tm-status").inner_text()
    page.select_option(".tm-source", "layer")
    assert "density" not in page.locator(".tm-document .tm-share").first.inner_text()
    assert why in page.locator(".tm-status").inner_text()
    browser_page.assert_quiet()


def test_question_and_answer_stand_under_the_title(run: Run, tmp_path: Path, browser_page: Watched) -> None:
    own = replace(run, manifest={"capture": {"answer": "generated"}})
    page = browser_page.open(write_heatmap(own, tmp_path / "page.html"))
    assert page.locator("header .asked div").all_inner_texts() == [
        "Question\nHow long are readings kept?",
        "Answer, the model's own\nThey are kept for 47 days.",
    ]


def test_budget_and_documents_are_the_runs(run: Run, page: Any) -> None:
    budget = run.budget()
    lines = page.locator(".tm-budget-list li").all_inner_texts()
    shown = {line.rsplit(" ", 2)[0]: float(line.split()[-2]) for line in lines}
    for name, kind in (
        ("first token", "sink"),
        ("documents", "document"),
        ("question", "question"),
        ("markers", "marker"),
    ):
        assert shown[name] == pytest.approx(100 * budget[kind], abs=0.06)
    shares = run.curve().values
    for i, text in enumerate(page.locator(".tm-document .tm-share").all_inner_texts()):
        assert number_in(text, "share of documents") == pytest.approx(100 * shares[i], abs=0.06)


def test_search_counts_and_goes_around(run: Run, page: Any) -> None:
    page.keyboard.press("/")
    page.keyboard.type("KEPT")
    n = (run.prompt_text + run.answer).lower().count("kept")
    assert n == 5
    assert page.locator(".tm-hit-count").inner_text() == "5 found"
    assert page.locator(".tm-hit").count() == 5
    for place in (1, 2, 3, 4, 5, 1):
        page.keyboard.press("Enter")
        assert page.locator(".tm-hit-count").inner_text() == f"{place} of 5"
        assert page.locator(".tm-cursor").inner_text().strip().lower().startswith("kept")
    page.keyboard.press("Shift+Enter")
    assert page.locator(".tm-hit-count").inner_text() == "5 of 5"
    page.fill(".tm-search", "kept for 47")  # across tokens
    assert page.locator(".tm-hit").count() == 6
    page.fill(".tm-search", "(.*")
    assert page.locator(".tm-hit-count").inner_text() == "not found"


def test_search_finds_what_is_shown(tmp_path: Path, browser_page: Watched) -> None:
    text = "A cafe\u0301 is no caf\u00e9.\r\nTurned \u202eround\u2069 here, \u1112\u1161\u11ab too."
    page = browser_page.open(write_heatmap(text_run(prompt_segments([text, "Another."])), tmp_path / "page.html"))
    page.wait_for_selector(".tm-t")
    for wanted, n, first in (
        ("U+202E", 1, "round"),
        ("\u202e", 1, "round"),
        ("CAF\u00c9", 2, "cafe\u0301"),
        ("cafe\u0301", 2, "cafe\u0301"),
        ("cafe", 0, ""),
        ("\ud55c", 1, "\u1112\u1161\u11ab"),
        ("too.", 1, "too"),
        ("\nTurned", 1, "Turned"),
    ):
        page.evaluate(
            "(wanted) => { const s = document.querySelector('.tm-search'); s.value = wanted;"
            " s.dispatchEvent(new Event('input')); }",
            wanted.replace("\n", ""),
        )
        assert page.locator(".tm-hit-count").inner_text() == (f"{n} found" if n else "not found"), wanted
        if n:
            assert first in "".join(page.locator(".tm-hit").all_inner_texts()), wanted


def test_one_endless_token_is_cut(tmp_path: Path, browser_page: Watched) -> None:
    word = "a" * 499 + "\U0001f600" + "b" * 300_000 + "\U0001f600" + "c" * 499
    page = browser_page.open(
        write_heatmap(text_run(prompt_segments([f"Before {word} after."])), tmp_path / "page.html")
    )
    page.wait_for_selector(".tm-t")
    wait_until(page, "[...document.querySelectorAll('.tm-t')].some(t => t.textContent.includes('characters\u2026]'))")
    shown = page.locator(".tm-text").inner_text()
    assert len(shown) < 20_000
    assert not re.search("[\ud800-\udfff\ufffd]", shown)  # both cuts are within an emoji
    page.fill(".tm-search", "b")
    counted = int(page.locator(".tm-hit-count").inner_text().split()[0])
    assert 1 <= counted < 10


def test_a_finger_closes_the_tooltip(run: Run, tmp_path: Path, browser_page: Watched) -> None:
    context = browser_page.page.context.browser.new_context(has_touch=True, viewport={"width": 390, "height": 800})
    page = Watched(context.new_page()).open(write_heatmap(run, tmp_path / "page.html"))
    tip = page.locator(".tm-tooltip")
    for closing in (".tm-frame h1", ".tm-more > summary", ".tm-heaviest > summary"):
        page.locator(".tm-document .tm-t").first.tap()
        tip.wait_for(state="visible")
        page.locator(closing).first.tap()
        tip.wait_for(state="hidden")
    assert page.locator(".tm-legend-title").is_visible()
    context.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_long_questions_and_answers_can_be_read_to_their_end(width: int, tmp_path: Path, browser_page: Watched) -> None:
    question = "word " * 60 + "last?"
    run = text_run(prompt_segments(DOCUMENTS, question=question))
    page = browser_page.open(write_heatmap(run, tmp_path / "page.html"))
    page.set_viewport_size({"width": width, "height": 800})
    is_whole = page.evaluate(
        "(() => { const e = document.querySelector('.asked dd'); e.scrollTop = 1e6;"
        " const end = document.createRange(); end.selectNodeContents(e);"
        " const box = [...end.getClientRects()].at(-1); return box.bottom <= e.getBoundingClientRect().bottom + 1; })()"
    )
    assert is_whole
    assert page.locator(".asked dd").first.inner_text().endswith("last?")


def test_the_help_opens_at_its_beginning(run: Run, page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 400})
    page.keyboard.press("?")
    assert page.evaluate("document.querySelector('.tm-help').scrollTop") == 0
    page.keyboard.press("Escape")


def test_the_keyboard_reaches_everything(run: Run, page: Any) -> None:
    def cursor() -> int:
        return int(page.locator(".tm-cursor").get_attribute("data-cell"))

    documents = [run.spans[i].segments[0][0] for i in run.document_spans]
    page.keyboard.press("n")
    assert cursor() == documents[0]
    page.keyboard.press("n")
    assert cursor() == documents[1]
    page.keyboard.press("p")
    assert cursor() == documents[0]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert cursor() == documents[0] + 1
    page.locator(".tm-tooltip", has_text=f"token {documents[0] + 1} of").wait_for()
    page.keyboard.press("ArrowDown")
    assert cursor() > documents[0] + 1
    page.keyboard.press("ArrowUp")
    assert cursor() == documents[0] + 1
    page.keyboard.press("]")
    page.keyboard.press("]")
    assert (page.input_value(".tm-source"), page.input_value(".tm-layer")) == ("layer", "1")
    page.keyboard.press("[")
    assert page.input_value(".tm-layer") == "0"
    page.keyboard.press("}")
    page.keyboard.press("}")
    assert page.input_value(".tm-head-choice") == "1"
    page.keyboard.press(".")
    page.keyboard.press(".")
    assert page.input_value(".tm-row") == "1"
    page.keyboard.press(",")
    page.keyboard.press(",")
    assert page.input_value(".tm-row") == ""
    page.keyboard.press("?")
    assert page.locator(".tm-help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator(".tm-help").is_visible()


HOSTILE = (
    "<script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\">",
    "</script><script>document.title='ran'</script><!-- \"quotes' &amp;",
    "\u202eelif.exe\u202c \u2066iso\u2069 zero\u200bwidth \u2028 \x1b[31m \x07 \ufeff",
    "x" * 1_000_000,
    "זה טקסט בעברית. \u202a עוד משפט.",
    "👩\u200d👩\u200d👧 नमस्\u200dते",
    "a line\r\nand another \r lost",
)


@pytest.mark.parametrize("width", [1280, 390])
def test_hostile_text_neither_runs_nor_breaks_the_page(tmp_path: Path, browser_page: Watched, width: int) -> None:
    run = text_run(prompt_segments(HOSTILE))
    hostile = HOSTILE[1] + HOSTILE[2]
    spans = tuple(replace(span, name=hostile) if span.name == "d2" else span for span in run.spans)
    path = write_heatmap(replace(run, prompt_id=hostile, spans=spans, warnings=(hostile,)), tmp_path / "page.html")
    browser_page.page.set_viewport_size({"width": width, "height": 844})
    page = browser_page.open(path)
    page.wait_for_selector(".tm-t")
    page.keyboard.press("n")
    assert page.title() != "ran"
    heading = page.locator("h1").text_content()
    assert "elif.exe" in heading
    for text in (heading, page.title()):
        assert not re.search("[\u202a-\u202e\u2028\u2029\u2066-\u2069\x00-\x08\x0b-\x1f]", text)
    assert page.locator(".tm-text img, .tm-text script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    text = page.locator(".tm-text").text_content()
    assert "<script>document.title='ran'</script>" in text
    for shown in (
        "[U+202E]elif.exe[U+202C]",
        "zero[U+200B]width",
        "[U+2028]",
        "[U+001B][31m",
        "[U+FEFF]",
        "a line\nand another [U+000D] lost",
        "👩\u200d👩\u200d👧",
    ):
        assert shown in text
    assert not re.search("[\u202a-\u202e\u2028\u2029\u2066-\u2069\u200b\ufeff\x00-\x08\x0b-\x1f]", text)
    hebrew = page.locator(".tm-chunk", has_text="בעברית").first
    assert hebrew.evaluate("e => getComputedStyle(e).unicodeBidi") == "plaintext"
    browser_page.assert_quiet()


def _luminance(colour: str) -> float:
    channels = [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_shaded_text_is_legible(run: Run, page: Any, theme: str) -> None:
    page.emulate_media(color_scheme=theme)
    page.check(".tm-all")
    found = page.evaluate(
        "[...document.querySelectorAll('.tm-t')].map(t => getComputedStyle(t)).map(s => [s.color, s.backgroundColor])"
    )
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    worst = math.inf
    for ink, shade in found:
        alpha = _alpha(shade)
        parts = [re.findall(r"[\d.]+", colour)[:3] for colour in (shade, paper)]
        mixed = " ".join(str(alpha * float(a) + (1 - alpha) * float(b)) for a, b in zip(*parts, strict=True))
        light, dark = sorted((_luminance(ink), _luminance(mixed)), reverse=True)
        worst = min(worst, (light + 0.05) / (dark + 0.05))
    assert any(_alpha(shade) == 1 for _, shade in found)
    assert worst >= 4.5


def test_everything_is_printed(run: Run, page: Any) -> None:
    page.emulate_media(media="print")
    assert page.locator(".tm-text").is_visible()
    assert not page.locator(".tm-source").is_visible()
    height, inner = page.evaluate("[document.body.scrollHeight, document.querySelector('.tm-text').offsetHeight]")
    assert height >= inner > 0
    assert page.evaluate("getComputedStyle(document.querySelector('.tm-scroll')).overflow") == "visible"


def test_paper_has_every_tokens_own_shade(tmp_path: Path, browser_page: Watched) -> None:
    run = text_run(prompt_segments(["Some words are here. " * 400] * 3))
    page = browser_page.open(write_heatmap(run, tmp_path / "page.html"))
    page.wait_for_selector(".tm-t")
    before = page.locator(".tm-t").count()
    assert before < len(run.token_ids)
    page.evaluate(
        "addEventListener('beforeprint', () => { globalThis.printed = document.querySelectorAll('.tm-t').length; })"
    )
    page.pdf()
    assert page.evaluate("globalThis.printed") == len(run.token_ids)
    wait_until(page, f"document.querySelectorAll('.tm-t').length < {len(run.token_ids)}")
    browser_page.assert_quiet()


def test_a_map_that_another_takes_the_place_of_listens_no_more(run: Run, page: Any) -> None:
    page.evaluate("""() => {
        globalThis.old = document.querySelector('.tm');
        const payload = JSON.parse(document.getElementById('token-map-data').textContent);
        AttnprobeTokenMap.mount(document.getElementById('token-map'), payload, { page: true });
    }""")
    page.keyboard.press("]")
    assert page.input_value(".tm-layer") == "0"
    assert page.evaluate("old.querySelector('.tm-source').value") == "band:0"
    page.set_viewport_size({"width": 390, "height": 844})
    wait_until(page, "!document.querySelector('.tm-more').open")
    assert page.evaluate("old.querySelector('.tm-more').open")


def test_a_page_of_100_000_tokens_opens_with_few_elements(tmp_path: Path, browser_page: Watched) -> None:
    run = long_run()
    path = write_heatmap(run, tmp_path / "long.html")
    page = browser_page.open(path)
    page.wait_for_selector(".tm-live .tm-t")
    times = page.evaluate(
        "(() => { const n = performance.getEntriesByType('navigation')[0];"
        " return [n.domContentLoadedEventEnd, performance.now()] })()"
    )
    print(f"{path.stat().st_size / 1e6:.1f} MB, DOMContentLoaded {times[0]:.0f} ms, tokens shaded by {times[1]:.0f} ms")
    assert path.stat().st_size < 15_000_000
    for part in (0.0, 0.3, 0.9):
        top = page.evaluate(
            f"(e => {{ e.scrollTop = {part} * e.scrollHeight; return e.scrollTop / e.scrollHeight; }})"
            "(document.querySelector('.tm-scroll'))"
        )
        assert top == pytest.approx(part, abs=0.01)
        wait_until(
            page,
            "(e => { const box = e.getBoundingClientRect();"
            " return document.elementFromPoint(box.left + box.width / 2, box.top + 200)?.closest('.tm-live') })"
            "(document.querySelector('.tm-scroll'))",
        )
        assert page.locator("*").count() < 20_000
    page.locator(".tm-overview").click(position={"x": 900, "y": 10})
    wait_until(page, "document.querySelectorAll('.tm-live .tm-t').length > 100")
    page.select_option(".tm-source", "head:0:0")
    page.select_option(".tm-row", "3")
    assert "The heaviest token of every document" in page.locator(".tm-status").inner_text()
    page.select_option(".tm-row", "")
    page.select_option(".tm-source", "band:0")
    page.fill(".tm-search", "word62")  # of the answer, the last that a row sees
    page.keyboard.press("Enter")
    assert page.locator(".tm-cursor").inner_text().strip() == "word62"
    mass = np.asarray(run.column_mass, np.float64)[0, 0]
    shown = page.locator(".tm-tooltip", has_text=f"token {len(mass) - 2} of")
    assert number_in(shown.inner_text(), "mass") == pytest.approx(mass[-2], rel=0.006)
    browser_page.assert_quiet()
