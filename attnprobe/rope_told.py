"""What a comparison of RoPE scalings says, in sentences and tables: one wording for the terminal and for pages."""

from __future__ import annotations

from attnprobe.curve import middle_positions
from attnprobe.rope_data import BY_NEEDLE, BY_TEXT
from attnprobe.rope_findings import RopeFindings
from attnprobe.rope_options import short_name
from attnprobe.rope_verdict import JUDGED, KEPT, AtLength, Contrast, ScalingVerdict
from attnprobe.terminal import count, decimal, percent
from attnprobe.told import Table, Verdict

_REFERENCE = "reference"
_DIGITS = {"logprob": 2, "advantage": 2, "loss": 3}  # so that a bound is told from a margin of 0.05
_UNITS = {"logprob": "nats", "advantage": "nats", "loss": "nats a token"}


def verdict_of(found: RopeFindings) -> Verdict:
    """How far each scaling reaches, and in a line each what it costs in the window and where it holds."""
    lines = [setup(found), f"Reach: {reach_meaning(found)}"]
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
        f"{'' if len(plan.inside) < len(plan.lengths) else '; none of the lengths lies beyond the window'}"
    )


def reach_meaning(found: RopeFindings) -> str:
    """What reach is."""
    depths = found.data.plan.options.depths
    middle = middle_positions(len(depths))
    if not middle:
        return f"unknown, as none of {count(len(depths), 'depth')} lies in the middle; it takes three depths"
    return (
        "the longest length measured up to which the needles in the middle (depth "
        f"{', '.join(f'{depths[i]:g}' for i in middle)}) keep their advantage and their answers' log-probability, "
        "against the unscaled model in its window (its longest length inside, for lengths beyond), which itself is the "
        "reference there"
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
    """What a scaling gains or loses beyond the window, where the unscaled model falls itself; a sentence a length."""
    return [
        f"against the unscaled model at {at.length:,}: {_contrasts(at.same_length)}"
        for at in one.lengths
        if at.same_length and not at.inside
    ]


def middle_states(one: ScalingVerdict) -> str:
    """How the needles in the middle fare, by length."""
    return f"middle needles: {', '.join(f'{at.length:,} {_middle_state(at)}' for at in one.lengths)}"


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
                    decimal(mean["moved"]),
                )
            )
    legend = (
        "* beyond the window. Means over texts, of the needle that is asked for: logprob, log-probability of its "
        "answer (nats); adv, advantage over the other documents (nats); mass; retr, retrieval score (part of the "
        "needle's tokens that are looked at most while they are copied) of "
        f"{count(plan.options.n_heads, 'head')} chosen on the unscaled model's shortest texts, on the other half of "
        "the items. Of whole texts: loss (nats a token); middle, share of the documents' two central tenths (even: "
        "20 %); sink, mass of the first token; entropy of a head's row-averaged mass over all other tokens (nats); "
        "moved, part of a head's mass that lies at other distances than with the unscaled model in its window."
    )
    metrics = ("logprob", "adv", "mass", "retr", "loss", "middle", "sink", "entropy", "moved")
    header = ("scaling", "tokens", *metrics)
    return Table("By scaling and length", header, tuple(rows), (False, *[True] * (len(header) - 1)), legend)


def verdict_table(found: RopeFindings) -> Table:
    """In-window cost and reach of every scaling; the note says what they mean."""
    options = found.data.plan.options
    rows = []
    for one in found.verdicts:
        cost = [f"{each.state} {_signed(each, each.interval.estimate)}".removesuffix(" -") for each in one.cost] or [
            "-"
        ] * len(JUDGED)
        rows.append((short_name(one.scaling), *cost, _reached(one)))
    margins = options.margins
    note = (
        f"Less the unscaled model on the same texts, {percent(options.level, 0)} intervals over texts and items (loss: "
        "texts), each by itself, not adjusted for their number. "
        f"kept: worse by {_nats(margins.logprob)} (logprob), {_nats(margins.advantage)} (advantage) or "
        f"{_nats(margins.loss)} a token (loss) is ruled out; gained: better, and perhaps by that much; lowered: worse, "
        "and perhaps by that much; lost: worse by more than that; unclear: none of these; unknown: no interval. "
        f"Reach: {reach_meaning(found)}."
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
    for one in found.verdicts:
        for at in one.lengths:
            held = {each.metric: _REFERENCE if _is_reference(at) else _cell(each) for each in at.middle}
            cells = [held.get(metric, "-") for metric in ("logprob", "advantage")]
            rows.append((short_name(one.scaling), _length(at.length, at.inside), *cells, _middle_state(at)))
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


def _is_reference(at: AtLength) -> bool:
    """Whether this is the unscaled model in its window, which all else is compared with."""
    return at.inside and not at.same_length


def _middle_state(at: AtLength) -> str:
    """A state; what is kept of the reference by itself says nothing."""
    return _REFERENCE if _is_reference(at) and at.middle_state == KEPT else at.middle_state


def _nats(margin: float) -> str:
    return f"{margin:g} nat{'' if margin == 1 else 's'}"


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
    between = "" if low is None or high is None else f" ({_signed(one, low)} to {_signed(one, high)})"
    return f"{_signed(one, one.interval.estimate)}{between}"


def _signed(one: Contrast, value: float | None) -> str:
    """A difference; one that is rounded to nothing has no minus."""
    digits = _DIGITS[one.metric]
    return "-" if value is None else f"{round(value, digits) + 0.0:+.{digits}f}"


def _reached(one: ScalingVerdict) -> str:
    """``8,192 (16,384 unclear)``: the reach and what stands at the next length; ``lost at 2,048`` without a reach."""
    if one.reach is None:
        return f"{one.lengths[0].middle_state} at {one.lengths[0].length:,}"
    longer = [at for at in one.lengths if at.length > one.reach]
    after = f" ({longer[0].length:,} {longer[0].middle_state})" if longer else " or more"
    return f"{one.reach:,}{after}"
