"""Run a grid of cells so that nothing is lost and nothing repeated, on one process or many.

A cell is one piece of work with a name. Each finished cell is one line on the disk; a run that was killed goes on with
the cells that have none. Under ``accelerate launch`` the cells are shared out over the processes.
"""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnprobe.errors import CaptureError, InputError
from attnprobe.grid_folder import grid_content, opened_grid
from attnprobe.grid_merge import Merged, merge
from attnprobe.grid_processes import Cell, deal, is_out_of_memory, release_memory, this_process
from attnprobe.grid_records import Record, opened_shard, read_cells, record_line
from attnprobe.run_folder import UNWRITABLE
from attnprobe.terminal import count, duration, say, time_left, work_bar

__all__ = ["Cell", "GridResult", "Merged", "merge", "read_cells", "run_cells"]

TRIES = 3
"""How often a cell is tried that runs out of memory."""

_LINE_EVERY = 60.0  # seconds between two lines of progress where there is no terminal


@dataclass(frozen=True)
class GridResult:
    """What one process did in a grid.

    Parameters
    ----------
    done
        Cells done now.
    failed
        Key and error of this process's cells that have failed, now or earlier, and are not done.
    skipped
        Cells left alone, as they were done or had failed earlier.
    seconds
        Wall-clock time of the whole call.
    complete
        Whether every cell of the grid, of all processes, was done or had failed when this process ended. The process
        that ends last always sees that; two that end together may both do.
    """

    done: int
    failed: tuple[tuple[str, str], ...]
    skipped: int
    seconds: float
    complete: bool


def run_cells(
    folder: str | Path,
    config: Mapping[str, Any],
    cells: Sequence[Cell],
    do: Callable[[Cell, int], Mapping[str, Any]],
    *,
    quiet: bool,
    retry_failed: bool = False,
    name: str | Path | None = None,
) -> GridResult:
    """Do every cell that is not done yet, and keep each result as soon as it is there.

    Parameters
    ----------
    folder
        Where the records go; made if need be. A second call goes on from what is there.
    config
        What the results depend on, as JSON values; a folder of another config is refused. A value ``seed`` is also
        named apart in ``grid.json``.
    cells
        All cells of the grid, in the same order in every process and every sitting.
    do
        ``do(cell, relief)`` gives the cell's result, an object that JSON can hold (no NaN). ``relief`` counts how
        often this cell ran out of memory just before; each time, ``do`` should use less, e.g. half the batch.
    quiet
        Say nothing and show no progress.
    retry_failed
        Try cells again that failed earlier.
    name
        What errors call the folder where the user gave another one, in which this one lies; None: its path.

    Returns
    -------
    GridResult
        Of this process. An error in a cell is recorded and the others go on; after running out of memory a cell
        is tried anew, ``TRIES`` times in all. Interrupts, ``SystemExit`` and a disk that cannot be written end the
        run and record nothing. A run that goes on gives what one that was not interrupted gives, but for rounding:
        where ``do`` goes on from the cell before, the first cell of a sitting has none.

    Raises
    ------
    InputError
        When two cells have one key or a cost is no number, the folder is of another grid, in use, damaged, or cannot
        be written, also by ``do``.
    """
    begin = time.monotonic()
    _check_cells(cells)
    folder = Path(folder)
    process, n_processes = this_process()
    content = grid_content(config, (cell.key for cell in cells))
    with (
        opened_grid(folder, content, process, n_processes, quiet, name) as shard,
        opened_shard(shard) as append,
    ):
        before = read_cells(folder)
        mine = deal(cells, n_processes)[process]
        todo = [cell for cell in mine if _is_open(before.get(cell.key), retry_failed)]
        _say_start(mine, todo, before, process, n_processes, quiet)
        failed = {cell.key: before[cell.key]["error"] for cell in mine if _has_failed(before.get(cell.key))}
        done = 0
        with _progress(cells, mine, todo, before, quiet or process > 0) as advance:
            for cell in todo:
                record = _record(cell, do, process, quiet)
                append(record)
                if record["status"] == "failed":
                    failed[cell.key] = record["error"]
                    say(f"{cell.key} failed: {record['error']}", quiet)
                else:
                    failed.pop(cell.key, None)
                    done += 1
                advance(cell)
        after = read_cells(folder)
    seconds = time.monotonic() - begin
    if todo:
        say(f"{count(done, 'cell')} done in {duration(seconds)}, {len(todo) - done} failed", quiet)
    return GridResult(
        done=done,
        failed=tuple((cell.key, failed[cell.key]) for cell in mine if cell.key in failed),
        skipped=len(mine) - len(todo),
        seconds=seconds,
        complete=all(cell.key in after for cell in cells),
    )


