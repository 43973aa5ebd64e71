import time
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy_tokenizers import (
    BUILDERS,
    CHATML,
    LLAMA2,
    ROUND_TRIPPING,
    bytelevel,
    metaspace,
    smollm2,
    with_template,
    wordpiece,
)

from attnprobe.errors import InputError
from attnprobe.prompt import Document, Prompt, encode_answer
from attnprobe.spans import check_partition

with_template = cache(with_template)


def span(encoded, name):
    return next(item for item in encoded.spans if item.name == name)


def ids_of(encoded, name):
    return [i for start, stop in span(encoded, name).segments for i in encoded.token_ids[start:stop]]


def decoded(encoded, tokenizer, name):
    return tokenizer.decode(ids_of(encoded, name))


CLEAN = st.characters(exclude_categories=["Cs"], exclude_characters="\x00")
SNIPPETS = st.sampled_from(
    [
        " ",
        "\n",
        "\r\n",
        "\n\n",
        ".",
        " word",
        "the ",
        "👨‍👩‍👧",
        " 😀",
        "日本語",
        "cafe\u0301",
        "\u0301",
        "مرحبا",
        "</doc>",
        "  ",
        "{x}",
    ]
)
TEXTS = st.lists(st.one_of(SNIPPETS, st.text(CLEAN, max_size=8)), max_size=12).map("".join)


@pytest.mark.parametrize("name", BUILDERS)
@settings(
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    documents=st.lists(TEXTS, min_size=1, max_size=5),
    markers=st.sampled_from(["xml", "numbered", "none"]),
    layout=st.sampled_from(["question_last", "question_first", "question_both"]),
    chat=st.booleans(),
)
def test_spans_partition_any_prompt(name, documents, markers, layout, chat):
    tokenizer = with_template(BUILDERS[name], CHATML) if chat else BUILDERS[name]()
    template = "chat" if chat else "plain"
    prompt = Prompt(documents, "Which is it?", markers=markers, layout=layout, template=template)
    rendered, encoded = prompt.render(tokenizer), prompt.encode(tokenizer)

    tiles = sorted(segment for region in rendered.regions for segment in region.segments)
    assert [start for start, _ in tiles] == [0] + [stop for _, stop in tiles[:-1]]
    assert tiles[-1][1] == len(rendered.text) == len(encoded.text)

    check_partition(encoded.spans, encoded.n_tokens)
    assert encoded.spans[0].kind == "sink"
    assert encoded.spans[0].segments[0] == (0, 1)
    assert [item.document for item in encoded.spans if item.kind == "document"] == list(range(len(documents)))
    assert len({item.name for item in encoded.spans}) == len(encoded.spans)

    straddlers = straddling(rendered, encoded)
    for region in rendered.regions:
        if not any(item.name == region.name for item in encoded.spans):
            continue
        own = {t for start, stop in span(encoded, region.name).segments for t in range(start, stop)}
        for start, stop in region.segments:
            inside = {
                token
                for token, (a, b) in enumerate(encoded.offsets)
                if token > 0 and start <= a < b <= stop and token not in straddlers
            }
            assert inside <= own
    # Byte-level vocabularies that lack a byte lose characters, and their offsets are then off.
    if name in ROUND_TRIPPING and not chat and tokenizer.decode(encoded.token_ids).endswith(encoded.text):
        for index, document in enumerate(documents):
            text = region_text(rendered, str(index))
            tokens = [t for a, b in span(encoded, str(index)).segments for t in range(a, b)]
            if any(holds_part(encoded.offsets, rendered, index, t) for t in straddlers | {0}):
                continue
            # SentencePiece decoders take one space off the start.
            expected = text.removeprefix(" ") if name == "metaspace" else text
            assert tokenizer.decode([encoded.token_ids[t] for t in tokens]) == expected, document


def region_text(rendered, name):
    region = next(item for item in rendered.regions if item.name == name)
    return "".join(rendered.text[start:stop] for start, stop in region.segments)


def straddling(rendered, encoded):
    """Tokens over two regions, and those that share a character with one."""
    owner = {}
    for index, region in enumerate(rendered.regions):
        for start, stop in region.segments:
            owner.update(dict.fromkeys(range(start, stop), index))
    over = [(a, b) for a, b in encoded.offsets if len({owner[c] for c in range(a, b)}) > 1]
    shared = {c for a, b in over for c in range(a, b)}
    return {t for t, (a, b) in enumerate(encoded.offsets) if shared & set(range(a, b))}


def holds_part(offsets, rendered, index, token):
    start, stop = offsets[token]
    region = next(item for item in rendered.regions if item.name == str(index))
    return any(start < high and low < stop for low, high in region.segments)


@pytest.mark.parametrize("name", BUILDERS)
@settings(deadline=None, derandomize=True, max_examples=40)
@given(text=TEXTS.filter(lambda text: text.strip()), by=st.sampled_from(["paragraph", "sentence"]))
def test_raw_text_partitions(name, text, by):
    tokenizer = BUILDERS[name]()
    if not tokenizer(text)["input_ids"]:
        return
    encoded = Prompt.from_text(text, by=by).encode(tokenizer)
    check_partition(encoded.spans, encoded.n_tokens)
    assert encoded.text == text


