"""Secondary sinks: planted ones are found and nothing else, and set apart they change no sum."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import make_spans
from toy_tokenizers import bytelevel

import attnprobe as ap
from attnprobe.encode import EncodedPrompt
from attnprobe.secondary_sinks import apart, find_secondary_sinks, sink_positions
from attnprobe.spans import Span, check_partition

DOCUMENT_TOKENS = (60, 55, 58, 61, 57, 60)


def columns_run(mass: np.ndarray, document_tokens: tuple[int, ...] = DOCUMENT_TOKENS) -> Any:
    """What is read of a null run; ``mass`` [layer, head, token] is scaled to sum to 1."""
    spans, n_prompt = make_spans(document_tokens, n_answer=3)
    token_ids = tuple(range(100, 100 + n_prompt + 3))
    assert mass.shape[-1] == len(token_ids)
    mass = mass / mass.sum(-1, keepdims=True)
    return SimpleNamespace(
        column_mass=mass.astype(np.float32), layers=tuple(range(5, 5 + len(mass))), spans=spans, token_ids=token_ids
    )


def background(rng: np.random.Generator, shape: str, sigma: float, n_layers: int = 4, n_heads: int = 6) -> np.ndarray:
    """Masses without a planted sink: the first token's, a smooth course over positions, and noise by head and token."""
    n_tokens = make_spans(DOCUMENT_TOKENS, 3)[1] + 3
    x = np.linspace(0, 1, n_tokens)
    course = {
        "uniform": np.ones(n_tokens),
        "U": 1 + 8 * np.exp(-20 * x) + 12 * np.exp(-20 * (1 - x)),
        "recent": np.exp(3 * x) + 40 * (x > 0.99),
    }[shape]
    mass = course * np.exp(sigma * rng.normal(size=(n_layers, n_heads, n_tokens)))
    mass[..., 0] = rng.choice([0.01, 0.5, 5.0], size=(n_layers, 1)) * mass.sum(-1)
    return mass


@pytest.mark.parametrize("shape", ["uniform", "U", "recent"])
@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0])
def test_no_sink_is_found_where_there_is_none(shape: str, sigma: float) -> None:
    for seed in range(20):
        run = columns_run(background(np.random.default_rng(seed), shape, sigma))
        assert find_secondary_sinks(run) == ()


@pytest.mark.parametrize("shape", ["uniform", "U", "recent"])
@pytest.mark.parametrize("kind", ["document", "marker", "template"])
def test_planted_sinks_are_found_in_their_layers(shape: str, kind: str) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        mass = background(rng, shape, sigma=0.7)
        run = columns_run(mass)
        span = next(span for span in run.spans if span.kind == kind and span.document in (1, None))
        position = span.segments[0][0] + 1
        layers, heads = rng.choice(4, size=2, replace=False), rng.choice(6, size=3, replace=False)
        for layer in layers:
            # 40 % of what these three heads give to tokens other than the first: 20 % of the layer's.
            own = mass[layer][heads][:, 1:].sum(-1)
            mass[layer, heads, position] = 2 / 3 * own
        found = find_secondary_sinks(columns_run(mass))
        assert [(sink.layer, sink.position) for sink in found] == sorted((5 + int(i), position) for i in layers)
        assert {(sink.document, sink.token_id) for sink in found} == {(span.document, 100 + position)}
        assert sink_positions(found) == (position,)


def test_numbers_of_a_sink() -> None:
    n_tokens = make_spans(DOCUMENT_TOKENS, 3)[1] + 3
    mass = np.ones((1, 2, n_tokens))
    mass[0, :, 30] = [101.0, 301.0]
    total = n_tokens + np.array([100.0, 300.0])
    (sink,) = find_secondary_sinks(columns_run(mass))
    expected = float(np.mean([101 / total[0], 301 / total[1]]))
    assert sink.mass == pytest.approx(expected, rel=1e-5)
    assert sink.excess == pytest.approx(expected / np.mean(1 / total), rel=1e-5)


