"""Cells of a task: one prompt under one condition, with what is known of its answer; and recipes that build them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from attnprobe.arguments import whole_number
from attnprobe.document import Document, quoted
from attnprobe.errors import InputError
from attnprobe.prompt import Layout, Markers, Prompt, Template

Condition = Mapping[str, "str | int | float | None"]

READ_AND_ANSWER = "Read the text and answer the question about it in as few words as possible."
FROM_MEMORY = "Answer the question in as few words as possible."


def is_reference(condition: Condition) -> bool:
    """Whether others are compared with it: a baseline, or the prompt without filler."""
    return "baseline" in condition or condition.get("filler") == "none"


@dataclass(frozen=True)
class Asked:
    """A question with its answers.

    Parameters
    ----------
    item
        Names the unit of analysis.
    question
        What the model is asked.
    gold
        The answer to force.
    accepted
        Every accepted answer, the gold one among them.
    foil
        A wrong answer of the same form.
    pattern
        A regular expression that a right reply matches, scored beside the accepted answers.
    """

    item: str
    question: str
    gold: str
    accepted: tuple[str, ...]
    foil: str | None = None
    pattern: str | None = None


@dataclass(frozen=True)
class Form:
    """How the prompts of a task are written: the arguments of :class:`attnprobe.Prompt` that all of them share."""

    layout: Layout = "question_last"
    markers: Markers = "none"
    template: Template = "auto"
    system: str | None = None
    instruction: str | None = READ_AND_ANSWER

    def prompt(self, documents: Sequence[Document], question: str, **values: Any) -> Prompt:
        """A prompt of this form; without documents a closed-book one, whose instruction speaks of no text."""
        if documents:
            return Prompt(
                documents,
                question,
                self.system,
                self.layout,
                self.markers,
                self.template,
                instruction=self.instruction,
                **values,
            )
        instruction = self.instruction and FROM_MEMORY
        return Prompt(
            (), question, self.system, template=self.template, instruction=instruction, closed_book=True, **values
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What results say of the form."""
        return {"layout": self.layout, "markers": self.markers, "template": self.template}


@dataclass(frozen=True)
class TaskCell:
    """One prompt of a task.

    Parameters
    ----------
    task
        Names the kind of task.
    item
        The unit of analysis: one question. Its trials are one cluster.
    condition
        What is varied, e.g. ``{"position": 3}``, ``{"length": 4000, "depth": 0.5}``, ``{"baseline": "oracle"}``.
    trial
        Number of the draw; all conditions of an item have the same draws.
    prompt
        What the model reads.
    gold
        The answer to force.
    accepted
        Accepted answers. ``facts["scoring"]`` is ``all`` where a reply must hold every one of ``facts["all_of"]``.
    needles
        Indices of the documents that hold the evidence.
    foil, pattern
        As in `Asked`.
    facts
        What was really built: tokens, depths, checks of the filler, layout, wording.
    """

    task: str
    item: str
    condition: Condition
    trial: int
    prompt: Prompt
    gold: str
    accepted: tuple[str, ...]
    needles: tuple[int, ...]
    foil: str | None
    facts: Mapping[str, Any]
    pattern: str | None = None

    @property
    def key(self) -> str:
        """The name of the cell, unique in its task."""
        return cell_key(self.task, self.item, self.condition, self.trial)


@dataclass(frozen=True)
class Built:
    """What a recipe makes of a cell: its prompt and what depends on it; fields as in `TaskCell`."""

    prompt: Prompt
    needles: tuple[int, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CellSpec:
    """A cell that has not been built: light, so that thousands can be listed, and the same cell at every ``build``.

    Parameters
    ----------
    task, condition, trial
        As in `TaskCell`.
    asked
        The question and its answers.
    make
        Builds the prompt for a tokenizer, from a seed of its own.
    """

    task: str
    asked: Asked
    condition: Condition
    trial: int
    make: Callable[[Any], Built] = field(repr=False)

    @property
    def item(self) -> str:
        """As in `TaskCell`."""
        return self.asked.item

    @property
    def key(self) -> str:
        """The key of the cell."""
        return cell_key(self.task, self.item, self.condition, self.trial)

    def build(self, tokenizer: Any) -> TaskCell:
        """The cell, with the tokens of its prompt among the facts.

        Parameters
        ----------
        tokenizer
            Of the model that is going to read the prompt; None where it is not known and no length depends on it.

        Raises
        ------
        InputError
            The prompt cannot be built; the message names the cell.
        """
        try:
            built = self.make(tokenizer)
            prompt = replace(built.prompt, answer=self.asked.gold, id=self.key)
            facts = dict(built.facts)
            if "prompt_tokens" not in facts and tokenizer is not None:
                facts["prompt_tokens"] = prompt.encode(tokenizer).n_tokens
        except InputError as error:
            raise InputError(f"{self.key}: {error}") from error
        asked = self.asked
        return TaskCell(
            task=self.task,
            item=asked.item,
            condition=self.condition,
            trial=self.trial,
            prompt=prompt,
            gold=asked.gold,
            accepted=asked.accepted,
            needles=built.needles,
            foil=asked.foil,
            facts=MappingProxyType(facts),
            pattern=asked.pattern,
        )


def cell_key(task: str, item: str, condition: Condition, trial: int) -> str:
    """``task/item/name=value,.../trial``."""
    return f"{task}/{item}/{','.join(f'{name}={value}' for name, value in condition.items())}/{trial}"


def item_of_key(key: str) -> str:
    """The item of a key that :func:`cell_key` made; an item may have slashes of its own."""
    return key.partition("/")[2].rsplit("/", 2)[0]


def unique(specs: Iterable[CellSpec]) -> tuple[CellSpec, ...]:
    """The specs; ``InputError`` where two have the same key."""
    listed = tuple(specs)
    keys = Counter(spec.key for spec in listed)
    twice = next((spec for spec in listed if keys[spec.key] > 1), None)
    if twice is not None:
        values = ", ".join(f"{name} {value}" for name, value in twice.condition.items())
        raise InputError(f"{values} of item {quoted(twice.item)} is listed twice; give each item and value once")
    return listed


def draw_seed(seed: int, item: str, trial: int) -> tuple[int, int, int]:
    """The seed of an item's trial: its own, whatever other items, trials or conditions there are."""
    digest = hashlib.sha256(item.encode()).digest()
    return whole_number("seed", seed, 0), int.from_bytes(digest[:8], "little"), trial


def closed_book(task: str, asked: Asked, form: Form) -> CellSpec:
    """The cell with the question alone: what the model answers without any text."""
    return CellSpec(task, asked, {"baseline": "closed_book"}, 0, Baseline(asked.question, (), form))


def oracle(task: str, asked: Asked, evidence: Sequence[Document], form: Form) -> CellSpec:
    """The cell with the evidence alone: what the model answers without anything to distract it."""
    return CellSpec(task, asked, {"baseline": "oracle"}, 0, Baseline(asked.question, tuple(evidence), form))


@dataclass(frozen=True)
class Baseline:
    """The recipe of a cell with nothing but evidence, or not even that."""

    question: str
    evidence: tuple[Document, ...]
    form: Form

    def __call__(self, tokenizer: Any) -> Built:
        """Build the prompt."""
        prompt = self.form.prompt(self.evidence, self.question)
        return Built(prompt, tuple(range(len(self.evidence))), self.form.facts)
