"""What may be said of runs and studies, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnprobe.report.series import Curves, Verdict
from attnprobe.study import Study
from attnprobe.study_curve import StudyCurve
from attnprobe.study_findings import PanelRow, robustness
from attnprobe.study_text import end_text
from attnprobe.terminal import count, decimal, percent

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

_STUDY_CALL = "attnprobe study PROMPTS --model MODEL --out OUT"


def claim_words(text: str) -> str:
    """A study's claim as a sentence."""
    return STUDY_WORDS.get(text, "No verdict: the two orders of averaging say different things.")


def study_verdict(study: Study, curves: Mapping[str, StudyCurve], panel: Sequence[PanelRow]) -> Verdict:
    """Verdict of a study of one model: the claim, both orders of averaging, and what artefacts make of it."""
    data = study.of()
    lines = []
    for norm, name in AVERAGES.items():
        curve = curves[norm]
        head, tail = end_text(curve.head_middle), end_text(curve.tail_middle)
        lines.append(f"{name}: {curve.verdict}; head/middle {head}; tail/middle {tail}.")
    without = robustness(panel)
    lines += without.sentences
    lines.append(
        f"{count(len(data.questions), 'question')} in {count(len(data.orders[0]), 'order')} each "
        f"({study.options.design}), {count(data.n_documents, 'document')}; 95 % intervals over questions."
    )
    headline = claim_words(study.claim())
    if without.holds is False:
        headline += " This is the raw curve; without known artefacts the verdict is not the same."
    return Verdict(headline, tuple(lines))


def run_verdict(
    curves: Mapping[str, Curves],
    middle: tuple[int, ...],
    budget: Mapping[str, float],
    documents: Sequence[str],
) -> Verdict:
    """What one prompt shows, and what it cannot."""
    if not curves:
        return Verdict("One prompt without documents: a budget, no curve.", (_budget_line(budget),))
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
) -> Verdict:
    """What the mean of several prompts shows, and what it cannot."""
    if not curves:
        return Verdict(f"{count(n, 'prompt')} without documents: a budget, no curve.", (_budget_line(budget),))
    lines = [_ends_line(curves["share"], middle)]
    for place, what in enumerate(("head/middle", "tail/middle")):
        found = [end[place] for end in ends if end[place] is not None]
        if found:
            lines.append(f"In single prompts {what} runs from {decimal(min(found))} to {decimal(max(found))}.")  # type: ignore[type-var]
    lines.append(_budget_line(budget))
    lines.append(
        "A mean of prompts mixes position with what the documents say, unless each stands at every position. A study "
        f"does that, and gives intervals and a verdict: {_STUDY_CALL}"
    )
    return Verdict(f"{count(n, 'prompt')}, mean curve: no verdict on position is possible.", tuple(lines))


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
    sinks = sum(budget[kind] for kind in ("sink", "secondary_sink", "learned_sink"))
    return f"Of all attention, {percent(budget['document'])} went to documents and {percent(sinks)} to sinks."
