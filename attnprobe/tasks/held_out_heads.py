"""Retrieval heads and the answer: heads chosen on half of the items, their link with the answer on the other half."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.arguments import Seed, generator, table, whole_number
from attnprobe.errors import InputError
from attnprobe.heads_selection import halves, highest
from attnprobe.norms import mean_of_defined
from attnprobe.tasks.association import Association, associate
from attnprobe.tasks.outcome import Outcome

CHOSEN, OTHERS = "chosen heads", "other heads"
PART = 0.05
"""Of all heads: fewer than so many retrieve, by Wu et al., "Retrieval Head Mechanistically Explains Long-Context
Factuality" (2024)."""


@dataclass(frozen=True)
class HeldOutHeads:
    """Result of :func:`held_out_heads`.

    Parameters
    ----------
    heads
        ``(layer, head)`` in the model's own numbers, the highest advantage first.
    chosen_on, held_out
        Items of each half.
    chosen, others
        Of the mean advantage of the evidence over the chosen heads, and over all others, on the held-out items; p
        adjusted over them and the mean mass and advantage of all heads.
    """

    heads: tuple[tuple[int, int], ...]
    chosen_on: tuple[str, ...]
    held_out: tuple[str, ...]
    chosen: Association
    others: Association

    def __repr__(self) -> str:
        return f"HeldOutHeads({len(self.heads)} heads: {self.chosen}, {self.others})"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {
            "heads": [list(head) for head in self.heads],
            "chosen_on": list(self.chosen_on),
            "held_out": list(self.held_out),
            "chosen": self.chosen.to_dict(),
            "others": self.others.to_dict(),
        }


def held_out_heads(
    outcomes: Sequence[Outcome],
    advantage: np.ndarray,
    layers: Sequence[int],
    metric: str = "logprob",
    n_heads: int | None = None,
    seed: Seed = 0,
    level: float = 0.95,
) -> HeldOutHeads:
    """Choose the heads that look most at the evidence, and relate them to the answer where the choice cannot flatter.

    Parameters
    ----------
    outcomes
        Cells.
    advantage
        float64 [cell, layer, head]: of the evidence.
    layers
        The model's numbers of the layers.
    metric
        As in :func:`attnprobe.tasks.association.associate`.
    n_heads
        Heads to choose; None for ``PART`` of all, one at least.
    seed
        Draws the halves of the items.
    level
        Of the intervals.

    Raises
    ------
    InputError
        Fewer than two items have an advantage, no head's mean advantage over the items to choose on is above 0, or
        arguments that make no sense.
    """
    if advantage.ndim != 3 or advantage.shape[:2] != (len(outcomes), len(layers)):
        raise InputError(
            f"advantage has shape {advantage.shape}; expected [cell, layer, head] of {len(outcomes)} cells"
        )
    columns = advantage.shape[2]
    flat = table("advantage", advantage.reshape(len(outcomes), -1), ("cell", "head"))
    flat = np.where(np.isfinite(flat), flat, np.nan)  # a mass of exactly 0 has no log
    items = np.array([outcome.item for outcome in outcomes])
    names = list(dict.fromkeys(items.tolist()))
    means = np.stack([mean_of_defined(flat[items == name], axis=0) for name in names])  # [item, head]
    usable = np.flatnonzero(np.isfinite(means).any(axis=1))
    if len(usable) < 2:
        raise InputError(f"{len(usable)} items have an advantage of the evidence; choosing heads takes two halves")
    first, second = halves(usable, "random", generator(seed))
    known = np.flatnonzero(np.isfinite(means[first]).all(axis=0))
    n_heads = max(1, round(PART * flat.shape[1])) if n_heads is None else whole_number("n_heads", n_heads, 1)
    chosen = known[highest(means[first][:, known], n_heads)]
    if not len(chosen):
        raise InputError("no head has an advantage above 0 in the items to choose on, so there are none to relate")
    others = np.setdiff1d(np.arange(flat.shape[1]), chosen)
    held = np.isin(items, [names[i] for i in second])
    predictors = {name: mean_of_defined(flat[held][:, of], axis=1) for name, of in ((CHOSEN, chosen), (OTHERS, others))}
    found = associate([o for o, is_held in zip(outcomes, held, strict=True) if is_held], metric, predictors, level)
    return HeldOutHeads(
        heads=tuple((int(layers[place // columns]), int(place % columns)) for place in chosen),
        chosen_on=tuple(names[i] for i in first),
        held_out=tuple(names[i] for i in second),
        chosen=found.by_name[CHOSEN],
        others=found.by_name[OTHERS],
    )
