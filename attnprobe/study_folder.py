"""A study on disk: one folder a model, one line and one file a finished cell.

<model>/own/                   the model's own answers (a grid: grid.json, cells-*.jsonl)
<model>/cells/                 the orders (a grid)
<model>/arrays/<cell>.safetensors
<model>/runs/<cell>.safetensors    whole measurements, up to a size
<model>/study.json             questions, orders and options: what reading the cells takes
<model>/summary.json, table.csv, *.png    the results, made of all that
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprobe.about_file import read_about
from attnprobe.designs import Order
from attnprobe.errors import InputError, RunFileError
from attnprobe.grid import read_cells
from attnprobe.grid_folder import GRID, read_grid
from attnprobe.run_folder import write_text
from attnprobe.study_cells import CellResult, cell_key
from attnprobe.study_data import StudyData, stacked
from attnprobe.study_options import StudyOptions

if TYPE_CHECKING:
    from attnprobe.rotating import Question

MEND = "delete its cell's line in cells/ and run the same command again"
"""What to do about a cell whose arrays are damaged."""

SCHEMA = 1
ABOUT = "study.json"
SUMMARY, TABLE = "summary.json", "table.csv"
PICTURES = ("curve.png", "artefacts.png", "layers.png", "answer.png")


@dataclass
class CellStore:
    """Arrays of cells, and whole runs as long as there is room for them."""

    arrays: Path
    runs: Path
    keep_runs: int = 0
    used: int = 0

    @classmethod
    def open(cls, out: Path) -> CellStore:
        """A store of arrays alone in ``out/arrays``, which is made; ``InputError`` where it cannot be."""
        make_folders(out, "arrays")
        return cls(out / "arrays", out / "arrays")

    def put(self, key: str, result: CellResult) -> None:
        """Keep one cell's arrays, and its runs if they fit; a reader sees whole files only."""
        from safetensors.numpy import save

        content = save({name: np.ascontiguousarray(array) for name, array in result.arrays.items()})
        _write_bytes(self.arrays / f"{key}.safetensors", content)
        for variant, run in result.runs.items():
            size = sum(array.nbytes for array in vars(run).values() if isinstance(array, np.ndarray))
            if self.used + size <= self.keep_runs:
                run.save(self.runs / f"{key}-{variant}.safetensors")
                self.used += size

    def get(self, key: str) -> dict[str, np.ndarray]:
        """The arrays of one cell."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = self.arrays / f"{key}.safetensors"
        try:
            return dict(load_file(path))
        except FileNotFoundError:
            raise RunFileError(f"{path} is missing, though its cell is finished; {MEND}") from None
        except (SafetensorError, OSError) as error:
            raise RunFileError(f"{path} is damaged ({error}); {MEND}") from error


@dataclass(frozen=True)
class StudyFolder:
    """The folder of one model's study."""

    path: Path
    store: CellStore

    @classmethod
    def open(cls, out: Path, model: str, keep_runs: int) -> StudyFolder:
        """Make the folder, or go on in it.

        Raises
        ------
        InputError
            The folder cannot be made.
        """
        path = out / folder_name(model)
        make_folders(path, "own", "cells", "arrays", "runs")
        return cls.at(path, keep_runs)

    @classmethod
    def at(cls, path: Path, keep_runs: int = 0) -> StudyFolder:
        """The folder as it is; nothing is made.

        Raises
        ------
        InputError
            The folder cannot be read.
        """
        try:
            used = sum(file.stat().st_size for file in (path / "runs").glob("*.safetensors"))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; give another out") from error
        return cls(path, CellStore(path / "arrays", path / "runs", keep_runs, used))

    @property
    def is_complete(self) -> bool:
        """Whether every cell is done or has failed, whichever process did it."""
        return all_done(self.cells)

    @property
    def has_cells(self) -> bool:
        """Whether a cell has been done here."""
        return self.cells.is_dir() and any(record["status"] == "done" for record in read_cells(self.cells).values())

    @property
    def own(self) -> Path:
        """The grid of the model's own answers."""
        return self.path / "own"

    @property
    def cells(self) -> Path:
        """The grid of the orders."""
        return self.path / "cells"

    def describe(
        self,
        model: str,
        questions: Sequence[Question],
        orders: Mapping[int, Sequence[Order]],
        options: StudyOptions,
        variants: Sequence[str],
    ) -> None:
        """Write down what reading the cells takes."""
        from attnprobe import __version__

        content = {
            "schema": SCHEMA,
            "attnprobe": __version__,
            "model": model,
            "options": options.to_dict(),
            "variants": list(variants),
            "questions": [
                {
                    "number": question.number,
                    "id": question.id,
                    "text": question.prompt.question,
                    "gold": question.gold,
                    "forced": question.answer,
                    "orders": [asdict(order) for order in orders[question.number]],
                }
                for question in questions
            ],
        }
        self.write(ABOUT, json.dumps(content, indent=1, allow_nan=False) + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a file of the folder whole; see :func:`write_result`."""
        write_result(self.path / name, text)

    def load(self) -> StudyData:
        """Read the study; questions of which a cell is missing or failed are left out.

        Raises
        ------
        InputError
            No question is complete.
        RunFileError
            A file is damaged.
        """
        about = _about(self.path)
        records = read_cells(self.cells)
        questions, cells, orders = [], {}, {}
        missing: dict[str, str] = {}
        for question in about["questions"]:
            number = question["number"]
            own = [Order(o["base"], o["number"], tuple(o["permutation"])) for o in question["orders"]]
            wanted = {
                (number, order.base, order.number, variant): cell_key(number, order, variant)
                for order in own
                for variant in about["variants"]
            }
            bad = [key for key in wanted.values() if records.get(key, {}).get("status") != "done"]
            if bad:
                record = records.get(bad[0])
                missing[question["id"]] = str(record["error"]) if record else "not measured yet"
                continue
            questions.append((number, question["id"]))
            orders[number] = own
            for place, key in wanted.items():
                arrays, facts = self.store.get(key), records[key]["result"]
                if set(facts["arrays"]) - set(arrays):
                    raise RunFileError(
                        f"{self.store.arrays / key}.safetensors is damaged: it lacks "
                        f"{', '.join(sorted(set(facts['arrays']) - set(arrays)))}; {MEND}"
                    )
                cells[place] = arrays, facts
        if not questions:
            first, why = next(iter(missing.items()))
            raise InputError(f"{self.path}: no question is complete; the first, {first!r}: {why}")
        try:
            return stacked(
                about["model"],
                questions,
                orders,
                cells,
                about["variants"],
                self._own_answers(dict(questions)),
                missing,
                self.store.runs,
                {question["id"]: question["text"] for question in about["questions"] if "text" in question},
            )
        except ValueError as error:
            raise RunFileError(f"{self.store.arrays}: arrays of two cells do not fit together ({error})") from error

    def _own_answers(self, ids: Mapping[int, str]) -> dict[str, tuple[str, ...]]:
        """What the model writes by itself, by question, in the order of the orders."""
        answers: dict[str, list[str]] = {}
        for _, record in sorted(read_cells(self.own).items()):
            if record["status"] == "done" and record["result"]["question"] in ids:
                answers.setdefault(ids[record["result"]["question"]], []).append(record["result"]["answer"])
        return {id: tuple(texts) for id, texts in answers.items()}


def write_result(path: Path, text: str) -> None:
    """Write a file whole.

    Raises
    ------
    InputError
        It cannot be written.
    """
    try:
        write_text(path, text)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}; make room (finished cells are kept, and the same "
            "command goes on from there)"
        ) from error


def study_parts(folder: str | os.PathLike[str]) -> list[Path]:
    """The folders of the models of a study; the folder of one model is a study of that one.

    Raises
    ------
    InputError
        The folder holds no study.
    """
    if not isinstance(folder, (str, os.PathLike)):
        raise InputError(f"the study's folder is {folder!r}; give the folder that a study was written to (out)")
    path = Path(folder)
    try:
        parts = [path] if (path / ABOUT).exists() else sorted(file.parent for file in path.glob(f"*/{ABOUT}"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give the folder of a study (out)") from error
    if not parts:
        raise InputError(f"{path} holds no study; give the folder that a study was written to (out)")
    return parts


def make_folders(path: Path, *names: str) -> None:
    """Make folders in a folder of results; ``InputError`` where that one cannot be one."""
    try:
        for name in names:
            (path / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path} cannot be made a folder: {error.strerror}; give another out") from error


def all_done(cells: Path) -> bool:
    """Whether every cell of a grid is done or has failed, whichever process did it."""
    return (cells / GRID).exists() and read_grid(cells)["n_cells"] <= len(read_cells(cells))


def folder_name(model: str) -> str:
    """A model's name as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", model)[-80:].strip(".") or "model"


def _about(path: Path) -> dict[str, Any]:
    return read_about(path / ABOUT, "study", SCHEMA, _check_about, _cell_keys)


def _cell_keys(content: Mapping[str, Any]) -> dict[str, list[str]]:
    """Keys of the cells that a ``study.json`` names, by the folder of the cells."""
    keys = [
        cell_key(question["number"], Order(o["base"], o["number"], tuple(o["permutation"])), variant)
        for question in content["questions"]
        for variant in content["variants"]
        for o in question["orders"]
    ]
    return {"cells": keys}


def _check_about(content: dict[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError unless the parts of a ``study.json`` are of the form that is read."""
    StudyOptions.of(content["options"])
    variants, questions = content["variants"], content["questions"]
    if not isinstance(content["model"], str) or not all(isinstance(variant, str) for variant in variants):
        raise TypeError("its model or variants are no texts")
    if not questions:
        raise ValueError("it has no questions")
    shapes = set()
    for question in questions:
        if type(question["number"]) is not int or not isinstance(question["id"], str):
            raise TypeError("a question has no number or id")
        if not isinstance(question.get("text", ""), str):
            raise TypeError(f"the text of question {question['id']!r} is none")
        for order in question["orders"]:
            if type(order["base"]) is not int or type(order["number"]) is not int:
                raise TypeError(f"an order of question {question['id']!r} has no number")
            if sorted(order["permutation"]) != list(range(len(order["permutation"]))):
                raise ValueError(f"an order of question {question['id']!r} is no permutation")
            shapes.add((len(question["orders"]), len(order["permutation"])))
        if not question["orders"]:
            raise ValueError(f"question {question['id']!r} has no orders")
    if len(shapes) > 1:
        raise ValueError("its questions have different numbers of orders or documents")


def _write_bytes(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".attnprobe-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
