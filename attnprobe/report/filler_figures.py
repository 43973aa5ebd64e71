"""Figures of the filler control: what each filler costs by length, and the loss taken apart."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprobe.errors import InputError
from attnprobe.report.figure_axes import LINE, legend_above, thinned, whiskers
from attnprobe.report.figure_text import shown
from attnprobe.report.style import BLACK, LINES, MARKERS, Width, new_figure, say_around, styled
from attnprobe.report.task_notes import about_task, bars_note
from attnprobe.tasks.filler_findings import FillerCell, FillerFindings
from attnprobe.tasks.task_numbers import TEXTS, primary
from attnprobe.tasks.task_summary import TaskSummary

_PANEL = 1.35
"""Inches of height of a panel."""


@styled
def fillers_figure(summary: TaskSummary, *, width: Width = "column") -> Any:
    """What each filler costs by tokens of the prompt, a panel a placement.

    Parameters
    ----------
    summary
        Of a filler control.
    width
        ``column`` (3.3 inches) or ``page`` (6.9).

    Raises
    ------
    InputError
        Another task, or one without a prompt that has filler and an answer.
    """
    findings, metric = _findings(summary)
    cells = [cell for cell in findings.cells if metric in cell.loss and cell.tokens is not None]
    placements = list(dict.fromkeys(cell.placement for cell in cells))
    fillers = list(dict.fromkeys(cell.filler for cell in cells))
    figure = new_figure(width, 0.45 + _PANEL * len(placements))
    panels = list(np.atleast_1d(figure.subplots(len(placements), 1, sharex=True, sharey=True)))
    for axes, placement in zip(panels, placements, strict=True):
        for number, filler in enumerate(fillers):
            own = [cell for cell in cells if (cell.placement, cell.filler) == (placement, filler)]
            _line(axes, own, metric, str(filler), number, len(fillers))
        axes.axhline(0, color=BLACK, linewidth=0.8)
        axes.set_ylabel(f"filler {placement}:\nlost ({TEXTS[metric].unit})")
        axes.grid(axis="y")
    panels[-1].set_xscale("log", base=2)
    ticks = thinned(sorted({round(cell.tokens) for cell in cells if cell.tokens is not None}), 6)
    panels[-1].set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    panels[-1].minorticks_off()
    panels[-1].set_xlabel("tokens of the prompt")
    legend_above(panels[0])
    losses = [cell.loss[metric] for cell in cells]
    note = f"{about_task(summary)} Without filler less with it, within items.{bars_note(losses)}"
    say_around(figure, f"What filler costs: {TEXTS[metric].name}", note)
    return figure


def _line(axes: Any, cells: list[FillerCell], metric: str, name: str, number: int, of: int) -> None:
    """One filler; lines stand beside each other a little, so that their bars can be told apart."""
    shift = 2 ** (0.05 * (number - (of - 1) / 2))
    x = [shift * cell.tokens for cell in cells if cell.tokens is not None]
    scale = TEXTS[metric].scale
    colour, marker = LINES[number % len(LINES)], MARKERS[number % len(MARKERS)]
    losses = [cell.loss[metric] for cell in cells]
    whiskers(axes, x, losses, colour, scale, linewidth=1)
    y = [np.nan if loss.estimate is None else scale * loss.estimate for loss in losses]
    axes.plot(x, y, f"{marker}-", color=colour, label=shown(name, f"filler {number}"))


@styled
def decomposition_figure(summary: TaskSummary, *, width: Width = "column") -> Any:
    """The loss taken apart: what the length costs, the varied content, and the likeness to the evidence.

    Raises
    ------
    InputError
        Another task, or a control that lacks a kind of filler.
    """
    findings, _ = _findings(summary)
    metric = primary(findings.decompositions)
    if metric is None:
        raise InputError("; ".join(findings.notes) or "the control lacks a kind of filler, so nothing is taken apart")
    losses = findings.decompositions[metric].losses
    names = [one.name for one in losses[0].components]
    figure = new_figure(width, 0.75 + 4.2 * LINE * len(losses))
    axes = figure.add_subplot()
    scale = TEXTS[metric].scale
    rows = np.arange(len(losses))[::-1]
    for number, name in enumerate(names):
        colour, marker = LINES[number], MARKERS[number]
        for row, loss in zip(rows, losses, strict=True):
            found, y = loss.components[number].loss, row + 0.26 * (1 - number)
            whiskers(axes, [y], [found], colour, scale, across=True, linewidth=1)
            if found.estimate is not None:
                label = name if row == rows[0] else None
                axes.plot([scale * found.estimate], [y], marker, color=colour, label=label)
    axes.axvline(0, color=BLACK, linewidth=0.8)
    axes.set_yticks(rows, [f"{loss.placement},\n{loss.length:,}" for loss in losses])
    axes.set_xlabel(f"{TEXTS[metric].name} lost ({TEXTS[metric].unit})")
    axes.grid(axis="x")
    if axes.get_legend_handles_labels()[0]:
        legend_above(axes)
    bars = bars_note([one.loss for loss in losses for one in loss.components])
    note = (
        f"{about_task(summary)} By place of the filler and tokens. Length: repeated filler against none; content: "
        f"varied against repeated; interference: same domain against varied.{bars}"
    )
    say_around(figure, "What filler costs, taken apart", note)
    return figure


def _findings(summary: TaskSummary) -> tuple[FillerFindings, str]:
    findings = summary.findings
    if not isinstance(findings, FillerFindings):
        raise InputError(f"{summary.task} is no filler control; draw it as answers")
    metric = primary([name for cell in findings.cells for name in cell.loss])
    if metric is None:
        raise InputError(f"{summary.model} has no answer with filler and without, so there is nothing to draw")
    return findings, metric
