"""Runs whose tokens are words of a text that is there, so that what a page shows of them can be checked."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from attnprobe.run import Run
from attnprobe.spans import Span

Segment = tuple[str, str, int | None, str]
"""Kind, name and document of a span, and a text that is a part of it."""


def prompt_segments(documents: Sequence[str], question: str = "How long are readings kept?") -> list[Segment]:
    """Sink, template, marked documents and a question."""
    segments: list[Segment] = [("sink", "sink", None, "<|start|>"), ("template", "template", None, "user\n")]
    for i, text in enumerate(documents):
        segments += [
            ("marker", f"marker:d{i}", i, f'<doc id="d{i}">\n'),
            ("document", f"d{i}", i, text),
            ("marker", f"marker:d{i}", i, "\n</doc>\n"),
        ]
    return [*segments, ("question", "question", None, question), ("template", "template", None, "<|end|>")]


def text_run(
    segments: Sequence[Segment],
    answer: str = " They are kept for 47 days.",
    *,
    n_layers: int = 6,
    n_heads: int = 3,
    alike: bool = False,
    seed: int = 0,
) -> Run:
    """A run of words with random masses and every extra that a token map uses.

    ``alike`` gives all layers and heads the same masses, which takes no memory for each of them.
    """
    rng = np.random.default_rng(seed)
    chars: list[tuple[int, int]] = []
    held: dict[tuple[str, str, int | None], list[tuple[int, int]]] = {}
    place = 0
    for kind, name, document, text in [*segments, ("answer", "answer", None, answer)]:
        found = [(place + m.start(), place + m.end()) for m in re.finditer(r"[ ]?[^\s]+|\s", text)]
        held.setdefault((kind, name, document), []).append((len(chars), len(chars) + len(found)))
        chars += found
        place += len(text)
    spans = tuple(Span(*key, tuple(segments)) for key, segments in held.items())  # type: ignore[arg-type]
    n_tokens = len(chars)
    n_prompt = spans[-1].segments[0][0]
    n_rows = n_tokens - n_prompt

    shape = (1, 1) if alike else (n_layers, n_heads)
    weight = np.exp(rng.normal(0, 2, (*shape, n_rows, n_tokens)).astype(np.float32))
    weight[..., 0] = weight[..., 1:].sum(-1) / 2
    seen = np.arange(n_tokens) < n_prompt + np.arange(n_rows)[:, None]
    share = weight * seen
    share /= share.sum(-1, keepdims=True, dtype=np.float64)

    row_mass = np.zeros((*shape, n_rows, len(spans)), np.float32)
    top_mass, top_token = np.zeros_like(row_mass), np.full(row_mass.shape, -1, np.int32)
    visible = np.zeros((n_layers, n_rows, len(spans)), np.int32)
    for i, span in enumerate(spans):
        tokens = np.concatenate([np.arange(a, b) for a, b in span.segments]).astype(int)
        row_mass[..., i] = share[..., tokens].sum(-1, dtype=np.float64)
        visible[..., i] = seen[:, tokens].sum(-1)
        sees = seen[:, tokens].any(-1)
        top_mass[..., i] = np.minimum(share[..., tokens].max(-1), row_mass[..., i])
        top_token[..., i] = np.where(sees, tokens[share[..., tokens].argmax(-1)], -1)
    by_layer = share.mean(1, dtype=np.float64)
    k = min(64, n_tokens)
    key_token = np.argsort(-by_layer, axis=-1, kind="stable")[..., :k].astype(np.int32)
    key_mass = np.take_along_axis(by_layer, key_token, -1).astype(np.float32)
    key_token = np.where(key_mass > 0, key_token, -1).astype(np.int32)

    def wide(array: np.ndarray, n: int = 2) -> np.ndarray:
        return np.broadcast_to(array, ((n_layers, n_heads)[:n]) + array.shape[n:])

    ids = tuple(int(i) for i in rng.integers(0, 50_000, n_tokens))
    return Run(
        mass=wide(row_mass.mean(2, dtype=np.float64).astype(np.float32)),
        row_mass=wide(row_mass),
        row_total=wide(np.zeros((*shape, n_rows), np.float32)),
        visible=visible,
        layers=tuple(range(n_layers)),
        spans=spans,
        token_ids=ids,
        n_prompt=n_prompt,
        answer=answer,
        answer_ids=ids[n_prompt:],
        answer_logprob=np.zeros(n_rows, np.float32),
        rows="predicting",
        prompt_text="".join(text for *_, text in segments),
        prompt_id="a prompt",
        warnings=(),
        residual=0.0,
        manifest={"model": {"name": "no model"}},
        token_chars=np.array(chars, np.int32),
        top_mass=wide(top_mass),
        top_token=wide(top_token),
        column_mass=wide(share.mean(2, dtype=np.float64).astype(np.float32)),
        key_mass=wide(key_mass, 1),
        key_token=wide(key_token, 1),
    )


def long_run(n_documents: int = 200, n_layers: int = 32, n_heads: int = 32) -> Run:
    """About 500 tokens a document, an answer of 64, masses alike in all layers and heads."""
    words = ("records", "depot", "freight", "reading", "vehicle", "office", "schedule", "of", "the", "a", "is", "kept")
    rng = np.random.default_rng(1)
    documents = [
        " ".join(" ".join(rng.choice(words, 19)).capitalize() + " here." for _ in range(25)) for _ in range(n_documents)
    ]
    answer = " " + " ".join(f"word{i}" for i in range(64))
    return text_run(prompt_segments(documents), answer, n_layers=n_layers, n_heads=n_heads, alike=True)
