"""The pictures of a task's results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from attnprobe.report.filler_figures import decomposition_figure, fillers_figure
from attnprobe.report.link_figure import link_figure
from attnprobe.report.matrix_figures import depths_figure, needle_of
from attnprobe.report.needle_figure import needle_figure
from attnprobe.report.scatter_figure import scatter_figure
from attnprobe.report.style import save_figure
from attnprobe.report.sweep_figures import answers_figure, has_published, published_figure
from attnprobe.tasks.filler_findings import FillerFindings
from attnprobe.tasks.matrix_findings import MatrixFindings
from attnprobe.tasks.sweep_findings import SweepFindings
from attnprobe.tasks.task_summary import TaskSummary

Drawing = Callable[[TaskSummary], Any]


def task_drawings(summary: TaskSummary) -> dict[str, Drawing]:
    """What can be drawn of a task's results, by name."""
    findings = summary.findings
    drawings: dict[str, Drawing] = {}
    if isinstance(findings, SweepFindings):
        if findings.accuracy or findings.means:
            drawings["answers"] = answers_figure
        if has_published(summary):
            drawings["published"] = published_figure
    elif isinstance(findings, MatrixFindings):
        for metric in findings.matrices:
            drawings[f"matrix_{metric}"] = partial(_matrix, metric=metric)
        if findings.matrices:
            drawings |= {"depths": depths_figure, "answers": answers_figure}
    else:
        assert isinstance(findings, FillerFindings)
        if any(cell.loss and cell.tokens for cell in findings.cells):
            drawings["fillers"] = fillers_figure
        if findings.decompositions:
            drawings["parts"] = decomposition_figure
    if summary.link is not None:
        drawings["link"] = link_figure
    if len(summary.points):
        drawings["scatter"] = scatter_figure
    return drawings


def _matrix(summary: TaskSummary, metric: str) -> Any:
    return needle_figure(needle_of(summary, metric))


def save_task_figures(summary: TaskSummary, folder: Path) -> list[Path]:
    """Draw every picture of one model's results into a folder, as PNG; gives their paths."""
    paths = []
    for name, drawing in task_drawings(summary).items():
        paths.append(folder / f"{name}.png")
        save_figure(drawing(summary), paths[-1])
    return paths
