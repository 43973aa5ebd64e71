"""Losses of all tokens of a prompt, from a pass that computes logits for its last rows only.

Final hidden states go through the output head a few rows at a time, so that no array is tokens times vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnprobe.architecture import decoder_of
from attnprobe.decoding import token_logprobs
from attnprobe.interrupts import forward_hook

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel

ROWS = 128
TOLERANCE = {torch.float16: 0.03, torch.bfloat16: 0.25}
"""Largest accepted difference, nats, from what the model's own forward gives, by its precision; else 1e-3."""


class TokenLosses:
    """Losses as far as they are known: ``values[i]`` is that of token i + 1 of the pass."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = torch.tensor([list(ids)])
        self._parts: list[np.ndarray] = []
        self._seen = 0

    @property
    def values(self) -> np.ndarray:
        """float32 [token - 1], nats; empty where the model's hidden states could not be read."""
        return np.concatenate(self._parts) if self._parts else np.zeros(0, dtype=np.float32)

    def take(self, hidden: torch.Tensor, head: Any) -> None:
        """Score the rows ``hidden [1, A, D]`` of one forward call, in the order of the tokens."""
        stop = min(self._seen + hidden.shape[1], self._ids.shape[1] - 1)
        for start in range(self._seen, stop, ROWS):
            end = min(start + ROWS, stop)
            logits = head(hidden[:, start - self._seen : end - self._seen])
            self._parts.append(-token_logprobs(logits, self._ids[:, start + 1 : end + 1])[0].numpy())
        self._seen += hidden.shape[1]


@contextmanager
def token_losses(lm: LanguageModel, ids: Sequence[int]) -> Iterator[TokenLosses]:
    """Watch a pass that feeds ``ids`` from the first token on, the last one left out, at once or in chunks.

    A model that has no plain output head, or changes its logits behind it (softcap, scale), gives other values than its
    own forward: compare the last ones with ``run.answer_logprob``, as :func:`agree` does.
    """
    losses = TokenLosses(ids)
    head = lm.model.get_output_embeddings()
    decoder = decoder_of(lm.model)

    def keep(module: Any, args: Any, output: Any) -> None:
        hidden = getattr(output, "last_hidden_state", None)
        if head is not None and hidden is not None:
            losses.take(hidden, head)

    with forward_hook(decoder, keep):
        yield losses


def agree(lm: LanguageModel, losses: TokenLosses, answer_logprob: np.ndarray) -> bool:
    """Whether the losses of the answer, which ends the pass, are what the model's own logits gave."""
    known = losses.values[-len(answer_logprob) :]
    tolerance = TOLERANCE.get(lm.model.dtype, 1e-3)
    return len(known) == len(answer_logprob) and bool(np.abs(known + answer_logprob).max() <= tolerance)
