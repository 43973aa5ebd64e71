"""Characters of tokens: which part of the text of prompt and answer each token stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from attnprobe.errors import InputError

if TYPE_CHECKING:
    from attnprobe.encode import EncodedPrompt
    from attnprobe.run import Run

_WINDOW = 32
"""Answer tokens that are decoded once more with each one behind them, so that a long answer takes linear time."""


def token_chars(encoded: EncodedPrompt, answer_ids: Sequence[int], decode: Callable[[list[int]], str]) -> np.ndarray:
    """Character range of every token in the prompt's text and what the answer decodes to, int32 ``[token, 2]``.

    See :class:`attnprobe.Run`.
    """
    answer = answer_chars(answer_ids, decode) + len(encoded.text)
    return np.concatenate([np.array(encoded.offsets), answer]).astype(np.int32)


def answer_chars(ids: Sequence[int], decode: Callable[[list[int]], str]) -> np.ndarray:
    """Half-open character range of each answer token in the text that all of them decode to, int64 ``[token, 2]``.

    A token ends where the decoded text of the tokens up to it stops agreeing with the whole. So pieces of one character
    share its range, a piece that ends one character and begins the next has both, and a token that decodes to nothing
    (one that is skipped) has an empty range.

    Parameters
    ----------
    ids
        The answer's token ids.
    decode
        From ids to text.
    """
    answer = decode(list(ids))
    chars = np.zeros((len(ids), 2), dtype=np.int64)
    context = start = known = done = 0
    before = text = ""  # of the tokens from `context` to `start`; all tokens before `start` have `known` characters
    for token, token_id in enumerate(ids):
        previous, text = text, decode(list(ids[context : token + 1]))
        own = text[len(before) :]
        reached = known + _n_common(own, answer[known : known + len(own)])
        is_whole = reached == known + len(own)  # else the text ends with a part of a character
        begun, done = done, max(done, reached)
        is_empty = text == previous and not decode([token_id])
        chars[token] = begun, begun if is_empty else min(done + (not is_whole), len(answer))
        if is_whole and token + 1 >= start + _WINDOW and done == reached > known:
            context, start, known = start, token + 1, done
            before = text = decode(list(ids[context:start]))
    return chars


def _n_common(first: str, second: str) -> int:
    """Length of the common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def check_token_chars(run: Run) -> None:
    """Raise unless every token of a run has a character range in the text of its own part, in the order of tokens.

    Raises
    ------
    InputError
        Naming the first contradiction.
    """
    chars = run.token_chars
    if chars is None:
        return
    if not isinstance(chars, np.ndarray):
        raise InputError(f"token_chars must be a numpy array, not {type(chars).__name__}")
    shape = (len(run.token_ids), 2)
    if chars.dtype != np.int32 or chars.shape != shape:
        raise InputError(f"token_chars is {chars.dtype} of shape {chars.shape}; expected int32 of shape {shape}")
    n_prompt = len(run.prompt_text)
    for what, part, first, last in (
        ("prompt", chars[: run.n_prompt], 0, n_prompt),
        ("answer", chars[run.n_prompt :], n_prompt, n_prompt + len(run.answer)),
    ):
        starts, stops = part[:, 0], part[:, 1]
        if ((starts < first) | (stops < starts) | (stops > last)).any():
            raise InputError(f"token_chars gives a token of the {what} characters outside its text, {first} to {last}")
        if (np.diff(starts) < 0).any():
            raise InputError(f"token_chars gives a token of the {what} characters before those of the token before it")
