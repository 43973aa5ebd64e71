"""What a report says in each section, as tables of texts and as values for its plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnprobe.report.page import array_text
from attnprobe.report.series import NORM_NAMES, VIEW_NAMES, Curves, Series
from attnprobe.report.texts import visible
from attnprobe.spans import KIND_NAMES, sink_mass
from attnprobe.terminal import count, decimal, percent
from attnprobe.told import Table

MOST_VALUES = 500_000
"""Values of heads in a page, beside a text of several MB: 2.7 MB."""

_LONGEST_CELL = 20_000  # characters of a text in a download
_FINE_PRINT = {
    "run": "The run's own means over answer rows, heads and layers.",
    "runs": "Means over prompts; geometric for the share per head.",
    "study": "Geometric means over questions, shares scaled to sum to 100 %; 95 % bands for all positions at once.",
}


def overview_table(all_series: Sequence[Series]) -> Table:
    """One line a series: what people compare first."""
    rows = []
    for series in all_series:
        share = series.curves["raw"]["share"] if series.curves else None
        rows.append(
            (
                series.name,
                str(len(series.documents)),
                "-" if share is None else share.head_text,
                "-" if share is None else share.tail_text,
                percent(series.budget["document"]),
                percent(sink_mass(series.budget)),
            )
        )
    return Table(
        "Side by side",
        ("what", "documents", "head/middle", "tail/middle", "mass of documents", "mass of sinks"),
        tuple(rows),
        (False, True, True, True, True, True),
        "Ratios of the share, pooled over heads and layers, with 95 % intervals where there are some.",
    )


def curve_table(series: Series) -> Table:
    """The curves of a series as measured, a line a position."""
    curves = series.curves["raw"]
    header, columns = ["position"], [[str(position) for position in range(len(series.documents))]]
    right = [True]

    def add(name: str, cells: list[str], is_number: bool = True) -> None:
        header.append(name)
        columns.append(cells)
        right.append(is_number)

    if series.documents != tuple(columns[0]):
        add("document", list(series.documents), is_number=False)
    add("tokens", [decimal(float(n), 0 if float(n).is_integer() else 1) for n in series.tokens])
    for norm in ("share", "log_share", "mass", "density", "advantage"):
        if norm not in curves:
            continue
        one = curves[norm]
        add({"log_share": "share per head"}.get(norm, norm), [value_text(norm, value) for value in one.values])
        if one.low is not None and one.high is not None and norm in ("share", "log_share"):
            pairs = zip(one.low, one.high, strict=True)
            add("95 % band", [f"{100 * low:.1f} to {100 * high:.1f}" for low, high in pairs])
        if norm == "share" and one.uniform is not None:
            add("uniform", [value_text(norm, value) for value in one.uniform])
    middle = f" Middle: position {', '.join(map(str, series.middle))}." if series.middle else ""
    ends = (
        f" Head/middle {curves['share'].head_text}, tail/middle {curves['share'].tail_text}." if series.middle else ""
    )
    return Table(
        f"Curve: {series.name}", tuple(header), tuple(zip(*columns, strict=True)), tuple(right),
        f"{_FINE_PRINT[series.kind]} {sinks_note(series)}{ends}{middle}",
    )  # fmt: skip


def budget_table(all_series: Sequence[Series]) -> Table:
    """Mass of each kind of span that any series has, a column a series."""
    kinds = [kind for kind in KIND_NAMES if any(series.budget[kind] > 0 for series in all_series)]
    rows = [(KIND_NAMES[kind], *(percent(series.budget[kind]) for series in all_series)) for kind in kinds]
    return Table(
        "Budget: where all attention goes",
        ("kind of text", *_column_names(all_series, "mass")),
        tuple(rows),
        (False, *(True for _ in all_series)),
        "Mean mass over answer rows, heads and layers; columns sum to 100 %. The first token is an attention sink. "
        + _budget_sinks(all_series),
    )


def sinks_note(series: Series) -> str:
    """What the curves as measured do with secondary sinks."""
    if "apart" in series.curves:
        return "As measured, secondary sinks count to the documents in which they stand; another view leaves them out."
    return "No secondary sinks were set apart: tokens that act as sinks count to the documents in which they stand."


def _budget_sinks(all_series: Sequence[Series]) -> str:
    if any(series.budget["secondary_sink"] > 0 for series in all_series):
        return "Secondary sinks are apart here, not in the kinds of text in which they stand."
    return "No secondary sinks were set apart: they count to the kinds of text in which they stand."


def facts_table(all_series: Sequence[Series]) -> Table:
    """What was measured and how, a column a series."""
    labels = list(dict.fromkeys(label for series in all_series for label, _ in series.facts))
    known = [dict(series.facts) for series in all_series]
    return Table(
        "What was measured, and how",
        ("", *_column_names(all_series, "value")),
        tuple((label, *(facts.get(label, "-") for facts in known)) for label in labels),
        (False, *(False for _ in all_series)),
    )


def _column_names(all_series: Sequence[Series], alone: str) -> tuple[str, ...]:
    return tuple(series.name for series in all_series) if len(all_series) > 1 else (alone,)


def series_tables(series: Series) -> list[tuple[str, Table]]:
    """The tables of one series by section, in the order of a page."""
    return [
        (key, series.tables[key]) for key in ("panel", "decomposition", "answer", "prompts") if key in series.tables
    ]


def value_text(norm: str, value: float) -> str:
    """A value of a curve in the unit of its norm."""
    if norm in ("share", "log_share"):
        return percent(float(value))
    return percent(float(value), 2) if norm == "mass" else decimal(float(value))


def curve_finding(series: Series) -> str:
    """What a curve shows, in one sentence, for those who do not see it."""
    if not series.curves:
        return f"{series.name}: no documents, so no curve"
    share = series.curves["raw"]["share"]
    values = ", ".join(value_text("share", value) for value in share.values[:12])
    more = f" and {count(len(share.values) - 12, 'more value')}" if len(share.values) > 12 else ""
    ends = f"head/middle {share.head_text}, tail/middle {share.tail_text}"
    return f"{series.name}: {ends}; shares by position {values}{more}"


def page_data(all_series: Sequence[Series]) -> dict[str, Any]:
    """The values of all plots and downloads as JSON; arrays as float32 in base64."""
    detail = _detail(all_series)
    return {
        "norms": NORM_NAMES,
        "views": VIEW_NAMES | {view: view for one in all_series for view in one.curves if view not in VIEW_NAMES},
        "series": [_series_data(series, detail) for series in all_series],
    }


def has_heads(all_series: Sequence[Series]) -> bool:
    """Whether a page has room for the curves of single heads."""
    return _detail(all_series) > 0


def _detail(all_series: Sequence[Series]) -> int:
    """How much of the heads fits into a page: 3 everything, 2 no intervals, 1 shares alone, 0 nothing."""
    for detail in (3, 2, 1):
        total = sum(
            array.size
            for series in all_series
            for norms in series.curves.values()
            for norm, curves in norms.items()
            for array in _head_arrays(norm, curves, detail)
            if array is not None
        )
        if total <= MOST_VALUES:
            return detail
    return 0


def _head_arrays(norm: str, curves: Curves, detail: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The curves of heads and their bounds that a page has."""
    heads = curves.heads if detail >= 2 or (detail == 1 and norm == "share") else None
    return heads, curves.head_bounds if detail == 3 else None


