"""Tiny GPT-2 models whose weights are set by hand, so that every attention mass is known in closed form.

Two builders: `additive_lm`, whose logits are a function of the key's position plus one of the key's word, and
`retrieval_lm`, which copies a needle through one head.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedTokenizerFast

import attnprobe as ap

BOS, UNKNOWN = "<s>", "<unk>"
N_POSITIONS = 256


def word_tokenizer(words: Sequence[str]) -> Any:
    """One token a word, one a sign of punctuation, and BOS in front; words that are not listed are one unknown."""
    signs = [".", ":", "?"]
    listed = dict.fromkeys([BOS, UNKNOWN, *signs, "Question", "Answer", *words])
    vocabulary = {word: number for number, word in enumerate(listed)}
    pieces = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    pieces.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces, bos_token=BOS, unk_token=UNKNOWN, name_or_path="planted-words"
    )


def additive_lm(
    words: Sequence[str],
    position_logits: np.ndarray | None = None,
    word_logits: Mapping[str, float] | None = None,
    *,
    position_layers: Collection[int] | None = None,
    word_layers: Collection[int] | None = None,
    n_layers: int = 3,
    n_heads: int = 2,
) -> ap.LanguageModel:
    """A model whose attention logit, in every row and head, is a function of the key alone.

    A layer's logit for the key of word ``w`` at position ``p`` is ``position_logits[p]`` if the layer is in
    ``position_layers``, plus ``word_logits.get(w, 0)`` if it is in ``word_layers`` (None: all layers). So a key's mass
    is the exponential of that over its sum over the keys that the row sees.

    How: a number x in [-1, 1] is embedded as (x, -x, s, -s) with s = sqrt(1 - x^2), which has the mean 0 and the sum of
    squares 2 whatever x is. A LayerNorm then divides every token by the same number, keys read x, and the query is a
    constant, its bias. Nothing is written to the residual stream, so all layers see the embeddings.

    Parameters
    ----------
    words
        Vocabulary.
    position_logits
        float [position], in nats; 0 beyond its end.
    word_logits
        By word, in nats; 0 for others.
    """
    tokenizer = word_tokenizer(words)
    model = _blank(len(tokenizer), hidden=4 * n_heads * 2, n_layers=n_layers, n_heads=n_heads)
    given = np.asarray(() if position_logits is None else position_logits, dtype=np.float64)
    assert len(given) <= N_POSITIONS
    by_position = np.zeros(N_POSITIONS)
    by_position[: len(given)] = given
    by_word = np.zeros(len(tokenizer))
    for word, logit in (word_logits or {}).items():
        number = tokenizer.convert_tokens_to_ids(word)
        assert number != tokenizer.unk_token_id, word
        by_word[number] = logit
    hidden, head_dim = model.config.n_embd, model.config.n_embd // n_heads
    deviation = math.sqrt(4 / hidden + model.config.layer_norm_epsilon)
    with torch.no_grad():
        peaks = []
        for table, values, start in (
            (model.transformer.wpe.weight, by_position, 0),
            (model.transformer.wte.weight, by_word, 4),
        ):
            peak = float(np.abs(values).max())
            x = values / peak if peak else values
            s = np.sqrt(1 - x**2)
            table[:, start : start + 4] = torch.tensor(np.stack([x, -x, s, -s], axis=1), dtype=torch.float32)
            peaks.append(peak)
        for layer, block in enumerate(model.transformer.h):
            for head in range(n_heads):
                for place, (peak, chosen) in enumerate(zip(peaks, (position_layers, word_layers), strict=True)):
                    if chosen is None or layer in chosen:
                        column = head * head_dim + place
                        block.attn.c_attn.bias[column] = peak * deviation * math.sqrt(head_dim)
                        block.attn.c_attn.weight[4 * place, hidden + column] = 1
    return ap.LanguageModel(model, tokenizer)


def article_logits(lm: ap.LanguageModel, prompt: ap.Prompt, alpha: float) -> np.ndarray:
    """Logits by position, float64 [token]: log of the article's weight inside documents, 0 elsewhere.

    With documents of equal token counts, their shares are then exactly ``ap.effective_attention(K, alpha)``.
    """
    encoded = prompt.encode(lm.tokenizer)
    K = len(prompt.documents)
    out = np.zeros(encoded.n_tokens)
    counts = set()
    for span in encoded.spans:
        if span.kind == "document" and span.document is not None:
            i = span.document
            for start, stop in span.segments:
                out[start:stop] = math.log(math.exp(-alpha * i) + math.exp(-alpha * (K - 1 - i)))
            counts.add(sum(stop - start for start, stop in span.segments))
    assert len(counts) == 1, "documents of different token counts"
    return out


@dataclass(frozen=True)
class PlantedRetrieval:
    """A model that copies a needle, and which of its heads do what.

    Parameters
    ----------
    lm
        The model. Given ``prompt`` it writes ``answer``.
    prompt
        Four documents, of which number 2 holds the needle.
    answer
        The needle's words.
    head
        ``(layer, head)`` whose top key in every predicting row is the needle token that comes next.
    gazing
        ``(layer, head)`` whose top key is always the needle's first token: it is copied in one step only.
    """

    lm: ap.LanguageModel
    prompt: ap.Prompt
    answer: str
    head: tuple[int, int]
    gazing: tuple[int, int]


def retrieval_lm(head: tuple[int, int] = (1, 2), gazing: tuple[int, int] = (0, 1)) -> PlantedRetrieval:
    """A model of three layers and four heads, in which one head retrieves and writes what it finds.

    Words are one-hot and positions are not seen. The retrieval head's query maps a word of the needle to the one
    behind it (and the ":" of "Answer:" to the first), its keys are the words themselves, and its value is added to the
    residual stream large enough to be the next word written. The gazing head's constant query looks for the needle's
    first word, all other heads' for BOS.
    """
    needle = ["amber", "kettle", "north", "harbour", "seven"]
    lines = [
        "a grey mill stands by the old road .",
        "wide fields and low hills stands near .",
        f"the old mill near {' '.join(needle)} and hills .",
        "some low road by grey hills and fields .",
    ]
    question = "which words"
    tokenizer = word_tokenizer([*needle, *" ".join([*lines, question]).split()])
    hidden, n_heads = 128, 4
    head_dim = hidden // n_heads
    assert len(tokenizer) <= hidden
    assert len(needle) < head_dim
    model = _blank(len(tokenizer), hidden, n_layers=3, n_heads=n_heads)
    ids = tokenizer.convert_tokens_to_ids(needle)
    before = [tokenizer.convert_tokens_to_ids(":"), *ids[:-1]]
    looking_for = {(layer, h): tokenizer.bos_token_id for layer in range(3) for h in range(n_heads)}
    looking_for[gazing] = ids[0]
    del looking_for[head]
    with torch.no_grad():
        model.transformer.wte.weight.copy_(torch.eye(len(tokenizer), hidden))
        for (layer, h), target in looking_for.items():
            attention = model.transformer.h[layer].attn
            attention.c_attn.bias[h * head_dim] = 10
            attention.c_attn.weight[target, hidden + h * head_dim] = 1
        attention = model.transformer.h[head[0]].attn
        first = head[1] * head_dim
        for place, (previous, following) in enumerate(zip(before, ids, strict=True)):
            attention.c_attn.weight[previous, first + place] = 2  # query
            attention.c_attn.weight[following, hidden + first + place] = 1  # key
            attention.c_attn.weight[following, 2 * hidden + first + place] = 1  # value
            attention.c_proj.weight[first + place, following] = 1
    return PlantedRetrieval(
        ap.LanguageModel(model, tokenizer),
        ap.Prompt(lines, question, markers="none", template="plain"),
        " ".join(needle),
        head,
        gazing,
    )


def _blank(n_words: int, hidden: int, n_layers: int, n_heads: int) -> Any:
    """GPT-2 with all weights zero, except the LayerNorms', which are 1: attention is uniform."""
    config = GPT2Config(
        vocab_size=n_words,
        n_positions=N_POSITIONS,
        n_embd=hidden,
        n_layer=n_layers,
        n_head=n_heads,
        bos_token_id=0,
        eos_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
    model.generation_config.eos_token_id = None
    return model
