"""The lines that a terminal shows of a model's heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnprobe.heads import NEAR
from attnprobe.study_text import interval_cell
from attnprobe.terminal import count, decimal, fit, named, p_text, percent, table, wrapped

if TYPE_CHECKING:
    from attnprobe.heads_command import HeadsResult

SCORE_NAMES = {
    "retrieval": "retrieval score",
    "in_needle": "part of rows whose heaviest key is in the needle",
    "advantage": "advantage of the gold document (nats)",
    "sink": "mass of sinks",
    "locality": f"part of the mass within {NEAR} tokens",
    "distance": "log2 of the median distance (tokens)",
}
"""How results name the scores."""

_IN_NATS_OR_DOUBLINGS = ("advantage", "distance")

_NEEDLES = {
    "document": "the gold document",
    "sentence": "the sentence that holds the answer",
    "answer": "the answer's words in the gold document",
}


def heads_lines(result: HeadsResult) -> list[str]:
    """What ``attnprobe heads`` prints."""
    scores, selection = result.scores, result.selection
    n_layers, n_heads = scores.retrieval.shape[1:]
    lines = [
        *wrapped(f"{result.model}: {SCORE_NAMES[selection.by]} of {n_layers} x {n_heads} heads"),
        *wrapped(
            f"{count(len(scores.questions), 'question')} x {count(int(scores.n_orders.max()), 'random order')}; "
            f"needle: {_NEEDLES[result.options.needle]}. {_answers(result)}"
        ),
        "",
    ]
    if selection.heads:
        lines += [
            *_table(result),
            *wrapped(_legend(result)),
            *(_together(result) if selection.held_out else []),
        ]
    if selection.reason:
        lines += wrapped(selection.reason)
    if selection.left_out and scores.n_recalled.any():
        why = "no answer of theirs recalls the needle" if selection.by == "retrieval" else "it is undefined there"
        left = f"{len(selection.left_out)} of {count(len(scores.questions), 'question')}"
        lines += wrapped(f"without a {selection.by} score: {left}, as {why}: {named(selection.left_out)}")
    if result.incomplete:
        id, why = next(iter(result.incomplete.items()))
        left = count(len(result.incomplete), "question")
        lines += wrapped(f"left out: {left}, as a cell failed, e.g. {fit(f'{id}: {why}', 300).rstrip()}")
    return lines


def _legend(result: HeadsResult) -> str:
    """What the table's columns are; of intervals and p values only where it has some."""
    selection = result.selection
    texts = [
        "in_needle: part of the answer's rows whose heaviest key is in the needle; sink: mass of sinks; locality: part "
        f"of the other mass within {NEAR} tokens; means over all questions.",
        "Heads are chosen on one half of the questions and judged on the other "
        f"({len(selection.chosen_on)} and {len(selection.held_out)} questions).",
    ]
    if any(one.held_out.low is not None for one in selection.heads):
        texts.append(f"Brackets: {percent(selection.heads[0].held_out.level, 0)}, each head by itself.")
    if any(one.p is not None for one in selection.heads):
        texts.append("p: against heads drawn at random, Holm's method over those chosen.")
    return " ".join(texts)


def _answers(result: HeadsResult) -> str:
    scores = result.scores
    recalled, measured = int(scores.n_recalled.sum()), int(scores.n_orders.sum())
    if result.options.answers == "file":
        return (
            "Answers are forced, so all recall the needle by themselves; published retrieval scores are of the model's "
            "own answers (--answers generate)."
        )
    return (
        f"Answers are the model's own; {recalled} of {measured} recall the needle (hold the answer, or more than half "
        "of the needle's tokens), and retrieval is scored on these."
    )


def _table(result: HeadsResult) -> list[str]:
    scores = result.scores
    means = {name: scores.mean(name) for name in ("in_needle", "sink", "locality")}
    row_of = {layer: row for row, layer in enumerate(scores.layers)}
    digits = _digits(result)
    rows = []
    for one in result.selection.heads:
        place = row_of[one.layer], one.head
        rows.append(
            [
                str(one.layer),
                str(one.head),
                decimal(one.chosen_on, digits),
                interval_cell(one.held_out, digits),
                p_text(one.p),
                *(percent(float(mean[place]), 0) for mean in means.values()),
            ]
        )
    header = ["layer", "head", "chosen on", "held out", "p", "in_needle", "sink", "locality"]
    return table(header, rows, [True] * 3 + [False] + [True] * 4)


def _together(result: HeadsResult) -> list[str]:
    selection, digits = result.selection, _digits(result)
    chosen_on = float(np.mean([one.chosen_on for one in selection.heads]))
    text = (
        f"{count(len(selection.heads), 'chosen head')} together: {decimal(chosen_on, digits)} where chosen, "
        f"{interval_cell(selection.together, digits)} held out; all others {interval_cell(selection.others, digits)}"
    )
    return wrapped(text, indent="  ")


def _digits(result: HeadsResult) -> int:
    return 2 if result.selection.by in _IN_NATS_OR_DOUBLINGS else 3
