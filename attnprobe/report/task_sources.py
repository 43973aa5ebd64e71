"""Results of tasks that pages and pictures are made of, read from folders."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from attnprobe.errors import InputError
from attnprobe.report.result_page import ResultSeries
from attnprobe.report.sources import read_each
from attnprobe.report.task_facts import facts_table, replies_tables
from attnprobe.report.task_figures import task_drawings
from attnprobe.tasks.task_folder import TaskFolder, task_parts
from attnprobe.tasks.task_summary import TaskSummary, task_summary
from attnprobe.tasks.task_tables import task_tables
from attnprobe.told import Table


def read_tasks(paths: Sequence[Path], faults: list[str]) -> list[ResultSeries]:
    """All results of tasks at paths, a model each; what is damaged beside others that are not goes to ``faults``.

    Raises
    ------
    InputError
        A path without a task.
    RunFileError
        Nothing can be read.
    """

    def read(name: str, part: Path) -> ResultSeries:
        data = TaskFolder.at(part).load()
        return _series(f"{data.task} of {name}", task_summary(data), facts_table(data.about))

    return read_each([part for path in paths for part in task_parts(path)], read, faults)


def _series(name: str, summary: TaskSummary, facts: Table) -> ResultSeries:
    return ResultSeries(
        name,
        summary.verdict,
        (*task_tables(summary), *replies_tables(summary.table())),
        facts,
        {drawn: partial(drawing, summary) for drawn, drawing in task_drawings(summary).items()},
        tuple(summary.notes),
        summary.missing,
    )


def read_task(path: Path) -> TaskSummary:
    """The results of one model's task: its folder, or a task's folder that holds one model.

    Raises
    ------
    InputError
        No task, or several models.
    RunFileError
        A damaged file.
    """
    parts = task_parts(path)
    if not parts:
        raise InputError(f"{path} holds no task; give the folder that needle, niah, filler or run wrote (out)")
    if len(parts) > 1:
        raise InputError(
            f"{path} holds {len(parts)} models: {', '.join(part.name for part in parts)}; give the folder of one"
        )
    return task_summary(TaskFolder.at(parts[0]).load())
