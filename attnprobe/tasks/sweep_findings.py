"""Findings of a sweep of the evidence through positions: needles among distractors, questions with gold documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnprobe.tasks.accuracy import PositionAccuracy, accuracy_by_position
from attnprobe.tasks.baselines import Baseline, baselines
from attnprobe.tasks.ends import find_ends
from attnprobe.tasks.outcome import ACCURACIES, ConditionValue, Outcome, measured
from attnprobe.tasks.position_means import PositionMeans, means_by_position
from attnprobe.tasks.published import Beside, beside_published

POSITION = "position"
"""Key of the condition that is swept."""


@dataclass(frozen=True, eq=False)
class SweepFindings:
    """Result of :func:`sweep_findings`.

    Parameters
    ----------
    positions
        Of the evidence, ascending.
    middle
        Those that count as the middle; none where the first or last position was not tested.
    accuracy
        By ``strict`` and ``lenient``; empty without replies.
    means
        By ``logprob``, ``margin``, ``mass`` and ``advantage``, those that were measured.
    documents
        In each prompt; None where prompts differ or do not say.
    baselines
        Beside the middle positions.
    published
        Curves of other models beside the lenient accuracy; empty without replies or with a single position.
    """

    positions: tuple[ConditionValue, ...]
    middle: tuple[ConditionValue, ...]
    accuracy: Mapping[str, PositionAccuracy]
    means: Mapping[str, PositionMeans]
    documents: int | None
    baselines: tuple[Baseline, ...]
    published: tuple[Beside, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {
            "axis": POSITION,
            "positions": list(self.positions),
            "middle": list(self.middle),
            "accuracy": {name: one.to_dict() for name, one in self.accuracy.items()},
            "means": {name: one.to_dict() for name, one in self.means.items()},
            "documents": self.documents,
            "baselines": [one.to_dict() for one in self.baselines],
            "published": [one.to_dict() for one in self.published],
        }


def sweep_findings(outcomes: Sequence[Outcome]) -> SweepFindings:
    """Analyse a sweep of the evidence.

    Parameters
    ----------
    outcomes
        With ``position`` in their condition, and baselines.

    Raises
    ------
    InputError
        Outcomes that do not fit together.
    """
    swept = [outcome for outcome in outcomes if outcome.condition.get(POSITION) is not None]
    positions = sorted({outcome.condition[POSITION] for outcome in swept})  # type: ignore[type-var]
    ends, _ = find_ends(positions, POSITION, outcomes)
    middle = () if ends is None else tuple(positions[place] for place in ends.middle)
    known = measured(swept)
    counts = {outcome.facts.get("n_documents") for outcome in swept}
    documents = counts.pop() if len(counts) == 1 else None
    accuracy = {name: accuracy_by_position(swept, name, POSITION) for name in known if name in ACCURACIES}
    return SweepFindings(
        positions=tuple(positions),
        middle=middle,
        accuracy=accuracy,
        means={name: means_by_position(swept, name, POSITION) for name in known if name not in ACCURACIES},
        documents=documents,
        baselines=baselines(outcomes, lambda outcome: outcome.condition.get(POSITION) in (middle or positions)),
        published=_beside(accuracy.get("lenient"), documents),
    )


def _beside(lenient: PositionAccuracy | None, documents: int | None) -> tuple[Beside, ...]:
    """Published curves beside the lenient accuracy, whose scoring is nearest to theirs."""
    if lenient is None or documents is None:
        return ()
    accuracy = [cell.accuracy for cell in lenient.cells if cell.accuracy is not None]
    positions: Any = [cell.position for cell in lenient.cells if cell.accuracy is not None]
    return beside_published(accuracy, "lenient", positions, documents) if len(accuracy) > 1 else ()
