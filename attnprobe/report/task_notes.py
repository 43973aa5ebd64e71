"""What the notes below figures of tasks say of where their numbers come from."""

from __future__ import annotations

from collections.abc import Sequence

from attnprobe.estimates import Interval
from attnprobe.report.figure_text import shown
from attnprobe.tasks.task_summary import TaskSummary
from attnprobe.terminal import count


def about_task(summary: TaskSummary) -> str:
    """One line of a note: model, items, trials."""
    items, trials = count(summary.sizes["items"], "item"), summary.sizes["trials"]
    return f"{shown(summary.model, 'model')}; {items}, {'one trial' if trials == 1 else f'up to {trials} trials'} each."


def bars_note(intervals: Sequence[Interval], what: str = "95 % t intervals over items") -> str:
    """What the bars of a figure are, after a space; that there are none where no interval has bounds."""
    n_drawn = sum(one.low is not None and one.high is not None for one in intervals)
    if not n_drawn:
        return " No bars: too few items for intervals."
    return f" Bars: {what}" + (", where there are enough items." if n_drawn < len(intervals) else ".")
