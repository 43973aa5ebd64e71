"""One cell of a study: one question, its documents in one order, in one variant; measured, and reduced to arrays.

The ``null`` variant has no cells of its own. Its documents, and everything before them, are those of the prompt as it
is, so both are measured in one cell: null first, then the question over the keys and values that are there already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprobe.causal import effects
from attnprobe.decoding import may_chunk
from attnprobe.designs import Order
from attnprobe.measuring import measure
from attnprobe.norms import head_values
from attnprobe.prefix_cache import PrefixCache
from attnprobe.prompt import Prompt
from attnprobe.run import Run
from attnprobe.secondary_sinks import carried, find_secondary_sinks
from attnprobe.spans import SPAN_KINDS, budget_kind, is_secondary
from attnprobe.study_options import NOTHING, StudyOptions, ordered_prompt, variant_prompt

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel

ASKED = "asked"
"""The variant that is the prompt as it is."""

VIEWS = ("raw", "apart", "trimmed", "first", "later", "question", "weighted")
"""What of a run a curve is drawn from.

``raw``: everything; ``apart``: without the secondary sinks; ``trimmed``: without each document's heaviest token in each
row; ``first``, ``later``: the first answer row, the rows after it; ``question``: the question's own rows;
``weighted``: mass times the norm of what each key writes (needs the extra ``values``).
"""

KINDS = (*SPAN_KINDS, "secondary_sink")
"""Of a study's budget: ``sink`` is the first token alone, all other sinks are secondary."""

_RELIEVED = (2048, 512)


def relieved_chunk(lm: LanguageModel, relief: int) -> Any:
    """Tokens of the prompt to feed at a time once a cell ran out of memory ``relief`` times.

    Ever fewer, but for models that give other outputs when they are fed in chunks.
    """
    return "auto" if relief == 0 or not may_chunk(lm.model) else _RELIEVED[min(relief, len(_RELIEVED)) - 1]


def own_answer_tokens(lm: LanguageModel, n_prompt: int, options: StudyOptions) -> int:
    """Tokens that the model may write beside a forced answer: as many as asked for, or as its window has room for."""
    limit = lm.max_positions
    if limit is None or (options.beyond_window and not lm.positions_are_hard):
        return options.max_new_tokens
    return max(1, min(options.max_new_tokens, limit - n_prompt))


def cell_key(question: int, order: Order, variant: str) -> str:
    """Names a cell in files: the place of the question, the base order, the order, the variant."""
    return f"q{question:04d}-b{order.base}-o{order.number:02d}-{variant}"


@dataclass(frozen=True)
class StudyCell:
    """What one cell measures; ``gold`` is the document that holds the answer, if one is known."""

    question: int
    order: Order
    variant: str
    prompt: Prompt
    gold: int | None

    @property
    def key(self) -> str:
        """Names the cell in files."""
        return cell_key(self.question, self.order, self.variant)

    @property
    def gold_position(self) -> int | None:
        """Where the document with the answer stands."""
        return None if self.gold is None else self.order.permutation.index(self.gold)


@dataclass(frozen=True, eq=False)
class CellResult:
    """What was kept of one cell.

    Parameters
    ----------
    arrays
        By ``"<variant>/<name>"``, float32; the last axis of most is the document's position. See :func:`reduced`; and
        ``effect`` [document], nats, if asked for.
    facts
        What is not an array, as JSON values: log-probability of the answer, tokens, secondary sinks, warnings.
    runs
        The measurements themselves, by variant; empty once they were let go.
    """

    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]
    runs: Mapping[str, Run]


