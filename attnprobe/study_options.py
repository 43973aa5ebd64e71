"""What a study measures beside the prompts as they are, and under which choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args

from attnprobe.arguments import whole_number
from attnprobe.designs import DESIGNS
from attnprobe.document import Document
from attnprobe.errors import InputError
from attnprobe.prompt import Layout, Markers, Prompt, Template
from attnprobe.run import ROWS

if TYPE_CHECKING:
    from attnprobe.encode import EncodedPrompt

PREAMBLE = "Answer the question at the end from the documents below, in a few words."
"""The sentence that the ``preamble`` variant puts before the documents."""

NOTHING = "N/A"
"""Question and answer of the ``null`` variant."""

PLAIN_VARIANTS = ("null", "preamble", "dummy")
"""Beside these, one option of the prompt can be changed, e.g. ``"markers=numbered"``."""

EXTRAS = ("distance", "values", "effects")
"""What a study can measure more of."""

_FORMS = {"markers": get_args(Markers), "template": get_args(Template), "layout": get_args(Layout)}
_CHANGES = tuple(f"{name}={value}" for name, values in _FORMS.items() for value in values)


@dataclass(frozen=True)
class StudyOptions:
    """Choices of a study that change its numbers.

    Parameters
    ----------
    design
        ``williams``, ``cyclic`` or ``insertion``: see :mod:`attnprobe.designs`.
    bases
        Random base orders of each question's documents. With two or more, what a document does at a position
        (interaction) is told apart from noise.
    seed
        Draws the base orders.
    variants
        What is measured beside the prompts as they are, in every order: ``null`` (question and answer both "N/A"; gives
        the secondary sinks, too), ``preamble`` (a sentence before the documents), ``dummy`` (a document without
        content in place of one of the documents, at each position in turn), or one changed option of the prompt
        (``markers=``, ``template=``, ``layout=``).
    preamble
        The sentence.
    length_matched
        Shorter documents are filled up with neutral text to the tokens of the longest one of their question.
    extras
        Further quantities of the prompts as they are: ``distance`` and ``values`` as in :func:`attnprobe.measure`;
        ``effects``, what hiding each document from the answer's rows does to the answer's log-probability.
    rows
        As in :func:`attnprobe.measure`.
    max_new_tokens
        Longest answer to generate, tokens.
    beyond_window
        As in :func:`attnprobe.measure`.
    """

    design: str = "williams"
    bases: int = 1
    seed: int = 0
    variants: tuple[str, ...] = ("null", "preamble")
    preamble: str = PREAMBLE
    length_matched: bool = False
    extras: tuple[str, ...] = ()
    rows: str = "predicting"
    max_new_tokens: int = 32
    beyond_window: bool = False

    def __post_init__(self) -> None:
        for name in ("variants", "extras"):
            value = getattr(self, name)
            if not isinstance(value, Sequence):
                raise InputError(f"{name} is {value!r}; give a list of names")
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        for variant in self.variants:
            if variant not in (*PLAIN_VARIANTS, *_CHANGES):
                near = get_close_matches(str(variant), (*PLAIN_VARIANTS, *_CHANGES), n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise InputError(
                    f"variant {variant!r} is unknown; {hint}known: {', '.join((*PLAIN_VARIANTS, *_CHANGES))}"
                )
        if len(set(self.variants)) < len(self.variants):
            raise InputError(f"variants are {', '.join(self.variants)}; each can be measured once only")
        unknown = [extra for extra in self.extras if extra not in EXTRAS]
        if unknown:
            raise InputError(
                f"extras {', '.join(unknown)}: a study takes {', '.join(EXTRAS)} (the heaviest tokens and the "
                "question's rows are always measured)"
            )
        if self.design not in DESIGNS:
            near = get_close_matches(str(self.design), DESIGNS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(DESIGNS)}"
            raise InputError(f"design {self.design!r} is unknown; {hint}")
        if self.rows not in ROWS:
            raise InputError(f"rows is {self.rows!r}; expected one of {', '.join(ROWS)}")
        for name, least in (("bases", 1), ("seed", 0), ("max_new_tokens", 1)):
            whole_number(name, getattr(self, name), least)
        for name in ("length_matched", "beyond_window"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} is {getattr(self, name)!r}; give True or False")
        if not isinstance(self.preamble, str):
            raise InputError(f"preamble is {self.preamble!r}; give a sentence")
        if not self.preamble.strip():
            raise InputError("preamble is empty; give a sentence, or leave the variant preamble out")

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def of(cls, options: dict[str, Any]) -> StudyOptions:
        """From keyword arguments; unknown ones are refused by name."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
                raise InputError(f"a study has no option {name!r}; {hint}")
        return cls(**options)


def check_changes(variants: Sequence[str], form: Mapping[str, Any]) -> None:
    """Raise InputError for a variant that gives an option of the prompts (``form``) the value that it has anyway."""
    for variant in variants:
        name, _, value = variant.partition("=")
        if value and form[name] == value:
            raise InputError(
                f"variant {variant!r} changes nothing: the prompts have {name} {value} already; leave it out"
            )


def check_tokens(variant: str, encoded: EncodedPrompt, asked: EncodedPrompt, model: str) -> None:
    """Raise InputError for a changed option of the prompts that leaves their tokens (``asked``) as they are.

    Only the tokenizer tells so of ``template=``: whether ``auto`` is chat or plain is up to it.
    """
    name, _, value = variant.partition("=")
    if value and encoded.token_ids == asked.token_ids:
        raise InputError(
            f"variant {variant!r} changes nothing for {model}: with {name} {value} the prompts have the tokens that "
            "they have anyway; leave it out"
        )


DUMMY = Document("This page holds no text.")
"""What stands in the place of a document in the ``dummy`` variant: grammatical, and about nothing asked."""


def ordered_prompt(prompt: Prompt, permutation: Sequence[int]) -> Prompt:
    """The prompt with ``documents[permutation[position]]`` at each position; names stay with their documents."""
    named = [
        document if document.id is not None else replace(document, id=str(number))
        for number, document in enumerate(prompt.documents)
    ]
    return replace(prompt, documents=tuple(named[number] for number in permutation))


def variant_prompt(prompt: Prompt, variant: str, options: StudyOptions, position: int = 0) -> Prompt:
    """A prompt in one of the variants; ``position`` is where the dummy goes.

    The ``null`` variant differs in its question alone.
    """
    if variant == "null":
        return replace(prompt, question=NOTHING)
    if variant == "preamble":
        text = options.preamble if prompt.instruction is None else f"{prompt.instruction}\n\n{options.preamble}"
        return replace(prompt, instruction=text)
    if variant == "dummy":
        documents = list(prompt.documents)
        documents[position] = Document(DUMMY.text, id=documents[position].id, source=documents[position].source)
        return replace(prompt, documents=tuple(documents))
    name, value = variant.split("=")
    check_changes((variant,), vars(prompt))
    return replace(prompt, **{name: value})  # type: ignore[arg-type]
