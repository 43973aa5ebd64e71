"""Write a report: one HTML page that works offline, and a summary in Markdown beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnprobe.errors import InputError
from attnprobe.report.body import body_html
from attnprobe.report.markdown import MADE_HERE, markdown_text
from attnprobe.report.own_files import check_own, check_page, pages_beside, write_own
from attnprobe.report.page import asset, html_page
from attnprobe.report.result_page import ResultSeries, result_markdown, result_page
from attnprobe.report.rope_sources import is_rope, read_ropes
from attnprobe.report.run_series import series_of_runs
from attnprobe.report.sections import page_data
from attnprobe.report.series import Series
from attnprobe.report.sources import Runs, Source, read_sources
from attnprobe.report.study_series import series_of_study
from attnprobe.report.task_sources import read_tasks
from attnprobe.report.text_maps import TextMaps
from attnprobe.report.texts import visible
from attnprobe.report.token_map import SCRIPTS, STYLES
from attnprobe.tasks.task_folder import task_parts

_SCRIPTS = (
    "report_data.js",
    "report_plots.js",
    "report_curve.js",
    "report_explorer.js",
    "report_downloads.js",
    "report.js",
)
_BEFORE_PLOTLY = "window.PlotlyConfig = { MathJaxConfig: 'local' };"


@dataclass(frozen=True)
class Report:
    """What was written.

    Parameters
    ----------
    page, summary
        The HTML file and the Markdown file.
    series
        What they show.
    faults
        What could not be read, in words.
    """

    page: Path
    summary: Path
    series: tuple[Series | ResultSeries, ...]
    faults: tuple[str, ...]


def write_report(sources: Sequence[str | os.PathLike[str]], path: str | os.PathLike[str]) -> Report:
    """Report runs, measurements of prompts and studies, alone or beside each other.

    Parameters
    ----------
    sources
        Run files, folders of ``measure``, and folders of ``study``; several are compared on the same axes. Or folders
        of tasks, or of comparisons of RoPE scalings, which stand one after the other.
    path
        The page, ending in ``.html``; the summary goes beside it, ending in ``.md``. A reader sees the old content or
        the new one. Heatmap pages in its folder are linked.

    Raises
    ------
    InputError
        A source that is none, a name that does not end in ``.html``, or a file that cannot be written, or that is there
        and not of an earlier report.
    RunFileError
        A source that is damaged; in a folder of many runs or models, only where none can be read.
    """
    page = Path(path)
    summary = page.with_suffix(".md")
    check_page(page)
    check_own(summary, "summary", MADE_HERE)
    faults: list[str] = []
    all_series: tuple[Series | ResultSeries, ...]
    kind = next((kind for kind in _KINDS if _are(kind, sources)), None)
    if kind is not None:
        results = kind.read([Path(source) for source in sources], faults)
        all_series, title = tuple(results), _title([one.name for one in results])
        texts = {
            page: result_page(title, results, faults),
            summary: result_markdown(f"{kind.heading}{title}", results, faults),
        }
    else:
        found = read_sources(sources, faults)
        maps = TextMaps()
        own = tuple(series for source in found for series in _series(source, faults, maps))
        all_series, title = own, _title([_full_name(source) for source in found])
        texts = {
            page: _page_text(title, own, faults, maps, pages_beside(page, "heatmap")),
            summary: markdown_text(f"Attention: {title}", own, faults),
        }
    for file, text in texts.items():
        write_own(file, text)
    return Report(page, summary, all_series, tuple(faults))


@dataclass(frozen=True)
class _Kind:
    """A kind of folders whose results stand one after the other in a page of their own."""

    name: str
    plural: str
    heading: str
    is_of: Callable[[str | os.PathLike[str]], bool]
    read: Callable[[Sequence[Path], list[str]], list[ResultSeries]]


_KINDS = (
    _Kind("task", "tasks", "Task: ", lambda source: bool(task_parts(source)), read_tasks),
    _Kind("comparison of RoPE scalings", "comparisons", "", is_rope, read_ropes),
)


def _are(kind: _Kind, sources: Sequence[str | os.PathLike[str]]) -> bool:
    """Whether all sources are of a kind; ``InputError`` where only some are."""
    own = [os.fspath(source) for source in sources if kind.is_of(source)]
    if own and len(own) < len(sources):
        raise InputError(f"{own[0]} is a {kind.name} and others are not; report {kind.plural} by themselves")
    return bool(own)


def _full_name(source: Source) -> str:
    """A source's name; a study's, which is that of a model's folder, with the folder that holds it."""
    if isinstance(source, Runs) or "/" in source.name:
        return source.name
    return f"{source.path.resolve().parent.name}/{source.name}"


def _title(names: Sequence[str]) -> str:
    return " and ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _series(source: Source, faults: list[str], maps: TextMaps) -> list[Series]:
    if isinstance(source, Runs):
        runs = maps.watched(source.name, (loaded.run for loaded in source.read(faults)))
        return series_of_runs(source.name, runs, source.is_folder, faults)
    return [series_of_study(source)]


def _page_text(
    title: str, all_series: Sequence[Series], faults: Sequence[str], maps: TextMaps, heatmaps: Sequence[tuple[str, str]]
) -> str:
    from plotly.offline import get_plotlyjs

    data = {"report-data": page_data(all_series), "report-texts": list(maps.payloads)}
    return html_page(
        f"{visible(title)}: attnprobe report",
        body_html(title, all_series, faults, maps.names, "" if heatmaps and not maps.n_fit else maps.note(), heatmaps),
        kind="report",
        styles=[*(asset(name) for name in STYLES), asset("report.css")],
        scripts=[_BEFORE_PLOTLY, get_plotlyjs(), *(asset(name) for name in (*SCRIPTS, *_SCRIPTS))],
        data=data,
    )
