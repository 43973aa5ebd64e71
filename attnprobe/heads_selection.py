"""Choose heads on one half of the questions and report them on the other, where the choice cannot flatter them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from attnprobe.arguments import generator, whole_number
from attnprobe.errors import InputError
from attnprobe.estimates import Interval
from attnprobe.heads import HeadScores
from attnprobe.heads_options import Score, Split
from attnprobe.intervals import MIN_QUESTIONS, mean_interval
from attnprobe.multiplicity import adjust_p_values

DRAWS = 99_999


@dataclass(frozen=True)
class ChosenHead:
    """One head that was chosen.

    Parameters
    ----------
    layer, head
        The model's own numbers.
    chosen_on
        Its mean score over the questions that it was chosen on: flattered by the choice.
    held_out
        Its mean over the other questions, with a t interval for this head alone.
    p
        Adjusted over the chosen heads by Holm's method: the chance that, if it did not matter which head it is, one of
        them would score so high on the held-out questions. None with fewer than 5 of them.
    """

    layer: int
    head: int
    chosen_on: float
    held_out: Interval
    p: float | None


@dataclass(frozen=True)
class Selection:
    """Heads chosen on one half of the questions, with results from the other.

    Parameters
    ----------
    by
        The score that they were chosen by.
    chosen_on, held_out
        Ids of the questions of each half.
    left_out
        Ids of questions without a defined score.
    heads
        The highest first.
    together, others
        Mean over the chosen heads, and over all others, on the held-out questions, with t intervals; None where there
        are no such heads.
    reason
        Why there are no heads, or no intervals; else None.
    """

    by: str
    chosen_on: tuple[str, ...]
    held_out: tuple[str, ...]
    left_out: tuple[str, ...]
    heads: tuple[ChosenHead, ...]
    together: Interval | None
    others: Interval | None
    reason: str | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "by": self.by,
            "chosen_on": list(self.chosen_on),
            "held_out": list(self.held_out),
            "left_out": list(self.left_out),
            "heads": [
                {
                    "layer": head.layer,
                    "head": head.head,
                    "chosen_on": head.chosen_on,
                    "held_out": head.held_out.to_dict(),
                    "p": head.p,
                }
                for head in self.heads
            ],
            "together": None if self.together is None else self.together.to_dict(),
            "others": None if self.others is None else self.others.to_dict(),
            "reason": self.reason,
        }


def select(
    scores: HeadScores,
    by: Score = "retrieval",
    *,
    n_heads: int = 10,
    split: Split = "random",
    seed: int = 0,
    level: float = 0.95,
    draws: int = DRAWS,
) -> Selection:
    """Choose the highest heads on one half of the questions and score them on the other.

    All orders of a question are in one half. Questions without a defined score (for ``retrieval``: of which no answer
    recalls the needle) are left out before; of an odd number, the held-out half has one more. A head is chosen if its
    mean score is above 0 and is defined and finite on every question.

    The p value of a head compares its sum of scores over the held-out questions with that of ``draws`` heads that are
    none: in each question, the score of a head drawn at random, anew for every question. It takes no symmetry of the
    scores, of which most are 0, and no independence of heads; Holm's method then holds the chance of any false find
    among the chosen. The intervals are each for itself.

    Parameters
    ----------
    scores
        From :func:`attnprobe.heads.head_scores`.
    by
        One of the scores.
    n_heads
        Heads to choose at most.
    split
        ``random``: halves drawn from the seed. ``alternate``: every second question.
    seed
        Draws the halves, and the heads of the p values.
    level
        Of the intervals.
    draws
        At least 999.

    Raises
    ------
    InputError
        An unknown score or split, or a number out of range.
    """
    n_heads, draws = whole_number("n_heads", n_heads, 1), whole_number("draws", draws, 999)
    if split not in get_args(Split):
        raise InputError(f"split {split!r} is unknown; expected one of {', '.join(get_args(Split))}")
    values = scores.values(by)
    rng = generator(seed)
    flat = values.reshape(len(values), -1)  # [question, layer * head]
    usable = np.flatnonzero(np.isfinite(flat).any(axis=1))
    first, second = halves(usable, split, rng)
    known = np.flatnonzero(np.isfinite(flat[usable]).all(axis=0))
    flat = flat[:, known]
    places = highest(flat[first], n_heads)
    reason = _reason(by, len(usable), len(second), len(places))
    p = _p_values(flat[second], places, draws, rng) if len(second) >= MIN_QUESTIONS and len(places) else None
    rest = np.setdiff1d(np.arange(flat.shape[1]), places)
    n_columns = values.shape[2]
    return Selection(
        by=by,
        chosen_on=tuple(scores.questions[i] for i in first),
        held_out=tuple(scores.questions[i] for i in second),
        left_out=tuple(id for i, id in enumerate(scores.questions) if i not in set(usable.tolist())),
        heads=tuple(
            ChosenHead(
                layer=scores.layers[known[place] // n_columns],
                head=int(known[place] % n_columns),
                chosen_on=float(flat[first, place].mean()),
                held_out=mean_interval(flat[second, place], level),
                p=None if p is None else float(p[number]),
            )
            for number, place in enumerate(places)
        ),
        together=mean_interval(flat[second][:, places].mean(axis=1), level) if len(places) else None,
        others=mean_interval(flat[second][:, rest].mean(axis=1), level) if len(rest) else None,
        reason=reason,
    )


def halves(usable: np.ndarray, split: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Questions to choose on and questions held out, ascending; the one question of a single one is chosen on."""
    if split == "alternate":
        return (usable[1::2], usable[::2]) if len(usable) > 1 else (usable, usable[:0])
    n_first = max(len(usable) // 2, min(len(usable), 1))
    shuffled = rng.permutation(usable)
    return np.sort(shuffled[:n_first]), np.sort(shuffled[n_first:])


def highest(values: np.ndarray, n_heads: int) -> np.ndarray:
    """Columns with the highest positive means, highest first; of equal ones the earlier."""
    if not values.size:
        return np.empty(0, dtype=np.int64)
    mean = values.mean(axis=0)
    order = np.argsort(-mean, kind="stable")[:n_heads]
    return order[mean[order] > 0]


def _p_values(values: np.ndarray, places: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Adjusted p values of some columns of [question, head]."""
    n, n_heads = values.shape
    observed = values[:, places].sum(axis=0)
    tolerance = 1e-12 * max(1.0, float(np.abs(values).max()) * n)  # sums in another order are equal up to rounding
    hits = np.zeros(len(places), dtype=np.int64)
    step = max(1, 2_000_000 // n)
    for start in range(0, draws, step):
        picked = rng.integers(n_heads, size=(min(step, draws - start), n))
        drawn = np.sort(values[np.arange(n), picked].sum(axis=1))
        hits += len(drawn) - np.searchsorted(drawn, observed - tolerance)
    return adjust_p_values((1 + hits) / (1 + draws))


def _reason(by: str, n_usable: int, n_held_out: int, n_chosen: int) -> str | None:
    if not n_usable:
        why = ": no answer recalls its needle" if by == "retrieval" else ""
        return f"no question has a defined {by} score{why}"
    if not n_chosen:
        return f"no head has a {by} score above 0 on the questions to choose on"
    if n_held_out < MIN_QUESTIONS:
        given = f"{n_held_out} question{'' if n_held_out == 1 else 's'}"
        return f"{given} held out; intervals and p values need at least {MIN_QUESTIONS}"
    return None
