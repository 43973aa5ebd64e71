"""Knock-out against dense passes with masks written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, tiny_model
from toy_tokenizers import BUILDERS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import attnprobe as ap
from attnprobe import tails
from attnprobe.causal import answer_logprob, effects
from attnprobe.errors import CaptureError, InputError
from attnprobe.knockout import Hidden, knocked_out

REACH = 24  # tokens of a sliding window, or of an attention chunk
PROMPT = ap.Prompt(
    ["Refunds take 30 days.", "Members wait less.", "It is 47 days."], "How long?", markers="none", template="plain"
)
ANSWER = " 47 days of it"
TOLERANCE = 1e-5  # nats a token

# The masks that a family's layers use: its config's layer types, or one for all.
TYPES = {
    "llama": ("full_attention",),
    "gpt2": ("full_attention",),
    "qwen3_moe": ("full_attention",),
    "deepseek_v3": ("full_attention",),
    "granite": ("full_attention",),
    "mistral": ("sliding_attention",),
    "qwen2_window": ("full_attention", "sliding_attention"),
    "gemma2": ("full_attention", "sliding_attention"),
    "gemma3": ("full_attention", "sliding_attention"),
    "gpt_oss": ("full_attention", "sliding_attention"),
    "llama4": ("full_attention", "chunked_attention"),
}


def language_model(family: str, implementation: str | None = None) -> Any:
    tokenizer = BUILDERS["bytelevel"]()
    changes: dict[str, Any] = {"vocab_size": len(tokenizer)}
    for name in ("sliding_window", "attention_chunk_size"):
        if name in FAMILIES[family].options:
            changes[name] = REACH
    return ap.LanguageModel(tiny_model(family, implementation, **changes), tokenizer)


def dense_mask(kind: str, n: int, hidden: list[tuple[int, int]], first_row: int) -> torch.Tensor:
    """``[1, 1, n, n]``, entry by entry: 0 where row t may see key j, else float32's lowest number."""
    mask = torch.full((1, 1, n, n), torch.finfo(torch.float32).min)
    for t in range(n):
        for j in range(t + 1):
            if kind == "sliding_attention" and t - j >= REACH:
                continue
            if kind == "chunked_attention" and t // REACH != j // REACH:
                continue
            if any(start <= j < stop and t >= max(stop, first_row) for start, stop in hidden):
                continue
            mask[0, 0, t, j] = 0
    return mask


def dense_logprobs(family: str, ids: list[int], answer: list[int], hidden: dict[str, Any], first_row: int) -> Any:
    """One eager pass over everything with whole masks, no cache; ``hidden`` by layer type."""
    model = language_model(family, "eager").model
    masks = {kind: dense_mask(kind, len(ids), hidden[kind], first_row) for kind in TYPES[family]}
    given = masks if len(masks) > 1 else next(iter(masks.values()))
    with torch.no_grad():
        logits = model(torch.tensor([ids]), attention_mask=given, use_cache=False).logits[0]
    return [float(logits[row - len(answer)].double().log_softmax(-1)[token]) for row, token in enumerate(answer)]


