"""Numbers of task results as short texts: signed nats, percentages with intervals, p values."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from attnprobe.estimates import Interval
from attnprobe.tasks.outcome import ACCURACIES, ConditionValue
from attnprobe.terminal import decimal, p_text, percent


@dataclass(frozen=True)
class MetricText:
    """How results call a metric.

    Parameters
    ----------
    name, short
        In sentences, and as the head of a column.
    label
        In captions and at axes, with what the values are of.
    unit
        Of differences: ``points``, of 100 %, or ``nats``.
    """

    name: str
    short: str
    label: str
    unit: str

    @property
    def scale(self) -> int:
        """What values are multiplied with."""
        return 100 if self.unit == "points" else 1

    @property
    def value_unit(self) -> str:
        """The unit of values, ``%`` or ``nats``."""
        return "%" if self.unit == "points" else self.unit

    @property
    def axis(self) -> str:
        """The label of an axis, on two lines where it is long."""
        lines = self.label.replace(" of the ", "\nof the ").replace(" within ", "\nwithin ")
        return f"{lines} ({self.value_unit})"


TEXTS = {
    "strict": MetricText("strict accuracy", "strict", "strict accuracy", "points"),
    "lenient": MetricText("lenient accuracy", "lenient", "lenient accuracy", "points"),
    "logprob": MetricText("log-probability", "log p", "log-probability within items", "nats"),
    "margin": MetricText("gold less foil", "gold-foil", "gold less foil", "nats"),
    "mass": MetricText("mass", "mass", "mass of the evidence", "points"),
    "advantage": MetricText("advantage", "advantage", "advantage of the evidence", "nats"),
}
"""By metric; of ``logprob`` values across items say nothing, so each item's mean is taken out."""

PRIMARY = ("logprob", "strict")
"""What a verdict is of: the log-probability, which tells more than right or wrong, where it was measured."""


def primary(found: Collection[str]) -> str | None:
    """The one of ``PRIMARY`` to go by, of the metrics that were found; None without any."""
    return next((name for name in PRIMARY if name in found), None)


def place_text(place: ConditionValue) -> str:
    """A position, or a depth in three digits."""
    return f"{place:.3g}" if isinstance(place, float) else str(place)


def signed(value: float | None, digits: int = 2) -> str:
    """A number with its sign, none for what rounds to 0; ``-`` where undefined."""
    if value is None or not math.isfinite(value):
        return decimal(value, digits)
    return f"{round(value, digits):+.{digits}f}" if round(value, digits) else f"{0:.{digits}f}"


def value_text(metric: str, value: float | None) -> str:
    """A value of a metric: accuracies and masses in percent, log-probabilities and advantages in signed nats."""
    if metric in ACCURACIES:
        return percent(value, 0)
    return percent(value, 2) if metric == "mass" else signed(value)


def difference_text(metric: str, interval: Interval | None) -> str:
    """``+0.52 (+0.20 to +0.84)``, in the metric's unit; the estimate alone where there is no interval."""
    if interval is None or interval.estimate is None:
        return "not measured"
    return _difference(metric, interval, "{} ({} to {})", signed)


def difference_cell(metric: str, interval: Interval | None) -> str:
    """``+0.52 [0.20, 0.84]``: the same for a column of a table."""
    return _difference(metric, interval, "{} [{}, {}]", decimal)


def _difference(metric: str, interval: Interval | None, form: str, bound: Callable[[float | None, int], str]) -> str:
    if interval is None or interval.estimate is None:
        return "-"
    scale, digits = TEXTS[metric].scale, 0 if metric in ACCURACIES else 2
    estimate = signed(scale * interval.estimate, digits)
    if interval.low is None or interval.high is None:
        return estimate
    return form.format(estimate, bound(scale * interval.low, digits), bound(scale * interval.high, digits))


def accuracy_cell(interval: Interval) -> str:
    """``80 % [60, 95]``; the estimate alone where there is no interval."""
    if interval.low is None or interval.high is None:
        return percent(interval.estimate, 0)
    return f"{percent(interval.estimate, 0)} [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"


def p_equation(p: float) -> str:
    """``p = 0.012``, ``p < 0.001``."""
    return "p < 0.001" if p < 0.001 else f"p = {p_text(p)}"
