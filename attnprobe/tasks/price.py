"""What tokens cost: loss per doubling of the prompt, and the price of a block of tokens at a length.

The price of a block is not its own: it is read off the user's curve of quality against log2 of the prompt's tokens, and
depends on how long the prompt is already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from attnprobe.arguments import Seed, fraction, whole_number
from attnprobe.errors import InputError
from attnprobe.estimates import Interval, short_number
from attnprobe.multiplicity import sign_flip_max_t
from attnprobe.tasks.cell import Condition
from attnprobe.tasks.context_rot import FLOOR
from attnprobe.tasks.item_intervals import item_mean
from attnprobe.tasks.item_table import item_table, left_out_note
from attnprobe.tasks.outcome import ACCURACIES, ANSWERS, Outcome
from attnprobe.tasks.paired_cells import MIN_TEST_ITEMS


@dataclass(frozen=True)
class Trend:
    """A trend over lengths.

    Parameters
    ----------
    loss
        Mean over items; positive where quality falls.
    p
        That it is 0, by sign flips of whole items; None below 6 items.
    """

    loss: Interval
    p: float | None

    def __repr__(self) -> str:
        return f"Trend({self.loss}, p={short_number(self.p)}, n={self.loss.n})"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {"loss": self.loss.to_dict(), "p": self.p}


@dataclass(frozen=True)
class LengthStep:
    """Loss per doubling between two lengths next to each other, in tokens."""

    start: float
    stop: float
    loss: Interval

    def __repr__(self) -> str:
        return f"LengthStep({self.start:g} to {self.stop:g}: {self.loss})"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {"start": self.start, "stop": self.stop, "loss": self.loss.to_dict()}


@dataclass(frozen=True, eq=False)
class LengthCurve:
    """Quality against length; :meth:`price` reads it.

    Parameters
    ----------
    metric
        An accuracy, or ``logprob`` or ``margin`` (nats).
    tokens
        float64 [length]: tokens of the prompt, mean over items.
    values
        float64 [item, length]: each item's mean over trials; items with a value at every length.
    per_doubling
        Loss for twice the tokens: slope of each item against log2 of its tokens.
    steps
        The same between neighbouring lengths; each interval by itself.
    steepening
        By how much the loss per doubling grows with every doubling (twice the quadratic term): above 0 where long
        prompts lose faster. None with two lengths.
    level
        Of the intervals.
    warnings
        What the user should know.
    """

    metric: str
    tokens: np.ndarray
    values: np.ndarray
    per_doubling: Trend
    steps: tuple[LengthStep, ...]
    steepening: Trend | None
    level: float
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        lengths = f"{self.tokens[0]:g} to {self.tokens[-1]:g} tokens"
        return f"LengthCurve({self.metric}, {lengths}: {self.per_doubling.loss} per doubling, n={len(self.values)})"

    @property
    def is_beyond(self) -> bool:
        """Whether it is of an accuracy that is next to nothing at every length, of which no loss can be told."""
        return self.metric in ACCURACIES and float(self.values.mean(axis=0).max(initial=0.0)) < FLOOR

    def price(self, added: int, at: int) -> Interval:
        """What a block costs, added to a prompt.

        Each item's values are interpolated linearly in log2 of the tokens.

        Parameters
        ----------
        added
            Tokens of the block; negative for one that is deleted.
        at
            Tokens of the prompt before.

        Returns
        -------
        Interval
            Loss, in the metric's unit; negative where quality rises.

        Raises
        ------
        InputError
            When the prompt is shorter or longer than any that was tested, before or after.
        """
        at = whole_number("at", at, 1)
        added = whole_number("added", added, 1 - at)
        least, most = self.tokens[0], self.tokens[-1]
        for what, tokens in (("the prompt has", at), ("with the block it has", at + added)):
            if not least <= tokens <= most:
                raise InputError(
                    f"{what} {tokens} tokens, outside the tested {least:g} to {most:g}; test that length, too"
                )
        weights = self._weights(at) - self._weights(at + added)
        return item_mean(self.values @ weights, self.level, _span(self.metric, float(np.abs(weights).sum())))

    def _weights(self, tokens: int) -> np.ndarray:
        """How much of each length an interpolated value is."""
        x = np.log2(self.tokens)
        return np.array([np.interp(np.log2(tokens), x, one) for one in np.eye(len(x))])

    def to_dict(self) -> dict[str, Any]:
        """Everything but single items, in JSON's terms."""
        return {
            "metric": self.metric,
            "tokens": self.tokens.tolist(),
            "means": self.values.mean(axis=0).tolist() if len(self.values) else [None] * len(self.tokens),
            "per_doubling": self.per_doubling.to_dict(),
            "steps": [step.to_dict() for step in self.steps],
            "steepening": None if self.steepening is None else self.steepening.to_dict(),
            "n": len(self.values),
            "warnings": list(self.warnings),
        }


