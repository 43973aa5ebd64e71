"""What a study gives back beside curves: lines of the artefact panel, the answer by position, whole runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprobe.designs import Order
from attnprobe.estimates import Band, Interval
from attnprobe.flatness import end_state
from attnprobe.study_curve import AVERAGING, StudyCurve, claim

if TYPE_CHECKING:
    from attnprobe.curve import Curve
    from attnprobe.run import Run

_NO_INTERVALS = ("too few questions", "undefined")


@dataclass(frozen=True, eq=False)
class PanelRow:
    """One line of the artefact panel: the same curve with one suspect taken out.

    Parameters
    ----------
    name, about
        Of the line.
    curves
        By norm: one in each order of averaging.
    removes_artefact
        Whether it is the curve without something known to draw attention for itself, so that the claim should hold
        in it. The others (null, calibrated, other rows) answer other questions.
    """

    name: str
    about: str
    curves: Mapping[str, StudyCurve]
    removes_artefact: bool = False

    def __repr__(self) -> str:
        return f"PanelRow({self.name}: {self.verdict})"

    @property
    def verdict(self) -> str:
        """As :meth:`attnprobe.Study.claim`, of this line's curves."""
        return claim(self.curves)


@dataclass(frozen=True)
class Robustness:
    """What is left of a claim once known artefacts are taken out; ``str()`` says it in sentences.

    Parameters
    ----------
    claim
        Of the raw curve, as :meth:`attnprobe.Study.claim`.
    holds
        Whether every view without a known artefact has the same verdict; None where the raw curve claims nothing.
    verdicts
        By view: its verdict.
    same_curve
        Views that are the raw curve, as there was nothing to take out.
    head, tail
        By view, the raw one first, and by order of averaging: the end's state, as
        :func:`attnprobe.flatness.end_state`; ``no interval`` without one.
    """

    claim: str
    holds: bool | None
    verdicts: Mapping[str, str]
    same_curve: tuple[str, ...]
    head: Mapping[str, Mapping[str, str]]
    tail: Mapping[str, Mapping[str, str]]

    def __repr__(self) -> str:
        return (
            f"Robustness({self.claim}, holds={self.holds}: {', '.join(f'{n} {v}' for n, v in self.verdicts.items())})"
        )

    def __str__(self) -> str:
        return " ".join(self.sentences)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Whether the claim holds, and what each view says of the head and of the tail; none without intervals."""
        return () if self.claim in _NO_INTERVALS else tuple(self._sentences())

    def _sentences(self) -> Iterator[str]:
        if self.holds is None:
            yield "The raw curve claims nothing that could hold without known artefacts."
        elif self.holds:
            yield "The verdict is the same without known artefacts, though ratios may be smaller."
        else:
            other = {name: verdict for name, verdict in self.verdicts.items() if verdict != self.claim}
            yield f"The verdict is not the same without known artefacts: {_renamed(other, self.claim)}."
        for end, views in (("Head", self.head), ("Tail", self.tail)):
            yield f"{end}: {_grouped({name: _both(states) for name, states in views.items()})}."
        if self.same_curve:
            yield f"Nothing was there to take out, so it is the raw curve again: {', '.join(self.same_curve)}."

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms, and ``text``."""
        return {**asdict(self), "same_curve": list(self.same_curve), "text": str(self)}


def robustness(panel: Sequence[PanelRow]) -> Robustness:
    """Compare the raw curve, the panel's first line, with those that take a known artefact out."""
    raw, views = panel[0], [row for row in panel if row.removes_artefact]
    claims_nothing = (
        raw.verdict in (*_NO_INTERVALS, "inconclusive") or len({c.verdict for c in raw.curves.values()}) > 1
    )
    return Robustness(
        claim=raw.verdict,
        holds=None if claims_nothing else all(row.verdict == raw.verdict for row in views),
        verdicts={row.name: row.verdict for row in views},
        same_curve=tuple(row.name for row in views if all(_is_same(row.curves[n], raw.curves[n]) for n in AVERAGING)),
        head={row.name: _states(row, "head_middle") for row in (raw, *views)},
        tail={row.name: _states(row, "tail_middle") for row in (raw, *views)},
    )


def _is_same(one: StudyCurve, other: StudyCurve) -> bool:
    return np.array_equal(one.profiles, other.profiles, equal_nan=True)


def _states(row: PanelRow, end: str) -> dict[str, str]:
    return {AVERAGING[norm]: end_state(getattr(curve, end)) or "no interval" for norm, curve in row.curves.items()}


def _both(states: Mapping[str, str]) -> str:
    """An end's state, or that in each order of averaging where they differ."""
    if len(set(states.values())) == 1:
        return next(iter(states.values()))
    return ", ".join(f"{state} {averaging}" for averaging, state in states.items())


def _grouped(texts: Mapping[str, str]) -> str:
    """``raised in raw, trimmed; even in preamble``: names by what is said of them."""
    names: dict[str, list[str]] = {}
    for name, text in texts.items():
        names.setdefault(text, []).append(name)
    return "; ".join(f"{text} in {', '.join(own)}" for text, own in names.items())


def _renamed(verdicts: Mapping[str, str], claim: str) -> str:
    """``with trimmed it is "tail", not "U"``: views by the verdict that they have in the place of the raw one."""
    names: dict[str, list[str]] = {}
    for name, verdict in verdicts.items():
        names.setdefault(verdict, []).append(name)
    return "; ".join(f'with {", ".join(own)} it is "{verdict}", not "{claim}"' for verdict, own in names.items())


@dataclass(frozen=True, eq=False)
class GoldLogprob:
    """Log-probability of the answer by the position of the document that holds it.

    Parameters
    ----------
    values
        float64 [position], nats: mean over questions, each less its own mean over positions.
    band
        Simultaneous band.
    head_minus_middle, tail_minus_middle
        Nats, t intervals over questions; None without a middle.
    n
        Questions with one known gold document that stood at every position.
    """

    values: np.ndarray
    band: Band
    head_minus_middle: Interval | None
    tail_minus_middle: Interval | None
    n: int

    def __repr__(self) -> str:
        return (
            f"GoldLogprob(head_minus_middle={self.head_minus_middle}, tail_minus_middle={self.tail_minus_middle}, "
            f"{len(self.values)} positions, n={self.n})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        head, tail = self.head_minus_middle, self.tail_minus_middle
        return {
            "values": self.values.tolist(),
            "band": self.band.to_dict(),
            "head_minus_middle": None if head is None else head.to_dict(),
            "tail_minus_middle": None if tail is None else tail.to_dict(),
            "n": self.n,
        }


@dataclass(frozen=True, eq=False)
class KeptRun:
    """One whole measurement of a study: the question's id, the order of its documents, the variant, and the run."""

    question: str
    order: Order
    variant: str
    run: Run

    def curve(self, norm: str = "share", *, with_sinks: bool = True, **choice: Any) -> Curve:
        """The run's curve as the study's table and raw view have it.

        Secondary sinks count to their documents, unlike in :meth:`attnprobe.Run.curve`: they are set apart only in
        the prompts as they are, so that other variants could not be compared. ``with_sinks=False`` is the view
        ``apart``. Other arguments as in :meth:`attnprobe.Run.curve`.
        """
        return self.run.curve(norm, with_sinks=with_sinks, **choice)
