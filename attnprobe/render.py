"""Rendering: a prompt's pieces become one text whose characters each belong to one region."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .chat import has_chat_template, render_chat, tokenizer_name
from .document import Document, GivenText
from .errors import InputError
from .pieces import REST, TEMPLATE, Owner, Piece, Region, join_pieces
from .split import split_paragraphs, split_sentences

if TYPE_CHECKING:
    from .prompt import Prompt


@dataclass(frozen=True)
class RenderedPrompt:
    """The one text that the model reads.

    Parameters
    ----------
    text
        The whole prompt.
    regions
        Character regions, by first character, that tile ``text`` exactly.
    add_special_tokens
        Whether the tokenizer adds its own BOS; False after a chat template, which writes its own.
    answer_prefix
        What joins an answer's text to the prompt, unless that text begins with white space.
    joints
        Characters that only join two regions: they do not decide which region a longer token belongs to.
    warnings
        What the template changed.
    raw
        Whether the user wrote the whole text, so that control tokens in it are meant.
    """

    text: str
    regions: tuple[Region, ...]
    add_special_tokens: bool
    answer_prefix: str
    joints: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    raw: bool = False


QUESTION = Owner("question", "question")

# A "<" that would open or close a doc element; "<document" and "<doc-id" are other names.
_DOC_TAG = re.compile(r"<(?=\s*(?:/\s*)?doc(?![\w.:-]))", re.IGNORECASE)
_ATTRIBUTE_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}
)


def render_prompt(prompt: Prompt, tokenizer: Any) -> RenderedPrompt:
    """Render a prompt for a tokenizer; see `Prompt.render`."""
    given = prompt.given
    if given is not None:
        if given.roles is None:
            text, regions, joints = join_pieces(_given_pieces(given)[0])
            return RenderedPrompt(text, regions, True, "", joints, raw=True)
        _require_template(tokenizer, "messages need one: set tokenizer.chat_template, or use Prompt.from_text")
        return _rendered_chat(_messages(prompt), tokenizer)
    if prompt.template == "chat":
        _require_template(tokenizer, 'set tokenizer.chat_template, or use template="plain"')
    if prompt.template == "plain" or not has_chat_template(tokenizer):
        text, regions, joints = join_pieces(_plain(prompt))
        return RenderedPrompt(text, regions, True, " ", joints)
    return _rendered_chat(_messages(prompt), tokenizer)


def chat_messages(prompt: Prompt) -> list[dict[str, str]]:
    """The messages that a chat template is given, for a server that applies its own.

    Raises
    ------
    InputError
        If the prompt is not for a chat template: a raw text, or ``template="plain"``.
    """
    if prompt.template == "plain" or (prompt.given is not None and prompt.given.roles is None):
        what = "a raw text" if prompt.given is not None else 'of template="plain"'
        raise InputError(
            f"the prompt is {what}, and a chat server puts its own template around whatever it is sent; "
            "give documents and a question, or Prompt.from_messages"
        )
    return [{"role": role, "content": "".join(piece.text for piece in parts)} for role, parts in _messages(prompt)]


def _messages(prompt: Prompt) -> list[tuple[str, list[Piece]]]:
    given = prompt.given
    if given is not None and given.roles is not None:
        return list(zip(given.roles, _given_pieces(given), strict=True))
    messages = [("user", list(_user_text(prompt, gap_at_end=False)))]
    if prompt.system is not None:
        messages.insert(0, ("system", [Piece(prompt.system, Owner("system", "system"))]))
    return messages


def _rendered_chat(messages: list[tuple[str, list[Piece]]], tokenizer: Any) -> RenderedPrompt:
    pieces, warnings = render_chat(messages, tokenizer)
    text, regions, joints = join_pieces(pieces)
    return RenderedPrompt(text, regions, False, "", joints, warnings)


def _require_template(tokenizer: Any, remedy: str) -> None:
    if not has_chat_template(tokenizer):
        raise InputError(f"the tokenizer {tokenizer_name(tokenizer)} has no chat template; {remedy}")


def _plain(prompt: Prompt) -> Iterator[Piece]:
    if prompt.system is not None:
        yield Piece(prompt.system, Owner("system", "system"))
        yield Piece("\n\n", TEMPLATE)
    yield from _user_text(prompt, gap_at_end=True)
    yield Piece("Answer:" if prompt.layout == "question_first" else "\nAnswer:", TEMPLATE)


def _user_text(prompt: Prompt, gap_at_end: bool) -> Iterator[Piece]:
    """Instruction, documents and question in the order of the layout.

    ``gap_at_end``: something follows, so documents at the end need their blank line.
    """
    question = (Piece("Question:", TEMPLATE), Piece(" ", TEMPLATE, joint=True), Piece(prompt.question, QUESTION))
    if prompt.instruction is not None:
        yield Piece(prompt.instruction, Owner("other", "instruction"))
        yield Piece("\n\n", TEMPLATE)
    if prompt.layout != "question_last":
        yield from question
        yield Piece("\n\n", TEMPLATE)
    gap = "\n\n" if gap_at_end or prompt.layout != "question_first" else ""
    yield from _document_pieces(prompt, gap)
    if prompt.layout != "question_first":
        yield from question


def _document_pieces(prompt: Prompt, gap: str) -> Iterator[Piece]:
    """The documents in their markers, then ``gap``; line ends belong to the marker before them."""
    last = len(prompt.documents) - 1
    for index, (name, document) in enumerate(zip(prompt.document_names, prompt.documents, strict=True)):
        owner = Owner("document", name, index)
        if prompt.markers == "none":
            yield Piece(document.text, owner)
            yield Piece(gap if index == last else "\n\n", TEMPLATE)
            continue
        marker = Owner("marker", f"marker:{name}", index)
        line_end = gap if index == last else "\n"
        if prompt.markers == "xml":
            yield Piece(_opening_tag(name, document), marker)
            yield Piece(_DOC_TAG.sub("&lt;", document.text), owner)
            yield Piece(f"</doc>{line_end}", marker)
        else:
            title = "" if document.source is None else f"(Title: {' '.join(document.source.split())})"
            yield Piece(f"Document [{index + 1}]{title}", marker)
            yield Piece(" ", marker, joint=True)
            yield Piece(document.text, owner)
            yield Piece(line_end, marker)


def _opening_tag(name: str, document: Document) -> str:
    attributes = {"id": name, "source": document.source, "score": document.score}
    return (
        "<doc"
        + "".join(
            f' {key}="{str(value).translate(_ATTRIBUTE_ESCAPES)}"'
            for key, value in attributes.items()
            if value is not None
        )
        + ">"
    )


def _given_pieces(given: GivenText) -> list[list[Piece]]:
    if given.by is not None:
        return _cut_pieces(given)
    parts: list[list[Piece]] = [[] for _ in given.parts]
    ends = [0] * len(parts)
    for index, item in enumerate(given.ranges):
        text = given.parts[item.part]
        parts[item.part] += [
            Piece(text[ends[item.part] : item.start], REST),
            Piece(text[item.start : item.stop], Owner("document", item.name, index)),
        ]
        ends[item.part] = item.stop
    for part, text in enumerate(given.parts):
        parts[part].append(Piece(text[ends[part] :], REST))
    return parts


def _cut_pieces(given: GivenText) -> list[list[Piece]]:
    cut, prefix = (split_paragraphs, "p") if given.by == "paragraph" else (split_sentences, "s")
    parts: list[list[Piece]] = []
    count = 0
    for text in given.parts:
        pieces: list[Piece] = []
        for start, stop in cut(text):
            owner = Owner("document", f"{prefix}{count}", count)
            body = text[start:stop].rstrip()
            pieces += [Piece(body, owner), Piece(text[start + len(body) : stop], owner, joint=True)]
            count += 1
        parts.append(pieces)
    return parts