def measure_cell(
    lm: LanguageModel,
    cell: StudyCell,
    answer: Any,
    options: StudyOptions,
    prefix: PrefixCache | None = None,
    relief: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> CellResult:
    """Measure one cell.

    Parameters
    ----------
    lm
        The model.
    cell
        What to measure.
    answer
        The answer to force, text or token ids.
    options
        Of the study.
    prefix
        Keys and values of the cell before this one, to go on from.
    relief
        How often this cell ran out of memory; see :func:`relieved_chunk`.
    progress
        As in :func:`attnprobe.measure`.
    """
    common: dict[str, Any] = {
        "rows": options.rows,
        "beyond_window": options.beyond_window,
        "prefill_chunk": relieved_chunk(lm, relief),
        "progress": progress,
    }
    prompt = ordered_prompt(cell.prompt, cell.order.permutation)
    prefix = PrefixCache() if prefix is None else prefix
    runs: dict[str, Run] = {}
    sinks: tuple[int, ...] = ()
    found: list[dict[str, Any]] = []
    if cell.variant == ASKED and "null" in options.variants:
        null = variant_prompt(prompt, "null", options)
        runs["null"] = measure(lm, null, answer=NOTHING, extras=("top", "columns"), prefix=prefix, **common)
        secondary = find_secondary_sinks(runs["null"])
        found = [
            {"layer": one.layer, "position": one.position, "document": one.document, "mass": one.mass}
            for one in secondary
        ]
        sinks = carried(secondary, runs["null"], prompt.encode(lm.tokenizer))
    if cell.variant != ASKED:
        prompt = variant_prompt(prompt, cell.variant, options, cell.order.number % len(prompt.documents))
    asked_for = options.extras if cell.variant == ASKED else ()
    extras = ("top", "question", *(extra for extra in asked_for if extra != "effects"))
    runs[cell.variant] = measure(
        lm, prompt, answer=answer, extras=extras, secondary_sinks=sinks, prefix=prefix, **common
    )
    main = runs[cell.variant]
    arrays = {
        f"{variant}/{name}": array
        for variant, run in runs.items()
        for name, array in reduced(run, sinks_known=variant == ASKED and "null" in runs).items()
    }
    if "effects" in asked_for:
        found_effects = effects(lm, prompt, answer, beyond_window=options.beyond_window, prefix=prefix)
        arrays[f"{cell.variant}/effect"] = found_effects.effect.astype(np.float32)
    facts = {
        "question": cell.question,
        "id": cell.prompt.id,
        "base": cell.order.base,
        "order": cell.order.number,
        "permutation": list(cell.order.permutation),
        "variant": cell.variant,
        "gold_position": cell.gold_position,
        "documents": [cell.prompt.document_names[number] for number in cell.order.permutation],
        "n_prompt": main.n_prompt,
        "answer": main.answer,
        "answer_ids": list(main.answer_ids),
        "answer_logprob": [float(value) for value in main.answer_logprob],
        "layers": list(main.layers),
        "secondary_sinks": found,
        "residual": max(run.residual for run in runs.values()),
        "arrays": sorted(arrays),
        "warnings": sorted({warning for run in runs.values() for warning in run.warnings}),
    }
    return CellResult(arrays, facts, runs)


def reduced(run: Run, sinks_known: bool) -> dict[str, np.ndarray]:
    """What a study keeps of a run.

    Parameters
    ----------
    run
        A measurement with the extra ``top``.
    sinks_known
        Whether its secondary sinks were looked for: only then is there a view ``apart``.

    Returns
    -------
    dict
        float32 arrays, documents by position: ``mass.<view>`` [layer, head, document]; ``density.<view>`` and
        ``advantage.<view>`` of the views raw, apart and trimmed; ``budget`` [layer, kind] and ``budget_rows``
        [kind, row], kinds as in ``KINDS``; ``tokens`` [document], secondary sinks among them; and, if asked for,
        ``distance`` [layer, head, bin] and ``distance_edges``.
    """
    arrays: dict[str, np.ndarray] = {}
    views: dict[str, dict[str, Any]] = {"raw": {}, "trimmed": {"trimmed": True}}
    if sinks_known:
        views["apart"] = {"with_sinks": False}
    for view, choice in views.items():
        for norm in ("mass", "density", "advantage"):
            arrays[f"{norm}.{view}"] = head_values(run, norm, **choice)
    arrays["mass.first"] = head_values(run, "mass", rows=slice(0, 1))
    if len(run.answer_ids) > 1:
        arrays["mass.later"] = head_values(run, "mass", rows=slice(1, None))
    documents = list(run.document_spans)
    for view, mass in (("question", run.question_mass), ("weighted", run.value_mass)):
        if mass is not None:
            whole = mass[..., documents] + _sinks_in(run, mass)
            # A document that no row of the layer sees gets exactly nothing; it is undefined, not ignored.
            arrays[f"mass.{view}"] = np.where(whole > 0, whole, np.nan)
    if run.distance_mass is not None:
        assert run.distance_edges is not None
        arrays["distance"] = run.distance_mass
        arrays["distance_edges"] = np.array(run.distance_edges)
    assert run.row_mass is not None
    arrays["budget"] = _by_kind(run, run.mass.mean(axis=1, dtype=np.float64))
    arrays["budget_rows"] = _by_kind(run, run.row_mass.mean(axis=(0, 1), dtype=np.float64)).T
    tokens = np.array([[float(span.n_tokens) for span in run.spans]])
    arrays["tokens"] = tokens[0, documents] + _sinks_in(run, tokens)[0]
    return {name: np.asarray(array, dtype=np.float32) for name, array in arrays.items()}


def _by_kind(run: Run, mass: np.ndarray) -> np.ndarray:
    """Mass ``[..., span]`` summed by ``KINDS``."""
    budget = np.zeros((*mass.shape[:-1], len(KINDS)))
    for number, span in enumerate(run.spans):
        budget[..., KINDS.index(budget_kind(span))] += mass[..., number]
    return budget


def _sinks_in(run: Run, mass: np.ndarray) -> np.ndarray:
    """What of ``mass [..., span]`` belongs to the secondary sinks taken out of each document, ``[..., document]``."""
    total = np.zeros((*mass.shape[:-1], len(run.document_spans)), dtype=mass.dtype)
    for number, span in enumerate(run.spans):
        if is_secondary(span) and span.document is not None:
            total[..., span.document] += mass[..., number]
    return total