def test_both_conditions_count() -> None:
    n_tokens = make_spans(DOCUMENT_TOKENS, 3)[1] + 3
    mass = np.ones((1, 1, n_tokens))
    mass[..., 40] = 60.0  # 60 times the median, and 60 / (n - 1 + 59) of what is beside the first token
    fraction = 60 / (n_tokens - 1 + 59)
    for first in (1.0, 1e4):  # the first token's own mass changes neither
        mass[..., 0] = first
        run = columns_run(mass)
        assert sink_positions(find_secondary_sinks(run)) == (40,)
        assert find_secondary_sinks(run, threshold=61) == ()
        assert sink_positions(find_secondary_sinks(run, threshold=59, fraction=0.99 * fraction)) == (40,)
        assert find_secondary_sinks(run, fraction=1.01 * fraction) == ()


def test_only_tokens_before_the_end_of_the_documents_are_judged() -> None:
    run = columns_run(np.ones((1, 1, make_spans(DOCUMENT_TOKENS, 3)[1] + 3)))
    question = next(span for span in run.spans if span.kind == "question").segments[0]
    n_tokens = run.column_mass.shape[-1]
    for position, found in ((0, False), (1, True), (question[0] - 1, True), *((p, False) for p in range(*question))):
        mass = np.ones((1, 1, n_tokens))
        mass[..., position] = 500.0
        assert bool(find_secondary_sinks(columns_run(mass))) == found
    for position in (question[1], n_tokens - 3, n_tokens - 1):  # closing template, answer
        mass = np.ones((1, 1, n_tokens))
        mass[..., position] = 500.0
        assert find_secondary_sinks(columns_run(mass)) == ()


def test_a_window_hides_tokens_but_makes_no_sinks() -> None:
    n_tokens = make_spans(DOCUMENT_TOKENS, 3)[1] + 3
    mass = np.ones((2, 1, n_tokens))
    mass[0, :, :-30] = 0.0
    mass[1, :, :-8] = 0.0  # nothing that is judged
    assert find_secondary_sinks(columns_run(mass)) == ()
    mass[0, :, -25] = 400.0
    assert [(s.layer, s.position) for s in find_secondary_sinks(columns_run(mass))] == [(5, n_tokens - 25)]


def test_criteria_out_of_range() -> None:
    run = columns_run(np.ones((1, 1, make_spans(DOCUMENT_TOKENS, 3)[1] + 3)))
    with pytest.raises(ap.InputError, match=r"threshold is 0.5; .* more than 1"):
        find_secondary_sinks(run, threshold=0.5)
    with pytest.raises(ap.InputError, match=r"fraction is 3; .* between 0 and 1"):
        find_secondary_sinks(run, fraction=3)
    run.column_mass = None
    with pytest.raises(ap.InputError, match="has no mass of single tokens; measure it with extras"):
        find_secondary_sinks(run)


def encoded_prompt(document_tokens: tuple[int, ...]) -> EncodedPrompt:
    spans, n_prompt = make_spans(document_tokens, n_answer=0)
    ids = tuple(range(n_prompt))
    return EncodedPrompt("text", ids, tuple((i, i + 1) for i in ids), spans[:-1], ("a warning",), "")


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.data())
def test_apart_keeps_the_partition(document_tokens: list[int], data: st.DataObject) -> None:
    encoded = encoded_prompt(tuple(document_tokens))
    positions = data.draw(st.lists(st.integers(1, encoded.n_tokens - 1), unique=True))
    finer = apart(encoded, positions)
    check_partition(finer.spans, encoded.n_tokens)
    before = {token: span for span in encoded.spans for part in span.segments for token in range(*part)}
    after = {token: span for span in finer.spans for part in span.segments for token in range(*part)}
    for token, span in after.items():
        was = before[token]
        if token in positions:
            document = was.document if was.kind == "document" else None
            assert span == Span("sink", f"sink:{token}", document, ((token, token + 1),))
        else:
            assert (span.kind, span.name, span.document) == (was.kind, was.name, was.document)
    starts = [span.segments[0][0] for span in finer.spans if span.segments]
    assert starts == sorted(starts)
    documents = [span.document for span in finer.spans if span.kind == "document"]
    assert documents == list(range(len(document_tokens)))
    assert replace(finer, spans=encoded.spans, warnings=encoded.warnings) == encoded


