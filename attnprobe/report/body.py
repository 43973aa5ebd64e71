"""The page of a report as HTML: what can be read without scripts and in print, and the places of its plots."""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import quote

from attnprobe.report.asked import asked_html
from attnprobe.report.page_parts import card_name, column_head, faults_html, frame_html, table_html, verdict_card
from attnprobe.report.sections import (
    budget_table,
    curve_finding,
    curve_table,
    facts_table,
    has_heads,
    overview_table,
    series_tables,
)
from attnprobe.report.series import Series
from attnprobe.report.texts import escaped
from attnprobe.spans import KIND_NAMES
from attnprobe.terminal import count, percent

_SECTIONS = {
    "panel": (
        "Artefacts",
        "Artefacts",
        "How much of the curve is left when what is known to draw attention for itself is taken out.",
    ),
    "decomposition": ("Position", "Position or content", ""),
    "answer": ("Answer", "Does the answer suffer?", ""),
}
"""By table: label in the navigation, heading, and what it is about."""

_MOST_LINKS = 20
_DOWNLOADS = (("curves", "curves"), ("budget", "budget"), ("prompts", "prompts and answers"))


def body_html(
    title: str,
    all_series: Sequence[Series],
    faults: Sequence[str],
    text_maps: Sequence[str],
    note: str,
    heatmaps: Sequence[tuple[str, str]],
) -> str:
    """The body of the page.

    Parameters
    ----------
    title
        Of the page.
    all_series
        What is shown.
    faults
        What could not be read.
    text_maps
        Names of the runs whose text is shown.
    note
        Why the text of others, or of none, is.
    heatmaps
        Names and titles of heatmap pages in the page's folder.
    """
    sections = [
        ("verdict", "Verdict", "Verdict", _verdicts(all_series) + faults_html(faults)),
        ("curve", "Curve", "Attention by position", _curve(all_series)),
        ("budget", "Budget", "Budget: where all attention goes", _budget(all_series)),
    ]
    if any(series.curves for series in all_series):
        sections.append(("explorer", "Layers and heads", "Layers and heads", _explorer(all_series)))
    for key, (label, heading, about) in _SECTIONS.items():
        tables = [(series, table) for series in all_series for name, table in series_tables(series) if name == key]
        if tables:
            look = "stacks" if key == "panel" else ""
            shown = "".join(table_html(table, _prefix(series, all_series), look=look) for series, table in tables)
            sections.append((key, label, heading, (f"<p>{escaped(about)}</p>" if about else "") + shown))
    prompts = "".join(
        table_html(series.tables["prompts"], _prefix(series, all_series), look="stacks") for series in all_series
    )
    facts = table_html(facts_table(all_series), caption_hidden=True, look="facts")
    sections += [
        ("text", "Text", "The text, shaded by attention", _text(text_maps, note, heatmaps)),
        ("prompts", "Prompts", "Prompts and answers", prompts),
        ("facts", "How", "What was measured, and how", facts),
        ("warnings", "Warnings", "Warnings", _warnings(all_series)),
        ("download", "Data", "Data", _downloads()),
    ]
    asked = asked_html(all_series[0].asked) if len(all_series) == 1 else ""
    return frame_html(_eyebrow(all_series), title, f"\n{asked}", sections)


def _eyebrow(all_series: Sequence[Series]) -> str:
    """What the page is, and of which models."""
    models = dict.fromkeys(dict(series.facts).get("model", "-") for series in all_series)
    known = [model for model in models if model != "-"]
    return f"attnprobe report of {', '.join(known)}" if known else "attnprobe report"


def _verdicts(all_series: Sequence[Series]) -> str:
    cards = []
    for series in all_series:
        head = card_name(series.name) + asked_html(series.asked) if len(all_series) > 1 else ""
        cards.append(verdict_card(series.verdict, series.kind, head))
    overview = table_html(overview_table(all_series)) if len(all_series) > 1 else ""
    return f'<div class="cards">{"".join(cards)}</div>{overview}'


def _curve(all_series: Sequence[Series]) -> str:
    shown = [series for series in all_series if series.curves]
    if not shown:
        return "<p>No prompt has documents, so there is no curve.</p>"
    label = escaped("Curve of attention by position. " + ". ".join(curve_finding(series) for series in shown))
    tables = "".join(table_html(curve_table(series)) for series in shown)
    return (
        '<div class="controls screen-only" id="curve-controls"></div>'
        f'<div class="plot" id="curve-plot" role="img" aria-label="{label}">'
        f'{_NO_SCRIPT}</div><p class="quiet" id="curve-caption" aria-live="polite"></p>'
        f"{_details('The curve as a table', tables)}"
    )


_NO_SCRIPT = (
    "<noscript><p>Plots need JavaScript, which this page carries inside; its numbers are in the tables.</p></noscript>"
)


