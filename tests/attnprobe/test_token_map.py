"""The payload of a token map: it decodes to the run's numbers, tiles the text, and stays small and harmless."""

from __future__ import annotations

import base64
import json
import os
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import make_run
from text_runs import long_run, prompt_segments, text_run

import attnprobe as ap
from attnprobe.errors import InputError
from attnprobe.report.heatmap import write_heatmap
from attnprobe.report.page import json_text
from attnprobe.report.quantised import RELATIVE_ERROR, SMALLEST, quantised, restored
from attnprobe.report.token_map import Limits, token_map
from attnprobe.report.token_map_density import span_densities, visible_tokens
from attnprobe.report.token_text import blocks_of, cell_ranges, coarsened, pieces_of, utf16_offsets
from attnprobe.spans import Span

DOCUMENTS = ["Readings are kept 47 days. A job erases them.", "Copies go after a month! Who asks?", "No one knows."]
FINE, COARSE = Limits(), Limits(tokens=0)


def numbers(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<i4")


def masses(text: str, *shape: int) -> np.ndarray:
    return restored(np.frombuffer(base64.b64decode(text), "<u2")).reshape(shape)


def assert_near(found: np.ndarray, wanted: np.ndarray) -> None:
    wanted = np.asarray(wanted, np.float64)
    assert found.shape == wanted.shape
    assert (np.abs(found - wanted) <= RELATIVE_ERROR * wanted).all()


def units(text: str, start: int, stop: int) -> str:
    """A stretch of text by UTF-16 units, as a browser cuts it."""
    return text.encode("utf-16-le")[2 * start : 2 * stop].decode("utf-16-le")


def test_codes_are_within_the_stated_error_and_zero_is_exact() -> None:
    rng = np.random.default_rng(0)
    mass = np.concatenate([np.exp(rng.uniform(np.log(SMALLEST), 0, 100_000)), [SMALLEST, 1.0, 1 - 1e-7]])
    assert_near(restored(quantised(mass)), mass)
    np.testing.assert_array_equal(quantised(np.array([0.0, 1e-45, 1.0, 1.00001])), [0, 1, 65535, 65535])
    codes = np.arange(65536, dtype=np.uint16)
    np.testing.assert_array_equal(quantised(restored(codes)), codes)


def test_every_map_decodes_to_the_runs_masses() -> None:
    run = text_run(prompt_segments(DOCUMENTS))
    assert run.column_mass is not None
    n_layers, n_heads, n_tokens = run.column_mass.shape
    payload = token_map(run)
    bands = [(band["first"], band["stop"]) for band in payload["bands"]]
    assert bands == [(0, 6), (0, 2), (2, 4), (4, 6)]
    assert [band["name"] for band in payload["bands"]][1:] == [
        "early: layers 0-1",
        "middle: layers 2-3",
        "late: layers 4-5",
    ]
    wanted = np.stack([run.column_mass[a:b].mean((0, 1), dtype=np.float64) for a, b in bands])
    assert_near(masses(payload["band_mass"], 4, n_tokens), wanted)
    assert payload["by_layer"]["kind"] == payload["by_head"]["kind"] == "token"
    by_head = masses(payload["by_head"]["mass"], n_layers, n_heads, n_tokens)
    assert_near(by_head, run.column_mass)
    by_layer = masses(payload["by_layer"]["mass"], n_layers, n_tokens)
    assert_near(by_layer, run.column_mass.mean(1, dtype=np.float64))
    np.testing.assert_array_equal(numbers(payload["visible"]).reshape(n_layers, -1), run.visible.sum(-1))


def test_single_answer_tokens_decode_to_the_runs_masses() -> None:
    run = text_run(prompt_segments(DOCUMENTS))
    assert run.key_mass is not None
    assert run.key_token is not None
    assert run.row_mass is not None
    assert run.top_mass is not None
    payload = token_map(run)
    assert payload["keys"]["k"] == run.key_mass.shape[2]
    assert_near(masses(payload["keys"]["mass"], *run.key_mass.shape), run.key_mass)
    np.testing.assert_array_equal(numbers(payload["keys"]["token"]), run.key_token.ravel())
    by_layer = run.row_mass.mean(1, dtype=np.float64)
    assert payload["row_spans"]["of"] == "layer"
    assert_near(masses(payload["row_spans"]["mass"], *by_layer.shape), by_layer)
    n_maps = len(payload["bands"])
    limits = Limits(rows=n_maps * by_layer[0].size * 3)
    by_band = token_map(run, limits=limits)["row_spans"]
    assert by_band["of"] == "band"
    wanted = np.stack([by_layer[band["first"] : band["stop"]].mean(0) for band in payload["bands"]])
    assert_near(masses(by_band["mass"], *wanted.shape), wanted)
    assert token_map(run, limits=Limits(rows=100))["row_spans"] is None
    n_rows = run.key_mass.shape[1]
    fewer = token_map(run, limits=Limits(keys=6 * n_rows * 8 * 8))["keys"]
    assert fewer["k"] == 8
    np.testing.assert_array_equal(numbers(fewer["token"]).reshape(6, n_rows, 8), run.key_token[..., :8])
    assert token_map(run, limits=Limits(keys=100))["keys"] is None
    heads = payload["row_heads"]["heads"]
    assert len(heads) == 18  # all of them
    one = run.row_mass[0, 0].size * 8 * 4 / 3
    some = token_map(run, heads=[(3, 1), (0, 2), (5, 0)], limits=Limits(rows=int(2.5 * one), heads=0))["row_heads"]
    assert some["heads"] == [(3, 1), (0, 2)]
    assert_near(masses(some["top_mass"], 2, *run.top_mass.shape[2:]), run.top_mass[(3, 0), (1, 2)])
    assert token_map(run, limits=Limits(rows=int(0.9 * one), heads=0))["row_heads"] is None
    # All heads stand beside the rest of the page, or the chosen ones do.
    rest = len(json_text({**payload, "row_heads": None}))
    for page, n_heads in ((rest + 18 * one + 100, 18), (rest + 17 * one, 2)):
        some = token_map(run, limits=Limits(rows=int(2.5 * one), page=int(page)))["row_heads"]
        assert len(some["heads"]) == n_heads
    index = tuple(np.array(heads).T)
    shape = run.row_mass[index].shape
    assert_near(masses(payload["row_heads"]["mass"], *shape), run.row_mass[index])
    assert_near(masses(payload["row_heads"]["top_mass"], *shape), run.top_mass[index])
    np.testing.assert_array_equal(numbers(payload["row_heads"]["top_token"]).reshape(shape), run.top_token[index])


@pytest.mark.parametrize("windows", [(None, None), (9, 20)])
def test_densities_are_the_packages(windows: tuple[int | None, ...]) -> None:
    run = make_run(extras=True, windows=windows)
    documents = list(run.document_spans)
    found = span_densities(run)
    assert found is not None
    for layer in range(2):
        for head in range(3):
            np.testing.assert_allclose(found[layer, head, documents], run.curve("density", [layer], [head]).values)
    payload = token_map(run)
    seen = numbers(payload["seen"]).reshape(2, -1)
    np.testing.assert_array_equal(seen == 0, np.isnan(found[:, 0]))
    assert (seen == 0).any() or windows == (None, None)
    scale = len(run.token_ids)
    assert payload["density"]["of"] == "head"
    spans = payload["density"]["spans"]
    assert {run.spans[i].kind for i in set(range(len(run.spans))) - set(spans)} == {"marker"}
    kept = np.nan_to_num(found[..., spans])
    assert_near(masses(payload["density"]["values"], *kept.shape), kept / scale)
    fewer = token_map(run, limits=Limits(densities=kept.size))["density"]
    assert fewer["of"] == "layer"
    assert_near(masses(fewer["values"], 2, len(spans)), kept.mean(1) / scale)
    assert token_map(run, limits=Limits(densities=1))["density"] is None


def test_rows_that_see_others_than_the_last_tokens_are_not_told_from_a_number() -> None:
    run = make_run(extras=True, windows=(None, 9))
    np.testing.assert_array_equal(visible_tokens(run), run.visible.sum(-1))
    visible = run.visible.copy()
    visible[1, 0, 0] += 1  # the first token, which lies outside the window
    odd = replace(run, visible=visible, top_mass=None, top_token=None)
    assert visible_tokens(odd) is None
    assert token_map(odd)["visible"] is None


def test_text_spans_and_sentences_tile() -> None:
    run = text_run(prompt_segments(DOCUMENTS))
    payload = token_map(run)
    assert payload["text"] == run.prompt_text + run.answer
    starts, stops = numbers(payload["starts"]), numbers(payload["stops"])
    assert run.token_chars is not None
    for t, (a, b) in enumerate(run.token_chars):
        assert units(payload["text"], starts[t], stops[t]) == (run.prompt_text + run.answer)[a:b]
    pieces = payload["pieces"]
    assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])]
    assert pieces[-1].stop == len(run.token_ids)
    for span, start, stop in pieces:
        assert (start, stop) in run.spans[span].segments
    edges = numbers(payload["sentences"])
    assert (np.diff(edges) > 0).all()
    assert {piece.start for piece in pieces} <= set(edges.tolist())
    own = [payload["text"][starts[a] : starts[b]] for a, b in pairwise(edges[:-1])]
    assert [text for text in own if "47" in text or "job" in text or "Who" in text] == [
        "Readings are kept 47 days.",
        " A job erases them.",
        " Who asks?",
    ]


