"""Answer and attention of every prompt, less the means of its item and condition: what their link is made of."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from attnprobe.tasks.attention_link import in_context
from attnprobe.tasks.outcome import Outcome


def link_points(outcomes: Iterable[Outcome], metric: str, predictor: str) -> np.ndarray:
    """Attention and answer of every prompt that can be compared with another of its item and condition.

    Parameters
    ----------
    outcomes
        Cells; baselines, and those without either value, have no part.
    metric, predictor
        Of the answer and of attention, see :class:`attnprobe.tasks.attention_link.AttentionLink`.

    Returns
    -------
    np.ndarray
        float64 [prompt, 2]: attention, answer, each less the mean over the trials of the item in the condition.
    """
    trials: dict[object, list[tuple[float, float]]] = {}
    for outcome in outcomes:
        seen, answered = outcome.value(predictor), outcome.value(metric)
        if in_context(outcome) and seen is not None and answered is not None:
            key = outcome.item, frozenset(outcome.condition.items())
            trials.setdefault(key, []).append((seen, answered))
    centred = [np.array(one) - np.mean(one, axis=0) for one in trials.values() if len(one) > 1]
    return np.concatenate([np.empty((0, 2)), *centred])
