"""Seeded runs for tests, made from per-key logits so that masses, totals and visibility belong together."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from attnprobe.run import Run
from attnprobe.spans import Span


def make_spans(
    document_tokens: tuple[int, ...],
    n_answer: int,
    names: tuple[str, ...] | None = None,
    learned_sink: bool = False,
) -> tuple[tuple[Span, ...], int]:
    """Spans of sink, template, marked documents, question and answer; and the number of prompt tokens."""
    names = names or tuple(f"d{i}" for i in range(len(document_tokens)))
    spans, position, template = [Span("sink", "sink", None, ((0, 1),))], 1, []

    def take(n: int) -> tuple[tuple[int, int], ...]:
        nonlocal position
        position += n
        return ((position - n, position),) if n else ()

    template += take(2)
    body = []
    for i, (name, n) in enumerate(zip(names, document_tokens, strict=True)):
        opening = take(2)
        document = take(n)
        body.append(Span("marker", f"marker:{name}", i, opening + take(1)))
        body.append(Span("document", name, i, document))
    body.append(Span("question", "question", None, take(5)))
    template += take(2)
    n_prompt = position
    spans += [Span("template", "template", None, tuple(template)), *body]
    spans.append(Span("answer", "answer", None, take(n_answer)))
    if learned_sink:
        spans.append(Span("learned_sink", "learned_sink"))
    return tuple(spans), n_prompt


def with_secondary_sinks(spans: tuple[Span, ...], positions: tuple[int, ...]) -> tuple[Span, ...]:
    """The same partition with some tokens taken out of their spans, as spans of kind ``sink``."""
    out = list(spans)
    for p in sorted(positions):
        (i,) = [i for i, span in enumerate(out) if any(a <= p < b for a, b in span.segments)]
        pieces = [
            piece
            for a, b in out[i].segments
            for piece in (((a, p), (p + 1, b)) if a <= p < b else ((a, b),))
            if piece[0] < piece[1]
        ]
        document = out[i].document if out[i].kind == "document" else None
        out[i] = replace(out[i], segments=tuple(pieces))
        out.insert(i + 1, Span("sink", f"sink:{p}", document, ((p, p + 1),)))
    return tuple(out)


def _extras(
    rng: np.random.Generator,
    spans: tuple[Span, ...],
    weight: np.ndarray,
    total: np.ndarray,
    row_mass: np.ndarray,
    distance: np.ndarray,
    seen: np.ndarray,
) -> dict[str, Any]:
    """The optional arrays of a run, token by token from its weights ``[layer, head, row, token]``."""
    share = weight / total[..., None]
    top_mass, top_token = np.zeros(row_mass.shape, np.float32), np.full(row_mass.shape, -1, np.int32)
    sinks = np.zeros(share.shape[-1], dtype=bool)
    for i, span in enumerate(spans):
        if span.kind == "learned_sink":
            top_mass[..., i] = row_mass[..., i]
        tokens = np.array([token for a, b in span.segments for token in range(a, b)], dtype=int)
        if not tokens.size:
            continue
        sinks[tokens] = span.kind == "sink"
        own = share[..., tokens]
        visible = seen[:, None, :, :][..., tokens].any(-1)  # [layer, 1, row]
        top_mass[..., i] = np.where(visible, np.minimum(own.max(-1), row_mass[..., i]), 0)
        top_token[..., i] = np.where(visible, tokens[own.argmax(-1)], -1)
    edges = [0, 1]
    while edges[-1] <= distance.max():
        edges.append(2 * edges[-1])
    bins = [np.where((distance >= a) & (distance < b) & ~sinks, share, 0).sum(-1).mean(-1) for a, b in pairwise(edges)]
    other = {}
    for name, kind in (("value_mass", "learned_sink"), ("question_mass", "answer")):
        array = rng.exponential(1, (*share.shape[:2], len(spans)))
        array[..., [i for i, span in enumerate(spans) if span.kind == kind]] = 0
        other[name] = (array / array.sum(-1, keepdims=True)).astype(np.float32)
    by_row = share.mean(1).astype(np.float32)
    order = np.argsort(-by_row, axis=-1, kind="stable")[..., :64]
    key_mass = np.take_along_axis(by_row, order, axis=-1)
    n_prompt = next(span.segments[0][0] for span in spans if span.kind == "answer")
    size = -(-n_prompt // 64)
    prompt_edges = (*range(0, n_prompt, size), n_prompt)
    prompt = rng.exponential(1, (*share.shape[:2], len(prompt_edges) - 1, len(spans)))
    for i, span in enumerate(spans):
        if span.segments:
            prompt[:, :, [edge <= span.segments[0][0] for edge in prompt_edges[1:]], i] = 0
    return {
        "key_mass": key_mass,
        "key_token": np.where(key_mass > 0, order, -1).astype(np.int32),
        "prompt_mass": (prompt / prompt.sum(-1, keepdims=True)).astype(np.float32),
        "prompt_edges": prompt_edges,
        "top_mass": top_mass,
        "top_token": top_token,
        "column_mass": share.mean(2).astype(np.float32),
        "distance_mass": np.stack(bins, -1).astype(np.float32),
        "distance_edges": tuple(edges),
        **other,
    }


def make_run(
    seed: int = 0,
    *,
    document_tokens: tuple[int, ...] = (4, 6, 3, 5),
    names: tuple[str, ...] | None = None,
    layers: tuple[int, ...] = (0, 1),
    n_heads: int = 3,
    n_answer: int = 3,
    n_rows: int | None = None,
    rows: str = "predicting",
    keep_rows: bool = True,
    learned_sink: bool = False,
    uniform: bool = False,
    windows: tuple[int | None, ...] | None = None,
    secondary: tuple[int, ...] = (),
    extras: bool = False,
    **changes: Any,
) -> Run:
    """A valid run of a model that never was.

    ``windows`` gives each layer's sliding window in tokens (None: full attention); ``uniform`` makes all logits 0;
    ``secondary`` are positions of secondary sinks; ``extras`` fills all optional arrays (those of values and of the
    question with masses of other logits); ``changes`` replace fields of the finished run, and so may make it invalid.
    """
    rng = np.random.default_rng(seed)
    spans, n_prompt = make_spans(document_tokens, n_answer, names, learned_sink)
    spans = with_secondary_sinks(spans, secondary)
    n_tokens = n_prompt + n_answer
    n_rows = n_answer if n_rows is None else n_rows
    first = n_prompt - 1 if rows == "predicting" else n_prompt
    shape = (len(layers), n_heads, n_rows)

    logits = np.zeros((*shape, n_tokens)) if uniform else rng.normal(0, 2, (*shape, n_tokens))
    row, key = np.arange(first, first + n_rows)[:, None], np.arange(n_tokens)
    seen = np.stack([(key <= row) & (key > row - (w or n_tokens)) for w in windows or (None,) * len(layers)])
    weight = np.where(seen[:, None], np.exp(logits), 0.0)
    sink = np.exp(rng.normal(0, 1, (len(layers), n_heads, 1))) if learned_sink else np.zeros((1, 1, 1))
    total = weight.sum(-1) + sink

    span_weight, visible = np.zeros((*shape, len(spans))), np.zeros((len(layers), n_rows, len(spans)))
    for i, span in enumerate(spans):
        if span.kind == "learned_sink":
            span_weight[..., i] = sink
        for start, stop in span.segments:
            span_weight[..., i] += weight[..., start:stop].sum(-1)
            visible[..., i] += seen[..., start:stop].sum(-1)
    row_mass = (span_weight / total[..., None]).astype(np.float32)
    optional = _extras(rng, spans, weight, total, row_mass, row - key, seen) if extras else {}
    if not keep_rows:
        optional = {name: array for name, array in optional.items() if not name.startswith("top")}
    token_ids = tuple(int(i) for i in rng.integers(0, 50_000, n_tokens))
    prompt_text, answer = "<doc>...</doc> How long?", "47 days"
    if extras:
        prompt_ends = np.linspace(0, len(prompt_text), n_prompt).astype(np.int32)
        ends = [*prompt_ends, *(np.linspace(0, len(answer), n_answer + 1).astype(np.int32)[1:] + len(prompt_text))]
        optional["token_chars"] = np.stack([np.array([0, *ends[:-1]]), np.array(ends)], axis=1).astype(np.int32)
    run = Run(
        mass=row_mass.mean(axis=2, dtype=np.float64).astype(np.float32),
        row_mass=row_mass if keep_rows else None,
        row_total=np.log(total).astype(np.float32) if keep_rows else None,
        visible=visible.astype(np.int32),
        layers=layers,
        spans=spans,
        token_ids=token_ids,
        n_prompt=n_prompt,
        answer=answer,
        answer_ids=token_ids[n_prompt:],
        answer_logprob=-rng.exponential(1, n_answer).astype(np.float32),
        rows=rows,
        prompt_text=prompt_text,
        prompt_id="q1",
        warnings=("document 1 is dull",),
        residual=3e-7,
        manifest={"model": {"id": "tiny", "revision": None}, "seed": seed, "inv_freq": [1.0, 0.5], "ok": True},
        **optional,
    )
    return replace(run, **changes) if changes else run
