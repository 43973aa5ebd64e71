"""Prompts: documents and a question, or any text of the user's, rendered and cut into token spans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .document import (
    RESERVED_NAMES,
    By,
    Document,
    GivenText,
    check_choice,
    check_text,
    document_label,
    given_messages,
    given_text,
    quoted,
)
from .encode import EncodedPrompt, encode_answer, encode_prompt
from .errors import InputError
from .render import Region, RenderedPrompt, render_prompt

__all__ = ["Document", "EncodedPrompt", "Prompt", "Region", "RenderedPrompt", "encode_answer"]

Layout = Literal["question_last", "question_first", "question_both"]
Markers = Literal["xml", "numbered", "none"]
Template = Literal["auto", "chat", "plain"]

_RESERVED_IDS = RESERVED_NAMES | {"system", "question", "instruction"}


@dataclass(frozen=True, init=False)
class Prompt:
    r"""A prompt whose parts can be told apart; a value, checked when it is made.

    Parameters
    ----------
    documents
        Texts or `Document`\ s, in the order in which the model reads them.
    question
        What the model is asked; not blank.
    system
        System text; None leaves the chat template's own default in place.
    layout
        The question after the documents (``"question_last"``), before them (``"question_first"``) or both
        (``"question_both"``: one question span of two segments).
    markers
        ``"xml"``: ``<doc id="..." source="..." score="...">text</doc>``, in which a ``<`` of the text that would
        open or close a ``doc`` tag becomes ``&lt;``; ``"numbered"``: ``Document [1](Title: source) text``;
        ``"none"``: blank lines between the documents.
    template
        ``"chat"``: the tokenizer's chat template; ``"plain"``: ``Question: ...`` and ``Answer:`` lines;
        ``"auto"``: chat if the tokenizer has a template.
    answer
        The known answer, if there is one; not part of the prompt's text.
    id
        Names the prompt in results.
    instruction
        Text before everything else of the user's message, such as how to answer; a span of kind ``other``.
    given
        The user's own text, which `from_text` and `from_messages` set instead of documents and question.
    closed_book
        There are no documents on purpose: the question alone, to be answered from what the model knows.

    Raises
    ------
    InputError
        If there is no document (unless ``closed_book``) or no question, two documents have one id, a text holds NUL or
        a lone surrogate, or an option is unknown.
    """

    documents: tuple[Document, ...]
    question: str
    system: str | None
    layout: Layout
    markers: Markers
    template: Template
    answer: str | None
    id: str | None
    instruction: str | None
    given: GivenText | None
    closed_book: bool

    def __init__(
        self,
        documents: Sequence[str | Document] = (),
        question: str = "",
        system: str | None = None,
        layout: Layout = "question_last",
        markers: Markers = "xml",
        template: Template = "auto",
        answer: str | None = None,
        id: str | None = None,
        instruction: str | None = None,
        *,
        given: GivenText | None = None,
        closed_book: bool = False,
    ) -> None:
        check_choice(layout, Layout, "layout")
        check_choice(markers, Markers, "markers")
        check_choice(template, Template, "template")
        for field, value in (("answer", answer), ("id", id)):
            if value is not None:
                check_text(value, field)
        values = {
            "documents": () if given or (closed_book and not documents) else _checked_documents(documents),
            "question": question,
            "system": system,
            "layout": layout,
            "markers": markers,
            "template": template,
            "answer": answer,
            "id": id,
            "instruction": instruction,
            "given": given,
            "closed_book": closed_book,
        }
        if closed_book and (documents or given is not None):
            raise InputError("a closed-book prompt has a question only; leave out documents, or closed_book")
        if given is not None:
            if documents or question or system is not None or instruction is not None:
                raise InputError("a prompt of the user's own text has no documents, question, system or instruction")
        else:
            check_text(question, "question")
            if not question.strip():
                raise InputError("question is empty; ask something, or use Prompt.from_text for a raw text")
            for field, value in (("system", system), ("instruction", instruction)):
                if value is not None:
                    check_text(value, field)
                    if not value.strip():
                        raise InputError(f"{field} is empty; pass None to leave it out")
        for field, content in values.items():
            object.__setattr__(self, field, content)

    @classmethod
    def from_text(
        cls,
        text: str,
        spans: Iterable[tuple[str, int, int]] | None = None,
        by: By | None = None,
        id: str | None = None,
    ) -> Prompt:
        """Take a raw text as it is.

        Parameters
        ----------
        text
            What the model reads, including any chat control tokens; the answer follows it directly.
        spans
            ``(name, start, stop)`` character ranges. They become spans of kind ``document``, numbered by position;
            the remaining text is the span ``rest`` of kind ``other``.
        by
            Cut the text into ``"paragraph"`` (``p0``, ``p1``, ...) or ``"sentence"`` (``s0``, ...) spans instead.
        id
            Names the prompt in results.

        Raises
        ------
        InputError
            If the text is empty or not valid, or a span is out of range, overlaps another, or has no name of its
            own.
        """
        return cls(given=given_text(text, spans, by), id=id)

    @classmethod
    def from_messages(
        cls,
        messages: Sequence[Mapping[str, Any]],
        spans: Iterable[tuple[str, int, int, int]] | None = None,
        by: By | None = None,
        id: str | None = None,
    ) -> Prompt:
        """Take chat messages, to be rendered with the tokenizer's chat template.

        Parameters
        ----------
        messages
            ``{"role": ..., "content": ...}`` dicts, texts only; the last one is not the assistant's.
        spans
            ``(name, message_index, start, stop)`` character ranges of the messages' contents, as in `from_text`.
        by, id
            As in `from_text`; pieces are numbered through all messages.

        Raises
        ------
        InputError
            As in `from_text`, or if a message is malformed.
        """
        return cls(given=given_messages(messages, spans, by), id=id)

    @property
    def document_names(self) -> tuple[str, ...]:
        """Each document's id, or its index as text where it has none."""
        return tuple(_name(index, document) for index, document in enumerate(self.documents))

    def render(self, tokenizer: Any) -> RenderedPrompt:
        """The text that the model reads, and which characters of it are what.

        Raises
        ------
        InputError
            If the tokenizer has no chat template where one is asked for, or the template refuses, drops, repeats
            or rewrites a message.
        """
        return render_prompt(self, tokenizer)

    def encode(self, tokenizer: Any, strict: bool = False) -> EncodedPrompt:
        """The token ids of the rendered prompt, and the spans that partition them.

        Parameters
        ----------
        tokenizer
            A fast Hugging Face tokenizer (it has to give character offsets).
        strict
            Refuse what is otherwise a warning and moves text from one span to another or turns it into something
            else: tokens that straddle two spans, and control tokens in the user's texts.

        Raises
        ------
        InputError
            As `render`; if the tokenizer gives no offsets or no tokens; and for what ``strict`` refuses.
        """
        return encode_prompt(self.render(tokenizer), tokenizer, strict)


def _checked_documents(documents: Sequence[str | Document]) -> tuple[Document, ...]:
    if isinstance(documents, (str, Document)) or not isinstance(documents, Sequence):
        raise InputError(f"documents is one {type(documents).__name__}; pass a list of texts")
    if not documents:
        raise InputError(
            "documents is empty; pass at least one, closed_book=True for a question alone, or use "
            "Prompt.from_text for a raw text"
        )
    checked = []
    for index, item in enumerate(documents):
        if isinstance(item, Document):
            checked.append(item)
            continue
        check_text(item, f"document {index}")
        checked.append(Document(item))
    seen: dict[str, int] = {}
    for index, document in enumerate(checked):
        name = _name(index, document)
        if name in seen:
            raise InputError(f"documents {seen[name]} and {index} have the same id {quoted(name)}; ids are unique")
        if name in _RESERVED_IDS or name.startswith("marker:"):
            raise InputError(f"{document_label(index, name)}: this id is the name of another span; choose another id")
        seen[name] = index
    return tuple(checked)


def _name(index: int, document: Document) -> str:
    return str(index) if document.id is None else document.id
