"""Measure a cell of a task: masses and log-probability from one forced pass, and the model's own reply after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from attnprobe.decoding import generate, left_pad, stop_ids
from attnprobe.measuring import measure
from attnprobe.models import LanguageModel
from attnprobe.norms import mean_of_defined
from attnprobe.prefix_cache import PrefixCache
from attnprobe.prompt import EncodedPrompt
from attnprobe.run import Run
from attnprobe.tasks.cell import TaskCell
from attnprobe.tasks.outcome import Outcome
from attnprobe.tasks.scoring import score_answer


def measure_cell(
    lm: LanguageModel,
    cell: TaskCell,
    *,
    prefix: PrefixCache | None = None,
    max_new_tokens: int = 32,
    beyond_window: bool = False,
    prefill_chunk: int | Literal["auto"] | None = "auto",
) -> tuple[Outcome, Run]:
    """Measure one cell: the gold answer forced, the foil's probability, and the reply that the model writes itself.

    The prompt is fed once. The forced pass gives the masses and the log-probability of the gold answer together; the
    foil's and the reply go on from the prompt's keys and values, where the model allows that (see `PrefixCache`).

    Parameters
    ----------
    lm
        The model.
    cell
        Of one of the builders: ``spec.build(lm.tokenizer)``.
    prefix
        What earlier cells left: prompts that begin alike feed only what differs. None: nothing is shared between cells.
    max_new_tokens
        Longest reply, tokens; 0 for no reply and no score.
    beyond_window
        Allow prompts longer than the model was made for.
    prefill_chunk
        As in :func:`attnprobe.measure`.

    Returns
    -------
    (Outcome, Run)
        Masses and advantage are those of :func:`evidence_arrays`, averaged over layers and heads, where a layer that
        sees no evidence counts as one that gives it no mass; None without evidence in the prompt or in sight of any
        row, and for an advantage without other documents. ``facts`` are the cell's, with ``needles`` (the documents
        that hold the evidence), ``answer``, ``reply``, whether the limit cut it
        (``reply_cut``), and its scores ``exact_match`` and ``f1``.

    Raises
    ------
    InputError
        The prompt does not fit the model's window, or an answer that is blank.
    """
    prefix = PrefixCache() if prefix is None else prefix
    common: dict[str, Any] = {"prefix": prefix, "beyond_window": beyond_window, "prefill_chunk": prefill_chunk}
    run = measure(lm, cell.prompt, answer=cell.gold, **common)
    foil = None
    if cell.foil is not None:
        foil = _total(measure(lm, cell.prompt, answer=cell.foil, keep_rows=False, **common))
    facts: dict[str, Any] = {**cell.facts, "needles": cell.needles, "answer": run.answer}
    strict = lenient = None
    if max_new_tokens:
        encoded = cell.prompt.encode(lm.tokenizer)
        reply, is_cut = greedy_reply(lm, encoded, max_new_tokens, prefix)
        strict, lenient, more = reply_scores(cell, reply)
        facts |= {**more, "reply_cut": is_cut}
    masses, advantages = evidence_arrays(run, cell.needles)
    mass, advantage = evidence_means(masses, advantages)
    outcome = Outcome(
        cell.item,
        cell.trial,
        dict(cell.condition),
        strict=strict,
        lenient=lenient,
        logprob=_total(run),
        foil_logprob=foil,
        mass=mass,
        advantage=advantage,
        facts=facts,
    )
    return outcome, run


def greedy_reply(
    lm: LanguageModel, encoded: EncodedPrompt, max_new_tokens: int, prefix: PrefixCache
) -> tuple[str, bool]:
    """What the model writes after a prompt, greedily, and whether the limit cut it before it had ended.

    It goes on from the keys and values that ``prefix`` holds.

    The text is cut at the first token that ends an answer, and special tokens are left out.
    """
    ids, stops = encoded.token_ids, stop_ids(lm.model, {})
    batch = left_pad([ids], lm.pad_id, lm.input_device)
    with prefix.lend(lm.model, ids, limit=len(ids) - 1, keep=len(ids)) as (cache, _):
        generated = generate(lm.model, batch, max_new_tokens=max_new_tokens, pad_id=lm.pad_id, cache=cache)
    written = generated.tokens[0].tolist()
    end = next((place for place, token in enumerate(written) if token in stops), len(written))
    return str(lm.tokenizer.decode(written[:end], skip_special_tokens=True)), end == len(written)


def _total(run: Run) -> float:
    """Log-probability of the answer's text, nats: a forced answer has no end of sequence."""
    return min(float(np.sum(run.answer_logprob, dtype=np.float64)), 0.0)


def reply_scores(cell: TaskCell, reply: str) -> tuple[int | None, int | None, dict[str, Any]]:
    """Strict and lenient score of a reply, and facts: the reply itself, and how exactly it matches."""
    if cell.facts.get("scoring") == "all":
        parts = [score_answer(reply, one) for one in cell.facts["all_of"]]
        return min(part.strict for part in parts), min(part.lenient for part in parts), {"reply": reply}
    score = score_answer(reply, cell.accepted, pattern=cell.pattern)
    matched = {} if score.pattern is None else {"pattern": score.pattern}
    return score.strict, score.lenient, {"reply": reply, "exact_match": score.exact, "f1": score.f1, **matched}


def evidence_means(masses: np.ndarray, advantages: np.ndarray) -> tuple[float | None, float | None]:
    """Mass and advantage of an outcome: the arrays of :func:`evidence_arrays` averaged over layers and heads."""
    mass = None if np.isnan(masses).all() else float(np.nan_to_num(masses).mean())
    advantage = float(mean_of_defined(advantages.ravel(), axis=0))
    return mass, advantage if math.isfinite(advantage) else None


def evidence_arrays(run: Run, needles: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Mass and advantage of the documents that hold the evidence, taken as one document.

    Returns
    -------
    (np.ndarray, np.ndarray)
        float64 ``[layer, head]``, each the mean over rows: the mass, and the log of its density over that of all other
        documents, nats. NaN without evidence, in a layer that does not see it from any row, and for the advantage
        without other documents in sight. A mass too small for float32 is its smallest number in a run, so that no
        advantage is infinite.
    """
    undefined = np.full(run.mass.shape[:2], np.nan)
    own = [run.document_spans[needle] for needle in needles]
    sees = np.any(run.visible[:, :, own], axis=(1, 2))[:, None]  # [layer, 1]
    mass = np.where(sees, run.mass[..., own].sum(axis=-1, dtype=np.float64), np.nan)
    rest = [span for span in run.document_spans if span not in own]
    if not own or not rest:
        return mass, undefined
    assert run.row_mass is not None
    with np.errstate(divide="ignore", invalid="ignore"):
        inside, outside = (
            np.log(run.row_mass[..., spans].sum(axis=-1, dtype=np.float64))
            - np.log(run.visible[:, None, :, spans].sum(axis=-1))
            for spans in (own, rest)
        )
        values = inside - outside  # [layer, head, row]
    return mass, mean_of_defined(values, axis=2)
