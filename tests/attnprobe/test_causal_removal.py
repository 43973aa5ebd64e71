"""Deletion and swap: the prompts that are really run, and how well neutral texts match."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_tokenizers import BUILDERS

import attnprobe as ap
from attnprobe.answer_text import holds_answer
from attnprobe.causal import effects
from attnprobe.errors import InputError
from attnprobe.neutral import matched_text, neutral_words
from attnprobe.removal import neutral_in_place, with_text, without_document

ANSWER = " 47 days"
DOCUMENTS = ["Refunds take 30 days.", ap.Document("Members wait less.", source="policy.md"), "It is 47 days, in all."]
PROMPT = ap.Prompt(DOCUMENTS, "How long?", system="Be brief.")


def forced(lm: Any, prompt: ap.Prompt, ids: Any) -> list[float]:
    logprobs: list[float] = ap.measure(lm, prompt, answer=ids).answer_logprob.tolist()
    return logprobs


@pytest.mark.parametrize("family", ["llama", "gemma3", "bloom", "qwen3_next", "jamba"])
def test_deletion_is_the_prompt_written_without_the_document(make_lm: Any, family: str) -> None:
    # Bloom has no attention interface; jamba's state starts anew with every call, so nothing can be shared.
    lm = make_lm(family) if family != "jamba" else odd_lm("jamba")
    found = effects(lm, PROMPT, ANSWER, method="deletion")
    kept = [ap.Document(d.text, id=str(n), source=d.source) for n, d in enumerate(PROMPT.documents)]
    assert found.full.tolist() == pytest.approx(forced(lm, PROMPT, ANSWER), abs=1e-5)
    for index, logprobs in enumerate(found.without):
        by_hand = ap.Prompt(kept[:index] + kept[index + 1 :], "How long?", system="Be brief.")
        assert logprobs.tolist() == pytest.approx(forced(lm, by_hand, found.answer_ids), abs=1e-5)
    assert found.effect == pytest.approx(found.full_logprob - found.without.astype(float).sum(1), abs=1e-12)
    assert found.effect_per_token == pytest.approx(found.effect / len(found.answer_ids))
    assert found.hidden_from is None
    assert json.loads(json.dumps(found.to_dict()))["effect"] == found.effect.tolist()


def odd_lm(family: str) -> Any:
    from tiny_models import tiny_model

    tokenizer = BUILDERS["bytelevel"]()
    return ap.LanguageModel(tiny_model(family, vocab_size=len(tokenizer)), tokenizer)


def test_the_others_keep_their_names_when_one_is_deleted() -> None:
    tokenizer = BUILDERS["bytelevel"]()
    text = without_document(PROMPT, 0).render(tokenizer).text
    assert '<doc id="1" source="policy.md">Members wait less.</doc>\n<doc id="2">It is 47 days' in text
    assert "Refunds" not in text


@pytest.mark.parametrize("tokenizer", ["bytelevel", "metaspace", "wordpiece"])
def test_a_swap_keeps_every_token_behind_it_in_place(make_lm: Any, tokenizer: str) -> None:
    lm = make_lm("llama", tokenizer)
    encoded = PROMPT.encode(lm.tokenizer)
    found = effects(lm, PROMPT, ANSWER, method="swap", seed=3)
    assert len({text.text for text in found.neutral}) == 3
    for index, (text, logprobs) in enumerate(zip(found.neutral, found.without, strict=True)):
        swapped = with_text(PROMPT, index, text.text)
        other = swapped.encode(lm.tokenizer)
        own = next(span for span in other.spans if span.kind == "document" and span.document == index)
        wanted = next(span for span in encoded.spans if span.kind == "document" and span.document == index)
        assert (text.wanted, text.found) == (wanted.n_tokens, own.n_tokens)
        assert (text.wanted_prompt, text.found_prompt) == (encoded.n_tokens, other.n_tokens)
        assert text.exact
        stop = wanted.segments[-1][1]
        assert other.token_ids[stop:] == encoded.token_ids[stop:]
        assert logprobs.tolist() == pytest.approx(forced(lm, swapped, found.answer_ids), abs=1e-5)
    assert found.neutral == effects(lm, PROMPT, ANSWER, method="swap", seed=3).neutral
    assert found.neutral != effects(lm, PROMPT, ANSWER, method="swap", seed=4).neutral


def test_swap_in_a_real_tokenizer_is_exact() -> None:
    tokenizer = BUILDERS["smollm2"]()
    for seed in range(8):
        documents = [" ".join(word for _, word in zip(range(5 + 23 * seed), neutral_words(seed + 50), strict=False))]
        prompt = ap.Prompt(documents, "Where?")
        text = neutral_in_place(tokenizer, prompt, prompt.encode(tokenizer), 0, [1], None, seed)
        assert text.exact
        assert text.text != documents[0]


def test_a_text_of_the_users_own() -> None:
    tokenizer = BUILDERS["bytelevel"]()
    encoded = PROMPT.encode(tokenizer)
    ids = tokenizer(ANSWER)["input_ids"]
    text = neutral_in_place(tokenizer, PROMPT, encoded, 1, ids, "The quick brown fox jumps over the lazy dog. " * 3, 0)
    assert text.exact
    assert text.text.startswith("The quick brown")
    with pytest.raises(InputError, match="has 2 words and is shorter than a document of"):
        neutral_in_place(tokenizer, PROMPT, encoded, 1, ids, "The fox", 0)
    with pytest.raises(InputError, match='holds the answer " 47 days"'):
        neutral_in_place(tokenizer, PROMPT, encoded, 1, ids, "It took 47 days and more. " * 9, 0)
    with pytest.raises(InputError, match='holds the answer " 47 days"'):  # as scoring reads it
        neutral_in_place(tokenizer, PROMPT, encoded, 1, ids, "It took forty-seven days and more. " * 9, 0)


def test_a_built_in_text_never_holds_the_answer() -> None:
    tokenizer = BUILDERS["bytelevel"]()
    prompt = ap.Prompt(["A lazy dog. " * 4], "What?")
    encoded = prompt.encode(tokenizer)
    for seed in range(10):
        plain = neutral_in_place(tokenizer, prompt, encoded, 0, tokenizer("Zebra")["input_ids"], None, seed)
        word = plain.text.split()[2]
        other = neutral_in_place(tokenizer, prompt, encoded, 0, tokenizer(word)["input_ids"], None, seed)
        assert not holds_answer(other.text, [word])
    with pytest.raises(InputError, match="built-in neutral sentences hold the answer"):
        neutral_in_place(tokenizer, prompt, encoded, 0, tokenizer("the")["input_ids"], None, 0)


def test_a_miss_is_said(monkeypatch: Any, make_lm: Any) -> None:
    monkeypatch.setattr("attnprobe.neutral.matched_text", partial(matched_text, endings=()))
    found = effects(make_lm("llama"), PROMPT, ANSWER, method="swap")
    missed = [text for text in found.neutral if not text.exact]
    assert missed
    said = [warning for warning in found.warnings if "the neutral text in its place" in warning]
    assert len(said) == len(missed)
    assert f"has {missed[0].wanted} tokens, and the neutral text in its place {missed[0].found} " in said[0]


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(0, 60), st.integers(0, 1000))
def test_matched_text_counts_right_where_every_letter_is_a_token(wanted: int, seed: int) -> None:
    class Letters:
        def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
            return {"input_ids": list(text.encode())}

    text = matched_text(neutral_words(seed), lambda t: (len(t), len(t) + 5), (wanted, wanted + 5), Letters())
    assert len(text.text) == wanted
    assert text.exact


def test_what_cannot_be_removed(make_lm: Any) -> None:
    lm = make_lm("llama")
    with pytest.raises(InputError, match=r"one document.*\"swap\" or \"knockout\""):
        effects(lm, ap.Prompt(["Refunds."], "How long?"), ANSWER, method="deletion")
    with pytest.raises(InputError, match="needs a prompt of documents"):
        effects(lm, ap.Prompt.from_text("One. Two. Three.", spans=[("a", 0, 4)]), ANSWER, method="swap")
    with pytest.raises(InputError, match="layers and with_markers are for"):
        effects(lm, PROMPT, ANSWER, method="swap", layers=[0])
    with pytest.raises(InputError, match="method is 'ablate'"):
        effects(lm, PROMPT, ANSWER, method="ablate")  # type: ignore[arg-type]