def test_sentence_maps_are_sums_of_their_tokens() -> None:
    run = text_run(prompt_segments(DOCUMENTS))
    assert run.column_mass is not None
    payload = token_map(run, limits=COARSE)
    for name, wanted in (("by_layer", run.column_mass.mean(1, dtype=np.float64)), ("by_head", run.column_mass)):
        grid = payload[name]
        assert grid["kind"] == "sentence"
        edges = numbers(grid["edges"])
        np.testing.assert_array_equal(edges, numbers(payload["sentences"]))
        sums = np.stack([wanted[..., a:b].sum(-1, dtype=np.float64) for a, b in pairwise(edges)], -1)
        assert_near(masses(grid["mass"], *sums.shape), sums)


def test_sentences_are_put_together_where_they_do_not_fit_and_left_out_where_spans_do_not() -> None:
    run = text_run(prompt_segments(["One is. Two are. Three were. Four will. " * 5, DOCUMENTS[0]]))
    whole = token_map(run, limits=COARSE)
    n_pieces, n_sentences = len(whole["pieces"]), len(numbers(whole["sentences"])) - 1
    room = n_pieces + 8
    assert n_sentences > room
    payload = token_map(run, limits=Limits(tokens=0, sentences=int(room * 18 * 2 * 4 / 3) + 18))
    edges = numbers(payload["by_head"]["edges"])
    assert payload["by_head"]["kind"] == "block"
    assert payload["by_layer"]["kind"] == "sentence"
    assert n_pieces < len(edges) - 1 <= room
    assert set(edges.tolist()) <= set(numbers(payload["sentences"]).tolist())
    assert {piece.start for piece in payload["pieces"]} <= set(edges.tolist())
    assert run.column_mass is not None
    assert_near(
        masses(payload["by_head"]["mass"], 18, len(edges) - 1),
        np.add.reduceat(run.column_mass.reshape(18, -1), edges[:-1], axis=1, dtype=np.float64),
    )
    assert token_map(run, limits=Limits(tokens=0, sentences=(n_pieces - 1) * 48))["by_head"] is None


