"""A comparison of RoPE scalings on disk: what its folder says of itself, and its results read without the model.

<out>/rope.json            the plan of the newest call: what reading the cells takes
<out>/<scaling>/cells/     a grid: grid.json, cells-*.jsonl
<out>/<scaling>/arrays/    one file a cell
<out>/summary.json, table.csv, *.png    the results, made of all that
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnprobe.about_file import read_about
from attnprobe.arguments import fraction, whole_number
from attnprobe.rope_data import RopePlan
from attnprobe.rope_findings import RopeFindings, findings
from attnprobe.rope_needles import text_key
from attnprobe.rope_options import Margins, RopeOptions, scaling_names
from attnprobe.rope_read import folder_of, read_rope_data
from attnprobe.study_folder import write_result

SCHEMA = 1
ABOUT = "rope.json"


def describe(out: Path, plan: RopePlan, asked: Mapping[str, Any]) -> None:
    """Write what reading the cells takes.

    Parameters
    ----------
    out
        The folder of the comparison.
    plan
        What is measured.
    asked
        How the model is run, as JSON values.
    """
    from attnprobe import __version__
    from attnprobe.manifest import package_versions

    content = {
        "schema": SCHEMA,
        "attnprobe": __version__,
        "versions": package_versions(),
        "asked": dict(asked),
        **asdict(plan),
    }
    write_result(out / ABOUT, json.dumps(content, indent=1, allow_nan=False) + "\n")


def rope_about(path: Path) -> dict[str, Any]:
    """What ``rope.json`` in a folder says.

    Raises
    ------
    InputError
        There is none, or it was written by a newer version.
    RunFileError
        It is damaged, or does not belong to the cells.
    """
    return read_about(path / ABOUT, "comparison of RoPE scalings", SCHEMA, _plan_of, _cell_keys)


def read_rope(path: str | os.PathLike[str]) -> RopeFindings:
    """Read and judge what was measured so far, whether that is all or not.

    Raises
    ------
    InputError
        The folder holds no comparison, or nothing was measured.
    RunFileError
        A file is damaged.
    """
    folder = Path(path)
    return findings(read_rope_data(folder, _plan_of(rope_about(folder))))


def _plan_of(content: Mapping[str, Any]) -> RopePlan:
    """The plan that a ``rope.json`` holds; ValueError, KeyError or TypeError where it holds none."""
    model, scalings, options = content["model"], tuple(content["scalings"]), dict(content["options"])
    if not isinstance(model, str) or not isinstance(options["filler"], str):
        raise TypeError("its model or filler is no text")
    if scaling_names(scalings) != scalings:
        raise ValueError("its scalings do not begin with none")
    fraction("level", options["level"])
    options |= {"margins": Margins(**options["margins"])}
    return RopePlan(model, scalings, RopeOptions(**options), whole_number("window", content["window"], 1))


def _cell_keys(content: Mapping[str, Any]) -> dict[str, list[str]]:
    plan = _plan_of(content)
    keys = [text_key(length, number) for number, length in plan.options.places]
    return {f"{folder_of(name)}/cells": keys for name in plan.scalings}
