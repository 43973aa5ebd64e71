"""Comparisons of RoPE scalings that pages and pictures are made of, read from folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from attnprobe.errors import InputError
from attnprobe.report.result_page import ResultSeries
from attnprobe.report.rope_facts import frequencies_table, rope_facts_table
from attnprobe.report.rope_matrix_figure import ROPE_DRAWINGS
from attnprobe.report.sources import read_each
from attnprobe.rope_findings import RopeFindings
from attnprobe.rope_folder import ABOUT, read_rope, rope_about
from attnprobe.rope_told import rope_tables, verdict_of, why_no_interval


def is_rope(path: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a comparison of RoPE scalings."""
    return (Path(path) / ABOUT).is_file()


def read_ropes(paths: Sequence[Path], faults: list[str]) -> list[ResultSeries]:
    """All comparisons; what is damaged beside others that are not, or is not whole, goes to ``faults``.

    Raises
    ------
    InputError
        A path twice, or nothing was measured.
    RunFileError
        Nothing can be read.
    """
    found = read_each(paths, lambda name, path: (name, path, rope_for(path, faults)), faults)
    models = [one.data.plan.model for _, _, one in found]
    return [
        _series(f"RoPE scalings of {model}{f' ({name})' if models.count(model) > 1 else ''}", path, one)
        for model, (name, path, one) in zip(models, found, strict=True)
    ]


def rope_for(path: Path, faults: list[str]) -> RopeFindings:
    """The comparison in a folder; what is not measured yet or failed goes to ``faults``.

    Raises
    ------
    InputError
        There is no comparison, or nothing was measured.
    RunFileError
        A damaged file.
    """
    if not is_rope(path):
        raise InputError(f"{path} holds no comparison of RoPE scalings; give the folder that rope or run wrote (out)")
    found = read_rope(path)
    if left := found.data.incomplete:
        plan = found.data.plan
        n = len(plan.scalings) * len(plan.options.places)
        key, why = next(iter(left.items()))
        faults.append(
            f"{path}: {n - len(left)} of {n} cells have a result; the first that has none, {key}: {why}; the command "
            "of the comparison, run again, goes on with it"
        )
    return found


def _series(name: str, path: Path, found: RopeFindings) -> ResultSeries:
    data = found.data
    return ResultSeries(
        name,
        verdict_of(found),
        (*rope_tables(found), frequencies_table(data)),
        rope_facts_table(rope_about(path), data),
        {kind: partial(draw, found, width="page") for kind, draw in ROPE_DRAWINGS.items()},
        (*why_no_interval(found), *data.warnings),
        data.incomplete,
    )
