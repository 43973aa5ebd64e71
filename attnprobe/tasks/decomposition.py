"""What filler costs, taken apart: the length as such, that its content varies, that it can be confused.

Four contexts of one item: no filler, one paragraph repeated, varied prose of a foreign subject, text of the item's own
domain. Each step changes one thing, and the three add up to the whole loss:

    none - same domain = (none - repeated) + (repeated - varied) + (varied - same domain)
                       =       length      +       content       +     interference

Filler after the evidence also moves the question away from it, filler before moves it away from the start: so each
placement is taken apart by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from attnprobe.arguments import Seed, fraction
from attnprobe.errors import InputError
from attnprobe.estimates import Interval, json_values, short_number
from attnprobe.multiplicity import sign_flip_max_t
from attnprobe.tasks.context_rot import BEYOND, FLOOR
from attnprobe.tasks.item_intervals import item_mean
from attnprobe.tasks.item_table import common_items, item_table, left_out_note
from attnprobe.tasks.outcome import ACCURACIES, ANSWERS, ConditionValue, Outcome
from attnprobe.tasks.paired_cells import MIN_TEST_ITEMS

KINDS = ("none", "repeated", "varied", "same_domain")
COMPONENTS = ("length", "content", "interference")
FILLERS = MappingProxyType({"none": "none", "repeated": "repeated", "varied": "prose", "same_domain": "same_domain"})
"""What each kind is called in the condition ``filler``."""


@dataclass(frozen=True)
class Component:
    """One step of the loss.

    Parameters
    ----------
    name
        One of ``COMPONENTS``.
    loss
        Mean over items; positive where it costs.
    p
        That it is 0: sign flips of whole items, adjusted over all components, placements and lengths (max-T); None
        below 6 items.
    """

    name: str
    loss: Interval
    p: float | None

    def __repr__(self) -> str:
        return f"Component({self.name}: {self.loss}, p={short_number(self.p)})"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {"name": self.name, "loss": self.loss.to_dict(), "p": self.p}


@dataclass(frozen=True)
class FillerLoss:
    """The loss at one placement and length of filler.

    Parameters
    ----------
    placement, length
        As the condition has them.
    means
        Mean over items of the metric, by kind of filler.
    total
        Loss from no filler to that of the same domain; the components add up to it.
    components
        In the order of ``COMPONENTS``.
    """

    placement: ConditionValue
    length: ConditionValue
    means: Mapping[str, float | None]
    total: Interval
    components: tuple[Component, ...]

    def __repr__(self) -> str:
        parts = ", ".join(f"{one.name} {short_number(one.loss.estimate)}" for one in self.components)
        return f"FillerLoss({self.placement}, {self.length}: total {self.total} = {parts})"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {
            "placement": self.placement,
            "length": self.length,
            "means": json_values(dict(self.means)),
            "total": self.total.to_dict(),
            "components": [one.to_dict() for one in self.components],
        }


@dataclass(frozen=True)
class FillerDecomposition:
    """Result of :func:`decompose_filler`: a loss for every placement and length, over the same ``n`` items."""

    metric: str
    losses: tuple[FillerLoss, ...]
    n: int
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        return f"FillerDecomposition({self.metric}: {len(self.losses)} placements and lengths, n={self.n})"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        losses = [loss.to_dict() for loss in self.losses]
        return {"metric": self.metric, "losses": losses, "n": self.n, "warnings": list(self.warnings)}


def decompose_filler(
    outcomes: Iterable[Outcome],
    metric: str = "strict",
    fillers: Mapping[str, str] = FILLERS,
    level: float = 0.95,
    seed: Seed = 0,
) -> FillerDecomposition:
    """Take the loss that filler brings apart, at every placement and length.

    Parameters
    ----------
    outcomes
        With the conditions ``filler``, ``placement`` and ``length``; those without filler, one a trial, are the
        reference of all placements and lengths, whatever else their condition says. A placement and length that lacks a
        kind is left out, with a warning.
    metric
        An accuracy, or ``logprob`` or ``margin`` (nats).
    fillers
        What the four ``KINDS`` are called in the condition ``filler``.
    level
        Of each interval by itself.
    seed
        What draws the tests' flips.

    Raises
    ------
    InputError
        For another metric, a kind without a name, or no placement and length that has all four kinds.
    """
    if metric not in ANSWERS:
        raise InputError(f"metric {metric!r} has no loss; expected one of {', '.join(ANSWERS)}")
    if set(fillers) != set(KINDS):
        raise InputError(f"fillers names {', '.join(fillers) or 'nothing'}; name {', '.join(KINDS)}")
    level = fraction("level", level)
    kept = [one for one in outcomes if one.condition.get("filler") in fillers.values()]
    plain = [one for one in kept if one.condition["filler"] == fillers["none"]]
    filled = [one for one in kept if one.condition["filler"] != fillers["none"]]
    cells = list(dict.fromkeys((one.condition.get("placement"), one.condition.get("length")) for one in filled))
    tables, warnings = {}, []
    for placement, length in cells:
        here = [
            one
            for one in filled
            if (one.condition.get("placement"), one.condition.get("length")) == (placement, length)
        ]
        found = {one.condition["filler"] for one in [*plain, *here]}
        missing = [kind for kind in KINDS if fillers[kind] not in found]
        if missing:
            warnings.append(f"placement {placement}, length {length} left out: no filler {', '.join(missing)}")
        else:
            tables[placement, length] = item_table(map(_of_filler, [*plain, *here]), metric, "filler")
    if not tables:
        raise InputError(
            f"no placement and length has all of {', '.join(KINDS)}; {'; '.join(warnings) or 'none is there'}"
        )
    common = common_items(list(tables.values()))
    n = len(common[0].items)
    note = left_out_note(list(tables.values()), common)
    warnings += [note] if note else []
    # [cell, item, kind]
    values = np.stack([table.values[:, [table.levels.index(fillers[kind]) for kind in KINDS]] for table in common])
    if metric in ACCURACIES and n and values.mean(axis=1).max() < FLOOR:
        warnings.append(BEYOND)
    steps = -np.diff(values, axis=2)
    p: np.ndarray | None = None
    if n >= MIN_TEST_ITEMS:
        p = sign_flip_max_t(steps.transpose(1, 0, 2).reshape(n, -1), seed).reshape(len(tables), -1)
    span = 2.0 if metric in ACCURACIES else None
    losses = []
    for cell, (placement, length) in enumerate(tables):
        components = tuple(
            Component(name, item_mean(steps[cell, :, i], level, span), None if p is None else float(p[cell, i]))
            for i, name in enumerate(COMPONENTS)
        )
        means = {kind: float(values[cell, :, i].mean()) if n else None for i, kind in enumerate(KINDS)}
        total = item_mean(values[cell, :, 0] - values[cell, :, -1], level, span)
        losses.append(FillerLoss(placement, length, means, total, components))
    return FillerDecomposition(metric, tuple(losses), n, tuple(warnings))


def _of_filler(outcome: Outcome) -> Outcome:
    """With the filler alone as its condition, so that trials are matched whatever the prompt without filler says."""
    return replace(outcome, condition={"filler": outcome.condition["filler"]})
