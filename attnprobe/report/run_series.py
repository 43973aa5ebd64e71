"""Series of runs: one run, or the mean of a folder's prompts with as many documents, read one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from attnprobe.curve import middle_positions
from attnprobe.norms import NORMS, averaged, head_values
from attnprobe.report.facts import Facts, merged, run_facts
from attnprobe.report.series import Curves, Series, Table, end_ratio
from attnprobe.report.verdicts import run_verdict, runs_verdict
from attnprobe.run import Run
from attnprobe.study_cells import KINDS, is_secondary
from attnprobe.terminal import count, decimal, percent

MOST_MEMBERS = 50
"""Prompts whose own curves are drawn behind the mean."""

MOST_ROWS = 200
"""Prompts in the table of a page; all of them count in the means."""


@dataclass
class _Sum:
    """Sum and number of the defined values of runs."""

    total: np.ndarray
    n: np.ndarray

    @classmethod
    def like(cls, values: np.ndarray) -> _Sum:
        return cls(np.zeros(values.shape), np.zeros(values.shape, dtype=int))

    def add(self, values: np.ndarray) -> None:
        known = ~np.isnan(values)
        self.total += np.where(known, values, 0.0)
        self.n += known

    def mean(self) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            mean: np.ndarray = np.where(self.n > 0, self.total / self.n, np.nan)
        return mean


@dataclass
class _Group:
    """What is known of the runs with as many documents, as they are read."""

    first: Run
    sums: dict[tuple[str, str], _Sum] = field(default_factory=dict)
    norms: set[str] = field(default_factory=lambda: set(NORMS))
    members: list[tuple[str, dict[str, np.ndarray]]] = field(default_factory=list)
    rows: list[tuple[str, ...]] = field(default_factory=list)
    ends: list[tuple[float | None, float | None]] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)
    warnings: dict[str, list[str]] = field(default_factory=dict)
    budget: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    n: int = 0

    def add_to(self, name: str, part: str, values: np.ndarray) -> None:
        self.sums.setdefault((name, part), _Sum.like(values)).add(values)

    def mean(self, name: str, part: str) -> np.ndarray:
        mean = self.sums[name, part].mean()
        return np.exp(mean) if name == "log_share" else mean


def series_of_runs(name: str, runs: Iterable[Run], is_folder: bool, faults: list[str]) -> list[Series]:
    """Reduce runs to one series for each number of documents.

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
    groups: dict[int, _Group] = {}
    for number, run in enumerate(runs):
        id = run.prompt_id or (str(number) if is_folder else name)
        group = groups.setdefault(len(run.documents), _Group(run))
        if (run.layers, run.mass.shape[1]) != (group.first.layers, group.first.mass.shape[1]):
            faults.append(f"{name}: the run of prompt {id!r} has other layers or heads than the first; left out")
            continue
        _take(group, run, id)
    many = len(groups) > 1
    return [
        _series(f"{name}, {count(number, 'document')}" if many else name, group, is_folder)
        for number, group in sorted(groups.items())
    ]


def _take(group: _Group, run: Run, id: str) -> None:
    group.n += 1
    group.facts.append(run_facts(run))
    for warning in run.warnings:
        group.warnings.setdefault(warning, []).append(id)
    mass = run.mass.mean(axis=(0, 1), dtype=np.float64)
    budget = dict.fromkeys(KINDS, 0.0)
    for span, value in zip(run.spans, mass, strict=True):
        kind = "secondary_sink" if is_secondary(span) else span.kind
        budget[kind] += float(value)
        group.budget[kind] += float(value)
    head = tail = None
    if run.documents:
        curve = run.curve()
        head, tail = curve.head_middle, curve.tail_middle
        _add_curves(group, run, id)
    group.ends.append((head, tail))
    if len(group.rows) < MOST_ROWS:
        group.rows.append(
            (
                id,
                f"{run.n_prompt:,}",
                f"{len(run.answer_ids):,}",
                decimal(head),
                decimal(tail),
                percent(budget["sink"] + budget["secondary_sink"] + budget["learned_sink"]),
                decimal(float(run.answer_logprob.sum(dtype=np.float64))),
                run.answer,
            )
        )


