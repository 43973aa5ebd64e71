"""Run a task from the command line or a config: build its cells, measure them on each model, write the results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprobe.csv_text import table_csv
from attnprobe.errors import InputError
from attnprobe.grid_processes import this_process
from attnprobe.several_models import check_each, in_turn
from attnprobe.study_folder import folder_name
from attnprobe.tasks.task_data import TaskData
from attnprobe.tasks.task_folder import SUMMARY, TABLE, TaskFolder
from attnprobe.tasks.task_input import TaskInput
from attnprobe.tasks.task_judge import Judged, check_judging, judged
from attnprobe.tasks.task_observing import observed_task
from attnprobe.tasks.task_options import Listed, TaskOptions
from attnprobe.terminal import count, percent, say, speaks_unicode

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel
    from attnprobe.tasks.task_config import TaskConfig
    from attnprobe.tasks.task_summary import TaskSummary


@dataclass(frozen=True, eq=False)
class TaskResult:
    """What came of a task on one model."""

    data: TaskData
    summary: TaskSummary
    work: Mapping[str, Any]
    judged: Judged | None

    def to_dict(self) -> dict[str, Any]:
        """The summary with what the cells took and what a judge said, as JSON values."""
        more = {} if self.judged is None else {"judge": self.judged.to_dict()}
        return {**self.summary.to_dict(), "work": dict(self.work), **more}

    def to_json(self) -> str:
        """What ``summary.json`` holds."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"

    def lines(self) -> list[str]:
        """The same in words."""
        from attnprobe.tasks.task_text import task_lines

        fed, asked = self.work["fed_tokens"], self.work["prompt_tokens"]
        saved = [] if not fed else [f"Fed {fed:,} of {asked:,} prompt tokens ({percent(fed / asked, 0)})."]
        return [*task_lines(self.summary, speaks_unicode()), *saved, *(self.judged.lines() if self.judged else [])]


def run_task(
    given: TaskInput, options: TaskOptions, out: Path, *, retry_failed: bool = False, quiet: bool = False
) -> dict[str, TaskResult] | None:
    """Do a task on every model, one loaded at a time, and write summary, table and pictures beside the cells.

    Each model's results are written as soon as it is done.

    Returns
    -------
    dict or None
        By model. None where other processes are still measuring: the last one writes the results.

    Raises
    ------
    InputError
        Choices that do not fit; a model that cannot be measured, before any is as far as that shows without its
        weights; a server that does not answer; a folder of another task.
    """
    if (given.endpoint is None) == (not given.models):
        raise InputError("give models to measure, or an endpoint to observe; one of the two")
    check_judging(given.judge, options)
    if given.endpoint is not None:
        data = observed_task(given.endpoint, given.tokenizer, options, out, retry_failed=retry_failed, quiet=quiet)
        return {data.model: _finished(data, given, out, quiet)}
    return _measured_models(given, options, out, retry_failed, quiet)


def _measured_models(
    given: TaskInput, options: TaskOptions, out: Path, retry_failed: bool, quiet: bool
) -> dict[str, TaskResult] | None:
    from attnprobe.tasks.task_measuring import fitted_cells, measured_task

    options.listed(None)  # what can be told without a tokenizer is said before weights are loaded
    check_each(given.models, given.loading, lambda shape: fitted_cells(shape, options))
    said: list[str] = []

    def measure(lm: LanguageModel) -> TaskData | None:
        listed = fitted_cells(lm, options)
        if not said:
            _say_notes(listed, quiet)
        said.append(lm.source.name)
        return measured_task(lm, listed, options, out, retry_failed=retry_failed, quiet=quiet)

    def ended(path: Path) -> TaskData | None:
        folder = TaskFolder.at(path)
        return folder.load() if folder.is_complete else None

    return in_turn(
        given.models, given.loading, out, measure, lambda data: _finished(data, given, out, quiet), ended, quiet
    )


def _say_notes(listed: Listed, quiet: bool) -> None:
    if this_process()[0] == 0:
        for note in listed.notes:
            say(f"note: {note}", quiet)


def _finished(data: TaskData, given: TaskInput, out: Path, quiet: bool) -> TaskResult:
    """Write the results, and have replies judged where that was asked for."""
    folder = TaskFolder.at(out / folder_name(data.model))
    result = write_task_results(data, folder, quiet)
    if given.judge is None:
        return result
    try:
        verdicts = judged(data, given.judge, folder.path, quiet)
    except InputError as error:
        raise InputError(f"{error}; the results without a judge are in {folder.path}") from error
    result = replace(result, judged=verdicts)
    folder.write(SUMMARY, result.to_json())
    return result


def write_task_results(data: TaskData, folder: TaskFolder, quiet: bool = True) -> TaskResult:
    """Write the summary, the table and the pictures of one model's cells beside them."""
    from attnprobe.report.task_figures import save_task_figures
    from attnprobe.tasks.task_summary import task_summary

    result = TaskResult(data, task_summary(data), folder.work(), None)
    folder.write(SUMMARY, result.to_json())
    folder.write(TABLE, table_csv(result.summary.table()))
    pictures = save_task_figures(result.summary, folder.path)
    say(f"{SUMMARY}, {TABLE}, {', '.join(path.name for path in pictures)} in {folder.path}", quiet)
    return result


def run_task_config(config: TaskConfig, *, quiet: bool, retry_failed: bool, as_json: bool) -> int:
    """Run a task as its config says, and print what it found; gives the exit status."""
    results = run_task(config.given(), config.options(), config.out, retry_failed=retry_failed, quiet=quiet)
    return 0 if results is None else print_results(results, as_json)


def print_results(results: Mapping[str, TaskResult], as_json: bool) -> int:
    """Print the findings on standard output; gives the exit status: 1 where cells have failed."""
    from attnprobe.cli_output import print_json, print_lines

    if as_json:
        print_json({name: result.to_dict() for name, result in results.items()})
    else:
        for result in results.values():
            print_lines([*result.lines(), ""])
    for name, result in results.items():
        if missing := result.data.missing:
            key, why = next(iter(missing.items()))
            say(f"{name}: {count(len(missing), 'cell')} failed, e.g. {key}: {why}")
    return int(any(result.data.missing for result in results.values()))