def test_a_document_of_sinks_alone_is_kept_and_said() -> None:
    encoded = encoded_prompt((3, 2, 0))
    (start, stop) = next(span for span in encoded.spans if span.document == 1 and span.kind == "document").segments[0]
    finer = apart(encoded, tuple(range(start, stop)))
    names = [span.name for span in finer.spans]
    at = names.index("d1")
    assert finer.spans[at].segments == ()
    assert names[at + 1 : at + 3] == [f"sink:{start}", f"sink:{start + 1}"]
    assert finer.warnings == ("a warning", 'document 1 ("d1") has no tokens besides its secondary sinks')
    assert apart(encoded, ()) is encoded


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([0], "secondary sink 0 is a sink of its own already"),
        ([3, 999], "secondary sink 999 is outside the prompt, which has"),
        ([-1], "secondary sink -1 is outside the prompt"),
        ([4, 3, 4], "secondary sink 4 is given twice"),
        ([4.0], "secondary sink 4.0 is no position"),
        ([True], "secondary sink True is no position"),
        (7, "secondary_sinks is 7; give the positions"),
    ],
)
def test_positions_that_cannot_be_set_apart(make_lm: Any, positions: Any, message: str) -> None:
    prompt = ap.Prompt(["Refunds take 30 days.", "Members wait less."], "How long?")
    with pytest.raises(ap.InputError, match=message):
        ap.measure(make_lm(), prompt, answer="30", secondary_sinks=positions)


def test_what_was_found_can_be_given_as_it_is(make_lm: Any) -> None:
    prompt = ap.Prompt(["Refunds take 30 days.", "Members wait less."], "How long?")
    encoded = prompt.encode(make_lm().tokenizer)
    start = next(span for span in encoded.spans if span.document == 1 and span.kind == "document").segments[0][0]
    found = [ap.SecondarySink(layer, start + place, 1, 0, 0.5, 99.0) for layer, place in ((0, 1), (2, 1), (2, 0))]
    assert apart(encoded, found) == apart(encoded, [start, start + 1])
    run = ap.measure(make_lm(), prompt, answer="30", secondary_sinks=found)
    assert [span.name for span in run.spans if span.document == 1 and span.kind == "sink"] == [
        f"sink:{start}",
        f"sink:{start + 1}",
    ]


