"""The cells of a task on one model: checked before any is measured, then measured into the model's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprobe.errors import InputError
from attnprobe.grid import Cell, run_cells
from attnprobe.grid_folder import GRID, grid_content, same_grid
from attnprobe.measuring import options_of, prepare
from attnprobe.prefix_cache import PrefixCache
from attnprobe.run_settings import run_settings
from attnprobe.tasks.cell import CellSpec
from attnprobe.tasks.task_cells import file_name, measured_cell
from attnprobe.tasks.task_data import TaskData
from attnprobe.tasks.task_folder import TaskFolder
from attnprobe.tasks.task_options import Listed, TaskOptions
from attnprobe.tasks.task_order import ordered
from attnprobe.terminal import count, say

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel

_TRIED = 20
"""Items of which a prompt is built before anything is measured, or one where prompts are long: all take minutes."""


def fitted_cells(lm: LanguageModel, options: TaskOptions) -> Listed:
    """The cells of a task for a model, once some have been built and found to fit its window.

    Needs no weights: the model may be on torch's meta device.

    Raises
    ------
    InputError
        A choice cannot be used, a filler is too short or refused, or a prompt does not fit the model.
    """
    listed = options.listed(lm.tokenizer)
    room = options_of({"max_new_tokens": max(options.max_new_tokens, 1), "beyond_window": options.beyond_window})
    for spec in _tried(listed.specs, 1 if options.is_of_lengths else _TRIED):
        cell = spec.build(lm.tokenizer)
        for answer in (None, cell.gold, *([] if cell.foil is None else [cell.foil])):
            try:
                prepare(lm, 0, cell.prompt, answer, room)
            except InputError as error:
                raise InputError(f"{lm.source.name}: {error}") from error
    return listed


def _tried(specs: Sequence[CellSpec], n_items: int) -> list[CellSpec]:
    """The longest cell of the first items, of every filler."""
    longest: dict[tuple[str, object], CellSpec] = {}
    for spec in specs:
        key = spec.item, spec.condition.get("filler")
        if key not in longest or _length(spec) > _length(longest[key]):
            longest[key] = spec
    items = list(dict.fromkeys(item for item, _ in longest))[:n_items]
    return [spec for (item, _), spec in longest.items() if item in items]


def _length(spec: CellSpec) -> float:
    length = spec.condition.get("length")
    return float(length) if isinstance(length, int | float) else 0.0


def measured_task(
    lm: LanguageModel, listed: Listed, options: TaskOptions, out: Path, *, retry_failed: bool, quiet: bool
) -> TaskData | None:
    """Measure every cell that is not done yet; None where other processes still measure some.

    Raises
    ------
    InputError
        The folder is of another task, or cannot be written.
    """
    folder = TaskFolder.open(out, lm.source.name)
    settings = run_settings(lm, "file", 1, {})
    cells = ordered(listed.specs, options.n_documents)
    config = grid_config(lm.source.name, options, {"model": settings})
    if (folder.cells / GRID).exists():  # before anything of it is written over
        same_grid(folder.cells, grid_content(config, [cell.key for cell in cells]), out)
    folder.describe(lm.source.name, options, listed, settings)
    prefix = PrefixCache()

    def do(cell: Cell, relief: int) -> dict[str, Any]:
        result = measured_cell(lm, cell.work, options, prefix, relief)
        folder.store.put(file_name(cell.key), result)
        return result.facts

    items = len({spec.item for spec in listed.specs})
    say(f"{lm.source.name}: {options.task}, {count(len(cells), 'cell')} of {count(items, 'item')}", quiet)
    result = run_cells(folder.cells, config, cells, do, quiet=quiet, retry_failed=retry_failed, name=out)
    return folder.load() if result.complete else None


def grid_config(model: str, options: TaskOptions, asked: dict[str, Any]) -> dict[str, Any]:
    """What two sittings of one task must have in common, as JSON values."""
    choices = {name: value for name, value in options.to_dict().items() if name not in ("source", "beyond_window")}
    return {"kind": "task", "model_name": model, "options": choices, **options.hashes(), **asked}