@pytest.mark.parametrize("answer", [ANSWER, [9]], ids=["answer", "one token"])
@pytest.mark.parametrize("hidden_from", ["answer", "later"])
@pytest.mark.parametrize("family", TYPES)
def test_effects_are_those_of_dense_masks(family: str, hidden_from: Any, answer: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(tails, "KNOCKOUT_CHUNK", 5)  # rows of one answer, and of one document, in several calls
    encoded = PROMPT.encode(language_model(family).tokenizer)
    documents = [list(span.segments) for span in encoded.spans if span.kind == "document"]
    first_row = encoded.n_tokens - 1 if hidden_from == "answer" else 0
    for implementation in ("eager",) if FAMILIES[family].eager_only else ("eager", "sdpa"):
        found = effects(language_model(family, implementation), PROMPT, answer, hidden_from=hidden_from)
        own = list(found.answer_ids)
        fed = [*encoded.token_ids, *own[:-1]]
        for segments, logprobs in zip([[], *documents], [found.full, *found.without], strict=True):
            wanted = dense_logprobs(family, fed, own, dict.fromkeys(TYPES[family], segments), first_row)
            assert logprobs.tolist() == pytest.approx(wanted, abs=TOLERANCE)
        assert found.effect.tolist() == pytest.approx(
            [float(found.full.sum() - row.sum()) for row in found.without], abs=TOLERANCE
        )
        assert abs(found.effect).max() > 1e-3


def test_hiding_in_some_layers_is_a_mask_of_theirs() -> None:
    lm = language_model("gemma3")  # layers 0 and 1 have windows, layer 2 has none
    encoded = PROMPT.encode(lm.tokenizer)
    segments = list(next(span for span in encoded.spans if span.document == 1).segments)
    found = effects(lm, PROMPT, ANSWER, hidden_from="later", documents=[1], layers=[2])
    fed = [*encoded.token_ids, *found.answer_ids[:-1]]
    hidden = {"full_attention": segments, "sliding_attention": []}
    wanted = dense_logprobs("gemma3", fed, list(found.answer_ids), hidden, 0)
    assert found.without[0].tolist() == pytest.approx(wanted, abs=TOLERANCE)
    everywhere = effects(lm, PROMPT, ANSWER, hidden_from="later", documents=[1])
    assert abs(found.effect[0] - everywhere.effect[0]) > 1e-3
    with pytest.raises(InputError, match=r"layer 7 .* layers are \[0, 1, 2\]"):
        effects(lm, PROMPT, ANSWER, layers=[7])


def test_several_documents_and_their_markers_can_be_hidden_together() -> None:
    lm = language_model("llama")
    prompt = ap.Prompt([ap.Document("Refunds.", source="a"), "Members.", "Days."], "How long?", template="plain")
    encoded = prompt.encode(lm.tokenizer)
    kinds = {False: ("document",), True: ("document", "marker")}
    for with_markers in (False, True):
        spans = [s for s in encoded.spans if s.document in (0, 2) and s.kind in kinds[with_markers]]
        segments = [segment for span in spans for segment in span.segments]
        found = answer_logprob(lm, prompt, [9, 8], hidden=(0, 2), hidden_from="later", with_markers=with_markers)
        wanted = dense_logprobs("llama", [*encoded.token_ids, 9], [9, 8], {"full_attention": segments}, 0)
        assert found == pytest.approx(sum(wanted), abs=2 * TOLERANCE)
    assert answer_logprob(lm, prompt, [9, 8], hidden_from=None) == pytest.approx(
        float(ap.measure(lm, prompt, answer=[9, 8]).answer_logprob.sum()), abs=2 * TOLERANCE
    )


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss", "deepseek_v3", "gemma3n"])
def test_hidden_keys_have_exactly_no_mass(family: str) -> None:
    model = tiny_model(family, "eager")
    ids = torch.randint(2, 90, (1, 30), generator=torch.Generator().manual_seed(0))
    for first_row in (0, 25):
        with torch.no_grad():
            plain = model(ids, output_attentions=True, use_cache=False).attentions
            with knocked_out(model, Hidden(((18, 21),), first_row)):
                weights = model(ids, output_attentions=True, use_cache=False).attentions
        from_row = max(21, first_row)
        for before, layer in zip(plain, weights, strict=True):
            assert (layer[:, :, from_row:, 18:21] == 0).all()
            assert (before[:, :, from_row, 18:21] > 0).any()
            if family != "gpt_oss":  # its sink takes mass but has no weight
                assert layer.sum(-1) == pytest.approx(torch.ones(layer.shape[:3]), abs=1e-5)
        torch.testing.assert_close(plain[0][:, :, :from_row], weights[0][:, :, :from_row], rtol=0, atol=0)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_a_pass_in_one_call_has_the_logits_of_a_dense_mask(family: str) -> None:
    ids = torch.randint(2, 90, (1, 20), generator=torch.Generator().manual_seed(0))  # all within the window: no mask
    lm, dense = language_model(family, "sdpa"), language_model(family, "eager")
    with torch.no_grad():
        with knocked_out(lm.model, Hidden(((3, 5), (9, 12)))):
            found = lm.model(ids, use_cache=False).logits
        wanted = dense.model(ids, attention_mask=dense_mask(TYPES[family][0], 20, [(3, 5), (9, 12)], 0)).logits
    torch.testing.assert_close(found, wanted, rtol=0, atol=5e-5)


def test_the_prompt_is_fed_once_and_masked_rows_in_chunks(monkeypatch: Any) -> None:
    monkeypatch.setattr(tails, "KNOCKOUT_CHUNK", 6)
    lm = language_model("mistral")  # in windowed layers, too, whose cache cannot be cut
    n_prompt = PROMPT.encode(lm.tokenizer).n_tokens
    calls: list[int] = []
    hook = lm.model.register_forward_pre_hook(lambda module, args: calls.append(args[0].shape[1]))
    effects(lm, PROMPT, ANSWER)  # the question whether the model goes on from its cache is asked once a model
    calls.clear()
    found = effects(lm, PROMPT, ANSWER)
    n_answer = len(found.answer_ids)
    assert sum(calls) == n_prompt - 1 + 4 * n_answer
    calls.clear()
    effects(lm, PROMPT, ANSWER, hidden_from="later", documents=[0, 1, 2])
    stops = [s.segments[-1][1] for s in PROMPT.encode(lm.tokenizer).spans if s.kind == "document"]
    assert sum(calls) == n_prompt - 1 + n_answer + sum(n_prompt + n_answer - 1 - stop for stop in stops)
    hook.remove()


def test_prefix_cache_changes_nothing_but_what_is_fed() -> None:
    lm = language_model("llama")
    prefix = ap.PrefixCache()
    plain = effects(lm, PROMPT, ANSWER, hidden_from="later")
    for _ in range(2):
        found = effects(lm, PROMPT, ANSWER, hidden_from="later", prefix=prefix)
        assert found.without == pytest.approx(plain.without, abs=TOLERANCE)
    assert prefix.n_tokens == PROMPT.encode(lm.tokenizer).n_tokens - 1
    calls: list[int] = []
    hook = lm.model.register_forward_pre_hook(lambda module, args: calls.append(args[0].shape[1]))
    total = answer_logprob(lm, PROMPT, ANSWER, prefix=prefix)
    hook.remove()
    assert calls == [len(plain.answer_ids)]
    assert total == pytest.approx(plain.full_logprob, abs=TOLERANCE)
    # What was knocked out is not what is kept.
    run = ap.measure(lm, PROMPT, answer=ANSWER, prefix=prefix)
    assert float(run.answer_logprob.sum()) == pytest.approx(plain.full_logprob, abs=TOLERANCE)


def test_models_that_cannot_hide_keys_say_what_to_do(make_lm: Any) -> None:
    lm = make_lm("llama")
    lm.model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(CaptureError, match=r"flash_attention_2.*attn_implementation=\"sdpa\""):
        effects(lm, PROMPT, ANSWER)
    with pytest.raises(CaptureError, match=r"flex_attention.*attn_implementation=\"sdpa\""):
        effects(make_lm("llama", attn_implementation="flex_attention"), PROMPT, ANSWER)
    with pytest.raises(CaptureError, match=r"BloomForCausalLM .* interface.*\"deletion\" or \"swap\""):
        effects(make_lm("bloom"), PROMPT, ANSWER)
    with pytest.raises(CaptureError, match=r"Qwen3NextForCausalLM has recurrent layers.*\"deletion\" or \"swap\""):
        effects(make_lm("qwen3_next"), PROMPT, ANSWER)
    lm = make_lm("llama")
    lm.model.train()
    with pytest.raises(CaptureError, match="training mode"):
        effects(lm, PROMPT, ANSWER)


def test_the_wrapper_is_gone_after_an_error(make_lm: Any) -> None:
    lm = make_lm("llama")
    before = dict(ALL_ATTENTION_FUNCTIONS._local_mapping)
    layer = lm.model.model.layers[1].self_attn

    def fail(module: Any, args: Any, output: Any) -> None:
        raise KeyboardInterrupt

    n_hooks = len(layer._forward_hooks)
    layer.register_forward_hook(fail)
    with pytest.raises(KeyboardInterrupt), knocked_out(lm.model, Hidden(((1, 3),))):
        lm.model(torch.tensor([[3, 4, 5, 6, 7]]))
    assert dict(ALL_ATTENTION_FUNCTIONS._local_mapping) == before
    assert len(layer._forward_hooks) == n_hooks + 1
    assert not lm.model._forward_pre_hooks


def test_spans_of_the_users_own_and_what_cannot_be_asked() -> None:
    lm = language_model("llama")
    text = "Refunds take 30 days. Members wait less. How long?"
    prompt = ap.Prompt.from_text(text, spans=[("a", 0, 21), ("end", 41, len(text))])
    found = effects(lm, prompt, ANSWER, documents=[0])
    assert found.names == ("a",)
    assert abs(found.effect[0]) > 1e-3
    with pytest.raises(InputError, match=r'document 1 \("end"\) holds the prompt\'s last token'):
        effects(lm, prompt, ANSWER)
    with pytest.raises(InputError, match="document 5 is not in the prompt; its documents are 0 to 1"):
        answer_logprob(lm, prompt, ANSWER, hidden=[5])
    with pytest.raises(InputError, match="no documents"):
        effects(lm, ap.Prompt.from_text(text), ANSWER)
    with pytest.raises(InputError, match="hidden_from is 'all'"):
        effects(lm, prompt, ANSWER, hidden_from="all")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="needs an answer"):
        effects(lm, prompt, None)  # type: ignore[arg-type]


def test_a_document_without_tokens_has_no_effect() -> None:
    found = effects(language_model("llama"), ap.Prompt(["Refunds.", ""], "How long?"), ANSWER)
    assert found.effect[1] == 0
    assert found.effect[0] != 0
