"""Documents filled up to one length: with sentences that hold no answer."""

from __future__ import annotations

import pytest
from toy_tokenizers import BUILDERS

import attnprobe as ap
from attnprobe.answer_text import holds_answer
from attnprobe.errors import InputError
from attnprobe.study_lengths import length_matched

PROMPT = ap.Prompt(["Short.", "A lazy dog. " * 12], "What?")


def test_a_filler_holds_no_answer() -> None:
    tokenizer = BUILDERS["bytelevel"]()
    for seed in range(5):
        filled = length_matched(PROMPT, tokenizer, seed).documents[0].text
        word = filled.split()[3]
        assert holds_answer(filled, [word])
        other = length_matched(PROMPT, tokenizer, seed, ["zebra", word]).documents[0].text
        assert other.startswith("Short. ")
        assert not holds_answer(other, [word])
    with pytest.raises(InputError, match='the built-in neutral sentences hold the answer "the"'):
        length_matched(PROMPT, tokenizer, 0, ["the"])
