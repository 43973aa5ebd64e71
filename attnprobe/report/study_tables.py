"""Tables of a study: the artefact panel, variance components, the answer by position, the questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from attnprobe.estimates import Interval
from attnprobe.flatness import end_state
from attnprobe.intervals import end_log_ratios
from attnprobe.study import Study
from attnprobe.study_cells import ASKED
from attnprobe.study_curve import AVERAGING, StudyCurve
from attnprobe.study_findings import GoldLogprob, PanelRow
from attnprobe.study_text import interval_text, ratio_text
from attnprobe.terminal import count, decimal, percent
from attnprobe.told import Cell, Table, table_of_values, whole


def panel_table(panel: tuple[PanelRow, ...]) -> Table:
    """Ratios of every line of the artefact panel, in both orders of averaging."""
    rows = []
    for row in panel:
        pooled, logs = (row.curves[norm] for norm in AVERAGING)
        rows.append(
            (
                row.name,
                row.about,
                *(_end_lines(end) for end in (pooled.head_middle, pooled.tail_middle)),
                *(_end_lines(end) for end in (logs.head_middle, logs.tail_middle)),
            )
        )
    return Table(
        "What is left of the curve without known artefacts",
        (
            "curve",
            "what it is",
            "head/middle, pooled",
            "tail/middle, pooled",
            "head/middle, per head",
            "tail/middle, per head",
        ),
        tuple(rows),
        (False, False, True, True, True, True),
        "Pooled over heads and layers (share), and per head, a geometric mean (log_share); 95 % intervals over "
        "questions; 1 is no difference from the middle; even: the whole interval inside 0.8 to 1.25.",
    )


def _end_lines(end: Interval | None) -> str:
    """Ratio and interval, and the end's state on a line of its own."""
    state = end_state(end)
    return ratio_text(end) + (f"\n{state}" if state else "")


def decomposition_table(study: Study) -> Table:
    """How much of the variation is position, and how much content."""
    parts = study.decompose()
    named = [("position", parts.position), ("content", parts.content)]
    if parts.interaction is not None:
        named.append(("position and content together", parts.interaction))
    named.append(("residual", parts.residual))
    return Table(
        "What the differences within a prompt come from",
        ("source", "part of the variance (omega squared)"),
        tuple((name, interval_text(part)) for name, part in named),
        (False, True),
        "Of the logs of the shares per head." + (f" {parts.reason.capitalize()}." if parts.reason else ""),
    )


def answer_table(gold: GoldLogprob) -> Table:
    """Log-probability of the answer by the position of its document."""
    low, high = gold.band.low, gold.band.high
    rows = []
    for position, value in enumerate(gold.values):
        interval = "-" if low is None or high is None else f"{low[position]:.2f} to {high[position]:.2f}"
        rows.append((str(position), decimal(float(value)), interval))
    ends = (
        f"Head - middle {interval_text(gold.head_minus_middle)}, tail - middle {interval_text(gold.tail_minus_middle)}."
    )
    return Table(
        "Log-probability of the answer by where its document stands",
        ("position", "nats, against the question's mean", "95 % band"),
        tuple(rows),
        (True, True, True),
        f"{count(gold.n, 'question')}. {ends}",
    )


def questions_table(study: Study, share: StudyCurve) -> Table:
    """Every question with its ratios and its answers."""
    data = study.of()
    head, tail = end_log_ratios(share.profiles)
    columns: dict[str, Callable[[Any], str] | None] = {
        "id": None,
        "question": None,
        "tokens": whole,
        "head/middle": decimal,
        "tail/middle": decimal,
        "log-prob. of answer": decimal,
        "answer measured": None,
        "the model's own answer": None,
    }
    in_orders = study.agreement() is not None  # else the model wrote one answer a question, in one order
    if in_orders:
        columns["in orders"] = lambda part: percent(part, 0)
    rows: list[tuple[Cell, ...]] = []
    for q, id in enumerate(data.questions):
        facts = data.facts[ASKED][q]
        own = Counter(data.own_answers.get(id, ()))
        most, n = own.most_common(1)[0] if own else (None, 0)
        cells: tuple[Cell, ...] = (
            id,
            data.question_texts.get(id),
            float(np.mean([fact["n_prompt"] for fact in facts])),
            float(np.exp(head[q])),
            float(np.exp(tail[q])),
            float(data.answer_logprob[q].mean()),
            str(facts[0]["answer"]),
            most,
        )
        rows.append((*cells, n / own.total() if own else None) if in_orders else cells)
    return table_of_values("Questions", columns, rows, "Ratios of the pooled share; means over the question's orders.")
