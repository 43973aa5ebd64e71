"""The page that shows a prompt's text with every token shaded by the attention it got."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from attnprobe.errors import InputError
from attnprobe.report.asked import asked_html, asked_of_run
from attnprobe.report.page import asset, check_page, html_page
from attnprobe.report.texts import escaped, visible
from attnprobe.report.token_map import SCRIPTS, STYLES, token_map
from attnprobe.run import Run
from attnprobe.run_folder import write_text

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
        The file, ending in ``.html``; a reader sees the old content or the new one.
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
    model = (run.manifest.get("model") or {}).get("name") or "a model"
    about = f"{model}, {run.n_prompt:,} tokens of prompt, {len(run.answer_ids):,} of answer"
    page = html_page(
        visible(title),
        f'<div class="tm-frame"><header><h1>{escaped(title)} <small>{escaped(about)}</small></h1>'
        f"{asked_html(asked_of_run(run))}</header>"
        '<div id="token-map"></div></div>\n'
        "<noscript><p>The heatmap needs JavaScript, which this page carries inside.</p></noscript>",
        kind="heatmap",
        styles=[asset(name) for name in STYLES],
        scripts=[*(asset(name) for name in SCRIPTS), _START],
        data={_DATA: data},
    )
    try:
        write_text(target, page)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror or error}; give another --out") from error
    return target
