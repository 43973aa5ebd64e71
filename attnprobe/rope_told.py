"""What a comparison of RoPE scalings says, in sentences and tables: one wording for the terminal and for pages."""

from __future__ import annotations

from attnprobe.curve import middle_positions
from attnprobe.rope_data import BY_NEEDLE, BY_TEXT
from attnprobe.rope_findings import RopeFindings
from attnprobe.rope_options import short_name
from attnprobe.rope_verdict import JUDGED, Contrast, ScalingVerdict
from attnprobe.terminal import count, decimal, percent
from attnprobe.told import Table, Verdict

_UNITS = {"logprob": "nats", "advantage": "nats", "loss": "nats a token"}


def verdict_of(found: RopeFindings) -> Verdict:
    """How far each scaling reaches, and in a line each what it costs in the window and where it holds."""
    lines = [setup(found)]
    for number, one in enumerate(found.verdicts):
        own = (same_frequencies(found, number), in_window_cost(one), middle_states(one))
        lines += [f"{short_name(one.scaling)}: {text}" for text in own if text]
    reaches = "; ".join(f"{short_name(one.scaling)} {_reached(one)}" for one in found.verdicts)
    return Verdict(f"Reach in tokens (trained window {found.data.plan.window:,}): {reaches}", tuple(lines))


def rope_tables(found: RopeFindings) -> list[Table]:
    """All tables of a page."""
    return [verdict_table(found), overview_table(found), _middle_table(found), _same_length_table(found)]


def setup(found: RopeFindings) -> str:
    """What was compared, in one sentence."""
    plan = found.data.plan
    return (
        f"{plan.model}: {count(len(plan.scalings), 'RoPE scaling')}, trained on {plan.window:,} positions; "
        f"{count(plan.options.texts, 'text')} of each length with a needle at "
        f"{count(len(plan.options.depths), 'depth')}, {count(found.data.n_items, 'item')}, answers forced"
    )


def same_frequencies(found: RopeFindings, number: int) -> str | None:
    """Where a scaling, by its number, changes nothing."""
    same = found.data.unscaled_at(number) if number else ()
    if not same:
        return None
    return f"with the unscaled model's own frequencies at {', '.join(f'{found.data.plan.lengths[i]:,}' for i in same)}"


def in_window_cost(one: ScalingVerdict) -> str | None:
    """What a scaling costs; None for the unscaled model, and where no length lies in the window."""
    return f"in-window cost: {_contrasts(one.cost)}" if one.cost else None


def gains(one: ScalingVerdict) -> list[str]:
    """What a scaling gains beyond the window, a sentence a length."""
    return [
        f"gain at {at.length:,}: {_contrasts(at.same_length)}" for at in one.lengths if at.same_length and not at.inside
    ]


def middle_states(one: ScalingVerdict) -> str:
    """How the needles in the middle fare, by length."""
    return f"middle needles: {', '.join(f'{at.length:,} {at.middle_state}' for at in one.lengths)}"


def overview_table(found: RopeFindings) -> Table:
    """Every metric's mean by scaling and length."""
    plan = found.data.plan
    rows = []
    for s, name in enumerate(plan.scalings):
        for i, length in enumerate(plan.lengths):
            mean = {metric: found.interval(metric, s, i).estimate for metric in (*BY_NEEDLE, *BY_TEXT)}
            rows.append(
                (
                    short_name(name),
                    _length(length, i in plan.inside),
                    decimal(mean["logprob"], 1),
                    decimal(mean["advantage"]),
                    percent(mean["mass"]),
                    decimal(mean["retrieval"]),
                    decimal(mean["loss"]),
                    percent(found.curves[s][i].middle, 0),
                    percent(mean["sink"], 0),
                    decimal(mean["entropy"], 1),
                    decimal(mean["spectrum"]),
                )
            )
    legend = (
        "* beyond the window. Means of the needle that is asked for, over items: logprob, log-probability of its "
        "answer (nats); adv, advantage over the other documents (nats); mass; retr, retrieval score of "
        f"{count(plan.options.n_heads, 'head')} chosen on the unscaled model's shortest texts, on the other half of "
        "the items. Of whole texts: loss (nats a token); middle, share of the documents' two central tenths; sink, "
        "mass of the first token; entropy of a head's row-averaged mass over all other tokens (nats); moved, part of a "
        "head's mass by distance that is elsewhere, against the unscaled model in its window."
    )
    metrics = ("logprob", "adv", "mass", "retr", "loss", "middle", "sink", "entropy", "moved")
    header = ("scaling", "tokens", *metrics)
    return Table("By scaling and length", header, tuple(rows), (False, *[True] * (len(header) - 1)), legend)


