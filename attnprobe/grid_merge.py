"""Merge folders in which parts of the same grids were run, e.g. on machines without a common disk."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import permutations
from pathlib import Path
from typing import Any

from attnprobe.errors import InputError
from attnprobe.grid_folder import GRID, difference, read_grid, write_grid
from attnprobe.grid_records import SAME, joined, read_shard, record_line, shard_name, shards
from attnprobe.run_folder import write_text

SAME_MASS = 1e-6
"""Absolute difference up to which two masses are the same; rounding in another order changes them by 5e-7 at most."""


@dataclass(frozen=True)
class Merged:
    """What a merge found.

    Parameters
    ----------
    n_cells
        Cells of all grids.
    done, failed
        How many of them are done, or have failed.
    differing
        Other files, by path in the folders, that differ between the folders: those of the first folder were taken.
    """

    n_cells: int
    done: int
    failed: int
    differing: tuple[str, ...]

    @property
    def missing(self) -> int:
        """Cells that no folder has: neither done nor failed."""
        return self.n_cells - self.done - self.failed


def merge(folders: Sequence[str | Path], out: str | Path, derived: Collection[str] = ()) -> Merged:
    """Combine folders of the same grid, or folders that hold the same grids in the same places, into a new one.

    Records of a grid end up in one file, one a cell and sorted by key. Files that work left beside them are taken too;
    of one that several folders have, the first folder's. The given folders are not changed.

    Parameters
    ----------
    folders
        What to combine.
    out
        A folder that does not exist yet, or is empty. It can be gone on with like any other.
    derived
        Names, or patterns of names (``*.png``), of files that were made from all cells of a folder. They are not
        taken: they would speak of a part.

    Raises
    ------
    InputError
        When a folder is given twice or lies in another one, holds no grid, two hold grids of different configs or
        different results of one cell (beyond rounding, also in a ``.safetensors`` file), or ``out`` holds something or
        cannot be written.
    """
    sources, out = [Path(folder) for folder in folders], Path(out)
    inside = [source for source in sources if out.resolve().is_relative_to(source.resolve())]
    if inside:
        raise InputError(f"{out} is inside {inside[0]}, which is to be merged; give a folder elsewhere")
    for first, second in permutations(sources, 2):
        if second.resolve().is_relative_to(first.resolve()):
            same = second.resolve() == first.resolve()
            raise InputError(f"{second} is {'given twice' if same else f'inside {first}'}; give each part once")
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
        differing = _copy_others(sources, out, derived)
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
    return Merged(n_cells, statuses.count("done"), statuses.count("failed"), differing)


def _common(folders: Sequence[Path]) -> dict[str, Any]:
    """The content of ``grid.json`` for several folders of one grid."""
    contents = [read_grid(folder) for folder in folders]
    for folder, content in zip(folders[1:], contents[1:], strict=True):
        found = difference(contents[0], content, (f"in {folders[0]}", f"in {folder}"))
        if found is not None:
            raise InputError(f"{folders[0]} and {folder} hold different grids: {found}. Merge folders of one config")
    versions = [one for content in contents for one in content["versions"]]
    return {**contents[0], "versions": [one for i, one in enumerate(versions) if one not in versions[:i]]}


def _copy_others(sources: Sequence[Path], out: Path, derived: Collection[str]) -> tuple[str, ...]:
    """Copy what is no part of a grid, nor derived; gives the files that differ, of which the first one is copied."""
    found: dict[Path, list[Path]] = {}
    for source in sources:
        own = {path.parent for path in source.rglob(GRID)}
        records = {path for folder in own for path in (*shards(folder), folder / GRID)}
        for path in sorted(source.rglob("*")):
            made = any(fnmatchcase(path.name, pattern) for pattern in (*derived, ".*"))
            if path.is_file() and path not in records and not made:
                found.setdefault(path.relative_to(source), []).append(path)
    differing = [place for place, paths in sorted(found.items()) if _differ(paths)]
    for place, paths in found.items():
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(paths[0], out / place)
    return tuple(map(str, differing))


def _differ(paths: Sequence[Path]) -> bool:
    """Whether files of one name differ; arrays that differ by more than rounding are refused, as results are."""
    others = [path for path in paths[1:] if not filecmp.cmp(paths[0], path, shallow=False)]
    for path in others:
        if path.suffix == ".safetensors" and not _same_arrays(paths[0], path):
            raise InputError(
                f"{paths[0]} and {path} hold different arrays of one cell: its work is not reproducible, or was "
                "changed in between; merge without the folder that is wrong"
            )
    return bool(others)


def _same_arrays(first: Path, second: Path) -> bool:
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        one, other = load_file(first), load_file(second)
    except SafetensorError as error:
        raise InputError(f"{first} or {second} is damaged ({error}); delete it, and its cell's line") from error
    return one.keys() == other.keys() and all(
        one[name].shape == other[name].shape
        # A mass may be as small as it likes, and its log still counts.
        and np.allclose(one[name], other[name], rtol=SAME, atol=SAME_MASS if "mass" in name else SAME, equal_nan=True)
        for name in one
    )
