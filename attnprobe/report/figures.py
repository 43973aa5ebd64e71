"""Every kind of figure by name: one list for Python and for the command."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attnprobe.errors import InputError
from attnprobe.report.compare_figure import compare_figure
from attnprobe.report.curve_figures import curve_figure
from attnprobe.report.figure_kinds import ABOUT
from attnprobe.report.filler_figures import decomposition_figure, fillers_figure
from attnprobe.report.link_figure import link_figure
from attnprobe.report.map_figures import answer_figure, head_figure, layer_figure
from attnprobe.report.matrix_figures import depths_figure
from attnprobe.report.needle_figure import Needle, needle_figure
from attnprobe.report.prompt_figure import prompt_figure
from attnprobe.report.rope_matrix_figure import ROPE_DRAWINGS
from attnprobe.report.scatter_figure import scatter_figure
from attnprobe.report.sink_figure import sink_figure
from attnprobe.report.spectrum_figure import spectrum_figure
from attnprobe.report.style import check_picture, save_figure
from attnprobe.report.sweep_figures import answers_figure, published_figure
from attnprobe.rope_findings import RopeFindings
from attnprobe.run import Run
from attnprobe.study import Study
from attnprobe.tasks.task_summary import TaskSummary

Takes = Literal["measured", "run", "several", "needle", "task", "rope"]
_TAKES: dict[str, str] = {
    "measured": "a Run, several runs, or a Study of one model",
    "run": "one Run",
    "several": "runs and studies by name, in a dict",
    "needle": "a Needle (attnprobe.report.needle_figure)",
    "task": "a TaskSummary (attnprobe.tasks.task_summary)",
    "rope": "RopeFindings (attnprobe.rope_findings)",
}


@dataclass(frozen=True)
class Kind:
    """A kind of figure.

    Parameters
    ----------
    takes
        What it is drawn from.
    draw
        Gives the figure; called with the source and options.
    options
        Names of its options, besides ``width``.
    """

    takes: Takes
    draw: Callable[..., Any]
    options: tuple[str, ...] = ()


KINDS: Mapping[str, Kind] = {
    "curve": Kind("measured", curve_figure, ("layers", "norm")),
    "compare": Kind("several", compare_figure, ("layers",)),
    "layers": Kind("measured", layer_figure),
    "heads": Kind("measured", head_figure, ("layers",)),
    "answer": Kind("run", answer_figure, ("layers",)),
    "prompt": Kind("run", prompt_figure, ("layers",)),
    "distance": Kind("measured", spectrum_figure, ("layers",)),
    "sinks": Kind("measured", sink_figure),
    "needle": Kind("needle", needle_figure),
    "depths": Kind("task", depths_figure),
    "answers": Kind("task", answers_figure),
    "published": Kind("task", published_figure),
    "fillers": Kind("task", fillers_figure),
    "parts": Kind("task", decomposition_figure),
    "link": Kind("task", link_figure),
    "scatter": Kind("task", scatter_figure),
    **{name: Kind("rope", draw) for name, draw in ROPE_DRAWINGS.items()},
}
"""By name; :data:`attnprobe.report.figure_kinds.ABOUT` says what each shows."""


def draw(kind: str, source: Any, path: str | os.PathLike[str], force: bool = False, **options: Any) -> Path:
    """Draw a figure into a PNG, SVG or PDF file.

    Parameters
    ----------
    kind
        One of ``KINDS``.
    source
        What it is drawn from: see the kind's ``takes``.
    path
        The file; its suffix says the format, and its folder is made.
    force
        Write over a file that is there and no picture of attnprobe.
    options
        ``width`` (``"column"``, 3.3 inches, or ``"page"``, 6.9), and what the kind has beside it, e.g. ``layers``.

    Returns
    -------
    Path
        Of the file.

    Raises
    ------
    InputError
        An unknown kind, suffix or option, a file of another origin, a source of another sort, or one that lacks
        what the kind shows.
    """
    one = known_kind(kind)
    check_picture(path, force)
    for option in options:
        if option not in ("width", *one.options):
            raise InputError(f'a figure of kind "{kind}" has no choice of {option}; leave it out')
    if not _is_taken(one, source):
        raise InputError(f'a figure of kind "{kind}" is drawn from {_TAKES[one.takes]}, not from {_named(source)}')
    save_figure(one.draw(source, **options), path)
    return Path(path)


def known_kind(name: str) -> Kind:
    """The kind of a name.

    Raises
    ------
    InputError
        An unknown one.
    """
    if name not in KINDS:
        raise InputError(f'there is no figure of kind "{name}"; choose one of {", ".join(ABOUT)}')
    return KINDS[name]


def _is_taken(kind: Kind, source: Any) -> bool:
    if kind.takes == "needle":
        return isinstance(source, Needle)
    if kind.takes == "task":
        return isinstance(source, TaskSummary)
    if kind.takes == "rope":
        return isinstance(source, RopeFindings)
    if kind.takes == "run":
        return isinstance(source, Run)
    if kind.takes == "several":
        return isinstance(source, Mapping)
    return isinstance(source, Run | Study) or (hasattr(source, "__iter__") and not isinstance(source, Mapping | str))


def _named(source: Any) -> str:
    if isinstance(source, Study):
        return "a Study"
    return "a Run" if isinstance(source, Run) else f"a {type(source).__name__}"
