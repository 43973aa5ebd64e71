"""Scores of heads: a planted model, hand-made runs against plain loops, a real model against its dense attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from planted_models import retrieval_lm
from runs import make_run
from toy_tokenizers import BUILDERS, CHATML, with_template

import attnprobe as ap
from attnprobe.heads import HeadScores, RunScores, _distances, by_question, head_scores, run_scores
from attnprobe.heads_needle import needle_place, needle_tokens, recalls
from attnprobe.norms import head_values
from attnprobe.run import Run

EXTRAS = ("top", "distance")


@pytest.fixture(scope="module")
def planted() -> Any:
    return retrieval_lm()


@pytest.fixture(scope="module")
def written(planted: Any) -> Run:
    return ap.measure(planted.lm, planted.prompt, max_new_tokens=5, extras=EXTRAS)


def copying_run(seed: int = 0, **changes: Any) -> Run:
    """A run whose tokens are few words, so that heaviest keys are often what comes next."""
    run = make_run(seed, document_tokens=(5, 9, 4), n_answer=6, extras=True, **changes)
    ids = tuple(int(i) for i in np.random.default_rng(seed).integers(0, 3, len(run.token_ids)))
    return replace(run, token_ids=ids, answer_ids=ids[run.n_prompt :])


def tokens_of(run: Run, document: int) -> list[int]:
    (span,) = (span for span in run.spans if span.kind == "document" and span.document == document)
    return [token for start, stop in span.segments for token in range(start, stop)]


def test_the_planted_head_comes_first(planted: Any, written: Run) -> None:
    answers = [planted.answer]
    scores = run_scores(written, 2, needle="answer", answers=answers, tokenizer=planted.lm.tokenizer)
    assert scores.recalled
    assert scores.n_needle == 5
    wanted = np.zeros((3, 4))
    wanted[planted.head] = 1
    wanted[planted.gazing] = 0.2
    np.testing.assert_allclose(scores.retrieval, wanted, atol=1e-12)
    wanted[planted.gazing] = 1  # it looks at the needle all the time, but mostly at another token than is written
    np.testing.assert_allclose(scores.in_needle, wanted, atol=1e-12)
    assert scores.advantage[planted.head] == scores.advantage.max()
    whole = run_scores(written, 2, answers=answers)
    assert whole.n_needle == len(tokens_of(written, 2)) == 12
    np.testing.assert_allclose(whole.retrieval, scores.retrieval * 5 / 12, atol=1e-12)
    other = run_scores(written, 1, answers=answers)
    assert not other.retrieval.any()


def test_heads_that_look_at_the_first_token_are_sinks(planted: Any, written: Run) -> None:
    scores = run_scores(written, 2)
    assert scores.sink[planted.head] < 0.1
    assert scores.sink[planted.gazing] < 0.1
    assert np.delete(scores.sink.ravel(), [4 * planted.head[0] + planted.head[1], 1]).min() > 0.9


@pytest.mark.parametrize("learned_sink", [False, True])
@pytest.mark.parametrize("secondary", [(), (11, 16)])
def test_scores_of_a_run_against_plain_loops(learned_sink: bool, secondary: tuple[int, ...]) -> None:
    n_copied = 0
    for seed in range(4):
        run = copying_run(seed, learned_sink=learned_sink, secondary=secondary)
        assert run.top_mass is not None
        assert run.top_token is not None
        scores = run_scores(run, 1)
        needle = set(tokens_of(run, 1)) | {p for p in secondary if p > 0 and _owner(run, p) == 1}
        n_layers, n_heads, n_rows, n_spans = run.top_mass.shape
        for layer in range(n_layers):
            for head in range(n_heads):
                copied = inside = 0
                for row in range(n_rows):
                    best, key = -1.0, -1
                    for span in range(n_spans):
                        if run.top_mass[layer, head, row, span] > best:
                            best, key = run.top_mass[layer, head, row, span], run.top_token[layer, head, row, span]
                    inside += key in needle
                    copied += key in needle and run.token_ids[key] == run.token_ids[run.n_prompt + row]
                n_copied += copied
                assert scores.retrieval[layer, head] == pytest.approx(copied / len(needle), abs=1e-12)
                assert scores.in_needle[layer, head] == pytest.approx(inside / n_rows, abs=1e-12)
                sinks = sum(
                    run.mass[layer, head, i] for i, s in enumerate(run.spans) if s.kind in ("sink", "learned_sink")
                )
                assert scores.sink[layer, head] == pytest.approx(sinks, abs=1e-6)
        np.testing.assert_array_equal(scores.advantage, head_values(run, "advantage")[..., 1])
    assert n_copied > 10


def _owner(run: Run, position: int) -> int | None:
    return next(s.document for s in run.spans if any(a <= position < b for a, b in s.segments))


def test_scores_against_the_dense_attention_of_a_model(make_lm: Any) -> None:
    lm = make_lm("llama", attn_implementation="eager")
    texts = [f"Item {i} is stored in shelf {3 * i} of hall {i % 3}. " * 2 for i in range(3)]
    prompt = ap.Prompt(texts, "Where is item 1?", template="plain")
    run = ap.measure(lm, prompt, answer="shelf 3 of hall 1", extras=EXTRAS)
    with torch.no_grad():
        dense = lm.model(torch.tensor([run.token_ids]), output_attentions=True).attentions
    weights = torch.cat(dense).double().numpy()[:, :, run.n_prompt - 1 : -1]  # [layer, head, row, key]
    scores = run_scores(run, 1)
    needle, ids = tokens_of(run, 1), np.array(run.token_ids)
    keys = weights.argmax(axis=-1)
    inside = np.isin(keys, needle)
    np.testing.assert_allclose(scores.in_needle, inside.mean(-1), atol=1e-12)
    copied = inside & (ids[keys] == ids[run.n_prompt :])
    np.testing.assert_allclose(scores.retrieval, copied.sum(-1) / len(needle), atol=1e-12)
    rows = run.n_prompt - 1 + np.arange(weights.shape[2])[:, None]
    distance = rows - np.arange(len(ids))
    beside = weights[..., 1:]
    distance = distance[:, 1:]
    assert (distance >= 64).any()
    near = np.where(distance < 64, beside, 0).sum((-1, -2)) / beside.sum((-1, -2))
    np.testing.assert_allclose(scores.locality, near, atol=1e-6)
    for place in np.ndindex(scores.distance.shape):
        order = np.argsort(distance.ravel(), kind="stable")
        part = np.cumsum(beside[place].ravel()[order]) / beside[place].sum()
        median = 1 + distance.ravel()[order][np.argmax(part >= 0.5)]
        # Bins double: the interpolated median lies in the bin of the exact one.
        low = 2.0 ** np.ceil(np.log2(median) - 1)
        assert low - 1e-6 <= 2 ** scores.distance[place] <= 2 * low + 1e-6


def test_median_distance_in_closed_form() -> None:
    run = make_run(3, document_tokens=(40, 40, 40), extras=True, windows=(None, None))
    assert run.distance_mass is not None
    total = run.distance_mass.sum(-1, dtype=np.float64)
    for bin, wanted, near in ((0, 0.0, 1.0), (1, 0.5, 1.0), (3, 2.5, 1.0), (6, 5.5, 1.0), (7, 6.5, 0.0)):
        mass = np.zeros(run.distance_mass.shape)
        mass[..., bin] = total
        scores = run_scores(replace(run, distance_mass=mass.astype(np.float32)), 0)
        np.testing.assert_allclose(scores.distance, wanted, atol=1e-6)
        np.testing.assert_allclose(scores.locality, near, atol=1e-6)


@pytest.mark.parametrize("tokenizer", list(BUILDERS))
@pytest.mark.parametrize("template", ["plain", "chat"])
def test_the_needle_by_its_characters(make_lm: Any, tokenizer: str, template: str) -> None:
    lm = make_lm("llama", tokenizer)
    if template == "chat":
        lm = ap.LanguageModel(lm.model, with_template(lambda: lm.tokenizer, CHATML))
    text = "Refunds take 147 days. Members wait 47  days, no more. It is 47 days."
    prompt = ap.Prompt(["A quick fox.", text, "The policy."], "How long?", template=template)
    run = ap.measure(lm, prompt, answer="47", extras=EXTRAS)
    encoded = prompt.encode(lm.tokenizer)
    start = encoded.text.index(text)

    def wanted(first: int, last: int) -> tuple[int, ...]:
        return tuple(
            token
            for token, (a, b) in enumerate(encoded.offsets)
            if encoded.text[max(a, start + first) : min(b, start + last)].strip()
        )

    place = text.index("47  days")
    answer = needle_tokens(run, 1, "answer", ["47 Days"], lm.tokenizer)
    assert answer == wanted(place, place + len("47  days"))
    sentence = needle_tokens(run, 1, "sentence", ["47 days"], lm.tokenizer)
    assert sentence == wanted(text.index("Members"), text.index(" It is"))
    assert set(answer) < set(sentence) < set(needle_tokens(run, 1))


@pytest.mark.parametrize(
    ("text", "answers", "held"),
    [
        ("It is 1470 or 47.", ["47"], "47"),
        ("About 30,000 or 3.30 and 30.", ["30"], "30"),
        ("Unlike kettles, a Kettle sings.", ["kettle"], "Kettle"),
        ("First b, then a.", ["a", "b"], "b"),
        ("他住在北京市。", ["北京"], "北京"),
        ("A value (x+1).", ["x+1"], "x+1"),
        ("one\ntwo three", ["one two"], "one\ntwo"),
    ],
)
def test_where_an_answer_stands(text: str, answers: list[str], held: str) -> None:
    start, stop = needle_place(text, "answer", answers)
    assert text[start:stop] == held
    assert (start, stop) == (text.rindex(held), text.rindex(held) + len(held))


def test_a_needle_that_is_not_there_is_refused() -> None:
    with pytest.raises(ap.InputError, match=r'does not hold the answer "47" word for word; use needle="sentence"'):
        needle_place("It is 1470.", "answer", ["47"])
    with pytest.raises(ap.InputError, match="has no sentence that holds the answer"):
        needle_place("It is. Forty days.", "sentence", ["47"])
    with pytest.raises(ap.InputError, match="no answer is known"):
        needle_place("It is.", "sentence", [])


def test_which_answers_recall() -> None:
    run = make_run(0, document_tokens=(5, 9, 4), n_answer=6, extras=True)  # its answer is "47 days"
    needle = tokens_of(run, 0)[:4]
    assert recalls(run, needle, ["forty-seven days"])
    assert not recalls(run, needle, ["30 days"])
    assert not recalls(run, needle)
    ids = list(run.token_ids)
    for n_held, recalled in ((2, False), (3, True)):
        ids[run.n_prompt : run.n_prompt + n_held] = [ids[p] for p in needle[:n_held]]
        held = replace(run, token_ids=tuple(ids), answer_ids=tuple(ids[run.n_prompt :]))
        assert recalls(held, needle) is recalled
    ids[needle[1]] = ids[needle[2]] = ids[needle[0]]  # a token that is written once recalls one of three
    ids[run.n_prompt : run.n_prompt + 3] = [ids[needle[0]], 7, 8]
    repeated = replace(run, token_ids=tuple(ids), answer_ids=tuple(ids[run.n_prompt :]))
    assert not recalls(repeated, needle)


def test_orders_of_a_question_are_averaged_and_only_recalled_ones_count() -> None:
    plain = {"document_tokens": (5, 9, 4), "n_answer": 6, "extras": True}  # answers share no token with documents
    runs = [copying_run(seed) if seed in (0, 2) else make_run(seed, **plain) for seed in range(5)]
    ids = ["a", "b", "a", "a", "b"]
    # The answer of every run is "47 days".
    answers = [["47 days"], ["30"], ["47 days"], ["30"], ["30"]]
    scores = head_scores(runs, [0, 1, 2, 0, 1], questions=ids, answers=answers)
    each = [run_scores(run, gold, answers=a) for run, gold, a in zip(runs, [0, 1, 2, 0, 1], answers, strict=True)]
    assert [one.recalled for one in each] == [True, False, True, False, False]
    assert scores.questions == ("a", "b")
    assert scores.n_orders.tolist() == [3, 2]
    assert scores.n_recalled.tolist() == [2, 0]
    np.testing.assert_allclose(scores.retrieval[0], (each[0].retrieval + each[2].retrieval) / 2)
    assert np.isnan(scores.retrieval[1]).all()
    np.testing.assert_allclose(scores.sink[1], (each[1].sink + each[4].sink) / 2)
    np.testing.assert_allclose(scores.mean("retrieval"), scores.retrieval[0])
    np.testing.assert_allclose(scores.mean("sink"), scores.sink.mean(axis=0))


def test_wrong_inputs_are_named(written: Run, planted: Any) -> None:
    good = copying_run()
    for run, gold, options, message in (
        (copying_run(rows="answer"), 0, {}, r'has the rows "answer".*rows="predicting"'),
        (make_run(0), 0, {}, r"run \'q1\' lacks heaviest tokens or distances; measure with extras="),
        (good, 3, {}, "gold document 3 is not in the run, which has documents 0 to 2"),
        (good, True, {}, "gold document True"),
        (good, 0, {"needle": "word"}, "needle 'word' is unknown; expected one of document, sentence, answer"),
        (good, 0, {"needle": "answer", "answers": ["x"]}, "pass the run's tokenizer"),
        (good, 0, {"answers": "x"}, "answers is the text 'x'; give a list"),
        (make_run(0, document_tokens=(0, 4), extras=True), 0, {}, "has no tokens"),
        (
            good,
            0,
            {"needle": "answer", "answers": ["x"], "tokenizer": planted.lm.tokenizer},
            "does not give the run's own tokens",
        ),
    ):
        with pytest.raises(ap.InputError, match=message):
            run_scores(run, gold, **options)
    with pytest.raises(ap.InputError, match="1 gold documents for 2 runs"):
        head_scores([good, good], [0])
    with pytest.raises(ap.InputError, match="no runs to score"):
        head_scores([], [])
    with pytest.raises(ap.InputError, match="models with different layers or heads"):
        head_scores([good, written], [0, 0])
    with pytest.raises(ap.InputError, match="score 'luck' is unknown"):
        head_scores([good], [0]).values("luck")


def test_heads_without_mass_beside_the_sinks_have_no_distance() -> None:
    run = copying_run()
    assert run.distance_mass is not None
    assert run.distance_edges is not None
    near, middle = _distances(np.zeros(run.distance_mass.shape), np.array(run.distance_edges))
    assert np.isnan(near).all()
    assert np.isnan(middle).all()


def test_by_question_keeps_the_order_of_questions() -> None:
    one = run_scores(copying_run(), 0)
    scores = by_question([one, one, one], ["z", "a", "z"])
    assert isinstance(one, RunScores)
    assert isinstance(scores, HeadScores)
    assert scores.questions == ("z", "a")
