"""Documents of one length: the shorter ones filled up with neutral text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attnprobe.document import Document
from attnprobe.neutral import neutral_text
from attnprobe.prompt import Prompt


def length_matched(prompt: Prompt, tokenizer: Any, seed: int = 0, answers: Sequence[str] = ()) -> Prompt:
    """Fill every document up to the tokens of the longest one with sentences about nothing asked.

    The share of a longer document is larger for its length alone; position designs average that out over documents,
    this takes it out of every single order. The match is exact where the tokenizer allows, and else as close as it
    gets; a study keeps the tokens of every document beside its values.

    Parameters
    ----------
    prompt
        A prompt of documents.
    tokenizer
        Of the model that is going to read it.
    seed
        Draws the sentences; each document gets its own.
    answers
        What the sentences must not hold.

    Raises
    ------
    InputError
        Whatever is drawn holds an answer.
    """
    lengths = [_tokens(prompt, document, tokenizer) for document in prompt.documents]
    longest = max(lengths)
    documents = []
    for number, (document, length) in enumerate(zip(prompt.documents, lengths, strict=True)):
        if length == longest:
            documents.append(document)
            continue

        def count(text: str, document: Document = document, length: int = length) -> tuple[int, int]:
            found = _tokens(prompt, _longer(document, text), tokenizer) - length
            return found, found

        missing = (longest - length, longest - length)
        filler = neutral_text(seed * 1000 + number, count, missing, tokenizer, answers)
        documents.append(_longer(document, filler.text))
    return replace(prompt, documents=tuple(documents))


def _longer(document: Document, text: str) -> Document:
    joined = f"{document.text} {text}" if document.text else text
    return replace(document, text=joined)


def _tokens(prompt: Prompt, document: Document, tokenizer: Any) -> int:
    """Tokens of a document in its place; alone in the prompt, as its neighbours do not matter."""
    encoded = replace(prompt, documents=(document,)).encode(tokenizer)
    return next(span.n_tokens for span in encoded.spans if span.kind == "document")
