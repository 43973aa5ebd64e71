"""The lines that a terminal shows of a comparison of RoPE scalings."""

from __future__ import annotations

from attnprobe.rope_findings import RopeFindings
from attnprobe.rope_options import short_name
from attnprobe.rope_told import (
    gains,
    in_window_cost,
    middle_states,
    overview_table,
    same_frequencies,
    setup,
    verdict_table,
    why_no_interval,
)
from attnprobe.terminal import WIDTH, count, fit, table, wrapped

_NOTES = 3


def rope_lines(found: RopeFindings) -> list[str]:
    """What ``attnprobe rope MODEL`` prints."""
    lines = [*wrapped(setup(found)), "", *_overview(found), "", *_verdicts(found)]
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
    """The table with a scaling's name above its lines, as there is no room for it beside them."""
    shown = overview_table(found)
    first, *lines = table(["  tokens", *shown.header[2:]], [row[1:] for row in shown.rows], shown.right[1:])
    named_lines = [first]
    for number, (row, line) in enumerate(zip(shown.rows, lines, strict=True)):
        is_first = number % len(found.data.plan.lengths) == 0
        named_lines += [fit(row[0], WIDTH).rstrip()] * is_first + [line]
    return [*named_lines, *wrapped(shown.note)]


def _verdicts(found: RopeFindings) -> list[str]:
    shown = verdict_table(found)
    lines = table(shown.header, shown.rows, shown.right)
    for number, one in enumerate(found.verdicts):
        lines.append(fit(short_name(one.scaling), WIDTH).rstrip())
        for text in (same_frequencies(found, number), in_window_cost(one), *gains(one), middle_states(one)):
            if text:
                lines += wrapped(f"  {text}", indent="    ")
    lines += wrapped(shown.note)
    return [*lines, *(line for text in why_no_interval(found) for line in wrapped(text))]
