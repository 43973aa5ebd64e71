"""Simulated studies of which the truth is known: what the statistics are checked on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.arguments import Seed, generator, table, whole_number
from attnprobe.designs import orders
from attnprobe.errors import InputError


@dataclass(frozen=True)
class Truth:
    """What is planted in a simulated study; all in nats, all but the curve standard deviations.

    Parameters
    ----------
    curve
        Log of the position curve, common to all questions.
    slope
        Each question has a straight slope of its own over the positions, normal; its standard deviation at either
        end.
    question_position
        Each question has an effect of its own at every position.
    content
        Each document has an effect of its own.
    interaction
        Each document has an effect of its own at every position.
    prompt
        Each prompt, one order, has a level of its own.
    noise
        Each head strays at each value, log-normally.
    heads
        Heads of which the values, not their logs, are averaged.
    """

    curve: tuple[float, ...]
    slope: float = 0.0
    question_position: float = 0.0
    content: float = 0.0
    interaction: float = 0.0
    prompt: float = 0.0
    noise: float = 0.0
    heads: int = 1

    @property
    def centred_curve(self) -> np.ndarray:
        """float64 [position], nats: what the mean centred log profile over questions is on average."""
        curve = np.asarray(self.curve, dtype=np.float64)
        result: np.ndarray = curve - curve.mean()
        return result


@dataclass(frozen=True, eq=False)
class SimulatedStudy:
    """Values and orders of a study, as :func:`attnprobe.decompose.decompose` takes them.

    Parameters
    ----------
    log_values
        float64 [question, base, order, position], nats: log shares.
    permutations
        int [question, base, order, position]: the document there.
    """

    log_values: np.ndarray
    permutations: np.ndarray

    @property
    def log_profiles(self) -> np.ndarray:
        """float64 [question, position], nats: mean over orders."""
        result: np.ndarray = self.log_values.mean(axis=(1, 2))
        return result


def simulate_study(
    truth: Truth, questions: int, *, design: str = "williams", bases: int = 1, seed: Seed = 0
) -> SimulatedStudy:
    """Draw a study of a planted truth.

    Parameters
    ----------
    truth
        What is planted. ``len(truth.curve)`` is the number of documents.
    questions
        Number of questions.
    design, bases
        As in :func:`attnprobe.designs.orders`, a square one; every question has base orders of its own.
    seed
        What draws all of it.

    Raises
    ------
    InputError
        For an argument out of range.
    """
    rng = generator(seed)
    questions = whole_number("questions", questions, 1)
    if design == "insertion":
        raise InputError("the insertion design moves one document only; simulate williams or cyclic")
    permutations = draw_permutations(len(truth.curve), questions, design, bases, rng)
    return SimulatedStudy(draw_log_values(truth, permutations, rng), permutations)


def draw_permutations(K: int, questions: int, design: str, bases: int, rng: np.random.Generator) -> np.ndarray:
    """Orders of every question, int [question, base, order, position]."""
    shown: list[Any] = []
    for seed in rng.integers(2**31, size=questions):
        of_question = [order.permutation for order in orders(design, K, bases=bases, seed=int(seed))]
        shown.append(np.reshape(of_question, (bases, -1, K)))
    return np.array(shown)


def draw_log_values(truth: Truth, permutations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Log shares, float64 [question, base, order, position], of questions with the given orders."""
    curve = table("truth.curve", truth.curve, ("position",))
    Q, B, n_orders, K = permutations.shape
    own = truth.slope * rng.standard_normal((Q, 1)) * np.linspace(-1, 1, K)
    own = own + truth.question_position * rng.standard_normal((Q, K))
    content = truth.content * rng.standard_normal((Q, K))
    question = np.arange(Q)[:, None, None, None]
    logs = (curve + own)[:, None, None, :] + content[question, permutations]
    if truth.interaction:
        both = truth.interaction * rng.standard_normal((Q, K, K))
        logs = logs + both[question, permutations, np.arange(K)]
    if truth.prompt:
        logs = logs + truth.prompt * rng.standard_normal((Q, B, n_orders, 1))
    if truth.noise:
        heads = whole_number("truth.heads", truth.heads, 1)
        logs = logs + np.log(np.exp(truth.noise * rng.standard_normal((heads, *logs.shape))).mean(axis=0))
    result: np.ndarray = logs - np.logaddexp.reduce(logs, axis=3, keepdims=True)
    return result


def draw_components(
    parts: tuple[float, float, float, float], permutations: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Values of which omega squared is known exactly, float64 [question, base, order, position].

    Parameters
    ----------
    parts
        Variances of position, content and interaction, which the effects drawn for every question have exactly, and
        of the normal noise.
    permutations
        int [question, base, order, position].
    rng
        What draws them.
    """
    Q, K = permutations.shape[0], permutations.shape[3]
    both = rng.standard_normal((Q, K, K))
    both = both - both.mean(axis=1, keepdims=True)
    both = _of_variance(both - both.mean(axis=2, keepdims=True), parts[2])
    position = _of_variance(_off_mean(rng.standard_normal((Q, K))), parts[0])
    content = _of_variance(_off_mean(rng.standard_normal((Q, K))), parts[1])
    question = np.arange(Q)[:, None, None, None]
    values = position[:, None, None, :] + content[question, permutations]
    values = values + both[question, permutations, np.arange(K)]
    result: np.ndarray = values + np.sqrt(parts[3]) * rng.standard_normal(permutations.shape)
    return result


def _off_mean(effects: np.ndarray) -> np.ndarray:
    result: np.ndarray = effects - effects.mean(axis=1, keepdims=True)
    return result


def _of_variance(effects: np.ndarray, variance: float) -> np.ndarray:
    axes = tuple(range(1, effects.ndim))
    result: np.ndarray = effects * np.sqrt(variance / (effects**2).mean(axis=axes, keepdims=True))
    return result
