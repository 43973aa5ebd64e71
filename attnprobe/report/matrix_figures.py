"""Figures of a needle in a haystack: the map of a metric, and its lines by depth, one a length."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprobe.errors import InputError
from attnprobe.report.figure_axes import legend_above
from attnprobe.report.needle_figure import Needle
from attnprobe.report.style import LINES, MARKERS, PERCENT, Width, new_figure, say_around, styled
from attnprobe.report.task_notes import about_task
from attnprobe.tasks.matrix_findings import Matrix, MatrixFindings
from attnprobe.tasks.outcome import ACCURACIES
from attnprobe.tasks.task_numbers import TEXTS
from attnprobe.tasks.task_summary import TaskSummary


def needle_of(summary: TaskSummary, metric: str | None = None) -> Needle:
    """The map of one metric.

    Parameters
    ----------
    summary
        Of a needle in a haystack.
    metric
        One of :data:`attnprobe.tasks.outcome.METRICS`; None: the strict accuracy, else the first that was measured.

    Raises
    ------
    InputError
        Another task, or a metric that was not measured.
    """
    matrices = _matrices(summary)
    if metric is None:
        metric = next(iter(matrices))
    if metric not in matrices:
        raise InputError(f"the {metric} was not measured in {summary.model}; choose one of {', '.join(matrices)}")
    one = matrices[metric]
    text = TEXTS[metric]
    highest = 100 if metric in ACCURACIES else None
    return Needle(one.lengths, one.depths, _scaled(one), text.label, text.value_unit, about_task(summary), highest)


@styled
def depths_figure(summary: TaskSummary, *, width: Width = "column") -> Any:
    """Accuracy and log-probability by depth of the needle, one line a length.

    Raises
    ------
    InputError
        Another task than a needle in a haystack.
    """
    matrices = _matrices(summary)
    shown = [matrices[name] for name in ("strict", "logprob", "advantage") if name in matrices]
    shown = shown or list(matrices.values())
    figure = new_figure(width, 0.45 + 1.45 * len(shown))
    panels = list(np.atleast_1d(figure.subplots(len(shown), 1, sharex=True)))
    for axes, one in zip(panels, shown, strict=True):
        # Of many lengths those that can be told apart: the first, the last and some between.
        picked = np.unique(np.linspace(0, len(one.lengths) - 1, min(len(one.lengths), len(LINES))).round().astype(int))
        for place, colour, marker in zip(picked, LINES, MARKERS, strict=False):
            name = f"{one.lengths[place]:,} tokens"
            axes.plot(100 * np.array(one.depths), _scaled(one)[place], f"{marker}-", color=colour, label=name)
        axes.set_ylabel(TEXTS[one.metric].axis)
        if one.metric in ACCURACIES:
            axes.set_ylim(*PERCENT)
        axes.grid(axis="y")
    panels[-1].set_xlabel("depth of the needle (%)")
    legend_above(panels[0])
    figure.align_ylabels(panels)
    say_around(figure, "By depth of the needle, one line a length", f"{about_task(summary)} Means over items.")
    return figure


def _matrices(summary: TaskSummary) -> dict[str, Matrix]:
    findings = summary.findings
    if not isinstance(findings, MatrixFindings) or not findings.matrices:
        raise InputError(f"{summary.task} of {summary.model} is no needle in a haystack with a finished cell")
    return dict(findings.matrices)


def _scaled(one: Matrix) -> np.ndarray:
    return one.values * TEXTS[one.metric].scale