def test_a_curve_sets_sinks_apart_as_the_budget_does_and_says_so(make_lm: Any) -> None:
    prompt = ap.Prompt(["Refunds take 30 days.", "Members wait less."], "How long?")
    plain = ap.measure(make_lm(), prompt, answer="30")
    start = plain.spans[plain.document_spans[1]].segments[0][0]
    run = ap.measure(make_lm(), prompt, answer="30", secondary_sinks=[start])
    assert run.curve("mass").values.sum() == pytest.approx(run.budget()["document"], rel=1e-6)
    np.testing.assert_allclose(run.curve("mass", with_sinks=True).values, plain.curve("mass").values, rtol=1e-5)
    assert repr(run.curve("mass")).startswith("Curve(mass, secondary sinks apart: ")
    assert repr(run.curve("mass", with_sinks=True)).startswith("Curve(mass, secondary sinks counted: ")
    assert run.curve().to_dict()["secondary_sinks"] == "apart"
    assert repr(plain.curve()).startswith("Curve(share: ")
    assert plain.curve().to_dict()["secondary_sinks"] is None


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_oss", "bloom"])
@pytest.mark.parametrize("answer", ["47 days.", None], ids=["forced", "generated"])
def test_finer_spans_add_up(make_lm: Any, prompts: list[ap.Prompt], family: str, answer: str | None) -> None:
    lm = make_lm(family)
    coarse = ap.measure(lm, prompts[2], answer=answer, max_new_tokens=3)
    positions = np.array([30, 5, 31, 70])
    fine = ap.measure(lm, prompts[2], answer=answer, max_new_tokens=3, secondary_sinks=positions)
    assert len(fine.spans) == len(coarse.spans) + 4
    for number, span in enumerate(coarse.spans):
        inside = [
            i
            for i, piece in enumerate(fine.spans)
            if piece.name == span.name
            or any(a <= p[0] < b for p in piece.segments if piece.kind == "sink" for a, b in span.segments)
        ]
        assert fine.row_mass is not None
        assert coarse.row_mass is not None
        summed = fine.row_mass[..., inside].sum(-1)
        np.testing.assert_allclose(summed, coarse.row_mass[..., number], atol=1e-6, rtol=0)
        np.testing.assert_array_equal(fine.visible[..., inside].sum(-1), coarse.visible[..., number])


def planted_lm(make_lm: Any, token: int, logit: float) -> Any:
    """Every token gets the same attention in every head, but for one token id, which gets exp(logit) times as much."""
    lm = make_lm("qwen2", num_key_value_heads=4, vocab_size=len(bytelevel()))
    model = lm.model.model
    with torch.no_grad():
        model.embed_tokens.weight[:, 0] = 0.0
        model.embed_tokens.weight[token] = 0.0
        model.embed_tokens.weight[token, 0] = 1.0
        for layer in model.layers:
            attention = layer.self_attn
            for projection in (attention.q_proj, attention.k_proj, attention.o_proj, layer.mlp.down_proj):
                projection.weight.zero_()
            attention.q_proj.bias.zero_()
            attention.k_proj.bias.zero_()
            # The pair of dimensions that turns least: a thousandth of a radian from token to token.
            attention.q_proj.bias[3::8] = 1.0
            normed = layer.input_layernorm(model.embed_tokens.weight[token])[0]
            attention.k_proj.weight[3::8, 0] = logit / (attention.scaling * normed)
    return lm


def test_planted_model(make_lm: Any) -> None:
    """Set apart, the planted sink leaves documents that get exactly what their lengths say."""
    documents = [
        "The dog sleeps here now. " * 2,
        "A fox runs by. Zebra! It waits for it. ",
        "One more day goes by. " * 2,
    ]
    prompt, null = ap.Prompt(documents, "Which?"), ap.Prompt(documents, "N/A")
    encoded = null.encode(bytelevel(), strict=False)
    position = next(i for i, (start, stop) in enumerate(encoded.offsets) if "Z" in encoded.text[start:stop])
    token = encoded.token_ids[position]
    assert encoded.token_ids.count(token) == 1
    lm = planted_lm(make_lm, token, logit=5.0)
    found = find_secondary_sinks(ap.measure(lm, null, answer="N/A", extras=("columns",)))
    assert [(sink.layer, sink.position, sink.document) for sink in found] == [(i, position, 1) for i in range(3)]
    for sink in found:
        assert sink.excess == pytest.approx(np.exp(5.0), rel=0.02)  # the pair turns by 0.1 over the prompt
    run = ap.measure(lm, prompt, answer="One", secondary_sinks=sink_positions(found))
    raw = ap.measure(lm, prompt, answer="One")
    share = run.document_mass() / run.document_mass().sum(-1, keepdims=True)
    lengths = np.array([run.spans[i].n_tokens for i in run.document_spans])
    np.testing.assert_allclose(share, np.broadcast_to(lengths / lengths.sum(), share.shape), atol=1e-6)
    assert (raw.document_mass()[..., 1] > 3 * raw.document_mass()[..., 0]).all()
