"""Going on from the keys of the last prompt gives what feeding everything gives, or feeds everything."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import FAMILIES

import attnprobe as ap
from attnprobe import batch, prefix_cache
from attnprobe.decoding import forward_parameters
from attnprobe.extras import EXTRAS
from attnprobe.prefix_cache import goes_on_exactly

TOLERANCE = 1e-5
# Every layer keeps a key for each token, and the model is told positions.
GOES_ON = {
    *("llama", "qwen2", "qwen3", "qwen3_moe", "mixtral", "gemma", "gpt2", "gpt_neox", "opt", "olmo2", "granite"),
    *("smollm3", "deepseek_v3"),
}
DOCUMENTS = ["Refunds take 30 days.", "Members wait less.", "The policy is 47 days."]
STEPS: dict[str, tuple[ap.Prompt, str, str]] = {
    "first": (ap.Prompt(DOCUMENTS, "How long do refunds take?"), "30 days.", "predicting"),
    "other question": (ap.Prompt(DOCUMENTS, "N/A"), "N/A", "predicting"),
    "other answer": (ap.Prompt(DOCUMENTS, "N/A"), "It is 47 days, not 30.", "predicting"),
    "the same": (ap.Prompt(DOCUMENTS, "N/A"), "It is 47 days, not 30.", "predicting"),
    "own rows": (ap.Prompt(DOCUMENTS, "N/A"), "It is 47 days, not 30.", "answer"),
    "other documents": (ap.Prompt(DOCUMENTS[::-1], "N/A"), "N/A", "predicting"),
    "begins otherwise": (ap.Prompt.from_text("A lazy dog sleeps."), " Well", "predicting"),
    "longer": (ap.Prompt.from_text("A lazy dog sleeps. " * 9), " Well", "answer"),
    "shorter": (ap.Prompt.from_text("A lazy dog sleeps."), " Well", "predicting"),
}


def assert_same_numbers(run: ap.Run, wanted: ap.Run) -> None:
    assert run.token_ids == wanted.token_ids
    assert run.row_mass is not None
    assert wanted.row_mass is not None
    np.testing.assert_allclose(run.row_mass, wanted.row_mass, atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(run.answer_logprob, wanted.answer_logprob, atol=TOLERANCE, rtol=0)
    np.testing.assert_array_equal(run.visible, wanted.visible)


def reused(run: ap.Run) -> int:
    number: int = run.manifest["capture"]["reused_tokens"]
    return number


def fed_ids(run: ap.Run) -> tuple[int, ...]:
    """What a forced pass feeds: the last answer token only where it has a row of its own."""
    return run.token_ids if run.rows == "answer" else run.token_ids[:-1]


def n_common(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_masses_are_those_of_feeding_everything(make_lm: Any, family: str) -> None:
    lm = make_lm(family)
    assert goes_on_exactly(lm.model) == (family in GOES_ON)
    fed: list[int] = []
    lm.model.register_forward_pre_hook(lambda module, args, kwargs: fed.append(args[0].shape[1]), with_kwargs=True)
    prefix = ap.PrefixCache()
    before: tuple[int, ...] = ()
    for prompt, answer, rows in list(STEPS.values())[: None if family in GOES_ON else 2]:
        wanted = ap.measure(lm, prompt, answer=answer, rows=rows)
        fed.clear()
        run = ap.measure(lm, prompt, answer=answer, rows=rows, prefix=prefix)
        assert_same_numbers(run, wanted)
        # The first captured row, or the one that predicts the answer's first token, is the last prompt token's.
        expected = min(n_common(before, fed_ids(run)), run.n_prompt - 1) if family in GOES_ON else 0
        assert reused(run) == expected
        assert fed == [len(fed_ids(run)) - expected]
        before = fed_ids(run)
        assert prefix.n_tokens == (len(before) if family in GOES_ON else 0)
    assert reused(wanted) == 0


@pytest.mark.parametrize("options", [{"prefill_chunk": 5}, {"capture": "live"}, {"attn": "eager"}], ids=str)
def test_every_way_of_measuring_goes_on(make_lm: Any, options: dict[str, Any]) -> None:
    lm = make_lm(attn_implementation=options.pop("attn", None))
    prefix = ap.PrefixCache()
    for number, (prompt, answer, rows) in enumerate(STEPS.values()):
        run = ap.measure(lm, prompt, answer=answer, rows=rows, prefix=prefix, **options)
        assert_same_numbers(run, ap.measure(lm, prompt, answer=answer, rows=rows))
        assert (reused(run) > 20) == (number in (1, 2, 3, 4))


def test_extras_are_those_of_feeding_everything(make_lm: Any) -> None:
    lm, prefix = make_lm(), ap.PrefixCache()
    for number, (prompt, answer, rows) in enumerate(list(STEPS.values())[:6]):
        extras = [extra for extra in EXTRAS if extra != "prompt"]  # that one needs all rows
        options: dict[str, Any] = {"answer": answer, "rows": rows, "extras": extras}
        run, wanted = ap.measure(lm, prompt, prefix=prefix, **options), ap.measure(lm, prompt, **options)
        question = next(span for span in run.spans if span.kind == "question").segments[-1][0]
        assert reused(run) <= question
        assert (reused(run) > 20) == (number in (1, 2, 3, 4))
        for name in ("top_mass", "column_mass", "key_mass", "distance_mass", "value_mass", "question_mass"):
            np.testing.assert_allclose(getattr(run, name), getattr(wanted, name), atol=TOLERANCE, rtol=0)
        np.testing.assert_array_equal(run.top_token, wanted.top_token)


def test_long_rest_is_fed_in_chunks(make_lm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once would need a mask of the rest by the whole prompt."""
    lm, prefix = make_lm(), ap.PrefixCache()
    monkeypatch.setattr(batch, "AUTO_CHUNK", 16)
    short, long = ap.Prompt.from_text("A lazy dog."), ap.Prompt.from_text("A lazy dog." + " It sleeps." * 20)
    assert ap.measure(lm, long, answer=" Well", prefix=prefix).manifest["capture"]["prefill_chunk"] is None
    prefix.clear()
    ap.measure(lm, short, answer=" Well", prefix=prefix)
    run = ap.measure(lm, long, answer=" Well", prefix=prefix)
    assert run.manifest["capture"]["prefill_chunk"] == 16
    assert reused(run) > 0
    assert_same_numbers(run, ap.measure(lm, long, answer=" Well"))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_nothing_is_kept_of_a_pass_that_failed(make_lm: Any, error: type[BaseException]) -> None:
    lm, prefix = make_lm(), ap.PrefixCache()
    first, second = STEPS["first"][0], STEPS["other question"][0]
    ap.measure(lm, first, answer="30 days.", prefix=prefix)

    def fail(module: Any, args: Any, output: Any) -> None:
        raise error

    # The first layer's keys are in the cache by then, the last one's are not.
    hook = lm.model.model.layers[1].register_forward_hook(fail)
    with pytest.raises(error):
        ap.measure(lm, second, answer="N/A", prefix=prefix)
    hook.remove()
    assert prefix.n_tokens == 0
    run = ap.measure(lm, second, answer="N/A", prefix=prefix)
    assert reused(run) == 0
    assert_same_numbers(run, ap.measure(lm, second, answer="N/A"))
    assert prefix.n_tokens == len(fed_ids(run))


