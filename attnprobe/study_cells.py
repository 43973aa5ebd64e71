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
from attnprobe.designs import Order
from attnprobe.measuring import measure
from attnprobe.norms import budget_by_row, head_values, top_token_fraction
from attnprobe.prefix_cache import PrefixCache
from attnprobe.prompt import Prompt
from attnprobe.run import Run
from attnprobe.secondary_sinks import find_secondary_sinks, sink_positions
from attnprobe.spans import SPAN_KINDS
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

_CHUNKS = (None, 2048, 512, 128)


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
        """Names the cell in files: the place of the question, the base order, the order, the variant."""
        return f"q{self.question:04d}-b{self.order.base}-o{self.order.number:02d}-{self.variant}"

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
        How often this cell ran out of memory: the prompt is fed in ever smaller chunks.
    progress
        As in :func:`attnprobe.measure`.
    """
    common: dict[str, Any] = {
        "rows": options.rows,
        "beyond_window": options.beyond_window,
        "prefill_chunk": "auto" if relief == 0 else _CHUNKS[min(relief, len(_CHUNKS) - 1)],
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
        # A sink in the null question's own text or in the template after it stands nowhere in the prompt as it is.
        sinks = _before_question(sink_positions(secondary), runs["null"])
    if cell.variant != ASKED:
        prompt = variant_prompt(prompt, cell.variant, options, cell.order.number % len(prompt.documents))
    asked_for = options.extras if cell.variant == ASKED else ()
    extras = ("top", "question", *(extra for extra in asked_for if extra != "effects"))
    runs[cell.variant] = measure(
        lm, prompt, answer=answer, extras=extras, secondary_sinks=sinks, prefix=prefix, **common
    )
    main = runs[cell.variant]
    arrays = {f"{variant}/{name}": array for variant, run in runs.items() for name, array in reduced(run).items()}
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
        "reused_tokens": {variant: run.manifest["capture"].get("reused_tokens", 0) for variant, run in runs.items()},
        "residual": max(run.residual for run in runs.values()),
        "warnings": sorted({warning for run in runs.values() for warning in run.warnings}),
    }
    return CellResult(arrays, facts, runs)


def _before_question(positions: tuple[int, ...], run: Run) -> tuple[int, ...]:
    """Positions that two prompts which differ in their question alone have in common."""
    starts = [span.segments[0][0] for span in run.spans if span.kind == "question" and span.segments]
    end = min(starts, default=run.n_prompt)
    return tuple(position for position in positions if position < end)


def reduced(run: Run) -> dict[str, np.ndarray]:
    """What a study keeps of a run.

    Returns
    -------
    dict
        float32 arrays, documents by position: ``mass.<view>`` [layer, head, document]; ``density.<view>`` and
        ``advantage.<view>`` of the views raw, apart and trimmed; ``top_fraction`` [layer, head, document];
        ``budget`` [layer, kind] and ``budget_rows`` [kind, row], kinds as in ``SPAN_KINDS``, ``sink`` here being the
        first token alone and the last kind, ``secondary_sink``, all others; ``tokens`` [document]; and, if asked
        for, ``distance`` [layer, head, bin] and ``distance_edges``.
    """
    arrays: dict[str, np.ndarray] = {}
    with_top = run.top_mass is not None
    views: dict[str, dict[str, Any]] = {"raw": {}, "apart": {"with_sinks": False}}
    if with_top:
        views["trimmed"] = {"trimmed": True}
    for view, choice in views.items():
        for norm in ("mass", "density", "advantage"):
            arrays[f"{norm}.{view}"] = head_values(run, norm, **choice)
    arrays["mass.first"] = head_values(run, "mass", rows=slice(0, 1))
    if len(run.answer_ids) > 1:
        arrays["mass.later"] = head_values(run, "mass", rows=slice(1, None))
    documents = list(run.document_spans)
    if run.question_mass is not None:
        arrays["mass.question"] = run.question_mass[..., documents] + _sinks_in(run, run.question_mass)
    if run.value_mass is not None:
        arrays["mass.weighted"] = run.value_mass[..., documents] + _sinks_in(run, run.value_mass)
    if run.distance_mass is not None:
        assert run.distance_edges is not None
        arrays["distance"] = run.distance_mass
        arrays["distance_edges"] = np.array(run.distance_edges)
    if with_top:
        arrays["top_fraction"] = top_token_fraction(run)
    kinds = [*SPAN_KINDS, "secondary_sink"]
    budget = np.zeros((len(run.layers), len(kinds)))
    for number, span in enumerate(run.spans):
        kind = "secondary_sink" if _is_secondary(span) else span.kind
        budget[:, kinds.index(kind)] += run.mass[:, :, number].mean(axis=1, dtype=np.float64)
    arrays["budget"] = budget
    rows = budget_by_row(run)
    arrays["budget_rows"] = np.stack([rows[kind] for kind in SPAN_KINDS])
    arrays["tokens"] = np.array([run.spans[number].n_tokens for number in documents])
    return {name: np.asarray(array, dtype=np.float32) for name, array in arrays.items()}


def _is_secondary(span: Any) -> bool:
    return span.kind == "sink" and span.name != "sink"


def _sinks_in(run: Run, mass: np.ndarray) -> np.ndarray:
    """Mass of the secondary sinks that were taken out of each document, ``[layer, head, document]``."""
    total = np.zeros((*mass.shape[:-1], len(run.document_spans)), dtype=mass.dtype)
    for number, span in enumerate(run.spans):
        if _is_secondary(span) and span.document is not None:
            total[..., span.document] += mass[..., number]
    return total
