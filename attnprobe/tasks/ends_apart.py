"""Where an end gets more attention and no better answer, or the reverse: a correlation over all places hides it."""

from __future__ import annotations

from attnprobe.tasks.accuracy import EndContrast
from attnprobe.tasks.attention_link import ALPHA, AttentionLink
from attnprobe.tasks.matrix_findings import MatrixFindings
from attnprobe.tasks.sweep_findings import SweepFindings

_BETTER = {"logprob": ("more probable", "less probable"), "strict": ("more often right", "less often right")}
_MORE = ("more attention", "less attention")


def ends_apart(findings: SweepFindings | MatrixFindings, link: AttentionLink) -> list[str]:
    """A sentence for each end where attention and answer are not both higher, or both lower, than in the middle.

    Parameters
    ----------
    findings
        With the predictor and the metric of the link by position or depth.
    link
        Between attention and answer.
    """
    seen = findings.means.get(link.predictor)
    told = findings.means.get(link.metric) or findings.accuracy.get(link.metric)
    if seen is None or told is None:
        return []
    place = "position" if isinstance(findings, SweepFindings) else "depth"
    ends = {
        "first": (direction(seen.head_minus_middle), direction(told.head_minus_middle)),
        "last": (direction(seen.tail_minus_middle), direction(told.tail_minus_middle)),
    }
    together = [end for end, (attention, answer) in ends.items() if attention and attention == answer]
    lines = []
    for end, (attention, answer) in ends.items():
        if attention is None or answer is None or attention == answer:
            continue
        how = "go against each other" if attention and answer else "are not shown to go together"
        others = f"; at the {together[0]} they are" if together else ""
        lines.append(
            f"At the {end} {place} attention and answer {how}: the evidence {_attention(attention)} than in the "
            f"middle, and the answer is {_answer(link.metric, attention, answer)}{others}."
        )
    return lines


def direction(contrast: EndContrast | None) -> int | None:
    """1 or -1 where interval and test both say that an end is higher or lower, else 0; None where it is not tested."""
    if contrast is None or contrast.p is None or contrast.interval.low is None or contrast.interval.high is None:
        return None
    if contrast.p >= ALPHA:
        return 0
    return 1 if contrast.interval.low > 0 else -1 if contrast.interval.high < 0 else 0


def _attention(sign: int) -> str:
    return f"gets {_MORE[0 if sign > 0 else 1]}" if sign else "is not shown to get more or less attention"


def _answer(metric: str, attention: int, answer: int) -> str:
    higher, lower = _BETTER[metric]
    if answer:
        return higher if answer > 0 else lower
    return f"not shown to be {higher if attention > 0 else lower}"
