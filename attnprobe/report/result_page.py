"""The report of tasks and of comparisons of scalings: verdicts, pictures and tables, as one page and as Markdown."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnprobe.report.markdown import MADE_HERE, table_parts, verdict_parts, warning_parts
from attnprobe.report.page import asset, html_page
from attnprobe.report.page_parts import card_name, faults_html, frame_html, table_html, verdict_card
from attnprobe.report.style import WIDTHS, picture
from attnprobe.report.texts import escaped, in_markdown, visible
from attnprobe.report.token_map import STYLES
from attnprobe.terminal import count
from attnprobe.told import Table, Verdict

_DPI = 200
"""Of the pictures: sharp on a screen, a few dozen kB each."""

_STYLE = """
.figures { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; }
.figures img { width: 100%; max-width: 23rem; height: auto; background: #fff; border-radius: 4px; }
.figures img.page { max-width: 56rem; }
"""


@dataclass(frozen=True, eq=False)
class ResultSeries:
    """What a report shows of one model's results.

    Parameters
    ----------
    name
        Short, and no other source's.
    verdict
        What may be said.
    tables
        The results.
    facts
        How they were measured.
    figures
        Draws the pictures, one when it is asked for, by name.
    notes
        Warnings, as sentences without their full stops.
    missing
        Cells without a result, and why.
    """

    name: str
    verdict: Verdict
    tables: tuple[Table, ...]
    facts: Table
    figures: Mapping[str, Callable[[], Any]]
    notes: tuple[str, ...]
    missing: Mapping[str, str]


def result_page(title: str, results: Sequence[ResultSeries], faults: Sequence[str]) -> str:
    """The page: nothing in it needs a script."""
    cards = [verdict_card(one.verdict, head=card_name(one.name) if len(results) > 1 else "") for one in results]
    sections = [("verdict", "Verdict", f'<div class="cards">{"".join(cards)}</div>{faults_html(faults)}')]
    for number, one in enumerate(results):
        name = f": {one.name}" if len(results) > 1 else ""
        tables = "".join(table_html(table) for table in one.tables)
        notes = "".join(f'<p class="quiet">{escaped(text)}.</p>' for text in one.notes)
        sections.append((f"pictures-{number}", f"Pictures{name}", _pictures(one)))
        sections.append((f"tables-{number}", f"Tables{name}", tables + notes + _missing(one)))
        measured = table_html(one.facts, caption_hidden=True, look="facts")
        sections.append((f"measured-{number}", f"How it was measured{name}", measured))
    return html_page(
        f"{visible(title)}: attnprobe report",
        frame_html("attnprobe report", title, "", [(id, heading, heading, html) for id, heading, html in sections]),
        kind="report",
        styles=[*(asset(name) for name in STYLES), asset("report.css"), _STYLE],
        scripts=[],
        data={},
    )


def result_markdown(title: str, results: Sequence[ResultSeries], faults: Sequence[str]) -> str:
    """Verdicts and tables in Markdown."""
    parts = [f"{MADE_HERE}\n# {in_markdown(title)}"]
    for one in results:
        parts += verdict_parts(one.verdict, one.name if len(results) > 1 else None)
        for table in (*one.tables, one.facts):
            parts += table_parts(table, "" if len(results) == 1 else f"{one.name}: ")
    parts += warning_parts([*faults, *(f"{one.name}: {text}" for one in results for text in one.notes)])
    return "\n\n".join(parts) + "\n"


def _pictures(one: ResultSeries) -> str:
    images = []
    for name, draw in one.figures.items():
        figure = draw()
        text = " ".join(filter(None, (_said(figure.get_suptitle()), _said(figure.get_supxlabel()))))
        png = base64.b64encode(picture(figure, ".png", _DPI)).decode("ascii")
        look = ' class="page"' if figure.get_figwidth() > WIDTHS["column"] else ""
        images.append(f'<img id="{name}"{look} alt="{escaped(text)}" src="data:image/png;base64,{png}">')
    return f'<div class="figures">{"".join(images)}</div>'


def _said(text: str) -> str:
    """A picture's text on one line, as a sentence."""
    line = " ".join(text.split())
    return line if not line or line.endswith(".") else f"{line}."


def _missing(one: ResultSeries) -> str:
    if not one.missing:
        return ""
    items = "".join(f"<li>{escaped(f'{key}: {why}')}</li>" for key, why in list(one.missing.items())[:20])
    more = len(one.missing) - 20
    rest = f"<li>and {count(more, 'cell')} more</li>" if more > 0 else ""
    return f"<p>Missing: {count(len(one.missing), 'cell')}.</p><ul>{items}{rest}</ul>"
