"""The texts that scalings are compared on: needles at depths of a filler, each with a question of its own.

All questions of a text stand behind the same documents but for their end, so that one pass over them serves every one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnprobe.answer_text import holds_answer
from attnprobe.document import quoted
from attnprobe.errors import InputError
from attnprobe.heads_needle import needle_place
from attnprobe.prompt import Prompt, encode_answer
from attnprobe.rope_options import RopeOptions
from attnprobe.tasks.cell import Form
from attnprobe.tasks.filler import filler_source
from attnprobe.tasks.haystack import Frame, Placed, in_filler
from attnprobe.tasks.items import NeedleItem
from attnprobe.terminal import count


@dataclass(frozen=True)
class AskedNeedle:
    """One needle of a text with its question.

    Parameters
    ----------
    item
        The unit of analysis.
    prompt
        The text with this needle's question.
    document
        Number of the needle among the prompt's documents.
    answer
        Forced.
    answers
        Every accepted answer.
    """

    item: str
    prompt: Prompt
    document: int
    answer: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class NeedleText:
    """One text of a length.

    Parameters
    ----------
    number
        Of the text; the same needles stand in the texts of this number of every length.
    length
        Tokens of each prompt with its answer, or as close to it as the filler can be cut.
    needles
        By depth.
    depths
        The real ones: parts of the filler's tokens before the needle.
    """

    number: int
    length: int
    needles: tuple[AskedNeedle, ...]
    depths: tuple[float, ...]


def text_key(length: int, number: int) -> str:
    """Names a text in files."""
    return f"n{length:07d}-t{number:03d}"


def needle_text(
    items: Sequence[NeedleItem], number: int, length: int, options: RopeOptions, tokenizer: Any
) -> NeedleText:
    """Build one text.

    Its needles are those of :func:`arrangement`. A longer text begins with the shorter one's filler.

    Parameters
    ----------
    items
        Of all texts, as many as there are depths or more.
    number, length
        Which text.
    options
        Of the comparison.
    tokenizer
        Of the model.

    Raises
    ------
    InputError
        Fewer items than depths, a needle that answers another one's question, a length that is too short, or filler
        that cannot be used.
    """
    n_depths = len(options.depths)
    if len(items) < n_depths:
        raise InputError(
            f"{count(len(items), 'needle')} for {n_depths} depths; give fewer depths, or a file with more needles"
        )
    by_depth = [items[place] for place in arrangement(len(items), n_depths, number + 1, options.seed)[number]]
    _check(by_depth, number)
    placed = tuple(
        Placed(item.wording(number), depth, f"needle_{item.id}")
        for item, depth in zip(by_depth, options.depths, strict=True)
    )
    answers = tuple(answer for item in by_depth for answer in (*item.answers, item.foil))
    needles, depths = [], []
    for place, item in enumerate(by_depth):
        frame = Frame(placed, item.question, Form())
        # The prompts of a text differ in their last sentence of filler, so that all have the same length.
        bare = frame.prompt().encode(tokenizer)
        n_answer = len(encode_answer(bare, tokenizer, item.answer)[0])
        if length < (shortest := bare.n_tokens + n_answer):
            raise InputError(
                f"a length of {length} tokens is too short: prompt and answer of the needle {quoted(item.id)} have "
                f"{shortest} without any filler, the minimum"
            )
        found = in_filler(
            frame,
            filler_source(options.filler, item),
            length - n_answer,
            tokenizer,
            seed=(options.seed, number),
            answers=answers,
        )
        needles.append(
            AskedNeedle(
                item=item.id,
                prompt=replace(found.prompt, id=f"t{number}-{item.id}"),
                document=found.places[place],
                answer=item.answer,
                answers=item.answers,
            )
        )
        depths.append(found.facts["depths"][place])
    return NeedleText(number, length, tuple(needles), tuple(depths))


def arrangement(n_items: int, n_depths: int, n_texts: int, seed: int) -> list[list[int]]:
    """Which item stands at each depth of each text: in a random order, round and round.

    An item that comes again stands where it has stood least often. Texts that are added change none of those before.
    """
    from scipy.optimize import linear_sum_assignment

    rng = np.random.default_rng(seed)
    order = rng.permutation(n_items)
    times = np.zeros((n_items, n_depths))
    texts = []
    for number in range(n_texts):
        chosen = order[(number * n_depths + np.arange(n_depths)) % n_items]
        rows, depths = linear_sum_assignment(times[chosen] + rng.random((n_depths, n_depths)) / (2 * n_depths))
        times[chosen[rows], depths] += 1
        texts.append([int(item) for item in chosen[rows[np.argsort(depths)]]])
    return texts


def _check(items: Sequence[NeedleItem], number: int) -> None:
    """Refuse a text in which one needle answers another one's question, or does not hold its own answer as written."""
    for one in items:
        wording = f"wording {number % len(one.wordings)} of the needle {quoted(one.id)}"
        try:
            needle_place(one.wording(number), "answer", one.answers, wording)
        except InputError as error:
            raise InputError(
                f"{wording} does not hold the answer {quoted(one.answer)} word for word; write it"
            ) from error
        for other in items:
            if one is not other and holds_answer(other.wording(number), one.answers):
                raise InputError(
                    f"the needle {quoted(other.id)} holds an answer to the question of {quoted(one.id)}, and they "
                    "stand in one text; take another seed, or other needles"
                )
