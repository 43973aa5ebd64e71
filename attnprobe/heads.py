"""Heads: what each attention head does, from its heaviest tokens and its distances; above all, whether it retrieves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprobe.errors import InputError
from attnprobe.heads_needle import needle_tokens, recalls
from attnprobe.heads_options import SCORES, Needle
from attnprobe.norms import head_values, mean_of_defined

if TYPE_CHECKING:
    from attnprobe.run import Run

NEAR = 64
"""Tokens before the row that count as near in ``locality``."""


@dataclass(frozen=True, eq=False)
class RunScores:
    """What the heads do in one run.

    Parameters
    ----------
    retrieval
        float64 [layer, head]: the retrieval score. A row counts 1 / needle tokens if the key with the largest
        weight of all that it sees, sinks included, lies in the needle and is the token that the row predicts. It can
        pass 1 where an answer repeats itself. It stands here whether or not the answer recalls the needle.
    in_needle
        float64 [layer, head]: part of the rows whose heaviest key lies in the needle, whatever token it is.
    advantage
        float64 [layer, head], nats: the gold document's ``advantage`` of :mod:`attnprobe.norms`; NaN where undefined.
    sink
        float64 [layer, head]: mass of the first token, secondary sinks and a learned sink, mean over rows.
    locality
        float64 [layer, head]: of the mass beside sinks, averaged over rows, the part less than ``NEAR`` tokens before
        the row, the row's own token included. NaN where sinks have everything.
    distance
        float64 [layer, head]: log2 of the median distance of the mass beside sinks, in tokens from the row with the
        row's own as 1; interpolated within bins that double.
    layers
        The model's own numbers of the layer axis.
    n_needle
        Tokens of the needle.
    recalled
        Whether the answer recalls the needle; see :func:`attnprobe.heads_needle.recalls`.

    References
    ----------
    W. Wu et al., "Retrieval Head Mechanistically Explains Long-Context Factuality" (2024): the retrieval score.
    """

    retrieval: np.ndarray
    in_needle: np.ndarray
    advantage: np.ndarray
    sink: np.ndarray
    locality: np.ndarray
    distance: np.ndarray
    layers: tuple[int, ...]
    n_needle: int
    recalled: bool


@dataclass(frozen=True, eq=False)
class HeadScores:
    """What the heads do, question by question: the mean over the question's orders.

    Parameters
    ----------
    retrieval
        float64 [question, layer, head]: as in :class:`RunScores`, over the orders whose answer recalls the needle; NaN
        for a question without one.
    in_needle, advantage, sink, locality, distance
        float64 [question, layer, head]: as in :class:`RunScores`, over all orders.
    questions
        Their ids.
    layers
        The model's own numbers of the layer axis.
    n_orders, n_recalled
        int [question]: orders measured, and those whose answer recalls the needle.
    """

    retrieval: np.ndarray
    in_needle: np.ndarray
    advantage: np.ndarray
    sink: np.ndarray
    locality: np.ndarray
    distance: np.ndarray
    questions: tuple[str, ...]
    layers: tuple[int, ...]
    n_orders: np.ndarray
    n_recalled: np.ndarray

    def values(self, score: str) -> np.ndarray:
        """One score by name, float64 [question, layer, head].

        Raises
        ------
        InputError
            There is no such score.
        """
        if score not in SCORES:
            raise InputError(f"score {score!r} is unknown; expected one of {', '.join(SCORES)}")
        found: np.ndarray = getattr(self, score)
        return found

    def mean(self, score: str) -> np.ndarray:
        """Mean over questions, float64 [layer, head]; NaN where no question has a value."""
        return mean_of_defined(self.values(score), axis=0)


def head_scores(
    runs: Sequence[Run],
    gold: Sequence[int],
    *,
    questions: Sequence[str] | None = None,
    needle: Needle = "document",
    answers: Sequence[Sequence[str]] | None = None,
    tokenizer: Any = None,
) -> HeadScores:
    """Score every head on every question.

    Parameters
    ----------
    runs
        Measured with ``extras=("top", "distance")`` and ``rows="predicting"``, on one model. Answers should be the
        model's own: a forced one recalls the needle by itself.
    gold
        For each run, the number of the document that holds the answer, by its position in that prompt.
    questions
        For each run, the id of its question; runs of one question, in several orders, are averaged. None takes
        ``run.prompt_id``, or the run's own number where it has none.
    needle, tokenizer
        As in :func:`attnprobe.heads_needle.needle_tokens`.
    answers
        Accepted answers for each run. None: an answer recalls only by holding more than half of the needle's tokens.

    Raises
    ------
    InputError
        Lists of different lengths, no runs, runs of different models or without what is needed, a needle that cannot
        be found.
    """
    runs = list(runs)
    ids = [run.prompt_id or str(number) for number, run in enumerate(runs)] if questions is None else list(questions)
    accepted: Sequence[Sequence[str]] = [()] * len(runs) if answers is None else answers
    for name, given in (("gold documents", gold), ("questions", ids), ("lists of answers", accepted)):
        if len(given) != len(runs):
            raise InputError(f"{len(given)} {name} for {len(runs)} runs; give one each")
    scores = [
        run_scores(run, document, needle=needle, answers=texts, tokenizer=tokenizer)
        for run, document, texts in zip(runs, gold, accepted, strict=True)
    ]
    return by_question(scores, ids)


def run_scores(
    run: Run, gold: int, *, needle: Needle = "document", answers: Sequence[str] = (), tokenizer: Any = None
) -> RunScores:
    """Score every head on one run; see :func:`head_scores`.

    Raises
    ------
    InputError
        The run lacks what is needed, or the needle cannot be found.
    """
    if isinstance(answers, str):
        raise InputError(f"answers is the text {answers!r}; give a list of accepted answers")
    name = f"run {run.prompt_id!r}" if run.prompt_id else "the run"
    if run.rows != "predicting":
        raise InputError(f'{name} has the rows "{run.rows}"; what a row copies is what it predicts: measure with '
                         'rows="predicting"')  # fmt: skip
    if run.top_mass is None or run.top_token is None or run.distance_mass is None or run.distance_edges is None:
        raise InputError(f'{name} lacks heaviest tokens or distances; measure with extras=("top", "distance")')
    tokens = needle_tokens(run, gold, needle, answers, tokenizer)
    heaviest = run.top_mass.argmax(axis=-1)[..., None]  # [layer, head, row, 1]: a span
    key = np.take_along_axis(run.top_token, heaviest, axis=-1)[..., 0]  # -1 for a learned sink
    inside = np.isin(key, tokens)
    predicted = np.array(run.answer_ids)[: key.shape[-1]]
    copied = inside & (np.array(run.token_ids)[key] == predicted)
    sinks = [i for i, span in enumerate(run.spans) if span.kind in ("sink", "learned_sink")]
    near, middle = _distances(run.distance_mass.astype(np.float64), np.array(run.distance_edges))
    return RunScores(
        retrieval=copied.sum(axis=-1) / len(tokens),
        in_needle=inside.mean(axis=-1),
        advantage=head_values(run, "advantage")[..., gold],
        sink=run.mass[..., sinks].sum(axis=-1, dtype=np.float64),
        locality=near,
        distance=middle,
        layers=run.layers,
        n_needle=len(tokens),
        recalled=recalls(run, tokens, answers),
    )


def by_question(scores: Sequence[RunScores], questions: Sequence[str]) -> HeadScores:
    """Average the runs of each question; questions stand in the order in which they first occur.

    Raises
    ------
    InputError
        No runs, or runs of models with different layers or heads.
    """
    if not scores:
        raise InputError("there are no runs to score; measure at least one")
    for one in scores:
        if one.layers != scores[0].layers or one.retrieval.shape != scores[0].retrieval.shape:
            raise InputError("the runs are of models with different layers or heads; score each model by itself")
    ids = list(dict.fromkeys(questions))
    groups = [[one for one, id in zip(scores, questions, strict=True) if id == question] for question in ids]
    nothing = np.full(scores[0].retrieval.shape, np.nan)
    arrays = {}
    for name in SCORES:
        kept = [[one for one in group if one.recalled or name != "retrieval"] for group in groups]
        arrays[name] = np.stack(
            [
                mean_of_defined(np.stack([getattr(one, name) for one in group]), axis=0) if group else nothing
                for group in kept
            ]
        )
    return HeadScores(
        **arrays,
        questions=tuple(ids),
        layers=scores[0].layers,
        n_orders=np.array([len(group) for group in groups]),
        n_recalled=np.array([sum(one.recalled for one in group) for group in groups]),
    )


def _distances(mass: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Part of the mass nearer than ``NEAR``, and log2 of the median distance, [layer, head] each; NaN without mass."""
    total = mass.sum(axis=-1)
    with np.errstate(invalid="ignore"):
        part = np.cumsum(mass, axis=-1) / total[..., None]  # [layer, head, bin]: mass up to the bin's end
    # Bins end at 1, 2, 4, ... tokens, so the log2 of an end is the bin's number.
    near = part[..., min(int(np.searchsorted(edges[1:], NEAR)), len(edges) - 2)]
    above = np.argmax(part >= 0.5, axis=-1)[..., None]
    upper = np.take_along_axis(part, above, axis=-1)[..., 0]
    lower = np.where(above > 0, np.take_along_axis(part, np.maximum(above - 1, 0), axis=-1), 0.0)[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = above[..., 0] - 1 + (0.5 - lower) / (upper - lower)
    return near, np.where(np.isnan(upper), np.nan, np.where(above[..., 0] == 0, 0.0, middle))
