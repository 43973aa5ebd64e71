"""The whole pipeline, from prompt to fit, on models whose attention is known in closed form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from planted_models import additive_lm, article_logits, retrieval_lm

import attnprobe as ap
from attnprobe.rotating import rotate

ALPHA = 0.45
WORDS = [f"{first}{second}" for first in "bcdfghklmn" for second in ("ad", "em", "it", "ow", "un")]
QUESTION = "which bad hem"
ANSWER = "cit dow fun gad"


def documents(K: int, length: int = 5) -> list[str]:
    """K documents of different words and equal token counts."""
    return [" ".join(WORDS[(5 * d + i) % len(WORDS)] for i in range(length)) for d in range(K)]


def rotated(texts: list[str], by: int) -> ap.Prompt:
    return ap.Prompt(texts[by:] + texts[:by], QUESTION, template="plain")


def planted_curve(K: int) -> tuple[np.ndarray, float]:
    """The article's shares, and head over middle, computed here from its formula."""
    weights = np.array([math.exp(-ALPHA * i) + math.exp(-ALPHA * (K - 1 - i)) for i in range(K)])
    middle = {3: [1], 5: [1, 2, 3], 10: [4, 5]}[K]
    return weights / weights.sum(), float(weights[0] / weights[middle].mean())


def test_a_blank_model_is_even() -> None:
    """Nothing planted: density 1 for every document in every layer, head and row."""
    lm = additive_lm(WORDS)
    texts = ["bad", " ".join(WORDS[:9]), " ".join(WORDS[9:30]), "cad cem"]
    for markers in ("none", "xml", "numbered"):
        run = ap.measure(lm, ap.Prompt(texts, QUESTION, markers=markers, template="plain"), answer=ANSWER)
        for layer in run.layers:
            for head in range(run.mass.shape[1]):
                values = run.curve("density", layers=layer, heads=head).values
                np.testing.assert_allclose(values, 1, atol=1e-6)
        assert run.row_mass is not None
        even = run.visible[:, None] / run.visible.sum(-1)[:, None, :, None]
        np.testing.assert_allclose(run.row_mass, np.broadcast_to(even, run.row_mass.shape), atol=1e-6)


@pytest.mark.parametrize("K", [3, 5, 10])
@pytest.mark.parametrize("generated", [False, True], ids=["forced", "generated"])
def test_planted_position_bias_comes_back(K: int, generated: bool) -> None:
    texts = documents(K)
    logits = article_logits(additive_lm(WORDS), rotated(texts, 0), ALPHA)
    lm = additive_lm(WORDS, logits)
    how: dict[str, Any] = {"max_new_tokens": 4} if generated else {"answer": ANSWER}
    shares, head_middle = planted_curve(K)
    names = set()
    for by in range(K):
        run = ap.measure(lm, rotated(texts, by), **how)
        names.add(tuple(run.token_ids))
        for norm in ("share", "log_share"):
            curve = run.curve(norm)
            np.testing.assert_allclose(curve.values, shares, atol=1e-6)
            assert curve.head_middle == pytest.approx(head_middle, rel=1e-5)
            assert curve.tail_middle == pytest.approx(head_middle, rel=1e-5)
        fit = run.curve().fit()
        assert fit.parameters["alpha"] == pytest.approx(ALPHA, abs=1e-3)
        assert fit.converged
    assert len(names) == K  # other texts in every rotation
    np.testing.assert_allclose(ap.effective_attention(K, ALPHA), shares, atol=1e-12)


def test_planted_masses_are_exact_in_every_row() -> None:
    """Not only the shares: the whole budget of every row, from the planted logits."""
    texts = documents(5)
    logits = article_logits(additive_lm(WORDS), rotated(texts, 0), ALPHA)
    words = {"bad": 1.5, "cit": -2.0, "hem": 3.0, ":": 0.7}
    lm = additive_lm(WORDS, logits, words, position_layers=(0, 2), word_layers=(1, 2))
    run = ap.measure(lm, rotated(texts, 2), answer=ANSWER)
    ids, assigned = run.token_ids, {lm.tokenizer.convert_tokens_to_ids(word): value for word, value in words.items()}
    by_position = np.pad(logits, (0, len(ids) - len(logits)))
    by_word = np.array([assigned.get(number, 0.0) for number in ids])
    assert run.row_mass is not None
    for layer, planted in enumerate((by_position, by_word, by_position + by_word)):
        for row in range(len(run.answer_ids)):
            weights = np.exp(planted[: run.n_prompt + row])
            weights /= weights.sum()
            for number, span in enumerate(run.spans):
                wanted = sum(weights[start:stop].sum() for start, stop in span.segments)
                np.testing.assert_allclose(run.row_mass[layer, :, row, number], wanted, atol=1e-6)


def test_content_moves_with_its_document() -> None:
    """Position and content add in logits: over all rotations the geometric mean keeps the planted position curve."""
    K = 5
    texts = documents(K)
    logits = article_logits(additive_lm(WORDS), rotated(texts, 0), ALPHA)
    content = np.array([0.0, 1.2, -0.8, 0.5, -0.3])
    words = {word: float(value) for text, value in zip(texts, content, strict=True) for word in text.split()}
    lm = additive_lm(WORDS, logits, words)
    shares, _ = planted_curve(K)
    logs = np.zeros((K, K))
    for by in range(K):
        values = ap.measure(lm, rotated(texts, by), answer=ANSWER).curve().values
        wanted = shares * np.exp(np.roll(content, -by))
        np.testing.assert_allclose(values, wanted / wanted.sum(), atol=1e-6)
        logs[by] = np.log(values)
    mean = np.exp(logs.mean(axis=0))
    np.testing.assert_allclose(mean / mean.sum(), shares, atol=1e-6)


