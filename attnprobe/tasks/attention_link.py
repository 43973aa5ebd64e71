"""Does the model answer worse where it looks less? What masses and answers of the same cells say together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.errors import InputError
from attnprobe.estimates import Interval
from attnprobe.norms import mean_of_defined
from attnprobe.tasks.association import Associations, associate, by_layer
from attnprobe.tasks.cell import is_reference
from attnprobe.tasks.held_out_heads import HeldOutHeads, held_out_heads
from attnprobe.tasks.outcome import ATTENTION, Outcome, measured
from attnprobe.tasks.task_data import TaskData
from attnprobe.tasks.task_numbers import primary

NEGLIGIBLE = 0.1
"""A rank correlation whose whole interval is nearer to 0 counts as none."""
ALPHA = 0.05


@dataclass(frozen=True)
class AttentionLink:
    """Result of :func:`attention_link`.

    Parameters
    ----------
    metric
        Of the answer: ``logprob``, or ``strict`` where no log-probability was measured.
    predictor
        Of attention: ``advantage``, free of sinks and of dilution by longer prompts; ``mass`` where no cell has one.
    overall
        Of mass and advantage, mean over layers and heads.
    layers
        Of each layer's mean ``predictor`` over heads; p adjusted over layers, mass and advantage.
    heads
        Retrieval heads on held-out items; None where there are none, for ``reason``.
    reason
        Why ``heads`` is None; else None.
    """

    metric: str
    predictor: str
    overall: Associations
    layers: Associations
    heads: HeldOutHeads | None
    reason: str | None = None

    @property
    def over_conditions(self) -> str:
        """``together``, ``opposed``, ``unrelated``, ``unclear`` or ``untested``: within items, over all conditions."""
        return state(self.overall.by_name[self.predictor].correlation.within_question)

    @property
    def p_over_conditions(self) -> float | None:
        """Two-sided p of ``over_conditions``, of the t behind its interval; None without one."""
        return self.overall.by_name[self.predictor].correlation.p_within_question

    @property
    def at_one_condition(self) -> str:
        """The same within item and condition, where no condition can be behind it.

        It is of ``predictor`` alone, which is fixed before the answers are seen: its p needs no adjustment. Where all
        ranks agree too well for an interval, the sign test of the items decides.
        """
        found = self.overall.by_name[self.predictor].correlation
        said = state(found.within_position)
        if said == "untested" and found.p_value is not None and found.p_value < ALPHA:
            return "together" if (found.within_position.estimate or 0.0) > 0 else "opposed"
        return said

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {
            "metric": self.metric,
            "predictor": self.predictor,
            "over_conditions": self.over_conditions,
            "p_over_conditions": self.p_over_conditions,
            "at_one_condition": self.at_one_condition,
            "overall": self.overall.to_dict(),
            "layers": self.layers.to_dict(),
            "heads": None if self.heads is None else self.heads.to_dict(),
            "reason": self.reason,
        }


def attention_link(data: TaskData, seed: int = 0) -> AttentionLink | None:
    """Relate the attention that the evidence gets to the answer, over the cells that have other text beside it.

    Baselines have no part: the evidence alone, or none, differs from all other cells in more than attention.

    Parameters
    ----------
    data
        Of one model.
    seed
        Draws the halves of the items for the retrieval heads.

    Returns
    -------
    AttentionLink
        None where attention or answers were not measured.
    """
    if data.needle_mass is None or data.needle_advantage is None:
        return None
    kept = [place for place, outcome in enumerate(data.outcomes) if in_context(outcome)]
    outcomes = [data.outcomes[place] for place in kept]
    metric = primary(measured(outcomes))
    predictor = next(iter(measured(outcomes, ATTENTION[::-1])), None)
    if metric is None or predictor is None:
        return None
    arrays = {"mass": data.needle_mass[kept], "advantage": data.needle_advantage[kept]}
    per_layer = mean_of_defined(np.where(np.isfinite(arrays[predictor]), arrays[predictor], np.nan), axis=2)
    heads, reason = None, None
    try:
        heads = held_out_heads(outcomes, arrays["advantage"], data.layers, metric, seed=seed)
    except InputError as error:
        reason = str(error)
    return AttentionLink(
        metric=metric,
        predictor=predictor,
        overall=associate(outcomes, metric),
        layers=associate(outcomes, metric, by_layer(per_layer, data.layers)),
        heads=heads,
        reason=reason,
    )


def why_unlinked(data: TaskData) -> str:
    """Why :func:`attention_link` gives None: the beginning of a sentence that ends in what cannot be said."""
    kept = [outcome for outcome in data.outcomes if in_context(outcome)]
    if not kept:
        return "Only baselines are measured, no prompt with other text around the evidence"
    if not data.is_behaviour_only and all(outcome.mass is None for outcome in kept):
        return "No layer sees the evidence: in every prompt it stands outside the window of the model's attention"
    return "Attention and answers were not measured together"


def in_context(outcome: Outcome) -> bool:
    """Whether the evidence stands among other text: no baseline, and not the prompt without filler."""
    return not is_reference(outcome.condition)


def state(interval: Interval) -> str:
    """What an interval of a rank correlation says; ``untested`` without one."""
    if interval.low is None or interval.high is None:
        return "untested"
    if interval.low > -NEGLIGIBLE and interval.high < NEGLIGIBLE:
        return "unrelated"
    return "together" if interval.low > 0 else "opposed" if interval.high < 0 else "unclear"


def most_trials(outcomes: Sequence[Outcome]) -> int:
    """Most trials of an item in one condition."""
    counts = Counter((outcome.item, frozenset(outcome.condition.items())) for outcome in outcomes)
    return max(counts.values())
