"""What a task's results come to: findings, the link between attention and answer, a verdict, and a row a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.errors import InputError
from attnprobe.estimates import json_values
from attnprobe.tasks.attention_link import AttentionLink, attention_link, most_trials
from attnprobe.tasks.filler_findings import filler_findings
from attnprobe.tasks.link_points import link_points
from attnprobe.tasks.matrix_findings import matrix_findings
from attnprobe.tasks.outcome import METRICS
from attnprobe.tasks.summary_notes import summary_notes
from attnprobe.tasks.sweep_findings import sweep_findings
from attnprobe.tasks.task_data import TaskData
from attnprobe.tasks.task_verdict import Findings, task_verdict
from attnprobe.told import Verdict

_FACTS = (
    "prompt_tokens",
    "length_hit",
    "real_depth",
    "filler_tokens",
    "exact_match",
    "f1",
    "pattern",
    "answer",
    "reply",
    "reply_cut",
)
"""Facts with a column of their own."""


@dataclass(frozen=True, eq=False)
class TaskSummary:
    """Result of :func:`task_summary`.

    Parameters
    ----------
    task, model
        As in the data.
    sizes
        ``items``, ``cells``, ``trials`` (most of an item in one condition), ``missing`` (cells).
    verdict
        In words: whether the model answers worse where it looks less, what else is shown, and what cannot be said.
    findings
        Of the task's own analysis.
    link
        Between attention and answer; None where one of them was not measured.
    missing
        Keys of the cells that are not there, and why.
    notes
        Of :func:`attnprobe.tasks.summary_notes.summary_notes`: sentences without capital and full stop.
    points
        Attention and answer of every prompt, see :func:`attnprobe.tasks.link_points.link_points`; none without a link.
    rows
        As :meth:`table` gives them.
    """

    task: str
    model: str
    sizes: Mapping[str, int]
    verdict: Verdict
    findings: Findings
    link: AttentionLink | None
    missing: Mapping[str, str]
    notes: tuple[str, ...]
    points: np.ndarray
    rows: tuple[Mapping[str, Any], ...]

    def __repr__(self) -> str:
        return f"TaskSummary({self.task} of {self.model}: {self.verdict.headline})"

    def to_dict(self) -> dict[str, Any]:
        """Everything but points and rows, in JSON's terms."""
        return {
            "task": self.task,
            "model": self.model,
            "sizes": dict(self.sizes),
            "verdict": {"headline": self.verdict.headline, "lines": list(self.verdict.lines)},
            "findings": json_values(self.findings.to_dict()),
            "link": None if self.link is None else json_values(self.link.to_dict()),
            "missing": dict(self.missing),
            "notes": list(self.notes),
        }

    def table(self) -> list[dict[str, Any]]:
        """A row a cell: item, trial, its condition, every metric (nats, parts of 1), tokens, answer and reply."""
        return [dict(row) for row in self.rows]


def task_summary(data: TaskData) -> TaskSummary:
    """Analyse one model's results in a task.

    Raises
    ------
    InputError
        No cell is finished, or outcomes do not fit together.
    """
    if not data.outcomes:
        why = next((f"; the first, {key}: {text}" for key, text in data.missing.items()), "")
        raise InputError(f"no cell of {data.task} on {data.model} is finished{why}")
    findings: Findings
    if data.task == "niah":
        findings = matrix_findings(data.outcomes)
    elif data.task == "filler_control":
        findings = filler_findings(data.outcomes)
    else:
        findings = sweep_findings(data.outcomes)
    link = attention_link(data)
    sizes = {
        "items": len(data.items),
        "cells": len(data.outcomes),
        "trials": most_trials(data.outcomes),
        "missing": len(data.missing),
    }
    return TaskSummary(
        task=data.task,
        model=data.model,
        sizes=sizes,
        verdict=task_verdict(data, findings, link, sizes),
        findings=findings,
        link=link,
        missing=data.missing,
        notes=(*data.about.get("notes", ()), *summary_notes(findings, data.outcomes)),
        points=np.empty((0, 2)) if link is None else link_points(data.outcomes, link.metric, link.predictor),
        rows=tuple(_rows(data)),
    )


def _rows(data: TaskData) -> list[dict[str, Any]]:
    conditions = list(dict.fromkeys(name for outcome in data.outcomes for name in outcome.condition))
    facts = [name for name in _FACTS if any(name in outcome.facts for outcome in data.outcomes)]
    return [
        {
            "item": outcome.item,
            "trial": outcome.trial,
            **{name: outcome.condition.get(name) for name in conditions},
            **{name: outcome.value(name) if name == "margin" else getattr(outcome, name) for name in METRICS},
            **{name: outcome.facts.get(name) for name in facts},
        }
        for outcome in data.outcomes
    ]
