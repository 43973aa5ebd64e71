"""Filler control: the same evidence and question in prompts of more and more tokens that have nothing to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from attnprobe.arguments import whole_number
from attnprobe.document import check_choice
from attnprobe.tasks.cell import Built, CellSpec, Form, closed_book, draw_seed, unique
from attnprobe.tasks.filler import FillerSource, filler_source
from attnprobe.tasks.haystack import Frame, Placed, in_filler
from attnprobe.tasks.items import NeedleItem, read_items

TASK = "filler_control"

Placement = Literal["after", "before", "split"]

# The part of the filler that stands before the evidence.
_BEFORE: dict[str, float] = {"after": 0.0, "before": 1.0, "split": 0.5}


def filler_control(
    items: Sequence[NeedleItem] | None = None,
    *,
    lengths: Sequence[int],
    fillers: Sequence[str] = ("prose",),
    placements: Sequence[Placement] = ("after",),
    strict_filler: bool = True,
    trials: int = 1,
    seed: int = 0,
    form: Form | None = None,
    with_baselines: bool = True,
    tokenizer: Any = None,
) -> tuple[CellSpec, ...]:
    """Cells with each item's evidence in filler, for every kind, placement and length, and without any.

    Conditions are ``{"filler": kind, "placement": "after", "length": n}``; the one without filler is ``{"filler":
    "none", "placement": None, "length": None}``, and there is one of it for every trial. The evidence is the same, byte
    for byte, in all conditions of a trial, and so are question and instruction. With filler ``after`` the evidence, it
    also stays at the same tokens while the question moves away from it; ``before``, the question stays next to it and
    both move; ``split``, half of the filler stands on each side. No placement holds all of that still: run several.
    The prompt without filler is the oracle; ``{"baseline": "closed_book"}`` is the question alone.

    Parameters
    ----------
    items
        The evidence is an item's wording, which may be as long as a document; None for the built-in ones.
    lengths
        Tokens of the whole prompt.
    fillers, strict_filler
        Kinds (:func:`attnprobe.tasks.filler.filler_source`), and how they are checked
        (:func:`attnprobe.tasks.filler_check.check_filler`).
    placements
        Where the filler stands.
    trials, seed, form, with_baselines, tokenizer
        As in :func:`attnprobe.tasks.niah.niah`. The question stands last by default, so the filler is between the
        evidence and it; ``facts["layout"]`` says which layout it was.

    Raises
    ------
    InputError
        An argument makes no sense, a filler cannot be used, or a length is too short.
    """
    form = form or Form()
    for placement in placements:
        check_choice(placement, Placement, "placement")
    specs: list[CellSpec] = []
    for item in read_items() if items is None else items:
        sources = [filler_source(kind, item) for kind in fillers if kind != "none"]
        for trial in range(whole_number("trials", trials, 1)):
            recipe = FillerPrompt(item, None, "after", None, trial, seed, strict_filler, form)
            none: dict[str, str | int | float | None] = {"filler": "none", "placement": None, "length": None}
            specs.append(CellSpec(TASK, item.asked, none, trial, recipe))
            for length in lengths:
                whole_number("length", length, 1)
                if tokenizer is not None:
                    recipe.frame.require(length, tokenizer)
            specs += [
                CellSpec(
                    TASK,
                    item.asked,
                    {"filler": source.name, "placement": placement, "length": length},
                    trial,
                    replace(recipe, source=source, placement=placement, length=length),
                )
                for source in sources
                for placement in placements
                for length in lengths
            ]
        if with_baselines:
            specs.append(closed_book(TASK, item.asked, form))
    return unique(specs)


@dataclass(frozen=True)
class FillerPrompt:
    """The recipe of one cell; no source and no length for the prompt without filler."""

    item: NeedleItem
    source: FillerSource | None
    placement: Placement
    length: int | None
    trial: int
    seed: int
    strict: bool
    form: Form

    @property
    def frame(self) -> Frame:
        """The evidence, where the placement has it."""
        evidence = Placed(self.item.wording(self.trial), _BEFORE[self.placement], "evidence")
        return Frame((evidence,), self.item.question, self.form)

    def __call__(self, tokenizer: Any) -> Built:
        """Build the prompt."""
        facts = {**self.form.facts, "wording": self.trial % len(self.item.wordings)}
        if self.source is None or self.length is None:
            return Built(self.frame.prompt(), (0,), facts)
        found = in_filler(
            self.frame,
            self.source,
            self.length,
            tokenizer,
            seed=draw_seed(self.seed, self.item.id, self.trial),
            answers=(*self.item.answers, self.item.foil),
            strict=self.strict,
        )
        return Built(found.prompt, found.places, {**facts, **found.facts})