def test_chosen_heads_are_those_with_most_document_mass_or_the_users() -> None:
    run = text_run(prompt_segments(DOCUMENTS))
    assert run.column_mass is not None
    documents = run.document_mass().sum(-1)
    payload = token_map(run)
    ranked = sorted((-documents[layer, head], layer, head) for layer in range(6) for head in range(3))
    assert payload["chosen"] == [(layer, head) for _, layer, head in ranked[:6]]
    shifted = replace(run, layers=(1, 3, 5, 7, 9, 11))  # of a hybrid
    payload = token_map(shifted, heads=[(9, 2), (1, 0), (9, 2)])
    assert payload["chosen"] == [(4, 2), (0, 0)]
    wanted = np.stack([run.column_mass[4, 2], run.column_mass[0, 0]])
    assert_near(masses(payload["chosen_mass"], *wanted.shape), wanted)
    for heads in ([(2, 0)], [(1, 3)], [(1, -1)]):
        with pytest.raises(
            InputError, match=r"head \d+:-?\d+ is not in the run, which has layers 1 to 11 .* heads 0 to 2"
        ):
            token_map(shifted, heads=heads)
    with pytest.raises(InputError, match=r"2 heads are asked for, but at .* tokens a page holds 1"):
        token_map(run, heads=[(0, 0), (0, 1)], limits=Limits(chosen=int(5.5 * len(run.token_ids) * 8 / 3)))


@pytest.mark.parametrize("rows", ["predicting", "answer"])
@pytest.mark.parametrize("learned_sink", [False, True])
def test_runs_of_all_kinds_have_a_payload(rows: str, learned_sink: bool) -> None:
    run = make_run(extras=True, rows=rows, learned_sink=learned_sink, secondary=(5, 9))
    payload = token_map(run)
    assert (payload["learned_sink"] is not None) is learned_sink
    if learned_sink:
        assert_near(masses(payload["learned_sink"], 2, 3), run.mass[..., -1])
    json.loads(json_text(payload))
    bare = replace(run, row_mass=None, row_total=None, top_mass=None, top_token=None, key_mass=None, key_token=None)
    payload = token_map(bare)
    assert payload["row_spans"] is payload["row_heads"] is payload["keys"] is payload["density"] is None


