"""Does mass go with effect? Rank correlation, pooled and with question and position held fixed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.arguments import fraction
from attnprobe.errors import InputError
from attnprobe.intervals import MIN_QUESTIONS, Interval


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman correlations of mass and effect, each with an interval whose unit is the question.

    Parameters
    ----------
    pooled
        All cells ranked together: mixes documents, positions and questions.
    within_question
        Ranks within each question: documents and positions together.
    within_position
        Ranks within each question and position: different documents at the same place. The headline.
    p_value
        Two-sided, of no correlation within question and position: of the interval's t; where the ranks agree too well
        for an interval, of the sign test of the questions' own correlations. None where there is neither.
    p_within_question
        The same within question, of the interval's t; None without an interval.
    by_question
        float64 ``[Q]``: the headline's correlation of each question alone; NaN where it has none.
    n_cells
        Cells (question, position, document) that were ranked.
    """

    pooled: Interval
    within_question: Interval
    within_position: Interval
    p_value: float | None
    p_within_question: float | None
    by_question: np.ndarray
    n_cells: int

    def __repr__(self) -> str:
        return (
            f"RankCorrelation(within_position={self.within_position}, within_question={self.within_question}, "
            f"pooled={self.pooled}, n={self.within_position.n})"
        )

    def to_dict(self) -> dict[str, Any]:
        """The correlations in plain types, for JSON."""
        return {
            "pooled": self.pooled.to_dict(),
            "within_question": self.within_question.to_dict(),
            "within_position": self.within_position.to_dict(),
            "p_value": self.p_value,
            "by_question": [None if np.isnan(value) else float(value) for value in self.by_question],
            "n_cells": self.n_cells,
        }


def rank_correlation(
    mass: np.ndarray, effect: np.ndarray, permutations: np.ndarray, level: float = 0.95
) -> RankCorrelation:
    r"""Rank correlation of documents' mass and effect over questions, orders and positions.

    Cells that agree in question, position and document differ only in what stands around the document: they are
    averaged first. Let :math:`a_c, b_c` be the ranks of mass and effect of cell c within its stratum s(c) (ties take
    their mean rank), minus the stratum's mean rank. Then

    .. math:: r = \sum_c a_c b_c \Big/ \sqrt{\sum_c a_c^2 \sum_c b_c^2}

    with all cells as one stratum (*pooled*), one stratum a question (*within question*), or one a question and position
    (*within question and position*). The last one compares different documents at the same place in orders of the same
    question: a curve that mass and effect both follow, such as two U-curves, does not enter it, nor does what differs
    between questions. A stratum of one cell says nothing. Strata of different sizes weigh by their sums of squares.

    The interval is a jackknife over questions: r is computed without each question in turn, on Fisher's scale z = atanh
    r, and the pseudo-values' mean and standard error give a t interval with Q - 1 degrees of freedom around z, taken
    back by tanh (Efron and Tibshirani 1993, chapter 11; for untied designs r is the mean of the questions' own
    correlations). A correlation of mass with effect is not an effect of mass.

    Parameters
    ----------
    mass, effect
        ``[Q, O, K]`` by question, order and *position*. A cell that is NaN in either is left out.
    permutations
        int ``[Q, O, K]``: which document of the question stands at each position, 0 to K - 1.
    level
        Of the intervals.

    Raises
    ------
    InputError
        Shapes differ, a value is infinite, or an order is no permutation.
    """
    mass, effect = np.asarray(mass, dtype=np.float64), np.asarray(effect, dtype=np.float64)
    permutations = np.asarray(permutations)
    if mass.ndim != 3 or mass.shape != effect.shape or mass.shape != permutations.shape:
        raise InputError(
            f"mass, effect and permutations have the shapes {mass.shape}, {effect.shape} and {permutations.shape}; "
            "give three arrays [question, order, position]"
        )
    if np.isinf(mass).any() or np.isinf(effect).any():
        raise InputError("mass or effect holds infinite values; leave such cells out as NaN")
    if not (np.sort(permutations, axis=-1) == np.arange(mass.shape[2])).all():
        raise InputError("permutations holds an order that is no permutation of the documents 0 to K - 1")
    return ranked_cells([_cells(*question) for question in zip(mass, effect, permutations, strict=True)], level)


