"""Token audit: what a prompt is made of, and what deleting a section is worth on the user's own curve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnprobe.encode import EncodedPrompt
from attnprobe.errors import InputError
from attnprobe.estimates import Interval
from attnprobe.run import Run
from attnprobe.spans import Span
from attnprobe.tasks.price import LengthCurve


@dataclass(frozen=True)
class Section:
    """One section of a prompt.

    Parameters
    ----------
    kind, name
        ``document`` and its name, its markers counted with it; else the kind of the spans, which is the name, too,
        unless the user named it (``other``).
    tokens
        Of the section.
    share
        Of the prompt's tokens.
    worth
        What quality rises by if the section is deleted, in the curve's unit, were it only its length that matters;
        None where the curve does not tell.
    reason
        Why ``worth`` is None; else None.
    """

    kind: str
    name: str
    tokens: int
    share: float
    worth: Interval | None
    reason: str | None = None

    def __repr__(self) -> str:
        worth = "" if self.worth is None else f", worth {self.worth}"
        return f"Section({self.name}: {self.tokens} tokens, {100 * self.share:.1f} %{worth})"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {**vars(self), "worth": None if self.worth is None else self.worth.to_dict()}


@dataclass(frozen=True)
class TokenAudit:
    """The sections of a prompt, in order of their first token, and its tokens."""

    sections: tuple[Section, ...]
    tokens: int

    def __repr__(self) -> str:
        return f"TokenAudit({len(self.sections)} sections, {self.tokens} tokens)"

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {"sections": [section.to_dict() for section in self.sections], "tokens": self.tokens}


def token_audit(prompt: EncodedPrompt | Run, curve: LengthCurve | None = None) -> TokenAudit:
    """Count a prompt's tokens by section, and price each.

    The price is that of the section's tokens at the length that the prompt has: the marginal one, not the average.

    Parameters
    ----------
    prompt
        An encoded prompt, or a run, of which the answer does not count.
    curve
        Of :func:`attnprobe.tasks.price.length_curve`, of the same model and a task like the prompt's. None: count only.
    """
    named = {span.document: span.name for span in prompt.spans if span.kind == "document"}
    tokens: dict[tuple[str, str], int] = {}
    for span in prompt.spans:
        if span.kind not in ("answer", "learned_sink"):
            section = _section(span, named)
            tokens[section] = tokens.get(section, 0) + span.n_tokens
    total = sum(tokens.values())
    return TokenAudit(tuple(_priced(*section, count, total, curve) for section, count in tokens.items()), total)


def _section(span: Span, named: dict[int | None, str]) -> tuple[str, str]:
    if span.document is not None:
        return "document", named[span.document]
    return span.kind, span.name if span.kind == "other" else span.kind


def _priced(kind: str, name: str, tokens: int, total: int, curve: LengthCurve | None) -> Section:
    share = tokens / total
    if curve is None:
        return Section(kind, name, tokens, share, None, "no curve of quality by length")
    if tokens == total:
        return Section(kind, name, tokens, share, None, "it is the whole prompt")
    try:
        # What deleting it is worth is what adding it has cost.
        return Section(kind, name, tokens, share, curve.price(tokens, total - tokens))
    except InputError as error:
        return Section(kind, name, tokens, share, None, str(error))