def length_curve(
    outcomes: Iterable[Outcome],
    metric: str = "strict",
    axis: str = "length",
    where: Condition | None = None,
    pool: Collection[str] = (),
    level: float = 0.95,
    seed: Seed = 0,
) -> LengthCurve:
    """Quality by length of the prompt.

    Parameters
    ----------
    outcomes
        Of a sweep over lengths. A length is the mean of its outcomes' fact ``prompt_tokens``, for each item; where any
        outcome lacks it, the value of the condition, which then must be the tokens of the whole prompt.
    metric
        An accuracy, or ``logprob`` or ``margin`` (nats).
    axis, where, pool
        As in :func:`attnprobe.tasks.item_table.item_table`.
    level
        Of each interval.
    seed
        What draws the tests' flips.

    Raises
    ------
    InputError
        For another metric, outcomes that do not fit together, fewer than two lengths, lengths without order.
    """
    if metric not in ANSWERS:
        raise InputError(f"metric {metric!r} has no price; expected one of {', '.join(ANSWERS)}")
    level = fraction("level", level)
    table = item_table(outcomes, metric, axis, where, pool)
    if len(table.levels) < 2 or any(isinstance(one, str) or not one > 0 for one in table.levels):
        raise InputError(f"the lengths are {', '.join(map(repr, table.levels))}; give two or more, as numbers above 0")
    full = table.complete()
    named = np.array(table.levels, dtype=np.float64)
    counted = not np.isnan(full.tokens).any()
    tokens = full.tokens if counted else np.broadcast_to(named, full.values.shape)
    if not (np.diff(tokens, axis=1) > 0).all():
        raise InputError(f"the prompts' tokens do not grow with the condition {axis!r}; check the fact prompt_tokens")
    warnings = (
        [] if counted else [f"tokens are those of the condition {axis!r}: some outcomes lack the fact prompt_tokens"]
    )
    note = left_out_note([table], [full])
    warnings += [note] if note else []
    x = np.log2(tokens)
    steps = np.diff(full.values, axis=1) / np.diff(x, axis=1)
    mean = tokens.mean(axis=0) if len(tokens) else named
    return LengthCurve(
        metric=metric,
        tokens=mean,
        values=full.values,
        per_doubling=_trend(full.values, -_leading_weights(x, 1), metric, level, seed),
        steps=tuple(
            LengthStep(float(start), float(stop), item_mean(-steps[:, i], level, _span(metric, 2 / _doublings(x, i))))
            for i, (start, stop) in enumerate(pairwise(mean))
        ),
        steepening=None if x.shape[1] < 3 else _trend(full.values, -2 * _leading_weights(x, 2), metric, level, seed),
        level=level,
        warnings=tuple(warnings),
    )


def _leading_weights(x: np.ndarray, degree: int) -> np.ndarray:
    """Weights [item, length] that take an item's values to the leading coefficient of its least-squares polynomial."""
    rows = [np.linalg.pinv(np.vander(one - one.mean(), degree + 1))[0] for one in x]
    return np.array(rows).reshape(x.shape)


def _trend(values: np.ndarray, weights: np.ndarray, metric: str, level: float, seed: Seed) -> Trend:
    slopes = (values * weights).sum(axis=1)
    reach = float(np.abs(weights).sum(axis=1).max(initial=0.0))
    p = float(sign_flip_max_t(slopes[:, None], seed)[0]) if len(slopes) >= MIN_TEST_ITEMS else None
    return Trend(item_mean(slopes, level, _span(metric, reach)), p)


def _doublings(x: np.ndarray, i: int) -> float:
    return float(np.diff(x, axis=1)[:, i].min(initial=np.inf))


def _span(metric: str, of_accuracies: float) -> float | None:
    """How far two items' contrasts can be apart; nats have no bound."""
    return of_accuracies if metric in ACCURACIES else None
