"""What a task's results say in words: does the model answer worse where it looks less, and what cannot be said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnprobe.estimates import Interval
from attnprobe.flatness import smallest_p
from attnprobe.study_text import interval_text
from attnprobe.tasks.accuracy import EndContrast
from attnprobe.tasks.attention_link import AttentionLink, why_unlinked
from attnprobe.tasks.context_rot import BEYOND, FLOOR
from attnprobe.tasks.decomposition import FillerLoss
from attnprobe.tasks.ends_apart import direction, ends_apart
from attnprobe.tasks.few_right import why_few_right
from attnprobe.tasks.filler_findings import FillerFindings
from attnprobe.tasks.item_intervals import MIN_ITEMS, wilson_interval
from attnprobe.tasks.knee_text import knee_name, knee_text
from attnprobe.tasks.matrix_findings import MatrixFindings
from attnprobe.tasks.outcome import Outcome
from attnprobe.tasks.paired_cells import MIN_TEST_ITEMS
from attnprobe.tasks.sweep_findings import SweepFindings
from attnprobe.tasks.task_data import TaskData
from attnprobe.tasks.task_numbers import TEXTS, difference_text, p_equation, place_text, primary
from attnprobe.terminal import count, p_text, percent, sentence
from attnprobe.told import Verdict

Findings = SweepFindings | MatrixFindings | FillerFindings

PLACES = {
    "needle_sweep": "position",
    "multi_doc": "position",
    "niah": "length and depth",
    "filler_control": "filler, placement and length",
}
"""What each task varies, in words."""

PLACEMENTS = {
    "after": "after the evidence",
    "before": "before the evidence",
    "split": "on both sides of the evidence",
}
"""Where filler stands, in words."""

_ANSWERS = (
    "the model answers worse where it looks less",
    {"logprob": "the right answer is less probable", "strict": "fewer replies are right"},
)
_STATEMENTS = (
    "a statement loses where the model looks at it less",
    {"logprob": "the gold statement is less probable", "strict": "fewer replies give the gold statement"},
)
"""What the headline is about, and what it calls worse, of answers and of statements that conflict."""


def task_verdict(data: TaskData, findings: Findings, link: AttentionLink | None, sizes: Mapping[str, int]) -> Verdict:
    """The verdict of a task.

    Parameters
    ----------
    data
        Of one model.
    findings
        Of its analysis.
    link
        Between attention and answer; None where one of them was not measured.
    sizes
        ``items``, ``trials`` (most of an item in one condition), ``missing`` (cells).
    """
    place = PLACES[data.task]
    lines = [*_link_lines(link, place, sizes["trials"])] if link is not None else []
    if link is not None and not isinstance(findings, FillerFindings):
        lines += ends_apart(findings, link)
    if isinstance(findings, SweepFindings):
        lines += _sweep_lines(findings, data.outcomes)
    elif isinstance(findings, MatrixFindings):
        lines += _matrix_lines(findings, data.outcomes)
    else:
        lines += _filler_lines(findings, data.outcomes)
    question, worse = _STATEMENTS if isinstance(findings, MatrixFindings) and findings.contests else _ANSWERS
    if link is None:
        headline = f"{why_unlinked(data)}, so it cannot be said whether {question}."
    else:
        headline = _headline(link, place, question, worse)
    return Verdict(headline, (*lines, *_limits(link, place, sizes)))


def _headline(link: AttentionLink, place: str, question: str, worse_of: Mapping[str, str]) -> str:
    worse = worse_of[link.metric]
    within, over = link.at_one_condition, link.over_conditions
    if within == "together":
        return f"Yes: also at one and the same {place}, {worse} where the evidence gets less attention."
    if within == "opposed":
        return f"No, the other way round: at one and the same {place}, {worse} where the evidence gets more attention."
    same = f"at one and the same {place} " + {
        "unrelated": "the two do not go together",
        "unclear": "nothing is shown either way",
        "untested": "it was not tested",
    }.get(within, "")
    if over == "together":
        return (
            f"In part: {worse} in those prompts of an item where its evidence gets less attention, but {same}; so "
            f"{place} may explain it."
        )
    if over == "opposed":
        return f"No: {worse} in those prompts of an item where its evidence gets more attention; {same}."
    if over == within == "unrelated":
        return "No: the answer does not go with the attention that its evidence gets."
    return f"It cannot be told whether {question}."


def _link_lines(link: AttentionLink, place: str, trials: int) -> list[str]:
    found = link.overall.by_name[link.predictor]
    within, over = found.correlation.within_position, found.correlation.within_question
    p = found.correlation.p_value
    why = "an item has one prompt there" if trials < 2 else within.reason
    test = ", and p is that of items' signs" if p is not None else ""
    none = f" There is no interval: {why}{test}." if within.low is None else ""
    return [
        f"Rank correlation of the evidence's {TEXTS[link.predictor].name} with the answer's {TEXTS[link.metric].name}: "
        f"at one and the same {place} {_correlation(within, p)}; over all prompts of an item "
        f"{_correlation(over, link.p_over_conditions)}.{none}",
        *_heads_line(link),
    ]


def _correlation(interval: Interval, p: float | None) -> str:
    if interval.estimate is None:
        return "not measured"
    return interval_text(interval) + ("" if p is None else f", {p_equation(p)}")


def _heads_line(link: AttentionLink) -> list[str]:
    if link.heads is None:
        return []
    chosen, others = (one.correlation.within_position for one in (link.heads.chosen, link.heads.others))
    if chosen.low is None:  # of few items such a number means nothing
        return []
    return [
        f"The same of {count(len(link.heads.heads), 'head')} chosen on other items for the highest advantage: "
        f"{interval_text(chosen)}; of all other heads: {interval_text(others)}."
    ]


def _sweep_lines(findings: SweepFindings, outcomes: Sequence[Outcome]) -> list[str]:
    lines = []
    for metric in ("logprob", "strict", "advantage"):
        found = findings.means.get(metric) or findings.accuracy.get(metric)
        if found is None or found.head_minus_middle is None or found.tail_minus_middle is None:
            continue
        lines.append(
            f"{TEXTS[metric].name.capitalize()}: first less middle {_contrast(metric, found.head_minus_middle)}, last "
            f"less middle {_contrast(metric, found.tail_minus_middle)}."
        )
    strict = findings.accuracy.get("strict")
    if strict is not None:
        gap = strict.gap_mean
        lines += _warning_lines(strict.warnings, outcomes)
        if gap.interval.estimate is not None:
            chance = "" if gap.threshold is None else f", by chance up to {percent(gap.threshold, 0)}"
            lines.append(
                f"Context-rot gap (mean end): {difference_text('strict', gap.interval)} points{chance}: "
                f"{gap.verdict.verdict}."
            )
    return [*lines, *_closed_book_line(findings)]


def _warning_lines(warnings: Sequence[str], outcomes: Sequence[Outcome]) -> list[str]:
    return [sentence(text) + (f" {why_few_right(outcomes)}" if text == BEYOND else "") for text in warnings]


def _closed_book_line(findings: SweepFindings) -> list[str]:
    """Whether documents with the evidence in the middle are of any use."""
    closed = next((one for one in findings.baselines if one.name == "closed_book"), None)
    if closed is None:
        return []
    metric = primary(closed.context_less)
    if metric is None:
        return []
    gain = closed.context_less[metric]
    harm = " Documents do harm there." if gain.high is not None and gain.high < 0 else ""
    where = "the middle" if findings.middle else "any position"
    text = difference_text(metric, gain)
    return [
        f"{TEXTS[metric].name.capitalize()} with the evidence in {where}, less closed book: {text} "
        f"{TEXTS[metric].unit}.{harm}"
    ]


def _matrix_lines(findings: MatrixFindings, outcomes: Sequence[Outcome]) -> list[str]:
    strict = findings.accuracy.get("strict")
    lines = [] if strict is None else _warning_lines(strict.warnings, outcomes)
    if findings.contests:
        wins = ", ".join(
            f"{percent(one.wins.estimate, 0)} of prompts at depth {place_text(one.depth)} (by "
            f"{difference_text('margin', one.margin)} nats)"
            for one in findings.contests
        )
        lines.append(f"Two statements conflict; the gold one wins in {wins}.")
    metric = primary(findings.by_length)
    if metric is None:
        return lines
    trend = findings.by_length[metric].per_doubling
    lines += [f"Per doubling of the prompt {_lost(metric, trend.loss, trend.p)}."]
    knees = findings.knees.get(metric)
    if knees is not None:
        lines += [f"{knee_name(knee)}: {knee_text(knee)}." for knee in knees.found]
    return lines


def _filler_lines(findings: FillerFindings, outcomes: Sequence[Outcome]) -> list[str]:
    answered = [cell.means["strict"] for cell in findings.cells if "strict" in cell.means]
    lines = _warning_lines([BEYOND], outcomes) if answered and max(answered) < FLOOR else []
    metric = primary(findings.decompositions)
    if metric is None:
        return lines + [
            f"Filler {one.filler} {PLACEMENTS.get(str(one.placement), one.placement)}: per doubling of the prompt "
            f"{_lost(name, one.curves[name].per_doubling.loss, one.p[name])}."
            for one in findings.lengths
            for name in filter(None, [primary(one.curves)])
        ]
    losses = findings.decompositions[metric].losses
    for placement in dict.fromkeys(loss.placement for loss in losses):
        longest = max((loss for loss in losses if loss.placement == placement), key=_length)
        parts = ", ".join(f"{one.name} {difference_text(metric, one.loss)}" for one in longest.components)
        lines.append(
            f"Filler {PLACEMENTS.get(str(placement), placement)}, {longest.length} tokens: {TEXTS[metric].name} lost "
            f"{difference_text(metric, longest.total)} {TEXTS[metric].unit} = {parts}."
        )
    return lines


def _length(loss: FillerLoss) -> float:
    return loss.length if isinstance(loss.length, int | float) else 0.0


def _lost(metric: str, loss: Interval, p: float | None) -> str:
    said = "" if p is None else f", {p_equation(p)}"
    return f"{TEXTS[metric].name} lost {difference_text(metric, loss)} {TEXTS[metric].unit}{said}"


def _limits(link: AttentionLink | None, place: str, sizes: Mapping[str, int]) -> list[str]:
    """What cannot be said, with so few items and trials and at all."""
    n, lines = sizes["items"], []
    if n < MIN_ITEMS:
        lines.append(
            f"With {count(n, 'item')} there are no intervals ({MIN_ITEMS} are needed) and no sign-flip tests "
            f"({MIN_TEST_ITEMS}): nothing here is shown of other items."
        )
    else:
        reach = wilson_interval(n // 2, n, n)
        assert reach.low is not None
        assert reach.high is not None
        tests = (
            f"are not made ({MIN_TEST_ITEMS} are needed)"
            if n < MIN_TEST_ITEMS
            else f"cannot give a p below {_plain(smallest_p(n))}"
        )
        lines.append(
            f"With {n} items an accuracy near 50 % is known to {50 * (reach.high - reach.low):.0f} points either way, "
            f"and sign-flip tests {tests}; differences smaller than the intervals are not ruled out."
        )
    if link is not None and sizes["trials"] < 2:
        lines.append(
            f"One trial an item: attention and {place} are not told apart. Two or more (trials), with other "
            "distractors or filler each, would."
        )
    if link is not None:
        lines.append("An association is no effect: what attention does to an answer, masses cannot say.")
    if sizes["missing"]:
        lines.append(f"{count(sizes['missing'], 'cell')} missing: items without a value somewhere have no part there.")
    return lines


def _plain(p: float) -> str:
    """As p values are written, but for those below 0.001."""
    return p_text(p) if p >= 0.001 else f"{p:.1g}"


def _contrast(metric: str, contrast: EndContrast) -> str:
    p = "" if contrast.p is None else f"{p_equation(contrast.p)}: "
    word = {None: "not tested", 0: "not told apart", 1: "higher", -1: "lower"}[direction(contrast)]
    return f"{difference_text(metric, contrast.interval)} {TEXTS[metric].unit}, {p}{word}"
