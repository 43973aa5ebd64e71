"""What a reader of a task's results must know of its cells before any is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from attnprobe.answer_text import holds_answer
from attnprobe.tasks.cell import CellSpec
from attnprobe.tasks.items import NeedleItem
from attnprobe.terminal import count, named

_SHOWN = 3


def needle_notes(items: Sequence[NeedleItem]) -> tuple[str, ...]:
    """A note where the question of a needle cannot be answered from one of its wordings."""
    silent = [
        f"{item.id} ({number})"
        for item in items
        for number, text in enumerate(item.wordings)
        if not holds_answer(text, item.answers)
    ]
    if not silent:
        return ()
    return (f"no accepted answer stands in {count(len(silent), 'wording')}: {named(silent, _SHOWN)}",)


def trial_notes(specs: Sequence[CellSpec]) -> tuple[str, ...]:
    """A note where trials of an item have the same prompt, as there is too little to draw from.

    Takes cells whose prompts depend on no tokenizer; the first condition of each item tells.
    """
    first: dict[str, Any] = {}
    prompts: dict[str, list[tuple[str, ...]]] = {}
    for spec in specs:
        if "baseline" not in spec.condition and first.setdefault(spec.item, spec.condition) == spec.condition:
            texts = tuple(document.text for document in spec.make(None).prompt.documents)
            prompts.setdefault(spec.item, []).append(texts)
    alike = [f"{item} ({len(set(own))} of {len(own)})" for item, own in prompts.items() if len(set(own)) < len(own)]
    if not alike:
        return ()
    what = count(len(alike), "item has", "items have")
    return (f"{what} fewer different prompts than trials, and equal ones tell nothing new: {named(alike, _SHOWN)}",)


def depth_notes(specs: Sequence[CellSpec], tokenizer: Any) -> tuple[str, ...]:
    """A note where depths of the shortest length come to the same place: its first item is built to see."""
    placed = [spec for spec in specs if spec.trial == 0 and "depth" in spec.condition and spec.item == specs[0].item]
    shortest = min((_length(spec) for spec in placed), default=0)
    real = {
        str(spec.condition["depth"]): spec.build(tokenizer).facts["real_depth"]
        for spec in placed
        if _length(spec) == shortest
    }
    notes = []
    for place, number in Counter(real.values()).items():
        if number > 1:
            asked = ", ".join(depth for depth, own in real.items() if own == place)
            where = "no filler fits in" if place is None else f"the real depth is {place:.2f}"
            notes.append(f"at a length of {shortest} the depths {asked} are one and the same place: {where}")
    return tuple(notes)


def _length(spec: CellSpec) -> int:
    length = spec.condition["length"]
    assert isinstance(length, int)
    return length
