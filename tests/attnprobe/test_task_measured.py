"""Cells of tasks, measured: the same numbers as plain measurements, with the prompt fed once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from planted_models import additive_lm

import attnprobe as ap
from attnprobe.tasks.cell import TaskCell
from attnprobe.tasks.filler_control import filler_control
from attnprobe.tasks.items import read_items
from attnprobe.tasks.measured import evidence_arrays, greedy_reply, measure_cell
from attnprobe.tasks.needle_sweep import needle_sweep
from attnprobe.tasks.niah import niah
from attnprobe.tasks.outcome import outcome_of


def fed_tokens(monkeypatch: pytest.MonkeyPatch, lm: Any) -> list[int]:
    """Number of tokens of every forward call from now on."""
    fed: list[int] = []

    def note(module: Any, args: Any, kwargs: Any) -> None:
        fed.append(int((kwargs["input_ids"] if "input_ids" in kwargs else args[0]).shape[1]))

    lm.model.register_forward_pre_hook(note, with_kwargs=True)
    return fed


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "mistral"])
def test_a_cell_has_the_numbers_of_plain_measurements(family: str, make_lm: Any) -> None:
    lm = make_lm(family)
    item = read_items()[0]
    spec = next(s for s in needle_sweep([item], 4, seed=3) if s.condition == {"position": 2})
    cell = spec.build(lm.tokenizer)
    outcome, run = measure_cell(lm, cell, max_new_tokens=6)

    plain = ap.measure(lm, cell.prompt, answer=cell.gold)
    assert outcome.logprob == pytest.approx(float(plain.answer_logprob.sum()), abs=1e-4)
    foil = ap.measure(lm, cell.prompt, answer=cell.foil)
    assert outcome.foil_logprob == pytest.approx(float(foil.answer_logprob.sum()), abs=1e-4)
    mass, advantage = (plain.curve(norm).values[2] for norm in ("mass", "advantage"))
    if family == "mistral":  # its window ends behind the needle
        assert np.isnan(mass)
        assert (outcome.mass, outcome.advantage) == (None, None)
    else:
        assert outcome.mass == pytest.approx(mass, abs=1e-6)
        assert outcome.advantage == pytest.approx(advantage, abs=1e-4)
    own = ap.measure(lm, cell.prompt, max_new_tokens=6)
    assert outcome.facts["reply"] == own.answer
    assert outcome.strict in (0, 1)
    assert run.token_ids == plain.token_ids
    assert outcome_of(outcome.to_dict(), "a line") == outcome


def test_the_prompt_is_fed_once(monkeypatch: pytest.MonkeyPatch, make_lm: Any) -> None:
    lm = make_lm("llama")
    cell = needle_sweep(read_items()[:1], 4)[0].build(lm.tokenizer)
    n_prompt, prefix = cell.prompt.encode(lm.tokenizer).n_tokens, ap.PrefixCache()
    measure_cell(lm, cell, prefix=prefix, max_new_tokens=4)  # the model's probe of its cache is over
    prefix.clear()
    fed = fed_tokens(monkeypatch, lm)
    measure_cell(lm, cell, prefix=prefix, max_new_tokens=4)
    assert sum(fed) < n_prompt + 3 * 40
    assert sum(n > n_prompt // 2 for n in fed) == 1


def test_cells_that_begin_alike_share_their_beginning(make_lm: Any) -> None:
    lm = make_lm("llama")
    cells = [s.build(lm.tokenizer) for s in needle_sweep(read_items()[:1], 4) if "position" in s.condition]
    prefix = ap.PrefixCache()
    apart = [measure_cell(lm, cell, max_new_tokens=3)[0] for cell in cells]
    together = [measure_cell(lm, cell, prefix=prefix, max_new_tokens=3)[0] for cell in cells]
    for one, other in zip(apart, together, strict=True):
        assert one.facts["reply"] == other.facts["reply"]
        for name in ("logprob", "foil_logprob", "mass", "advantage"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), abs=2e-5)


def test_baselines_and_several_needles(make_lm: Any) -> None:
    lm = make_lm("llama")
    specs = needle_sweep(read_items()[:1], 3)
    closed = next(s for s in specs if s.condition.get("baseline") == "closed_book")
    oracle = next(s for s in specs if s.condition.get("baseline") == "oracle")
    outcome, _ = measure_cell(lm, closed.build(lm.tokenizer), max_new_tokens=0)
    assert (outcome.mass, outcome.advantage, outcome.strict) == (None, None, None)
    assert outcome.logprob is not None
    outcome, run = measure_cell(lm, oracle.build(lm.tokenizer), max_new_tokens=0)
    assert outcome.advantage is None
    assert outcome.mass == pytest.approx(run.budget()["document"], abs=1e-6)

    spec = next(
        s for s in niah(read_items()[:1], lengths=[450], depths=[0.5], mode="multi_value") if "depth" in s.condition
    )
    cell = spec.build(lm.tokenizer)
    assert len(cell.needles) > 1
    outcome, run = measure_cell(lm, cell, max_new_tokens=0)
    own = [run.document_spans[needle] for needle in cell.needles]
    rest = [span for span in run.document_spans if span not in own]
    assert run.row_mass is not None
    mass, visible = run.row_mass.astype(np.float64), run.visible[:, None].astype(np.float64)
    advantage = np.log(mass[..., own].sum(-1) / visible[..., own].sum(-1)) - np.log(
        mass[..., rest].sum(-1) / visible[..., rest].sum(-1)
    )
    assert outcome.mass == pytest.approx(mass[..., own].sum(-1).mean(), abs=1e-6)
    assert outcome.advantage == pytest.approx(advantage.mean(), abs=1e-6)


def test_a_mass_that_underflows_is_an_advantage_all_the_same() -> None:
    lm = additive_lm(["gold", "a", "b", "c"], word_logits={"gold": -150.0})
    documents = [ap.Document("a b"), ap.Document("gold gold"), ap.Document("c b")]
    prompt = ap.Prompt(documents, "a?", template="plain", instruction=None)
    cell = TaskCell("needle_sweep", "one", {"position": 1}, 0, prompt, "b c", ("b c",), (1,), None, {})
    outcome, run = measure_cell(lm, cell, max_new_tokens=0)
    assert run.row_mass is not None
    np.testing.assert_array_equal(run.row_mass[..., run.document_spans[1]], np.finfo(np.float32).smallest_subnormal)
    smallest = float(np.log(np.finfo(np.float32).smallest_subnormal))
    others = np.log(run.row_mass[..., [run.document_spans[0], run.document_spans[2]]].sum(-1, dtype=np.float64) / 4)
    assert outcome.advantage == pytest.approx(float((smallest - np.log(2) - others).mean()), abs=1e-6)


def test_whether_the_length_was_hit_is_not_whether_the_reply_matches(make_lm: Any) -> None:
    lm = make_lm("llama")
    spec = next(s for s in niah(read_items()[:1], lengths=[450], depths=[0.5]) if "depth" in s.condition)
    cell = spec.build(lm.tokenizer)
    outcome, run = measure_cell(lm, cell, max_new_tokens=3)
    assert outcome.facts["reply"] != cell.gold
    assert (run.n_prompt, outcome.facts["length_hit"], outcome.facts["exact_match"]) == (450, True, 0)


def test_filler_control_runs(make_lm: Any) -> None:
    lm = make_lm("llama")
    for spec in filler_control(read_items()[:1], lengths=[450], fillers=["repeated"]):
        outcome, _ = measure_cell(lm, spec.build(lm.tokenizer), max_new_tokens=2)
        assert outcome.logprob is not None


def test_a_reply_ends_where_generation_ends(make_lm: Any) -> None:
    lm = make_lm("llama")
    cell = needle_sweep(read_items()[:1], 3)[0].build(lm.tokenizer)
    encoded = cell.prompt.encode(lm.tokenizer)
    own = ap.measure(lm, cell.prompt, max_new_tokens=8)
    lm.model.generation_config.eos_token_id = own.answer_ids[3]
    reply, is_cut = greedy_reply(lm, encoded, 8, ap.PrefixCache())
    end = own.answer_ids.index(own.answer_ids[3])
    assert reply == lm.tokenizer.decode(own.answer_ids[:end], skip_special_tokens=True)
    assert not is_cut
    assert greedy_reply(lm, encoded, end, ap.PrefixCache())[1], "the limit comes before the end"


def test_the_arrays_of_the_evidence_are_undefined_in_layers_that_do_not_see_it(make_lm: Any) -> None:
    lm = make_lm("gpt_oss")  # every other layer has a window that ends behind the needle
    cell = next(s for s in needle_sweep(read_items()[:1], 4) if s.condition == {"position": 1}).build(lm.tokenizer)
    outcome, run = measure_cell(lm, cell, max_new_tokens=0)
    mass, advantage = evidence_arrays(run, cell.needles)
    assert np.isnan(mass).all(axis=1).tolist() == [True, False, True]
    assert np.isnan(advantage).all(axis=1).tolist() == [True, False, True]
    plain = ap.measure(lm, cell.prompt, answer=cell.gold)
    span = plain.document_spans[1]
    np.testing.assert_allclose(mass[1], plain.mass[1, :, span], atol=1e-6)
    assert outcome.mass == pytest.approx(float(plain.mass[..., span].mean()), abs=1e-6)
    assert outcome.advantage == pytest.approx(float(advantage[1].mean()), abs=1e-9)
    nothing = evidence_arrays(run, ())
    assert all(np.isnan(array).all() for array in nothing)