def _check_cells(cells: Sequence[Cell]) -> None:
    known: set[str] = set()
    for cell in cells:
        if cell.key in known:
            raise InputError(f'two cells have the key "{cell.key}"; give each its own')
        if not (math.isfinite(cell.cost) and cell.cost >= 0):
            raise InputError(f'cell "{cell.key}" has the cost {cell.cost}; give a number of at least 0')
        known.add(cell.key)


def _has_failed(record: Record | None) -> bool:
    return record is not None and record["status"] == "failed"


def _is_done(record: Record | None) -> bool:
    return record is not None and record["status"] == "done"


def _is_open(record: Record | None, retry_failed: bool) -> bool:
    return record is None or (retry_failed and _has_failed(record))


def _say_start(
    mine: Sequence[Cell],
    todo: Sequence[Cell],
    before: Mapping[str, Record],
    process: int,
    n_processes: int,
    quiet: bool,
) -> None:
    to_do = {cell.key for cell in todo}
    left_alone = [before[cell.key]["status"] for cell in mine if cell.key not in to_do]
    parts = [f"{count(len(todo), 'cell')} to do"]
    if "done" in left_alone:
        parts.append(f"{left_alone.count('done')} done before")
    if "failed" in left_alone:
        parts.append(f"{left_alone.count('failed')} failed before and left alone (--retry-failed tries them again)")
    who = f"process {process} of {n_processes}: " if n_processes > 1 else ""
    say(who + ", ".join(parts), quiet)


@contextmanager
def _progress(
    cells: Sequence[Cell], mine: Sequence[Cell], todo: Sequence[Cell], before: Mapping[str, Record], quiet: bool
) -> Iterator[Callable[[Cell], None]]:
    """Show how much of this process's work is done and how long the rest will take; yields ``advance(cell)``.

    The pace is seconds a unit of predicted cost, over the cells done now and those done in earlier sittings.
    """
    timed = [(cell.cost, before[cell.key]["seconds"]) for cell in cells if _is_done(before.get(cell.key))]
    cost, seconds = (sum(values) for values in zip(*timed, strict=True)) if timed else (0.0, 0.0)
    work = sum(cell.cost for cell in mine) - sum(cell.cost for cell in todo)
    total = work + sum(cell.cost for cell in todo)
    spent = work * seconds / cost if cost else 0.0
    n_done, begin = len(mine) - len(todo), time.monotonic()
    last_line = begin
    with work_bar("cells", total, quiet, spent) as show:
        show(work, f"{n_done}/{len(mine)}")

        def advance(cell: Cell) -> None:
            nonlocal work, n_done, last_line
            work, n_done, now = work + cell.cost, n_done + 1, time.monotonic()
            show(work, f"{n_done}/{len(mine)}")
            if not sys.stderr.isatty() and now - last_line >= _LINE_EVERY:
                last_line = now
                say(f"{n_done} of {count(len(mine), 'cell')}, {time_left(work, total, spent + now - begin)}", quiet)

        yield advance


def _record(cell: Cell, do: Callable[[Cell, int], Mapping[str, Any]], process: int, quiet: bool) -> Record:
    """Do a cell; its record, done or failed."""
    begin = time.monotonic()
    for relief in range(TRIES):
        outcome, is_memory = _attempt(cell, do, relief)
        # Only here, outside of the handler, is what the error's traceback held free.
        if is_memory:
            release_memory()
            if relief + 1 < TRIES:
                say(f"{cell.key}: out of memory; once more with less (relief {relief + 1})", quiet)
                continue
        break
    seconds = round(time.monotonic() - begin, 6)
    return {"key": cell.key, **outcome, "seconds": seconds, "process": process, "relief": relief}


def _attempt(cell: Cell, do: Callable[[Cell, int], Mapping[str, Any]], relief: int) -> tuple[Record, bool]:
    """One try: the outcome as part of a record, and whether there was no memory for it."""
    try:
        outcome = {"status": "done", "result": dict(do(cell, relief))}
        record_line(outcome)  # a result that cannot be kept is this cell's failure, not the grid's
        return outcome, False
    except Exception as error:
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            raise  # the disk's failure, not this cell's: the next ones would have it, too
        outcome = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
        if not isinstance(error, (InputError, CaptureError)):
            outcome["traceback"] = "".join(traceback.format_exception(error))
        return outcome, is_out_of_memory(error)
