"""Measure prompts on a model: from documents and a question to the attention mass of every span."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

from attnprobe.architecture import uses_interface
from attnprobe.batch import Item, Options, Rows, run_batch
from attnprobe.capture import CaptureMode
from attnprobe.decoding import STOPS_ROWS_APART, Progress, check_generation_options, pads_safely
from attnprobe.errors import InputError
from attnprobe.extras import EXTRAS
from attnprobe.prefix_cache import PrefixCache, check_prefix
from attnprobe.prompt import Prompt, encode_answer
from attnprobe.run import Run
from attnprobe.secondary_sinks import SecondarySink, apart
from attnprobe.spans import question_tokens
from attnprobe_kernels import BACKENDS

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel

Answer = str | Sequence[int]


def measure(
    lm: LanguageModel,
    prompt: Prompt,
    *,
    answer: Answer | None = None,
    max_new_tokens: int = 64,
    rows: Rows = "predicting",
    capture: CaptureMode = "deferred",
    prefill_chunk: int | Literal["auto"] | None = "auto",
    keep_rows: bool = True,
    strict: bool = False,
    beyond_window: bool = False,
    include_eos: bool = False,
    do_sample: bool = False,
    seed: int | None = 0,
    backend: str = "auto",
    extras: Sequence[str] = (),
    secondary_sinks: Sequence[int] | Sequence[SecondarySink] = (),
    prefix: PrefixCache | None = None,
    progress: Progress | None = None,
    **generation: Any,
) -> Run:
    """Measure how much attention each span of a prompt gets while the model writes its answer.

    Parameters
    ----------
    lm
        From :func:`attnprobe.load`, or ``LanguageModel(model, tokenizer)``.
    prompt
        What to ask.
    answer
        Force this answer (text, or token ids taken as they are) instead of generating one. One pass, no decoding.
        The prompt's own ``answer``, the known one, is not forced by itself: pass ``answer=prompt.answer``.
    max_new_tokens
        Longest answer to generate, tokens.
    rows
        Which query rows are averaged: those that *predict* the answer tokens (the last prompt row is the first), or
        the answer tokens' own.
    capture
        ``deferred``: while decoding copy queries only, reduce once at the end. ``live``: reduce at every step. Same
        numbers.
    prefill_chunk
        Feed the prompt this many tokens at a time. ``auto``: all at once, unless the model would hold a mask or
        weights of prompt length squared. None: all at once.
    keep_rows
        Keep the masses of each row (``run.row_mass``), not only their mean.
    strict
        Refuse prompts with tokens that straddle spans or control tokens inside texts, instead of warning.
    beyond_window
        Allow more tokens than the model was made for (rotary models only).
    include_eos
        Count the end-of-sequence token as part of a generated answer.
    do_sample, seed
        Sample instead of greedy decoding, from this seed; the caller's random state is left as it was. With
        ``seed=None`` that state is used, and the answer cannot be drawn again.
    backend
        Of :func:`attnprobe_kernels.span_lse`.
    extras
        What to measure beside the masses, any of ``top`` (each span's heaviest token in every row), ``columns`` (mass
        of every token), ``keys`` (every row's heaviest tokens), ``distance`` (mass by distance from the row),
        ``values`` (mass weighted by what the keys write: norms that act on the sum of all heads afterwards are not
        counted), ``question`` (the rows of the question's own tokens) and ``prompt`` (blocks of all the prompt's rows,
        which costs attention over the prompt once more); see :class:`attnprobe.Run` for what they give.
    secondary_sinks
        What :func:`attnprobe.find_secondary_sinks` found in a null run of the same documents, or positions of prompt
        tokens: these become spans of their own, kind ``sink``, taken out of the span they were in.
    prefix
        With a forced answer: do not feed again what this prompt and the last one measured with the same ``prefix``
        begin with, where that is exact; see :class:`attnprobe.PrefixCache`.
    progress
        Called as ``progress(stage, done, total)``.
    generation
        Further arguments of the model's ``generate``, e.g. ``temperature``.

    Raises
    ------
    InputError
        The prompt, the answer or an option cannot be used; the message says why and what to do.
    CaptureError
        The model, or one of its layers, cannot be captured.
    """
    options = Options(
        max_new_tokens=max_new_tokens,
        rows=rows,
        capture=capture,
        prefill_chunk=prefill_chunk,
        keep_rows=keep_rows,
        strict=strict,
        beyond_window=beyond_window,
        include_eos=include_eos,
        do_sample=do_sample,
        seed=seed,
        backend=backend,
        extras=extras,
        secondary_sinks=secondary_sinks,
        prefix=prefix,
        generation=generation,
    )
    options = _checked(options)
    if prefix is not None and answer is None:
        raise InputError("prefix needs a forced answer; pass answer=..., or leave prefix out to generate one")
    item = prepare(lm, 0, prompt, answer, options)
    return next(run_batch(lm, [item], options, progress))


def measure_many(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    *,
    answers: Sequence[Answer | None] | None = None,
    batch_size: int = 1,
    on_run: Callable[[int, Run], None] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> list[Run]:
    """Measure several prompts, in left-padded batches of similar length; the runs come back in the given order.

    Parameters
    ----------
    lm
        As in :func:`measure`.
    prompts
        What to ask.
    answers
        One forced answer a prompt; None (the default, or an entry) generates.
    batch_size
        Prompts run together. The masses are those of one by one. Sampled answers depend on the batch.
    on_run
        Called as ``on_run(index, run)`` as soon as a prompt is measured, longest first.
    progress, options
        As in :func:`measure`.

    Raises
    ------
    InputError, CaptureError
        As in :func:`measure`. All prompts are checked before the first one runs.
    """
    if isinstance(prompts, Prompt):
        raise InputError("measure_many takes a list of prompts; use measure for a single one")
    prompts = list(prompts)
    _check_count("batch_size", batch_size, "prompts that run together")
    forced = [None] * len(prompts) if answers is None else list(answers)
    if len(forced) != len(prompts):
        raise InputError(f"{len(forced)} answers for {len(prompts)} prompts; give one each, or None to generate")
    for name in ("secondary_sinks", "prefix"):
        if options.get(name) is not None:
            raise InputError(f"{name} speaks of a single prompt; call measure for each prompt")
    settings = _checked(options_of(options))
    items = [
        prepare(lm, number, prompt, answer, settings)
        for number, (prompt, answer) in enumerate(zip(prompts, forced, strict=True))
    ]
    runs: dict[int, Run] = {}
    if any(settings.generation.get(name) is not None for name in STOPS_ROWS_APART):
        batch_size = 1
    for batch in _batches(items, batch_size, padding=batch_size == 1 or pads_safely(lm.model)):
        for item, run in zip(batch, run_batch(lm, batch, settings, progress), strict=True):
            runs[item.position] = run
            if on_run is not None:
                on_run(item.position, run)
    return [runs[number] for number in range(len(prompts))]


def options_of(given: dict[str, Any]) -> Options:
    """The options of :func:`measure`, its defaults where not given; whatever it does not know goes to ``generate``."""
    defaults: dict[str, Any] = measure.__kwdefaults__ or {}
    names = [name for name in Options.__dataclass_fields__ if name != "generation"]
    known: dict[str, Any] = {name: given.get(name, defaults[name]) for name in names}
    return Options(**known, generation={name: value for name, value in given.items() if name not in names})


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_count(name: str, value: Any, why: str) -> None:
    if not _is_whole(value) or value < 1:
        raise InputError(f"{name} is {value!r}; it must be a whole number of at least 1: {why}")


def _checked(options: Options) -> Options:
    """The options with plain numbers, once they are known to make sense."""
    _check_count("max_new_tokens", options.max_new_tokens, "with no answer token there is nothing to average")
    for name, value, allowed in (
        ("rows", options.rows, ("predicting", "answer")),
        ("capture", options.capture, ("deferred", "live")),
        ("backend", options.backend, BACKENDS),
    ):
        if value not in allowed:
            raise InputError(f"{name}={value!r} is unknown; choose one of {', '.join(allowed)}")
    if options.prefill_chunk is not None and options.prefill_chunk != "auto":
        _check_count("prefill_chunk", options.prefill_chunk, "give tokens, None for all at once, or 'auto'")
    if options.seed is not None and not _is_whole(options.seed):
        raise InputError(f"seed is {options.seed!r}; give a whole number")
    check_prefix(options.prefix)
    extras = _known_extras(options.extras)
    if "top" in extras and not options.keep_rows:
        raise InputError('extras "top" are kept row by row; leave it out, or measure with keep_rows=True')
    if "prompt" in extras and options.prefix is not None:
        raise InputError(
            'extras "prompt" take all rows of the prompt, but those that the prefix holds would not run; leave out one '
            "of the two"
        )
    check_generation_options(dict(options.generation), options.do_sample)
    chunk = options.prefill_chunk
    return replace(
        options,
        max_new_tokens=int(options.max_new_tokens),
        prefill_chunk=chunk if chunk is None or chunk == "auto" else int(chunk),
        seed=None if options.seed is None else int(options.seed),
        extras=extras,
    )


def _known_extras(extras: Any) -> tuple[str, ...]:
    """The extras that were asked for, each once, in the order of ``EXTRAS``."""
    given = [extras] if isinstance(extras, str) else list(extras)
    for extra in given:
        if extra not in EXTRAS:
            raise InputError(f"extra {extra!r} is unknown; choose any of {', '.join(EXTRAS)}")
    return tuple(extra for extra in EXTRAS if extra in given)


def _check_extras(lm: LanguageModel, extras: Sequence[str]) -> None:
    if extras and not uses_interface(lm.model):
        raise InputError(
            f"extras {', '.join(extras)} need queries, keys and values, but {type(lm.model).__name__} does not use "
            "transformers' attention interface and shows its weights only; measure it without extras"
        )


def prepare(lm: LanguageModel, position: int, prompt: Prompt, answer: Answer | None, options: Options) -> Item:
    """One prompt's tokens and forced answer, once they are known to fit the model."""
    if not hasattr(lm, "tokenizer"):
        raise InputError(f"lm is {lm!r}; give attnprobe.load(name) or LanguageModel(model, tokenizer)")
    if not isinstance(prompt, Prompt):
        raise InputError(f"prompt {position} is a {type(prompt).__name__}; give a Prompt, e.g. Prompt.from_text(text)")
    plain = prompt.encode(lm.tokenizer, strict=options.strict)
    encoded = apart(plain, options.secondary_sinks)
    ids: tuple[int, ...] | None = None
    warnings: tuple[str, ...] = encoded.warnings
    if answer is not None:
        ids, more = encode_answer(encoded, lm.tokenizer, answer)
        warnings = (*warnings, *more)
    item = Item(position, prompt, encoded, question_tokens(plain.spans), ids, warnings)
    _check_extras(lm, options.extras)
    _check_vocabulary(lm, item)
    _check_length(lm, item, options)
    return item


def _check_vocabulary(lm: LanguageModel, item: Item) -> None:
    size = int(lm.model.get_input_embeddings().weight.shape[0])
    largest = max((*item.encoded.token_ids, *(item.answer_ids or ())))
    if largest >= size:
        raise InputError(
            f"token id {largest} is beyond the model's {size} embeddings; is this the model's own tokenizer?"
        )


def _check_length(lm: LanguageModel, item: Item, options: Options) -> None:
    limit = lm.max_positions
    n_answer = options.max_new_tokens if item.answer_ids is None else len(item.answer_ids)
    needed = item.encoded.n_tokens + n_answer
    if limit is None or needed <= limit or (options.beyond_window and not lm.positions_are_hard):
        return
    prompt = f"prompt {item.prompt.id!r}" if item.prompt.id else f"prompt {item.position}"
    what = f"{prompt} has {item.encoded.n_tokens:,} tokens"
    for span in item.encoded.spans:
        if span.kind == "document" and span.n_tokens > limit:
            what = f'{prompt}: document {span.document} ("{span.name}") alone has {span.n_tokens:,} tokens'
            break
    remedy = "shorten it" if lm.positions_are_hard else "shorten it, scale RoPE, or pass beyond_window=True"
    raise InputError(f"{what}, and with {n_answer} answer tokens the model's limit is {limit:,}; {remedy}")


def _batches(items: Sequence[Item], size: int, padding: bool) -> Iterator[list[Item]]:
    """Longest first, so that running out of memory happens at once; forced and generated answers do not mix.

    Without ``padding``, only prompts of one length share a batch.
    """
    for forced in (True, False):
        group = sorted((i for i in items if (i.answer_ids is not None) is forced), key=lambda i: -i.n_fed)
        lengths = groupby(group, key=(lambda i: None) if padding else (lambda i: (i.n_fed, i.encoded.n_tokens)))
        for same in (list(members) for _, members in lengths):
            for start in range(0, len(same), size):
                yield same[start : start + size]
