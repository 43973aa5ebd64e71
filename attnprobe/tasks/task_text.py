"""The lines that a terminal shows of a task's results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from rich.cells import cell_len

from attnprobe.tasks.cell import item_of_key
from attnprobe.tasks.task_summary import TaskSummary
from attnprobe.tasks.task_tables import task_tables
from attnprobe.terminal import WIDTH, count, fit, named, sentence, table, wrapped
from attnprobe.told import Table

_MOST_ROWS = 40


def task_lines(summary: TaskSummary, unicode: bool = True) -> list[str]:
    """What the commands of tasks print: the verdict, what it rests on, and the tables.

    Parameters
    ----------
    summary
        Of one model.
    unicode
        Whether characters beyond ASCII can be shown.
    """
    items, cells, trials = (count(summary.sizes[f"{what}s"], what) for what in ("item", "cell", "trial"))
    lines = [
        *wrapped(f"{summary.model}, {summary.task}: {summary.verdict.headline}", indent="  "),
        *(line for text in summary.verdict.lines for line in wrapped(f"- {text}", indent="  ")),
        "",
        *wrapped(
            f"{items}, {cells}, {trials} an item and condition at most. The item is the unit; its trials are a cluster."
        ),
    ]
    for one in task_tables(summary):
        lines += ["", *_table_lines(one)]
    if summary.notes:
        lines += [
            "",
            *(line for note in summary.notes for line in wrapped(sentence(note), indent="  ")),
        ]
    if summary.missing:
        key, why = next(iter(summary.missing.items()))
        lines += [
            "",
            *wrapped(f"missing: {_missing_by_item(summary.missing)}; e.g. {fit(f'{key}: {why}', 300).rstrip()}"),
        ]
    return lines if unicode else [line.encode("ascii", "replace").decode("ascii") for line in lines]


def _missing_by_item(missing: Collection[str]) -> str:
    """``3 cells, of ferry 2, mill 1``; the items with most of them first."""
    items = Counter(item_of_key(key) for key in missing).most_common()
    return f"{count(len(missing), 'cell')}, of {named([f'{item} {number:,}' for item, number in items])}"


def _table_lines(one: Table) -> list[str]:
    lines = []
    for columns in _blocks(one):
        block = table(
            [one.header[column] for column in columns],
            [[row[column] for column in columns] for row in one.rows],
            [one.right[column] for column in columns],
        )
        if len(one.rows) > _MOST_ROWS:
            half = _MOST_ROWS // 2
            block = [*block[: 1 + half], f"... {len(one.rows) - 2 * half} rows more ...", *block[-half:]]
        lines += block
    return [*wrapped(one.caption), *lines, *(wrapped(one.note) if one.note else [])]


def _blocks(one: Table) -> list[list[int]]:
    """Columns that fit a line beside the first one, which names the rows of every block; a p stays with its value."""
    widths = [max(map(cell_len, cells)) + 2 for cells in zip(one.header, *one.rows, strict=True)]
    together: list[list[int]] = []
    for column in range(1, len(widths)):
        if one.header[column] == "p" and together:
            together[-1].append(column)
        else:
            together.append([column])
    blocks = [[0]]
    for columns in together:
        used = sum(widths[other] for other in (*blocks[-1], *columns))
        if len(blocks[-1]) > 1 and used - 2 > WIDTH:
            blocks.append([0])
        blocks[-1] += columns
    return blocks
