"""From prompts to runs: every way of measuring the same token ids gives the same masses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import attnprobe as ap
from attnprobe.extras import EXTRAS

TOLERANCE = 1e-5


def assert_same_run(a: ap.Run, b: ap.Run, tolerance: float = TOLERANCE) -> None:
    assert a.answer_ids == b.answer_ids
    assert a.token_ids == b.token_ids
    assert a.spans == b.spans
    assert a.row_mass is not None
    assert b.row_mass is not None
    np.testing.assert_allclose(a.row_mass, b.row_mass, atol=tolerance, rtol=0)
    np.testing.assert_allclose(a.mass, b.mass, atol=tolerance, rtol=0)
    np.testing.assert_allclose(a.answer_logprob, b.answer_logprob, atol=1e-4, rtol=0)
    np.testing.assert_array_equal(a.visible, b.visible)


def eager_row_mass(lm: Any, run: ap.Run) -> np.ndarray:
    """Row masses of a run from transformers' eager attention weights, in float64, column by column."""
    lm.model.set_attn_implementation("eager")
    first = run.n_prompt - (run.rows == "predicting")
    with torch.no_grad():
        weights = lm.model(torch.tensor([run.token_ids]), output_attentions=True).attentions
    lm.model.set_attn_implementation("sdpa")
    out = np.zeros((len(weights), weights[0].shape[1], len(run.answer_ids), len(run.spans)))
    for layer, matrix in enumerate(weights):
        rows = matrix[0, :, first : first + len(run.answer_ids)].double().numpy()
        for number, span in enumerate(run.spans):
            for start, stop in span.segments:
                out[layer, :, :, number] += rows[..., start:stop].sum(-1)
    return out


@pytest.mark.parametrize("rows", ["predicting", "answer"])
@pytest.mark.parametrize("capture", ["deferred", "live"])
def test_generated_run_equals_eager_attention(make_lm: Any, prompts: list[ap.Prompt], rows: str, capture: str) -> None:
    lm = make_lm()
    run = ap.measure(lm, prompts[2], max_new_tokens=7, rows=rows, capture=capture)
    assert len(run.answer_ids) == 7
    assert run.row_mass is not None
    np.testing.assert_allclose(run.row_mass, eager_row_mass(lm, run), atol=TOLERANCE, rtol=0)
    assert run.residual < 1e-5


@pytest.mark.parametrize("rows", ["predicting", "answer"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "gpt_oss", "deepseek_v3", "qwen3_next", "bloom"])
def test_generated_and_forced_agree(make_lm: Any, prompts: list[ap.Prompt], rows: str, family: str) -> None:
    lm = make_lm(family)
    generated = ap.measure(lm, prompts[0], max_new_tokens=6, rows=rows)
    for options in ({}, {"prefill_chunk": 5}, {"capture": "live"}):
        assert_same_run(generated, ap.measure(lm, prompts[0], answer=generated.answer_ids, rows=rows, **options))
    assert_same_run(generated, ap.measure(lm, prompts[0], max_new_tokens=6, rows=rows, capture="live"))
    assert_same_run(generated, ap.measure(lm, prompts[0], max_new_tokens=6, rows=rows, prefill_chunk=5))


def test_log_probabilities_are_those_of_one_plain_pass(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    run = ap.measure(lm, prompts[0], max_new_tokens=5, repetition_penalty=1.5)
    with torch.no_grad():
        logits = lm.model(torch.tensor([run.token_ids])).logits[0, run.n_prompt - 1 : -1].double()
    wanted = torch.log_softmax(logits, -1)[range(5), list(run.answer_ids)]
    np.testing.assert_allclose(run.answer_logprob, wanted.numpy(), atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "llama4", "gpt_oss", "opt", "falcon_alibi"])
@pytest.mark.parametrize("forced", [False, True], ids=["generated", "forced"])
def test_batch_equals_one_by_one(make_lm: Any, prompts: list[ap.Prompt], family: str, forced: bool) -> None:
    lm = make_lm(family)
    answers = ["47 days.", "It is a policy, it is the policy.", "no"] if forced else None
    seen: list[int] = []
    batched = ap.measure_many(
        lm, prompts, answers=answers, batch_size=3, max_new_tokens=5, on_run=lambda number, run: seen.append(number)
    )
    assert sorted(seen) == [0, 1, 2]
    for number, run in enumerate(batched):
        answer = answers[number] if answers else None
        assert_same_run(run, ap.measure(lm, prompts[number], answer=answer, max_new_tokens=5))
        assert run.prompt_id == prompts[number].id


