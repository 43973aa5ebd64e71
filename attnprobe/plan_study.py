"""Plan a study without loading weights: its cells, what they feed, time, memory and disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprobe.architecture import uses_interface
from attnprobe.blueprint import Blueprint
from attnprobe.designs import Order
from attnprobe.errors import InputError
from attnprobe.estimate import (
    DECODE_EFFICIENCY,
    ModelShape,
    Rates,
    Workload,
    memory,
    model_shape,
    probe,
    run_file_bytes,
    seconds,
)
from attnprobe.extras import n_distance_bins
from attnprobe.plan import about_model
from attnprobe.prefix_cache import keeps_every_key, n_common
from attnprobe.prompt import encode_answer
from attnprobe.rope import changes_with_length
from attnprobe.rotating import Question, matched_question, question_orders
from attnprobe.spans import question_tokens
from attnprobe.study_cells import ASKED, KINDS, own_answer_tokens
from attnprobe.study_options import NOTHING, StudyOptions, check_tokens, variant_prompt
from attnprobe.terminal import work_bar

if TYPE_CHECKING:
    from attnprobe.encode import EncodedPrompt
    from attnprobe.models import LanguageModel

CELL_SECONDS = 0.15
"""What a cell takes beside its passes on a CPU: encoding, reductions to documents, writing its files."""


@dataclass(frozen=True)
class StudyPlan:
    """What a study will take.

    Parameters
    ----------
    model, n_parameters, dtype, device, attn_implementation, max_positions, is_converted, rates
        As in :class:`attnprobe.plan.Plan`.
    questions, documents, orders
        Questions, documents of each, and orders of each question.
    cells
        How many: ``own`` (the model's own answers), and of each variant. ``null`` has none: it is measured in the cells
        of ``asked``, the prompts as they are.
    tokens
        Tokens of prompts and answers that are fed; keys and values that one pass takes over from another are not.
    longest
        Tokens of the longest prompt with its answer.
    too_long
        Ids of the questions of which a prompt does not fit the model's window.
    memory
        Bytes at the peak, by what needs them.
    disk
        Bytes of ``arrays`` and of whole ``runs``; tables and pictures apart.
    seconds
        Loading apart; answers as long as allowed. An estimate, as in :class:`attnprobe.plan.Plan`.
    """

    model: str
    n_parameters: int
    dtype: str
    device: str
    attn_implementation: str
    max_positions: int | None
    is_converted: bool
    questions: int
    documents: int
    orders: int
    cells: dict[str, int]
    tokens: int
    longest: int
    too_long: tuple[str, ...]
    memory: dict[str, float]
    disk: dict[str, int]
    seconds: float
    rates: Rates

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {**asdict(self), "fits": not self.too_long, "peak_bytes": sum(self.memory.values())}


@dataclass(frozen=True)
class Pass:
    """A forced pass, or a generation (``OWN``), of which ``n_reused`` tokens are not fed; and what it measures."""

    n_prompt: int
    n_answer: int
    n_spans: int
    n_reused: int = 0
    variant: str | None = None

    @property
    def n_tokens(self) -> int:
        """Of prompt and answer."""
        return self.n_prompt + self.n_answer

    @property
    def n_fed(self) -> int:
        """Of a forced pass: nothing reads the last answer token."""
        return self.n_tokens - 1 - self.n_reused


OWN = "own"
"""The variant of a pass in which the model writes its own answer."""


def plan_study(
    blueprint: Blueprint, questions: Sequence[Question], options: StudyOptions, keep_runs: int, quiet: bool = True
) -> StudyPlan:
    """Plan a study on a model.

    Parameters
    ----------
    blueprint
        The model without its weights.
    questions
        From :func:`attnprobe.rotating.questions_of`.
    options
        Of the study.
    keep_runs
        Bytes of whole run files to keep.
    quiet
        Show no progress.

    Raises
    ------
    InputError
        As the study itself, as far as that can be told without weights.
    """
    lm = blueprint.lm
    check_interface(lm)
    passes: Counter[Pass] = Counter()
    cells: Counter[str] = Counter()
    too_long: dict[str, None] = {}
    n_documents = len(questions[0].prompt.documents)
    with work_bar("reading", len(questions), quiet) as advance:
        for number, question in enumerate(questions):
            own_orders = question_orders(question, options)
            cells[OWN] += len(own_orders) if question.answer is None else 1
            for variant in _with_cells(options):
                cells[variant] += len(own_orders)
            for one in _passes(blueprint, question, own_orders, options):
                passes[one] += 1
                if one.n_tokens > (lm.max_positions or one.n_tokens):
                    too_long[question.id] = None
            advance(number + 1, f"{number + 1}/{len(questions)}")
    shape = model_shape(lm)
    rates = probe(shape, lm.model.dtype, blueprint.device)
    longest = max(passes, key=lambda one: one.n_tokens)
    return StudyPlan(
        **about_model(blueprint, shape),
        questions=len(questions),
        documents=n_documents,
        orders=cells[ASKED] // len(questions),
        cells=dict(cells),
        tokens=sum(n * (one.n_tokens - one.n_reused) for one, n in passes.items()),
        longest=longest.n_tokens,
        too_long=tuple(too_long),
        # As one that writes: a prefix cache holds the keys of all layers, too.
        memory=memory(lm, shape, Workload(longest.n_prompt, longest.n_answer, longest.n_spans)),
        disk=_disk(shape, passes, n_documents, options, keep_runs),
        seconds=sum(n * pass_seconds(shape, one, rates) for one, n in passes.items()) + CELL_SECONDS * cells.total(),
        rates=rates,
    )


def check_interface(lm: LanguageModel) -> None:
    """Raise InputError for a model of which a study cannot measure all that it does."""
    if not uses_interface(lm.model):
        raise InputError(
            f"{type(lm.model).__name__} does not use transformers' attention interface; it cannot be studied"
        )


def _with_cells(options: StudyOptions) -> tuple[str, ...]:
    return (ASKED, *(variant for variant in options.variants if variant != "null"))


def _passes(
    blueprint: Blueprint, question: Question, own_orders: Sequence[Order], options: StudyOptions
) -> Iterator[Pass]:
    """Every pass of a question. A prompt is encoded in the file's order; other orders move a token here or there."""
    lm = blueprint.lm
    # Prompts of another length have other frequencies, but inside the original length: that is not counted on.
    reuses = keeps_every_key(lm.model) and not changes_with_length(lm.model.config)
    prompt = matched_question(lm, question, options).prompt
    asked = prompt.encode(lm.tokenizer)
    n_answer = options.max_new_tokens
    if question.answer is not None:
        n_answer = len(encode_answer(asked, lm.tokenizer, question.answer)[0])
    n_own = options.max_new_tokens if question.answer is None else own_answer_tokens(lm, asked.n_tokens, options)
    for _ in own_orders if question.answer is None else own_orders[:1]:
        yield Pass(asked.n_tokens, n_own, len(asked.spans) + 1, variant=OWN)
    shared = [0, *(_n_shared(before, order) for before, order in pairwise(own_orders))]
    for variant in _with_cells(options):
        plain = asked if variant == ASKED else variant_prompt(prompt, variant, options).encode(lm.tokenizer)
        check_tokens(variant, plain, asked, lm.source.name)
        n_spans = len(plain.spans) + 1
        row = (question_tokens(plain.spans) or (plain.n_tokens - 1, 0))[0]
        null = None
        if variant == ASKED and "null" in options.variants:
            null = variant_prompt(prompt, "null", options).encode(lm.tokenizer)
            n_null = len(encode_answer(null, lm.tokenizer, NOTHING)[0])
        for n_documents in shared:
            n_before = _n_until(plain, n_documents) if reuses else 0
            if null is not None:
                n_alike = n_common(np.asarray(null.token_ids), np.asarray(plain.token_ids)) if reuses else 0
                yield Pass(null.n_tokens, n_null, n_spans, min(n_before, n_alike), "null")
                n_before = n_alike
            yield Pass(plain.n_tokens, n_answer, n_spans, min(n_before, row), variant)
            if variant == ASKED and "effects" in options.extras:
                for _ in range(len(prompt.documents) + 1):
                    yield Pass(plain.n_tokens, n_answer, n_spans, plain.n_tokens - 1 if reuses else 0)


def _n_shared(before: Order, order: Order) -> int:
    """How many documents at the beginning two orders share."""
    same = [one == other for one, other in zip(before.permutation, order.permutation, strict=True)]
    return [*same, False].index(False)


def _n_until(encoded: EncodedPrompt, n_documents: int) -> int:
    """About how many tokens stand before the document that follows so many."""
    starts = sorted(span.segments[0][0] for span in encoded.spans if span.kind == "document" and span.segments)
    return starts[min(n_documents, len(starts) - 1)] if starts else 0


def pass_seconds(shape: ModelShape, one: Pass, rates: Rates) -> float:
    """Seconds of one pass; a short one reads all weights nevertheless."""
    is_forced = one.variant != OWN
    whole = seconds(shape, Workload(one.n_prompt, one.n_answer, one.n_spans, is_forced=is_forced), rates)
    saved = seconds(shape, Workload(one.n_reused, 0, one.n_spans, is_forced=True), rates)
    read = shape.bytes * shape.n_active / (rates.bytes * DECODE_EFFICIENCY)
    return max(whole - saved, read)


def _disk(
    shape: ModelShape, passes: Mapping[Pass, int], n_documents: int, options: StudyOptions, keep_runs: int
) -> dict[str, int]:
    """Bytes of the arrays of all cells (``study_cells.reduced``), and of the runs that are kept whole."""
    n_layers, n_heads = len(shape.layers), max(layer.n_heads for layer in shape.layers)
    heads = 4 * n_layers * n_heads
    arrays = runs = 0
    for one, n in passes.items():
        if one.variant in (None, OWN):
            continue
        # Of raw and trimmed: mass, density, advantage; of the first row and the later ones: mass.
        curves, bins = 6 + 1 + (one.n_answer > 1), 0
        if one.variant != "null":
            curves += 1  # the question's rows
        if one.variant == ASKED:
            curves += 3 * ("null" in options.variants) + ("values" in options.extras)
            bins = n_distance_bins(one.n_tokens) * ("distance" in options.extras)
        arrays += n * (heads * (n_documents * curves + bins) + 4 * (n_documents + bins))
        arrays += n * 4 * len(KINDS) * (n_layers + one.n_answer)  # budgets
        more = 2 * heads * one.n_answer * one.n_spans  # heaviest tokens and their masses
        # Mass of columns in the null run, else of the question's rows and of what keys write; of distances.
        weighted = one.variant == ASKED and "values" in options.extras
        more += heads * (one.n_tokens if one.variant == "null" else one.n_spans * (1 + weighted)) + heads * bins
        more += 8 * one.n_tokens + 4 * one.n_answer  # characters of the tokens, log-probabilities
        runs += n * (run_file_bytes(shape, Workload(one.n_prompt, one.n_answer, one.n_spans)) + more)
    return {"arrays": arrays, "runs": min(runs, keep_runs)}
