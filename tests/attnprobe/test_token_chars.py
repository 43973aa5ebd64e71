"""Character ranges of tokens against the bytes that tokens stand for, and against tokenizers' own offsets."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from runs import make_run
from toy_tokenizers import BUILDERS

import attnprobe as ap
from attnprobe.token_chars import answer_chars, token_chars

ODD = [
    "a 👩‍👩‍👧‍👦 b",
    "مرحبا بالعالم",
    "你好，世界。 四十七",
    "one\r\ntwo\r\n\r\n three",
    "cafe\u0301 \u0323\u0301",
    "\u202eحق\u202c 🇩🇪",
    "  two  spaces\t",
    "it's 47 days. </doc>",
]
TEXTS = st.lists(st.one_of(st.sampled_from(ODD), st.text(max_size=8)), max_size=12).map("".join)
QUICK = settings(max_examples=80, deadline=None, derandomize=True)


def byte_table() -> dict[str, int]:
    """Byte of each character that a byte-level vocabulary writes: GPT-2's table."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def by_bytes(tokens: list[str], text: str) -> list[tuple[int, int]]:
    """Ranges of the characters whose bytes lie in each token."""
    table, owner = byte_table(), []
    for index, character in enumerate(text):
        owner += [index] * len(character.encode())
    assert b"".join(bytes(table[c] for c in token) for token in tokens) == text.encode()
    ranges, place = [], 0
    for token in tokens:
        own = owner[place : place + len(token)]
        ranges.append((own[0], own[-1] + 1))
        place += len(token)
    return ranges


def rebuilt(text: str, ranges: Any) -> str:
    """The text put together from its tokens' pieces, a shared character once."""
    pieces, reached = [], 0
    for start, stop in ranges:
        assert start <= reached or start == stop, "characters of no token"
        pieces.append(text[max(start, reached) : stop])
        reached = max(reached, stop)
    return "".join(pieces)


@pytest.mark.parametrize("name", ["smollm2", "bytelevel"])
@QUICK
@given(text=TEXTS)
def test_byte_level_answers_have_the_characters_of_their_bytes(name: str, text: str) -> None:
    tokenizer = BUILDERS[name]()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    assume(name != "smollm2" or decode(ids) == text)  # it has no token for some rare bytes
    found = answer_chars(ids, decode)
    assert list(map(tuple, found)) == by_bytes(tokenizer.convert_ids_to_tokens(ids), decode(ids))
    assert rebuilt(decode(ids), found) == decode(ids)


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("skip", [True, False])
@settings(QUICK, max_examples=40)
@given(data=st.data())
def test_any_ids_make_up_their_text(name: str, skip: bool, data: st.DataObject) -> None:
    tokenizer = BUILDERS[name]()
    ids = data.draw(st.lists(st.integers(0, min(len(tokenizer), 600) - 1), max_size=120))
    decode = partial(tokenizer.decode, skip_special_tokens=skip)
    text, found = decode(ids), answer_chars(ids, decode)
    assert rebuilt(text, found) == text
    assert (np.diff(found[:, 0]) >= 0).all()
    reached = 0
    for token in range(len(ids)):  # the text up to each token, from the first one on, however long
        whole = decode(ids[: token + 1])
        if text.startswith(whole):
            assert found[token, 1] in (len(whole), reached)
            reached = max(reached, len(whole))


@pytest.mark.parametrize("name", ["smollm2", "metaspace"])
@pytest.mark.parametrize("text", [text for text in ODD if text[0] != " "])  # Metaspace takes one space off again
def test_answers_agree_with_the_tokenizers_own_offsets(name: str, text: str) -> None:
    tokenizer = BUILDERS[name]()
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    decode = partial(tokenizer.decode, skip_special_tokens=False)
    assert decode(encoding["input_ids"]) == text
    found = answer_chars(encoding["input_ids"], decode)
    # Offsets are empty where post-processing trims a space. The mark of a space that is put before the text shares the
    # offsets of its first word, and decodes to nothing.
    alone = int(tokenizer.convert_ids_to_tokens(encoding["input_ids"])[0] == "▁")
    assert found[:alone].tolist() == [[0, 0]] * alone
    for (start, stop), (a, b) in zip(encoding["offset_mapping"][alone:], found[alone:], strict=True):
        assert a <= start <= stop <= b
        assert text[a:start].strip(" ") == text[stop:b].strip(" ") == ""


def test_skipped_tokens_have_no_characters() -> None:
    tokenizer = BUILDERS["bytelevel"]()
    (end,) = tokenizer("<|endoftext|>", add_special_tokens=False)["input_ids"]
    half = tokenizer("é", add_special_tokens=False)["input_ids"]
    assert len(half) == 2
    ids = [end, half[0], end, half[1], end]
    skipping = answer_chars(ids, partial(tokenizer.decode, skip_special_tokens=True))
    assert skipping.tolist() == [[0, 0], [0, 1], [0, 0], [0, 1], [1, 1]]
    whole = answer_chars([end, *half], partial(tokenizer.decode, skip_special_tokens=False))
    n = len("<|endoftext|>")
    assert whole.tolist() == [[0, n], [n, n + 1], [n, n + 1]]