def test_a_study_separates_planted_position_from_planted_content() -> None:
    """Questions whose documents have contents of very different strength: the study's fit is the planted alpha."""
    K = 5
    texts = documents(10)
    content = np.random.default_rng(3).normal(0, 1.5, len(WORDS))
    planted = article_logits(additive_lm(WORDS), rotated(texts[:K], 0), ALPHA)
    lm = additive_lm(WORDS, planted, dict(zip(WORDS, content.tolist(), strict=True)))
    prompts = [ap.Prompt(texts[n : n + K], QUESTION, template="plain", id=f"q{n}") for n in range(5)]
    study = rotate(lm, prompts, answers=[ANSWER] * 5, design="cyclic", variants=())
    shares, head_middle = planted_curve(K)
    for norm in ("share", "log_share"):
        curve = study.curve(norm)
        for profile in curve.profiles:
            np.testing.assert_allclose(profile - profile[0], np.log(shares / shares[0]), atol=1e-5)
        fit = curve.fit().fit
        assert fit.parameters["alpha"] == pytest.approx(ALPHA, abs=1e-3)
        np.testing.assert_allclose(fit.fitted, shares, atol=1e-5)
        assert curve.head_middle is not None
        assert curve.head_middle.estimate == pytest.approx(head_middle, rel=1e-4)


@pytest.fixture(scope="module")
def retrieval() -> Any:
    return retrieval_lm()


def test_the_planted_retrieval_model_writes_its_needle(retrieval: Any) -> None:
    run = ap.measure(retrieval.lm, retrieval.prompt, max_new_tokens=5)
    assert run.answer == retrieval.answer
    forced = ap.measure(retrieval.lm, retrieval.prompt, answer=retrieval.answer)
    np.testing.assert_allclose(run.mass, forced.mass, atol=1e-6)


def test_the_planted_retrieval_head_looks_at_what_is_copied(retrieval: Any) -> None:
    run = ap.measure(retrieval.lm, retrieval.prompt, answer=retrieval.answer, extras=("top",))
    document = next(n for n, span in enumerate(run.spans) if span.kind == "document" and span.document == 2)
    ids = np.array(run.token_ids)
    heaviest = run.top_mass.argmax(axis=-1)[..., None]  # [layer, head, row, 1]
    spans = heaviest[..., 0]
    tokens = ids[np.take_along_axis(run.top_token, heaviest, axis=-1)[..., 0]]
    copied = (spans == document) & (tokens == np.array(run.answer_ids))
    score = copied.mean(axis=-1)
    wanted = np.zeros_like(score)
    wanted[retrieval.head] = 1
    wanted[retrieval.gazing] = 1 / len(run.answer_ids)
    np.testing.assert_array_equal(score, wanted)


SINK = "the"
# Documents of even words, but for one in the middle of document 2.
SINK_TEXTS = [text.replace(" dit ", f" {SINK} ") for text in documents(6)]


def sink_run(times: float, **options: Any) -> tuple[Any, int]:
    """A null run of a model that gives one word ``times`` the mass of others in layer 1, and that word's position."""
    prompt = ap.Prompt(SINK_TEXTS, "bun", template="plain")
    lm = additive_lm([*WORDS, SINK], word_logits={SINK: math.log(times)}, word_layers=(1,))
    number = lm.tokenizer.convert_tokens_to_ids(SINK)
    (position,) = (p for p, token in enumerate(prompt.encode(lm.tokenizer).token_ids) if token == number)
    return ap.measure(lm, prompt, answer="bun", extras=("columns",), **options), position


def test_a_planted_secondary_sink_is_found() -> None:
    run, position = sink_run(times=200)
    (sink,) = ap.find_secondary_sinks(run)
    assert (sink.layer, sink.position, sink.document) == (1, position, 2)
    assert sink.token_id == run.token_ids[position]
    assert sink.mass == pytest.approx(200 / (200 + run.n_prompt - 1), abs=1e-6)
    assert sink.excess == pytest.approx(200, rel=1e-4)
    assert ap.sink_positions((sink,)) == (position,)


def test_a_weaker_planted_sink_is_found_by_a_lower_threshold_only() -> None:
    run, position = sink_run(times=20)
    assert ap.find_secondary_sinks(run) == ()
    (sink,) = ap.find_secondary_sinks(run, threshold=10)
    assert (sink.layer, sink.position, sink.document) == (1, position, 2)
    assert sink.excess == pytest.approx(20, rel=1e-4)


def test_a_planted_sink_set_apart_leaves_even_documents() -> None:
    run, position = sink_run(times=200)
    shares = run.curve(layers=1).values
    np.testing.assert_allclose(shares[2] / shares[0], 204 / 5, rtol=1e-4)
    run, _ = sink_run(times=200, secondary_sinks=(position,))
    (sink,) = (span for span in run.spans if span.name == f"sink:{position}")
    assert (sink.kind, sink.document, sink.segments) == ("sink", 2, ((position, position + 1),))
    even = run.curve("density", layers=1).values
    np.testing.assert_allclose(even / even[0], 1, atol=1e-5)
    np.testing.assert_allclose(run.curve(layers=1, with_sinks=True).values, shares, atol=1e-6)
