"""The command ``attnprobe report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnprobe.cli_options import Json, Quiet
from attnprobe.cli_output import leave_if_incomplete, print_json, print_lines, reported
from attnprobe.terminal import say, size, wrapped


def report(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_OR_FOLDER...", help="Run files; folders that measure, study, rope or a task wrote."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page; a summary goes beside it, as .md.")] = Path(
        "report.html"
    ),
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Report a run, a measurement or a study as one page.

    The page works offline and can be mailed: curves with intervals, budget, layers and heads, texts, and how it was
    measured. Several sources are compared on the same axes. Of tasks and of RoPE scalings it has verdicts,
    pictures and tables. Exit status 1 where a part of a folder could not be read or is not measured yet.
    """
    with reported():
        from attnprobe.report.report import write_report

        written = write_report(sources, out)
        if json_:
            print_json(
                {
                    "page": str(written.page),
                    "summary": str(written.summary),
                    "verdicts": {series.name: series.verdict.headline for series in written.series},
                    "faults": list(written.faults),
                }
            )
        else:
            for series in written.series:
                print_lines(wrapped(f"{series.name}: {series.verdict.headline}", indent="  "))
        say(f"{written.page} ({size(written.page.stat().st_size)}) and {written.summary.name}", quiet)
        leave_if_incomplete(written.faults)
