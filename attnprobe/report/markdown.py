"""The summary of a report in Markdown, for papers and pull requests."""

from __future__ import annotations

from collections.abc import Sequence

from attnprobe.report.sections import budget_table, curve_table, facts_table, overview_table, series_tables
from attnprobe.report.series import Series
from attnprobe.report.texts import in_markdown
from attnprobe.told import Table, Verdict

MADE_HERE = "<!-- attnprobe report -->"
"""First line of a summary, which readers do not see: by it a later report knows that it may write over it."""

_MOST_ROWS = 40
_LONGEST_CELL = 300


def markdown_text(title: str, all_series: Sequence[Series], faults: Sequence[str]) -> str:
    """Verdicts, curves, budget, further tables, facts and warnings."""
    parts = [f"{MADE_HERE}\n# {in_markdown(title)}"]
    for series in all_series:
        parts += verdict_parts(series.verdict, series.name if len(all_series) > 1 else None)
        parts.append("\n".join(f"- {in_markdown(label)}: {in_markdown(text)}" for label, text in series.asked))
    if len(all_series) > 1:
        parts += table_parts(overview_table(all_series))
    for series in all_series:
        if series.curves:
            parts += table_parts(curve_table(series))
    parts += table_parts(budget_table(all_series))
    for series in all_series:
        for _, table in series_tables(series):
            parts += table_parts(table, "" if len(all_series) == 1 else f"{series.name}: ")
    parts += table_parts(facts_table(all_series))
    parts += warning_parts([*faults, *(f"{series.name}: {text}" for series in all_series for text in series.warnings)])
    return "\n\n".join(parts) + "\n"


def verdict_parts(verdict: Verdict, name: str | None) -> list[str]:
    """A verdict, below the name of what it is of where that is given, as blocks of Markdown."""
    heading = [] if name is None else [f"## {in_markdown(name)}"]
    lines = "\n".join(f"- {in_markdown(line)}" for line in verdict.lines)
    return [*heading, f"**{in_markdown(verdict.headline)}**", lines]


def warning_parts(warnings: Sequence[str]) -> list[str]:
    """Warnings with their heading, as blocks of Markdown; nothing where there are none."""
    return ["### Warnings", "\n".join(f"- {in_markdown(text)}" for text in warnings)] if warnings else []


def table_parts(table: Table, prefix: str = "") -> list[str]:
    """A table with its heading and note, as blocks of Markdown."""
    lines = [
        _line(table.header),
        _line(["---:" if right else "---" for right in table.right], is_safe=True),
        *(_line(row) for row in table.rows[:_MOST_ROWS]),
    ]
    notes = [table.note] if table.note else []
    if len(table.rows) > _MOST_ROWS:
        notes.append(f"{len(table.rows) - _MOST_ROWS} more rows in the page.")
    heading = f"### {in_markdown(prefix + table.caption)}"
    return [heading, "\n".join(lines), *([in_markdown(" ".join(notes))] if notes else [])]


def _line(cells: Sequence[str], is_safe: bool = False) -> str:
    return "| " + " | ".join(cell if is_safe else in_markdown(cell, _LONGEST_CELL) for cell in cells) + " |"
