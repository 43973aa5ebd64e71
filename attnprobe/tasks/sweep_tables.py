"""Tables of a sweep: every position, ends against the middle, the context-rot gap, published curves."""

from __future__ import annotations

from collections.abc import Mapping

from attnprobe.bands import ARTICLE_BANDS
from attnprobe.tasks.accuracy import EndContrast, PositionAccuracy
from attnprobe.tasks.item_intervals import MIN_ITEMS
from attnprobe.tasks.outcome import ConditionValue
from attnprobe.tasks.position_means import PositionMeans
from attnprobe.tasks.sweep_findings import POSITION, SweepFindings
from attnprobe.tasks.task_numbers import (
    TEXTS,
    accuracy_cell,
    difference_cell,
    p_equation,
    place_text,
    value_text,
)
from attnprobe.terminal import count, decimal, p_text, percent, sentence
from attnprobe.told import Table


def sweep_tables(findings: SweepFindings, what: str) -> list[Table]:
    """The tables of a sweep.

    Parameters
    ----------
    findings
        Of the sweep.
    what
        What was moved, e.g. ``needle``.
    """
    places = positions_table(
        f"By position of the {what}", POSITION, findings.positions, findings.accuracy, findings.means
    )
    return [
        *places,
        *ends_table(findings.accuracy, findings.means, findings.middle),
        *_rot_table(findings),
        *_published_table(findings),
    ]


def positions_table(
    caption: str,
    axis: str,
    positions: tuple[ConditionValue, ...],
    accuracy: Mapping[str, PositionAccuracy],
    means: Mapping[str, PositionMeans],
) -> list[Table]:
    """Every metric at every position; none without any."""
    if not accuracy and not means:
        return []
    header, columns, right = [axis], [[place_text(position) for position in positions]], [True]
    for name, found in accuracy.items():
        is_bounded = name == "strict" and any(cell.interval.low is not None for cell in found.cells)
        header.append(f"{name} [95 %]" if is_bounded else name)
        columns.append(
            [accuracy_cell(cell.interval) if is_bounded else percent(cell.accuracy, 0) for cell in found.cells]
        )
        right.append(True)
    for name, mean in means.items():
        header.append("log p, centred" if name == "logprob" else TEXTS[name].short)
        values = dict(zip(mean.positions, mean.band.estimate.tolist(), strict=True))
        columns.append([value_text(name, values.get(position)) for position in positions])
        right.append(True)
    notes = []
    has_bounds = any("95 %" in name for name in header)
    if accuracy:
        first = next(iter(accuracy.values()))
        counts = sorted({cell.trials for cell in first.cells})
        trials = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        notes.append(
            "strict, lenient: part of replies that hold the answer, as written or with other ways to write numbers; "
            + (
                f"95 %: Wilson's interval of strict, {trials} replies a place"
                if has_bounds
                else f"{trials} replies a place"
            )
            + (", items as clusters." if has_bounds and first.cells[0].clustered is not None else ".")
        )
    said = {
        "logprob": "log p, centred: log-probability of the right answer, nats, less each item's mean",
        "margin": "gold-foil: the right answer's log-probability less that of a wrong one, nats, nothing taken out",
        "mass": "mass, advantage (nats): attention of the evidence, mean over rows, layers and heads, secondary sinks "
        "in it counted",
    }
    texts = [said[name] for name in means if name in said]
    if texts:
        items = ", ".join(dict.fromkeys(count(mean.n, "item") for mean in means.values()))
        notes.append(f"{'; '.join(texts)}; {items}.")
    return [Table(caption, tuple(header), tuple(zip(*columns, strict=True)), tuple(right), " ".join(notes))]


def ends_table(
    accuracy: Mapping[str, PositionAccuracy], means: Mapping[str, PositionMeans], middle: tuple[ConditionValue, ...]
) -> list[Table]:
    """First and last place against the middle, every metric; none without a middle."""
    rows = []
    tests = []
    both: dict[str, PositionAccuracy | PositionMeans] = {**accuracy, **means}
    for name, found in both.items():
        head, tail = found.head_minus_middle, found.tail_minus_middle
        if head is not None and tail is not None:
            rows.append((f"{TEXTS[name].short}, {TEXTS[name].unit}", *_end(name, head), *_end(name, tail)))
    if not rows:
        return []
    for name, one in accuracy.items():
        paired = one.paired
        if paired.p is not None:
            tests.append(f"{name}: Cochran's Q {decimal(paired.q, 1)} (df {paired.df}), {p_equation(paired.p)}")
        if paired.pairs:
            p, least = min(
                ((1.0 if pair.p_adjusted is None else pair.p_adjusted, pair) for pair in paired.pairs),
                key=lambda found: found[0],
            )
            tests.append(
                f"McNemar {place_text(least.first)} against {place_text(least.second)}: right in one alone "
                f"{least.only_first} to {least.only_second}, {p_equation(p)} (smallest of {len(paired.pairs)}, Holm)"
            )
        if paired.reason:
            tests.append(f"no Cochran's Q: {paired.reason}")
    places = ", ".join(map(place_text, middle))
    note = (
        f"Middle: {places}. 95 % t intervals within items; p by sign flips of whole items, adjusted over both ends."
        + "".join(f" {sentence(text)}" for text in dict.fromkeys(tests))
    )
    header = ("", "first less middle", "p", "last less middle", "p")
    return [Table("Ends against the middle", header, tuple(rows), (False, True, True, True, True), note)]