@pytest.mark.parametrize("name", BUILDERS)
def test_first_word_of_a_document_is_its_own(name):
    tokenizer = BUILDERS[name]()
    encoded = Prompt.from_text("the dog. word answer", [("a", 0, 8), ("b", 8, 20)]).encode(tokenizer)
    assert decoded(encoded, tokenizer, "b").strip() == "word answer"
    assert not any("straddle" in warning for warning in encoded.warnings)


def test_trimmed_offsets_are_restored():
    encoded = Prompt.from_text("the   dog \n is", [("a", 0, 5), ("b", 5, 11)]).encode(bytelevel())
    joined = "".join(encoded.text[a:b] for a, b in encoded.offsets)
    assert joined == encoded.text
    assert not any("straddle" in warning for warning in encoded.warnings)


def test_emoji_stays_whole_behind_a_space():
    tokenizer = smollm2()
    encoded = Prompt(["😀 fine", "👨‍👩‍👧"], "Q?", markers="numbered", template="plain").encode(tokenizer)
    assert decoded(encoded, tokenizer, "0") == " 😀 fine"
    assert decoded(encoded, tokenizer, "1") == " 👨‍👩‍👧"


def test_document_with_a_closing_tag_keeps_its_text():
    tokenizer = smollm2()
    encoded = Prompt(["see </doc> tag", "b"], "Q?").encode(tokenizer)
    assert decoded(encoded, tokenizer, "0") == "see &lt;/doc> tag"
    assert sum(item.kind == "document" for item in encoded.spans) == 2


def test_empty_documents_keep_their_place():
    encoded = Prompt(["", "b", Document("", id="last.md")], "Q?").encode(smollm2())
    assert [(s.name, s.n_tokens) for s in encoded.spans if s.kind == "document"] == [("0", 0), ("1", 1), ("last.md", 0)]
    names = [s.name for s in encoded.spans]
    assert names[names.index("marker:0") + 1] == "0"
    assert names[names.index("marker:last.md") + 1] == "last.md"
    assert 'document 2 ("last.md") is empty: its span has no tokens' in encoded.warnings


def test_document_of_white_space_that_the_tokenizer_drops():
    encoded = Prompt([" \n ", "b"], "Q?").encode(wordpiece())
    assert span(encoded, "0").segments == ()
    assert any("document 0 has no token of its own" in warning for warning in encoded.warnings)


def test_one_bos_in_chat():
    tokenizer = with_template(metaspace, LLAMA2)
    encoded = Prompt(["a"], "Q?").encode(tokenizer)
    assert encoded.token_ids.count(tokenizer.bos_token_id) == 1
    assert encoded.token_ids[0] == tokenizer.bos_token_id


def test_one_bos_in_text():
    tokenizer = metaspace()
    once, twice = Prompt.from_text("the dog"), Prompt.from_text("<s>the dog")
    assert once.encode(tokenizer).token_ids.count(1) == 1
    encoded = twice.encode(tokenizer)
    assert encoded.token_ids.count(1) == 1
    assert encoded.offsets[0] == (0, 3)
    assert any("only one is kept" in warning for warning in encoded.warnings)


def test_no_end_token_before_the_answer():
    assert Prompt.from_text("the dog").encode(metaspace()).token_ids[-1] != 2
    assert Prompt.from_text("the dog").encode(wordpiece()).token_ids[-1] != wordpiece().sep_token_id
    kept = Prompt.from_text("the dog</s>").encode(metaspace())
    assert kept.token_ids[-1] == 2


def test_chat_template_without_the_bos_that_the_tokenizer_adds():
    encoded = Prompt(["a"], "Q?").encode(with_template(metaspace, CHATML))
    assert any("writes no '<s>'" in warning for warning in encoded.warnings)


def test_tokenizer_without_template_bos_or_pad():
    tokenizer = bytelevel()
    encoded = Prompt(["the dog"], "Q?", markers="none").encode(tokenizer)
    assert encoded.spans[0].segments == ((0, 1),)
    assert "document 0 loses its first token to the sink" in encoded.warnings
    assert tokenizer.pad_token_id not in encoded.token_ids


def test_first_token_of_a_bos_costs_nothing():
    encoded = Prompt(["the dog"], "Q?", markers="none").encode(metaspace())
    assert not any("sink" in warning for warning in encoded.warnings)


@pytest.mark.parametrize(
    ("prompt", "where"),
    [
        (Prompt([Document("a <|im_end|> b <|im_end|>", id="x")], "Q?"), 'document 0 ("x")'),
        (Prompt(["a"], "Q <|im_end|>?"), "the question"),
        (Prompt(["a"], "Q?", system="<|im_end|>"), "the system"),
        (Prompt.from_messages([{"role": "user", "content": "a <|im_end|>"}]), "the text outside the spans"),
    ],
    ids=["document", "question", "system", "message"],
)
def test_control_tokens_are_named_and_refused(prompt, where):
    encoded = prompt.encode(smollm2())
    assert any(w.startswith(f"{where} holds the control token <|im_end|>") for w in encoded.warnings)
    with pytest.raises(InputError, match="control token"):
        prompt.encode(smollm2(), strict=True)


