"""Series of runs: one run, or the mean of a folder's prompts with as many documents, read one after the other."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnprobe.curve import middle_positions
from attnprobe.norms import NORMS, averaged, head_values, uniform_values
from attnprobe.report.asked import Asked, asked_of_run, asked_of_runs, question_of
from attnprobe.report.balance import Places, fingerprint, times_everywhere
from attnprobe.report.facts import Facts, merged, model_name, run_facts
from attnprobe.report.series import Curves, Series, end_ratio
from attnprobe.report.texts import visible
from attnprobe.report.verdicts import run_verdict, runs_verdict
from attnprobe.run import Run
from attnprobe.spans import budget_kind, sink_mass
from attnprobe.study_cells import KINDS
from attnprobe.terminal import count, decimal, percent
from attnprobe.told import Cell, table_of_values, whole

MOST_MEMBERS = 50
"""Prompts whose own curves are drawn behind the mean."""

MOST_ROWS = 200
"""Prompts in the table of a page; all of them count in the means."""

_COUNTED = ("document", "sink")
"""Kinds of the spans whose tokens are a document's."""


_COLUMNS: dict[str, Callable[[Any], str] | None] = {
    "prompt": None,
    "question": None,
    "tokens": whole,
    "answer tokens": whole,
    "head/middle": decimal,
    "tail/middle": decimal,
    "sinks": percent,
    "log-prob. of answer": decimal,
    "answer": None,
}


@dataclass
class _Sum:
    """Sum and number of the defined values of runs."""

    total: np.ndarray | float = 0.0
    n: np.ndarray | int = 0

    def add(self, values: np.ndarray) -> None:
        known = ~np.isnan(values)
        self.total = self.total + np.where(known, values, 0.0)
        self.n = self.n + known.astype(int)

    def mean(self) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            mean: np.ndarray = np.where(self.n, np.divide(self.total, self.n), np.nan)
        return mean


