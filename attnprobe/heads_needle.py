"""The needle: which tokens of the gold document are the ones to be copied, and whether an answer recalls them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from attnprobe.answer_text import holds_answer
from attnprobe.document import quoted
from attnprobe.errors import InputError
from attnprobe.heads_options import Needle
from attnprobe.prompt import Prompt
from attnprobe.split import split_sentences

if TYPE_CHECKING:
    from attnprobe.run import Run

RECALL = 0.5
"""An answer that holds more than this part of the needle's tokens recalls it."""

_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_LETTER = rf"[[\p{{L}}\p{{N}}]--[{_UNSPACED}]]"


def needle_tokens(
    run: Run, document: int, needle: Needle = "document", answers: Sequence[str] = (), tokenizer: Any = None
) -> tuple[int, ...]:
    """Positions of the needle's tokens in ``run.token_ids``, ascending.

    Parameters
    ----------
    run
        The measurement.
    document
        Number of the document that holds the needle, by position in the prompt.
    needle
        ``document``: all of the document's tokens, its secondary sinks included. ``sentence``: those of its first
        sentence that holds an answer. ``answer``: those of the first place where an answer stands in it word for word.
    answers
        Accepted answers; needed for a sentence or an answer.
    tokenizer
        The one that the run was measured with; needed for a sentence or an answer, as a run keeps no characters.

    Raises
    ------
    InputError
        There is no such document or it has no tokens, the document does not hold an answer, the tokenizer is missing
        or another one.
    """
    if needle not in get_args(Needle):
        raise InputError(f"needle {needle!r} is unknown; expected one of {', '.join(get_args(Needle))}")
    n_documents = len(run.document_spans)
    if isinstance(document, bool) or not isinstance(document, int | np.integer) or not 0 <= document < n_documents:
        raise InputError(f"gold document {document!r} is not in the run, which has documents 0 to {n_documents - 1}")
    own = sorted(
        token
        for span in run.spans
        if span.kind in ("document", "sink") and span.document == document
        for start, stop in span.segments
        for token in range(start, stop)
    )
    name = run.documents[document]
    if not own:
        raise InputError(f"gold document {document} ({quoted(name)}) has no tokens, so it holds no needle")
    if needle == "document":
        return tuple(own)
    offsets = _offsets(run, tokenizer)
    begin, end = offsets[own[0]][0], offsets[own[-1]][1]
    text = run.prompt_text[begin:end]
    start, stop = needle_place(text, needle, answers, f"gold document {document} ({quoted(name)})")
    found = []
    for token in own:
        first, last = max(offsets[token][0], begin + start), min(offsets[token][1], begin + stop)
        if run.prompt_text[first:last].strip():
            found.append(token)
    return tuple(found)


def needle_place(
    text: str, needle: Needle, answers: Sequence[str], label: str = "the gold document"
) -> tuple[int, int]:
    """Half-open character range of the needle in the gold document's text.

    Parameters
    ----------
    text
        Of the document.
    needle
        ``sentence`` or ``answer``, as in :func:`needle_tokens`; ``document`` is all of it. A sentence holds an answer
        as :func:`attnprobe.answer_text.holds_answer` says; word for word means but for case and white space.
    answers
        Accepted answers.
    label
        Names the document in messages.

    Raises
    ------
    InputError
        The text does not hold an answer.
    """
    if needle == "document":
        return 0, len(text)
    if not answers:
        raise InputError(f'{label}: no answer is known that needle="{needle}" could be found by; use needle="document"')
    if needle == "sentence":
        for start, stop in split_sentences(text):
            if holds_answer(text[start:stop], answers):
                return start, start + len(text[start:stop].rstrip())
        raise InputError(f'{label} has no sentence that holds the answer {quoted(answers[0])}; use needle="document"')
    places = [place for answer in answers if (place := _written(text, answer)) is not None]
    if not places:
        raise InputError(
            f"{label} does not hold the answer {quoted(answers[0])} word for word; use needle=\"sentence\" or "
            '"document"'
        )  # fmt: skip
    return min(places)


def recalls(run: Run, needle: Sequence[int], answers: Sequence[str] = ()) -> bool:
    """Whether the run's answer recalls the needle.

    It does if it holds one of the accepted answers (:func:`attnprobe.answer_text.holds_answer`), or more than half of
    the needle's tokens, each counted as often as it occurs there: the published condition, a ROUGE-1 recall above
    0.5, on tokens.

    Parameters
    ----------
    run
        The measurement.
    needle
        Positions, from :func:`needle_tokens`.
    answers
        Accepted answers; none leaves the second condition.
    """
    if answers and holds_answer(run.answer, answers):
        return True
    wanted = Counter(run.token_ids[position] for position in needle)
    held = sum((wanted & Counter(run.answer_ids)).values())
    return held > RECALL * len(needle)


def _written(text: str, answer: str) -> tuple[int, int] | None:
    """Where an answer first stands in a text, not inside a longer word or number."""
    import regex

    words = r"\s+".join(regex.escape(word) for word in answer.split())
    if not words:
        return None
    # A letter of a script that is written with spaces, or a digit that a point or comma joins to it, goes on.
    pattern = rf"(?V1)(?<!{_LETTER})(?<!\d[.,](?=\d)){words}(?!{_LETTER})(?!(?<=\d)[.,]\d)"
    found = regex.search(pattern, text, regex.IGNORECASE)
    return None if found is None else found.span()


def _offsets(run: Run, tokenizer: Any) -> tuple[tuple[int, int], ...]:
    """Character range of every prompt token, from encoding the prompt's text again."""
    if tokenizer is None:
        raise InputError("a sentence or an answer is found by its characters: pass the run's tokenizer")
    encoded = Prompt.from_text(run.prompt_text).encode(tokenizer)
    ids = run.token_ids[: run.n_prompt]
    # Encoded as plain text, a chat prompt may get a first token that its template does not write.
    for skipped in (0, 1):
        if encoded.token_ids[skipped:] == ids:
            return encoded.offsets[skipped:]
    raise InputError(
        "the tokenizer does not give the run's own tokens for its prompt; pass the one that the run was measured with"
    )