def test_control_token_that_is_the_first_of_a_document():
    text = "<|im_end|><|im_end|> a"
    assert "document 0 holds the control token <|im_end|> (2 times), which the model reads as one" in (
        Prompt([text], "Q?").encode(smollm2()).warnings
    )


def test_unknown_words_and_raw_text_are_no_control_tokens():
    assert not any("control" in w for w in Prompt(["日本"], "Q?").encode(wordpiece()).warnings)
    assert not any("control" in w for w in Prompt.from_text("a <|im_end|>").encode(smollm2(), strict=True).warnings)


def test_straddlers_are_listed_and_refused():
    text = "the answer " * 9
    spans = [(f"c{i}", max(0, 11 * i - 1), 11 * i + 7) for i in range(9)]
    encoded = Prompt.from_text(text, spans).encode(smollm2())
    listed = [warning for warning in encoded.warnings if "straddle" in warning]
    assert len(listed) == 1
    assert listed[0].startswith("9 tokens straddle two spans")
    assert 'token 1 " answer" (of "c0", not "rest")' in listed[0]
    assert listed[0].count("(of") == 5
    assert listed[0].endswith("and 4 more")
    with pytest.raises(InputError, match="straddle"):
        Prompt.from_text(text, spans).encode(smollm2(), strict=True)


def test_default_prompt_passes_strict():
    encoded = Prompt(["Alpha is one", "Beta"], "Which?", system="Be brief").encode(smollm2(), strict=True)
    assert encoded.warnings == ()


def test_slow_tokenizer_is_refused():
    class Slow:
        is_fast = False
        name_or_path = "slow"

    with pytest.raises(InputError, match=r"slow \(Slow\) gives no character offsets.*use_fast=True"):
        Prompt.from_text("a").encode(Slow())


def test_prompt_without_tokens_is_refused():
    tokenizer = with_template(wordpiece, "{{ messages[0].content }}")
    with pytest.raises(InputError, match="no token"):
        Prompt.from_messages([{"role": "user", "content": " "}]).encode(tokenizer)


def test_answer_joins_with_one_space_in_plain_text():
    tokenizer = smollm2()
    encoded = Prompt(["a"], "Q?", template="plain").encode(tokenizer)
    ids, warnings = encode_answer(encoded, tokenizer, "forty")
    assert tokenizer.decode(ids) == " forty"
    assert (ids, warnings) == encode_answer(encoded, tokenizer, " forty")
    assert warnings == ()


def test_answer_in_chat_and_given_ids_are_kept():
    tokenizer = smollm2()
    encoded = Prompt(["a"], "Q?").encode(tokenizer)
    assert tokenizer.decode(encode_answer(encoded, tokenizer, "47 days")[0]) == "47 days"
    for text in ("47", " 47"):
        ids = tuple(tokenizer(text)["input_ids"])
        assert encode_answer(encoded, tokenizer, list(ids)) == (ids, ())


def test_answer_that_merges_is_encoded_alone():
    tokenizer = smollm2()
    encoded = Prompt.from_text("the ans").encode(tokenizer)
    ids, warnings = encode_answer(encoded, tokenizer, "wer")
    assert tokenizer.decode(ids) == "wer"
    assert "merges with the prompt's last token" in warnings[0]


def test_answer_is_not_ended():
    tokenizer = metaspace()
    encoded = Prompt(["a"], "Q?").encode(tokenizer)
    ids, _ = encode_answer(encoded, tokenizer, "the answer")
    assert tokenizer.eos_token_id not in ids
    assert tokenizer.bos_token_id not in ids
    ended, warnings = encode_answer(encoded, tokenizer, "the answer</s>")
    assert ended[-1] == tokenizer.eos_token_id
    assert "control token </s>" in warnings[0]


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        ("", "answer is empty"),
        ([], "no token ids"),
        ([1, -7], "answer id 1 is -7"),
        (5, "answer is 5; give text, or a sequence of token ids"),
        ([-1], "answer id 0 is -1"),
        ([1.5], "whole numbers"),
        ("\x00", "answer holds a NUL"),
    ],
)
def test_answer_errors(answer, match):
    encoded = Prompt(["a"], "Q?").encode(smollm2())
    with pytest.raises(InputError, match=match):
        encode_answer(encoded, smollm2(), answer)


def test_large_prompt_is_quick():
    tokenizer = smollm2()
    prompt = Prompt(["hello world 12 foo bar. " * 21_000] * 2, "Q?")
    start = time.process_time()
    encoded = prompt.encode(tokenizer)
    assert time.process_time() - start < 15
    assert encoded.n_tokens > 300_000
    assert span(encoded, "0").n_tokens == pytest.approx(span(encoded, "1").n_tokens, abs=2)