def _end(metric: str, contrast: EndContrast) -> tuple[str, str]:
    return difference_cell(metric, contrast.interval), p_text(contrast.p)


def _rot_table(findings: SweepFindings) -> list[Table]:
    rows = []
    for name, found in findings.accuracy.items():
        for label, one in (
            ("gap, better end", found.gap_max),
            ("gap, mean end", found.gap_mean),
            ("best/worst", found.best_worst),
        ):
            is_gap = one.name != "best_worst"
            interval, scale = one.interval, 100 if is_gap else 1
            digits = 0 if is_gap else 2
            estimate = interval.estimate
            bounds = (
                "-"
                if interval.low is None or interval.high is None
                else f"[{decimal(scale * interval.low, digits)}, {decimal(scale * interval.high, digits)}]"
            )
            rows.append(
                (
                    f"{name}, {label}",
                    decimal(None if estimate is None else scale * estimate, digits),
                    bounds,
                    decimal(None if one.threshold is None else scale * one.threshold, digits),
                    p_text(one.p),
                    one.verdict.verdict,
                )
            )
    if not rows or all(row[1] == "-" for row in rows):
        return []
    return [
        Table(
            "Context rot",
            ("", "value", "95 %", "chance", "p", "band"),
            tuple(rows),
            (False, True, True, True, True, False),
            "Gaps in points. Better end and best/worst are biased upward, as each picks the largest; the mean end is "
            "not, but is often far from 0 where replies are few. Chance: 95 % of such values lie below it where "
            "position has no effect (each item's whole profile turned over or not); p: one-sided, each row's own, not "
            "adjusted for the others. Band: of the whole interval, by the context-rot article's table. "
            f"Of a gap: {_bands_text('context_rot_gap', 100, ' points')}; of best/worst: "
            f"{_bands_text('accuracy_best_worst_ratio', 1, '')}.",
        )
    ]


def _bands_text(signal: str, scale: int, unit: str) -> str:
    """``healthy below 5 points, watch 5 to 10, suspect 10 to 20, confirmed above``."""
    bands = ARTICLE_BANDS.signals[signal]
    first, last = bands[0], bands[-1]
    between = "".join(f"{one.name} {scale * one.low:g} to {scale * one.high:g}, " for one in bands[1:-1])
    return f"{first.name} below {scale * first.high:g}{unit}, {between}{last.name} above"


def _published_table(findings: SweepFindings) -> list[Table]:
    """None where a few items make no curve to lay beside others."""
    lenient = findings.accuracy.get("lenient")
    if not findings.published or lenient is None or lenient.n < MIN_ITEMS:
        return []
    first = findings.published[0]
    rows = [("yours, lenient", *(percent(value, 0) for value in first.yours), *_baseline_texts(findings))]
    for one in findings.published:
        curve = one.published
        values = (*curve.accuracy, curve.closed_book, curve.oracle)
        rows.append((curve.model, *(percent(value, 0) for value in values)))
    header = ("", *(f"{place:.2f}" for place in first.published.relative), "closed", "oracle")
    why = "; ".join(dict.fromkeys(text for one in findings.published for text in one.not_comparable))
    note = (
        f"By relative position, 0 the first document, 1 the last; yours between those tested by straight lines. "
        f"{first.published.source.split(':')[0]}; {first.published.documents} documents, {first.published.metric}."
    )
    if why:
        note += f" Levels are not comparable with yours ({why}); shapes at best."
    return [Table("Beside published curves", header, tuple(rows), (False, *[True] * (len(header) - 1)), note)]


def _baseline_texts(findings: SweepFindings) -> tuple[str, str]:
    by_name = {one.name: one.values.get("lenient") for one in findings.baselines}
    closed, oracle = (by_name.get(name) for name in ("closed_book", "oracle"))
    return (
        percent(None if closed is None else closed.estimate, 0),
        percent(None if oracle is None else oracle.estimate, 0),
    )
