"""Measure what the heads of a model do over a prompt file: cells on disk, heads chosen, table and picture written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprobe.architecture import uses_interface
from attnprobe.distractors import study_records
from attnprobe.errors import InputError
from attnprobe.estimate import model_shape
from attnprobe.estimates import defined
from attnprobe.grid import Cell, read_cells, run_cells
from attnprobe.heads import HeadScores, RunScores, by_question
from attnprobe.heads_cells import measure_cell, random_orders, stored_scores
from attnprobe.heads_needle import needle_place
from attnprobe.heads_options import SCORES, HeadsOptions
from attnprobe.heads_selection import Selection, select
from attnprobe.readers import PromptRecord
from attnprobe.rotating import Question, questions_of
from attnprobe.run_settings import run_settings
from attnprobe.study_cells import StudyCell
from attnprobe.study_folder import CellStore
from attnprobe.terminal import count, named, say, say_unfinished

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel

SUMMARY, TABLE, PICTURE = "heads.json", "heads.csv", "heads.png"


@dataclass(frozen=True, eq=False)
class HeadsResult:
    """What was found on one model.

    Parameters
    ----------
    model
        Its name.
    options
        What was measured and chosen.
    scores
        Of every question of which all orders were measured.
    selection
        Heads chosen on one half of the questions, with results from the other.
    incomplete
        Questions that were left out, and why.
    answers
        The answer of each question's first order.
    """

    model: str
    options: HeadsOptions
    scores: HeadScores
    selection: Selection
    incomplete: Mapping[str, str]
    answers: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """The findings as JSON values; every head is in ``table``."""
        recalled, orders = self.scores.n_recalled.tolist(), self.scores.n_orders.tolist()
        return {
            "model": self.model,
            "options": self.options.to_dict(),
            "layers": list(self.scores.layers),
            "n_heads": self.scores.retrieval.shape[2],
            "questions": [
                {"id": id, "orders": n, "recalled": r, "answer": self.answers[id]}
                for id, n, r in zip(self.scores.questions, orders, recalled, strict=True)
            ],
            "incomplete": dict(self.incomplete),
            "selection": self.selection.to_dict(),
        }

    def table(self) -> list[dict[str, Any]]:
        """One row a head: every score, mean over questions, and what the choice made of it."""
        chosen = {(one.layer, one.head): one for one in self.selection.heads}
        means = {name: self.scores.mean(name) for name in SCORES}
        rows = []
        for number, layer in enumerate(self.scores.layers):
            for head in range(self.scores.retrieval.shape[2]):
                one = chosen.get((layer, head))
                held_out = None if one is None else one.held_out
                rows.append(
                    {
                        "layer": layer,
                        "head": head,
                        **{name: defined(float(values[number, head])) for name, values in means.items()},
                        "chosen": one is not None,
                        "chosen_on": None if one is None else one.chosen_on,
                        "held_out": None if held_out is None else held_out.estimate,
                        "held_out_low": None if held_out is None else held_out.low,
                        "held_out_high": None if held_out is None else held_out.high,
                        "p": None if one is None else one.p,
                    }
                )
        return rows


def run_heads(
    model: str,
    prompts: Path,
    options: HeadsOptions,
    out: Path,
    *,
    n_documents: int | None = None,
    limit: int | None = None,
    form: Mapping[str, str] | None = None,
    loading: Mapping[str, Any] | None = None,
    retry_failed: bool = False,
    quiet: bool = False,
) -> HeadsResult | None:
    """Measure the heads of a model over a prompt file, and write table, picture and summary beside the cells.

    Parameters
    ----------
    model
        Alias, hub id, folder or file.
    prompts
        A prompt file of any of the known formats.
    options
        What to measure and how to choose.
    out
        A folder that keeps every finished cell; a second call goes on from it.
    n_documents
        Fill questions with fewer documents up with distractors from the file's other questions; None leaves them.
    limit
        Questions to take; None for all.
    form, loading
        Layout, markers and template of the prompts; arguments of :func:`attnprobe.load`.
    retry_failed, quiet
        As in :func:`measure_heads`.

    Returns
    -------
    HeadsResult or None
        None where other processes are still measuring: the last one writes the results.

    Raises
    ------
    InputError
        Prompts or options that do not fit; a folder of another measurement.
    """
    from attnprobe.csv_text import table_csv
    from attnprobe.models import load
    from attnprobe.report.heads_figure import save_heads_figure
    from attnprobe.run_folder import write_text

    read = study_records(prompts, n_documents, limit=limit, seed=options.seed, **(form or {}))  # type: ignore[arg-type]
    for warning in (*read.warnings, *read.refused):
        say(f"note: {warning}", quiet)
    lm = load(model, progress=not quiet, **(loading or {}))
    result = measure_heads(lm, read.records, options, out, retry_failed=retry_failed, quiet=quiet)
    if result is None:
        say_unfinished(quiet)
        return None
    write_text(out / SUMMARY, json.dumps(result.to_dict(), indent=1, allow_nan=False) + "\n")
    write_text(out / TABLE, table_csv(result.table()))
    save_heads_figure(result, out / PICTURE)
    say(f"{SUMMARY}, {TABLE}, {PICTURE} in {out}", quiet)
    return result


def measure_heads(
    lm: LanguageModel,
    records: Sequence[PromptRecord],
    options: HeadsOptions,
    out: Path,
    *,
    retry_failed: bool = False,
    quiet: bool = True,
) -> HeadsResult | None:
    """Measure every question in some random orders, score the heads and choose among them.

    Questions of which no single document holds the answer are left out.

    Parameters
    ----------
    lm
        The model.
    records
        One a question, all with the same number of documents, two or more.
    options
        What to measure and how to choose.
    out
        A folder that keeps every finished cell; a second call goes on from it.
    retry_failed
        Measure cells again that failed before.
    quiet
        No messages or progress on standard error.

    Returns
    -------
    HeadsResult or None
        None where other processes are still measuring.

    Raises
    ------
    InputError
        Questions or options that do not fit; a folder of another measurement; no question that was measured.
    """
    _check_model(lm, options)
    questions = _questions(records, options, quiet)
    accepted = {q.number: _accepted(records[q.number]) for q in questions}
    cells = _cells(lm, questions, options)
    store = CellStore.open(out)

    def do(cell: Cell, relief: int) -> dict[str, Any]:
        work: StudyCell = cell.work
        answer = next(q.answer for q in questions if q.number == work.question)
        result = measure_cell(lm, work, answer, accepted[work.question], options, relief)
        store.put(work.key, result)
        return result.facts

    orders = count(len(cells) // len(questions), "random order")
    say(f"{lm.source.name}: {count(len(questions), 'question')} x {orders}", quiet)
    config = _config(lm, questions, accepted, options)
    done = run_cells(out / "cells", config, cells, do, quiet=quiet, retry_failed=retry_failed)
    return _result(lm.source.name, questions, cells, store, out, options) if done.complete else None


def _check_model(lm: LanguageModel, options: HeadsOptions) -> None:
    if not uses_interface(lm.model):
        raise InputError(
            f"{type(lm.model).__name__} does not use transformers' attention interface; heads are scored by their "
            "heaviest tokens, which its eager weights are not searched for. Measure such a model with measure()"
        )
    n_heads = sum(layer.n_heads for layer in model_shape(lm).layers)
    if options.n_heads > n_heads:
        raise InputError(
            f"n_heads is {options.n_heads:,}, but {lm.source.name} has {count(n_heads, 'head')} in all; choose fewer "
            "(--top)"
        )


def _questions(records: Sequence[PromptRecord], options: HeadsOptions, quiet: bool) -> list[Question]:
    forced: list[str | None] | None = None
    if options.answers == "file":
        forced = [record.prompt.answer for record in records]
        without = [record.prompt.id for record in records if not record.prompt.answer]
        if without:
            raise InputError(
                f"{len(without)} of {len(records)} questions have no answer to force, e.g. {without[0]!r}; give each "
                'one, or let the model write its own (answers="generate")'
            )
    asked = questions_of(records, forced)
    questions = [question for question in asked if question.gold is not None]
    if not questions:
        raise InputError(
            f"question {asked[0].id!r}, and every other one: none or several of the documents hold the answer; heads "
            'are scored on questions of which one document is the needle\'s, so mark it in the file ("gold"), or give '
            "answers"
        )
    if without := [question.id for question in asked if question.gold is None]:
        say(
            f"note: {len(without)} of {len(asked)} questions left out, as none or several of their documents hold the "
            f"answer: {named(without)}",
            quiet,
        )
    for question in questions:
        assert question.gold is not None
        label = f"question {question.id!r}: document {question.gold}"
        text = question.prompt.documents[question.gold].text
        needle_place(text, options.needle, _accepted(records[question.number]), label)
    return questions


def _accepted(record: PromptRecord) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in (*record.answers, record.prompt.answer) if text))


def _cells(lm: LanguageModel, questions: Sequence[Question], options: HeadsOptions) -> list[Cell]:
    """Every order of every question; the cost of a cell is its tokens."""
    cells = []
    for question in questions:
        tokens = float(question.prompt.encode(lm.tokenizer).n_tokens)
        for order in random_orders(len(question.prompt.documents), options.orders, (options.seed, question.number)):
            work = StudyCell(question.number, order, "heads", question.prompt, question.gold)
            cells.append(Cell(work.key, tokens, work))
    return cells


def _config(
    lm: LanguageModel, questions: Sequence[Question], accepted: Mapping[int, Sequence[str]], options: HeadsOptions
) -> dict[str, Any]:
    """What two sittings must have in common, as JSON values."""
    content = [[asdict(q.prompt), q.answer, q.gold, accepted[q.number]] for q in questions]
    return {
        "kind": "heads",
        "questions": len(questions),
        "questions_sha256": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
        "options": options.measured(),
        "model": run_settings(lm, options.answers, 1, {"max_new_tokens": options.max_new_tokens}),
        "model_name": lm.source.name,
    }


def _result(
    model: str,
    questions: Sequence[Question],
    cells: Sequence[Cell],
    store: CellStore,
    out: Path,
    options: HeadsOptions,
) -> HeadsResult:
    records = read_cells(out / "cells")
    scores: list[RunScores] = []
    ids: list[str] = []
    incomplete: dict[str, str] = {}
    answers: dict[str, str] = {}
    for question in questions:
        own = [records[cell.key] for cell in cells if cell.work.question == question.number]
        failed = [record for record in own if record["status"] != "done"]
        if failed:
            incomplete[question.id] = str(failed[0]["error"])
            continue
        scores += [stored_scores(store.get(record["key"]), record["result"]) for record in own]
        ids += [question.id] * len(own)
        answers[question.id] = own[0]["result"]["answer"]
    if not scores:
        first, why = next(iter(incomplete.items()))
        raise InputError(f"no question was measured; the first, {first!r}: {why}")
    found = by_question(scores, ids)
    selection = select(
        found, options.by, n_heads=options.n_heads, split=options.split, seed=options.seed, level=options.level
    )
    return HeadsResult(model, options, found, selection, incomplete, answers)
