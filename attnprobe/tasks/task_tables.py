"""Tables of a task's results, one source for the terminal, pages and Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from attnprobe.estimates import Interval
from attnprobe.study_text import interval_cell
from attnprobe.tasks.association import Association
from attnprobe.tasks.attention_link import ALPHA, AttentionLink
from attnprobe.tasks.baselines import Baseline
from attnprobe.tasks.filler_findings import FillerFindings
from attnprobe.tasks.filler_tables import filler_tables
from attnprobe.tasks.held_out_heads import CHOSEN, OTHERS
from attnprobe.tasks.item_intervals import MIN_ITEMS
from attnprobe.tasks.matrix_findings import MatrixFindings
from attnprobe.tasks.matrix_tables import matrix_tables
from attnprobe.tasks.outcome import ANSWERS
from attnprobe.tasks.sweep_findings import SweepFindings
from attnprobe.tasks.sweep_tables import sweep_tables
from attnprobe.tasks.task_numbers import (
    TEXTS,
    accuracy_cell,
    difference_cell,
    p_equation,
    primary,
    signed,
)
from attnprobe.tasks.task_summary import TaskSummary
from attnprobe.tasks.task_verdict import PLACES
from attnprobe.terminal import count, decimal, named, p_text, percent
from attnprobe.told import Table

_WHAT = {"needle_sweep": "needle", "multi_doc": "document with the answer"}
_BASELINES = {"closed_book": "closed book", "oracle": "evidence alone"}


def task_tables(summary: TaskSummary) -> tuple[Table, ...]:
    """All tables of a task's results, none wider than a terminal; the task's own first."""
    findings = summary.findings
    if isinstance(findings, SweepFindings):
        tables = sweep_tables(findings, _WHAT[summary.task])
        context = "in the middle" if findings.middle else "with all documents"
    elif isinstance(findings, MatrixFindings):
        tables, context = matrix_tables(findings), "with filler"
    else:
        assert isinstance(findings, FillerFindings)
        tables, context = filler_tables(findings), "no filler"
    tables += _baseline_table(findings.baselines, context)
    if summary.link is not None:
        tables.append(_link_table(summary.link, PLACES[summary.task]))
    return tuple(tables)


def _baseline_table(baselines: Sequence[Baseline], context: str) -> list[Table]:
    if not baselines:
        return []
    metrics = [name for name in ANSWERS if any(name in one.values for one in baselines)]
    rows = []
    for one in baselines:
        row = [_BASELINES.get(one.name, context)]
        for metric in metrics:
            row.append(_value(metric, one.values.get(metric)))
        compared = primary(one.context_less)
        row.append("" if compared is None else difference_cell(compared, one.context_less[compared]))
        rows.append(tuple(row))
    more = primary(metrics)
    if more is None:
        return []
    header = ["", *(TEXTS[metric].short for metric in metrics), f"{TEXTS[more].short}, more"]
    gold = "gold-foil: the right answer's less that of a wrong one. " if "margin" in metrics else ""
    unit = f"{TEXTS[more].unit} of {TEXTS[more].name}"
    note = (
        f"log p: of the whole answer, nats, mean over items, nothing taken out. {gold}The last column: {unit} that the "
        "first line has more than this one, within items; than the evidence alone, which has its first wording, in "
        "prompts with that wording."
    )
    return [Table("Beside no context at all", tuple(header), tuple(rows), (False, *[True] * (len(header) - 1)), note)]


def _value(metric: str, interval: Interval | None) -> str:
    if interval is None or interval.estimate is None:
        return "-"
    if metric == "lenient":
        return percent(interval.estimate, 0)
    if metric == "strict":
        return accuracy_cell(interval)
    return signed(interval.estimate)


def _link_table(link: AttentionLink, place: str) -> Table:
    shown = [(TEXTS[name].name, one) for name, one in link.overall.by_name.items() if one.correlation.n_cells]
    # Of a few items, that some heads were chosen on others of few, a correlation says nothing.
    heads = None
    if link.heads is not None and link.heads.chosen.correlation.within_question.low is not None:
        heads = link.heads
        shown += [(f"{CHOSEN}*", heads.chosen), (f"{OTHERS}*", heads.others)]
    rows = tuple((name, *_correlations(one)) for name, one in shown)
    notes = [
        f"Spearman's, of the evidence's attention with the answer's {TEXTS[link.metric].name}; 95 % over items. At one "
        f"place: ranks within item and {place}; over an item's: among all prompts of an item; over all: of all items. "
        "p: at one place, adjusted over the rows (Holm), of chosen and other heads over these and mass and advantage "
        f"on their half of the items. The headline is of {TEXTS[link.predictor].name} alone, by "
        "its interval, its p not adjusted. Prompts at one place differ in the text around the evidence, and in its "
        "wording where it has several."
    ]
    layers = {name: one for name, one in link.layers.by_name.items() if name.startswith("layer ")}
    tested = {name: one for name, one in layers.items() if one.p_adjusted is not None}
    if tested:
        best = max(tested.values(), key=lambda one: abs(one.correlation.within_position.estimate or 0.0))
        shown_layers = sum(one.p_adjusted < ALPHA for one in tested.values())  # type: ignore[operator]
        notes.append(
            f"By layer ({TEXTS[link.predictor].name}): {shown_layers or 'none'} of {len(tested)} below {ALPHA:g} with "
            f"p adjusted over all layers, mass and advantage (Holm); the strongest, picked among them, is {best.name}: "
            f"{decimal(best.correlation.within_position.estimate)}, adjusted {p_equation(best.p_adjusted or 0.0)}."
        )
    if heads is not None:
        pairs = [f"{layer}-{head}" for layer, head in heads.heads]
        notes.append(
            f"* {count(len(pairs), 'head')} of the highest advantage on {len(heads.chosen_on)} items (layer-head "
            f"{named(pairs, 8)}), related to the answer on the other {len(heads.held_out)}."
        )
    elif link.heads is not None:
        notes.append(
            f"No retrieval heads: {count(len(link.heads.held_out), 'item')} on which they were not chosen "
            f"cannot tell how they go with the answer ({MIN_ITEMS} are needed)."
        )
    elif link.reason:
        notes.append(f"No retrieval heads: {link.reason}.")
    header = ("attention of", "at one place", "p", "over an item's", "over all")
    return Table(
        "Attention and answer: rank correlations", header, rows, (False, True, True, True, True), " ".join(notes)
    )


def _correlations(one: Association) -> tuple[str, str, str, str]:
    found = one.correlation
    return (
        interval_cell(found.within_position),
        p_text(one.p_adjusted),
        interval_cell(found.within_question),
        decimal(found.pooled.estimate),
    )
