"""Tables of a study: the artefact panel, variance components, the answer by position, the questions."""

from __future__ import annotations

from collections import Counter

import numpy as np

from attnprobe.intervals import end_log_ratios
from attnprobe.report.series import Table
from attnprobe.study import Study
from attnprobe.study_cells import ASKED
from attnprobe.study_curve import AVERAGING, StudyCurve
from attnprobe.study_findings import PanelRow
from attnprobe.study_text import end_text, interval_text
from attnprobe.terminal import count, decimal, percent


def panel_table(panel: tuple[PanelRow, ...]) -> Table:
    """Ratios of every line of the artefact panel, in both orders of averaging."""
    rows = []
    for row in panel:
        pooled, logs = (row.curves[norm] for norm in AVERAGING)
        rows.append(
            (
                row.name,
                row.about,
                end_text(pooled.head_middle),
                end_text(pooled.tail_middle),
                end_text(logs.head_middle),
                end_text(logs.tail_middle),
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


def decomposition_table(study: Study) -> Table:
    """How much of the variation is position, and how much content."""
    parts = study.decompose()
    named = [("position", parts.position), ("content", parts.content)]
    if parts.interaction is not None:
        named.append(("position and content together", parts.interaction))
    named.append(("rest", parts.residual))
    return Table(
        "What the differences within a prompt come from",
        ("source", "part of the variance (omega squared)"),
        tuple((name, interval_text(part)) for name, part in named),
        (False, True),
        "Of the logs of the shares per head." + (f" {parts.reason.capitalize()}." if parts.reason else ""),
    )


def answer_table(study: Study) -> Table | None:
    """Log-probability of the answer by the position of its document; None where none is known."""
    gold = study.gold_logprob()
    if gold is None:
        return None
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
    rows = []
    for q, id in enumerate(data.questions):
        facts = data.facts[ASKED][q]
        own = Counter(data.own_answers.get(id, ()))
        most = own.most_common(1)
        rows.append(
            (
                id,
                f"{np.mean([fact['n_prompt'] for fact in facts]):,.0f}",
                decimal(float(np.exp(head[q]))),
                decimal(float(np.exp(tail[q]))),
                decimal(float(data.answer_logprob[q].mean())),
                str(facts[0]["answer"]),
                most[0][0] if most else "-",
                percent(most[0][1] / own.total(), 0) if most and own.total() > 1 else "-",
            )
        )
    return Table(
        "Questions",
        (
            *("question", "tokens", "head/middle", "tail/middle", "log-prob. of answer", "answer measured"),
            *("the model's own answer", "in orders"),
        ),
        tuple(rows),
        (False, True, True, True, True, False, False, True),
        "Ratios of the pooled share; means over the question's orders.",
    )
