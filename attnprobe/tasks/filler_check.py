"""Whether filler could be taken for an answer, or for text of the task."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from attnprobe.answer_text import answer_key, text_key
from attnprobe.document import quoted
from attnprobe.errors import InputError

Verdict = Literal["pass", "flag", "refuse"]

_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)"
)
_DATE = re.compile(
    rf"\b{_MONTH}\.? \d{{1,4}}\b|\b\d{{1,2}}(?:st|nd|rd|th|\.)? (?:of )?{_MONTH}\b"
    r"|\b\d{4}-\d{2}-\d{2}\b|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b|\b(?:1[5-9]|20)\d\d\b(?![.,:]\d)"
    r"|\d{1,4}年|\d{1,2}月\d{1,2}日"
)
_UNIT = r"(?:second|minute|hour|day|night|week|fortnight|month|quarter|year|decade|century|centurie)s?"
# Searched in normalised text, where number words are digits.
_DURATION = re.compile(rf"(?<= )\d+(?:\.\d+)? (?:and a half )?(?:(?:business|working|calendar|full) )?{_UNIT}(?= )")
_CLOCK = re.compile(r"\b\d{1,2}[:.]\d{2}\b(?: ?[ap]\.?m\b)?|\b\d{1,2} ?(?:[ap]\.?m\b|o'clock)")
_CODE = re.compile(r"\b(?=[\w-]*\d)(?=[\w-]*[^\W\d_])\w+(?:-\w+)*\b")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
# A content word shorter than this says little about a topic.
_SHORTEST_WORD = 4
# fmt: off
_COMMON_WORDS = frozenset((
    "about", "above", "after", "again", "against", "almost", "along", "already", "also", "although", "always",
    "among", "because", "been", "before", "being", "below", "beneath", "between", "both", "could", "does", "done",
    "down", "each", "either", "else", "even", "ever", "every", "from", "gave", "give", "given", "gives", "goes",
    "have", "having", "here", "hers", "himself", "into", "itself", "just", "know", "known", "last", "least", "less",
    "like", "long", "made", "make", "makes", "many", "more", "most", "much", "must", "near", "nearly", "never",
    "none", "nothing", "once", "only", "other", "others", "over", "part", "same", "seen", "several", "shall",
    "should", "since", "some", "such", "take", "taken", "takes", "than", "that", "their", "them", "then", "there",
    "these", "they", "this", "those", "though", "through", "till", "together", "under", "until", "upon", "very",
    "want", "were", "what", "when", "where", "whether", "which", "while", "whoever", "whole", "whom", "whose",
    "will", "with", "within", "without", "would", "your", "state", "stated", "name", "places", "place",
))
# fmt: on
# Filler of another subject that shares more than this part of the task's content words is on the task's subject.
_SHARED = 0.2
# Findings of a kind that are kept with their text.
_KEPT = 5


@dataclass(frozen=True)
class Finding:
    """Something in a filler that the task could be about.

    Parameters
    ----------
    kind
        ``answer`` (it holds an answer), ``date``, ``duration``, ``time``, ``code``, ``number``, or ``overlap`` (content
        words of the task).
    verdict
        ``refuse`` or ``flag``.
    count
        How often it was found.
    texts
        The first few offending texts.
    """

    kind: str
    verdict: Verdict
    count: int
    texts: tuple[str, ...]


@dataclass(frozen=True)
class FillerCheck:
    """What was found in a filler; nothing where it passes."""

    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of the findings' verdicts."""
        verdicts = {finding.verdict for finding in self.findings}
        return "refuse" if "refuse" in verdicts else "flag" if verdicts else "pass"

    def require(self, name: str) -> FillerCheck:
        """The check itself, unless it refuses: then ``InputError`` with the offending texts.

        Parameters
        ----------
        name
            What the message calls the filler.
        """
        for finding in self.findings:
            if finding.verdict == "refuse":
                held = ", ".join(map(quoted, finding.texts))
                is_answer = finding.kind == "answer"
                what = "the answer" if is_answer else f"what looks like the answer (a {finding.kind})"
                # Comparisons of RoPE scalings have no such option, and no option accepts answers.
                more = "" if is_answer else ", or, for a task, strict_filler=False"
                raise InputError(
                    f"the filler {name} holds {what}: {held}; the task would measure a distractor and not the length: "
                    f"take another text{more}"
                )
        return self

    @property
    def facts(self) -> dict[str, object]:
        """The check in JSON's terms."""
        return {
            "verdict": self.verdict,
            "findings": [
                {"kind": row.kind, "verdict": row.verdict, "count": row.count, "texts": list(row.texts)}
                for row in self.findings
            ],
        }


def check_filler(
    text: str,
    answers: Sequence[str],
    question: str,
    evidence: str,
    *,
    related: bool = False,
    strict: bool = True,
) -> FillerCheck:
    """Look for what makes a filler a distractor.

    An answer (or foil) is always refused. Dates, durations, times, codes and numbers are refused where an answer is of
    the same form, and else dates and durations are flagged. Content words shared with question and evidence are flagged
    when they are more than a fifth of those of the task: words of four letters or more, compared without a plural's
    ``s``; scripts without spaces are not compared.

    Parameters
    ----------
    text
        The filler.
    answers
        What it must not hold: accepted answers and foils.
    question, evidence
        The task.
    related
        The filler is meant to be on the task's topic: only an answer is refused, shared words are not looked for.
    strict
        Refuse what has the form of an answer; else flag it.
    """
    key = text_key(text)
    forms = {kind for answer in answers for kind, found in _forms(answer, text_key(answer)) if found}
    findings = []
    held = [answer for answer in answers if any(reading in key for reading in answer_key(answer))]
    if held:
        findings.append(Finding("answer", "refuse", len(held), tuple(held[:_KEPT])))
    for kind, found in _forms(text, key):
        if found and (kind in forms or kind in ("date", "duration")):
            refused = kind in forms and strict and not related
            texts = tuple(dict.fromkeys(found))[:_KEPT]
            findings.append(Finding(kind, "refuse" if refused else "flag", len(found), texts))
    if not related:
        task, words = set(_content(f"{question} {evidence}")), Counter(_content(text))
        shared = [word for word in sorted(task, key=lambda word: (-words[word], word)) if words[word]]
        if task and len(shared) > _SHARED * len(task):
            findings.append(Finding("overlap", "flag", sum(words[word] for word in shared), tuple(shared[:_KEPT])))
    return FillerCheck(tuple(findings))


def _forms(text: str, key: str) -> list[tuple[str, list[str]]]:
    """Strings of the forms that answers have, by kind; ``key`` is the text's ``text_key``."""
    # Readings repeat each other; the one with number words as digits comes last.
    durations = max((_DURATION.findall(reading) for reading in key.split("\n")), key=len)
    return [
        ("date", _DATE.findall(text)),
        ("duration", durations),
        ("time", _CLOCK.findall(text)),
        ("code", _CODE.findall(text)),
        ("number", _NUMBER.findall(text)),
    ]


def _content(text: str) -> Iterable[str]:
    """The content words of a text, without a plural's ``s``."""
    words = re.findall(rf"[^\W\d_]{{{_SHORTEST_WORD},}}", text.casefold())
    return (word.removesuffix("s") for word in words if word not in _COMMON_WORDS)