def test_other_models_and_changed_weights_start_anew(make_lm: Any) -> None:
    prefix, prompt = ap.PrefixCache(), STEPS["first"][0]
    lm, other = make_lm(), make_lm(seed=5)
    ap.measure(lm, prompt, answer="30 days.", prefix=prefix)
    run = ap.measure(other, prompt, answer="30 days.", prefix=prefix)
    assert reused(run) == 0
    assert_same_numbers(run, ap.measure(other, prompt, answer="30 days."))
    assert reused(ap.measure(other, prompt, answer="30 days.", prefix=prefix)) > 0
    twin = ap.LanguageModel(copy(other.model), other.tokenizer)  # of the same weights
    assert reused(ap.measure(twin, prompt, answer="30 days.", prefix=prefix)) == 0
    ap.measure(other, prompt, answer="30 days.", prefix=prefix)
    with torch.no_grad():
        other.model.model.layers[0].self_attn.v_proj.weight.mul_(2.0)
    run = ap.measure(other, prompt, answer="30 days.", prefix=prefix)
    assert reused(run) == 0
    assert_same_numbers(run, ap.measure(other, prompt, answer="30 days."))


def test_frequencies_that_depend_on_the_length_are_not_mixed(make_lm: Any) -> None:
    """Past 64 tokens this model turns all its keys otherwise, the first ones too, and by how long the prompt is."""
    dynamic = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}
    lm, prefix = make_lm(rope_parameters=dynamic, max_position_embeddings=64), ap.PrefixCache()
    short, long = "A lazy dog sleeps.", "A lazy dog sleeps. " * 12
    steps = (
        (short, " Well", False),
        (f"{short} See it.", " Well", True),  # both within the original length
        (long, " Well", False),
        (long, " Woof", True),  # past it, and equally long
        (f"{long} See it.", " Woof", False),
        (long, " Woof", False),
        (short, " Well", False),
    )
    given = [(ap.Prompt.from_text(text), {"answer": answer, "beyond_window": True}) for text, answer, _ in steps]
    wanted = [ap.measure(lm, prompt, **options) for prompt, options in given]
    runs = [ap.measure(lm, prompt, prefix=prefix, **options) for prompt, options in given]
    for run, alone, (*_, shares) in zip(runs, wanted, steps, strict=True):
        assert (reused(run) > 0) is shares
        assert_same_numbers(run, alone)


