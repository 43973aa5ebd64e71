"""The lines that a terminal shows of a study."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from attnprobe.estimates import Band, Interval
from attnprobe.fit import StudyFit
from attnprobe.flatness import Flatness, end_state
from attnprobe.study import Study
from attnprobe.study_curve import AVERAGING, StudyCurve
from attnprobe.study_findings import PanelRow, robustness
from attnprobe.summary_text import budget_lines
from attnprobe.terminal import WIDTH, bars, count, decimal, fit, percent, table, wrapped

_STAR = "even*"
_NAME = 17
"""Cells of a name in the panel, so that two ratios with their states fit beside it."""
_SHOWN = 40
_ANSWERS = 3
_LIMITS = (0.8, 1.0, 1.25)
"""What a state turns on: see :func:`attnprobe.flatness.verdict`."""


def study_lines(study: Study, model: str | None = None, unicode: bool = True) -> list[str]:
    """What ``attnprobe study`` prints of one model."""
    data, options = study.of(model), study.options
    panel = study.artefact_panel(model)
    curve, logs = study.curve("share", model=model), study.curve("log_share", model=model)
    bases = f", {count(options.bases, 'base order')} each" if options.bases > 1 else ""
    scaled = ", both scaled to sum to 100 %" if curve.is_whole else ", of the document that was moved"
    return [
        *wrapped(f"{data.model}, raw curve: {study.claim(model)}{_ends_text(curve, logs)}", indent="  "),
        *(f"  {line}" for text in robustness(panel).sentences for line in wrapped(text, WIDTH - 2, indent="  ")),
        *wrapped(
            f"{count(len(data.questions), 'question')} x {count(len(data.orders[0]), 'order')} "
            f"({options.design}{bases}), {count(data.n_documents, 'document')}. Share of the documents' attention: "
            f"pooled over heads and layers (norm share), and per head, a geometric mean (norm log_share){scaled}. "
            "Brackets: 95 %, all positions at once."
        ),
        "",
        *_curve_lines(curve, logs, float(study.uniform(model).mean()), unicode),
        *_ratio_lines(curve, logs),
        *wrapped(_flatness_text(curve, logs)),
        "",
        *_panel_lines(panel),
        "",
        *_decomposition_lines(study, model),
        *_gold_lines(study, model),
        *_effect_lines(study, model),
        *_fit_lines(study, model, curve),
        *_distance_lines(study, model),
        *_concentration_lines(study, model, curve),
        *budget_lines(study.budget(model)),
        *_own_lines(study, model),
        *_incomplete_lines(study, model),
    ]


def interval_text(interval: Interval | None, digits: int = 2) -> str:
    """``3.51 (2.90 to 4.20)``, or the estimate alone where there is no interval."""
    return _interval(interval, digits, "{} ({} to {})")


def interval_cell(interval: Interval | None, digits: int = 2) -> str:
    """``3.51 [2.90, 4.20]``: the same for a column of a table."""
    return _interval(interval, digits, "{} [{}, {}]")


def _interval(interval: Interval | None, digits: int, form: str) -> str:
    if interval is None or interval.estimate is None:
        return "-"
    if interval.low is None or interval.high is None:
        return decimal(interval.estimate, digits)
    return form.format(*(decimal(value, digits) for value in (interval.estimate, interval.low, interval.high)))


def ratio_text(ratio: Interval | None) -> str:
    """As :func:`interval_text`, with further digits of a bound that is next to 0.8, 1 or 1.25."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return interval_text(ratio)
    return f"{decimal(ratio.estimate)} ({_bound(ratio.low)} to {_bound(ratio.high)})"


def end_text(ratio: Interval | None) -> str:
    """``1.12 (1.04 to 1.20), even (slightly above 1)``: a ratio to the middle and what it shows."""
    state = end_state(ratio)
    return ratio_text(ratio) + (f", {state}" if state else "")


def _bound(value: float) -> str:
    near = next((limit for limit in _LIMITS if abs(value - limit) < 0.005), None)
    if near is None:
        return decimal(value)
    return decimal(value, next((digits for digits in (3, 4) if round(value, digits) != near), 3))


def _ends_text(curve: StudyCurve, logs: StudyCurve) -> str:
    """`` (head 4.08 pooled, 2.50 per head; tail 2.02, 2.53)``: both ends over the middle; empty without one."""
    if curve.head_middle is None or curve.tail_middle is None or logs.head_middle is None or logs.tail_middle is None:
        return ""
    head, head_log, tail, tail_log = (
        decimal(end.estimate) for end in (curve.head_middle, logs.head_middle, curve.tail_middle, logs.tail_middle)
    )
    return f" (head {head} pooled, {head_log} per head; tail {tail}, {tail_log})"