def _series_data(series: Series, detail: int) -> dict[str, Any]:
    return {
        "name": visible(series.name, 200),
        "kind": series.kind,
        "documents": [visible(name, _LONGEST_CELL) for name in series.documents],
        "tokens": _numbers(series.tokens),
        "middle": list(series.middle),
        "layers": list(series.model_layers),
        "n_heads": series.n_heads,
        "sinks": sinks_note(series),
        "curves": {
            view: {norm: _curves_data(norm, curves, detail) for norm, curves in norms.items()}
            for view, norms in series.curves.items()
        },
        "ratios": {name: _float32(values) for name, values in series.ratios.items()},
        "members": [
            {"id": visible(id, 200), "values": {norm: _numbers(values) for norm, values in own.items()}}
            for id, own in series.members
        ],
        "budget": dict(series.budget),
        "prompts": {
            "header": list(series.tables["prompts"].header),
            "rows": [[_plain(cell) for cell in row] for row in series.tables["prompts"].values],
        },
    }


def _plain(value: str | float | None) -> str | float | None:
    """A cell of a table as JSON: texts made visible, numbers as they are."""
    if isinstance(value, str):
        return visible(value, _LONGEST_CELL)
    if value is None or math.isnan(value):
        return None
    return value if math.isfinite(value) else str(value)


def _curves_data(norm: str, curves: Curves, detail: int) -> dict[str, Any]:
    heads, head_bounds = _head_arrays(norm, curves, detail)
    return {
        "values": _numbers(curves.values),
        "low": _numbers(curves.low),
        "high": _numbers(curves.high),
        "uniform": _numbers(curves.uniform),
        "layers": None if np.isnan(curves.layers).all() else _float32(curves.layers),
        "layer_bounds": _float32(curves.layer_bounds),
        "heads": _float32(heads),
        "head_bounds": _float32(head_bounds),
        "head": curves.head_text,
        "tail": curves.tail_text,
    }


def _numbers(values: np.ndarray | None) -> list[float | None] | None:
    return None if values is None else [float(value) if math.isfinite(value) else None for value in values]


def _float32(values: np.ndarray | None) -> str | None:
    return None if values is None else array_text(values.astype(np.float32))
