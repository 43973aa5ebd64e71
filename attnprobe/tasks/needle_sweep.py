"""Needle by position: one fact at every place among distractors on its topic, which stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.answer_text import holds_answer
from attnprobe.arguments import whole_number
from attnprobe.document import Document, quoted
from attnprobe.errors import InputError
from attnprobe.tasks.cell import Built, CellSpec, Form, closed_book, draw_seed, oracle, unique
from attnprobe.tasks.items import NeedleItem, read_items

TASK = "needle_sweep"


def needle_sweep(
    items: Sequence[NeedleItem] | None = None,
    n_documents: int = 10,
    *,
    positions: Sequence[int] | None = None,
    trials: int = 1,
    seed: int = 0,
    other_topics: bool = False,
    form: Form | None = None,
    with_baselines: bool = True,
) -> tuple[CellSpec, ...]:
    """Cells with the needle of each item at each position among ``n_documents - 1`` distractors.

    A trial draws the distractors and their order, the same ones for every position, and takes the next wording of the
    needle. Conditions are ``{"position": p}``, and ``{"baseline": "closed_book" | "oracle"}``.

    Parameters
    ----------
    items
        From :func:`attnprobe.tasks.items.read_items`; None for the built-in ones.
    n_documents
        Documents a prompt (K), 1 or more.
    positions
        Places of the needle from 0; None for all.
    trials, seed
        Draws an item, and what they depend on.
    other_topics
        Where an item has too few distractors, fill up with those of other items, which are off its topic (counted in
        ``facts["off_topic"]``).
    form
        How prompts are written; None for xml markers and the question last.
    with_baselines
        Add the cells without documents and with the needle alone.

    Raises
    ------
    InputError
        An item has too few distractors, a position is out of range, or an argument makes no sense.
    """
    items = read_items() if items is None else tuple(items)
    form = form or Form(markers="xml")
    count = whole_number("n_documents", n_documents, 1)
    if positions is not None and not positions:
        raise InputError("positions is empty; name some, or leave it out for all")
    places = range(count) if positions is None else [whole_number("position", place, 0) for place in positions]
    if out := [place for place in places if place >= count]:
        raise InputError(f"position {out[0]} is not in a prompt of {count} documents; positions are 0 to {count - 1}")
    specs = []
    for item in items:
        foreign = _foreign(item, items) if other_topics else ()
        if len(item.distractors) + len(foreign) < count - 1:
            raise InputError(
                f"item {quoted(item.id)} has {len(item.distractors)} distractors, and {count} documents need "
                f"{count - 1}; "
                + (
                    f"with other items' there are {len(item.distractors) + len(foreign)}: lower n_documents"
                    if other_topics
                    else "lower n_documents, or set other_topics to take other items' distractors as well"
                )
            )
        for trial in range(whole_number("trials", trials, 1)):
            for place in places:
                make = SweepPrompt(item, foreign, count, place, trial, seed, form)
                specs.append(CellSpec(TASK, item.asked, {"position": place}, trial, make))
        if with_baselines:
            evidence = [Document(item.wording(0))]
            specs += [closed_book(TASK, item.asked, form), oracle(TASK, item.asked, evidence, form)]
    return unique(specs)


def _foreign(item: NeedleItem, items: Sequence[NeedleItem]) -> tuple[str, ...]:
    """Other items' distractors that could not be taken for an answer."""
    wrong = (*item.answers, item.foil)
    return tuple(
        text for other in items if other.id != item.id for text in other.distractors if not holds_answer(text, wrong)
    )


@dataclass(frozen=True)
class SweepPrompt:
    """The recipe of one cell."""

    item: NeedleItem
    foreign: tuple[str, ...]
    n_documents: int
    position: int
    trial: int
    seed: int
    form: Form

    def __call__(self, tokenizer: Any) -> Built:
        """Build the prompt."""
        rng = np.random.default_rng(draw_seed(self.seed, self.item.id, self.trial))
        own = [self.item.distractors[place] for place in rng.permutation(len(self.item.distractors))]
        missing = max(self.n_documents - 1 - len(own), 0)
        foreign = [self.foreign[place] for place in rng.permutation(len(self.foreign))[:missing]]
        drawn = [*own[: self.n_documents - 1], *foreign]
        texts = [drawn[place] for place in rng.permutation(len(drawn))]
        texts.insert(self.position, self.item.wording(self.trial))
        facts = {
            **self.form.facts,
            "wording": self.trial % len(self.item.wordings),
            "n_documents": self.n_documents,
            "off_topic": missing,
        }
        documents = [Document(text) for text in texts]
        return Built(self.form.prompt(documents, self.item.question), (self.position,), facts)
