"""Tables of the filler control: every condition, the loss taken apart, by length, and the price of a block."""

from __future__ import annotations

from attnprobe.tasks.filler_findings import FillerFindings
from attnprobe.tasks.outcome import ConditionValue
from attnprobe.tasks.task_numbers import PRIMARY, TEXTS, difference_cell, primary, value_text
from attnprobe.terminal import fit, p_text, percent, sentence
from attnprobe.told import Table

_SHOWN = ("strict", "mass", "advantage")
_NAME = 12
"""Cells of a filler's name, so that a file with a long one leaves room for the numbers."""


def filler_tables(findings: FillerFindings) -> list[Table]:
    """The tables of a filler control."""
    return [
        *_cells_table(findings),
        *_decomposition_tables(findings),
        *_length_tables(findings),
        *_price_table(findings),
        *_audit_table(findings),
    ]


def _cells_table(findings: FillerFindings) -> list[Table]:
    if not findings.cells:
        return []
    metrics = [name for name in _SHOWN if any(name in cell.means for cell in findings.cells)]
    loss = primary([name for cell in findings.cells for name in cell.loss])
    rows = []
    for cell in findings.cells:
        row = [_name(cell.filler), str(cell.placement or "-"), "-" if cell.tokens is None else f"{cell.tokens:,.0f}"]
        row += [value_text(name, cell.means.get(name)) for name in metrics]
        row += [difference_cell(loss, cell.loss.get(loss))] if loss is not None else []
        rows.append(tuple(row))
    header = [
        "filler",
        "place",
        "tokens",
        *metrics,
        *([f"{TEXTS[loss].short} lost"] if loss is not None else []),
    ]
    note = "place: of the filler, seen from the evidence."
    if loss is not None:
        note += f" Lost ({TEXTS[loss].unit}): without filler less with it, within items, 95 % t intervals."
    right = (False, False, *[True] * (len(header) - 2))
    return [Table("Every condition", tuple(header), tuple(rows), right, note)]


def _decomposition_tables(findings: FillerFindings) -> list[Table]:
    tables = []
    for metric in filter(None, [primary(findings.decompositions)]):
        found = findings.decompositions[metric]
        rows = []
        for loss in found.losses:
            where = (str(loss.placement), f"{loss.length:,}")
            rows += [(*where, one.name, difference_cell(metric, one.loss), p_text(one.p)) for one in loss.components]
            rows.append((*where, "all three", difference_cell(metric, loss.total), ""))
        note = (
            f"{TEXTS[metric].unit.capitalize()}. length: none less repeated filler; content: repeated less varied, "
            "which are of other subjects, too; interference: varied less same domain; they add up to all three. p by "
            "sign flips, adjusted over all of them."
        )
        note += "".join(f" {sentence(text)}" for text in found.warnings)
        header = ("place", "length", "step", "lost", "p")
        caption = f"What filler costs, taken apart: {TEXTS[metric].name}"
        tables.append(Table(caption, header, tuple(rows), (False, True, False, True, True), note))
    return tables


def _length_tables(findings: FillerFindings) -> list[Table]:
    tables = []
    for metric in PRIMARY:
        rows = []
        for one in findings.lengths:
            curve = one.curves.get(metric)
            if curve is None or curve.is_beyond:
                continue
            steep = curve.steepening
            rows.append(
                (
                    _name(one.filler),
                    str(one.placement),
                    difference_cell(metric, curve.per_doubling.loss),
                    p_text(one.p[metric]),
                    "-" if steep is None else difference_cell(metric, steep.loss),
                    str(len(curve.values)),
                )
            )
        if rows:
            note = (
                f"{TEXTS[metric].unit.capitalize()}, lost for twice the tokens; p by sign flips, adjusted over the "
                "rows (Holm); growth: by how much more with every doubling."
            )
            header = ("filler", "place", "per doubling", "p", "growth of it", "items")
            right = (False, False, True, True, True, True)
            tables.append(Table(f"Loss by length: {TEXTS[metric].name}", header, tuple(rows), right, note))
    return tables


def _price_table(findings: FillerFindings) -> list[Table]:
    rows = []
    for one in findings.lengths:
        metric = primary(one.prices)
        if metric is None:
            continue
        for price in one.prices[metric]:
            lost = difference_cell(metric, price.loss)
            rows.append(
                (
                    _name(one.filler),
                    str(one.placement),
                    f"{price.added:,}",
                    f"{price.at:,}",
                    lost,
                    TEXTS[metric].unit,
                )
            )
    if not rows:
        return []
    header = ("filler", "place", "adding", "to a prompt of", "costs", "in")
    note = "Read off the curve of each filler: the price of the same tokens depends on how long the prompt is already."
    return [Table("Price of a block of tokens", header, tuple(rows), (False, False, True, True, True, False), note)]


def _audit_table(findings: FillerFindings) -> list[Table]:
    """What the longest prompts are made of, and what leaving the filler out is worth."""
    rows = []
    for placement, filler in dict.fromkeys((cell.placement, cell.filler) for cell in findings.cells if cell.loss):
        own = [cell for cell in findings.cells if (cell.placement, cell.filler) == (placement, filler)]
        cell = max(own, key=lambda one: one.tokens or 0.0)
        metric = primary(cell.loss)
        if metric is None or cell.tokens is None or cell.filler_tokens is None:
            continue
        part = cell.filler_tokens / cell.tokens
        worth = difference_cell(metric, cell.loss[metric])
        numbers = (f"{cell.tokens:,.0f}", f"{cell.filler_tokens:,.0f}", percent(part))
        rows.append((_name(filler), str(placement), *numbers, worth, TEXTS[metric].unit))
    if not rows:
        return []
    header = ("filler", "place", "tokens", "of them filler", "part", "without it", "in")
    note = (
        "The longest prompts of each filler. Without it: what leaving the filler out is worth, measured with and "
        "without. attnprobe.tasks.token_audit counts any prompt's sections and reads their price off a curve by length."
    )
    right = (False, False, True, True, True, True, False)
    return [Table("Token audit", header, tuple(rows), right, note)]


def _name(filler: ConditionValue) -> str:
    return fit(str(filler), _NAME).rstrip()