def test_a_run_without_an_answer_span_shows_its_answer() -> None:
    run = make_run(extras=True, n_answer=1)
    assert run.spans[-1].kind == "answer"

    def without(array: np.ndarray) -> np.ndarray:
        return array[..., :-1]

    changes: dict[str, Any] = {
        name: without(getattr(run, name)) for name in ("mass", "row_mass", "visible", "top_mass", "top_token")
    }
    bare = replace(
        run, spans=run.spans[:-1], value_mass=None, question_mass=None, prompt_mass=None, prompt_edges=None, **changes
    )
    payload = token_map(bare)
    assert payload["spans"][-1]["kind"] == "answer"
    assert payload["n_measured_spans"] == len(bare.spans)
    assert payload["pieces"][-1] == (len(bare.spans), run.n_prompt, run.n_prompt + 1)


def test_what_is_missing_is_said_with_the_remedy() -> None:
    run = make_run(extras=True)
    with pytest.raises(
        InputError, match=r'no mass of single tokens; measure it with extras=\("columns", "keys", "top"\)'
    ):
        token_map(replace(run, column_mass=None))
    with pytest.raises(InputError, match="which characters its tokens stand for"):
        token_map(replace(run, token_chars=None))


def test_sinks_inside_a_document_are_read_with_it() -> None:
    spans = (
        Span("sink", "sink", None, ((0, 1),)),
        Span("template", "template", None, ((1, 2), (9, 10))),
        Span("sink", "sink:2", 0, ((2, 3),)),
        Span("document", "a", 0, ((3, 4), (5, 6))),
        Span("sink", "sink:4", 0, ((4, 5),)),
        Span("question", "question", None, ((6, 7), (8, 9))),
        Span("sink", "sink:7", None, ((7, 8),)),
    )
    pieces = pieces_of(spans)
    blocks = [
        (spans[span].name, pieces[first].start, pieces[last - 1].stop) for span, first, last in blocks_of(spans, pieces)
    ]
    assert blocks == [("sink", 0, 1), ("template", 1, 2), ("a", 2, 6), ("question", 6, 9), ("template", 9, 10)]


def test_pieces_of_one_character_share_it_and_ranges_never_overlap() -> None:
    # "x", two byte pieces of an emoji, a token that ends the emoji and begins "y", "z", an added token, "w".
    chars = np.array([[0, 1], [1, 2], [1, 2], [1, 3], [3, 4], [4, 4], [4, 5]], np.int32)
    pieces = pieces_of((Span("other", "all", None, ((0, 7),)),))
    ranges = cell_ranges(chars, pieces)
    assert ranges.tolist() == [[0, 1], [1, 3], [1, 3], [1, 3], [3, 4], [4, 4], [4, 5]]
    assert utf16_offsets("x😀yzw", ranges)[:, 1].tolist() == [1, 4, 4, 4, 5, 5, 6]
    apart = pieces_of((Span("other", "a", None, ((0, 2),)), Span("other", "b", None, ((2, 7),))))
    assert cell_ranges(chars, apart).tolist() == [[0, 1], [1, 2], [2, 2], [2, 3], [3, 4], [4, 4], [4, 5]]


def test_real_tokenizers_fill_the_text(make_lm: Any) -> None:
    text = ["Ein 👩‍👩‍👧‍👦 naïve — Straße. \u202eabc", "日本語。テキスト。 שלום"]
    lm = make_lm()
    run = ap.measure(lm, ap.Prompt(text, "Où?"), answer=" né 😀.", extras=("columns", "keys", "top"))
    payload = token_map(run)
    starts, stops = numbers(payload["starts"]), numbers(payload["stops"])
    assert (starts[1:] >= starts[:-1]).all()
    same = (starts[1:] == starts[:-1]) & (stops[1:] == stops[:-1])
    assert (same | (starts[1:] >= stops[:-1])).all()
    shown = "".join(
        units(payload["text"], a, b)
        for t, (a, b) in enumerate(zip(starts, stops, strict=True))
        if t == 0 or not same[t - 1]
    )
    assert shown == run.prompt_text + run.answer


