"""One batch of prompts on a model: run it under capture and turn each sample into a run."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from attnprobe.architecture import decoder_of, implementation_of, uses_interface
from attnprobe.capture import Capture, CaptureMode
from attnprobe.decoding import (
    AUTO_CHUNK,
    Batch,
    Progress,
    forced_logprobs,
    generate,
    has_recurrent_layers,
    left_pad,
    may_chunk,
    stop_ids,
)
from attnprobe.errors import CaptureError, InputError
from attnprobe.extra_checks import mass_tolerance
from attnprobe.fallback import EagerCapture
from attnprobe.layer_rows import LayerRows
from attnprobe.manifest import describe
from attnprobe.prefix_cache import PrefixCache, lent
from attnprobe.prompt import EncodedPrompt, Prompt
from attnprobe.rope import changes_with_length, differ_by_length
from attnprobe.row_block import SampleSpans
from attnprobe.run import Run
from attnprobe.run_extras import extra_fields
from attnprobe.spans import Span
from attnprobe.token_chars import token_chars

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel
    from attnprobe.secondary_sinks import SecondarySink

Rows = Literal["predicting", "answer"]


@dataclass(frozen=True)
class Options:
    """The options of :func:`attnprobe.measure`, and what else goes to the model's ``generate``."""

    max_new_tokens: int
    rows: Rows
    capture: CaptureMode
    prefill_chunk: int | Literal["auto"] | None
    keep_rows: bool
    strict: bool
    beyond_window: bool
    include_eos: bool
    do_sample: bool
    seed: int | None
    backend: str
    extras: Sequence[str]
    secondary_sinks: Sequence[int] | Sequence[SecondarySink]
    prefix: PrefixCache | None
    generation: dict[str, Any]


@dataclass(frozen=True)
class Item:
    """One prompt on its way: where it stands in the caller's order, its tokens, and its forced answer if any."""

    position: int
    prompt: Prompt
    encoded: EncodedPrompt
    question: tuple[int, int] | None  # its tokens, whichever of them are set apart as sinks
    answer_ids: tuple[int, ...] | None
    warnings: tuple[str, ...]

    @property
    def n_fed(self) -> int:
        """Tokens of prompt and forced answer."""
        return self.encoded.n_tokens + len(self.answer_ids or ())


def _samples(items: Sequence[Item], batch: Batch) -> list[SampleSpans]:
    """Spans of a batch, filled up with empty ones to one number; :func:`_run_of` takes those out again."""
    n_spans = max(len(item.encoded.spans) for item in items)
    padded = [tuple(span.segments for span in item.encoded.spans) for item in items]
    return [
        SampleSpans(
            pad,
            item.encoded.n_tokens,
            spans + ((),) * (n_spans - len(spans)),
            seed=zlib.crc32(np.array(item.encoded.token_ids).tobytes()),
            # Forced answers end together, so that a shorter one starts later.
            first_row=0 if item.answer_ids is None else batch.ids.shape[1] - len(item.answer_ids),
            sinks=tuple(i for i, span in enumerate(item.encoded.spans) if span.kind == "sink"),
            question=item.question,
        )
        for item, pad, spans in zip(items, batch.pads, padded, strict=True)
    ]


def _capture(
    lm: LanguageModel,
    samples: list[SampleSpans],
    first_row: int,
    options: Options,
    *,
    n_before: int = 0,
    stops: frozenset[int] = frozenset(),
) -> Any:
    if uses_interface(lm.model):
        return Capture(
            lm.model,
            samples,
            first_row,
            options.capture,
            options.backend,
            n_before=n_before,
            extras=options.extras,
            stops=stops,
        )
    return EagerCapture(lm.model, samples, first_row)


