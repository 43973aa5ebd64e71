"""What many runs say together: a result for each prompt, and the mean curve of prompts with as many documents.

A result is small where a run is large, so that thousands of prompts fit in memory while their runs are on disk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprobe.architecture import attention_layers
from attnprobe.csv_text import csv_text
from attnprobe.curve import Curve, Heads, Layers
from attnprobe.errors import InputError
from attnprobe.run import Run
from attnprobe.spans import SPAN_KINDS

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel

CSV_HEADER = ("row", "prompt", "documents", "position", "document", "norm", "value", "tokens", "prompts")


@dataclass(frozen=True)
class Selection:
    """How curves are made of runs; the arguments of ``Run.curve``."""

    norm: str = "share"
    layers: Layers = None
    heads: Heads = None


@dataclass(frozen=True, eq=False)
class PromptResult:
    """One measured prompt.

    Parameters
    ----------
    number
        Place in the prompt file, from 0.
    id
        Of the prompt.
    file
        Of its run, relative to the output folder.
    answer, answer_logprob
        The answer's text, and its log-probability, natural log, summed over tokens.
    n_prompt, n_answer
        Tokens.
    document_tokens
        Tokens of each document.
    curve
        None where the prompt has no documents.
    budget
        Mean mass of each kind of span over the chosen layers and heads; sums to 1.
    residual
        Of the run, nats.
    warnings
        Of the run.
    is_reused
        Whether the run was there already.
    """

    number: int
    id: str
    file: str
    answer: str
    answer_logprob: float
    n_prompt: int
    n_answer: int
    document_tokens: tuple[int, ...]
    curve: Curve | None
    budget: dict[str, float]
    residual: float
    warnings: tuple[str, ...]
    is_reused: bool

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {
            "number": self.number,
            "id": self.id,
            "file": self.file,
            "answer": self.answer,
            "answer_logprob": self.answer_logprob,
            "prompt_tokens": self.n_prompt,
            "answer_tokens": self.n_answer,
            "document_tokens": list(self.document_tokens),
            "curve": None if self.curve is None else self.curve.to_dict(),
            "budget": self.budget,
            "residual": self.residual,
            "warnings": list(self.warnings),
            "reused": self.is_reused,
        }


@dataclass(frozen=True, eq=False)
class Group:
    """The mean over all prompts with the same number of documents.

    Parameters
    ----------
    n_documents, n_prompts
        How many documents each prompt has, and how many prompts there are.
    curve
        Mean of the prompts' curves; None without documents.
    defined
        At each position, how many prompts have a value there.
    budget
        Mean budget.
    residual
        Largest of the prompts', nats.
    """

    n_documents: int
    n_prompts: int
    curve: Curve | None
    defined: tuple[int, ...]
    budget: dict[str, float]
    residual: float

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {
            "n_documents": self.n_documents,
            "n_prompts": self.n_prompts,
            "curve": None if self.curve is None else self.curve.to_dict(),
            "defined": list(self.defined),
            "budget": self.budget,
            "residual": self.residual,
        }


def check_selection(lm: LanguageModel, selection: Selection, keep_rows: bool) -> None:
    """Raise InputError, before hours of work, for a curve that could not be made of the runs."""
    if selection.norm in ("density", "advantage") and not keep_rows:
        raise InputError(f'norm "{selection.norm}" needs every row, but no rows are to be kept; leave out --no-rows')
    n_layers, n_heads = lm.config.num_hidden_layers, lm.config.num_attention_heads
    layers = {index for _, index in attention_layers(lm.model)} or set(range(n_layers))
    pairs = [entry for entry in _listed(selection.heads) if isinstance(entry, tuple)]
    if pairs and selection.layers is not None:
        raise InputError("heads are (layer, head) pairs, which name the layers already; leave the layers out")
    wanted_layers = [*_listed(selection.layers), *(layer for layer, _ in pairs)]
    wanted_heads = [entry[1] if isinstance(entry, tuple) else entry for entry in _listed(selection.heads)]
    for what, wanted, known in (("layer", wanted_layers, layers), ("head", wanted_heads, set(range(n_heads)))):
        for number in wanted:
            if number not in known:
                raise InputError(f"{what} {number} is not in this model; its {what}s are {_ranges(sorted(known))}")


def _listed(choice: Any) -> list[Any]:
    if choice is None or isinstance(choice, slice):
        return []
    return list(choice) if hasattr(choice, "__len__") else [choice]


def _ranges(numbers: list[int]) -> str:
    first, last = numbers[0], numbers[-1]
    return f"{first} to {last}" if len(numbers) == last - first + 1 else ", ".join(map(str, numbers))


def prompt_result(run: Run, number: int, id: str, file: str, selection: Selection, is_reused: bool) -> PromptResult:
    """Summarise a run.

    Raises
    ------
    InputError
        As ``Run.curve``, for a norm, layer or head that the run does not have.
    """
    curve = None
    if run.documents:
        curve = run.curve(norm=selection.norm, layers=selection.layers, heads=selection.heads)
    return PromptResult(
        number=number,
        id=id,
        file=file,
        answer=run.answer,
        answer_logprob=float(run.answer_logprob.sum(dtype=np.float64)),
        n_prompt=run.n_prompt,
        n_answer=len(run.answer_ids),
        document_tokens=tuple(run.spans[i].n_tokens for i in run.document_spans),
        curve=curve,
        budget=run.budget() if curve is None else _budget(run, curve),
        residual=run.residual,
        warnings=run.warnings,
        is_reused=is_reused,
    )


def groups(results: Sequence[PromptResult]) -> list[Group]:
    """Mean results of prompts with as many documents, by that number."""
    by_number: dict[int, list[PromptResult]] = {}
    for result in results:
        by_number.setdefault(len(result.document_tokens), []).append(result)
    return [_group(number, by_number[number]) for number in sorted(by_number)]


def curve_csv(results: Sequence[PromptResult], means: Sequence[Group]) -> str:
    """The curves in long form: a line for each prompt and position, then one for each mean and position.

    Undefined values are empty. ``tokens`` are the document's, in a mean their mean; ``prompts`` counts the values
    that went into it.
    """
    rows: list[tuple[Any, ...]] = []
    for result in results:
        if result.curve is not None:
            for row, tokens in zip(result.curve.table(), result.document_tokens, strict=True):
                place = (len(result.document_tokens), row["position"], row["document"])
                rows.append(("prompt", result.id, *place, result.curve.norm, row["value"], tokens, 1))
    for group in means:
        if group.curve is not None:
            members = [r.document_tokens for r in results if len(r.document_tokens) == group.n_documents]
            tokens = np.mean(members, axis=0)
            for row, mean_tokens, n in zip(group.curve.table(), tokens, group.defined, strict=True):
                place = (group.n_documents, row["position"], "")
                rows.append(("mean", "", *place, group.curve.norm, row["value"], float(mean_tokens), n))
    return csv_text(CSV_HEADER, rows)


def _budget(run: Run, curve: Curve) -> dict[str, float]:
    """Mean mass of each kind of span over the layers and heads of a curve."""
    chosen = np.zeros(run.mass.shape[:2], dtype=bool)
    for entry in curve.heads:
        pairs = [entry] if isinstance(entry, tuple) else [(layer, entry) for layer in curve.layers]
        for layer, head in pairs:
            chosen[run.layers.index(layer), head] = True
    mean = run.mass[chosen].mean(axis=0, dtype=np.float64)
    return {kind: math.fsum(mean[i] for i, span in enumerate(run.spans) if span.kind == kind) for kind in SPAN_KINDS}


def _group(n_documents: int, results: list[PromptResult]) -> Group:
    curves = [result.curve for result in results if result.curve is not None]
    curve, defined = _mean_curve(curves) if curves else (None, ())
    budget = {kind: math.fsum(r.budget[kind] for r in results) / len(results) for kind in SPAN_KINDS}
    return Group(n_documents, len(results), curve, defined, budget, max(result.residual for result in results))


def _mean_curve(curves: list[Curve]) -> tuple[Curve, tuple[int, ...]]:
    """Mean over prompts at each position, undefined values left out; geometric for the log share, as its norm is."""
    first = curves[0]
    values = np.stack([curve.values for curve in curves])
    defined = (~np.isnan(values)).sum(axis=0)
    is_log = first.norm == "log_share"
    with np.errstate(divide="ignore", invalid="ignore"):
        total = np.nansum(np.log(values) if is_log else values, axis=0)
        mean = np.where(defined > 0, total / defined, np.nan)
    names = first.documents if len(curves) == 1 else tuple(map(str, range(len(first.documents))))
    mean_curve = Curve(np.exp(mean) if is_log else mean, first.norm, names, first.middle, first.layers, first.heads)
    return mean_curve, tuple(defined.tolist())
