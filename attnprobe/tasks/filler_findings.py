"""Findings of the filler control: what each filler costs, taken apart, by length, and for a block of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from attnprobe.errors import InputError
from attnprobe.estimates import Interval
from attnprobe.multiplicity import adjust_p_values
from attnprobe.tasks.baselines import Baseline, baselines, item_means
from attnprobe.tasks.decomposition import KINDS, FillerDecomposition, decompose_filler
from attnprobe.tasks.item_intervals import item_mean
from attnprobe.tasks.item_table import common_items, condition_table
from attnprobe.tasks.outcome import ACCURACIES, ANSWERS, METRICS, ConditionValue, Outcome, measured
from attnprobe.tasks.price import LengthCurve, length_curve

NONE = "none"


@dataclass(frozen=True)
class FillerCell:
    """One condition of the control.

    Parameters
    ----------
    filler, placement, length
        As the condition has them.
    tokens, filler_tokens
        Of the prompt, and of the filler in it: means over cells; None where they were not counted.
    means
        By metric, mean over items; those that were measured.
    loss
        By ``strict``, ``lenient``, ``logprob`` and ``margin``: without filler less this, mean over the items that have
        both, of the trials that have both; empty for no filler.
    """

    filler: ConditionValue
    placement: ConditionValue
    length: ConditionValue
    tokens: float | None
    filler_tokens: float | None
    means: Mapping[str, float]
    loss: Mapping[str, Interval]

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {
            **vars(self),
            "means": dict(self.means),
            "loss": {name: interval.to_dict() for name, interval in self.loss.items()},
        }


@dataclass(frozen=True)
class Price:
    """What a block of ``added`` tokens costs in a prompt that has ``at`` tokens already."""

    at: int
    added: int
    loss: Interval

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {"at": self.at, "added": self.added, "loss": self.loss.to_dict()}


@dataclass(frozen=True, eq=False)
class FillerLengths:
    """One filler at one placement by length: curves and prices of the same block by metric.

    ``p``: of the loss per doubling by metric, adjusted over all fillers and placements (Holm); None without a test.
    """

    filler: ConditionValue
    placement: ConditionValue
    curves: Mapping[str, LengthCurve]
    prices: Mapping[str, tuple[Price, ...]]
    p: Mapping[str, float | None]

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {
            "filler": self.filler,
            "placement": self.placement,
            "curves": {name: curve.to_dict() for name, curve in self.curves.items()},
            "prices": {name: [one.to_dict() for one in own] for name, own in self.prices.items()},
            "p": dict(self.p),
        }


@dataclass(frozen=True, eq=False)
class FillerFindings:
    """Result of :func:`filler_findings`.

    Parameters
    ----------
    cells
        Every condition, the one without filler first.
    decompositions
        By metric; empty where a kind of filler is missing, for which a note says why.
    lengths
        Every filler and placement with two lengths or more.
    baselines
        Closed book, beside the prompts without filler.
    notes
        What could not be said, and why.
    """

    cells: tuple[FillerCell, ...]
    decompositions: Mapping[str, FillerDecomposition]
    lengths: tuple[FillerLengths, ...]
    baselines: tuple[Baseline, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {
            "cells": [cell.to_dict() for cell in self.cells],
            "decompositions": {name: one.to_dict() for name, one in self.decompositions.items()},
            "lengths": [one.to_dict() for one in self.lengths],
            "baselines": [one.to_dict() for one in self.baselines],
            "notes": list(self.notes),
        }


def filler_findings(outcomes: Sequence[Outcome]) -> FillerFindings:
    """Analyse a filler control.

    Parameters
    ----------
    outcomes
        With the conditions ``filler``, ``placement`` and ``length``, and baselines.

    Raises
    ------
    InputError
        Outcomes that do not fit together.
    """
    cells = [outcome for outcome in outcomes if "filler" in outcome.condition]
    known = measured(cells, ANSWERS)
    names = fillers_by_kind(cells)
    decompositions: dict[str, FillerDecomposition] = {}
    notes: dict[str, None] = {}
    if cells and NONE not in names:
        notes["nothing is compared yet: the prompts without filler are not measured; the same command goes on"] = None
    elif missing := [kind for kind in KINDS if kind not in names]:
        notes[f"not taken apart, as there is no filler of the kind {', '.join(missing)}"] = None
    else:
        for name in known:
            try:
                decompositions[name] = decompose_filler(cells, name, names)
            except InputError as error:
                notes[f"not taken apart: {error}"] = None
    return FillerFindings(
        cells=_cells(cells),
        decompositions=decompositions,
        lengths=_lengths(cells, known, notes),
        baselines=baselines(outcomes, lambda outcome: outcome.condition.get("filler") == NONE),
        notes=tuple(notes),
    )


def fillers_by_kind(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """What each kind of :data:`attnprobe.tasks.decomposition.KINDS` is called here, of those that are there.

    Built-in fillers come before files; ``file:...`` is varied and ``repeated:...`` repeated.
    """
    found = list(dict.fromkeys(str(outcome.condition["filler"]) for outcome in outcomes))
    wanted = {"none": ("none",), "repeated": ("repeated", "repeated:"), "varied": ("prose", "file:")}
    named: dict[str, str] = {}
    for kind in KINDS:
        for name in wanted.get(kind, (kind,)):
            match = next((one for one in found if one == name or (name.endswith(":") and one.startswith(name))), None)
            if match is not None:
                named.setdefault(kind, match)
    return named


def _cells(outcomes: Sequence[Outcome]) -> tuple[FillerCell, ...]:
    groups: dict[tuple[ConditionValue, ConditionValue, ConditionValue], list[Outcome]] = {}
    for outcome in outcomes:
        condition = outcome.condition
        key = condition["filler"], condition.get("placement"), condition.get("length")
        groups.setdefault(key, []).append(outcome)
    plain = next((own for (filler, *_), own in groups.items() if filler == NONE), [])
    order = sorted(groups, key=lambda key: (key[0] != NONE, str(key[0]), str(key[1]), key[2] or 0))
    return tuple(_cell(key, groups[key], plain) for key in order)


def _cell(
    key: tuple[ConditionValue, ConditionValue, ConditionValue], own: Sequence[Outcome], plain: Sequence[Outcome]
) -> FillerCell:
    filler, placement, length = key
    loss = {}
    for name in ANSWERS if filler != NONE else ():
        without, filled = common_items([condition_table(plain, name), condition_table(own, name)])
        if without.items:
            lost = (without.values - filled.values)[:, 0]
            loss[name] = item_mean(lost, span=2.0 if name in ACCURACIES else None)
    means = {name: item_means(own, name) for name in METRICS}
    return FillerCell(
        filler=filler,
        placement=placement,
        length=length,
        tokens=_mean_fact(own, "prompt_tokens"),
        filler_tokens=_mean_fact(own, "filler_tokens"),
        means={name: float(np.mean(list(found.values()))) for name, found in means.items() if found},
        loss=loss,
    )


def _mean_fact(outcomes: Sequence[Outcome], name: str) -> float | None:
    found = [outcome.facts[name] for outcome in outcomes if name in outcome.facts]
    return float(np.mean(found)) if found else None


def _lengths(outcomes: Sequence[Outcome], known: Sequence[str], notes: dict[str, None]) -> tuple[FillerLengths, ...]:
    found: dict[tuple[ConditionValue, ConditionValue], dict[str, LengthCurve]] = {}
    keys = dict.fromkeys((one.condition.get("filler"), one.condition.get("placement")) for one in outcomes)
    for filler, placement in keys:
        where = {"filler": filler, "placement": placement}
        if filler == NONE:
            continue
        curves: dict[str, LengthCurve] = {}
        for name in known:
            try:
                curves[name] = length_curve(outcomes, name, where=where)
            except InputError as error:
                notes[f"{filler}, {placement}: no loss by length: {error}"] = None
        if curves:
            found[filler, placement] = curves
    adjusted = {name: _adjusted({key: own[name] for key, own in found.items() if name in own}) for name in known}
    return tuple(
        FillerLengths(
            *key,
            curves=curves,
            prices={name: block_prices(curve) for name, curve in curves.items()},
            p={name: adjusted[name].get(key) for name in curves},
        )
        for key, curves in found.items()
    )


def _adjusted(curves: Mapping[Any, LengthCurve]) -> dict[Any, float]:
    """Each curve's p, by its key, as one of as many tests as there are curves; those without a test left out."""
    tested = {key: curve.per_doubling.p for key, curve in curves.items() if curve.per_doubling.p is not None}
    return dict(zip(tested, adjust_p_values(list(tested.values())).tolist(), strict=True)) if tested else {}


def block_prices(curve: LengthCurve) -> tuple[Price, ...]:
    """What one block costs at every tested length but the longest; it is as long as the smallest step between them."""
    tokens = [round(float(value)) for value in curve.tokens]
    least, most = int(np.ceil(curve.tokens[0])), int(np.floor(curve.tokens[-1]))
    added = min(stop - start for start, stop in pairwise(tokens))
    starts = [min(max(start, least), most - added) for start in tokens[:-1]]
    return tuple(Price(at, added, curve.price(added, at)) for at in starts if at >= least)