@dataclass
class _Group:
    """What is known of the runs with as many documents, as they are read."""

    first: Run
    sums: dict[tuple[str, str, str], _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    tokens: _Sum = field(default_factory=_Sum)
    has_sinks: bool = False
    norms: set[str] = field(default_factory=lambda: set(NORMS))
    members: list[tuple[str, dict[str, np.ndarray]]] = field(default_factory=list)
    rows: list[tuple[Cell, ...]] = field(default_factory=list)
    ends: list[tuple[float | None, float | None]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    places: Places = field(default_factory=Counter)
    facts: list[Facts] = field(default_factory=list)
    warnings: dict[str, list[str]] = field(default_factory=dict)
    budget: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    n: int = 0

    def add_to(self, view: str, norm: str, part: str, values: np.ndarray) -> None:
        self.sums[view, norm, part].add(values)

    def mean(self, view: str, norm: str, part: str) -> np.ndarray:
        mean = self.sums[view, norm, part].mean()
        return np.exp(mean) if norm == "log_share" else mean


def series_of_runs(name: str, runs: Iterable[Run], is_folder: bool, faults: list[str]) -> list[Series]:
    """Reduce runs to one series for each model and number of documents.

    Parameters
    ----------
    name
        Of the source.
    runs
        Read one by one; none is held longer than it takes, but the first of each group.
    is_folder
        Whether they are the runs of a folder.
    faults
        Gets the runs that do not fit the others.
    """
    groups: dict[tuple[str, int], _Group] = {}
    for number, run in enumerate(runs):
        id = run.prompt_id or (str(number) if is_folder else name)
        group = groups.setdefault((model_name(run.manifest), len(run.documents)), _Group(run))
        if (run.layers, run.mass.shape[1]) != (group.first.layers, group.first.mass.shape[1]):
            faults.append(f"{name}: the run of prompt {id!r} has other layers or heads than the first; left out")
            continue
        _take(group, run, id)
    models, numbers = ({key[part] for key in groups} for part in (0, 1))
    return [
        _series(
            ", ".join(
                [name]
                + [model or "model not known"] * (len(models) > 1)
                + [count(number, "document")] * (len(numbers) > 1)
            ),
            group,
            is_folder,
        )
        for (model, number), group in sorted(groups.items())
    ]


def _take(group: _Group, run: Run, id: str) -> None:
    group.n += 1
    group.asked.append(asked_of_run(run))
    group.facts.append(run_facts(run))
    for warning in run.warnings:
        group.warnings.setdefault(warning, []).append(id)
    mass = run.mass.mean(axis=(0, 1), dtype=np.float64)
    budget = dict.fromkeys(KINDS, 0.0)
    for span, value in zip(run.spans, mass, strict=True):
        budget[budget_kind(span)] += float(value)
        group.budget[budget_kind(span)] += float(value)
    head = tail = None
    if run.documents:
        curve = run.curve(with_sinks=True)  # as the view "as measured"
        head, tail = curve.head_middle, curve.tail_middle
        _add_curves(group, run, id)
    group.ends.append((head, tail))
    if len(group.rows) < MOST_ROWS:
        group.rows.append(
            (
                id,
                question_of(run),
                run.n_prompt,
                len(run.answer_ids),
                head,
                tail,
                sink_mass(budget),
                float(run.answer_logprob.sum(dtype=np.float64)),
                run.answer,
            )
        )


def _add_curves(group: _Group, run: Run, id: str) -> None:
    group.tokens.add(
        np.array(
            [
                float(sum(span.n_tokens for span in run.spans if span.document == number and span.kind in _COUNTED))
                for number in (run.spans[i].document for i in run.document_spans)
            ]
        )
    )
    has_sinks = any(span.kind == "sink" and span.document is not None for span in run.spans)
    group.has_sinks |= has_sinks
    own: dict[str, np.ndarray] = {}
    for norm in NORMS:
        if norm in ("density", "advantage") and run.row_mass is None:
            group.norms.discard(norm)
            continue
        raw = _parts(run, norm, with_sinks=True)
        apart = _parts(run, norm, with_sinks=False) if has_sinks else raw
        for view, parts in (("raw", raw), ("apart", apart)):
            for part, values in parts.items():
                with np.errstate(divide="ignore"):
                    group.add_to(view, norm, part, np.log(values) if norm == "log_share" else values)
        own[norm] = raw["all"]
        if norm == "mass":
            group.add_to("raw", norm, "documents", np.nansum(raw["heads"], axis=-1))
    if len(group.members) < MOST_MEMBERS:
        group.members.append((id, own))
    for position, i in enumerate(run.document_spans):
        group.places[fingerprint(run, i), position] += 1


def _parts(run: Run, norm: str, with_sinks: bool) -> dict[str, np.ndarray]:
    """A run's curves of one norm: of everything, every layer, every head, and even attention."""
    values = head_values(run, "mass" if norm == "share" else norm, with_sinks=with_sinks)  # [layer, head, document]
    return {
        "all": averaged(values.reshape(-1, values.shape[-1]), norm),
        "layers": averaged(values, norm),
        "heads": averaged(values[..., None, :], norm),
        "uniform": uniform_values(run, norm, with_sinks=with_sinks),
    }


def _series(name: str, group: _Group, is_folder: bool) -> Series:
    run, n_documents = group.first, len(group.first.documents)
    is_single = group.n == 1
    middle = middle_positions(n_documents) if n_documents else ()
    budget = {kind: value / group.n for kind, value in group.budget.items()}
    curves = {}
    if n_documents:
        norms = [norm for norm in NORMS if norm in group.norms]
        views = ("raw", "apart") if group.has_sinks else ("raw",)
        curves = {view: {norm: _curves(group, view, norm, middle) for norm in norms} for view in views}
    common = (curves.get("raw", {}), middle, budget)
    documents = run.documents if is_single else tuple(map(str, range(n_documents)))
    left_out = group.n - len(group.rows)
    note = f"{count(left_out, 'more prompt')} not listed; they count in the means." if left_out else ""
    share = curves["raw"]["share"].heads if curves else None
    ratios = {}
    if share is not None:
        for key, end in (("head_middle", 0), ("tail_middle", -1)):
            ratios[key] = end_ratio(share, end, middle)
        ratios["document_mass"] = group.mean("raw", "mass", "documents")
    return Series(
        name=name,
        kind="runs" if is_folder else "run",
        documents=documents,
        tokens=group.tokens.mean() if n_documents else np.zeros(0),
        middle=middle,
        model_layers=run.layers,
        n_heads=run.mass.shape[1],
        curves=curves,
        ratios=ratios,
        members=() if is_single else tuple(group.members),
        budget=budget,
        verdict=run_verdict(*common, documents)
        if is_single
        else runs_verdict(*common, group.n, group.ends, times_everywhere(group.places, n_documents)),
        asked=asked_of_runs(group.asked),
        tables={"prompts": table_of_values("Prompts", _COLUMNS, group.rows, note)},
        facts=merged(group.facts),
        warnings=tuple(_warning(text, ids, is_single) for text, ids in group.warnings.items()),
    )


def _curves(group: _Group, view: str, norm: str, middle: tuple[int, ...]) -> Curves:
    values = group.mean(view, norm, "all")
    ends = [
        end_ratio(values, end, middle) if norm != "advantage" else _difference(values, end, middle) for end in (0, -1)
    ]
    return Curves(
        values=values,
        layers=group.mean(view, norm, "layers"),
        heads=group.mean(view, norm, "heads"),
        uniform=group.mean(view, norm, "uniform"),
        head_text=decimal(float(ends[0])),
        tail_text=decimal(float(ends[1])),
    )


def _difference(values: np.ndarray, end: int, middle: tuple[int, ...]) -> float:
    return float(values[end] - values[list(middle)].mean()) if middle else math.nan


def _warning(text: str, ids: list[str], is_single: bool) -> str:
    if is_single:
        return text
    more = f" and {count(len(ids) - 1, 'more prompt')}" if len(ids) > 1 else ""
    return f"{visible(ids[0], 200)}{more}: {text}"