def _add_curves(group: _Group, run: Run, id: str) -> None:
    documents = [run.spans[i] for i in run.document_spans]
    tokens = np.array([float(span.n_tokens) for span in documents])
    group.add_to("tokens", "all", tokens)
    seen = run.visible.astype(np.float64)
    group.add_to(
        "uniform mass", "all", (seen[..., list(run.document_spans)] / seen.sum(-1, keepdims=True)).mean((0, 1))
    )
    group.add_to("uniform share", "all", tokens / tokens.sum() if tokens.sum() else np.full(len(tokens), np.nan))
    own: dict[str, np.ndarray] = {}
    for norm in NORMS:
        if norm in ("density", "advantage") and run.row_mass is None:
            group.norms.discard(norm)
            continue
        values = head_values(run, "mass" if norm == "share" else norm, with_sinks=False)  # [layer, head, document]
        own[norm] = averaged(values.reshape(-1, values.shape[-1]), norm)
        layers = np.stack([averaged(layer, norm) for layer in values])
        heads = np.stack([[averaged(head[None], norm) for head in layer] for layer in values])
        for part, array in (("all", own[norm]), ("layers", layers), ("heads", heads)):
            with np.errstate(divide="ignore"):
                group.add_to(norm, part, np.log(array) if norm == "log_share" else array)
        if norm == "mass":
            group.add_to("document mass", "all", np.nansum(values, axis=-1))
    if len(group.members) < MOST_MEMBERS:
        group.members.append((id, own))


def _series(name: str, group: _Group, is_folder: bool) -> Series:
    run, n_documents = group.first, len(group.first.documents)
    is_single = group.n == 1
    middle = middle_positions(n_documents) if n_documents else ()
    budget = {kind: value / group.n for kind, value in group.budget.items()}
    curves = {}
    if n_documents:
        curves = {norm: _curves(group, norm, middle) for norm in NORMS if norm in group.norms}
    common = (curves, middle, budget)
    documents = run.documents if is_single else tuple(map(str, range(n_documents)))
    left_out = group.n - len(group.rows)
    table = Table(
        "Prompts",
        ("prompt", "tokens", "answer tokens", "head/middle", "tail/middle", "sinks", "log-prob. of answer", "answer"),
        tuple(group.rows),
        (False, True, True, True, True, True, True, False),
        f"{count(left_out, 'more prompt')} not listed; they count in the means." if left_out else "",
    )
    share = curves["share"].heads if curves else None
    ratios = {}
    if share is not None:
        for key, end in (("head_middle", 0), ("tail_middle", -1)):
            ratios[key] = end_ratio(share, end, middle)
        ratios["document_mass"] = group.mean("document mass", "all")
    return Series(
        name=name,
        kind="runs" if is_folder else "run",
        documents=documents,
        tokens=group.mean("tokens", "all") if n_documents else np.zeros(0),
        middle=middle,
        model_layers=run.layers,
        n_heads=run.mass.shape[1],
        curves={"raw": curves} if curves else {},
        ratios=ratios,
        members=() if is_single else tuple(group.members),
        budget=budget,
        verdict=run_verdict(*common, documents) if is_single else runs_verdict(*common, group.n, group.ends),
        tables={"prompts": table},
        facts=merged(group.facts),
        warnings=tuple(_warning(text, ids, is_single) for text, ids in group.warnings.items()),
    )


def _curves(group: _Group, norm: str, middle: tuple[int, ...]) -> Curves:
    values = group.mean(norm, "all")
    ends = [
        end_ratio(values, end, middle) if norm != "advantage" else _difference(values, end, middle) for end in (0, -1)
    ]
    uniform = {"density": 1.0, "advantage": 0.0}.get(norm)
    name = "uniform mass" if norm == "mass" else "uniform share"
    return Curves(
        values=values,
        layers=group.mean(norm, "layers"),
        heads=group.mean(norm, "heads"),
        uniform=group.mean(name, "all") if uniform is None else np.full(len(values), uniform),
        head_text=decimal(float(ends[0])),
        tail_text=decimal(float(ends[1])),
    )


def _difference(values: np.ndarray, end: int, middle: tuple[int, ...]) -> float:
    return float(values[end] - values[list(middle)].mean()) if middle else math.nan


def _warning(text: str, ids: list[str], is_single: bool) -> str:
    if is_single:
        return text
    more = f" and {count(len(ids) - 1, 'more prompt')}" if len(ids) > 1 else ""
    return f"{ids[0]}{more}: {text}"