def test_coarsening_keeps_pieces_and_the_limit() -> None:
    rng = np.random.default_rng(0)
    edges = np.unique(np.concatenate([[0, 40, 300, 1000], rng.integers(1, 1000, 300)]))
    pieces = pieces_of(tuple(Span("other", str(a), None, ((a, b),)) for a, b in ((0, 40), (40, 300), (300, 1000))))
    for limit in (3, 5, 20, 100):
        kept = coarsened(edges, limit, pieces)
        assert len(kept) - 1 <= max(limit, 3)
        assert {0, 40, 300, 1000} <= set(kept.tolist()) <= set(edges.tolist())
        assert limit < 20 or np.diff(kept).max() <= 1000 / (limit - 3) + np.diff(edges).max()
    np.testing.assert_array_equal(coarsened(edges, len(edges), pieces), edges)


HOSTILE = (
    "<script>document.title='ran'</script>",
    "</script><script>document.title='ran'</script><!--",
    "\"'><img src=x onerror=\"document.title='ran'\">",
    "\u202egnp.exe\u202c \u2066x\u2069 \u2028\u2029 \u200b\ufeff \x00\x07\x1b[31m",
    "a" * 1_000_000,
    "lone \ud800 half",
)


def test_hostile_texts_stand_in_the_page_as_data_only(tmp_path: Path) -> None:
    run = replace(text_run(prompt_segments(HOSTILE)), prompt_id="</title><script>alert(1)</script>")
    page = write_heatmap(run, tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script>") == 8  # six of ours, the start, the data
    assert "<!--" not in page
    assert "<img" not in page
    assert not re.search("[\u2028\u2029\x00\x07\x1b]", page)
    (data,) = re.findall(r'<script type="application/json" id="token-map-data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data)["text"] == (run.prompt_text + run.answer).replace("\ud800", "\ufffd")


def test_names_that_utf_8_cannot_write_or_that_turn_text_around_are_made_harmless(tmp_path: Path) -> None:
    run = text_run(prompt_segments(DOCUMENTS))
    bad = "half \ud800 \u202egnp.exe"
    spans = tuple(replace(span, name=bad) if span.name == "d1" else span for span in run.spans)
    run = replace(run, prompt_id=bad, spans=spans, warnings=(bad,), manifest={"model": {"name": bad}})
    page = write_heatmap(run, tmp_path / "page.html").read_text(encoding="utf-8")
    (heading,) = re.findall("<h1>(.*)</h1>", page)
    (title,) = re.findall("<title>(.*)</title>", page)
    assert title == "Attention on half [U+D800] [U+202E]gnp.exe (answer)"
    assert heading.startswith("Attention on half [U+D800] [U+202E]gnp.exe <small>")
    assert heading.count("half [U+D800] [U+202E]gnp.exe") == 2
    (data,) = re.findall(r'<script type="application/json" id="token-map-data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data)["warnings"] == ["half \ufffd \u202egnp.exe"]


def test_a_page_of_100_000_tokens_is_below_15_mb(tmp_path: Path) -> None:
    run = long_run()
    assert len(run.token_ids) > 100_000
    assert run.mass.shape[:2] == (32, 32)
    payload = token_map(run)
    assert payload["by_layer"]["kind"] == "sentence"
    assert payload["by_head"]["kind"] == "block"
    assert payload["keys"]["k"] >= 32
    assert payload["density"]["of"] == "head"
    assert 0 < len(payload["row_heads"]["heads"]) < len(payload["chosen"])
    path = write_heatmap(run, tmp_path / "long.html")
    assert path.stat().st_size < 15_000_000
    most = token_map(run, heads=[(0, head) for head in range(8)])  # as many as it holds
    assert len(json_text(most)) < 14_900_000
    with pytest.raises(InputError, match="a page holds 8"):
        token_map(run, heads=[(0, head) for head in range(9)])


def test_a_text_without_sentences_is_cut_all_the_same() -> None:
    run = text_run(prompt_segments(["word " * 3000]))
    edges = numbers(token_map(run)["sentences"])
    assert np.diff(edges).max() <= 128


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = text_run(prompt_segments(DOCUMENTS))
    path = write_heatmap(run, tmp_path / "page.html")
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        with pytest.raises(InputError, match=r"page.html cannot be written: No space left on device"):
            write_heatmap(run, path, heads=[(0, 0)])
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["page.html"]
    with pytest.raises(InputError, match=r"does not end in \.html"):
        write_heatmap(run, tmp_path / "page.txt")
    (tmp_path / "other.html").write_text("<p>somebody's</p>")
    with pytest.raises(InputError, match="is there already and no page of attnprobe"):
        write_heatmap(run, tmp_path / "other.html")
