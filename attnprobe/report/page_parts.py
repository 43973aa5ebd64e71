"""Parts of pages that more than one kind of page has, as HTML: the frame, sections, verdicts, notices and tables."""

from __future__ import annotations

from collections.abc import Sequence

from attnprobe.report.texts import escaped
from attnprobe.told import Table, Verdict

_LONG_HEAD = 24
LONGEST_NAME = 200
"""Characters of a name that are shown; the rest is in its title."""


def name_html(name: str) -> str:
    """A name of the user's, cut where it is long."""
    if len(name) <= LONGEST_NAME:
        return escaped(name)
    return f'<span title="{escaped(name, len(name))}">{escaped(name, LONGEST_NAME)}</span>'


def section_html(id: str, heading: str, content: str) -> str:
    """A section with its heading; ``content`` is HTML."""
    title = f'<h2 id="{id}-heading">{escaped(heading)}</h2>'
    return f'<section id="{id}" aria-labelledby="{id}-heading">{title}{content}</section>'


def frame_html(eyebrow: str, title: str, under_title: str, sections: Sequence[tuple[str, str, str, str]]) -> str:
    """The body of a page: its head with links to all sections but the first, which is right there, and the sections.

    Parameters
    ----------
    eyebrow, title
        At the top.
    under_title
        HTML between the title and the links.
    sections
        Of each its id, its name in the links, its heading, and its content as HTML.
    """
    links = "".join(f'<a href="#{id}">{escaped(label)}</a>' for id, label, _, _ in sections[1:])
    return "\n".join(
        [
            f'<header><p class="eyebrow">{escaped(eyebrow)}</p><h1>{escaped(title)}</h1>{under_title}'
            f'<nav class="screen-only" aria-label="Sections">{links}</nav></header>',
            "<main>",
            *(section_html(id, heading, content) for id, _, heading, content in sections),
            "</main>",
        ]
    )


def verdict_card(verdict: Verdict, kind: str = "", head: str = "") -> str:
    """A verdict; ``kind`` is a further class of its card, ``head`` HTML above it."""
    lines = "".join(f"<li>{escaped(line)}</li>" for line in verdict.lines)
    headline = f'<p class="headline">{escaped(verdict.headline)}</p>'
    return f'<article class="{f"verdict {kind}".rstrip()}">{head}{headline}<ul>{lines}</ul></article>'


def card_name(name: str) -> str:
    """What a verdict is of, where a page has several."""
    return f'<p class="card-name">{escaped(name)}</p>'


def faults_html(faults: Sequence[str]) -> str:
    """A notice of what could not be read; nothing where all could."""
    if not faults:
        return ""
    items = "".join(f"<li>{escaped(fault)}</li>" for fault in faults)
    return f'<div class="notice" role="note"><p><strong>Not in this report:</strong></p><ul>{items}</ul></div>'


def column_head(text: str, right: bool) -> str:
    """A column's head, in which long names, of files say, may break anywhere."""
    classes = " ".join(name for name, has in (("number", right), ("long", len(text) > _LONG_HEAD)) if has)
    return f'<th scope="col" class="{classes}">{name_html(text)}</th>'


def table_html(table: Table, prefix: str = "", caption_hidden: bool = False, look: str = "") -> str:
    """A table; ``look`` ``stacks`` makes a card of every row where the screen is narrow, ``facts`` widens it."""
    is_stack = look == "stacks"

    def shown(column: int, text: str) -> str:
        return name_html(text) if column == 0 or table.header[column] == "document" else escaped(text)

    def cell(tag: str, column: int, text: str) -> str:
        number = " class=number" if table.right[column] else ""
        if tag == "th":
            return column_head(text, table.right[column])
        kind = "th" if column == 0 else "td"
        scope = ' scope="row"' if column == 0 else ""
        role = f' role="{"rowheader" if column == 0 else "cell"}"' if is_stack else ""
        name = f' data-label="{escaped(table.header[column])}"' if is_stack else ""
        return f"<{kind}{number}{scope}{role}{name}>{shown(column, text)}</{kind}>"

    def line(tag: str, texts: Sequence[str]) -> str:
        role = ' role="row"' if is_stack and tag == "td" else ""
        return f"<tr{role}>" + "".join(cell(tag, column, text) for column, text in enumerate(texts)) + "</tr>"

    caption = escaped(prefix + table.caption)
    note = f'<p class="quiet">{escaped(table.note)}</p>' if table.note else ""
    classes = (f' class="{look}"' if look else "", ' class="unseen"' if caption_hidden else "")
    role = ' role="table"' if is_stack else ""
    return (
        f'<div class="scrolls" tabindex="0" role="region" aria-label="{caption}">'
        f"<table{classes[0]}{role}><caption{classes[1]}><span>{caption}</span></caption>"
        f"<thead>{line('th', table.header)}</thead>"
        f"<tbody>{''.join(line('td', row) for row in table.rows)}</tbody></table></div>{note}"
    )
