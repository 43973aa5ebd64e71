"""The report of tasks: verdicts, pictures and tables of every model, as one page and as Markdown."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnprobe.report.markdown import MADE_HERE, table_parts, verdict_parts, warning_parts
from attnprobe.report.page import asset, html_page
from attnprobe.report.page_parts import card_name, faults_html, frame_html, table_html, verdict_card
from attnprobe.report.style import picture
from attnprobe.report.task_facts import facts_table, replies_tables
from attnprobe.report.task_figures import task_drawings
from attnprobe.report.texts import escaped, in_markdown, visible
from attnprobe.report.token_map import STYLES
from attnprobe.tasks.task_summary import TaskSummary
from attnprobe.tasks.task_tables import task_tables
from attnprobe.terminal import count
from attnprobe.told import Table, Verdict

_DPI = 200
"""Of the pictures, which are 3.3 inches wide: sharp on a screen, a few dozen kB each."""

_STYLE = """
.figures { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; }
.figures img { width: 100%; max-width: 23rem; height: auto; background: #fff; border-radius: 4px; }
"""


@dataclass(frozen=True, eq=False)
class TaskSeries:
    """What a report shows of one model's task.

    Parameters
    ----------
    name
        Short, and no other source's.
    summary
        The results.
    about
        How they were measured: what ``task.json`` says.
    """

    name: str
    summary: TaskSummary
    about: Mapping[str, Any]

    @property
    def verdict(self) -> Verdict:
        """What may be said."""
        return self.summary.verdict

    @property
    def tables(self) -> list[Table]:
        """The results, and some replies."""
        return [*task_tables(self.summary), *replies_tables(self.summary.table())]


def task_page(title: str, tasks: Sequence[TaskSeries], faults: Sequence[str]) -> str:
    """The page: nothing in it needs a script."""
    cards = [verdict_card(one.verdict, head=card_name(one.name) if len(tasks) > 1 else "") for one in tasks]
    sections = [("verdict", "Verdict", f'<div class="cards">{"".join(cards)}</div>{faults_html(faults)}')]
    for number, one in enumerate(tasks):
        name = f": {one.name}" if len(tasks) > 1 else ""
        tables = "".join(table_html(table) for table in one.tables)
        notes = "".join(f'<p class="quiet">{escaped(text)}.</p>' for text in one.summary.notes)
        sections.append((f"pictures-{number}", f"Pictures{name}", _pictures(one.summary)))
        sections.append((f"tables-{number}", f"Tables{name}", tables + notes + _missing(one.summary)))
        measured = table_html(facts_table(one.about), caption_hidden=True, look="facts")
        sections.append((f"measured-{number}", f"How it was measured{name}", measured))
    return html_page(
        f"{visible(title)}: attnprobe report",
        frame_html("attnprobe report", title, "", [(id, heading, heading, html) for id, heading, html in sections]),
        kind="report",
        styles=[*(asset(name) for name in STYLES), asset("report.css"), _STYLE],
        scripts=[],
        data={},
    )


def task_markdown(title: str, tasks: Sequence[TaskSeries], faults: Sequence[str]) -> str:
    """Verdicts and tables in Markdown."""
    parts = [f"{MADE_HERE}\n# {in_markdown(title)}"]
    for one in tasks:
        parts += verdict_parts(one.verdict, one.name if len(tasks) > 1 else None)
        for table in (*one.tables, facts_table(one.about)):
            parts += table_parts(table, "" if len(tasks) == 1 else f"{one.name}: ")
    parts += warning_parts([*faults, *(f"{one.name}: {text}" for one in tasks for text in one.summary.notes)])
    return "\n\n".join(parts) + "\n"


def _pictures(summary: TaskSummary) -> str:
    images = []
    for name, drawing in task_drawings(summary).items():
        figure = drawing(summary)
        text = " ".join(filter(None, (_said(figure.get_suptitle()), _said(figure.get_supxlabel()))))
        png = base64.b64encode(picture(figure, ".png", _DPI)).decode("ascii")
        images.append(f'<img id="{name}" alt="{escaped(text)}" src="data:image/png;base64,{png}">')
    return f'<div class="figures">{"".join(images)}</div>'


def _said(text: str) -> str:
    """A picture's text on one line, as a sentence."""
    line = " ".join(text.split())
    return line if not line or line.endswith(".") else f"{line}."


def _missing(summary: TaskSummary) -> str:
    if not summary.missing:
        return ""
    items = "".join(f"<li>{escaped(f'{key}: {why}')}</li>" for key, why in list(summary.missing.items())[:20])
    more = len(summary.missing) - 20
    rest = f"<li>and {count(more, 'cell')} more</li>" if more > 0 else ""
    return f"<p>Missing: {count(len(summary.missing), 'cell')}.</p><ul>{items}{rest}</ul>"
