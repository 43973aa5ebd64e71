"""How much of what varies within a prompt is position, content, both together, or the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.arguments import fraction, table
from attnprobe.errors import InputError
from attnprobe.estimates import Interval
from attnprobe.intervals import mean_interval

COMPONENTS = ("position", "content", "interaction", "residual")

_AXES = ("question", "base", "order", "position")


@dataclass(frozen=True, eq=False)
class Decomposition:
    """Parts of the variance of log values within prompts: omega squared, the mean over questions.

    Parameters
    ----------
    position
        What the position explains, whichever document stands there. A position includes the set of the documents
        before it: the two cannot be told apart. Slopes that only one question has count as well.
    content
        What the document explains, wherever it stands.
    interaction
        What a document does at some positions and not at others; None when it was not separated, and then part of
        ``residual``.
    residual
        The rest: noise, and which documents are neighbours.
    per_question
        float64 [question, component] of ``COMPONENTS``; rows sum to 1; NaN where undefined.
    bases
        Base orders.
    reason
        Why the interaction was not separated; else None.
    """

    position: Interval
    content: Interval
    interaction: Interval | None
    residual: Interval
    per_question: np.ndarray
    bases: int
    reason: str | None = None

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={getattr(self, name)!s}" for name in COMPONENTS)
        return f"Decomposition({parts}, bases={self.bases}, n={self.position.n})"

    def to_dict(self) -> dict[str, Any]:
        """The intervals by name, and the rest, in JSON's terms."""
        parts = {name: getattr(self, name) for name in COMPONENTS}
        intervals = {name: None if part is None else part.to_dict() for name, part in parts.items()}
        return {**intervals, "bases": self.bases, "reason": self.reason}


def decompose(values: Any, permutations: Any, level: float = 0.95) -> Decomposition:
    """Split the variance of log values into position, content, interaction and residual, question by question.

    In each question a value is modelled as an effect of its prompt (one order), which is no part of any
    component, plus effects of the position, of the document and, with two or more base orders, of the two together,
    plus noise. Omega squared is the variance of an effect over the sum of those of all effects and noise; each is the
    mean square of the estimated effects less what noise adds to it. So it is 0 on average where there is no effect,
    and single estimates may be negative; a plain share of the sum of squares would be about 1 / (K + 1) under pure
    noise.

    Questions are decomposed one by one and averaged, with t intervals over questions.

    Parameters
    ----------
    values
        [question, base, order, position], nats: log values. A question with a value that is not finite, or without
        any variance, is left out.
    permutations
        int [question, base, order, position]: which document stands there. Every document at every position
        equally often within a base, as in the ``williams`` and ``cyclic`` designs.
    level
        Confidence level.

    Raises
    ------
    InputError
        For wrong shapes, fewer than 3 documents, or orders that are not balanced.
    """
    level = fraction("level", level)
    logs = table("values", values, _AXES)
    shown = _balanced(permutations, logs.shape)
    separated, reason = _separable(logs.shape, shown)
    usable = np.isfinite(logs).all(axis=(1, 2, 3))
    per_question = np.full((len(logs), len(COMPONENTS)), np.nan)
    if usable.any():
        per_question[usable] = omega_squared(logs[usable], shown[usable], separated)
    found = {name: mean_interval(per_question[:, i], level) for i, name in enumerate(COMPONENTS)}
    return Decomposition(
        position=found["position"],
        content=found["content"],
        interaction=found["interaction"] if separated else None,
        residual=found["residual"],
        per_question=per_question,
        bases=logs.shape[1],
        reason=reason,
    )


def omega_squared(values: np.ndarray, permutations: np.ndarray, interaction: bool) -> np.ndarray:
    """Components of every question.

    Parameters
    ----------
    values
        float64 [question, base, order, position], finite.
    permutations
        int, of the same shape, balanced.
    interaction
        Separate the interaction: every document is shown at every position in two orders or more, which are linked.

    Returns
    -------
    numpy.ndarray
        float64 [question, component] of ``COMPONENTS``; the interaction is 0 unless separated, NaN for a question
        without variance.
    """
    Q, B, orders, K = values.shape
    n_orders = B * orders
    repeats = n_orders // K  # observations of a document at a position
    y = values.reshape(Q, n_orders, K)
    y = y - y.mean(axis=2, keepdims=True)  # position and content are balanced within prompts: nothing of them is lost
    shown = permutations.reshape(Q, n_orders, K)
    # Rounding of centred equal values is no variance.
    nothing = np.abs(y).max(axis=(1, 2)) <= 1e-12 * np.abs(values).max(axis=(1, 2, 3))
    y[nothing] = 0.0
    position = y.mean(axis=1)
    cells = _cells(y, shown) / repeats  # [question, document, position]
    content = cells.mean(axis=2)
    if interaction:
        both, noise, trace = _interaction(y, shown, cells, repeats)
    else:
        rest = y - position[:, None, :] - np.take_along_axis(content[:, None, :], shown, axis=2)
        noise = (rest**2).sum(axis=(1, 2)) / (n_orders * (K - 1) - 2 * (K - 1))
        both, trace = np.zeros(Q), np.zeros(Q)
    main = noise * (K - 1) / (n_orders * K)  # what noise adds to the mean square of K estimated effects
    parts = np.stack(
        [(position**2).mean(axis=1) - main, (content**2).mean(axis=1) - main, both - noise * trace, noise], axis=1
    )
    total = parts.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        result: np.ndarray = parts / total
    return result


