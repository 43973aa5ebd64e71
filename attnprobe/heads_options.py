"""Choices of ``attnprobe heads``: what is measured, and how heads are chosen from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from attnprobe.arguments import fraction, whole_number
from attnprobe.errors import InputError

Needle = Literal["document", "sentence", "answer"]
Score = Literal["retrieval", "in_needle", "advantage", "sink", "locality", "distance"]
Split = Literal["random", "alternate"]
Answers = Literal["generate", "file"]

NEEDLES: tuple[str, ...] = get_args(Needle)
SCORES: tuple[str, ...] = get_args(Score)
SPLITS: tuple[str, ...] = get_args(Split)


@dataclass(frozen=True)
class HeadsOptions:
    """Choices that change the numbers.

    Parameters
    ----------
    needle
        As in :func:`attnprobe.heads_needle.needle_tokens`.
    answers
        ``generate``: the model's own answers, of which those that recall the needle count: the published way.
        ``file``: the file's answers are forced.
    orders
        Random orders of each question's documents.
    sinks
        Also measure each order with question and answer "N/A", and take the secondary sinks that it shows apart.
    seed
        Draws the orders and the split.
    max_new_tokens, beyond_window
        As in :func:`attnprobe.measure`.
    by, n_heads, split, level
        As in :func:`attnprobe.heads_selection.select`; they choose from what was measured.
    """

    needle: Needle = "answer"
    answers: Answers = "generate"
    orders: int = 3
    sinks: bool = True
    seed: int = 0
    max_new_tokens: int = 32
    beyond_window: bool = False
    by: Score = "retrieval"
    n_heads: int = 10
    split: Split = "random"
    level: float = 0.95

    def __post_init__(self) -> None:
        choices = (("needle", Needle), ("answers", Answers), ("by", Score), ("split", Split))
        for name, choice in choices:
            value = getattr(self, name)
            if value not in get_args(choice):
                raise InputError(f"{name} is {value!r}; expected one of {', '.join(get_args(choice))}")
        for name, least in (("orders", 1), ("seed", 0), ("max_new_tokens", 1), ("n_heads", 1)):
            whole_number(name, getattr(self, name), least)
        fraction("level", self.level)

    def measured(self) -> dict[str, Any]:
        """The choices that a measured cell depends on, as JSON values."""
        chosen = ("by", "n_heads", "split", "level")
        return {name: value for name, value in asdict(self).items() if name not in chosen}

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)