def ranked_cells(tables: Sequence[np.ndarray], level: float = 0.95, unit: str = "question") -> RankCorrelation:
    """The same of any cells: a table for each question, float64 ``[cell, 3]``: number of its place, mass, effect.

    ``unit`` is what reasons call a question.
    """
    level = fraction("level", level)
    by_question = np.array([_sums([table]) for table in tables]).reshape(-1, 3)
    by_place = np.array([_sums([table[table[:, 0] == place] for place in np.unique(table[:, 0])]) for table in tables])
    by_place = by_place.reshape(-1, 3)
    pooled, _ = _interval(
        lambda some: _correlation(_sums([np.concatenate([tables[q] for q in some])])), tables, level, unit
    )
    within, p_within = _interval(lambda some: _correlation(by_question[some].sum(axis=0)), tables, level, unit)
    headline, p_value = _interval(lambda some: _correlation(by_place[some].sum(axis=0)), tables, level, unit)
    own = np.array([_correlation(sums) for sums in by_place])
    if p_value is None and headline.n >= MIN_QUESTIONS:
        p_value = _sign_test(own[~np.isnan(own)])
    return RankCorrelation(
        pooled=pooled,
        within_question=within,
        within_position=headline,
        p_value=p_value,
        p_within_question=p_within,
        by_question=own,
        n_cells=sum(len(table) for table in tables),
    )


def _sign_test(correlations: np.ndarray) -> float:
    """Two-sided p that questions' correlations are as often above 0 as below."""
    from scipy.stats import binomtest

    signs = np.sign(correlations[correlations != 0])
    return float(binomtest(int((signs > 0).sum()), len(signs)).pvalue) if len(signs) else 1.0


def _cells(mass: np.ndarray, effect: np.ndarray, permutations: np.ndarray) -> np.ndarray:
    """One question's cells as rows ``(position, mean mass, mean effect)``, a row for each position and document."""
    n_documents = mass.shape[1]
    position = np.broadcast_to(np.arange(n_documents), mass.shape)
    kept = ~(np.isnan(mass) | np.isnan(effect))
    cell = (position * n_documents + permutations)[kept]
    counts = np.bincount(cell, minlength=n_documents**2)
    means = [np.bincount(cell, values[kept], minlength=n_documents**2) for values in (mass, effect)]
    filled = np.flatnonzero(counts)
    return np.stack([filled // n_documents, *(total[filled] / counts[filled] for total in means)], axis=1)


def _sums(strata: list[np.ndarray]) -> np.ndarray:
    """Sums of a * b, a * a and b * b over strata of rows ``(..., mass, effect)``: centred ranks within each stratum."""
    from scipy.stats import rankdata

    total = np.zeros(3)
    for rows in strata:
        if len(rows) > 1:  # one cell alone has a centred rank of 0
            a, b = (rankdata(column) - (len(rows) + 1) / 2 for column in rows.T[-2:])
            total += a @ b, a @ a, b @ b
    return total


def _correlation(sums: np.ndarray) -> float:
    """NaN where mass or effect does not differ within any stratum."""
    ab, aa, bb = (float(value) for value in sums)
    return ab / math.sqrt(aa * bb) if aa > 0 and bb > 0 else math.nan


def _interval(
    statistic: Callable[[list[int]], float], tables: Sequence[np.ndarray], level: float, unit: str
) -> tuple[Interval, float | None]:
    """Estimate, jackknife interval over questions on Fisher's scale, and p-value of no correlation.

    ``statistic`` gives the correlation of some questions.
    """
    from scipy.stats import t

    # A question without two cells to compare, or without any difference in them, is no observation.
    telling = [question for question in range(len(tables)) if not math.isnan(statistic([question]))]
    n = len(telling)
    estimate = statistic(list(range(len(tables)))) if tables else math.nan
    method = f"jackknife over {unit}s, Fisher z"

    def none(reason: str) -> tuple[Interval, None]:
        return Interval(None if math.isnan(estimate) else estimate, None, None, level, n, method, reason), None

    if math.isnan(estimate):
        return none("mass or effect does not differ between cells")
    if n < MIN_QUESTIONS:
        return none(f"{n} {unit}{'' if n == 1 else 's'}; an interval needs at least {MIN_QUESTIONS}")
    left_out = np.array([statistic(telling[:index] + telling[index + 1 :]) for index in range(n)])
    if not (np.abs([estimate, *left_out]) < 1 - 1e-12).all():
        return none(f"the ranks agree perfectly, with or without some {unit}; Fisher's z has no value there")
    z = math.atanh(estimate)
    pseudo = n * z - (n - 1) * np.arctanh(left_out)
    error = float(pseudo.std(ddof=1)) / math.sqrt(n)
    if error == 0:
        return none(f"all {unit}s agree to the last digit; there is no spread to make an interval of")
    half = float(t.ppf(0.5 + level / 2, n - 1)) * error
    p_value = 2 * float(t.sf(abs(z) / error, n - 1))
    return Interval(estimate, math.tanh(z - half), math.tanh(z + half), level, n, method), p_value
