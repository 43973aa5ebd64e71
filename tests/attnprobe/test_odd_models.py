"""Models that stray from the usual: each is measured as its own eager attention says, or refused in plain words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_models import ODD, VOCABULARY, eager_masses, tiny_model
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaAttention

import attnprobe as ap
from attnprobe import batch
from attnprobe.architecture import attention_layers, decoder_of
from attnprobe.decoding import has_recurrent_layers
from attnprobe.extra_checks import MASS_TOLERANCE
from attnprobe.study_cells import relieved_chunk

ANSWER = [5, 6, 7]
N_PROMPT = 29


def id_tokenizer() -> PreTrainedTokenizerFast:
    """Every id has a word of its own, so that a prompt is the ids that a test wants."""
    words = Tokenizer(models.WordLevel({f"<{number}>": number for number in range(VOCABULARY)}, unk_token="<3>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<0>", eos_token="<2>")


def prompt(length: int = N_PROMPT, seed: int = 1) -> ap.Prompt:
    ids = torch.randint(4, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    words = [f"<{number}> " for number in ids]
    edges = [sum(map(len, words[:cut])) for cut in (1, length // 3, 2 * length // 3, length)]
    spans = [(f"part {number}", edges[number], edges[number + 1] - 1) for number in range(3)]
    return ap.Prompt.from_text("".join(words).rstrip(), spans=spans)


def odd_lm(name: str, attn_implementation: str = "eager", **changes: Any) -> ap.LanguageModel:
    model = tiny_model(name, attn_implementation, **changes)
    model.generation_config.eos_token_id = None
    return ap.LanguageModel(model, id_tokenizer())


def token_spans(run: ap.Run) -> list[list[tuple[int, int]]]:
    return [list(span.segments) for span in run.spans if span.kind != "learned_sink"]


def eager(name: str, run: ap.Run, **changes: Any) -> np.ndarray:
    """Masses ``[layer, head, row, span]`` of the run's rows from eager weights of one whole pass."""
    ids = list(run.token_ids[:-1])
    return eager_masses(name, ids, token_spans(run), len(run.answer_ids), **changes).numpy()


def assert_same_run(found: ap.Run, wanted: ap.Run) -> None:
    assert found.answer_ids == wanted.answer_ids
    assert found.layers == wanted.layers
    np.testing.assert_allclose(found.row_mass, wanted.row_mass, atol=1e-5, rtol=0)
    np.testing.assert_allclose(found.answer_logprob, wanted.answer_logprob, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["bamba", "jamba", "zamba", "zamba2", "recurrent_gemma", "bart", "modernbert_decoder"])
def test_masses_are_those_of_eager_attention(name: str) -> None:
    run = ap.measure(odd_lm(name), prompt(), answer=ANSWER)
    np.testing.assert_allclose(run.row_mass, eager(name, run), atol=1e-5, rtol=0)
    assert not run.warnings


@pytest.mark.parametrize(
    ("name", "layers"),
    [("zamba", (2, 5)), ("zamba2", (1, 3)), ("jamba", (1,)), ("minimax", (1,)), ("modernbert_decoder", (0, 1, 2))],
)
def test_layers_are_those_of_the_model(name: str, layers: tuple[int, ...]) -> None:
    lm = odd_lm(name)
    for answer in (ANSWER, None):
        assert ap.measure(lm, prompt(), answer=answer, max_new_tokens=2).layers == layers


