"""Figures of a sweep of the evidence: answers and attention by position, and the curve beside published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnprobe.errors import InputError
from attnprobe.report.figure_axes import legend_above, thinned, whiskers
from attnprobe.report.style import (
    BLACK,
    BLUE,
    GREEN,
    LINES,
    MARKERS,
    ORANGE,
    PERCENT,
    WIDTHS,
    Width,
    new_figure,
    say_around,
    styled,
)
from attnprobe.report.task_notes import about_task, bars_note
from attnprobe.tasks.accuracy import PositionAccuracy, PositionCell
from attnprobe.tasks.item_intervals import MIN_ITEMS
from attnprobe.tasks.matrix_findings import MatrixFindings
from attnprobe.tasks.outcome import ConditionValue
from attnprobe.tasks.position_means import PositionMeans
from attnprobe.tasks.sweep_findings import SweepFindings
from attnprobe.tasks.task_numbers import TEXTS
from attnprobe.tasks.task_summary import TaskSummary

_PANEL = 1.35
"""Inches of height of a panel."""
_STRICT: Mapping[str, Any] = {"marker": "o", "color": BLUE}
_LENIENT: Mapping[str, Any] = {
    "marker": "s",
    "color": ORANGE,
    "markersize": 6,
    "markerfacecolor": "none",
    "zorder": 1.9,
}
"""Open and behind the others: both are seen where they are equal."""
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
    is_depth = isinstance(findings, MatrixFindings)
    scale = 100 if is_depth else 1
    figure = new_figure(width, 0.45 + _PANEL * n_panels)
    panels = list(np.atleast_1d(figure.subplots(n_panels, 1, sharex=True)))
    if findings.accuracy:
        _accuracy_panel(panels[0], findings.accuracy, findings.baselines, scale)
    for axes, mean in zip(panels[len(panels) - len(means) :], means, strict=True):
        _mean_panel(axes, mean, scale)
    first = next(iter(findings.accuracy.values()), None)
    positions = _numbers(means[0].positions if first is None else [cell.position for cell in first.cells])
    panels[-1].set_xlabel("depth of the needle (%)" if is_depth else "position of the evidence (0 = first)")
    panels[-1].set_xticks(thinned([scale * position for position in positions], 11))
    figure.align_ylabels(panels)
    notes = [about_task(summary)]
    if "strict" in findings.accuracy:
        notes[0] += _wilson_note(findings.accuracy["strict"].cells, "strict")
    if any(mean.band.low is not None for mean in means):
        notes.append("Bands: 95 %, all positions at once, of the curve's shape, items' levels taken out.")
    if is_depth:
        notes.append("Mean over lengths.")
    title = f"Answer and attention by {'depth' if is_depth else 'position'}"
    say_around(figure, title, " ".join(notes))
    return figure


def _numbers(positions: Sequence[ConditionValue]) -> list[float]:
    return [float(position) for position in positions]  # type: ignore[arg-type]  # those of a sweep are numbers


def _percents(cells: Sequence[PositionCell]) -> list[float]:
    return [np.nan if cell.accuracy is None else 100 * cell.accuracy for cell in cells]


def _wilson_note(cells: Sequence[PositionCell], what: str) -> str:
    clustered = ", items as clusters" if any(cell.clustered is not None for cell in cells) else ""
    return bars_note([cell.interval for cell in cells], f"95 % Wilson of {what}{clustered}")


def _accuracy_panel(
    axes: Any, accuracy: Mapping[str, PositionAccuracy], baselines: Sequence[Any], scale: float
) -> None:
    curves = {name: np.array(_percents(found.cells)) for name, found in accuracy.items()}
    own, *others = curves.values()
    if others and np.array_equal(own, others[0], equal_nan=True):  # one would hide the other
        curves = {" = ".join(curves): own}
    cells = next(iter(accuracy.values())).cells
    x = [scale * place for place in _numbers([cell.position for cell in cells])]
    if "strict" in accuracy:
        whiskers(axes, x, [cell.interval for cell in cells], BLUE, 100, linewidth=1)
    for (name, y), look in zip(curves.items(), (_STRICT, _LENIENT), strict=False):
        axes.plot(x, y, label=name, **look)
    for one in baselines:
        found = one.values.get("strict")
        if one.name != "context" and found is not None and found.estimate is not None:
            style, label = {"closed_book": (":", "closed book"), "oracle": ("--", "evidence alone")}[one.name]
            axes.axhline(100 * found.estimate, color=BLACK, linestyle=style, linewidth=0.8, label=label)
    axes.set_ylabel("replies that are\nright (%)")
    axes.set_ylim(*PERCENT)
    axes.grid(axis="y")
    legend_above(axes)


def _mean_panel(axes: Any, mean: PositionMeans, scale_x: float) -> None:
    scale = TEXTS[mean.metric].scale
    band, colour = mean.band, _COLOURS[mean.metric]
    x = [scale_x * place for place in _numbers(mean.positions)]
    if band.low is not None and band.high is not None:
        axes.fill_between(x, scale * band.low, scale * band.high, color=colour, alpha=0.25, linewidth=0)
    axes.plot(x, scale * band.estimate, "o-", color=colour)
    axes.set_ylabel(TEXTS[mean.metric].axis)
    axes.grid(axis="y")


def has_published(summary: TaskSummary) -> bool:
    """Whether a sweep's accuracy stands beside published curves: of enough items for that."""
    findings = summary.findings
    return isinstance(findings, SweepFindings) and bool(findings.published) and summary.sizes["items"] >= MIN_ITEMS


@styled
def published_figure(summary: TaskSummary, *, width: Width = "column") -> Any:
    """The lenient accuracy by relative position beside published curves.

    Raises
    ------
    InputError
        Where there is no accuracy at two positions or more, or of too few items.
    """
    findings = summary.findings
    if not isinstance(findings, SweepFindings) or not findings.published:
        raise InputError(
            f"{summary.task} has no accuracy at two positions or more, so nothing stands beside published curves"
        )
    if not has_published(summary):
        raise InputError(
            f"{summary.task} of {summary.model} has too few items to stand beside published curves: "
            f"{summary.sizes['items']}, and {MIN_ITEMS} are needed"
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
    places = [place / (findings.documents - 1) for place in _numbers([cell.position for cell in cells])]
    whiskers(axes, places, [cell.interval for cell in cells], BLUE, 100, linewidth=1)
    axes.plot(places, _percents(cells), "o-", color=BLUE, linewidth=2.2, label="yours, lenient")
    axes.set_xlabel("relative position (0 = first document, 1 = last)")
    axes.set_ylabel("accuracy (%)")
    axes.set_ylim(*PERCENT)
    axes.grid(axis="y")
    legend_above(axes, WIDTHS[width] - 0.4, reverse=True)
    why = "; ".join(first.not_comparable)
    source = f"Others: {first.published.source.split(':')[0]}; {first.published.documents} documents."
    note = f"{about_task(summary)}{_wilson_note(cells, 'yours')} {source}" + (
        f" Levels are not comparable: {why}." if why else ""
    )
    say_around(figure, "Beside published curves", note)
    return figure