def _interaction(
    y: np.ndarray, shown: np.ndarray, cells: np.ndarray, repeats: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean square of the interaction, noise variance, and what of the latter the former holds, all [question].

    Least squares with a level for every order. Orders share cells (a document at a position), so how far they
    differ in the same cells gives their levels; the cells' means less these levels give the effects.
    """
    Q, n_orders, K = y.shape
    # How many documents two orders show at the same position.
    shared = (shown[:, :, None, :] == shown[:, None, :, :]).sum(axis=3).astype(np.float64)
    gram = K * np.eye(n_orders) - shared / repeats
    inverse = np.linalg.pinv(gram, rcond=1e-9, hermitian=True)
    at = np.arange(K)[None, None, :]
    question = np.arange(Q)[:, None, None]
    within = y - cells[question, shown, at]
    levels = (inverse @ within.sum(axis=2)[:, :, None])[:, :, 0]
    levels = levels - levels.mean(axis=1, keepdims=True)
    spread = np.broadcast_to(levels[:, :, None], y.shape)
    cells = cells - _cells(spread, shown) / repeats
    effects = cells - cells.mean(axis=1, keepdims=True) - cells.mean(axis=2, keepdims=True)
    effects = effects + cells.mean(axis=(1, 2), keepdims=True)
    rest = within - spread + (_cells(spread, shown) / repeats)[question, shown, at]
    noise = (rest**2).sum(axis=(1, 2)) / (n_orders * K - K * K - (n_orders - 1))
    # Var(cells) = noise * (1 / repeats + C inverse C'), C = which orders show a cell / repeats; then doubly centred.
    from_levels = (inverse * (shared / repeats**2 - 1 / repeats**2)).sum(axis=(1, 2))
    trace = ((K - 1) ** 2 / repeats + from_levels) / K**2
    return (effects**2).mean(axis=(1, 2)), noise, trace


def _cells(y: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """Sum of [question, order, position] over the orders that show a document there: [question, document, position]."""
    Q, _, K = y.shape
    out = np.zeros((Q, K, K))
    np.add.at(out, (np.arange(Q)[:, None, None], shown, np.arange(K)[None, None, :]), y)
    return out


def _balanced(permutations: Any, shape: tuple[int, ...]) -> np.ndarray:
    shown = np.asarray(permutations)
    if shown.shape != shape or not np.issubdtype(shown.dtype, np.integer):
        raise InputError(
            f"permutations must be whole numbers of the shape of values, {shape}, "
            f"not {shown.dtype} of shape {shown.shape}"
        )
    K = shape[3]
    if K < 3:
        raise InputError(f"values has {K} position{'' if K == 1 else 's'}; position and content need 3 or more")
    if not (np.sort(shown, axis=3) == np.arange(K)).all():
        raise InputError(f"permutations must hold every document, 0 to {K - 1}, once in each order")
    # Sorted down the orders, a balanced column holds each document as often as any other.
    expected = np.repeat(np.arange(K), shape[2] // K) if shape[2] % K == 0 else None
    if expected is None or not len(expected) or not (np.sort(shown, axis=2) == expected[:, None]).all():
        raise InputError(
            "permutations must show every document at every position equally often, as the williams and cyclic "
            "designs do; with other orders position and content cannot be told apart"
        )
    return shown


def _separable(shape: tuple[int, ...], shown: np.ndarray) -> tuple[bool, str | None]:
    """Whether the interaction can be told from noise, and why not."""
    _, B, orders, K = shape
    if B < 2:
        return False, "one base order cannot tell interaction from noise; the residual holds both"
    n_orders = B * orders
    flat = shown.reshape(len(shown), n_orders, K)
    shared = (flat[:, :, None, :] == flat[:, None, :, :]).sum(axis=3)
    rank = np.linalg.matrix_rank(K * np.eye(n_orders) - shared * (K / n_orders), tol=1e-6, hermitian=True)
    if len(shown) and (rank < n_orders - 1).any():
        return (
            False,
            "the base orders have too little in common to tell interaction from noise; the residual holds both",
        )
    if n_orders * K - K * K - (n_orders - 1) < 1:
        return False, "too few orders to tell interaction from noise; the residual holds both"
    return True, None
