"""The lines that a terminal shows of measured prompts: curves with bars, ratios, budget and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnprobe.curve import Curve
from attnprobe.spans import KIND_NAMES, sink_mass
from attnprobe.summary import Group, PromptResult
from attnprobe.terminal import WIDTH, bars, count, decimal, fit, percent, table, wrapped

_MOST_POSITIONS = 40
_MOST_GROUPS = 6
_MOST_PROMPTS = 10
_MOST_WARNINGS = 3
_NORMS = {
    "share": "share of the documents' attention",
    "log_share": "geometric mean share of the documents' attention",
    "mass": "attention mass",
    "density": "attention a token, 1 = uniform",
    "advantage": "attention a token against the other documents, nats",
}


def summary_lines(results: Sequence[PromptResult], means: Sequence[Group], unicode: bool = True) -> list[str]:
    """What ``attnprobe measure`` prints: the mean curve of each number of documents, the prompts, the warnings."""
    lines: list[str] = []
    shown = sorted(sorted(means, key=lambda group: -group.n_prompts)[:_MOST_GROUPS], key=lambda g: g.n_documents)
    for group in shown:
        lines += [*group_lines(group, unicode), ""]
    if len(shown) < len(means):
        rest = sum(group.n_prompts for group in means) - sum(group.n_prompts for group in shown)
        lines += [f"{count(rest, 'prompt')} with other numbers of documents: see curve.csv", ""]
    lines += [*prompt_lines(results), ""]
    lines += warning_lines(results)
    return lines


def group_lines(group: Group, unicode: bool = True) -> list[str]:
    """One mean curve with its ratios and budget."""
    documents = count(group.n_documents, "document")
    prompts = count(group.n_prompts, "prompt")
    if group.curve is None:
        return [
            f"{prompts} without documents, so without a curve",
            *budget_lines(group.budget),
            residual_line(group.residual),
        ]
    mean = ", mean over prompts" if group.n_prompts > 1 else ""
    heading = f"{documents}, {prompts}: {_NORMS[group.curve.norm]}{mean}"
    numbers = tuple(map(str, range(group.n_documents)))
    names = group.curve.documents if group.n_prompts == 1 and group.curve.documents != numbers else None
    counts = None if set(group.defined) <= {group.n_prompts} else group.defined
    return [
        *wrapped(heading),
        *curve_lines(group.curve, names, counts, unicode),
        *wrapped(ratio_line(group.curve)),
        *budget_lines(group.budget),
        residual_line(group.residual),
    ]


def uniform_value(curve: Curve) -> float | None:
    """What documents would have on average if every token got the same; None where their number does not say it.

    A single document's share goes by its length; density and advantage are the same for all.
    """
    if curve.norm in ("share", "log_share"):
        n = int((~np.isnan(curve.values)).sum())
        return 1 / n if n else None
    return {"density": 1.0, "advantage": 0.0}.get(curve.norm)


def value_text(curve: Curve, value: float) -> str:
    """A value of a curve in the unit of its norm."""
    if curve.norm in ("share", "log_share"):
        return percent(value)
    if curve.norm == "mass":
        return percent(value, 2)
    return decimal(value)


def curve_lines(
    curve: Curve,
    names: Sequence[str] | None = None,
    counts: Sequence[int] | None = None,
    unicode: bool = True,
    extra: tuple[str, Sequence[str]] | None = None,
) -> list[str]:
    """A table of a curve with a bar a position; long curves without their central positions.

    Parameters
    ----------
    curve
        What to show.
    names
        Of the documents, to show beside the positions.
    counts
        Prompts with a value at each position, to show where they differ.
    unicode
        Whether block characters can be shown.
    extra
        Heading and cells of one more column, before the bars.
    """
    uniform = uniform_value(curve)
    texts = [value_text(curve, float(value)) for value in curve.values]
    columns: list[tuple[str, list[str], bool]] = [
        ("position", [str(i) for i in range(len(texts))], True),
        (curve.norm.replace("_", " "), texts, True),
    ]
    if counts is not None:
        columns.append(("prompts", [str(n) for n in counts], True))
    if extra is not None:
        columns.append((extra[0], list(extra[1]), True))
    if names is not None:
        # Not cut to nothing by the bars, nor wide enough to cut those.
        longest = min(max(map(len, names)), 20)
        columns.append(("document", [fit(name, longest) for name in names], False))
    used = sum(max(len(head), *map(len, cells)) + 2 for head, cells, _ in columns)
    line = "│" if unicode else "|"
    average = " on average" if curve.norm in ("share", "log_share") else ""
    legend = "" if uniform is None else f"{line} uniform, {value_text(curve, uniform)}{average}"
    columns.append((legend, bars(curve.values.tolist(), max(WIDTH - used, 10), uniform, unicode), False))
    header, cells, right = zip(*columns, strict=True)
    lines = table(header, list(zip(*cells, strict=True)), right)
    if len(texts) <= _MOST_POSITIONS:
        return lines
    half = _MOST_POSITIONS // 2
    return [*lines[: 1 + half], f"... {len(texts) - 2 * half} positions more ...", *lines[-half:]]


def ratio_line(curve: Curve) -> str:
    """Head and tail against the middle, and which positions that is."""
    if curve.norm == "advantage":
        values = (curve.head_minus_middle, curve.tail_minus_middle)
        text = "head - middle {}   tail - middle {} nats".format(*map(decimal, values))
    else:
        text = "head/middle {}   tail/middle {}".format(*map(decimal, (curve.head_middle, curve.tail_middle)))
    if not curve.middle:
        return f"{text}   (two documents or fewer have no middle)"
    positions = ", ".join(map(str, curve.middle))
    return f"{text}   (middle: position{'s' if len(curve.middle) > 1 else ''} {positions})"


def budget_lines(budget: Mapping[str, float]) -> list[str]:
    """Where all attention goes, by kind of span, in the words of the pages."""
    parts = [f"{KIND_NAMES[kind]} {percent(value)}" for kind, value in budget.items() if value > 0]
    return wrapped("budget: " + ", ".join(parts), indent="  ")


def residual_line(residual: float) -> str:
    """The largest residual of the check that every measurement makes."""
    return f"residual: {residual:.1e} nats at most, between the spans' total and an independent one"


def prompt_lines(results: Sequence[PromptResult]) -> list[str]:
    """A line a prompt, of the first few: size, ratios and the answer."""
    rows = [
        (
            fit(result.id, min(20, max(len(r.id) for r in results))),
            f"{result.n_prompt:,}",
            decimal(None if result.curve is None else _end(result.curve, head=True)),
            decimal(None if result.curve is None else _end(result.curve, head=False)),
            percent(sink_mass(result.budget)),
            " ".join(result.answer.split()),
        )
        for result in results[:_MOST_PROMPTS]
    ]
    ends = ("head/mid", "tail/mid")
    if results[0].curve is not None and results[0].curve.norm == "advantage":
        ends = ("head-mid", "tail-mid")
    header = ("prompt", "tokens", *ends, "sinks", "answer")
    lines = table(header, rows, (False, True, True, True, True, False))
    if len(results) > len(rows):
        lines.append(f"... {count(len(results) - len(rows), 'prompt')} more in curve.csv and runs/")
    return lines


def _end(curve: Curve, head: bool) -> float | None:
    if curve.norm == "advantage":
        return curve.head_minus_middle if head else curve.tail_minus_middle
    return curve.head_middle if head else curve.tail_middle


def warning_lines(results: Sequence[PromptResult]) -> list[str]:
    """How many warnings there are, and the first few, each text once."""
    prompts: dict[str, list[str]] = {}
    for result in results:
        for warning in result.warnings:
            prompts.setdefault(warning, []).append(result.id)
    if not prompts:
        return []
    total = sum(map(len, prompts.values()))
    first = list(prompts.items())[:_MOST_WARNINGS]
    lines = [count(total, "warning") + (":" if len(first) == len(prompts) else f", the first {len(first)}:")]
    for warning, ids in first:
        where = f'"{ids[0]}"' + (f" and {count(len(ids) - 1, 'more prompt')}" if len(ids) > 1 else "")
        # The texts quote what users wrote, so they may hold anything.
        lines += wrapped(fit(f"- {where}: {warning}", 400).rstrip(), indent="  ")
    return lines
