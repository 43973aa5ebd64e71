"""Parts of pages that more than one kind of page has: sections and tables as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from attnprobe.report.texts import escaped
from attnprobe.told import Table

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
