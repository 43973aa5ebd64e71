"""A prompt without one of its documents, or with another text in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attnprobe.answer_text import holds_answer
from attnprobe.document import document_label, quoted
from attnprobe.encode import EncodedPrompt
from attnprobe.errors import InputError
from attnprobe.neutral import NeutralText, matched_text, neutral_text
from attnprobe.prompt import Prompt


def check_removable(prompt: Prompt, method: str) -> None:
    """Raise InputError unless documents of the prompt can be deleted, or swapped."""
    if prompt.given is not None:
        raise InputError(f'method={method!r} needs a prompt of documents; for your own spans use method="knockout"')
    if method == "deletion" and len(prompt.documents) == 1:
        raise InputError('the prompt has one document and cannot do without it; use method="swap" or "knockout"')


def without_document(prompt: Prompt, index: int) -> Prompt:
    """The prompt without a document; the others keep their ids (numbered markers count anew)."""
    named = zip(prompt.document_names, prompt.documents, strict=True)
    kept = [replace(document, id=name) for name, document in named]
    return replace(prompt, documents=tuple(kept[:index] + kept[index + 1 :]))


def with_text(prompt: Prompt, index: int, text: str) -> Prompt:
    """The prompt with another text in the place of a document's."""
    documents = list(prompt.documents)
    documents[index] = replace(documents[index], text=text)
    return replace(prompt, documents=tuple(documents))


def neutral_in_place(
    tokenizer: Any,
    prompt: Prompt,
    encoded: EncodedPrompt,
    index: int,
    answer_ids: Sequence[int],
    given: str | None,
    seed: int,
) -> NeutralText:
    """A neutral text of a document's number of tokens, counted in its place, that does not hold the answer.

    Parameters
    ----------
    tokenizer, prompt, encoded
        The prompt, and its tokens.
    index
        The document.
    answer_ids
        The answer.
    given
        The text to take it from; None for built-in sentences.
    seed
        Draws those.

    Raises
    ------
    InputError
        The text is too short, or holds the answer.
    """
    answer = tokenizer.decode(list(answer_ids), skip_special_tokens=True)

    def own_tokens(tokens: EncodedPrompt) -> int:
        return sum(span.n_tokens for span in tokens.spans if span.kind == "document" and span.document == index)

    def count(text: str) -> tuple[int, int]:
        tokens = with_text(prompt, index, text).encode(tokenizer)
        return own_tokens(tokens), tokens.n_tokens

    wanted = own_tokens(encoded), encoded.n_tokens
    if given is not None:
        if holds_answer(given, [answer]):
            raise InputError(f"the neutral text holds the answer {quoted(answer)}; give another one")
        return matched_text(iter(given.split()), count, wanted, tokenizer)
    try:
        return neutral_text(seed, count, wanted, tokenizer, [answer])
    except InputError as error:
        raise InputError(f"{error}; pass a text of your own as neutral") from error


def mismatch(index: int, name: str, text: NeutralText) -> str:
    """The warning about a neutral text that does not match exactly."""
    return (
        f"{document_label(index, name)} has {text.wanted} tokens, and the neutral text in its place {text.found} "
        f"(prompt: {text.wanted_prompt} and {text.found_prompt})"
    )
