"""Plan a comparison of RoPE scalings without loading weights: its cells, what they feed, time, memory and disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprobe.architecture import decoder_of, implementation_of
from attnprobe.batch import prefill_chunk_of
from attnprobe.estimate import ModelShape, Rates, Workload, memory, model_shape, output_seconds, probe
from attnprobe.extras import n_distance_bins
from attnprobe.plan import about_model
from attnprobe.plan_study import CELL_SECONDS, Pass, pass_seconds
from attnprobe.prefix_cache import keeps_every_key, n_taken_over, turned_for
from attnprobe.prompt import encode_answer
from attnprobe.rope_cells import SLICES
from attnprobe.rope_needles import NeedleText, needle_text
from attnprobe.rope_options import UNSCALED, RopeOptions
from attnprobe.rope_study import scaled_blueprints
from attnprobe.tasks.items import NeedleItem
from attnprobe.terminal import work_bar
from attnprobe.token_losses import ROWS

if TYPE_CHECKING:
    from attnprobe.blueprint import Blueprint
    from attnprobe.models import LanguageModel


@dataclass(frozen=True)
class PlannedScaling:
    """What one scaling will take.

    Parameters
    ----------
    scaling
        Its name.
    window
        Positions that the scaled model is made for.
    tokens
        Tokens that are fed: what a prompt begins with as the one before it does is not, where that is exact.
    seconds
        Loading apart.
    """

    scaling: str
    window: int | None
    tokens: int
    seconds: float


@dataclass(frozen=True)
class PlannedScalings:
    """What a comparison of scalings will take.

    Parameters
    ----------
    model, n_parameters, dtype, device, attn_implementation, max_positions, is_converted, rates
        As in :class:`attnprobe.plan.Plan`, of the unscaled model.
    scalings
        Each by itself, ``none`` first.
    texts, questions
        Of each length, and of each text.
    lengths
        Tokens of a prompt with its answer.
    beyond
        Those of the lengths that lie beyond the unscaled model's window.
    cells
        One for each text under each scaling.
    prompt_tokens
        Of all prompts and answers, under all scalings.
    tokens
        Of them, those that are fed.
    longest
        Tokens of the longest prompt with its answer.
    memory
        Bytes at the peak of the pass that needs most, by what needs them.
    disk
        Bytes of the arrays; tables and pictures apart.
    seconds
        Of all scalings, loading apart. An estimate, as in :class:`attnprobe.plan.Plan`.
    """

    model: str
    n_parameters: int
    dtype: str
    device: str
    attn_implementation: str
    max_positions: int
    is_converted: bool
    scalings: tuple[PlannedScaling, ...]
    texts: int
    questions: int
    lengths: tuple[int, ...]
    beyond: tuple[int, ...]
    cells: int
    prompt_tokens: int
    tokens: int
    longest: int
    memory: dict[str, float]
    disk: int
    seconds: float
    rates: Rates

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {**asdict(self), "peak_bytes": sum(self.memory.values())}


@dataclass(frozen=True)
class _Question:
    """One prompt of a text with its forced answer."""

    ids: np.ndarray
    n_answer: int
    n_spans: int

    @property
    def fed(self) -> np.ndarray:
        """What a pass feeds unless it goes on from another: nothing reads the last answer token."""
        return self.ids[:-1]


def plan_scalings(
    model: str,
    scalings: Sequence[str],
    options: RopeOptions,
    items: Sequence[NeedleItem],
    *,
    loading: Mapping[str, Any] | None = None,
    quiet: bool = True,
) -> PlannedScalings:
    """Plan a comparison, done by one process; every prompt is built.

    Parameters
    ----------
    model, scalings, options, items, loading
        As in :func:`attnprobe.rope_study.measure_scalings`.
    quiet
        Show no progress.

    Raises
    ------
    InputError
        As the comparison itself, as far as that can be told without weights.
    """
    with work_bar("reading the model's config", None, quiet):
        drawn = scaled_blueprints(model, scalings, dict(loading or {}))
    plain = drawn[UNSCALED]
    texts: list[list[_Question]] = []
    disk = 0
    shape = model_shape(plain.lm)
    with work_bar("building", len(options.places), quiet) as advance:
        for number, length in options.places:
            text = needle_text(items, number, length, options, plain.lm.tokenizer)
            texts.append(_in_order(text, plain.lm.tokenizer))
            disk += _disk(shape, texts[-1], length)
            advance(len(texts), f"{len(texts)}/{len(options.places)}")
    rates = probe(shape, plain.lm.model.dtype, plain.device)
    planned, needs = [], []
    for name, one in drawn.items():
        passes = [tuple(_passes(one.lm, text)) for text in texts]
        planned.append(
            PlannedScaling(
                scaling=name,
                window=one.lm.max_positions,
                tokens=sum(each.n_fed for text in passes for each in text),
                seconds=sum(_seconds(shape, text, rates) for text in passes),
            )
        )
        needs += [_memory(one, shape, each) for each in {each for text in passes for each in text}]
    lengths = [len(question.ids) for text in texts for question in text]
    about = about_model(plain, shape)
    return PlannedScalings(
        **about,
        scalings=tuple(planned),
        texts=options.texts,
        questions=len(options.depths),
        lengths=options.lengths,
        beyond=tuple(length for length in options.lengths if length > about["max_positions"]),
        cells=len(drawn) * len(texts),
        prompt_tokens=len(drawn) * sum(lengths),
        tokens=sum(one.tokens for one in planned),
        longest=max(lengths),
        memory=max(needs, key=lambda need: sum(need.values())),
        disk=len(drawn) * disk,
        seconds=sum(one.seconds for one in planned),
        rates=rates,
    )


def _in_order(text: NeedleText, tokenizer: Any) -> list[_Question]:
    """The prompts of a text in the order in which they are fed: neighbours begin alike for longest."""
    questions = []
    for needle in text.needles:
        encoded = needle.prompt.encode(tokenizer)
        answer = encode_answer(encoded, tokenizer, needle.answer)[0]
        questions.append(_Question(np.array([*encoded.token_ids, *answer]), len(answer), len(encoded.spans) + 1))
    return sorted(questions, key=lambda question: question.ids.tolist())


def _passes(lm: LanguageModel, text: Sequence[_Question]) -> Iterator[Pass]:
    """The passes of a text; a later one feeds what it does not share with the one before, where that is exact."""
    config, reuses = decoder_of(lm.model).config, keeps_every_key(lm.model)
    before = None
    for one in text:
        n_prompt, n_reused = len(one.ids) - one.n_answer, 0
        if reuses and before is not None:
            n_reused = n_taken_over(config, before, turned_for(config, len(before)), one.fed, n_prompt - 1)
        yield Pass(n_prompt, one.n_answer, one.n_spans, n_reused)
        before = one.fed


def _seconds(shape: ModelShape, text: Sequence[Pass], rates: Rates) -> float:
    """Of the passes of a text; the first one also gives the losses of all its tokens."""
    losses = output_seconds(shape, text[0].n_prompt, rates)
    return losses + sum(pass_seconds(shape, one, rates) + CELL_SECONDS for one in text)


def _memory(drawn: Blueprint, shape: ModelShape, one: Pass) -> dict[str, float]:
    """Bytes of a pass: all keys are kept for the next one, and losses take the logits of some rows at a time.

    ``allocator``: on a CPU the memory of earlier caches is not all given back, nor all of use to later ones. SmolLM2 on
    16,384 tokens (a cache of 0.75 GB) held 0.4 GB of it after one text, and at the peak of five texts 0.8 GB.
    """
    model = drawn.lm.model
    goes_on, keeps = one.n_reused > 0, keeps_every_key(model)
    chunk = prefill_chunk_of(drawn.lm, one.n_fed, goes_on, "auto")
    n_rows = min(chunk or one.n_fed, one.n_fed)
    work = Workload(
        one.n_prompt, one.n_answer, one.n_spans, is_forced=True, prefill_chunk=n_rows if keeps else chunk
    )  # at once without a cache, unless it is kept
    need = memory(drawn.lm, shape, work)
    if goes_on and not implementation_of(model).startswith("flash"):
        need["mask"] = n_rows * one.n_tokens * (1 + shape.bytes)  # of truth values, and as numbers
    else:
        need["logits"] += min(n_rows, ROWS) * shape.vocabulary * shape.bytes
    if keeps and drawn.device == "cpu":
        need["allocator"] = need["cache"]
    return need


def _disk(shape: ModelShape, text: Sequence[_Question], length: int) -> int:
    """Bytes of the arrays of a cell (``rope_cells.measure_text``)."""
    heads = sum(layer.n_heads for layer in shape.layers)
    # Of every question: mass, advantage and retrieval by head; logprob, sink, entropy; parts of the text.
    numbers = len(text) * (3 * heads + 3 + SLICES)
    numbers += heads * n_distance_bins(length) + len(text[0].ids) - text[0].n_answer - 1  # distance, loss
    return 4 * numbers
