"""What a reader of a task's results must know of its prompts and replies, gathered from everything that says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnprobe.tasks.attention_link import in_context
from attnprobe.tasks.filler_findings import FillerFindings
from attnprobe.tasks.matrix_findings import MatrixFindings
from attnprobe.tasks.outcome import Outcome
from attnprobe.tasks.sweep_findings import SweepFindings
from attnprobe.tasks.task_numbers import TEXTS
from attnprobe.terminal import count


def summary_notes(
    findings: SweepFindings | MatrixFindings | FillerFindings, outcomes: Sequence[Outcome]
) -> tuple[str, ...]:
    """Sentences without capital and full stop: what is odd about prompts and replies, and what analyses warn of."""
    facts = [outcome.facts for outcome in outcomes]
    said = [*_unseen(outcomes), *_lengths(facts), *_fillers(facts), *_replies(facts), *_servers(facts)]
    if not isinstance(findings, SweepFindings):
        said += findings.notes
    return tuple(dict.fromkeys([*said, *_warnings(findings)]))


def _unseen(outcomes: Sequence[Outcome]) -> list[str]:
    """Where no attention was measured at all, nothing is missing."""
    asked = [outcome for outcome in outcomes if in_context(outcome)]
    unseen = sum(outcome.mass is None for outcome in asked)
    if not 0 < unseen < len(asked):
        return []
    return [
        f"in {unseen:,} of {count(len(asked), 'prompt')} no layer sees the evidence, which stands outside the window "
        "of the model's attention; they have no part in what is said of attention"
    ]


def _lengths(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """``exact`` is what older results call ``length_hit``, if they have a length, too."""
    wanted = [one for one in facts if type(one.get("length")) is int and type(one.get("prompt_tokens")) is int]
    off = [abs(one["prompt_tokens"] - one["length"]) for one in wanted]
    missed = [by for by in off if by]
    if not missed:
        return []
    return [
        f"{len(missed):,} of {count(len(off), 'prompt')} miss the length asked for, by {max(missed):,} tokens at most"
    ]


def _fillers(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    checked = [one["filler_check"] for one in facts if isinstance(one.get("filler_check"), dict)]
    flagged = [one for one in checked if one.get("verdict") != "pass"]
    lines = []
    if flagged:
        kinds: dict[str, int] = {}
        for one in flagged:
            for kind in {str(found.get("kind")) for found in one.get("findings", ())}:
                kinds[kind] = kinds.get(kind, 0) + 1
        named = ", ".join(f"{kind} in {number:,}" for kind, number in sorted(kinds.items()))
        lines.append(
            f"the filler of {len(flagged):,} of {count(len(checked), 'prompt')} could be taken for the task: {named}"
        )
    # A repeated filler is meant to; a source that is used up is not.
    varied = [one for one in facts if "filler_repeated_sentences" in one and not _is_repeated(one.get("filler"))]
    again = [one["filler_repeated_sentences"] for one in varied if one["filler_repeated_sentences"]]
    if again:
        lines.append(
            f"the filler of {len(again):,} of {count(len(varied), 'prompt')} repeats sentences, {max(again):,} at "
            "most, as its source is too short for the length"
        )
    return lines


def _is_repeated(filler: Any) -> bool:
    return str(filler).startswith("repeated")


def _replies(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    known = [one for one in facts if "reply_cut" in one]
    cut = sum(bool(one["reply_cut"]) for one in known)
    blank = sum(isinstance(one.get("reply"), str) and not one["reply"].strip() for one in facts)
    replies = sum("reply" in one for one in facts)
    lines = []
    if cut:
        lines.append(
            f"{cut:,} of {count(len(known), 'reply', 'replies')} were cut off at the longest reply allowed, and an "
            "answer after that is missed: raise max_new_tokens"
        )
    withheld = [str(one["not_scored"]) for one in facts if one.get("not_scored")]
    if withheld:
        lines.append(
            f"{len(withheld):,} of {count(replies, 'reply', 'replies')} have no score; the first: {withheld[0]}"
        )
    if blank:
        lines.append(f"{blank:,} of {count(replies, 'reply', 'replies')} are blank")
    return lines


def _servers(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    both = [
        (one["server_tokens"], one["prompt_tokens"])
        for one in facts
        if type(one.get("server_tokens")) is int and type(one.get("prompt_tokens")) is int
    ]
    off = [abs(server - ours) for server, ours in both if server != ours]
    if not off:
        return []
    return [
        f"the server counts other tokens than the tokenizer that lengths are of, in {len(off):,} of "
        f"{count(len(both), 'prompt')}, by {max(off):,} at most"
    ]


def _warnings(findings: SweepFindings | MatrixFindings | FillerFindings) -> list[str]:
    """Of analyses, each once, with what it is of."""
    found: list[tuple[str, Iterable[str]]] = []
    if isinstance(findings, FillerFindings):
        found += [(TEXTS[name].name, one.warnings) for name, one in findings.decompositions.items()]
        for lengths in findings.lengths:
            where = f"{lengths.filler}, {lengths.placement}"
            found += [(f"{where}, {TEXTS[name].name}", curve.warnings) for name, curve in lengths.curves.items()]
    else:
        found += [(TEXTS[name].name, one.warnings) for name, one in findings.accuracy.items()]
        found += [(TEXTS[name].name, one.warnings) for name, one in findings.means.items()]
    if isinstance(findings, MatrixFindings):
        found += [(f"{TEXTS[name].name} by length", curve.warnings) for name, curve in findings.by_length.items()]
        for name, knees in findings.knees.items():
            found += [(f"{knee.kind} knee, {TEXTS[name].name}", knee.warnings) for knee in knees.found]
    names: dict[str, list[str]] = {}
    for name, warnings in found:
        for warning in warnings:
            names.setdefault(warning, []).append(name)
    return [f"{'; '.join(own)}: {warning}" for warning, own in names.items()]
