"""What the notes below figures of tasks say of where their numbers come from."""

from __future__ import annotations

from attnprobe.report.figure_text import shown
from attnprobe.tasks.task_summary import TaskSummary
from attnprobe.terminal import count


def about_task(summary: TaskSummary) -> str:
    """One line of a note: model, items, trials."""
    items, trials = count(summary.sizes["items"], "item"), summary.sizes["trials"]
    return f"{shown(summary.model, 'model')}; {items}, {'one trial' if trials == 1 else f'up to {trials} trials'} each."
