"""What may be said of runs and studies, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnprobe.estimates import Interval
from attnprobe.flatness import verdict
from attnprobe.report.series import Curves, end_ratio
from attnprobe.report.sources import complete_questions
from attnprobe.spans import sink_mass
from attnprobe.study import Study
from attnprobe.study_curve import AVERAGING, StudyCurve
from attnprobe.study_findings import GoldLogprob, PanelRow, robustness
from attnprobe.study_text import end_text, interval_text
from attnprobe.terminal import count, decimal, percent
from attnprobe.told import Verdict

STUDY_WORDS = {
    "U": "A U: the first and the last documents get more attention than those in the middle.",
    "flat": "Flat: the first and the last documents get between 0.8 and 1.25 times what the middle gets.",
    "head": "The first documents get more attention than those in the middle; the last ones do not.",
    "tail": "The last documents get more attention than those in the middle; the first ones do not.",
    "inverted": "The first and the last documents get less attention than those in the middle.",
    "weak head": "The first documents get less attention than those in the middle; the last ones about the same.",
    "weak tail": "The last documents get less attention than those in the middle; the first ones about the same.",
    "head or U": "The first documents get more attention than those in the middle; of the last ones it cannot be told.",
    "tail or U": "The last documents get more attention than those in the middle; of the first ones it cannot be told.",
    "inconclusive": "Inconclusive: of at least one end it cannot be told whether it differs from the middle.",
    "too few questions": "No verdict: an interval takes at least five questions.",
    "undefined": "No verdict: the curve has no middle, or a value is undefined.",
}
AVERAGES = {"share": "Pooled over heads and layers (share)", "log_share": "Per head, a geometric mean (log_share)"}

_SHAPES = {
    "U": "a U",
    "flat": "flat",
    "head": "raised at its head",
    "tail": "raised at its tail",
    "inverted": "an inverted U",
    "weak head": "lowered at its head",
    "weak tail": "lowered at its tail",
}
_ONE_DOCUMENT = "one document: nothing to compare it with, so its share says nothing; see its mass."
_STUDY_CALL = "attnprobe study PROMPTS --model MODEL --out OUT"


def claim_words(text: str) -> str:
    """A study's claim as a sentence."""
    return STUDY_WORDS.get(text, "No verdict: the two orders of averaging say different things.")


def study_verdict(
    study: Study, curves: Mapping[str, StudyCurve], panel: Sequence[PanelRow], gold: GoldLogprob | None
) -> Verdict:
    """Verdict of a study of one model: the claim in both orders of averaging, what artefacts make of it, the answer."""
    data = study.of()
    lines = []
    for norm, name in AVERAGES.items():
        curve = curves[norm]
        head, tail = end_text(curve.head_middle), end_text(curve.tail_middle)
        lines.append(f"{name}: {curve.verdict}; head/middle {head}; tail/middle {tail}.")
    without = robustness(panel)
    lines += without.sentences
    lines.append(
        f"{complete_questions(study)} in {count(len(data.orders[0]), 'order')} each "
        f"({study.options.design}), {count(data.n_documents, 'document')}; 95 % intervals over questions."
    )
    lines += _answer_lines(gold)
    headline = claim_words(study.claim())
    if without.holds is False:
        headline += " This is the raw curve; without known artefacts the verdict is not the same."
    return Verdict(headline, tuple(lines))


def _answer_lines(gold: GoldLogprob | None) -> list[str]:
    """Whether the answer suffers where its document stands; nothing where that is not known."""
    if gold is None or gold.head_minus_middle is None or gold.tail_minus_middle is None:
        return []
    head, tail = gold.head_minus_middle, gold.tail_minus_middle
    return [
        "Does the answer suffer? Its log-probability with its document first, against the middle: "
        f"{_against(head, gold.n)}; with it last: {_against(tail, gold.n)}."
    ]


def _against(end: Interval, n: int) -> str:
    if end.estimate is None:
        return "not known"
    if end.low is None or end.high is None:
        side = "higher" if end.estimate > 0 else "lower"
        return f"{decimal(abs(end.estimate))} nats {side} in {count(n, 'question')} (an interval takes five)"
    side = "higher" if end.low > 0 else "lower" if end.high < 0 else "no difference shown"
    return f"{side}, {interval_text(end)} nats"