def prefill_chunk_of(
    lm: LanguageModel, n_tokens: int, is_padded: bool, chunk: int | Literal["auto"] | None
) -> int | None:
    """How many tokens to feed at a time (None = all at once).

    ``auto`` splits a prompt of more than ``AUTO_CHUNK`` tokens where the model would otherwise hold a mask or weights
    of prompt length squared: eager attention, padded batches, and layers with a sliding window or chunks, but for
    flash attention, which takes none. Models with recurrent layers, or with rotary frequencies that depend on the
    prompt's length, are never split by themselves.

    Raises
    ------
    InputError
        A chunk was asked for, but the model does not go on from a cache of several tokens as it should.
    """
    if chunk != "auto":
        if chunk is None or chunk >= n_tokens:
            return None
        if may_chunk(lm.model):
            return chunk
        if changes_with_length(decoder_of(lm.model).config):
            raise InputError(
                f"prefill_chunk={chunk}: the rotary frequencies of {type(lm.model).__name__} depend on the length of "
                "what is fed (RoPE type dynamic or longrope), so chunks would give other outputs; use "
                "prefill_chunk=None"
            )
        raise InputError(
            f"prefill_chunk={chunk}: {type(lm.model).__name__} gives other outputs when its prompt is fed in "
            "chunks (its recurrent state starts anew); use prefill_chunk=None"
        )
    implementation, config = implementation_of(lm.model), decoder_of(lm.model).config
    if n_tokens <= AUTO_CHUNK or implementation.startswith("flash"):
        return None
    if has_recurrent_layers(lm.model) or changes_with_length(config):
        return None
    local = any(getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    eager = implementation == "eager" or not uses_interface(lm.model)
    return AUTO_CHUNK if is_padded or local or eager else None


def run_batch(lm: LanguageModel, items: list[Item], options: Options, progress: Progress | None) -> Iterator[Run]:
    """Run one batch, then give each item's run in the batch's order."""
    forced = items[0].answer_ids is not None
    passes = _forced_batch if forced else _generated_batch
    with torch.no_grad():
        batch, capture, layers, answers, logprobs, feeding = passes(lm, items, options, progress)
    about = describe(lm)  # with the rotary frequencies that this pass used
    n_rows = max(len(ids) for ids in answers)
    for number, item in enumerate(items):
        ids = answers[number]
        # Forced answers end together, generated ones start together.
        rows = slice(n_rows - len(ids), n_rows) if forced else slice(0, len(ids))
        yield _run_of(lm, item, number, ids, logprobs[number], rows, layers, capture, batch, feeding, options, about)


def _forced_batch(lm: LanguageModel, items: list[Item], options: Options, progress: Progress | None) -> Any:
    answers = [tuple(item.answer_ids or ()) for item in items]
    own_rows = options.rows == "answer"
    fed = [
        [*item.encoded.token_ids, *(ids if own_rows else ids[:-1])] for item, ids in zip(items, answers, strict=True)
    ]
    batch = left_pad(fed, lm.pad_id, lm.input_device)
    n_tokens = batch.ids.shape[1]
    n_rows = max(len(ids) for ids in answers)
    samples = _samples(items, batch)
    # Rows before a shorter answer, and the last own row, predict nothing of interest: any id, cut off again below.
    targets = torch.tensor([[lm.pad_id] * (n_rows - len(ids)) + list(ids) + [lm.pad_id] * own_rows for ids in answers])
    first_wanted = n_tokens - targets.shape[1]
    if "question" in options.extras and samples[0].question is not None:
        first_wanted = min(first_wanted, samples[0].pad + samples[0].question[0])
    with lent(options.prefix, lm.model, fed[0], first_wanted) as (cache, n_before):
        # Rows behind cached keys need a mask, as padded ones do.
        masked = batch.is_padded or n_before > 0
        chunk = prefill_chunk_of(lm, n_tokens - n_before, masked, options.prefill_chunk)
        # Closing twice: an interrupt may arrive on the way into the first.
        with closing(_capture(lm, samples, n_tokens - n_rows, options, n_before=n_before)) as capture, capture:
            scored = forced_logprobs(lm.model, batch, targets, chunk, progress, cache, n_before)
            layers = _finish(capture, answers)
    logprobs = [row[n_rows - len(ids) : n_rows].numpy() for row, ids in zip(scored, answers, strict=True)]
    return batch, capture, layers, answers, logprobs, {"prefill_chunk": chunk, "reused_tokens": n_before}


def _generated_batch(lm: LanguageModel, items: list[Item], options: Options, progress: Progress | None) -> Any:
    batch = left_pad([item.encoded.token_ids for item in items], lm.pad_id, lm.input_device)
    n_tokens = batch.ids.shape[1]
    samples = _samples(items, batch)
    own_rows = options.rows == "answer"
    chunk = prefill_chunk_of(lm, n_tokens, batch.is_padded, options.prefill_chunk)
    stops = stop_ids(lm.model, options.generation)
    with closing(_capture(lm, samples, n_tokens - 1 + own_rows, options, stops=stops)) as capture, capture:
        generated = generate(
            lm.model,
            batch,
            max_new_tokens=options.max_new_tokens,
            last_row=own_rows,
            pad_id=lm.pad_id,
            prefill_chunk=chunk,
            do_sample=options.do_sample,
            seed=options.seed,
            progress=progress,
            options=options.generation,
        )
        answers = [_cut(row.tolist(), stops, options.include_eos) for row in generated.tokens]
        layers = _finish(capture, answers)
    logprobs = [row[: len(ids)].numpy() for row, ids in zip(generated.logprobs, answers, strict=True)]
    return batch, capture, layers, answers, logprobs, {"prefill_chunk": chunk, "reused_tokens": 0}


def _finish(capture: Capture | EagerCapture, answers: Sequence[Sequence[int]]) -> list[LayerRows]:
    counts = [len(ids) for ids in answers]
    if isinstance(capture, Capture):
        return capture.finish(max(counts), counts)
    return capture.finish(max(counts))


def _cut(ids: list[int], stops: frozenset[int], include_eos: bool) -> tuple[int, ...]:
    """The answer up to its end-of-sequence token; an answer that is nothing else keeps it, or there were no rows."""
    for number, token in enumerate(ids):
        if token in stops:
            return tuple(ids[: number + 1] if include_eos or number == 0 else ids[:number])
    return tuple(ids)


def _run_of(
    lm: LanguageModel,
    item: Item,
    sample: int,
    answer_ids: tuple[int, ...],
    logprob: np.ndarray,
    rows: slice,
    layers: list[LayerRows],
    capture: Capture | EagerCapture,
    batch: Batch,
    feeding: dict[str, int | None],
    options: Options,
    about: dict[str, Any],
) -> Run:
    """Turn one sample's span log-sum-exps into a run, after checking them."""
    encoded = item.encoded
    eager = isinstance(capture, EagerCapture)
    residual = max(float(layer.residual[sample]) for layer in layers)
    magnitude = max(float(layer.magnitude[sample]) for layer in layers)
    tolerance = _weight_tolerance(lm) if eager else mass_tolerance(magnitude)
    if not residual <= tolerance:
        raise CaptureError(
            f"{type(lm.model).__name__}: the spans' total differs from an independent one by {residual:.2g} "
            f"(allowed {tolerance:.0e}); run attnprobe.check(lm) to find the layer, and please report it"
        )
    n_filled = layers[0].lse.shape[-1] - layers[0].has_sink - 1  # prompt spans of the batch's widest sample
    has_sink = any(layer.has_sink for layer in layers)
    columns = [*range(len(encoded.spans)), n_filled]
    heads = {layer.lse.shape[1] for layer in layers}
    if len(heads) > 1:
        raise CaptureError(f"{type(lm.model).__name__} has layers of {sorted(heads)} heads; one number is needed")
    order = sorted(layers, key=lambda layer: layer.layer)
    shape = (len(order), heads.pop(), len(answer_ids), len(columns) + has_sink)
    row_mass = np.zeros(shape, dtype=np.float32)
    row_total = np.zeros(shape[:3], dtype=np.float32)
    visible = np.zeros((len(order), shape[2], shape[3]), dtype=np.int32)
    for number, layer in enumerate(order):
        own = columns + [n_filled + 1] * layer.has_sink
        width = len(own)
        lse = layer.lse[sample, :, rows][..., own].double()
        total = torch.logsumexp(lse, dim=-1)
        row_mass[number, ..., :width] = torch.exp(lse - total[..., None]).float().numpy()
        row_total[number] = total.float().numpy()
        visible[number, :, :width] = layer.visible[sample, rows][:, own]
        # A mass that underflows float32 is kept as its smallest number: zero is what a row cannot see.
        faint = (row_mass[number] == 0) & (visible[number] > 0)[None]
        row_mass[number][faint] = np.finfo(np.float32).smallest_subnormal
    n_prompt = encoded.n_tokens
    spans = [*encoded.spans, Span("answer", "answer", None, ((n_prompt, n_prompt + len(answer_ids)),))]
    if has_sink:
        spans.append(Span("learned_sink", "learned_sink"))
    warnings = [*item.warnings, *dict.fromkeys(capture.warnings)]
    if eager:
        warnings.append(
            f"{type(lm.model).__name__} does not use transformers' attention interface: measured from the weights of "
            "its eager attention, which takes memory of prompt chunk times prompt"
        )
    if differ_by_length(decoder_of(lm.model).config, n_prompt, n_prompt + len(answer_ids)):
        warnings.append(
            "rotary frequencies change with the length here (RoPE type dynamic or longrope): a generated answer's rows "
            "turn by others than the prompt's keys, a forced one's by the same, so their masses differ"
        )
    if item.answer_ids is None and len(answer_ids) == 1 and answer_ids[0] in stop_ids(lm.model, options.generation):
        warnings.append("the model ended its answer at once: the one row measured predicts the end of sequence")
    decode = partial(lm.tokenizer.decode, skip_special_tokens=not options.include_eos)
    first_row = n_prompt - (options.rows == "predicting")
    fields = extra_fields(
        order, sample, rows, columns, row_mass, batch.pads[sample], n_prompt + len(answer_ids), first_row
    )
    if "question" in options.extras and "question_mass" not in fields:
        warnings.append("the prompt has no question of its own, so no question rows were measured")
    run = Run(
        mass=row_mass.mean(axis=2, dtype=np.float64).astype(np.float32),
        row_mass=row_mass,
        row_total=row_total,
        visible=visible,
        layers=tuple(layer.layer for layer in order),
        spans=tuple(spans),
        token_ids=(*encoded.token_ids, *answer_ids),
        n_prompt=n_prompt,
        answer=decode(list(answer_ids)),
        answer_ids=answer_ids,
        answer_logprob=np.asarray(logprob, dtype=np.float32),
        rows=options.rows,
        prompt_text=encoded.text,
        prompt_id=item.prompt.id,
        warnings=tuple(warnings),
        residual=residual,
        manifest=about
        | {
            "capture": {
                "mode": "eager weights" if eager else options.capture,
                "backend": options.backend,
                "extras": list(options.extras),
                "answer": "generated" if item.answer_ids is None else "forced",
                **feeding,
                "batch": len(batch.pads),
                "padding": batch.pads[sample],
                "seconds": round(capture.seconds, 6),
            },
            "generation": {
                "max_new_tokens": options.max_new_tokens,
                "do_sample": options.do_sample,
                "seed": options.seed,
                "include_eos": options.include_eos,
                "model_defaults": {
                    name: repr(value) for name, value in lm.model.generation_config.to_diff_dict().items()
                },
                **{name: repr(value) for name, value in options.generation.items()},
            }
            if item.answer_ids is None
            else None,
        },
        token_chars=token_chars(encoded, answer_ids, decode),
        **fields,
    )
    return run if options.keep_rows else replace(run, row_mass=None, row_total=None)


def _weight_tolerance(lm: LanguageModel) -> float:
    """How far the sum of a row's eager weights may be from 1 in the model's precision."""
    return {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}.get(lm.model.dtype, 1e-5)