def _flatness_text(curve: StudyCurve, logs: StudyCurve) -> str:
    tests = (curve.flatness, logs.flatness)
    reasons = dict.fromkeys(test.reason for test in tests if test.reason)
    if all(test.p is None for test in tests):
        return f"flat at all? no test: {'; '.join(reasons)}"
    note = "".join(f"; {reason}" for reason in reasons)
    first, second = map(_p_text, tests)
    return f"flat at all? p = {first} pooled, {second} per head (sign-flipped profiles{note})"


def _p_text(test: Flatness) -> str:
    return decimal(test.p, 4) + (" (smallest possible)" if test.p is not None and test.p == test.smallest_p else "")


def _curve_lines(curve: StudyCurve, logs: StudyCurve, uniform: float, unicode: bool) -> list[str]:
    line = "│" if unicode else "|"
    pooled, per_head = curve.scaled(), logs.scaled()
    columns = [
        [str(position) for position in range(len(curve.values))],
        [percent(value) for value in pooled.estimate],
        _band_texts(pooled),
        [percent(value) for value in per_head.estimate],
        _band_texts(per_head),
    ]
    header = ["position", "pooled", "", "per head", ""]
    used = sum(max(len(head), *map(len, cells)) + 2 for head, cells in zip(header, columns, strict=True))
    header.append(f"{line} uniform, {percent(uniform)}")
    columns.append(bars(pooled.estimate.tolist(), max(WIDTH - used, 8), uniform, unicode))
    lines = table(header, list(zip(*columns, strict=True)), [True] * 5 + [False])
    if len(curve.values) <= _SHOWN:
        return lines
    half = _SHOWN // 2
    return [*lines[: 1 + half], f"... {len(curve.values) - 2 * half} positions more ...", *lines[-half:]]


def _band_texts(band: Band) -> list[str]:
    if band.low is None or band.high is None:
        return [""] * len(band.estimate)
    return [f"[{100 * a:.1f}, {100 * b:.1f}]" for a, b in zip(band.low, band.high, strict=True)]


def _ratio_lines(curve: StudyCurve, logs: StudyCurve) -> list[str]:
    if not curve.middle:
        return ["two documents have no middle, so there are no ratios"]
    middle = f"middle: position{'s' if len(curve.middle) > 1 else ''} {', '.join(map(str, curve.middle))}"
    lines = []
    for name, pooled, per_head in (
        ("head/middle", curve.head_middle, logs.head_middle),
        ("tail/middle", curve.tail_middle, logs.tail_middle),
    ):
        lines.append(f"{name}  pooled {ratio_text(pooled)}, per head {ratio_text(per_head)}")
    lines[-1] += f"   ({middle})"
    reason = curve.head_middle.reason if curve.head_middle is not None else None
    return [*(line for text in lines for line in wrapped(text)), *(wrapped(reason) if reason else [])]


def _panel_lines(panel: Sequence[PanelRow]) -> list[str]:
    """The artefact panel, one order of averaging after the other: side by side they do not fit 80 columns."""
    lines = []
    for norm, name in AVERAGING.items():
        curves = [row.curves[norm] for row in panel]
        cells = [(_panel_cell(curve.head_middle), _panel_cell(curve.tail_middle)) for curve in curves]
        rows = [[fit(row.name, _NAME).rstrip(), *both] for row, both in zip(panel, cells, strict=True)]
        lines += [*table([f"curve, {name}", "head/middle", "tail/middle"], rows, [False] * 3), ""]
    if any(_STAR in line for line in lines):
        lines += wrapped(f"{_STAR} inside 0.8 to 1.25 as a whole, so even, but slightly above or below 1.")
    return [*lines, *wrapped("; ".join(f"{row.name}: {row.about}" for row in panel) + ".", indent="  ")]


def _panel_cell(ratio: Interval | None) -> str:
    """A ratio and its state, short enough for two of them in a line."""
    state = end_state(ratio) or ""
    return f"{ratio_text(ratio)} {_STAR if state.startswith('even (') else state}".rstrip()


def _decomposition_lines(study: Study, model: str | None) -> list[str]:
    if not study.can_decompose(model):
        return []
    parts = study.decompose(model=model)
    named = [("position", parts.position), ("content", parts.content), ("interaction", parts.interaction)]
    text = ", ".join(f"{name} {interval_text(part)}" for name, part in named if part is not None)
    more = (
        "" if parts.interaction is not None else "; interaction and noise need two or more base orders to be told apart"
    )
    return wrapped(f"variance of the per-head log share (omega squared): {text}{more}", indent="  ")