@pytest.mark.parametrize("name", ["smollm2", "bytelevel"])
@QUICK
@given(text=TEXTS.filter(lambda text: text.strip() and "\0" not in text))
def test_prompts_and_answers_share_one_text(name: str, text: str) -> None:
    tokenizer = BUILDERS[name]()
    assume(text == unicodedata.normalize("NFC", text))  # a mark that a normaliser merges is no token's
    encoded = ap.Prompt.from_text(text).encode(tokenizer)
    assume(name != "smollm2" or tokenizer.decode(encoded.token_ids) == text)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    chars = token_chars(encoded, ids, decode)
    assert rebuilt(encoded.text + decode(ids), chars) == encoded.text + decode(ids)


def assert_chars(lm: Any, run: ap.Run) -> None:
    assert run.token_chars is not None
    assert run.token_chars.dtype == np.int32
    text = run.prompt_text + run.answer
    decode = partial(lm.tokenizer.decode, skip_special_tokens=True)
    answer = len(run.prompt_text) + answer_chars(run.answer_ids, decode)
    np.testing.assert_array_equal(run.token_chars[run.n_prompt :], answer)
    assert rebuilt(text, run.token_chars) == text
    for token, (start, stop) in zip(run.token_ids, run.token_chars, strict=True):
        alone = lm.tokenizer.decode([token])
        if alone.isascii() and start < stop:
            assert text[start:stop] == alone


@pytest.mark.parametrize("family", ["llama", "bloom"])
@pytest.mark.parametrize("forced", [False, True])
def test_runs_of_batches_have_them(make_lm: Any, prompts: list[ap.Prompt], family: str, forced: bool) -> None:
    lm = make_lm(family)
    given = [*prompts, ap.Prompt.from_text("Some text 👩‍👩‍👧 and 你好\r\n, as it is.", by="sentence")]
    answers = ["47 days", "no", "👩‍👩‍👧 it is", "مرحبا"] if forced else None
    for run in ap.measure_many(lm, given, answers=answers, batch_size=2, max_new_tokens=8):
        assert_chars(lm, run)


def test_a_counted_end_of_sequence_has_its_name_for_text(make_lm: Any, prompts: list[ap.Prompt]) -> None:
    lm = make_lm()
    plain = ap.measure(lm, prompts[0], max_new_tokens=1)
    lm.model.generation_config.eos_token_id = plain.answer_ids[0]
    alone = ap.measure(lm, prompts[0], max_new_tokens=3)
    assert_chars(lm, alone)
    end = lm.tokenizer.eos_token_id
    forced = ap.measure(lm, prompts[0], answer=[*plain.answer_ids, end], include_eos=True)
    assert forced.token_chars is not None
    start, stop = forced.token_chars[-1]
    assert (forced.prompt_text + forced.answer)[start:stop] == lm.tokenizer.eos_token
    skipped = ap.measure(lm, prompts[0], answer=[*plain.answer_ids, end])
    assert skipped.token_chars is not None
    assert skipped.token_chars[-1].tolist() == [len(skipped.prompt_text + skipped.answer)] * 2


BAD: dict[str, tuple[Any, str]] = {
    "list": (lambda c, run: c.tolist(), "token_chars must be a numpy array"),
    "dtype": (lambda c, run: c.astype(np.int64), "token_chars is int64"),
    "shape": (lambda c, run: c[:-1], r"expected int32 of shape \(\d+, 2\)"),
    "negative": (lambda c, run: put(c, (0, 0), -1), "a token of the prompt characters outside"),
    "reversed": (lambda c, run: put(c, (2, 1), c[2, 0] - 1), "a token of the prompt characters outside"),
    "beyond": (lambda c, run: put(c, (-1, 1), c[-1, 1] + 1), "a token of the answer characters outside"),
    "of-the-answer": (lambda c, run: put(c, (run.n_prompt - 1, 1), len(run.prompt_text) + 1), "token of the prompt"),
    "of-the-prompt": (lambda c, run: put(c, (run.n_prompt, 0), 1), "token of the answer characters outside"),
    "order": (lambda c, run: put(put(c, (2, 1), 20), (2, 0), 20), "before those of the token before it"),
}


def put(array: np.ndarray, index: tuple[int, ...], value: int) -> np.ndarray:
    copy = array.copy()
    copy[index] = value
    return copy


@pytest.mark.parametrize("case", BAD)
def test_contradicting_ranges_are_refused(case: str) -> None:
    run = make_run(7, extras=True)
    change, message = BAD[case]
    with pytest.raises(ap.InputError, match=message):
        replace(run, token_chars=change(run.token_chars, run))
