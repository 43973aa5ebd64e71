"""Whether the statistics do what they say, in simulated studies of known truth: ``python -m attnprobe.validate``.

Prints one line a check, and ends with status 1 when a number is out of its range.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from attnprobe.arguments import whole_number
from attnprobe.band_critical import band_critical, normal_samples
from attnprobe.crossed import crossed_interval
from attnprobe.decompose import COMPONENTS, omega_squared
from attnprobe.flatness import MIN_QUESTIONS, centred, sign_flip_p, sign_patterns
from attnprobe.intervals import bootstrap_t_interval, end_log_ratios, median_interval, t_bounds
from attnprobe.multiplicity import step_down_p
from attnprobe.rope_needles import arrangement
from attnprobe.simulate import Truth, draw_components, draw_log_values, draw_permutations

LEVEL = 0.95
QUESTIONS = (5, 8, 12, 24)
DOCUMENTS = 10
REPETITIONS = 5000

STRAY = Truth(
    curve=(0.0,) * DOCUMENTS, slope=0.3, question_position=0.1, content=0.4, interaction=0.2, noise=0.5, heads=4
)
"""A flat curve; log ratios of an end to the middle have a standard deviation of about 0.35 over questions."""

U_CURVE = (1.3, 0.7, 0.3, 0.1, 0.0, 0.0, 0.1, 0.25, 0.45, 0.7)

_MIXTURES = (
    ("pure noise, 1 base", (0.0, 0.0, 0.0, 1.0), 1),
    ("pure noise, 2 bases", (0.0, 0.0, 0.0, 1.0), 2),
    ("mixed, 2 bases", (0.3, 0.2, 0.1, 0.4), 2),
)
_LEVELS = {
    "items differ": (0.0, 1.0, 0.3),
    "texts differ": (1.0, 0.0, 0.3),
    "both differ": (1.0, 1.0, 0.3),
    "neither": (0.0, 0.0, 1.0),
}
"""Standard deviations of texts, of items and of single needles."""
_ITEMS, _DEPTHS = 13, 5
_CHUNK = 100
_BAND_DRAWS = 1000
_FLIPS = 999
_HEADS = 20
_POOL = 240


@dataclass(frozen=True)
class Check:
    """One number and the range that it must lie in.

    Parameters
    ----------
    name
        What was checked.
    questions
        Questions of each simulated study.
    value
        What was found.
    low, high
        The range.
    """

    name: str
    questions: int
    value: float
    low: float
    high: float

    @property
    def passed(self) -> bool:
        """Whether the value lies in the range."""
        return bool(self.low <= self.value <= self.high)


def coverage(questions: int, repetitions: int, seed: int) -> dict[str, float]:
    """Part of the studies of a planted U in which an interval holds the truth: both ratios, and the band."""
    truth = replace(STRAY, curve=U_CURVE)
    true_ratios = _true_ratios(truth, seed)
    hits = {"head/middle interval": 0, "tail/middle interval": 0, "simultaneous band": 0}
    rng = np.random.default_rng((seed, questions, 1))
    for profiles in _studies(truth, questions, repetitions, rng):
        ratios = end_log_ratios(profiles.reshape(-1, DOCUMENTS))
        for name, true, values in zip(hits, true_ratios, ratios, strict=False):
            _, low, high = t_bounds(values.reshape(-1, questions), LEVEL)
            hits[name] += int(((low <= true) & (true <= high)).sum())
        shapes = centred(profiles)
        normals = normal_samples(questions, DOCUMENTS, _BAND_DRAWS, rng)
        for shape in shapes:
            residuals = shape - shape.mean(axis=0)
            error = np.sqrt((residuals**2).sum(axis=0) / (questions - 1) / questions)
            off = np.abs(shape.mean(axis=0) - truth.centred_curve)
            hits["simultaneous band"] += bool((off <= band_critical(residuals, LEVEL, normals) * error).all())
    return {name: count / repetitions for name, count in hits.items()}


def false_alarms(questions: int, repetitions: int, seed: int) -> dict[str, float]:
    """Part of the studies without effect that a test at 5 % calls one: flatness, and the largest of many heads."""
    rng = np.random.default_rng((seed, questions, 2))
    flat = heads = 0
    for profiles in _studies(STRAY, questions, repetitions, rng):
        signs = sign_patterns(questions, _FLIPS, int(rng.integers(2**31)))
        flat += int((sign_flip_p(centred(profiles), signs) <= 1 - LEVEL).sum())
        # Heads that go together, of different spread, with heavier tails than the normal.
        common = rng.standard_normal((len(profiles), questions, 1))
        values = (common + rng.laplace(size=(len(profiles), questions, _HEADS))) * np.geomspace(0.1, 10, _HEADS)
        heads += sum(bool((step_down_p(study, signs) <= 1 - LEVEL).any()) for study in values)
    return {"flatness false alarms": flat / repetitions, "max-T family-wise error": heads / repetitions}


def skewed(questions: int, repetitions: int, seed: int) -> dict[str, float]:
    """Coverage of the mean and of the median of log-normal values, standard deviation of the log 0.5."""
    rng = np.random.default_rng((seed, questions, 3))
    mean, median = math.exp(0.5**2 / 2), 1.0
    hits = {"bootstrap-t interval of a skewed mean": 0, "median interval": 0}
    for repetition in range(repetitions):
        values = np.exp(0.5 * rng.standard_normal(questions))
        found = bootstrap_t_interval(values, level=LEVEL, draws=1000, seed=(seed, repetition))
        middle = median_interval(values, LEVEL)
        for name, interval, true in zip(hits, (found, middle), (mean, median), strict=True):
            if interval.low is not None and interval.high is not None:
                hits[name] += interval.low <= true <= interval.high
    return {name: count / repetitions for name, count in hits.items()}


def crossed(texts: int, repetitions: int, seed: int) -> dict[str, float]:
    """Coverage of a mean over needles that share texts and items, by what has levels of its own."""
    rng = np.random.default_rng((seed, texts, 5))
    placed = np.array(arrangement(_ITEMS, _DEPTHS, texts, seed))
    by_text, items = np.repeat(np.arange(texts), _DEPTHS).tolist(), placed.ravel().tolist()
    hits = {f"interval of needles: {label}": 0 for label in _LEVELS}
    for name, (of_text, of_item, noise) in zip(hits, _LEVELS.values(), strict=True):
        for _ in range(repetitions):
            own = of_item * rng.standard_normal(_ITEMS)[placed] + of_text * rng.standard_normal((texts, 1))
            found = crossed_interval((own + noise * rng.standard_normal(placed.shape)).ravel(), by_text, items, LEVEL)
            hits[name] += found.low is not None and found.high is not None and found.low <= 0 <= found.high
    return {name: count / repetitions for name, count in hits.items()}


def decomposition(
    parts: tuple[float, float, float, float], bases: int, questions: int, repetitions: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Bias of omega squared, and coverage of its t intervals over questions, both [component]."""
    rng = np.random.default_rng((seed, questions, 4, bases))
    pool = draw_permutations(DOCUMENTS, _POOL, "williams", bases, rng)
    truth = np.array(parts) / sum(parts)
    total, hits = np.zeros(len(COMPONENTS)), np.zeros(len(COMPONENTS))
    for size in _chunks(repetitions):
        shown = pool[rng.integers(_POOL, size=size * questions)]
        found = omega_squared(draw_components(parts, shown, rng), shown, interaction=bases > 1)
        by_study = found.reshape(size, questions, -1).transpose(0, 2, 1)
        _, low, high = t_bounds(by_study, LEVEL)
        hits += ((low <= truth) & (truth <= high)).sum(axis=0)
        total += by_study.mean(axis=2).sum(axis=0)
    return total / repetitions - truth, hits / repetitions


