"""What came of one cell of a task: was the answer right, how probable was it, how much mass did its evidence get."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnprobe.errors import InputError
from attnprobe.json_file import check_keys, require_object, take
from attnprobe.tasks.cell import Condition

ConditionValue = str | int | float | None

ACCURACIES = ("strict", "lenient")
NATS = ("logprob", "margin")
ATTENTION = ("mass", "advantage")
ANSWERS = (*ACCURACIES, *NATS)
"""How right an answer is, or how probable."""
METRICS = (*ANSWERS, *ATTENTION)
"""What :meth:`Outcome.value` takes; ``margin`` is the gold answer's log-probability less the foil's."""

_NUMBERS = {"logprob": (-math.inf, 1e-6), "foil_logprob": (-math.inf, 1e-6), "mass": (0.0, 1 + 1e-5)}
_NUMBERS["advantage"] = (-math.inf, math.inf)
_KEYS = ("item", "trial", "condition", *ACCURACIES, *_NUMBERS, "facts")


@dataclass(frozen=True)
class Outcome:
    """One cell of a task as its analysis needs it; None where something was not measured.

    Parameters
    ----------
    item
        The unit of analysis: one needle with its question. All its shuffles are one cluster.
    trial
        Which shuffle, or other repetition, of the item in the condition.
    condition
        What was varied, such as ``{"position": 3}`` or ``{"filler": "prose", "placement": "after", "length": 2000}``.
    strict, lenient
        0 or 1: whether the reply holds the answer (:func:`attnprobe.tasks.score_answer`).
    logprob, foil_logprob
        Log-probability of the gold answer and of a wrong one of the same form: the sum over the answer's tokens,
        without the end of sequence; nats. Gold answers of different length differ in it, so compare within items, or
        gold less foil.
    mass, advantage
        Of the evidence's documents: mean over rows, layers and heads.
    facts
        What was really built, as JSON values.

    Raises
    ------
    InputError
        For a value that cannot be, naming the item and the field.
    """

    item: str
    trial: int
    condition: Condition
    strict: int | None = None
    lenient: int | None = None
    logprob: float | None = None
    foil_logprob: float | None = None
    mass: float | None = None
    advantage: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.item, str) or not self.item.strip():
            raise InputError(f"an outcome's item is {self.item!r}; give the name of its needle")
        where = f'outcome of item "{self.item}"'
        if type(self.trial) is not int or self.trial < 0:
            raise InputError(f"{where}: trial is {self.trial!r}; give an int >= 0")
        for key, value in self.condition.items():
            if isinstance(value, bool) or not (value is None or isinstance(value, str) or _finite(value)):
                raise InputError(f"{where}: condition {key!r} is {value!r}; give a text, a finite number or None")
        for name in ACCURACIES:
            score = getattr(self, name)
            if score is not None and (type(score) is not int or score not in (0, 1)):
                raise InputError(f"{where}: {name} is {score!r}; give 0, 1 or None")
        for name, (least, most) in _NUMBERS.items():
            number = getattr(self, name)
            if number is not None and not (_finite(number) and least <= number <= most):
                raise InputError(f"{where}: {name} is {number!r}; {_expected(least, most)}, or None")

    def __repr__(self) -> str:
        conditions = ", ".join(f"{key}={value}" for key, value in self.condition.items())
        return f"Outcome({self.item!r}, {conditions}, trial={self.trial}, strict={self.strict}, logprob={self.logprob})"

    def value(self, metric: str) -> float | None:
        """The value of one of ``METRICS``."""
        if metric == "margin":
            known = self.logprob is not None and self.foil_logprob is not None
            return self.logprob - self.foil_logprob if known else None  # type: ignore[operator]
        found = getattr(self, check_metric(metric))
        return None if found is None else float(found)

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms; :func:`outcome_of` reads it back."""
        values = {name: getattr(self, name) for name in _KEYS}
        return {**values, "condition": dict(self.condition), "facts": dict(self.facts)}


def outcome_of(value: Any, where: str) -> Outcome:
    """The outcome that a JSON value says.

    Parameters
    ----------
    value
        An object as :meth:`Outcome.to_dict` makes it. What is null may be left out.
    where
        The place to name in errors.

    Raises
    ------
    InputError
        For an unknown key, a missing one, a wrong type or a value that cannot be.
    """
    require_object(value, where)
    check_keys(value, _KEYS, where)
    fields = {
        "item": take(value, "item", str, where),
        "trial": take(value, "trial", int, where),
        "condition": take(value, "condition", dict, where),
        **{name: take(value, name, int, where, required=False) for name in ACCURACIES},
        **{name: take(value, name, (int, float), where, required=False) for name in _NUMBERS},
        "facts": take(value, "facts", dict, where, required=False) or {},
    }
    try:
        return Outcome(**fields)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def check_metric(metric: str) -> str:
    """The metric; ``InputError`` when it is none of ``METRICS``."""
    if metric not in METRICS:
        raise InputError(f"metric {metric!r} is unknown; expected one of {', '.join(METRICS)}")
    return metric


def measured(outcomes: Sequence[Outcome], names: Sequence[str] = METRICS) -> tuple[str, ...]:
    """Those of the metrics ``names`` that some outcome has a value of, in their order."""
    return tuple(name for name in names if any(outcome.value(name) is not None for outcome in outcomes))


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _expected(least: float, most: float) -> str:
    if math.isinf(least):
        return "give a finite number" if math.isinf(most) else "give a finite number of nats <= 0"
    return "give a number from 0 to 1"
