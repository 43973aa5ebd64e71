"""One cell of a head measurement: one question with its documents in one order, measured and scored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprobe.designs import Order
from attnprobe.heads import RunScores, run_scores
from attnprobe.heads_options import SCORES, HeadsOptions
from attnprobe.measuring import measure
from attnprobe.secondary_sinks import carried, find_secondary_sinks
from attnprobe.study_cells import CellResult, StudyCell, relieved_chunk
from attnprobe.study_options import NOTHING, StudyOptions, ordered_prompt, variant_prompt

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel


def random_orders(n_documents: int, n_orders: int, seed: Sequence[int]) -> tuple[Order, ...]:
    """Random orders, all different; fewer than asked for where the documents have no more."""
    rng = np.random.default_rng(seed)
    wanted = n_orders if n_documents > 10 else min(n_orders, math.factorial(n_documents))
    found: dict[tuple[int, ...], None] = {}
    while len(found) < wanted:
        found[tuple(int(document) for document in rng.permutation(n_documents))] = None
    return tuple(Order(0, number, permutation) for number, permutation in enumerate(found))


def measure_cell(
    lm: LanguageModel,
    cell: StudyCell,
    forced: str | None,
    accepted: Sequence[str],
    options: HeadsOptions,
    relief: int = 0,
) -> CellResult:
    """Measure and score one cell; its gold document is known.

    Parameters
    ----------
    lm
        The model.
    cell
        What to measure.
    forced
        The answer to force; None lets the model write its own.
    accepted
        Answers that count as recalling the needle.
    options
        Of the measurement.
    relief
        How often this cell ran out of memory; see :func:`attnprobe.study_cells.relieved_chunk`.
    """
    assert cell.gold_position is not None
    common: dict[str, Any] = {
        "prefill_chunk": relieved_chunk(lm, relief),
        "beyond_window": options.beyond_window,
    }
    prompt = ordered_prompt(cell.prompt, cell.order.permutation)
    sinks: tuple[int, ...] = ()
    if options.sinks:
        null = measure(
            lm, variant_prompt(prompt, "null", StudyOptions()), answer=NOTHING, extras=("columns",), **common
        )
        sinks = carried(find_secondary_sinks(null), null, prompt.encode(lm.tokenizer))
    run = measure(
        lm,
        prompt,
        answer=forced,
        max_new_tokens=options.max_new_tokens,
        extras=("top", "distance"),
        secondary_sinks=sinks,
        **common,
    )
    scores = run_scores(run, cell.gold_position, needle=options.needle, answers=accepted, tokenizer=lm.tokenizer)
    facts = {
        "question": cell.question,
        "id": cell.prompt.id,
        "permutation": list(cell.order.permutation),
        "gold_position": cell.gold_position,
        "answer": run.answer,
        "recalled": scores.recalled,
        "n_needle": scores.n_needle,
        "n_prompt": run.n_prompt,
        "layers": list(run.layers),
        "secondary_sinks": list(sinks),
        "warnings": list(run.warnings),
    }
    return CellResult({name: getattr(scores, name).astype(np.float32) for name in SCORES}, facts, {})


def stored_scores(arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> RunScores:
    """The scores of a cell from what was kept of it."""
    return RunScores(
        **{name: arrays[name].astype(np.float64) for name in SCORES},
        layers=tuple(facts["layers"]),
        n_needle=facts["n_needle"],
        recalled=facts["recalled"],
    )
