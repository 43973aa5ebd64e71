"""What a comparison of RoPE scalings measures and how it judges: options shared by command, config and Python."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from attnprobe.arguments import positive_number, whole_number
from attnprobe.errors import InputError
from attnprobe.rope_parse import parse_rope

UNSCALED = "none"
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Margins:
    """How much worse than the unscaled model still counts as kept.

    Parameters
    ----------
    logprob
        Of the needle's answer, nats over all its tokens.
    advantage
        Of the needle over the other documents, nats.
    loss
        Of the text's tokens, nats a token.
    """

    logprob: float = 1.0
    advantage: float = 0.25
    loss: float = 0.05

    def __post_init__(self) -> None:
        for name in ("logprob", "advantage", "loss"):
            object.__setattr__(self, name, positive_number(f"margin of the {name}", getattr(self, name)))

    def of(self, metric: str) -> float:
        """The margin of a metric."""
        return float(getattr(self, metric))


@dataclass(frozen=True)
class RopeOptions:
    """What is measured.

    Parameters
    ----------
    lengths
        Tokens of prompt and answer together: a length up to the model's window is inside it.
    depths
        Where a text's needles stand: parts of the filler's tokens before them, ascending. Each has its own question.
    texts
        Texts of each length.
    filler
        Kind of the text that the needles stand in; see :func:`attnprobe.tasks.filler.filler_source`.
    seed
        Draws needles, filler and the halves that heads are chosen on.
    n_heads
        Retrieval heads to choose; changes no measurement.
    margins
        What counts as kept; changes no measurement.
    level
        Of intervals; changes no measurement.
    """

    lengths: tuple[int, ...]
    depths: tuple[float, ...] = DEPTHS
    texts: int = 5
    filler: str = "prose"
    seed: int = 0
    n_heads: int = 10
    margins: Margins = field(default_factory=Margins)
    level: float = 0.95

    def __post_init__(self) -> None:
        lengths = tuple(sorted({whole_number("length", length, 1) for length in self.lengths}))
        if not lengths:
            raise InputError("there are no lengths; give at least one, e.g. lengths=(2048, 8192)")
        depths = tuple(self.depths)
        if not depths or list(depths) != sorted(set(depths)) or not all(0 <= depth <= 1 for depth in depths):
            raise InputError(f"depths are {list(depths)}; give ascending parts of the text, from 0 to 1, each once")
        object.__setattr__(self, "lengths", lengths)
        object.__setattr__(self, "depths", tuple(float(depth) for depth in depths))
        for name, least in (("texts", 1), ("seed", 0), ("n_heads", 1)):
            whole_number(name, getattr(self, name), least)

    @property
    def places(self) -> list[tuple[int, int]]:
        """Number and length of every text."""
        return [(number, length) for number in range(self.texts) for length in self.lengths]

    def measured(self) -> dict[str, Any]:
        """What measurements depend on beside their length, as JSON values."""
        return {"depths": list(self.depths), "texts": self.texts, "filler": self.filler, "seed": self.seed}


def scaling_names(given: Sequence[str]) -> tuple[str, ...]:
    """The scalings in their full form, ``none`` first: what all others are compared with is always measured.

    Raises
    ------
    InputError
        A scaling that cannot be read, or one that is given twice.
    """
    names = [str(parse_rope(text)) for text in given]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f'the scaling "{twice}" is given twice; give each once')
    return (UNSCALED, *(name for name in names if name != UNSCALED))


def short_name(scaling: str) -> str:
    """A scaling that only has a factor without the word: ``yarn:4``, which means the same."""
    found = re.fullmatch(r"([a-z0-9-]+):factor=([^,]+)", scaling)
    return scaling if found is None else f"{found[1]}:{float(found[2]):g}"