def test_recurrent_layers_show_in_the_decoder_and_not_in_the_number_of_an_encoders_layers() -> None:
    sizes = {"d_model": 16, "vocab_size": 32, "decoder_ffn_dim": 16, "encoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = transformers.BartConfig(**sizes, **heads, encoder_layers=4, decoder_layers=2)
    bart = transformers.BartForCausalLM(config)
    assert bart.get_decoder().config.num_hidden_layers > len(bart.get_decoder().layers)  # what this test is about
    assert not has_recurrent_layers(bart)
    assert not has_recurrent_layers(tiny_model("modernbert_decoder"))
    for name in ("zamba", "zamba2", "jamba", "minimax"):
        assert has_recurrent_layers(tiny_model(name)), name


def test_layers_that_say_minus_one_are_told_apart_by_check() -> None:
    report = ap.check(odd_lm("zamba2"), n_tokens=30)
    assert [row.layer for row in report.rows] == [1, 3]
    assert all(row.differences[0] < 1e-5 for row in report.rows)


def test_the_output_head_is_not_taken_for_the_decoder() -> None:
    model = tiny_model("modernbert_decoder")
    assert not attention_layers(model.get_decoder())  # what this test is about
    assert decoder_of(model) is model


def test_masks_made_by_each_layer_are_each_checked() -> None:
    """A layer's temporary mask is freed, and its address is used again for that of a later layer."""
    n_layers, n_tokens = 40, N_PROMPT + len(ANSWER) - 1
    model = tiny_model("llama", "eager", num_hidden_layers=n_layers)
    nothing = torch.zeros(n_tokens, n_tokens, dtype=torch.bool)
    every_third = nothing.clone()
    every_third[:, 1::3] = True
    every_third.fill_diagonal_(False)

    def own_mask(module: Any, args: Any, kwargs: Any) -> Any:
        hidden = every_third if module.layer_idx % 2 else nothing
        kwargs["attention_mask"] = kwargs["attention_mask"].masked_fill(hidden, torch.finfo(torch.float32).min)
        return args, kwargs

    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(own_mask, with_kwargs=True)
    run = ap.measure(ap.LanguageModel(model, id_tokenizer()), prompt(), answer=ANSWER)
    with torch.no_grad():
        weights = model(torch.tensor([run.token_ids[:-1]]), output_attentions=True, use_cache=False).attentions
    for number, spans in enumerate(token_spans(run)):
        wanted = torch.stack([sum(w[0, :, -3:, a:b].double().sum(-1) for a, b in spans) for w in weights])
        np.testing.assert_allclose(run.row_mass[..., number], wanted.numpy(), atol=1e-5, rtol=0)
    assert len(run.warnings) == n_layers // 2


@pytest.mark.parametrize("name", ["bamba", "lfm2", "qwen3_next"])
def test_hybrids_that_go_on_from_their_state_take_chunks(name: str) -> None:
    """Bamba counts positions from the start of each chunk, unless it is told them."""
    lm = odd_lm(name)
    whole = ap.measure(lm, prompt(), answer=ANSWER)
    for chunk in (1, 10, N_PROMPT):
        assert_same_run(ap.measure(lm, prompt(), answer=ANSWER, prefill_chunk=chunk), whole)
    generated = ap.measure(lm, prompt(), max_new_tokens=4)
    assert_same_run(ap.measure(lm, prompt(), max_new_tokens=4, prefill_chunk=10), generated)
    assert_same_run(ap.measure(lm, prompt(), answer=generated.answer_ids, prefill_chunk=10), generated)


@pytest.mark.parametrize("name", ["jamba", "zamba", "recurrent_gemma", "minimax"])
def test_models_whose_state_starts_anew_refuse_chunks(name: str) -> None:
    lm = odd_lm(name)
    for answer in (ANSWER, None):
        with pytest.raises(ap.InputError, match=r"prefill_chunk=10: \w+ gives other outputs .* use prefill_chunk=None"):
            ap.measure(lm, prompt(), answer=answer, max_new_tokens=2, prefill_chunk=10)
    whole = ap.measure(lm, prompt(), answer=ANSWER, prefill_chunk=None)
    assert_same_run(ap.measure(lm, prompt(), answer=ANSWER, prefill_chunk=1000), whole)


@pytest.mark.parametrize(("name", "last"), [("jamba", "auto"), ("minimax", "auto"), ("bamba", 512), ("gpt_oss", 512)])
def test_out_of_memory_splits_only_what_may_be_split(name: str, last: Any) -> None:
    lm = odd_lm(name)
    assert [relieved_chunk(lm, relief) for relief in (0, 2)] == ["auto", last]


@pytest.mark.parametrize("name", ["jamba", "zamba", "recurrent_gemma", "minimax", "bamba"])
@pytest.mark.parametrize("answer", [ANSWER, None], ids=["forced", "generated"])
def test_models_with_a_state_are_never_split_by_themselves(
    name: str, answer: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = odd_lm(name)
    whole = ap.measure(lm, prompt(), answer=answer, max_new_tokens=3, prefill_chunk=None)
    monkeypatch.setattr(batch, "AUTO_CHUNK", 8)
    run = ap.measure(lm, prompt(), answer=answer, max_new_tokens=3)
    assert run.manifest["capture"]["prefill_chunk"] is None
    assert_same_run(run, whole)


def test_others_are_split_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "AUTO_CHUNK", 8)
    run = ap.measure(odd_lm("llama"), prompt(), answer=ANSWER)
    assert run.manifest["capture"]["prefill_chunk"] == 8
    np.testing.assert_allclose(run.row_mass, eager("llama", run), atol=1e-5, rtol=0)


APART = ["bart", "bloom", "mpt", "recurrent_gemma", "minimax"]


@pytest.mark.parametrize("forced", [True, False], ids=["forced", "generated"])
@pytest.mark.parametrize("name", [*APART, "jamba", "zamba2", "qwen3_next", "modernbert_decoder", "phimoe"])
def test_batch_equals_one_by_one(name: str, forced: bool) -> None:
    """Prompts of different lengths share a batch only where padding changes nothing."""
    lm = odd_lm(name)
    prompts = [prompt(), prompt(13, 2), prompt(N_PROMPT, 3)]
    answers = [ANSWER, [8, 9, 10], [11, 12, 13]] if forced else [None] * 3
    runs = ap.measure_many(lm, prompts, answers=answers, batch_size=3, max_new_tokens=4)
    sizes = [run.manifest["capture"]["batch"] for run in runs]
    assert sizes == ([2, 1, 2] if name in APART else [3, 3, 3])
    for run, one, answer in zip(runs, prompts, answers, strict=True):
        assert_same_run(run, ap.measure(lm, one, answer=answer, max_new_tokens=4))


class Wrapper(nn.Module):
    """As PEFT wraps: the outer forward names fewer arguments, and ``generate`` is that of the model inside."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base_model = base
        self.config, self.generation_config = base.config, base.generation_config

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **kwargs: Any) -> Any:
        return self.base_model(input_ids=input_ids, attention_mask=attention_mask, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model.generate(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.base_model, name)


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
def test_a_wrapped_model_is_measured_through_the_one_inside(name: str) -> None:
    plain = odd_lm(name)
    wrapped = ap.LanguageModel(Wrapper(plain.model), plain.tokenizer)
    assert wrapped.model is plain.model
    prompts = [prompt(), prompt(13, 2)]
    singles = [ap.measure(plain, one, max_new_tokens=4) for one in prompts]
    assert_same_run(ap.measure(wrapped, prompts[0], max_new_tokens=4), singles[0])
    answers = [run.answer_ids for run in singles]
    for batched in (
        ap.measure_many(wrapped, prompts, batch_size=2, max_new_tokens=4),
        ap.measure_many(wrapped, prompts, answers=answers, batch_size=2),
    ):
        for run, single in zip(batched, singles, strict=True):
            assert_same_run(run, single)


def test_prompt_learning_is_refused() -> None:
    class Config:
        is_prompt_learning = True

    wrapper = Wrapper(tiny_model("llama"))
    wrapper.active_peft_config = Config()
    with pytest.raises(ap.InputError, match="learned tokens in front of the prompt"):
        ap.LanguageModel(wrapper, id_tokenizer())


class Patched(LlamaAttention):
    """What many tools do to an attention module; its forward names nothing of transformers' interface."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class Lookalike(nn.Module):
    """Attends as a Llama layer does, but nothing about its class says so."""

    def __init__(self, inner: LlamaAttention) -> None:
        super().__init__()
        self.__dict__.update(inner.__dict__)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return LlamaAttention.forward(self, *args, **kwargs)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("layers", [(1,), (0, 1, 2)], ids=["one", "all"])
def test_subclassed_attention_is_captured(implementation: str, layers: tuple[int, ...]) -> None:
    lm = odd_lm("llama", implementation)
    for number in layers:
        lm.model.model.layers[number].self_attn.__class__ = Patched
    run = ap.measure(lm, prompt(), answer=ANSWER)
    assert run.layers == (0, 1, 2)
    np.testing.assert_allclose(run.row_mass, eager("llama", run), atol=1e-5, rtol=0)


def test_a_subclassed_model_runs_while_another_is_measured() -> None:
    other = tiny_model("llama", "eager", seed=3)
    for layer in other.model.layers:
        layer.self_attn.__class__ = Patched
    ids = torch.arange(4, 20)[None]
    with torch.no_grad():
        before = other(ids).logits
    seen = []

    def run_other(stage: str, done: int, total: int) -> None:
        with torch.no_grad():
            seen.append(torch.equal(other(ids).logits, before))

    ap.measure(odd_lm("llama", "eager"), prompt(), max_new_tokens=2, progress=run_other)
    assert seen
    assert all(seen)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("answer", [ANSWER, None], ids=["forced", "generated"])
def test_attention_that_goes_unrecognised_is_an_error(implementation: str, answer: list[int] | None) -> None:
    lm = odd_lm("llama", implementation)
    lm.model.model.layers[1].self_attn = Lookalike(lm.model.model.layers[1].self_attn)
    with pytest.raises(ap.CaptureError, match=r"Lookalike .* was not recognised as an attention layer"):
        ap.measure(lm, prompt(), answer=answer, max_new_tokens=2)


@pytest.mark.parametrize("changes", [{}, {"sliding_window": 7}], ids=["", "window"])
@pytest.mark.parametrize(
    "options", [{"answer": ANSWER}, {"answer": ANSWER, "prefill_chunk": 10}, {"max_new_tokens": 2}]
)
def test_keys_that_stand_for_several_tokens_are_refused(changes: dict[str, Any], options: dict[str, Any]) -> None:
    """Behind a window there are fewer keys than tokens again, so that the last chunk alone would look right."""
    with pytest.raises(ap.CaptureError, match="its keys do not stand for tokens"):
        ap.measure(odd_lm("deepseek_v4", **changes), prompt(), **options)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_two_softmaxes_a_layer_are_refused(implementation: str) -> None:
    for answer in (ANSWER, None):
        with pytest.raises(ap.CaptureError, match=r"\(layer 0\) attends more than once .* cannot be measured"):
            ap.measure(odd_lm("diffllama", implementation), prompt(), answer=answer, max_new_tokens=2)


def test_attention_in_both_directions_is_refused_in_the_fallback() -> None:
    lm = odd_lm("roformer")
    lm.model.config.is_decoder = False
    with pytest.raises(ap.CaptureError, match="attends to tokens after the row; only causal"):
        ap.measure(lm, prompt(), answer=ANSWER)


def test_large_logits_are_measured() -> None:
    """float32 logits of some hundred thousand are rounded by more than the usual tolerance, here as in the model."""
    lm = odd_lm("qwen2", "sdpa")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in lm.model.model.layers:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                projection.bias.copy_(torch.randn(projection.bias.shape, generator=generator) * 500)
    runs = [ap.measure(lm, prompt(N_PROMPT, seed), answer=ANSWER) for seed in range(6)]
    assert max(run.residual for run in runs) > MASS_TOLERANCE
    for run in runs:
        np.testing.assert_allclose(run.mass.sum(-1), 1, atol=1e-5)


def test_a_window_of_one_token_is_refused() -> None:
    lm = odd_lm("mistral", sliding_window=1)
    for options in ({"answer": ANSWER}, {"answer": ANSWER, "prefill_chunk": 10}, {"max_new_tokens": 2}):
        with pytest.raises(ap.CaptureError, match="sliding window of 1 token: it attends to nothing but itself"):
            ap.measure(lm, prompt(), **options)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_window_that_only_the_cache_knows(implementation: str) -> None:
    """Phimoe's attention names no window, while its cache keeps no more than that of the config."""
    lm = odd_lm("phimoe", implementation)
    generated = ap.measure(lm, prompt(), max_new_tokens=9)
    np.testing.assert_allclose(generated.row_mass, eager("phimoe", generated), atol=1e-5, rtol=0)
    for options in ({}, {"prefill_chunk": 5}):
        assert_same_run(ap.measure(lm, prompt(), answer=generated.answer_ids, **options), generated)


def test_check_passes_where_eager_weights_leave_out_the_sink() -> None:
    lm = odd_lm("granite_swa")
    report = ap.check(lm)
    assert report.passed
    assert len(report.rows) == ODD["granite_swa"].captured_layers
    assert ap.measure(lm, prompt(), answer=ANSWER).spans[-1].kind == "learned_sink"