def run_verdict(
    curves: Mapping[str, Curves],
    middle: tuple[int, ...],
    budget: Mapping[str, float],
    documents: Sequence[str],
) -> Verdict:
    """What one prompt shows, and what it cannot."""
    if not curves:
        return Verdict("One prompt without documents: a budget, no curve.", (_budget_line(budget),))
    if len(documents) == 1:
        return Verdict(f"One prompt with {_ONE_DOCUMENT}", (_budget_line(budget),))
    lines = [_most_line(curves["share"], documents), _ends_line(curves["share"], middle), _budget_line(budget)]
    lines.append(
        "One prompt shows where attention went, not why: a document may get it for where it stands or for what it "
        "says. A study puts every document at every position, over several questions, and gives intervals and a "
        f"verdict: {_STUDY_CALL}"
    )
    return Verdict("One prompt: no verdict on position is possible.", tuple(lines))


def runs_verdict(
    curves: Mapping[str, Curves],
    middle: tuple[int, ...],
    budget: Mapping[str, float],
    n: int,
    ends: Sequence[tuple[float | None, float | None]],
    times: int,
) -> Verdict:
    """What the mean of several prompts shows, and what it cannot.

    Parameters
    ----------
    curves, middle, budget
        The mean curves as measured, the positions of their middle, and the budget.
    n
        Number of prompts.
    ends
        Head/middle and tail/middle of each.
    times
        How often every document stood at every position; 0 where that is not the same number for all.
    """
    if not curves:
        return Verdict(f"{count(n, 'prompt')} without documents: a budget, no curve.", (_budget_line(budget),))
    if curves["share"].values.size == 1:
        return Verdict(f"{count(n, 'prompt')} with {_ONE_DOCUMENT}", (_budget_line(budget),))
    lines = []
    if times:
        each = "once" if times == 1 else f"{times} times"
        lines.append(
            f"Every document stood {each} at every position, so that what the documents say averages out: what remains "
            "is position, with the documents before it."
        )
    lines.append(_ends_line(curves["share"], middle))
    for place, what in enumerate(("head/middle", "tail/middle")):
        found = [end[place] for end in ends if end[place] is not None]
        if found:
            lines.append(f"In single prompts {what} runs from {decimal(min(found))} to {decimal(max(found))}.")  # type: ignore[type-var]
    lines.append(_budget_line(budget))
    if times and middle:
        lines.append(
            "A verdict takes intervals over at least five questions, and a look at the curve without tokens that act "
            f"as sinks. A study gives both: {_STUDY_CALL}"
        )
        return Verdict(f"{count(n, 'prompt')}: {_mean_words(curves, middle)}.", tuple(lines))
    lines.append(
        "A mean of prompts mixes position with what the documents say, unless each stands at every position. A study "
        f"does that, and gives intervals and a verdict: {_STUDY_CALL}"
    )
    return Verdict(f"{count(n, 'prompt')}, mean curve: no verdict on position is possible.", tuple(lines))


def _mean_words(curves: Mapping[str, Curves], middle: tuple[int, ...]) -> str:
    """The shape of mean curves by their ratios alone, which is no verdict: there are no intervals."""
    shapes = {}
    for norm, name in AVERAGING.items():
        ratios = [float(end_ratio(curves[norm].values, end, middle)) for end in (0, -1)]
        points = [Interval(r, r, r, 0.0, 1, "a mean") if np.isfinite(r) else None for r in ratios]
        head, tail = points
        shapes[name] = "not defined" if head is None or tail is None else _SHAPES[verdict(head, tail)]
    pooled, per_head = shapes["pooled"], shapes["per head"]
    if pooled == per_head:
        return f"the mean curve is {pooled}; whether other questions show that, only a study can tell"
    return (
        f"pooled over heads and layers the mean curve is {pooled}, per head {per_head}, so what it is depends on the "
        "order of averaging"
    )


def _most_line(share: Curves, documents: Sequence[str]) -> str:
    if np.isnan(share.values).all():
        return "No row sees any of the documents."
    most = int(np.nanargmax(share.values))
    assert share.uniform is not None
    return (
        f"Of the documents' attention, {documents[most]} (position {most}) got most: "
        f"{percent(float(share.values[most]))}; uniform attention would give it {percent(float(share.uniform[most]))}."
    )


def _ends_line(share: Curves, middle: tuple[int, ...]) -> str:
    if not middle:
        return "With two documents or fewer there is no middle, so there are no ratios."
    positions = f"position{'s' if len(middle) > 1 else ''} {', '.join(map(str, middle))}"
    return (
        f"The first document got {share.head_text} times what the middle got (head/middle, {positions}), the last "
        f"{share.tail_text} times (tail/middle)."
    )


def _budget_line(budget: Mapping[str, float]) -> str:
    documents, sinks = percent(budget["document"]), percent(sink_mass(budget))
    return f"Of all attention, {documents} went to documents and {sinks} to sinks."