def test_no_mask_of_a_long_rest_is_held(make_lm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rest cannot be fed in chunks where frequencies depend on the length, so all is fed again, without a mask."""
    monkeypatch.setattr(prefix_cache, "AUTO_CHUNK", 60)
    dynamic = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}
    lm = make_lm(rope_parameters=dynamic, max_position_embeddings=64)
    prompts = [ap.Prompt.from_text("A lazy dog sleeps. " * n + "A dog lazy sleeps. " * (30 - n)) for n in (2, 27, 28)]
    masks: list[int] = []

    def note(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        mask = kwargs["attention_mask"]
        masks.append(0 if mask is None else mask.shape[-2])

    handle = lm.model.model.layers[0].self_attn.register_forward_pre_hook(note, with_kwargs=True)
    prefix = ap.PrefixCache()
    ap.measure(lm, prompts[0], answer=" Well", beyond_window=True, prefix=prefix)  # finds out what the model can
    masks.clear()
    runs = [ap.measure(lm, p, answer=" Well", beyond_window=True, prefix=prefix) for p in prompts]
    handle.remove()
    lengths = {run.n_prompt for run in runs}
    assert len(lengths) == 1
    assert lengths.pop() > 3 * 60
    assert [reused(run) > 0 for run in runs] == [True, False, True]
    assert max(masks) <= 60
    for run, prompt in zip(runs, prompts, strict=True):
        assert_same_numbers(run, ap.measure(lm, prompt, answer=" Well", beyond_window=True))


def test_lend_keeps_what_it_is_told(make_lm: Any) -> None:
    """For passes whose later rows ran in a way of their own."""
    lm, prefix = make_lm(), ap.PrefixCache()
    ids = list(range(10, 30))
    name = "cache" if "cache" in forward_parameters(lm.model) else "past_key_values"
    with torch.no_grad():
        with prefix.lend(lm.model, ids, limit=19, keep=12) as (cache, n_before):
            assert n_before == 0
            lm.model(torch.tensor([ids]), use_cache=True, **{name: cache})
        assert prefix.n_tokens == 12
        with prefix.lend(lm.model, ids, limit=19) as (cache, n_before):
            assert n_before == 12
            rest = torch.tensor([ids[12:]])
            positions = torch.arange(12, 20)[None]
            found = lm.model(rest, position_ids=positions, use_cache=True, **{name: cache})
        with prefix.lend(lm.model, ids, limit=5) as (cache, n_before):
            assert n_before == cache.get_seq_length() == 5
        wanted = lm.model(torch.tensor([ids])).logits[:, 12:]
    assert prefix.n_tokens == 0  # nothing was fed, so that the cache does not hold what it should
    torch.testing.assert_close(found.logits, wanted, atol=1e-4, rtol=0)


def test_refused_uses(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    with pytest.raises(ap.InputError, match="prefix needs a forced answer"):
        ap.measure(lm, prompts[0], prefix=ap.PrefixCache())
    with pytest.raises(ap.InputError, match=r"prefix is True; give attnprobe\.PrefixCache"):
        ap.measure(lm, prompts[0], answer="no", prefix=True)
    with pytest.raises(ap.InputError, match="prefix speaks of a single prompt"):
        ap.measure_many(lm, prompts, answers=["no"] * 3, prefix=ap.PrefixCache())
    assert len(ap.measure_many(lm, prompts, answers=["no"] * 3, prefix=None)) == 3