def _gold_lines(study: Study, model: str | None) -> list[str]:
    gold = study.gold_logprob(model=model)
    if gold is None:
        return wrapped("answer's log-probability by position: no single document is known to hold the answer")
    return wrapped(
        f"log-probability of the answer, by where its document stands (nats, {count(gold.n, 'question')}): "
        f"head - middle {interval_text(gold.head_minus_middle)}, tail - middle "
        f"{interval_text(gold.tail_minus_middle)}",
        indent="  ",
    )


def _effect_lines(study: Study, model: str | None) -> list[str]:
    if "effects" not in study.options.extras:
        return []
    lines = []
    for norm, name in AVERAGING.items():
        found = study.mass_and_effect(norm, model=model)
        lines += wrapped(
            f"share ({name}) and effect on the answer (rank correlation): {interval_text(found.within_position)} "
            f"within question and position; {interval_text(found.within_question)} within question; "
            f"{interval_text(found.pooled)} over all",
            indent="  ",
        )
    return lines


def _concentration_lines(study: Study, model: str | None, curve: StudyCurve) -> list[str]:
    top = study.top_fraction(model)
    middle = [float(top[position]) for position in curve.middle]
    text = f"heaviest token: holds {percent(float(top[0]), 0)} of the first document's mass"
    if middle:
        text += f", {percent(sum(middle) / len(middle), 0)} of a middle one's"
    effective = decimal(study.effective_documents(model), 1)
    return wrapped(f"{text}; effective number of documents {effective} of {len(curve.values)}", indent="  ")


def _distance_lines(study: Study, model: str | None) -> list[str]:
    if "distance" not in study.options.extras:
        return []
    mass, edges = study.distance(model=model)
    ends = [start if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in pairwise(edges)]
    parts = ", ".join(f"{end}: {percent(value)}" for end, value in zip(ends, mass, strict=True))
    return wrapped(f"mass by distance from the row (tokens, without sinks): {parts}", indent="  ")


def _fit_lines(study: Study, model: str | None, curve: StudyCurve) -> list[str]:
    if not np.isfinite(curve.profiles).all():
        return wrapped("fit: none, as in some question a position gets nothing, or is not seen", indent="  ")
    if not curve.can_fit("symmetric"):
        return [f"fit: none, as a curve takes three documents, and there are {len(curve.values)}"]
    symmetric = curve.fit("symmetric")
    alpha, error = symmetric.fit.parameters["alpha"], symmetric.standard_errors.get("alpha")
    text = f"fit: symmetric, alpha {decimal(alpha)}" + (f" (standard error {decimal(error)})" if error else "")
    text += f", r2 {decimal(symmetric.fit.r2, 3)}, {_prediction(symmetric)}; two_sided"
    if not curve.can_fit("two_sided"):
        return wrapped(f"{text}: none, as two sides and a floor take five documents", indent="  ")
    two_sided = curve.fit("two_sided")
    return wrapped(f"{text}, r2 {decimal(two_sided.fit.r2, 3)}, {_prediction(two_sided)}", indent="  ")


def _prediction(fit: StudyFit) -> str:
    """Whether a model predicts new questions better than a flat curve does."""
    return {"model": "better than flat on new questions", "flat": "worse than flat on new questions"}.get(
        fit.predicts_better, "not told from flat on new questions"
    )


def _own_lines(study: Study, model: str | None) -> list[str]:
    data = study.of(model)
    agreement = study.agreement(model)
    if agreement is not None:
        return wrapped(
            f"answers: the most frequent own one of each question, written in {percent(agreement)} of orders"
        )
    lines = ["answers: forced; beside them what the model writes itself in the first order:"]
    for id, facts in list(zip(data.questions, data.facts["asked"], strict=True))[:_ANSWERS]:
        forced, own = facts[0]["answer"], data.own_answers.get(id)
        written = "own: none, it failed" if own is None else f"own {' '.join(own[0].split())!r}"
        lines.append(fit(f"  {id}: {' '.join(forced.split())!r}, {written}", WIDTH).rstrip())
    if len(data.questions) > _ANSWERS:
        lines.append(f"  and {len(data.questions) - _ANSWERS} more in summary.json")
    return lines


def _incomplete_lines(study: Study, model: str | None) -> list[str]:
    left_out = study.of(model).incomplete
    if not left_out:
        return []
    id, why = next(iter(left_out.items()))
    return wrapped(
        f"left out: {count(len(left_out), 'question')}, as a cell failed, e.g. {fit(f'{id}: {why}', 300).rstrip()}"
    )
