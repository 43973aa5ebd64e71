"""What a figure is drawn from, read from files and folders."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from attnprobe.errors import InputError
from attnprobe.report.figure_kinds import TASKS_OF
from attnprobe.report.figures import known_kind
from attnprobe.report.matrix_figures import needle_of
from attnprobe.report.needle_figure import Needle
from attnprobe.report.rope_sources import rope_for
from attnprobe.report.sources import Loaded, Runs, StudyOfModel, read_sources
from attnprobe.report.task_sources import read_task
from attnprobe.tasks.task_summary import TaskSummary


def read_for(
    kind: str,
    paths: Sequence[Path],
    faults: list[str],
    labels: Sequence[str] | None = None,
    metric: str | None = None,
) -> Any:
    """The source of a figure of some kind; of runs in a folder, one is held at a time.

    Parameters
    ----------
    kind
        One of :data:`attnprobe.report.figures.KINDS`.
    paths
        Run files, folders that measure or study wrote; for a needle one JSON file with ``lengths``, ``depths``,
        ``values``, ``label`` and ``unit``, as of :class:`attnprobe.report.needle_figure.Needle`, or the folder of a
        needle in a haystack; for kinds of tasks the folder of one; for scalings that of a comparison.
    faults
        Takes what is damaged in a folder that has more, as runs are read.
    labels
        Names of what is compared, in the order of the paths; None for those of the files and folders.
    metric
        Of the folder of a needle in a haystack; None for the strict accuracy.

    Raises
    ------
    InputError
        Files that are something else, or not what the kind is drawn from; labels that are not one for each.
    """
    takes = known_kind(kind).takes
    if labels and takes != "several":
        raise InputError(f'a figure of kind "{kind}" has no lines to label; leave out --label, which is for "compare"')
    is_folder = len(paths) == 1 and paths[0].is_dir()
    if metric is not None and not (takes == "needle" and is_folder):
        raise InputError(f'--metric {metric}: only a "needle" of the folder of a niah task has metrics; leave it out')
    if takes in ("needle", "task", "rope"):
        if len(paths) != 1:
            raise InputError(f'{len(paths)} files or folders; a figure of kind "{kind}" is drawn from one')
        if takes == "rope":
            return rope_for(paths[0], faults)
        if takes == "task":
            return _task_for(kind, paths[0])
        return needle_of(_task_for(kind, paths[0]), metric) if is_folder else _needle(paths[0])
    sources = read_sources(paths, faults)
    if takes == "several":
        names = _names([one.name for one in sources], labels)
        return {
            name: one.study if isinstance(one, StudyOfModel) else one.read(faults)
            for name, one in zip(names, sources, strict=True)
        }
    studies = [one for one in sources if isinstance(one, StudyOfModel)]
    if takes == "run":
        if studies or sum(len(one.files) for one in sources if isinstance(one, Runs)) != 1:
            raise InputError(f'a figure of kind "{kind}" is drawn from one run; give one run file (.safetensors)')
        return next(_runs(sources, faults)).run
    if not studies:
        return _runs(sources, faults)
    if len(sources) > 1:
        raise InputError(
            f'a figure of kind "{kind}" is drawn from one study of one model or from runs, but {len(sources)} were '
            f'given: {", ".join(one.name for one in sources)}; give one, or draw the kind "compare"'
        )
    return studies[0].study


def _task_for(kind: str, path: Path) -> TaskSummary:
    summary = read_task(path)
    if summary.task not in TASKS_OF[kind]:
        fitting = ", ".join(name for name, tasks in TASKS_OF.items() if summary.task in tasks)
        raise InputError(
            f'{path} holds a {summary.task} task; a figure of kind "{kind}" is drawn from '
            f"{' or '.join(TASKS_OF[kind])}; of this folder draw {fitting}"
        )
    return summary


def _names(own: Sequence[str], labels: Sequence[str] | None) -> Sequence[str]:
    if not labels:
        return own
    if len(labels) != len(own) or len(set(labels)) != len(labels):
        raise InputError(
            f"--label is given {len(labels)} times ({', '.join(labels)}) for {', '.join(own)}; give one for each, all "
            "different"
        )
    return labels


def _runs(sources: Sequence[Runs | StudyOfModel], faults: list[str]) -> Iterator[Loaded]:
    return chain.from_iterable(one.read(faults) for one in sources if isinstance(one, Runs))


def _needle(path: Path) -> Needle:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        parts = {name: content[name] for name in ("lengths", "depths", "values", "label")}
        return Needle(**parts, unit=content.get("unit", ""))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise InputError(f"{path}: {error}") from error
        raise InputError(
            f"{path} is no needle file ({error}); it has one JSON object with lengths, depths, values [length][depth], "
            "label and unit"
        ) from error