def _budget(all_series: Sequence[Series]) -> str:
    bars = []
    for series in all_series:
        shown = [(kind, series.budget[kind]) for kind in KIND_NAMES if series.budget[kind] > 0]
        said = {kind: f"{KIND_NAMES[kind]} {percent(value)}" for kind, value in shown}
        label = f"Budget of {series.name}: {', '.join(said.values())}"
        pieces = "".join(
            f'<span class="kind-{kind}" style="flex-grow:{value:.6f}" title="{said[kind]}"></span>'
            for kind, value in shown
        )
        name = f'<p class="bar-name">{escaped(series.name)}</p>' if len(all_series) > 1 else ""
        bars.append(f'{name}<div class="budget" role="img" aria-label="{escaped(label)}">{pieces}</div>')
    table = budget_table(all_series)
    names = {name: kind for kind, name in KIND_NAMES.items()}
    rows = "".join(
        f'<tr><th scope="row"><span class="swatch kind-{names[row[0]]}"></span>{row[0]}</th>'
        + "".join(f'<td class="number">{escaped(cell)}</td>' for cell in row[1:])
        + "</tr>"
        for row in table.rows
    )
    heads = "".join(column_head(name, True) for name in table.header[1:])
    return (
        f'{"".join(bars)}<div class="scrolls" tabindex="0" role="region" aria-label="Budget in numbers">'
        f'<table class="legend"><thead><tr><th scope="col">{table.header[0]}</th>{heads}</tr></thead>'
        f'<tbody>{rows}</tbody></table></div><p class="quiet">{escaped(table.note)}</p>'
    )


def _explorer(all_series: Sequence[Series]) -> str:
    if not has_heads(all_series):
        return (
            "<p>The curves of single heads would take too much room in one page: report fewer sources at a time. "
            "The curve above has every layer.</p>"
        )
    return (
        '<p class="screen-only">Pick a cell with the pointer, or focus the map and use the arrow keys; its head\'s '
        "curve is drawn beside the mean.</p>"
        '<div class="controls screen-only" id="explorer-controls"></div><div class="side-by-side">'
        '<div id="explorer-focus" tabindex="0" role="group" aria-label="Layers and heads; arrow keys choose a cell">'
        f'<div class="plot" id="explorer-map" role="img" aria-label="Map of layers by heads">{_NO_SCRIPT}</div></div>'
        '<div class="plot" id="explorer-curve" role="img" aria-label="Curve of the chosen head beside the mean"></div>'
        '</div><p class="quiet" id="explorer-status" aria-live="polite"></p>'
    )


def _text(text_maps: Sequence[str], note: str, heatmaps: Sequence[tuple[str, str]]) -> str:
    shown = f'<p class="quiet">{escaped(note)}</p>' if note else ""
    if heatmaps:
        items = "".join(
            f'<li><a href="./{quote(os.fsencode(name))}">{escaped(title)}</a> ({escaped(name)})</li>'
            for name, title in heatmaps[:_MOST_LINKS]
        )
        more = f"<p>And {len(heatmaps) - _MOST_LINKS} more.</p>" if len(heatmaps) > _MOST_LINKS else ""
        shown = (
            "<p>In the folder of this page, if you have these files too, the text of a prompt shaded by attention:</p>"
            f"<ul>{items}</ul>{more}{shown}"
        )
    if not text_maps:
        return shown
    options = "".join(f'<option value="{number}">{escaped(name)}</option>' for number, name in enumerate(text_maps))
    label = '<label for="text-choice">prompt</label>'
    choice = f'<div class="controls screen-only">{label}<select id="text-choice">{options}</select></div>'
    return f'{choice if len(text_maps) > 1 else ""}<div id="text-map"></div>{shown}'


def _warnings(all_series: Sequence[Series]) -> str:
    found = [(series, text) for series in all_series for text in series.warnings]
    if not found:
        return "<p>None.</p>"
    items = "".join(f"<li>{escaped(_prefix(series, all_series))}{escaped(text)}</li>" for series, text in found)
    many = f"<p>{count(len(found), 'warning')}</p><ul>{items}</ul>"
    return many if len(found) <= 20 else _details(count(len(found), "warning"), f"<ul>{items}</ul>")


def _downloads() -> str:
    buttons = "".join(
        f'<button type="button" data-download="{key}">{label} (CSV)</button> ' for key, label in _DOWNLOADS
    )
    return (
        f'<p class="screen-only">{buttons}</p><p class="quiet">Made in the page, of the numbers in it. Curves have '
        "a line a position: every series, norm and view, every layer, and every head. Texts that a spreadsheet would "
        "run as a formula begin with an apostrophe.</p><noscript><p>Downloads need JavaScript.</p></noscript>"
    )


def _prefix(series: Series, all_series: Sequence[Series]) -> str:
    return f"{series.name}: " if len(all_series) > 1 else ""


def _details(summary: str, content: str) -> str:
    """Folded away by a script; without one, and in print, it is open."""
    return f"<details open><summary>{escaped(summary)}</summary>{content}</details>"