def test_forced_and_generated_prompts_mix(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    runs = ap.measure_many(lm, prompts, answers=["yes", None, "no"], batch_size=2, max_new_tokens=3)
    assert [run.manifest["capture"]["answer"] for run in runs] == ["forced", "generated", "forced"]
    assert runs[0].answer == " yes"


def test_batch_with_early_end_of_sequence(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    plain = ap.measure_many(lm, prompts, batch_size=3, max_new_tokens=6)
    stop = plain[1].answer_ids[2]
    lm.model.generation_config.eos_token_id = stop
    batched = ap.measure_many(lm, prompts, batch_size=3, max_new_tokens=6)
    assert stop not in {token for run in batched for token in run.answer_ids if len(run.answer_ids) > 1}
    for run, prompt in zip(batched, prompts, strict=True):
        assert_same_run(run, ap.measure(lm, prompt, max_new_tokens=6))


def test_end_of_sequence_token(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    ids = ap.measure(lm, prompts[0], max_new_tokens=6).answer_ids
    end = next(number for number in range(1, 6) if ids[number] not in ids[:number])
    lm.model.generation_config.eos_token_id = ids[end]
    assert ap.measure(lm, prompts[0], max_new_tokens=6).answer_ids == ids[:end]
    with_end = ap.measure(lm, prompts[0], max_new_tokens=6, include_eos=True)
    assert with_end.answer_ids == ids[: end + 1]
    assert_same_run(with_end, ap.measure(lm, prompts[0], answer=ids[: end + 1]))
    own = ap.measure(lm, prompts[0], max_new_tokens=6, include_eos=True, rows="answer")
    assert own.answer_ids == with_end.answer_ids
    assert_same_run(own, ap.measure(lm, prompts[0], answer=ids[: end + 1], rows="answer"))


def test_answer_that_ends_at_once_keeps_its_one_row(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    first = ap.measure(lm, prompts[0], max_new_tokens=1)
    assert len(first.answer_ids) == 1
    assert not any("ended its answer" in warning for warning in first.warnings)
    lm.model.generation_config.eos_token_id = first.answer_ids[0]
    ended = ap.measure(lm, prompts[0], max_new_tokens=5)
    assert ended.answer_ids == first.answer_ids
    assert any("ended its answer at once" in warning for warning in ended.warnings)
    np.testing.assert_allclose(ended.mass, first.mass, atol=TOLERANCE)


def test_no_answer_tokens_is_an_error(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    with pytest.raises(ap.InputError, match="max_new_tokens is 0"):
        ap.measure(lm, prompts[0], max_new_tokens=0)
    with pytest.raises(ap.InputError, match="answer"):
        ap.measure(lm, prompts[0], answer="")
    with pytest.raises(ap.InputError, match="answer"):
        ap.measure(lm, prompts[0], answer=[])


def test_resegmented_answer_keeps_the_ids_in_use(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    text = " the policy"
    ids = lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    split = [token for letter in text for token in lm.tokenizer(letter, add_special_tokens=False)["input_ids"]]
    assert len(ids) < len(split)
    for chosen in (ids, split):
        run = ap.measure(lm, prompts[0], answer=chosen)
        assert run.answer_ids == tuple(chosen)
        assert run.token_ids[run.n_prompt :] == tuple(chosen)
        assert run.answer == text
    assert ap.measure(lm, prompts[0], answer=text).answer_ids == tuple(ids)


def test_sampling_is_seeded_and_leaves_the_random_state(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    state = torch.random.get_rng_state()
    options = {"max_new_tokens": 8, "do_sample": True, "temperature": 1.5, "seed": 3}
    first, again = (ap.measure(lm, prompts[0], **options) for _ in range(2))
    assert torch.equal(state, torch.random.get_rng_state())
    assert first.answer_ids == again.answer_ids
    assert first.answer_ids != ap.measure(lm, prompts[0], max_new_tokens=8).answer_ids
    assert_same_run(first, ap.measure(lm, prompts[0], answer=first.answer_ids))


@pytest.mark.parametrize(
    "options",
    [{"num_beams": 2}, {"guidance_scale": 2.0}, {"num_return_sequences": 2}, {"prompt_lookup_num_tokens": 3}],
)
def test_decoding_that_is_not_one_row_a_step_is_refused(
    make_lm: Any, prompts: list[ap.Prompt], options: dict[str, Any]
) -> None:
    with pytest.raises(ap.InputError, match=next(iter(options))):
        ap.measure(make_lm(), prompts[0], **options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rows": "last"}, "rows='last'"),
        ({"capture": "lazy"}, "capture='lazy'"),
        ({"prefill_chunk": 0}, "prefill_chunk"),
        ({"backend": "fast"}, "backend"),
    ],
)
def test_unknown_options_are_named(make_lm: Any, prompts: list[ap.Prompt], options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ap.measure(make_lm(), prompts[0], **options)


def test_prompt_longer_than_the_model(make_lm: Any) -> None:
    lm = make_lm(max_position_embeddings=64)
    long = ap.Document("A lazy dog. " * 60, id="policy.md")
    with pytest.raises(ap.InputError, match=r'document 1 \("policy.md"\) alone has \d+ tokens.* limit is 64'):
        ap.measure(lm, ap.Prompt(["short", long], "Why?"), max_new_tokens=4)
    prompt = ap.Prompt(["The policy."], "Why is it so, and what is the answer to the question about it?")
    n_tokens = prompt.encode(lm.tokenizer).n_tokens
    assert n_tokens < 64
    with pytest.raises(ap.InputError, match=f"has {n_tokens} tokens"):
        ap.measure(lm, prompt, max_new_tokens=64)
    assert ap.measure(lm, prompt, max_new_tokens=70, beyond_window=True).mass.shape[0] == 3
    learned = make_lm("gpt2", n_positions=64)
    with pytest.raises(ap.InputError, match="limit is 64; shorten it"):
        ap.measure(learned, prompt, max_new_tokens=64, beyond_window=True)


def test_all_prompts_are_checked_before_the_first_runs(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm(max_position_embeddings=128)
    finished: list[int] = []
    with pytest.raises(ap.InputError, match="limit is 128"):
        ap.measure_many(
            lm,
            [prompts[1], ap.Prompt(["A lazy dog. " * 90], "Why?")],
            max_new_tokens=2,
            on_run=lambda number, run: finished.append(number),
        )
    assert finished == []


def test_fallback_is_never_silent(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    run = ap.measure(make_lm("bloom"), prompts[0], max_new_tokens=3)
    assert run.manifest["capture"]["mode"] == "eager weights"
    assert any("does not use transformers' attention interface" in warning for warning in run.warnings)
    upcast = make_lm("gpt2", attn_implementation="eager", reorder_and_upcast_attn=True)
    plain = make_lm("gpt2", attn_implementation="eager")
    a, b = (ap.measure(lm, prompts[0], max_new_tokens=3) for lm in (upcast, plain))
    assert a.manifest["capture"]["mode"] == "eager weights"
    assert b.manifest["capture"]["mode"] == "deferred"
    np.testing.assert_allclose(a.mass, b.mass, atol=TOLERANCE)


def test_learned_sink_is_a_span_and_counts(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    run = ap.measure(make_lm("gpt_oss"), prompts[0], max_new_tokens=3)
    assert run.spans[-1].kind == "learned_sink"
    assert run.budget()["learned_sink"] > 0.01
    assert sum(run.budget().values()) == pytest.approx(1, abs=1e-6)


def test_rows_need_not_be_kept(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    kept = ap.measure(lm, prompts[0], max_new_tokens=3)
    lean = ap.measure(lm, prompts[0], max_new_tokens=3, keep_rows=False)
    assert lean.row_mass is None
    np.testing.assert_array_equal(kept.mass, lean.mass)


def test_progress_is_told(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    calls: list[tuple[str, int, int]] = []
    ap.measure(make_lm(), prompts[0], max_new_tokens=3, progress=lambda *call: calls.append(call))
    assert [call for call in calls if call[0] == "decode"] == [("decode", n, 3) for n in (1, 2, 3)]
    calls.clear()
    run = ap.measure(make_lm(), prompts[0], answer="47", prefill_chunk=20, progress=lambda *call: calls.append(call))
    fed = len(run.token_ids) - 1
    assert calls == [("prefill", min(stop, fed), fed) for stop in range(20, fed + 20, 20)]


class LargestTensor(TorchDispatchMode):
    """Remembers the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for item in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(item, torch.Tensor):
                self.numel = max(self.numel, item.numel())
        return result


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_oss", "bloom"])
def test_nothing_of_prompt_length_squared(make_lm: Any, family: str) -> None:
    names = {"gpt2": "n_positions", "bloom": "seq_length"}
    lm = make_lm(family, **{names.get(family, "max_position_embeddings"): 8192})
    prompt = ap.Prompt(["A lazy dog. " * 300, "A quick fox. " * 300], "Why?")
    n_tokens = prompt.encode(lm.tokenizer).n_tokens
    assert n_tokens > 3000
    chunk = None if family == "llama" else 256
    extras = () if family == "bloom" else EXTRAS
    with LargestTensor() as largest:
        ap.measure(lm, prompt, answer=[5, 6, 7, 8], prefill_chunk=chunk, extras=extras)
    assert largest.numel < n_tokens**2 / 2


def test_two_seeds_give_two_answers(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    options = {"max_new_tokens": 8, "do_sample": True, "temperature": 1.5}
    assert (
        ap.measure(lm, prompts[0], seed=1, **options).answer_ids
        != ap.measure(lm, prompts[0], seed=2, **options).answer_ids
    )
    assert ap.measure(lm, prompts[0], **options).answer_ids == ap.measure(lm, prompts[0], seed=0, **options).answer_ids


def test_warnings_of_the_prompt_and_the_answer_reach_the_run(make_lm: Any) -> None:
    lm = make_lm()
    prompt = ap.Prompt(["", "Members wait less."], "Why?")
    assert prompt.encode(lm.tokenizer).warnings
    run = ap.measure(lm, prompt, answer=" so")
    assert set(prompt.encode(lm.tokenizer).warnings) <= set(run.warnings)
    assert any("is empty" in warning for warning in run.warnings)


def test_the_window_is_used_to_its_last_token(make_lm: Any) -> None:
    prompt = ap.Prompt(["The policy."], "What is it?")
    n_tokens = prompt.encode(make_lm().tokenizer).n_tokens
    assert ap.measure(make_lm(max_position_embeddings=n_tokens + 3), prompt, max_new_tokens=3).n_prompt == n_tokens
    with pytest.raises(ap.InputError, match="limit is"):
        ap.measure(make_lm(max_position_embeddings=n_tokens + 2), prompt, max_new_tokens=3)


def test_only_the_answers_logits_are_computed(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    shapes: list[int] = []
    hook = lm.model.register_forward_hook(lambda module, args, output: shapes.append(output.logits.shape[1]))
    ap.measure(lm, prompts[0], answer=[5, 6, 7])
    ap.measure(lm, prompts[0], max_new_tokens=2)
    hook.remove()
    assert shapes == [3, 1, 1]


def test_generation_is_never_compiled(make_lm: Any, prompts: list[ap.Prompt], monkeypatch: pytest.MonkeyPatch) -> None:
    lm = make_lm()
    given: dict[str, Any] = {}
    original = lm.model.generate

    def generate(*args: Any, **kwargs: Any) -> Any:
        given.update(kwargs)
        return original(*args, **kwargs)

    monkeypatch.setattr(lm.model, "generate", generate)
    ap.measure(lm, prompts[0], max_new_tokens=2)
    assert given["disable_compile"] is True


def test_a_fallback_layer_without_weights_is_an_error(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm("bloom")
    attention = lm.model.transformer.h[1].self_attention
    attention.register_forward_hook(lambda module, args, output: (output[0], None))
    with pytest.raises(ap.CaptureError, match="attention of layer 1 returned no weights"):
        ap.measure(lm, prompts[0], max_new_tokens=2)


@pytest.mark.parametrize("family", ["bloom", "falcon_alibi", "llama"])
def test_a_long_answer_beside_a_short_prompt(make_lm: Any, prompts: list[ap.Prompt], family: str) -> None:
    lm = make_lm(family)
    answers = [[7] * 60, [5]]
    short = ap.Prompt.from_text("Why?")
    batched = ap.measure_many(lm, [prompts[0], short], answers=answers, batch_size=2)
    for run, prompt, answer in zip(batched, [prompts[0], short], answers, strict=True):
        assert_same_run(run, ap.measure(lm, prompt, answer=answer))


def test_a_mass_that_underflows_is_not_zero(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm("gpt2")
    with torch.no_grad():
        for block in lm.model.transformer.h:
            block.attn.c_attn.weight.mul_(12)
    run = ap.measure(lm, prompts[2], max_new_tokens=3)
    assert run.row_mass is not None
    seen = np.broadcast_to(run.visible[:, None] > 0, run.row_mass.shape)
    assert run.row_mass[seen].min() < 1e-40
    assert np.isfinite(run.lse[seen]).all()
    assert np.isfinite(run.curve("advantage").values).all()


def test_another_prompt_has_another_row_checked(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    residuals = {ap.measure(lm, prompt, answer=[5, 6, 7]).residual for prompt in prompts}
    assert len(residuals) == 3


def test_an_answer_longer_than_the_first_buffer(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    run = ap.measure(lm, prompts[0], max_new_tokens=140)
    assert len(run.answer_ids) == 140
    assert_same_run(run, ap.measure(lm, prompts[0], answer=run.answer_ids))
