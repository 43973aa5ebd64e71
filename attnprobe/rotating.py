"""Studies: move every question's documents through all positions and measure each order."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attnprobe.answer_text import holds_answer
from attnprobe.architecture import uses_interface
from attnprobe.arguments import whole_number
from attnprobe.decoding import has_recurrent_layers
from attnprobe.designs import Order, orders
from attnprobe.errors import CaptureError, InputError
from attnprobe.grid import Cell, read_cells, run_cells
from attnprobe.measuring import measure, options_of, prepare
from attnprobe.models import LanguageModel
from attnprobe.prefix_cache import PrefixCache
from attnprobe.prompt import Prompt
from attnprobe.readers import PromptRecord
from attnprobe.run_settings import run_settings
from attnprobe.several_models import check_names
from attnprobe.study import Study
from attnprobe.study_cells import ASKED, StudyCell, measure_cell, own_answer_tokens, relieved_chunk
from attnprobe.study_data import StudyData
from attnprobe.study_folder import StudyFolder, folder_name
from attnprobe.study_lengths import length_matched
from attnprobe.study_options import NOTHING, StudyOptions, check_tokens, ordered_prompt, variant_prompt
from attnprobe.terminal import count, named, say

OWN = "own"
"""The cells in which the model writes its own answer."""

KEEP_RUNS = 2_000_000_000
"""Bytes of run files that a study keeps by default."""


@dataclass(frozen=True)
class Question:
    """One question: its prompt, the answer to force (None: the model's own), the gold document, and right answers."""

    number: int
    prompt: Prompt
    answer: str | None
    gold: int | None
    accepted: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The prompt's id, or its number."""
        return str(self.number) if self.prompt.id is None else self.prompt.id


def rotate(
    lm: LanguageModel | Sequence[LanguageModel],
    prompts: Sequence[Prompt | PromptRecord],
    answers: Sequence[str | None] | None = None,
    design: str = "williams",
    seed: int = 0,
    *,
    out: str | Path | None = None,
    keep_runs: int = KEEP_RUNS,
    retry_failed: bool = False,
    quiet: bool = True,
    **options: Any,
) -> Study:
    """Study attention by position: the same documents at all positions, question by question.

    A single prompt confounds where a document stands with what it says. Here every document of a question stands once
    at every position (``williams``, ``cyclic``) or one document moves through the others (``insertion``); the two
    estimate different things. "Position" still includes which documents stand before.

    Parameters
    ----------
    lm
        The model, or several, which are studied one after the other.
    prompts
        One a question, all with the same number of documents. At least five, or there are no intervals.
    answers
        The answer to force for each question, in every order, so that the same rows are measured in all of them. None
        lets the model write one in every order, and forces its most frequent one everywhere; how often they agree is
        in the study. A forced answer that the model would not write is counterfactual: its own, in the first order,
        stands beside it, cut where the model's window ends.
    design, seed
        See :class:`attnprobe.study_options.StudyOptions`.
    out
        A folder that keeps every finished cell; a second call goes on from it. None keeps nothing on disk. What was
        interrupted and gone on with equals what was not to about 5e-7, not to the last bit: a cell goes on from the
        keys and values of the one before it, and the first cell of a sitting has none.
    keep_runs
        Bytes of run files, with all rows, to keep under ``out``; what a study needs is kept whatever this is.
    retry_failed
        Measure cells again that failed before.
    quiet
        No messages or progress on standard error.
    options
        The other fields of :class:`attnprobe.study_options.StudyOptions`.

    Raises
    ------
    InputError
        Prompts, answers or options that do not fit; a model that cannot be studied, before any is measured; a folder
        of another study.
    """
    settings = StudyOptions.of({"design": design, "seed": seed, **options})
    whole_number("keep_runs", keep_runs, 0)
    models = [lm] if isinstance(lm, LanguageModel) else list(lm or ())
    if not models or not all(isinstance(one, LanguageModel) for one in models):
        raise InputError("lm must be a LanguageModel, or a list of them; use attnprobe.load(name)")
    check_names([one.source.name for one in models])
    asked = questions_of(prompts, answers)
    folder = None if out is None else Path(out)
    fitted = [fitted_questions(one, asked, settings) for one in models]
    for one, questions in zip(models, fitted, strict=True):
        check_extras(one, questions[0], settings, folder)
    found = [
        study_of_model(one, questions, settings, folder, keep_runs, retry_failed, quiet)
        for one, questions in zip(models, fitted, strict=True)
    ]
    data = {one.model: one for one in found if one is not None}
    if len(data) < len(models):
        raise InputError(
            f"other processes are still measuring; read the study with Study.load({str(out)!r}) once all have ended"
        )
    return Study(data, settings)


def questions_of(
    prompts: Sequence[Prompt | PromptRecord], answers: Sequence[str | None] | None = None
) -> list[Question]:
    """The questions of a study, checked.

    Raises
    ------
    InputError
        No prompts, different numbers of documents, an id used twice, or answers that do not fit.
    """
    if isinstance(answers, str):
        raise InputError("answers is one text; give a list of them, one a question")
    if isinstance(prompts, Prompt) or not prompts:
        raise InputError("a study needs a list of prompts, one a question")
    if answers is not None and len(answers) != len(prompts):
        raise InputError(f"{len(answers)} answers for {count(len(prompts), 'prompt')}; give one each")
    questions = []
    for number, item in enumerate(prompts):
        record = item if isinstance(item, PromptRecord) else PromptRecord(item, (), (), f"prompt {number}")
        prompt = record.prompt
        if not isinstance(prompt, Prompt) or prompt.given is not None:
            raise InputError(f"prompt {number} has no documents to move; a study takes prompts of documents")
        answer = None if answers is None else answers[number]
        if answers is not None and not (isinstance(answer, str) and answer.strip()):
            raise InputError(f"question {number} ({prompt.id or number}) has no answer to force; give one, or let the "
                             "model write its own for all (answers=None, or --answers generate)")  # fmt: skip
        accepted = _accepted(record, answer)
        questions.append(Question(number, prompt, answer, _gold(record, accepted), accepted))
    ids = Counter(question.id for question in questions)
    twice = [id for id, n in ids.items() if n > 1]
    if twice:
        raise InputError(f"two questions have the id {twice[0]!r}; make the ids unique")
    sizes = Counter(len(question.prompt.documents) for question in questions)
    if len(sizes) > 1:
        (common, _), (other, _) = sizes.most_common(2)
        odd = next(q for q in questions if len(q.prompt.documents) == other)
        raise InputError(
            f"question {odd.id!r} has {count(other, 'document')}, others {common}; a position curve needs one number "
            "(take questions of one number, or fill them up with distractors)"
        )
    if next(iter(sizes)) < 2:
        raise InputError("the prompts have one document each; there is nothing to move, so give two or more")
    return questions


def _accepted(record: PromptRecord, answer: str | None) -> tuple[str, ...]:
    """Every answer that counts as right."""
    return tuple(dict.fromkeys(text for text in (*record.answers, record.prompt.answer, answer) if text))


def _gold(record: PromptRecord, accepted: Sequence[str]) -> int | None:
    """The one document that holds the answer, as the file says, or as its text shows."""
    if record.gold:
        return record.gold[0] if len(record.gold) == 1 else None
    holding = [
        number
        for number, document in enumerate(record.prompt.documents)
        if accepted and holds_answer(document.text, accepted)
    ]
    return holding[0] if len(holding) == 1 else None


def study_of_model(
    lm: LanguageModel,
    questions: Sequence[Question],
    options: StudyOptions,
    out: Path | None,
    keep_runs: int = KEEP_RUNS,
    retry_failed: bool = False,
    quiet: bool = True,
) -> StudyData | None:
    """Study one model; see :func:`rotate`. None where other processes still measure cells of it.

    The questions are those of :func:`fitted_questions`.
    """
    own_orders = {q.number: question_orders(q, options) for q in questions}
    if out is None:
        with tempfile.TemporaryDirectory(prefix="attnprobe-study-") as temporary:
            folder = StudyFolder.open(Path(temporary), lm.source.name, keep_runs=0)
            return _measured(lm, questions, own_orders, options, folder, retry_failed, quiet)
    folder = StudyFolder.open(out, lm.source.name, keep_runs)
    return _measured(lm, questions, own_orders, options, folder, retry_failed, quiet)


def fitted_questions(lm: LanguageModel, questions: Sequence[Question], options: StudyOptions) -> list[Question]:
    """The questions as this model is going to be asked them, once all are known to be ones that it can be asked.

    Needs no weights: the model may be on torch's meta device.

    Raises
    ------
    InputError
        The model cannot be studied, or a question's prompt does not fit its window or has no tokens in its documents.
    """
    if not uses_interface(lm.model):
        raise InputError(
            f"{type(lm.model).__name__} does not use transformers' attention interface; a study needs the heaviest "
            "tokens, which its eager weights are not searched for. Measure such a model with measure()"
        )
    if "effects" in options.extras and has_recurrent_layers(lm.model):
        raise InputError(f"{type(lm.model).__name__} has recurrent layers, from which no document can be hidden; leave "
                         "the extra effects out")  # fmt: skip
    fitted = [matched_question(lm, question, options) for question in questions]
    for question in fitted:
        _check_question(lm, question, options)
    return fitted


def _check_question(lm: LanguageModel, question: Question, options: StudyOptions) -> None:
    settings = options_of({"max_new_tokens": options.max_new_tokens, "beyond_window": options.beyond_window})
    for variant in (ASKED, *options.variants):
        prompt = question.prompt if variant == ASKED else variant_prompt(question.prompt, variant, options)
        answer = NOTHING if variant == "null" else question.answer
        try:
            item = prepare(lm, question.number, replace(prompt, id=question.id), answer, settings)
        except InputError as error:
            raise InputError(f"{lm.source.name}: {error}") from error
        if variant == ASKED:
            asked = item.encoded
        check_tokens(variant, item.encoded, asked, lm.source.name)
        if not any(span.n_tokens for span in item.encoded.spans if span.kind == "document"):
            raise InputError(
                f"question {question.id!r}: its documents are all empty, so there is nothing to share attention out "
                "to; give them text, or leave the question out"
            )


def check_extras(lm: LanguageModel, question: Question, options: StudyOptions, out: Path | None) -> None:
    """Try the extras on two of a question's documents, unless cells of this model are there already.

    Only running a model shows whether it gives some of them.

    Raises
    ------
    InputError
        The model cannot give one; with the reason.
    """
    if not options.extras or (out is not None and StudyFolder.at(out / folder_name(lm.source.name)).has_cells):
        return
    prompt = replace(question.prompt, documents=question.prompt.documents[:2])
    cell = StudyCell(question.number, Order(0, 0, (0, 1)), ASKED, prompt, None)
    try:
        measure_cell(lm, cell, NOTHING, replace(options, variants=()))
    except (InputError, CaptureError) as error:
        raise InputError(
            f"{lm.source.name} cannot be studied with extras {', '.join(options.extras)}: {error}"
        ) from error


def matched_question(lm: LanguageModel, question: Question, options: StudyOptions) -> Question:
    """The question with its documents filled up to one length, where the options ask for that."""
    if not options.length_matched:
        return question
    return replace(question, prompt=length_matched(question.prompt, lm.tokenizer, options.seed, question.accepted))


def question_orders(question: Question, options: StudyOptions) -> tuple[Order, ...]:
    """The question's orders; each question has base orders of its own.

    Raises
    ------
    InputError
        The insertion design, where not one document is known to hold the answer.
    """
    if options.design == "insertion" and question.gold is None:
        raise InputError(
            f"question {question.id!r}: the insertion design moves the document that holds the answer, and none or "
            'several do; mark it in the file ("gold"), or use another design'
        )
    return orders(
        options.design,
        len(question.prompt.documents),
        bases=options.bases,
        seed=_seed(options.seed, question.number),
        needle=question.gold if options.design == "insertion" else None,
    )


def _seed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _measured(
    lm: LanguageModel,
    questions: Sequence[Question],
    own_orders: Mapping[int, Sequence[Order]],
    options: StudyOptions,
    folder: StudyFolder,
    retry_failed: bool,
    quiet: bool,
) -> StudyData | None:
    config = _config(lm, questions, options)
    generated = questions[0].answer is None
    own_cells = [
        StudyCell(q.number, order, OWN, q.prompt, q.gold)
        for q in questions
        for order in (own_orders[q.number] if generated else own_orders[q.number][:1])
    ]
    told = f"{count(len(questions), 'question')} x {count(len(own_orders[questions[0].number]), 'order')}"
    why = (
        "to find the most frequent ones, which are forced"
        if generated
        else "of one order each, to show beside the forced"
    )
    say(f"{lm.source.name}: first the model writes its own answers, {why}", quiet)
    own = _OwnAnswers(lm, options, folder.own, are_forced=generated)
    if not generated:
        own.say_short(own_cells, quiet)
    written = run_cells(
        folder.own,
        {**config, "part": OWN},
        _costed(lm, own_cells, options),
        own.measure,
        quiet=quiet,
        retry_failed=retry_failed,
        name=folder.path.parent,
    )
    if written.failed and not generated:
        key, error = written.failed[0]
        say(
            f"note: {count(len(written.failed), 'own answer')} failed and cannot be shown beside the forced, e.g. "
            f"{key}: {error}",
            quiet,
        )
    with_cells = [ASKED, *(variant for variant in options.variants if variant != "null")]
    cells = [
        StudyCell(q.number, order, variant, q.prompt, q.gold)
        for q in questions
        for variant in with_cells
        for order in own_orders[q.number]
    ]
    folder.describe(lm.source.name, questions, own_orders, options, with_cells)
    prefix = PrefixCache()
    by_number = {q.number: q for q in questions}

    def do(cell: Cell, relief: int) -> dict[str, Any]:
        work: StudyCell = cell.work
        question = by_number[work.question]
        answer = own.modal(question, own_orders[question.number]) if question.answer is None else question.answer
        result = measure_cell(lm, work, answer, options, prefix, relief)
        folder.store.put(work.key, result)
        right = question.answer is not None or holds_answer(result.facts["answer"], question.accepted)
        return {**result.facts, "answer_is_accepted": right}

    more = "" if len(with_cells) == 1 else f" x {len(with_cells)} ({', '.join(with_cells)})"
    say(f"{lm.source.name}: {told}{more}", quiet)
    result = run_cells(
        folder.cells,
        {**config, "part": "orders"},
        _costed(lm, cells, options),
        do,
        quiet=quiet,
        retry_failed=retry_failed,
        name=folder.path.parent,
    )
    return folder.load() if result.complete else None


class _OwnAnswers:
    """What the model writes by itself, and what it writes most often for a question.

    Answers that are forced have the same length at most in all orders; those that only stand beside the forced ones
    may be cut where the model's window ends.
    """

    def __init__(self, lm: LanguageModel, options: StudyOptions, folder: Path, are_forced: bool) -> None:
        self._lm, self._options, self._folder, self._are_forced = lm, options, folder, are_forced
        self._modal: dict[int, tuple[int, ...]] = {}

    def say_short(self, cells: Sequence[StudyCell], quiet: bool) -> None:
        """Say which answers have less room than they may take."""
        rooms = {cell.prompt.id or str(cell.question): self._most_tokens(_prompt_of(cell)) for cell in cells}
        short = [id for id, room in rooms.items() if room < self._options.max_new_tokens]
        if short:
            say(
                f"note: own answers to {count(len(short), 'question')} ({named(short)}) are cut where the model's "
                f"window ends, after {min(rooms.values())} tokens or more; --max-new-tokens asks for "
                f"{self._options.max_new_tokens}",
                quiet,
            )

    def _most_tokens(self, prompt: Prompt) -> int:
        if self._are_forced:
            return self._options.max_new_tokens
        return own_answer_tokens(self._lm, prompt.encode(self._lm.tokenizer).n_tokens, self._options)

    def measure(self, cell: Cell, relief: int) -> dict[str, Any]:
        """One answer, as facts of a cell."""
        return self._generate(cell.work, relief)

    def _generate(self, cell: StudyCell, relief: int = 0) -> dict[str, Any]:
        prompt = _prompt_of(cell)
        run = measure(
            self._lm,
            prompt,
            max_new_tokens=self._most_tokens(prompt),
            keep_rows=False,
            prefill_chunk=relieved_chunk(self._lm, relief),
            beyond_window=self._options.beyond_window,
        )
        return {
            "question": cell.question,
            "answer": run.answer,
            "answer_ids": list(run.answer_ids),
            "answer_logprob": float(np.sum(run.answer_logprob, dtype=np.float64)),
        }

    def modal(self, question: Question, orders: Sequence[Order]) -> tuple[int, ...]:
        """Token ids of the most frequent answer; of several, the one that comes first."""
        if question.number not in self._modal:
            cells = [StudyCell(question.number, order, OWN, question.prompt, question.gold) for order in orders]
            known = read_cells(self._folder)
            ids = []
            for cell in cells:
                record = known.get(cell.key)
                # Another process may not be done with it yet; decoding is greedy, so the answer is the same.
                facts = record["result"] if record and record["status"] == "done" else self._generate(cell)
                ids.append(tuple(facts["answer_ids"]))
            self._modal[question.number] = Counter(ids).most_common(1)[0][0]
        return self._modal[question.number]


def _prompt_of(cell: StudyCell) -> Prompt:
    return ordered_prompt(cell.prompt, cell.order.permutation)


def _costed(lm: LanguageModel, cells: Sequence[StudyCell], options: StudyOptions) -> list[Cell]:
    """Cells for the grid, question by question, the longest question first; the cost is about the tokens fed."""
    tokens: dict[tuple[int, str], int] = {}
    for cell in cells:
        key = cell.question, cell.variant
        if key not in tokens:
            plain = cell.variant in (ASKED, OWN)
            prompt = cell.prompt if plain else variant_prompt(cell.prompt, cell.variant, options)
            tokens[key] = prompt.encode(lm.tokenizer).n_tokens
    longest = {number: max(n for (other, _), n in tokens.items() if other == number) for number, _ in tokens}
    rank = {number: place for place, number in enumerate(sorted(longest, key=lambda number: -longest[number]))}
    # Behind the documents the null question, and each document hidden in turn, feed the last tokens once more.
    again = _TAIL * (("null" in options.variants) + len(cells[0].prompt.documents) * ("effects" in options.extras))
    return [
        Cell(
            cell.key,
            tokens[cell.question, cell.variant] + (again if cell.variant == ASKED else 0.0),
            cell,
            rank[cell.question],
        )
        for cell in cells
    ]


_TAIL = 60.0  # tokens; a guess for the time left, no more


def _config(lm: LanguageModel, questions: Sequence[Question], options: StudyOptions) -> dict[str, Any]:
    """What two sittings of one study must have in common, as JSON values."""
    content = [
        {
            "id": question.id,
            "question": question.prompt.question,
            "system": question.prompt.system,
            "instruction": question.prompt.instruction,
            "documents": [[document.id, document.text, document.source] for document in question.prompt.documents],
            "form": [question.prompt.layout, question.prompt.markers, question.prompt.template],
            "answer": question.answer,
            "gold": question.gold,
        }
        for question in questions
    ]
    return {
        "kind": "study",
        "questions": len(questions),
        "questions_sha256": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
        "options": options.to_dict(),
        "model": run_settings(lm, "file" if questions[0].answer is not None else "generate", 1, {}),
        "model_name": lm.source.name,
    }
