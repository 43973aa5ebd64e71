"""``attnprobe run`` and ``attnprobe merge``: grids from a config file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnprobe.cli_options import Json, Quiet, RetryFailed
from attnprobe.cli_output import print_json, print_lines, reported
from attnprobe.errors import InputError
from attnprobe.terminal import count, say


def run(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG", help="YAML file.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Replace a value of CONFIG; may be repeated. Paths: from here."
        ),
    ] = None,
    retry_failed: RetryFailed = False,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="Print an example config of a kind (study, niah, ...), with every key, and end."
        ),
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run the grid that a config describes.

    The same command goes on where it was interrupted or killed. Under accelerate launch, its cells are shared out over
    the processes: accelerate launch -m attnprobe run CONFIG.
    """
    with reported(kept="the config's out"):
        from attnprobe.grid_config import load_config, runner_of

        if explain is not None:
            from attnprobe.config_text import config_lines

            print_lines(config_lines(explain))
            return
        if config is None:
            raise InputError("give a CONFIG file to run, or --explain study for an example of one")
        loaded = load_config(config, set_ or ())
        status = runner_of(loaded)(loaded, quiet=quiet, retry_failed=retry_failed, as_json=json_)
        if status:
            raise typer.Exit(status)


def merge(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Folders that one config was run in.")],
    out: Annotated[Path, typer.Option(help="A new folder, for all of it.")],
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Merge folders in which parts of one grid were run.

    For machines without a common disk; processes that share a folder need no merge. Folders of different configs are
    refused. Exit status 1 where cells are missing or have failed.
    """
    with reported():
        from attnprobe.study_merge import merge_folders

        merged = merge_folders(folders, out, quiet)
        if json_:
            print_json(
                {
                    "out": str(out),
                    "cells": merged.n_cells,
                    "done": merged.done,
                    "failed": merged.failed,
                    "missing": merged.missing,
                    "differing": list(merged.differing),
                }
            )
        else:
            parts = f"{merged.done} done, {merged.failed} failed, {merged.missing} missing"
            print_lines([f"{count(merged.n_cells, 'cell')}: {parts}"])
        if merged.differing:
            n, first = len(merged.differing), ", ".join(merged.differing[:3]) + ", ..." * (len(merged.differing) > 3)
            say(f"{count(n, 'file')} not the same in all folders; the first folder's was taken: {first}", quiet)
        if merged.done < merged.n_cells:
            raise typer.Exit(1)
