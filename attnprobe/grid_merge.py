"""Merge folders in which parts of the same grids were run, e.g. on machines without a common disk."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnprobe.errors import InputError
from attnprobe.grid_folder import GRID, difference, read_grid, write_grid
from attnprobe.grid_records import joined, read_shard, record_line, shard_name, shards
from attnprobe.run_folder import write_text


@dataclass(frozen=True)
class Merged:
    """What a merge found.

    Parameters
    ----------
    n_cells
        Cells of all grids.
    done, failed
        How many of them are done, or have failed.
    left_out
        Other files, by path in the folders, that differ between the folders and so were not taken.
    """

    n_cells: int
    done: int
    failed: int
    left_out: tuple[str, ...]

    @property
    def missing(self) -> int:
        """Cells that no folder has: neither done nor failed."""
        return self.n_cells - self.done - self.failed


def merge(folders: Sequence[str | Path], out: str | Path) -> Merged:
    """Combine folders of the same grid, or folders that hold the same grids in the same places, into a new one.

    Records of a grid end up in one file, one a cell and sorted by key. Files that work left beside them are taken too,
    when they are in one folder only or the same in all that have them. The given folders are not changed.

    Parameters
    ----------
    folders
        What to combine.
    out
        A folder that does not exist yet, or is empty. It can be gone on with like any other.

    Raises
    ------
    InputError
        When a folder holds no grid, two hold grids of different configs or different results of one cell, or ``out``
        holds something or cannot be written.
    """
    sources, out = [Path(folder) for folder in folders], Path(out)
    inside = [source for source in sources if out.resolve().is_relative_to(source.resolve())]
    if inside:
        raise InputError(f"{out} is inside {inside[0]}, which is to be merged; give a folder elsewhere")
    grids: dict[Path, list[Path]] = {}
    for source in sources:
        found = sorted(path.parent.relative_to(source) for path in source.rglob(GRID))
        if not found:
            raise InputError(f"{source} holds no grid ({GRID} is missing); give folders that grids were run in")
        for place in found:
            grids.setdefault(place, []).append(source / place)
    if not grids:
        raise InputError("there is nothing to merge; give the folders that a grid was run in")
    contents = {place: _common(found) for place, found in grids.items()}
    try:
        records = {
            place: joined((path, record) for one in found for path in shards(one) for record in read_shard(path)[0])
            for place, found in grids.items()
        }
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out} holds something already; give a new folder to merge into")
        left_out = _copy_others(sources, out)
        for place, content in contents.items():
            (out / place).mkdir(parents=True, exist_ok=True)
            lines = [record_line(records[place][key]).decode() for key in sorted(records[place])]
            write_text(out / place / shard_name(0), "".join(lines))
            write_grid(out / place, content)  # last: without it, the folder is no grid
    except OSError as error:
        raise InputError(
            f"{error.filename or out}: {error.strerror or error}; mend that, and merge into a new folder"
        ) from error
    statuses = [record["status"] for known in records.values() for record in known.values()]
    n_cells = sum(content["n_cells"] for content in contents.values())
    return Merged(n_cells, statuses.count("done"), statuses.count("failed"), left_out)


def _common(folders: Sequence[Path]) -> dict[str, Any]:
    """The content of ``grid.json`` for several folders of one grid."""
    contents = [read_grid(folder) for folder in folders]
    for folder, content in zip(folders[1:], contents[1:], strict=True):
        found = difference(contents[0], content, (f"in {folders[0]}", f"in {folder}"))
        if found is not None:
            raise InputError(f"{folders[0]} and {folder} hold different grids: {found}. Merge folders of one config")
    versions = [one for content in contents for one in content["versions"]]
    return {**contents[0], "versions": [one for i, one in enumerate(versions) if one not in versions[:i]]}


def _copy_others(sources: Sequence[Path], out: Path) -> tuple[str, ...]:
    """Copy what is no part of a grid; the files that differ are not copied, and returned."""
    found: dict[Path, list[Path]] = {}
    for source in sources:
        own = {path.parent for path in source.rglob(GRID)}
        records = {path for folder in own for path in (*shards(folder), folder / GRID)}
        for path in sorted(source.rglob("*")):
            if path.is_file() and path not in records and not path.name.startswith("."):
                found.setdefault(path.relative_to(source), []).append(path)
    left_out = []
    for place, paths in sorted(found.items()):
        if all(filecmp.cmp(paths[0], path, shallow=False) for path in paths[1:]):
            (out / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(paths[0], out / place)
        else:
            left_out.append(str(place))
    return tuple(left_out)
