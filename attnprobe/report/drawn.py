"""What a figure is drawn from: one run, several alike, or a model's study; and how a note below it says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from attnprobe.errors import InputError
from attnprobe.report.facts import model_name
from attnprobe.report.figure_text import shown
from attnprobe.report.sources import Loaded, complete_questions
from attnprobe.run import Run
from attnprobe.spans import is_secondary
from attnprobe.study import Study
from attnprobe.terminal import count, percent

Source = Run | Iterable[Run | Loaded] | Study
"""One run, several of as many documents each (which are taken one by one), or the study of one model."""


@dataclass(frozen=True)
class Facts:
    """What a note says of a run."""

    prompt: str
    model: str
    layers: tuple[int, ...]
    n_heads: int
    n_prompt: int
    n_rows: int
    n_documents: int
    sinks_apart: bool


def facts_of(run: Run) -> Facts:
    """What a note says of a run."""
    return Facts(
        prompt=shown(run.prompt_id or "", "prompt"),
        model=shown(model_name(run.manifest), "model"),
        layers=run.layers,
        n_heads=run.mass.shape[1],
        n_prompt=run.n_prompt,
        n_rows=run.visible.shape[1],
        n_documents=len(run.documents),
        sinks_apart=any(is_secondary(span) for span in run.spans),
    )


def runs_of(source: Run | Iterable[Run | Loaded], documents: bool = True) -> Iterator[tuple[Run, Facts]]:
    """The runs of a source one by one, each with what a note says of it.

    Parameters
    ----------
    source
        One run or several.
    documents
        Whether runs must have documents, all as many.

    Raises
    ------
    InputError
        No run, a run without documents, or runs that differ in model, documents, layers or heads.
    """
    first: Facts | None = None
    first_name = ""
    for number, one in enumerate([source] if isinstance(source, Run) else source):
        run = one.run if isinstance(one, Loaded) else one
        own = facts_of(run)
        name = str(one.file) if isinstance(one, Loaded) else f"run {number} ({own.prompt})"
        if documents and not own.n_documents:
            raise InputError(f"{name} has no document spans, so there is nothing to draw by document")
        if first is None:
            first, first_name = own, name
        if own.model != first.model:
            raise InputError(
                f"{name} is of {own.model}, but {first_name} of {first.model}, and a mean is of one model; draw each "
                'model by itself, or both with the kind "compare"'
            )
        if own.layers != first.layers or own.n_heads != first.n_heads:
            raise InputError(f"{name} has other layers or heads than {first_name}; draw runs of one model")
        if documents and own.n_documents != first.n_documents:
            raise InputError(
                f"{name} has {own.n_documents} documents, but {first_name} has {first.n_documents}; draw runs "
                "of as many documents together"
            )
        yield run, own
    if first is None:
        raise InputError("there is no run to draw; give at least one")


def about_runs(facts: Sequence[Facts], layers: str = "") -> str:
    """The first sentence of a note: model, tokens, rows, and ``layers`` in the place of how many there are."""
    one = facts[0]
    models = ", ".join(dict.fromkeys(fact.model for fact in facts))
    what = f"one prompt ({one.prompt})" if len(facts) == 1 else count(len(facts), "prompt")
    tokens = _range([fact.n_prompt for fact in facts], "prompt token")
    rows = _range([fact.n_rows for fact in facts], "answer row")
    return f"{models}; {what}, {tokens}, {rows}; {layers or about_layers(one.layers, one.n_heads)}."


def about_study(study: Study, layers: str = "") -> str:
    """The first sentence of a note: model, questions, orders, and ``layers`` in the place of how many there are."""
    data = study.of()
    return (
        f"{shown(data.model, 'model')}; {complete_questions(study)} × "
        f"{count(len(data.orders[0]), 'order')} ({study.options.design}), {count(data.n_documents, 'document')}; "
        f"{layers or about_layers(data.layers, data.n_heads)}."
    )


def about_layers(layers: Sequence[int], n_heads: int) -> str:
    """``layer 3, 9 heads`` or ``mean of 30 layers × 9 heads``."""
    if len(layers) == 1:
        return f"layer {layers[0]}, {count(n_heads, 'head')}"
    return f"mean of {len(layers)} layers × {count(n_heads, 'head')}"


def about_study_sinks(study: Study) -> str:
    """A sentence of a note: what the secondary sinks of a study got, which count to their documents."""
    mass = study.budget()["secondary_sink"]
    if mass > 0:
        return f"Secondary sinks ({percent(mass)} of all attention) count to their documents."
    if "null" in study.of().variants:
        return "No secondary sinks were found."
    return "Secondary sinks were not looked for; if any, they count to their documents."


def about_sinks(facts: Sequence[Facts]) -> str:
    """A sentence of a note: what is done with secondary sinks, which each run has set apart or not."""
    apart = [fact.sinks_apart for fact in facts]
    if not any(apart):
        return "Secondary sinks, if any, count to their documents."
    where = "" if all(apart) else f" in {sum(apart)} of {len(apart)} prompts, where they were set apart"
    return f"Secondary sinks are left out{where}."


def _range(numbers: Sequence[int], what: str) -> str:
    low, high = min(numbers), max(numbers)
    return count(low, what) if low == high else f"{low:,} to {high:,} {what}s"
