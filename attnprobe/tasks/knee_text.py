"""Knees in words, their censoring said."""

from __future__ import annotations

from attnprobe.tasks.knee import Knee
from attnprobe.tasks.outcome import ACCURACIES
from attnprobe.tasks.task_numbers import TEXTS
from attnprobe.terminal import percent


def knee_name(knee: Knee) -> str:
    """What a knee is of, and what it asks for."""
    reference = "that of the shortest length" if knee.kind == "length" else "that of the first and last depth"
    is_ratio = knee.metric in ACCURACIES
    asked = f"at least {percent(knee.least, 0)} of" if is_ratio else f"at most {-knee.least:.2f} nats below"
    return f"{knee.kind.capitalize()} knee ({TEXTS[knee.metric].name} at the middle depths {asked} {reference})"


def knee_text(knee: Knee) -> str:
    """Where a knee lies, its censoring said."""
    if knee.censored == "above":
        return f"{knee.length:,.0f} tokens or above, as every length is shown to hold"
    if knee.censored == "below":
        return f"below {knee.before:,.0f} tokens, which is not shown to hold{_fails(knee)}"
    if knee.length is None or knee.before is None:
        return "; ".join(knee.warnings) or "not determined"
    return f"from {knee.length:,.0f}, which is shown to hold, to {knee.before:,.0f} tokens, which is not{_fails(knee)}"


def _fails(knee: Knee) -> str:
    if knee.shown_to_fail is None:
        return "; no length is shown to fail, so more items may move it up"
    return f"; shown to fail at {knee.shown_to_fail:,.0f} tokens"


def knee_cells(knee: Knee) -> tuple[str, str, str, str, str]:
    """A line of a table: kind, metric, what is asked, where the knee lies, the length that is shown to fail."""
    than = "shortest" if knee.kind == "length" else "ends"
    asked = f"{percent(knee.least, 0)} of {than}" if knee.metric in ACCURACIES else f"{-knee.least:.2f} nats off {than}"
    where = "not determined"
    if knee.censored == "above":
        where = f"{knee.length:,.0f} or above"
    elif knee.censored == "below":
        where = f"below {knee.before:,.0f}"
    elif knee.length is not None and knee.before is not None:
        where = f"{knee.length:,.0f} to {knee.before:,.0f}"
    failed = "-" if knee.shown_to_fail is None else f"{knee.shown_to_fail:,.0f}"
    return knee.kind, TEXTS[knee.metric].name, asked, where, failed
