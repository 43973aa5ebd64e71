"""The lines that a terminal shows of a comparison of RoPE scalings."""

from __future__ import annotations

from attnprobe.curve import middle_positions
from attnprobe.estimates import Interval
from attnprobe.rope_data import BY_NEEDLE, BY_TEXT
from attnprobe.rope_findings import RopeFindings
from attnprobe.rope_options import short_name
from attnprobe.rope_verdict import JUDGED, Contrast, ScalingVerdict
from attnprobe.terminal import WIDTH, count, decimal, fit, percent, table, wrapped

_NOTES = 3


def rope_lines(found: RopeFindings) -> list[str]:
    """What ``attnprobe rope MODEL`` prints."""
    plan = found.data.plan
    options = plan.options
    n_items = len({name for own in found.data.items for name in own})
    lines = [
        *wrapped(
            f"{plan.model}: {count(len(plan.scalings), 'RoPE scaling')}, trained on {plan.window:,} positions; "
            f"{count(options.texts, 'text')} of each length with a needle at "
            f"{count(len(options.depths), 'depth')}, {count(n_items, 'item')}, answers forced"
        ),
        "",
        *_overview(found),
        "",
        *_verdicts(found),
    ]
    for warning in found.data.warnings[:_NOTES]:
        lines += wrapped(f"note: {fit(warning, 300).rstrip()}")
    if len(found.data.warnings) > _NOTES:
        lines.append(f"note: {count(len(found.data.warnings) - _NOTES, 'more warning')} in summary.json")
    if found.data.incomplete:
        left = count(len(found.data.incomplete), "cell")
        key, why = next(iter(found.data.incomplete.items()))
        lines += wrapped(f"without a result: {left}, e.g. {fit(f'{key}: {why}', 300).rstrip()}")
    return lines


def _overview(found: RopeFindings) -> list[str]:
    plan = found.data.plan
    places = [(s, i) for s in range(len(plan.scalings)) for i in range(len(plan.lengths))]
    rows = []
    for s, i in places:
        mean = {metric: found.interval(metric, s, i).estimate for metric in (*BY_NEEDLE, *BY_TEXT)}
        rows.append(
            [
                f"{plan.lengths[i]:,}{'' if i in plan.inside else '*'}",
                decimal(mean["logprob"], 1),
                decimal(mean["advantage"]),
                percent(mean["mass"]),
                decimal(mean["retrieval"]),
                decimal(mean["loss"]),
                percent(found.curves[s][i].middle, 0),
                percent(mean["sink"], 0),
                decimal(mean["entropy"], 1),
                decimal(mean["spectrum"]),
            ]
        )
    header = ["  tokens", "logprob", "adv", "mass", "retr", "loss", "middle", "sink", "entropy", "moved"]
    first, *lines = table(header, rows, [True] * len(header))
    named_lines = [first]
    for (s, i), line in zip(places, lines, strict=True):
        named_lines += [fit(short_name(plan.scalings[s]), WIDTH).rstrip()] * (i == 0) + [line]
    legend = (
        "* beyond the window. Means of the needle that is asked for, over items: logprob, log-probability of its "
        "answer (nats); adv, advantage over the other documents (nats); mass; retr, retrieval score of "
        f"{count(plan.options.n_heads, 'head')} chosen on the unscaled model's shortest texts, on the other half of "
        "the items. Of whole texts: loss (nats a token); middle, share of the documents' two central tenths; sink, "
        "mass of the first token; entropy of a head's row-averaged mass over all other tokens (nats); moved, part of a "
        "head's mass by distance that is elsewhere, against the unscaled model in its window."
    )
    return [*named_lines, *wrapped(legend)]


def _verdicts(found: RopeFindings) -> list[str]:
    plan = found.data.plan
    margins = plan.options.margins
    rows = []
    for one in found.verdicts:
        cost = [f"{each.state} {_signed(each.interval)}" for each in one.cost] or ["-"] * len(JUDGED)
        rows.append([short_name(one.scaling), *cost, _reach(one)])
    lines = table(["scaling", *JUDGED, "reach"], rows, [False] * (len(JUDGED) + 2))
    for number, one in enumerate(found.verdicts):
        lines.append(fit(short_name(one.scaling), WIDTH).rstrip())
        if number and (same := found.data.unscaled_at(number)):
            at_lengths = ", ".join(f"{plan.lengths[i]:,}" for i in same)
            lines += wrapped(f"  with the unscaled model's own frequencies at {at_lengths}", indent="    ")
        if one.cost:
            lines += wrapped(f"  in-window cost: {'; '.join(_contrast(each) for each in one.cost)}", indent="    ")
        for at in one.lengths:
            if at.same_length and not at.inside:
                text = "; ".join(_contrast(each) for each in at.same_length)
                lines += wrapped(f"  gain at {at.length:,}: {text}", indent="    ")
        states = ", ".join(f"{at.length:,} {at.middle_state}" for at in one.lengths)
        lines += wrapped(f"  middle needles: {states}", indent="    ")
    where = ", ".join(f"{plan.options.depths[i]:g}" for i in middle_positions(len(plan.options.depths)))
    level = percent(plan.options.level, 0)
    lines += wrapped(
        f"Cost and gain: less the unscaled model on the same texts, {level} t intervals over items (loss: texts), each "
        f"by itself. kept: a loss of {margins.logprob:g} nats of log-probability, {margins.advantage:g} nats of "
        f"advantage or {margins.loss:g} nats of loss a token is ruled out; gained: better, and perhaps by that much; "
        "lowered: worse; lost: worse by more than that. Reach: the longest length up to which the needles in the "
        f"middle (depth {where}) keep advantage and log-probability at every length, against the unscaled model in "
        "its window (its longest length inside, for lengths beyond)."
    )
    for metric in JUDGED:
        reasons = {each.interval.reason for one in found.verdicts for each in one.cost if each.metric == metric}
        unit = "text" if metric in BY_TEXT else "item"
        lines += [
            line
            for why in sorted(filter(None, reasons))
            for line in wrapped(f"{metric}: {why.replace('question', unit)}")
        ]
    return lines


def _contrast(one: Contrast) -> str:
    bounds = one.interval
    unit = "nats a token" if one.metric == "loss" else "nats"
    between = "" if bounds.low is None or bounds.high is None else f" ({bounds.low:+.2f} to {bounds.high:+.2f})"
    return f"{one.metric} {_signed(bounds)}{between} {unit}, {one.state}"


def _signed(interval: Interval) -> str:
    return "-" if interval.estimate is None else f"{interval.estimate:+.2f}"


def _reach(one: ScalingVerdict) -> str:
    """``8,192; 16,384 unclear``: the reach, and what stands at the next length."""
    reached = [f"{at.length:,}" for at in one.lengths if one.reach is not None and at.length <= one.reach]
    after = one.lengths[len(reached) : len(reached) + 1]
    return "; ".join([*reached[-1:], *(f"{at.length:,} {at.middle_state}" for at in after)])