def checks(repetitions: int = REPETITIONS, seed: int = 0) -> Iterator[Check]:
    """All checks, one by one as they are done.

    The ranges are those for 5000 repetitions; with fewer, those of rates are wider by what chance adds, 3 standard
    errors.
    """

    def rates(found: dict[str, float], n: int, ranges: Sequence[tuple[float, float]]) -> Iterator[Check]:
        for (name, rate), (low, high) in zip(found.items(), ranges, strict=True):
            more = 3 * (1 / math.sqrt(repetitions) - 1 / math.sqrt(max(repetitions, REPETITIONS)))
            slack = (more * math.sqrt(bound * (1 - bound)) for bound in (low, high))
            yield Check(name, n, rate, low - next(slack), high + next(slack))

    for n in QUESTIONS:
        yield from rates(coverage(n, repetitions, seed), n, [(0.94, 0.96)] * 3)
        yield from rates(crossed(n, repetitions, seed), n, [(0.94, 1.0)] * len(_LEVELS))
        if n >= MIN_QUESTIONS:
            yield from rates(false_alarms(n, repetitions, seed), n, [(0.04, 0.06)] * 2)
            yield from rates(skewed(n, repetitions, seed), n, [(0.92, 0.96), (0.95, 1.0)])
    for label, parts, bases in _MIXTURES:
        bias, covered = decomposition(parts, bases, 8, repetitions, seed)
        for i, component in enumerate(COMPONENTS):
            if component != "interaction" or bases > 1:
                yield Check(f"omega squared of {component}, bias: {label}", 8, float(bias[i]), -0.01, 0.01)
                name = f"omega squared of {component}, interval: {label}"
                yield from rates({name: float(covered[i])}, 8, [(0.93, 0.96)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks and print them; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m attnprobe.validate", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="simulated studies a check (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there, too")
    options = parser.parse_args(arguments)
    repetitions = whole_number("--repetitions", options.repetitions, 1)
    started = time.monotonic()
    done: list[Check] = []
    print(f"{'check':60}{'questions':>10}{'found':>9}   range")
    for check in checks(repetitions, options.seed):
        done.append(check)
        found = f"{check.name:60}{check.questions:>10}{check.value:>9.4f}   {check.low:.3g} to {check.high:.3g}"
        print(found if check.passed else f"{found}  OUT OF RANGE", flush=True)
    failed = sum(not check.passed for check in done)
    seconds = time.monotonic() - started
    print(
        f"{len(done) - failed} of {len(done)} in range, {repetitions} repetitions, seed {options.seed}, {seconds:.0f} s"
    )
    if options.json:
        record = {"repetitions": repetitions, "seed": options.seed, "seconds": round(seconds, 1)}
        rows = [{**asdict(check), "passed": check.passed} for check in done]
        options.json.write_text(json.dumps({**record, "checks": rows}, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


def _studies(truth: Truth, questions: int, repetitions: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Log profiles of studies, float64 [study, question, position], a chunk at a time."""
    pool = draw_permutations(DOCUMENTS, _POOL, "williams", 1, rng)
    for size in _chunks(repetitions):
        shown = pool[rng.integers(_POOL, size=size * questions)]
        yield draw_log_values(truth, shown, rng).mean(axis=(1, 2)).reshape(size, questions, DOCUMENTS)


def _chunks(repetitions: int) -> Iterator[int]:
    for start in range(0, repetitions, _CHUNK):
        yield min(_CHUNK, repetitions - start)


def _true_ratios(truth: Truth, seed: int) -> tuple[float, float]:
    """Mean log ratios of the ends to the middle.

    The mean of the middle's values has no closed form where they stray, but how far its log lies above the mean of
    their logs hardly varies: its mean over many questions is precise.
    """
    curve = np.asarray(truth.curve)
    rng = np.random.default_rng((seed, 0))
    profiles = np.concatenate(list(_studies(truth, 1, 5_000, rng)))[:, 0]
    head, _ = end_log_ratios(profiles)
    middle = [DOCUMENTS // 2 - 1, DOCUMENTS // 2]
    above = float((profiles[:, 0] - head - profiles[:, middle].mean(axis=1)).mean())
    centre = float(curve[middle].mean()) + above
    return float(curve[0]) - centre, float(curve[-1]) - centre


if __name__ == "__main__":
    sys.exit(main())
