"""The page that shows a prompt's text with every token shaded by the attention it got."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from attnprobe.report.asked import answer_name, asked_html, asked_of_run
from attnprobe.report.facts import model_name
from attnprobe.report.own_files import check_page, write_own
from attnprobe.report.page import asset, html_page
from attnprobe.report.page_parts import LONGEST_NAME, name_html
from attnprobe.report.texts import escaped, visible
from attnprobe.report.token_map import SCRIPTS, STYLES, token_map
from attnprobe.run import Run

_DATA = "token-map-data"
_START = (
    'AttnprobeTokenMap.mount(document.getElementById("token-map"), '
    f'JSON.parse(document.getElementById("{_DATA}").textContent), {{ page: true }});'
)


def write_heatmap(run: Run, path: str | os.PathLike[str], heads: Sequence[tuple[int, int]] | None = None) -> Path:
    """Write the text heatmap of a run as one HTML file that works offline; returns its path.

    Parameters
    ----------
    run
        Measured with ``extras=("columns", "keys", "top")``; see :func:`attnprobe.report.token_map.token_map`.
    path
        The file, ending in ``.html``; a reader sees the old content or the new one. Its folder is made.
    heads
        ``(layer, head)`` pairs that are kept token by token at any length. None: those that give documents most mass.

    Raises
    ------
    InputError
        When the run lacks what a heatmap needs, ``heads`` do not fit, or the file cannot be written.
    """
    target = Path(path)
    check_page(target)
    data = token_map(run, heads)
    title = f"Attention on {'a prompt' if run.prompt_id is None else run.prompt_id}"
    made = answer_name(run).lower()
    about = (
        f"{model_name(run.manifest) or 'a model'}, {run.n_prompt:,} tokens of prompt, {len(run.answer_ids):,} of answer"
    )
    page = html_page(
        f"{visible(title, LONGEST_NAME)} ({made})",
        f'<div class="tm-frame"><header><h1>{name_html(title)} <small>{escaped(about)}</small></h1>'
        f"{asked_html(asked_of_run(run))}</header>"
        '<div id="token-map"></div></div>\n'
        "<noscript><p>The heatmap needs JavaScript, which this page carries inside.</p></noscript>",
        kind="heatmap",
        styles=[asset(name) for name in STYLES],
        scripts=[*(asset(name) for name in SCRIPTS), _START],
        data={_DATA: data},
    )
    write_own(target, page)
    return target
