"""Merge folders in which parts of studies, tasks or comparisons were run, and write the results of the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnprobe import heads_command, rope_folder
from attnprobe.errors import InputError, RunFileError
from attnprobe.grid_merge import Merged, merge
from attnprobe.rope_command import write_rope_results
from attnprobe.study import Study
from attnprobe.study_command import write_results
from attnprobe.study_folder import ABOUT, SUMMARY, TABLE
from attnprobe.tasks import task_folder
from attnprobe.tasks.task_command import write_task_results
from attnprobe.tasks.task_data import TaskData
from attnprobe.tasks.task_folder import TaskFolder
from attnprobe.terminal import say

_HEADS = (heads_command.SUMMARY, heads_command.TABLE)


def merge_folders(folders: Sequence[str | Path], out: str | Path, quiet: bool = True) -> Merged:
    """Combine folders as :func:`attnprobe.grid_merge.merge` does, but for results, which speak of one folder's cells.

    The summary, table and pictures of a study, a task or a comparison of RoPE scalings are made anew of all cells,
    without a judge's verdicts; those of head scores take the model, and so the command that measured them. Raises as
    that function.
    """
    merged = merge(folders, out, derived=(SUMMARY, TABLE, "*.png", *_HEADS))
    for about, (read, write) in _RESULTS.items():
        for part in sorted(path.parent for path in Path(out).rglob(about)):
            try:
                found = read(part)
            except RunFileError:
                raise
            except InputError as error:
                say(f"no results yet: {error}", quiet)
                continue
            write(found, part, quiet)
    if any(path.name in _HEADS for folder in folders for path in Path(folder).rglob("heads.*")):
        say(f"head scores: the command attnprobe heads with --out {out} writes their results", quiet)
    return merged


def _read_task(part: Path) -> TaskData:
    return TaskFolder.at(part).load()


def _write_study(study: Study, part: Path, quiet: bool) -> None:
    for model in study.models:
        write_results(study, model, part, quiet)


def _write_task(data: TaskData, part: Path, quiet: bool) -> None:
    write_task_results(data, TaskFolder.at(part), quiet=quiet)


_RESULTS: Mapping[str, tuple[Callable[[Path], Any], Callable[[Any, Path, bool], None]]] = {
    ABOUT: (Study.load, _write_study),
    task_folder.ABOUT: (_read_task, _write_task),
    rope_folder.ABOUT: (rope_folder.read_rope, write_rope_results),
}
"""By the file that says what a folder holds: what reads it, and what writes its results."""
