"""Seeded results of tasks for tests, made without a model: effects are planted, so what must be found is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attnprobe.grid_records import record_line, shard_name
from attnprobe.study_cells import CellResult
from attnprobe.tasks.cell import cell_key
from attnprobe.tasks.outcome import Outcome
from attnprobe.tasks.task_cells import ARRAYS, file_name
from attnprobe.tasks.task_data import TaskData
from attnprobe.tasks.task_folder import ABOUT, SCHEMA, TaskFolder
from attnprobe.tasks.task_summary import TaskSummary
from attnprobe.tasks.task_text import task_lines

LAYERS, HEADS = (0, 1, 2, 3), 5


def conditions_of(task: str, places: int = 6) -> list[dict[str, Any]]:
    """The conditions of a small task, baselines last."""
    closed, oracle = {"baseline": "closed_book"}, {"baseline": "oracle"}
    if task in ("needle_sweep", "multi_doc"):
        return [*({"position": place} for place in range(places)), closed, oracle]
    if task == "niah":
        return [*({"length": n, "depth": d} for n in (500, 1000, 2000) for d in (0.0, 0.5, 1.0)), closed, oracle]
    none = {"filler": "none", "placement": None, "length": None}
    filled = [
        {"filler": filler, "placement": placement, "length": length}
        for filler in ("prose", "repeated", "same_domain")
        for placement in ("after", "split")
        for length in (500, 1000, 2000)
    ]
    return [none, *filled, closed]


def planted_loss(condition: dict[str, Any], places: int = 6) -> float:
    """Nats that the condition costs the answer: the middle of a sweep, the middle and length of a matrix, filler."""
    if "position" in condition:
        return 1.0 if 0 < condition["position"] < places - 1 else 0.0
    if "depth" in condition:
        return 0.5 * np.log2(condition["length"] / 500) + (1.0 if condition["depth"] == 0.5 else 0.0)
    if condition.get("filler", "none") != "none":
        content = {"repeated": 0.0, "prose": 0.25, "same_domain": 1.0}[condition["filler"]]
        return 0.5 + 0.5 * np.log2(condition["length"] / 500) + content
    return 6.0 if condition.get("baseline") == "closed_book" else -1.0


def make_task(
    task: str = "needle_sweep",
    seed: int = 0,
    *,
    items: int = 10,
    trials: int = 3,
    places: int = 6,
    link: float = 1.0,
    heads: Sequence[tuple[int, int]] = ((1, 2), (2, 0)),
    behaviour_only: bool = False,
) -> TaskData:
    """Results of a task.

    ``link``: how many nats of the answer go with one nat of the advantage of ``heads``, at one condition; the other
    heads' advantages are noise. Losses by condition are in answers and in these heads' advantages alike.
    """
    rng = np.random.default_rng(seed)
    outcomes, masses, advantages, documents = [], [], [], []
    for number in range(items):
        level = -3 - 3 * rng.random()
        for condition in conditions_of(task, places):
            is_alone = "baseline" in condition or condition.get("filler") == "none"
            for trial in range(1 if "baseline" in condition else trials):
                loss = planted_loss(condition, places)
                seen = rng.normal()
                logprob = min(level - loss + link * seen + 0.3 * rng.normal(), -0.01)
                score = int(rng.random() < 1 / (1 + np.exp(-(logprob + 5))))
                advantage = rng.normal(0.0, 1.0, (len(LAYERS), HEADS))
                for layer, head in heads:
                    advantage[layer, head] = 4 - loss + seen + 0.3 * rng.normal()
                mass = 0.02 * np.exp(advantage / 4)
                if condition.get("baseline") == "closed_book":
                    mass = np.full_like(mass, np.nan)
                if is_alone:
                    advantage = np.full_like(advantage, np.nan)
                n_documents = 0 if condition.get("baseline") == "closed_book" else 1 if is_alone else places
                n_prompt = condition.get("length") or 60 + 20 * n_documents
                filled = {"filler_tokens": n_prompt - 80} if condition.get("length") else {}
                outcomes.append(
                    Outcome(
                        f"item {number}",
                        trial,
                        condition,
                        strict=score,
                        lenient=max(score, int(rng.random() < 0.1)),
                        logprob=float(logprob),
                        foil_logprob=float(min(level - 1 + 0.3 * rng.normal(), -0.01)),
                        mass=None if behaviour_only or np.isnan(mass).all() else float(mass.mean()),
                        advantage=None if behaviour_only or is_alone else float(advantage.mean()),
                        facts={
                            **({"n_documents": places} if "position" in condition else {}),
                            **filled,
                            "prompt_tokens": n_prompt,
                            "needles": [condition.get("position", 0)] if n_documents else [],
                            "reply": "The reply, with a comma.",
                            "answer": "62 cars",
                        },
                    )
                )
                masses.append(mass)
                advantages.append(advantage)
                documents.append(np.full((len(LAYERS), HEADS, n_documents), 0.02))
    return TaskData(
        task=task,
        model="tiny",
        about={},
        layers=() if behaviour_only else LAYERS,
        outcomes=tuple(outcomes),
        needle_mass=None if behaviour_only else np.array(masses),
        needle_advantage=None if behaviour_only else np.array(advantages),
        document_mass=() if behaviour_only else tuple(documents),
        missing={},
    )


def changed(data: TaskData, change: Callable[[Outcome], Outcome]) -> TaskData:
    """The data with other outcomes, as ``change`` makes them of each."""
    return replace(data, outcomes=tuple(map(change, data.outcomes)))


def only(data: TaskData, keep: Callable[[Outcome], bool]) -> TaskData:
    """The data of the cells whose outcome is to be kept."""
    kept = [place for place, outcome in enumerate(data.outcomes) if keep(outcome)]
    return replace(
        data,
        outcomes=tuple(data.outcomes[place] for place in kept),
        needle_mass=data.needle_mass[kept],
        needle_advantage=data.needle_advantage[kept],
        document_mass=tuple(data.document_mass[place] for place in kept),
    )


def text_of(summary: TaskSummary) -> str:
    """What the terminal shows, on one line."""
    return " ".join(" ".join(task_lines(summary)).split())


def write_task(out: Path, data: TaskData) -> Path:
    """The folder of one model, in ``out``, as a task writes it, without results."""
    folder = TaskFolder.open(out, data.model)
    keys = [cell_key(data.task, one.item, one.condition, one.trial) for one in data.outcomes]
    lines = []
    for place, (key, outcome) in enumerate(zip(keys, data.outcomes, strict=True)):
        arrays = {}
        if data.needle_mass is not None and data.needle_advantage is not None:
            values = (data.document_mass[place], data.needle_mass[place], data.needle_advantage[place])
            arrays = {name: np.asarray(one, dtype=np.float32) for name, one in zip(ARRAYS, values, strict=True)}
            folder.store.put(file_name(key), CellResult(arrays, {}, {}))
        result = {"outcome": outcome.to_dict(), "n_prompt": 100, "layers": list(data.layers), "how": {"fed": 100}}
        lines.append(record_line({"key": key, "status": "done", "result": result, "seconds": 0.1}))
    for key, why in data.missing.items():
        lines.append(record_line({"key": key, "status": "failed", "error": why, "seconds": 0.1}))
    (folder.cells / shard_name(0)).write_bytes(b"".join(lines))
    about = {"schema": SCHEMA, "task": data.task, "model": data.model, "cells": [*keys, *data.missing]}
    (folder.path / ABOUT).write_text(json.dumps(about))
    return folder.path
