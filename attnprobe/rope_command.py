"""Compare RoPE scalings from the command line or a config: measure, judge, write results, print them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprobe.csv_text import table_csv
from attnprobe.rope_findings import RopeFindings, findings
from attnprobe.rope_options import RopeOptions
from attnprobe.rope_study import measure_scalings
from attnprobe.study_folder import SUMMARY, TABLE, write_result
from attnprobe.tasks.items import read_items
from attnprobe.terminal import say, say_unfinished

if TYPE_CHECKING:
    from attnprobe.rope_config import RopeConfig


def run_rope(
    model: str,
    scalings: Sequence[str],
    options: RopeOptions,
    out: Path,
    *,
    items: Path | None = None,
    loading: Mapping[str, Any] | None = None,
    retry_failed: bool = False,
    quiet: bool = False,
) -> RopeFindings | None:
    """Measure a model under several scalings, and write summary, table and pictures beside the cells.

    Parameters
    ----------
    model, scalings, options, out, loading, retry_failed, quiet
        As in :func:`attnprobe.rope_study.measure_scalings`.
    items
        A file of needles; None for the built-in ones.

    Returns
    -------
    RopeFindings or None
        None where other processes are still measuring: the last one writes the results.

    Raises
    ------
    InputError
        Arguments that do not fit; a folder of another comparison; results that cannot be written.
    """
    data = measure_scalings(
        model, scalings, options, read_items(items), out, loading=loading, retry_failed=retry_failed, quiet=quiet
    )
    if data is None:
        say_unfinished(quiet)
        return None
    found = findings(data)
    write_rope_results(found, out, quiet)
    return found


def write_rope_results(found: RopeFindings, out: Path, quiet: bool = True) -> None:
    """Write summary, table and pictures of a comparison into its folder.

    Raises
    ------
    InputError
        They cannot be written.
    """
    from attnprobe.report.rope_matrix_figure import save_rope_figures

    write_result(out / SUMMARY, json.dumps(found.to_dict(), indent=1, allow_nan=False) + "\n")
    write_result(out / TABLE, table_csv(found.table()))
    pictures = save_rope_figures(found, out)
    say(f"{SUMMARY}, {TABLE}, {', '.join(path.name for path in pictures)} in {out}", quiet)


def run_rope_config(config: RopeConfig, *, quiet: bool, retry_failed: bool, as_json: bool) -> int:
    """Run a comparison as its config says, and print what it found; gives the exit status."""
    found = run_rope(
        config.model,
        config.scalings,
        config.options(),
        config.out,
        items=config.items,
        loading=config.loading,
        retry_failed=retry_failed,
        quiet=quiet,
    )
    return 0 if found is None else print_rope(found, as_json)


def print_rope(found: RopeFindings, as_json: bool) -> int:
    """Print the findings on standard output; gives the exit status: 1 where cells have no result."""
    from attnprobe.cli_output import print_json, print_lines
    from attnprobe.rope_text import rope_lines

    if as_json:
        print_json(found.to_dict())
    else:
        print_lines(rope_lines(found))
    return int(bool(found.data.incomplete))
