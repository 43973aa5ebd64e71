"""What was asked and what was answered, for the head of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnprobe.report.texts import escaped, visible
from attnprobe.run import Run
from attnprobe.spans import question_tokens
from attnprobe.terminal import count

Asked = tuple[tuple[str, str], ...]
"""Labels and texts."""

_ANSWERS = {"forced": "Answer, forced", "generated": "Answer, the model's own"}
_LONGEST = 400
_NO_TEXT = "(no text)"


def asked_of_run(run: Run) -> Asked:
    """Question, where the run knows its characters, and answer, with how it came about."""
    question = question_of(run)
    answer = (answer_name(run), _short(run.answer))
    return (answer,) if question is None else (("Question", _short(question)), answer)


def asked_of_runs(parts: Sequence[Asked]) -> Asked:
    """The same of several runs: what they share, and how many different ones there are of the rest."""
    texts: dict[str, dict[str, None]] = {}
    for label, text in (pair for part in parts for pair in part):
        texts.setdefault(label, {})[text] = None
    return tuple(
        (label, next(iter(found)) if len(found) == 1 else f"{len(found)} different ones, see Prompts and answers")
        for label, found in texts.items()
    )


def asked_of_study(n_questions: int, agreement: float | None) -> Asked:
    """How many questions, and whose answers; ``agreement`` is that of :meth:`attnprobe.Study.agreement`."""
    return (
        ("Asked", f"{count(n_questions, 'question')}, listed under Prompts and answers"),
        ("Answers", "forced" if agreement is None else "of each question the model's own most frequent one, forced"),
    )


def asked_html(asked: Asked) -> str:
    """The same as HTML."""
    pairs = "".join(f"<div><dt>{escaped(label)}</dt><dd><bdi>{escaped(text)}</bdi></dd></div>" for label, text in asked)
    return f'<dl class="asked">{pairs}</dl>'


def answer_name(run: Run) -> str:
    """What to call the answer: with how it came about, where the run says so."""
    capture = run.manifest.get("capture")
    made = str(capture.get("answer")) if isinstance(capture, Mapping) else ""
    return _ANSWERS.get(made, "Answer")


def question_of(run: Run) -> str | None:
    """The question's text, where the run knows its characters."""
    place = question_tokens(run.spans)
    if place is None or run.token_chars is None:
        return None
    start, stop = run.token_chars[place[0], 0], run.token_chars[place[1] - 1, 1]
    return run.prompt_text[start:stop]


def _short(text: str) -> str:
    return visible(" ".join(text.split()), _LONGEST) or _NO_TEXT
