"""Next to no reply holds the answer: whether that shows a task beyond the model, or something else."""

from __future__ import annotations

from collections.abc import Sequence

from attnprobe.tasks.attention_link import in_context
from attnprobe.tasks.baselines import item_means
from attnprobe.tasks.item_intervals import MIN_ITEMS, item_mean
from attnprobe.tasks.outcome import Outcome
from attnprobe.tasks.task_numbers import difference_text
from attnprobe.terminal import count

_MANY_CUT = 0.25


def why_few_right(outcomes: Sequence[Outcome]) -> str:
    """A sentence: that the task is beyond the model only where items, whole replies and margins do not speak against.

    Parameters
    ----------
    outcomes
        All cells of a task of which next to no reply holds the answer.
    """
    asked = [outcome for outcome in outcomes if in_context(outcome)]
    items = {outcome.item for outcome in asked}
    if len(items) < MIN_ITEMS:
        return f"{count(len(items), 'item')} cannot tell whether the task is beyond the model."
    known = [bool(outcome.facts["reply_cut"]) for outcome in asked if "reply_cut" in outcome.facts]
    if known and sum(known) >= _MANY_CUT * len(known):
        return (
            f"{sum(known):,} of {count(len(known), 'reply', 'replies')} were cut off, maybe before the answer: raise "
            "max_new_tokens before the task is called beyond the model."
        )
    margin = item_mean(list(item_means(asked, "margin").values()))
    if margin.low is not None and margin.low > 0:
        return (
            f"The right answer is more probable than a wrong one, by {difference_text('margin', margin)} nats, so the "
            "task is not beyond the model: its replies do not get to the answer."
        )
    return "The task is beyond the model, or its replies do not get to the answer."
