"""The command ``attnprobe figure``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from attnprobe.cli_options import Quiet
from attnprobe.cli_output import leave_if_incomplete, reported
from attnprobe.report.figure_kinds import ABOUT, EXAMPLES, NEEDLE_FILE
from attnprobe.terminal import say

HELP = "\n".join(
    [
        "Draw a figure for print or slides: PNG, SVG or PDF.",
        "",
        "\b",
        "Of KIND, each with an example",
        *(
            line
            for name, about in ABOUT.items()
            for line in (f"  {name:16}{about}", f"            attnprobe figure {EXAMPLES[name]}")
        ),
        "",
        "curve, layers, heads, distance and sinks are drawn from a run, from runs with as many documents each (their "
        "mean) or from a study; answer and prompt from one run; compare from two to seven of them. depths are drawn "
        "from the folder of a niah task, answers also from a needle or multi-document one, published from the latter, "
        "fillers and parts from a filler control, link from any task; scalings, scaling-needles and scaling-losses "
        "from the folder of a comparison of RoPE scalings.",
        "",
        "\b",
        "needle is drawn from the folder of a niah task, see --metric, or from a JSON",
        "file; its values have a row for each length, null where nothing was measured,",
        "and its depths go from 0 (start) to 1 (end):",
        *(f"  {line}" for line in NEEDLE_FILE),
        "",
        "Exit status 1 where a part of a folder could not be read, which is then named; the rest is drawn.",
    ]
)


def figure(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="What to draw, of the list above.")],
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_OR_FOLDER...", help="Run files (.safetensors); folders of study, rope, a task, ..."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The picture: a name with .png, .svg or .pdf.")],
    layer: Annotated[list[int] | None, typer.Option(help="This layer only; may be repeated. [default: all]")] = None,
    norm: Annotated[
        str | None,
        typer.Option(help="Of a curve of runs: share, log_share, mass, density or advantage. [default: share]"),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Name of a line of compare; one for each, in their order. [default: as the files]"),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Of needle from a niah folder: strict, lenient, logprob, ... [default: strict]"),
    ] = None,
    width: Annotated[
        Literal["column", "page"], typer.Option(help="3.3 inches, for a column of two, or 6.9, for a page.")
    ] = "column",
    force: Annotated[bool, typer.Option("--force", help="Write over a file that attnprobe did not make.")] = False,
    quiet: Quiet = False,
) -> None:
    """Draw a figure; ``HELP`` is what the command line shows."""
    with reported():
        from attnprobe.report.figure_sources import read_for
        from attnprobe.report.figures import draw, known_kind
        from attnprobe.report.style import check_picture

        known_kind(kind)
        check_picture(out, force)
        faults: list[str] = []
        options: dict[str, Any] = {"layers": layer} if layer else {}
        if norm is not None:
            options["norm"] = norm
        draw(kind, read_for(kind, sources, faults, label, metric), out, force, width=width, **options)
        say(f"figure in {out}", quiet)
        leave_if_incomplete(faults)
