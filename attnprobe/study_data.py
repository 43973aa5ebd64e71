"""The numbers of a study of one model, as arrays over questions and orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attnprobe.curve import Heads, Layers, choose_heads
from attnprobe.designs import Order
from attnprobe.errors import InputError
from attnprobe.norms import NORMS, averaged, mean_of_defined
from attnprobe.study_cells import ASKED, VIEWS, cell_key

_TAKES = {"effect": "effects", "distance": "distance", "distance_edges": "distance", "mass.weighted": "values"}
"""Arrays that are there only where an extra was asked for."""


@dataclass(frozen=True, eq=False)
class StudyData:
    """What was measured on one model.

    Parameters
    ----------
    model
        Its name.
    questions
        Ids of the questions, in the file's order; those of which a cell failed are left out.
    orders
        For each question the orders of its documents, in the order of the arrays' second axis.
    arrays
        By ``"<variant>/<name>"``, float32 ``[question, order, ...]``; see :func:`attnprobe.study_cells.reduced`.
        NaN where undefined.
    facts
        By variant: ``[question][order]`` of what is not an array.
    layers
        The model's own numbers of the layer axis.
    own_answers
        By question id, what the model writes by itself: one text, or one an order.
    incomplete
        Questions that were left out, and why.
    runs
        Folder of the whole runs; see :meth:`kept_runs`.
    question_texts
        By question id, what was asked; empty in a study that was written before these were kept.
    """

    model: str
    questions: tuple[str, ...]
    orders: tuple[tuple[Order, ...], ...]
    arrays: Mapping[str, np.ndarray]
    facts: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]
    layers: tuple[int, ...]
    own_answers: Mapping[str, tuple[str, ...]]
    incomplete: Mapping[str, str]
    runs: Path
    question_texts: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"StudyData({self.model}: {len(self.questions)} questions x {len(self.orders[0])} orders, "
            f"{self.n_documents} documents, {', '.join(self.variants)})"
        )

    @property
    def n_documents(self) -> int:
        """Documents of each question."""
        return len(self.orders[0][0].permutation)

    @property
    def n_heads(self) -> int:
        """Query heads of a layer."""
        return int(self.arrays[f"{ASKED}/mass.raw"].shape[3])

    @property
    def variants(self) -> tuple[str, ...]:
        """What was measured, the prompts as they are first."""
        names = dict.fromkeys(name.split("/")[0] for name in self.arrays)
        return (ASKED, *(name for name in names if name != ASKED))

    @property
    def permutations(self) -> np.ndarray:
        """int ``[question, order, position]``: the document that stands there."""
        return np.array([[order.permutation for order in orders] for orders in self.orders])

    @property
    def bases(self) -> np.ndarray:
        """int ``[order]``: the base order that each order belongs to."""
        return np.array([order.base for order in self.orders[0]])

    @property
    def gold_positions(self) -> np.ndarray:
        """int ``[question, order]``: where the document with the answer stands; -1 where none is known."""
        return np.array(
            [[-1 if (p := fact["gold_position"]) is None else p for fact in facts] for facts in self.facts[ASKED]]
        )

    @property
    def answer_logprob(self) -> np.ndarray:
        """float64 ``[question, order]``: log-probability of the whole answer, nats."""
        return np.array([[float(np.sum(fact["answer_logprob"])) for fact in facts] for facts in self.facts[ASKED]])

    def array(self, variant: str, name: str) -> np.ndarray:
        """One array, float64.

        Raises
        ------
        InputError
            When the study did not measure it.
        """
        if variant not in self.variants:
            raise InputError(f"this study has no variant {variant!r}; it has {', '.join(self.variants)}")
        key = f"{variant}/{name}"
        if key not in self.arrays and name in _TAKES and variant == ASKED:
            extra = _TAKES[name]
            raise InputError(
                f"this study did not measure {extra}; measure it with extras=({extra!r},), or --extras {extra}"
            )
        if key not in self.arrays:
            known = sorted(k.split("/", 1)[1] for k in self.arrays if k.startswith(f"{variant}/"))
            raise InputError(f"the variant {variant!r} of this study has no {name}; it has {', '.join(known)}")
        return self.arrays[key].astype(np.float64)

    def kept_runs(self) -> list[tuple[str, Order, str, Path]]:
        """Question, order, variant and file of every whole run that was kept."""
        found = []
        for q, (id, orders) in enumerate(zip(self.questions, self.orders, strict=True)):
            for o, order in enumerate(orders):
                number = self.facts[ASKED][q][o]["question"]
                for variant in self.variants:
                    # The null runs are measured in the cells of the prompts as they are.
                    key = cell_key(number, order, ASKED if variant == "null" else variant)
                    path = self.runs / f"{key}-{variant}.safetensors"
                    if path.exists():
                        found.append((id, order, variant, path))
        return found

    def log_values(
        self,
        norm: str = "share",
        *,
        view: str = "raw",
        variant: str = ASKED,
        layers: Layers = None,
        heads: Heads = None,
    ) -> np.ndarray:
        """Logs of a norm's values, float64 ``[question, order, position]``, nats; NaN where undefined.

        Parameters
        ----------
        norm
            ``share``, ``mass``, ``density``: the value averaged over heads and layers, then its log. ``log_share``:
            the log share of each head, then the average. ``advantage``: as it is, a difference of logs.
        view
            One of :data:`attnprobe.study_cells.VIEWS`; density and advantage have raw, apart and trimmed.
        variant
            One of ``variants``.
        layers, heads
            As in :meth:`attnprobe.Run.curve`.
        """
        if norm not in NORMS:
            raise InputError(f"norm {norm!r} is unknown; expected one of {', '.join(NORMS)}")
        if view not in VIEWS:
            raise InputError(f"view {view!r} is unknown; expected one of {', '.join(VIEWS)}")
        chosen, _, _ = choose_heads(self.layers, self.n_heads, layers, heads)
        values = self.array(variant, f"{quantity_of(norm)}.{view}")[:, :, chosen]  # [Q, O, chosen head, K]
        if norm == "log_share":
            return mean_of_defined(_logs(averaged(values[..., None, :], "share")), axis=2)
        # Where a layer's window ends before a document, the document gets nothing of that layer.
        mean = averaged(values, norm)
        return mean if norm == "advantage" else _logs(mean)

    def head_log_values(self, norm: str, layer: int) -> np.ndarray:
        """As :meth:`log_values`, of each head of a layer by itself: float64 ``[question, order, head, position]``."""
        place = self.layers.index(layer)
        values = self.arrays[f"{ASKED}/{quantity_of(norm)}.raw"][:, :, place].astype(np.float64)
        if norm == "advantage":
            return values
        return _logs(averaged(values[..., None, :], "share") if norm in ("share", "log_share") else values)


def quantity_of(norm: str) -> str:
    """What is kept of a run for a norm: shares are made of masses."""
    return norm if norm in ("density", "advantage") else "mass"


def _logs(values: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        logs: np.ndarray = np.log(values)
    return logs


def stacked(
    model: str,
    questions: Sequence[tuple[int, str]],
    orders: Mapping[int, Sequence[Order]],
    cells: Mapping[tuple[int, int, int, str], tuple[Mapping[str, np.ndarray], Mapping[str, Any]]],
    variants: Sequence[str],
    own_answers: Mapping[str, tuple[str, ...]],
    incomplete: Mapping[str, str],
    runs: Path,
    question_texts: Mapping[str, str],
) -> StudyData:
    """Put the cells of one model together.

    Parameters
    ----------
    model
        Its name.
    questions
        Number and id of each question of which every cell is there.
    orders
        Of each question, by number.
    cells
        Arrays and facts of each cell, by question, base, order and variant.
    variants
        The variants that have cells of their own, the prompts as they are first.
    own_answers, incomplete, runs, question_texts
        As in :class:`StudyData`.
    """
    facts: dict[str, list[list[Mapping[str, Any]]]] = {}
    columns: dict[str, list[list[np.ndarray]]] = {}
    for variant in variants:
        rows = [
            [cells[number, order.base, order.number, variant] for order in orders[number]] for number, _ in questions
        ]
        facts[variant] = [[fact for _, fact in row] for row in rows]
        names = dict.fromkeys(name for row in rows for arrays, _ in row for name in arrays)
        for name in names:
            columns[name] = [[arrays.get(name, _NOTHING) for arrays, _ in row] for row in rows]
    return StudyData(
        model=model,
        questions=tuple(id for _, id in questions),
        orders=tuple(tuple(orders[number]) for number, _ in questions),
        arrays={name: _rectangle(column) for name, column in columns.items()},
        facts=facts,
        layers=tuple(facts[variants[0]][0][0]["layers"]),
        own_answers=own_answers,
        incomplete=incomplete,
        runs=runs,
        question_texts=question_texts,
    )


_NOTHING = np.empty(0, dtype=np.float32)


def _rectangle(column: list[list[np.ndarray]]) -> np.ndarray:
    """One array ``[question, order, ...]``; where the last axes differ in length, filled up with NaN."""
    parts = [array for row in column for array in row]
    shape = max((array.shape for array in parts), key=lambda shape: (len(shape), shape[-1:]))
    out = np.full((len(column), len(column[0]), *shape), np.nan, dtype=np.float32)
    for q, row in enumerate(column):
        for o, array in enumerate(row):
            if array.size:
                out[(q, o, ..., slice(0, array.shape[-1]))] = array
    return out
