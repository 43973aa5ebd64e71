"""A grid whose work takes no model, as a program of its own: python -m grid_jobs FOLDER N_CELLS.

GRID_KILL_AT   key of the cell in which the process kills itself with SIGKILL
GRID_WAIT      seconds a cell takes
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from attnprobe.grid import Cell, GridResult, run_cells
from attnprobe.grid_processes import deal

CONFIG = {"kind": "test", "seed": 7, "models": ["a", "b"]}


def cells(n: int) -> list[Cell]:
    """Cells of two groups and varied costs; a short one is never first."""
    return [Cell(f"q{i:03d}", float(1 + (7 * i) % 5), {"number": i}, group=i % 2) for i in range(n)]


def hands(n: int, n_processes: int) -> list[list[str]]:
    """Keys of each process's cells, in order."""
    return [[cell.key for cell in hand] for hand in deal(cells(n), n_processes)]


def do(cell: Cell, relief: int) -> dict[str, Any]:
    """A result that depends on the cell alone."""
    number = cell.work["number"]
    return {"number": number, "third": number / 3, "text": "é\n" * (number % 4)}


def logged(folder: Path, cell: Cell, relief: int) -> dict[str, Any]:
    """Do a cell, and leave a line beside the folder when it is finished."""
    if cell.key == os.environ.get("GRID_KILL_AT"):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(float(os.environ.get("GRID_WAIT", "0")))
    with folder.with_suffix(".log").open("a") as log:
        log.write(f"{cell.key}\n")
    return do(cell, relief)


def run(folder: Path, n: int) -> GridResult:
    """Run the whole grid."""
    return run_cells(folder, CONFIG, cells(n), lambda cell, relief: logged(folder, cell, relief), quiet=False)


if __name__ == "__main__":
    result = run(Path(sys.argv[1]), int(sys.argv[2]))
    print(f"done={result.done} skipped={result.skipped} complete={result.complete}", flush=True)
