"""The command ``attnprobe figure``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from attnprobe.cli_options import Quiet
from attnprobe.cli_output import reported
from attnprobe.report.figure_kinds import ABOUT
from attnprobe.terminal import say

HELP = "\n".join(
    [
        "Draw a figure for print or slides: PNG, SVG or PDF.",
        "",
        "\b",
        "Of KIND",
        *(f"  {name:10}{about}" for name, about in ABOUT.items()),
        "",
        "curve, layers, heads, distance and sinks are drawn from a run, from runs with as many documents each (their "
        "mean) or from a study; answer and prompt from one run; compare from two to seven of them; needle from a JSON "
        "file with lengths, depths, values, label and unit.",
    ]
)


def figure(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="What to draw, of the list above.")],
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_OR_STUDY...", help="Run files (.safetensors); folders of measure or study."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The picture: a name with .png, .svg or .pdf.")],
    layer: Annotated[list[int] | None, typer.Option(help="This layer only; may be repeated. [default: all]")] = None,
    norm: Annotated[
        str | None,
        typer.Option(help="Of a curve of runs: share, log_share, mass, density or advantage. [default: share]"),
    ] = None,
    width: Annotated[
        Literal["column", "page"], typer.Option(help="3.3 inches, for a column of two, or 6.9, for a page.")
    ] = "column",
    quiet: Quiet = False,
) -> None:
    """Draw a figure; ``HELP`` is what the command line shows."""
    with reported():
        from attnprobe.report.figure_sources import read_for
        from attnprobe.report.figures import draw, known_kind
        from attnprobe.report.style import check_suffix

        known_kind(kind)
        check_suffix(out)
        faults: list[str] = []
        options: dict[str, Any] = {"layers": layer} if layer else {}
        if norm is not None:
            options["norm"] = norm
        draw(kind, read_for(kind, sources, faults), out, width=width, **options)
        for fault in faults:
            say(f"left out: {fault}")
        say(f"figure in {out}", quiet)
