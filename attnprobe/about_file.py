"""What a folder of results says of itself: one JSON file beside its cells, written by the command that made them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from attnprobe.errors import InputError, RunFileError
from attnprobe.grid_folder import GRID, cells_content, read_grid


def read_about(
    file: Path,
    kind: str,
    schema: int,
    check: Callable[[dict[str, Any]], object],
    keys: Callable[[dict[str, Any]], Mapping[str, Iterable[str]]],
) -> dict[str, Any]:
    """What the file says, checked as far as reading the cells beside it goes by it.

    Parameters
    ----------
    file
        In the folder of the results.
    kind
        Of results: ``study``, ``task`` or another.
    schema
        The newest that is read.
    check
        Raises ValueError, KeyError or TypeError unless the content is of the form that is read.
    keys
        Those of the cells that the content names, by the folder of their grid, as seen from the file's.

    Raises
    ------
    InputError
        There is no such file, it cannot be read, or it was written by a newer version.
    RunFileError
        It is damaged, or does not belong to the cells.
    """
    rewrite = f"the command of the {kind}, run again, writes it anew"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        is_newer = content["schema"] > schema
        if not is_newer:
            check(content)
    except FileNotFoundError:
        raise InputError(f"{file.parent} holds no {kind}; give the folder that a {kind} was written to") from None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        missing = f"{error} is missing" if isinstance(error, KeyError) else error
        raise RunFileError(f"{file} is damaged: {missing}; {rewrite}") from error
    if is_newer:
        raise InputError(f"{file} was written by a newer attnprobe; upgrade attnprobe")
    for place, named in keys(content).items():
        cells = file.parent / place
        if (cells / GRID).exists():
            grid = read_grid(cells)
            if any(grid[name] != value for name, value in cells_content(named).items()):
                raise RunFileError(f"{file} is damaged: it does not name the cells of {cells / GRID}; {rewrite}")
    return dict(content)