def verdict_table(found: RopeFindings) -> Table:
    """In-window cost and reach of every scaling; the note says what they mean."""
    options = found.data.plan.options
    rows = []
    for one in found.verdicts:
        cost = [f"{each.state} {_signed(each.interval.estimate)}".removesuffix(" -") for each in one.cost] or [
            "-"
        ] * len(JUDGED)
        rows.append((short_name(one.scaling), *cost, _reach(one)))
    where = ", ".join(f"{options.depths[i]:g}" for i in middle_positions(len(options.depths)))
    margins = options.margins
    note = (
        f"Cost and gain: less the unscaled model on the same texts, {percent(options.level, 0)} intervals over texts "
        "and items (loss: texts), each by "
        f"itself. kept: a loss of {margins.logprob:g} nats of log-probability, {margins.advantage:g} nats of "
        f"advantage or {margins.loss:g} nats of loss a token is ruled out; gained: better, and perhaps by that much; "
        "lowered: worse; lost: worse by more than that. Reach: the longest length up to which the needles in the "
        f"middle (depth {where}) keep advantage and log-probability at every length, against the unscaled model in "
        "its window (its longest length inside, for lengths beyond)."
    )
    header = ("scaling", *JUDGED, "reach")
    return Table("In-window cost and reach", header, tuple(rows), (False,) * len(header), note)


def why_no_interval(found: RopeFindings) -> list[str]:
    """Why in-window costs have no interval, or which values are left out of them."""
    return [
        f"{metric}: {why.replace('question', 'text')}"
        for metric in JUDGED
        for why in sorted(
            {each.interval.reason or "" for one in found.verdicts for each in one.cost if each.metric == metric} - {""}
        )
    ]


def _middle_table(found: RopeFindings) -> Table:
    rows = []
    for number, one in enumerate(found.verdicts):
        for at in one.lengths:
            is_reference = number == 0 and at.inside
            held = {each.metric: "reference" if is_reference else _cell(each) for each in at.middle}
            cells = [held.get(metric, "-") for metric in ("logprob", "advantage")]
            rows.append((short_name(one.scaling), _length(at.length, at.inside), *cells, at.middle_state))
    header = ("scaling", "tokens", "logprob (nats)", "advantage (nats)", "both")
    note = "* beyond the window. Less the unscaled model in its window: at the same length, or its longest one inside."
    return Table("Needles in the middle", header, tuple(rows), (False, True, False, False, False), note)


def _same_length_table(found: RopeFindings) -> Table:
    rows = [
        (short_name(one.scaling), _length(at.length, at.inside), *map(_cell, at.same_length))
        for one in found.verdicts[1:]
        for at in one.lengths
    ]
    header = ("scaling", "tokens", *(f"{metric} ({_UNITS[metric]})" for metric in JUDGED))
    note = "* beyond the window, where the unscaled model itself falls: a difference above 0 (loss: below) is a gain."
    return Table(
        "Less the unscaled model at the same length", header, tuple(rows), (False, True, False, False, False), note
    )


def _length(length: int, inside: bool) -> str:
    return f"{length:,}{'' if inside else '*'}"


def _contrasts(some: tuple[Contrast, ...]) -> str:
    return "; ".join(
        f"{one.metric} {one.state}" if one.interval.estimate is None
        else f"{one.metric} {_bounds(one)} {_UNITS[one.metric]}, {one.state}"
        for one in some
    )  # fmt: skip


def _cell(one: Contrast) -> str:
    return one.state if one.interval.estimate is None else f"{_bounds(one)}, {one.state}"


def _bounds(one: Contrast) -> str:
    low, high = one.interval.low, one.interval.high
    between = "" if low is None or high is None else f" ({_signed(low)} to {_signed(high)})"
    return f"{_signed(one.interval.estimate)}{between}"


def _signed(value: float | None) -> str:
    """A difference; one that is rounded to nothing has no minus."""
    return "-" if value is None else f"{round(value, 2) + 0.0:+.2f}"


def _reached(one: ScalingVerdict) -> str:
    """``8,192``, or what stands at the shortest length where nothing is reached: ``lost at 2,048``."""
    return f"{one.lengths[0].middle_state} at {one.lengths[0].length:,}" if one.reach is None else f"{one.reach:,}"


def _reach(one: ScalingVerdict) -> str:
    """``8,192; 16,384 unclear``: the reach, and what stands at the next length."""
    reached = [f"{at.length:,}" for at in one.lengths if one.reach is not None and at.length <= one.reach]
    after = one.lengths[len(reached) : len(reached) + 1]
    return "; ".join([*reached[-1:], *(f"{at.length:,} {at.middle_state}" for at in after)])
