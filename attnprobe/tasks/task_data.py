"""What was measured of one model in a task: outcomes of its cells, and the masses behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.errors import InputError
from attnprobe.tasks.outcome import Outcome

TASKS = ("needle_sweep", "niah", "filler_control", "multi_doc")
"""Every task, by the name of its config's kind."""


@dataclass(frozen=True, eq=False)
class TaskData:
    """One model's results in one task.

    Parameters
    ----------
    task
        One of ``TASKS``.
    model
        Its name.
    about
        What the cells were made of and under: what ``task.json`` says.
    layers
        The model's own numbers of the layer axis; empty where only behaviour was observed.
    outcomes
        Of the finished cells, in the order of the grid.
    needle_mass, needle_advantage
        float64 ``[cell, layer, head]``, cells as in ``outcomes``: mass of the documents that hold the evidence taken as
        one, and the log of its density over that of all other documents, each the mean over rows. NaN where a cell has
        no evidence, where a layer does not see it, and for an advantage without other documents. None where only
        behaviour was observed.
    document_mass
        For each cell float64 ``[layer, head, document]``, mean over rows; the documents in the order of the prompt, of
        which ``facts["needles"]`` of the outcome names those with the evidence. Empty where only behaviour was
        observed.
    missing
        Keys of the cells that are not there, and why.

    Raises
    ------
    InputError
        The task is unknown, or arrays do not fit the outcomes.
    """

    task: str
    model: str
    about: Mapping[str, Any]
    layers: tuple[int, ...]
    outcomes: tuple[Outcome, ...]
    needle_mass: np.ndarray | None
    needle_advantage: np.ndarray | None
    document_mass: tuple[np.ndarray, ...]
    missing: Mapping[str, str]

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InputError(f"the task {self.task!r} is unknown; it is one of {', '.join(TASKS)}")
        n_cells = len(self.outcomes)
        for name in ("needle_mass", "needle_advantage"):
            array = getattr(self, name)
            if (array is None) != self.is_behaviour_only:
                raise InputError(f"{name} and layers belong together: give both or neither")
            if array is not None and (array.ndim != 3 or array.shape[:2] != (n_cells, len(self.layers))):
                raise InputError(
                    f"{name} has shape {array.shape}; expected [cell, layer, head] of {n_cells} cells and "
                    f"{len(self.layers)} layers"
                )
        if len(self.document_mass) != (0 if self.is_behaviour_only else n_cells):
            raise InputError(f"document_mass has {len(self.document_mass)} arrays for {n_cells} cells")

    def __repr__(self) -> str:
        seen = "behaviour only" if self.is_behaviour_only else f"{len(self.layers)} layers"
        missing = f", {len(self.missing)} missing" if self.missing else ""
        return f"TaskData({self.task} of {self.model}: {len(self.outcomes)} cells{missing}, {seen})"

    @property
    def is_behaviour_only(self) -> bool:
        """Whether no attention was measured, as on a server."""
        return not self.layers

    @property
    def items(self) -> tuple[str, ...]:
        """The units of analysis, in the order of the grid."""
        return tuple(dict.fromkeys(outcome.item for outcome in self.outcomes))
