"""How a task was measured, and replies of it that are wrong, as tables that people read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import PurePath
from typing import Any

from attnprobe.report.facts import QUERY_ROWS, Facts, text_of
from attnprobe.tasks.outcome import ACCURACIES, METRICS
from attnprobe.tasks.task_numbers import place_text
from attnprobe.terminal import count
from attnprobe.told import Table

_LABELS = {
    "model": "class",
    "weights_sample_sha256": "weights, SHA-256 of a sample",
    "tokenizer_sha256": "tokenizer, SHA-256",
    "rope": "RoPE override",
    "attn_implementation": "attention implementation",
    "rows": "query rows",
    "n_documents": "documents",
    "source": "items from",
    "only": "items",
    "limit": "first items",
    "items_sha256": "items, SHA-256",
    "prompts_sha256": "prompts, SHA-256",
    "filler_sha256": "files of filler, SHA-256",
    "max_new_tokens": "most tokens of a reply",
}
_UNSAID = ("attnprobe", "answers", "keep_rows", "endpoint", "form", "task", "filler", "fillers")
"""Among the versions, the same in every task, or said by other facts."""
_MOST_REPLIES, _LONGEST_REPLY = 5, 200


def task_facts(about: Mapping[str, Any]) -> Facts:
    """What ``task.json`` says of model, items, prompts and versions; what it lacks is left out."""
    asked, options = _part(about, "asked"), _part(about, "options")
    server = {f"server: {key}": value for key, value in _part(asked, "endpoint").items() if key != "model"}
    facts = {"model": str(about.get("model", "-"))}
    for part in (asked, server, options, _part(options, "form"), _part(about, "hashes")):
        for key, value in part.items():
            if key not in _UNSAID and value not in (None, []):
                facts[_LABELS.get(key, key.replace("_", " "))] = _value(key, value)
    fillers = about.get("fillers")
    for filler in fillers if isinstance(fillers, list) else ():
        if isinstance(filler, Mapping):
            facts[f"filler {filler.get('kind')}"] = text_of(filler.get("about"))
    if versions := _part(about, "versions"):
        facts["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    return tuple(facts.items())


def facts_table(about: Mapping[str, Any]) -> Table:
    """The same as a table."""
    return Table("How it was measured", ("", "value"), task_facts(about), (False, False))


def replies_tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """A few wrong replies to prompts with evidence beside their answers, of as many items as there are; else none.

    ``rows`` are those of :meth:`attnprobe.tasks.task_summary.TaskSummary.table`.
    """
    wrong = [row for row in rows if row.get("baseline") is None and row.get("reply") is not None and _is_wrong(row)]
    if not wrong:
        return []
    first = list({row["item"]: row for row in reversed(wrong)}.values())[::-1]
    shown = [*first, *(row for row in wrong if all(row is not one for one in first))][:_MOST_REPLIES]
    lines = [(str(row["item"]), _condition(row), str(row["answer"]), _reply(row)) for row in shown]
    note = f"{len(shown)} of {count(len(wrong), 'reply', 'replies')}; all are in table.csv."
    header = ("item", "where", "answer", "reply")
    return [Table("Replies that do not hold the answer", header, tuple(lines), (False,) * 4, note)]


def _part(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = content.get(name)
    return part if isinstance(part, Mapping) else {}


def _value(key: str, value: Any) -> str:
    if key == "rows" and isinstance(value, str):
        return QUERY_ROWS.get(value, text_of(value))
    if key == "tokenizer" and PurePath(str(value)).is_absolute():
        return PurePath(str(value)).name  # a folder of the one who measured is nobody else's business
    return ", ".join(map(str, value)) if isinstance(value, list) else text_of(value)


def _is_wrong(row: Mapping[str, Any]) -> bool:
    """By the more generous of the scores that there are."""
    return [row[name] for name in ACCURACIES if row[name] is not None][-1:] == [0]


def _condition(row: Mapping[str, Any]) -> str:
    names = takewhile(lambda name: name != METRICS[0], list(row)[2:])  # after item and trial
    return ", ".join(f"{name} {place_text(row[name])}" for name in names if row[name] is not None)


def _reply(row: Mapping[str, Any]) -> str:
    text = " ".join(str(row["reply"]).split()) or "(empty)"
    short = text if len(text) <= _LONGEST_REPLY else f"{text[:_LONGEST_REPLY]}…"
    return f"{short} (cut at the limit of tokens)" if row.get("reply_cut") else short
