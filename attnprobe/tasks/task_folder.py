"""A task on disk: one folder a model, one line and one file a finished cell.

<model>/cells/                 the cells (a grid: grid.json, cells-*.jsonl)
<model>/arrays/<cell>.safetensors    masses of the documents and the evidence
<model>/replies.jsonl, judge.jsonl   what servers answered, where some were asked
<model>/task.json              what the cells are made of, and their keys: what reading them takes
<model>/summary.json, table.csv, *.png    the results, made of all that
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnprobe.about_file import read_about
from attnprobe.errors import InputError, RunFileError
from attnprobe.grid_records import HOW, Record, read_cells
from attnprobe.study_folder import MEND, CellStore, all_done, folder_name, make_folders, write_result
from attnprobe.tasks.measured import evidence_means
from attnprobe.tasks.outcome import Outcome, outcome_of
from attnprobe.tasks.task_cells import ARRAYS, MASS, NEEDLE_ADVANTAGE, NEEDLE_MASS, file_name
from attnprobe.tasks.task_data import TASKS, TaskData
from attnprobe.tasks.task_options import Listed, TaskOptions

SCHEMA = 1
ABOUT = "task.json"
SUMMARY, TABLE = "summary.json", "table.csv"


@dataclass(frozen=True)
class TaskFolder:
    """The folder of one model's cells."""

    path: Path
    store: CellStore

    @classmethod
    def open(cls, out: Path, model: str) -> TaskFolder:
        """Make the folder, or go on in it; ``InputError`` where it cannot be made."""
        path = out / folder_name(model)
        make_folders(path, "cells", "arrays")
        return cls.at(path)

    @classmethod
    def at(cls, folder: str | os.PathLike[str]) -> TaskFolder:
        """The folder as it is; nothing is made."""
        path = Path(folder)
        return cls(path, CellStore(path / "arrays", path / "runs"))

    @property
    def cells(self) -> Path:
        """The grid."""
        return self.path / "cells"

    @property
    def is_complete(self) -> bool:
        """Whether every cell is done or has failed, whichever process did it."""
        return all_done(self.cells)

    def write(self, name: str, text: str) -> None:
        """Write a file of the folder whole; see :func:`attnprobe.study_folder.write_result`."""
        write_result(self.path / name, text)

    def describe(self, model: str, options: TaskOptions, listed: Listed, asked: Mapping[str, Any]) -> None:
        """Write what reading the cells takes.

        Parameters
        ----------
        model
            Its name.
        options, listed
            What the cells are made of, and the cells in the order of the results with notes on them.
        asked
            How the model was run, as JSON values.
        """
        from attnprobe import __version__
        from attnprobe.manifest import package_versions

        items = {spec.item: spec.asked for spec in listed.specs}
        content = {
            "schema": SCHEMA,
            "attnprobe": __version__,
            "versions": package_versions(),
            "task": options.task,
            "model": model,
            "asked": dict(asked),
            "options": options.to_dict(),
            "fillers": options.fillers(),
            "hashes": options.hashes(),
            "items": [asdict(item) for item in items.values()],
            "cells": [spec.key for spec in listed.specs],
            "notes": list(listed.notes),
        }
        self.write(ABOUT, json.dumps(content, indent=1, allow_nan=False) + "\n")

    def load(self) -> TaskData:
        """Read the cells; those that failed or are not done yet are named in ``missing``.

        Raises
        ------
        InputError
            No cell is done.
        RunFileError
            A file is damaged.
        """
        about = _about(self.path)
        records = read_cells(self.cells)
        done = {key: records[key] for key in about["cells"] if records.get(key, {}).get("status") == "done"}
        missing = {key: _why(records.get(key)) for key in about["cells"] if key not in done}
        if not done:
            first, why = next(iter(missing.items()))
            raise InputError(f"{self.path}: no cell is done; the first, {first!r}: {why}")
        results = {key: record["result"] for key, record in done.items()}
        outcomes = tuple(self._outcome(key, result) for key, result in results.items())
        layers = {tuple(result["layers"]) for result in results.values()}
        if len(layers) > 1:
            raise RunFileError(
                f"{self.cells}: the cells have different layers; run the same command again in another folder"
            )
        (own_layers,) = layers
        arrays = [self._arrays(key, result) for key, result in results.items()] if own_layers else []
        try:
            return TaskData(
                task=about["task"],
                model=about["model"],
                about=about,
                layers=own_layers,
                outcomes=outcomes,
                needle_mass=_stacked(arrays, NEEDLE_MASS),
                needle_advantage=_stacked(arrays, NEEDLE_ADVANTAGE),
                document_mass=tuple(one[MASS] for one in arrays),
                missing=missing,
            )
        except (ValueError, InputError) as error:
            raise RunFileError(f"{self.store.arrays}: arrays of two cells do not fit together ({error})") from error

    def work(self) -> dict[str, Any]:
        """What the finished cells took: cells, tokens of their prompts, tokens of them that were fed, and seconds."""
        done = [record for record in read_cells(self.cells).values() if record["status"] == "done"]
        counted = [record["result"] for record in done if record["result"]["n_prompt"] is not None]
        return {
            "cells": len(done),
            "prompt_tokens": sum(result["n_prompt"] for result in counted),
            "fed_tokens": sum(result[HOW].get("fed", 0) for result in counted),
            "seconds": round(sum(record["seconds"] for record in done), 3),
        }

    def _outcome(self, key: str, result: Mapping[str, Any]) -> Outcome:
        try:
            return outcome_of(result["outcome"], f'{self.cells}: cell "{key}"')
        except (InputError, KeyError) as error:
            raise RunFileError(f"{error}; delete the cell's line, and run the same command again") from error

    def _arrays(self, key: str, result: Mapping[str, Any]) -> dict[str, np.ndarray]:
        found = self.store.get(file_name(key))
        file = self.store.arrays / f"{file_name(key)}.safetensors"
        if missing := sorted(set(ARRAYS) - set(found)):
            raise RunFileError(f"{file} is damaged: it lacks {', '.join(missing)}; {MEND}")
        arrays = {name: array.astype(np.float64) for name, array in found.items()}
        own = evidence_means(arrays[NEEDLE_MASS], arrays[NEEDLE_ADVANTAGE])
        for name, mean in zip(("mass", "advantage"), own, strict=True):
            noted = result["outcome"].get(name)
            if (mean is None) != (noted is None) or not np.isclose(mean or 0.0, noted or 0.0, rtol=1e-4, atol=1e-6):
                raise RunFileError(f"{file} is not what its cell's line says: {name} {mean}, not {noted}; {MEND}")
        return arrays


def task_parts(folder: str | os.PathLike[str]) -> list[Path]:
    """The folders of the models of a task; that of one model is itself the only one. Empty where there is no task."""
    path = Path(folder)
    try:
        return [path] if (path / ABOUT).exists() else sorted(file.parent for file in path.glob(f"*/{ABOUT}"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give the folder of a task (out)") from error


def _why(record: Record | None) -> str:
    return "not measured yet" if record is None else str(record["error"])


def _stacked(arrays: Sequence[Mapping[str, np.ndarray]], name: str) -> np.ndarray | None:
    return np.stack([one[name] for one in arrays]) if arrays else None


def _about(path: Path) -> dict[str, Any]:
    """What ``task.json`` says, checked as far as reading goes by it."""
    return read_about(path / ABOUT, "task", SCHEMA, _check_about, lambda content: {"cells": content["cells"]})


def _check_about(content: Mapping[str, Any]) -> None:
    texts = [content["task"], content["model"], *content["cells"]]
    if not (content["task"] in TASKS and all(isinstance(text, str) for text in texts)):
        raise TypeError("its task, model or cells are not what they should be")
