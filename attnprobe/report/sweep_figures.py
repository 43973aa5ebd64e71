"""Figures of a sweep of the evidence: answers and attention by position, and the curve beside published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnprobe.errors import InputError
from attnprobe.report.figure_axes import legend_above
from attnprobe.report.style import (
    BLACK,
    BLUE,
    GREEN,
    LINES,
    MARKERS,
    ORANGE,
    WIDTHS,
    Width,
    new_figure,
    say_around,
    styled,
)
from attnprobe.report.task_notes import about_task
from attnprobe.tasks.accuracy import PositionAccuracy
from attnprobe.tasks.matrix_findings import MatrixFindings
from attnprobe.tasks.position_means import PositionMeans
from attnprobe.tasks.sweep_findings import SweepFindings
from attnprobe.tasks.task_numbers import TEXTS
from attnprobe.tasks.task_summary import TaskSummary

_PANEL = 1.35
"""Inches of height of a panel."""
_COLOURS = {"logprob": BLUE, "mass": GREEN, "advantage": GREEN}


@styled
def answers_figure(summary: TaskSummary, *, width: Width = "column") -> Any:
    """Accuracy, log-probability and attention of the evidence by its position, or depth, one above the other.

    Parameters
    ----------
    summary
        Of a sweep, or of a length by depth matrix, which is averaged over lengths.
    width
        ``column`` (3.3 inches) or ``page`` (6.9).

    Raises
    ------
    InputError
        For another task, or where nothing was measured by position.
    """
    findings = summary.findings
    if not isinstance(findings, SweepFindings | MatrixFindings):
        raise InputError(f"{summary.task} moves no evidence; draw it as fillers")
    attention = "advantage" if "advantage" in findings.means else "mass"
    means = [findings.means[name] for name in ("logprob", attention) if name in findings.means]
    n_panels = bool(findings.accuracy) + len(means)
    if not n_panels:
        raise InputError("no cell with evidence has an answer or a mass, so there is nothing to draw by position")
    figure = new_figure(width, 0.45 + _PANEL * n_panels)
    panels = list(np.atleast_1d(figure.subplots(n_panels, 1, sharex=True)))
    if findings.accuracy:
        _accuracy_panel(panels[0], findings.accuracy, findings.baselines)
    for axes, mean in zip(panels[len(panels) - len(means) :], means, strict=True):
        _mean_panel(axes, mean)
    first = next(iter(findings.accuracy.values()), None)
    positions = [cell.position for cell in first.cells] if first is not None else list(means[0].positions)
    is_depth = isinstance(findings, MatrixFindings)
    what = "depth of the evidence (0 = start)" if is_depth else "position of the evidence (0 = first)"
    panels[-1].set_xlabel(what)
    panels[-1].set_xticks(_few(positions))
    figure.align_ylabels(panels)
    bars = ""
    if first is not None and any(cell.interval.low is not None for cell in first.cells):
        bars = "Bars: 95 % Wilson" + (", items as clusters." if first.cells[0].clustered else ".")
    notes = [about_task(summary), bars]
    if any(mean.band.low is not None for mean in means):
        notes.append("Bands: 95 %, all positions at once, of the curve's shape, items' levels taken out.")
    if is_depth:
        notes.append("Mean over lengths.")
    title = f"Answer and attention by {'depth' if is_depth else 'position'}"
    say_around(figure, title, " ".join(filter(None, notes)))
    return figure


def _few(positions: Sequence[Any]) -> list[Any]:
    """At most eleven ticks, so that they do not touch at column width."""
    return list(positions)[:: -(-len(positions) // 11)]


def _accuracy_panel(axes: Any, accuracy: Mapping[str, PositionAccuracy], baselines: Sequence[Any]) -> None:
    for (name, found), colour, marker in zip(accuracy.items(), (BLUE, ORANGE), "os", strict=False):
        x = [cell.position for cell in found.cells]
        y = [np.nan if cell.accuracy is None else 100 * cell.accuracy for cell in found.cells]
        if name == "strict":
            for place, cell in zip(x, found.cells, strict=True):
                if cell.interval.low is not None and cell.interval.high is not None:
                    axes.plot([place] * 2, [100 * cell.interval.low, 100 * cell.interval.high], "-", color=colour, lw=1)
        axes.plot(x, y, f"{marker}-", color=colour, label=name)
    for one in baselines:
        found = one.values.get("strict")
        if one.name != "context" and found is not None and found.estimate is not None:
            style, label = {"closed_book": (":", "closed book"), "oracle": ("--", "evidence alone")}[one.name]
            axes.axhline(100 * found.estimate, color=BLACK, linestyle=style, linewidth=0.8, label=label)
    axes.set_ylabel("replies that are\nright (%)")
    axes.set_ylim(-3, 103)
    axes.grid(axis="y")
    legend_above(axes)


def _mean_panel(axes: Any, mean: PositionMeans) -> None:
    scale = TEXTS[mean.metric].scale
    band, colour = mean.band, _COLOURS[mean.metric]
    if band.low is not None and band.high is not None:
        axes.fill_between(mean.positions, scale * band.low, scale * band.high, color=colour, alpha=0.25, linewidth=0)
    axes.plot(mean.positions, scale * band.estimate, "o-", color=colour)
    axes.set_ylabel(TEXTS[mean.metric].axis)
    axes.grid(axis="y")


@styled
def published_figure(summary: TaskSummary, *, width: Width = "column") -> Any:
    """The lenient accuracy by relative position beside published curves.

    Raises
    ------
    InputError
        Where there is no accuracy at two positions or more.
    """
    findings = summary.findings
    if not isinstance(findings, SweepFindings) or not findings.published:
        raise InputError(
            f"{summary.task} has no accuracy at two positions or more, so nothing stands beside published curves"
        )
    figure = new_figure(width, 2.4)
    axes = figure.add_subplot()
    first = findings.published[0]
    for one, colour, marker in zip(findings.published, LINES[1:], MARKERS[1:], strict=False):
        curve = one.published
        y = [100 * value for value in curve.accuracy]
        axes.plot(curve.relative, y, f"{marker}-", color=colour, label=curve.model, linewidth=1, markersize=3)
    cells = findings.accuracy["lenient"].cells
    assert findings.documents is not None
    places = [float(cell.position) / (findings.documents - 1) for cell in cells]  # type: ignore[arg-type]
    own = [np.nan if cell.accuracy is None else 100 * cell.accuracy for cell in cells]
    axes.plot(places, own, "o-", color=BLUE, linewidth=2.2, label="yours, lenient")
    axes.set_xlabel("relative position (0 = first document, 1 = last)")
    axes.set_ylabel("accuracy (%)")
    axes.set_ylim(0, 103)
    axes.grid(axis="y")
    legend_above(axes, WIDTHS[width] - 0.4, reverse=True)
    why = "; ".join(first.not_comparable)
    source = f"Others: {first.published.source.split(':')[0]}; {first.published.documents} documents."
    note = f"{about_task(summary)} {source}" + (f" Levels are not comparable: {why}." if why else "")
    say_around(figure, "Beside published curves", note)
    return figure
