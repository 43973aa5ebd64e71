"""What a page needs to shade a prompt's text by attention: the text, who owns which token, and masses in two bytes.

Masses are kept for every token where that fits, and for sentences or larger stretches where it does not, so that the
page stays small at any length; ``Limits`` says how small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.errors import InputError
from attnprobe.report.page import json_text
from attnprobe.report.quantised import BASE64, RELATIVE_ERROR, STEP, mass_text, whole_text
from attnprobe.report.token_map_density import span_densities, visible_tokens
from attnprobe.report.token_map_rows import head_rows, heaviest_tokens, span_rows
from attnprobe.report.token_text import (
    Piece,
    blocks_of,
    cell_ranges,
    coarsened,
    pieces_of,
    sentence_edges,
    shown_text,
    spans_of,
    utf16_offsets,
    writable,
)
from attnprobe.run import Run
from attnprobe.spans import KIND_NAMES, budget_kind

SCRIPTS = (
    "token_map_data.js",
    "token_map_text.js",
    "token_map_words.js",
    "token_map_overview.js",
    "token_map_heaviest.js",
    "token_map.js",
)
"""Assets that define ``AttnprobeTokenMap.mount(element, payload, options)``, in their order."""
STYLES = ("base.css", "token_map.css")
"""Assets that its page needs, in their order."""
REMEDY = 'extras=("columns", "keys", "top")'
"""What to measure with, to have everything that a token map can show."""

_N_CHOSEN = 6


@dataclass(frozen=True)
class Limits:
    """How large parts of a payload may be, in bytes of base64; a page of 100,000 tokens stays below 15 MB.

    Parameters
    ----------
    tokens
        Maps of single tokens of all layers, or of all heads; beyond, they are kept for sentences.
    sentences
        Maps of sentences of all layers, or of all heads; beyond, neighbouring sentences are put together.
    chosen
        Maps of single tokens of the bands and of the chosen heads.
    keys
        The heaviest tokens of every answer token; as many of them as fit.
    rows
        Span masses of every answer token for all layers, and for the chosen heads.
    heads
        Span masses of every answer token for all heads, where a page of ``page`` bytes has room for them.
    densities
        Densities of spans, for all heads or for all layers.
    elements
        Sentences in the page; a number, not bytes.
    page
        Everything.
    """

    tokens: int = 2_000_000
    sentences: int = 6_000_000
    chosen: int = 3_500_000
    keys: int = 1_500_000
    rows: int = 700_000
    heads: int = 4_000_000
    densities: int = 700_000
    elements: int = 6_000
    page: int = 14_000_000


def token_map(run: Run, heads: Sequence[tuple[int, int]] | None = None, limits: Limits | None = None) -> dict[str, Any]:
    """The payload of a run: JSON values, arrays as base64 of little-endian numbers in C order.

    Masses are uint16 codes, see :func:`attnprobe.report.quantised.quantised`; other numbers are int32.

    Parameters
    ----------
    run
        Measured with ``extras=("columns", "keys", "top")``. Without ``keys`` single answer tokens have span masses
        only, without ``top`` (or rows) single heads of them have none either.
        Without rows there are no densities of spans.
    heads
        ``(layer, head)`` pairs that are kept token by token at any length, layers by the model's own numbers. None:
        those that give documents most mass, sinks apart.
    limits
        How large the parts may be.

    Raises
    ------
    InputError
        The run has no masses of single tokens or no characters of its tokens; ``heads`` names one that the run does
        not have, or more than fit.
    """
    limits = limits or Limits()
    if run.column_mass is None:
        raise InputError(f"the run has no mass of single tokens; measure it with {REMEDY}")
    if run.token_chars is None:
        raise InputError(
            "the run does not say which characters its tokens stand for, as older versions measured it; measure it "
            f"again, with {REMEDY}"
        )
    n_layers, n_heads, _ = run.column_mass.shape
    spans = spans_of(run)
    text, pieces = shown_text(run), pieces_of(spans)
    ranges = cell_ranges(run.token_chars, pieces)
    units = utf16_offsets(text, ranges)
    sentences = coarsened(sentence_edges(text, ranges, pieces), limits.elements, pieces)
    chosen = _chosen(run, heads, limits)
    bands = _bands(run.layers)
    means = [run.column_mass[first:stop].mean(axis=(0, 1), dtype=np.float64) for _, first, stop in bands]
    by_layer = run.column_mass.mean(axis=1, dtype=np.float64)
    visible = visible_tokens(run)
    payload: dict[str, Any] = {
        "rows": run.rows,
        "n_prompt": run.n_prompt,
        "text": text,
        "starts": whole_text(units[:, 0]),  # [token], in UTF-16 units
        "stops": whole_text(units[:, 1]),
        "ids_without_text": {str(i): run.token_ids[i] for i in np.flatnonzero(ranges[:, 0] == ranges[:, 1]).tolist()},
        "kinds": list(KIND_NAMES.items()),
        "spans": [
            {
                "kind": span.kind,
                "part": budget_kind(span),
                "name": writable(span.name),
                "document": span.document,
            }
            for span in spans
        ],
        "n_measured_spans": len(run.spans),
        "pieces": pieces,
        "blocks": blocks_of(spans, pieces),
        "sentences": whole_text(sentences),
        "layers": list(run.layers),
        "n_heads": n_heads,
        "n_rows": run.visible.shape[1],
        "visible": None if visible is None else whole_text(visible),  # [layer, row]
        "seen": whole_text(np.any(run.visible, axis=1)),  # [layer, span], 1 where a row of the layer sees the span
        "density": _densities(run, limits),
        "step": STEP,
        "relative_error": RELATIVE_ERROR,
        "bands": [{"name": name, "first": first, "stop": stop} for name, first, stop in bands],
        "band_mass": mass_text(np.stack(means)),  # [band, token]
        "chosen": chosen,
        "chosen_mass": mass_text(np.array([run.column_mass[layer, head] for layer, head in chosen])),  # [chosen, token]
        "by_layer": _stretches(by_layer, sentences, pieces, limits),
        "by_head": _stretches(run.column_mass.reshape(n_layers * n_heads, -1), sentences, pieces, limits),
        "learned_sink": _learned_sink(run),
        "keys": heaviest_tokens(run, limits.keys),
        "row_spans": span_rows(run, bands, limits.rows),
        "has_rows": run.row_mass is not None,
        "has_tops": run.top_mass is not None and run.row_mass is not None,
        "warnings": [writable(warning) for warning in run.warnings],
    }
    room = min(limits.heads, limits.page - len(json_text(payload))) if limits.heads and run.top_mass is not None else 0
    return {**payload, "row_heads": head_rows(run, chosen, limits.rows, room)}


def _chosen(run: Run, heads: Sequence[tuple[int, int]] | None, limits: Limits) -> list[tuple[int, int]]:
    """Heads that are kept token by token, as indices of the run's arrays; those asked for, or the most interesting."""
    n_layers, n_heads, n_spans = run.mass.shape
    room = int(limits.chosen / (2 * BASE64 * len(run.token_ids))) - len(_bands(run.layers))
    if heads is None:
        wanted = [span for span in range(n_spans) if run.spans[span].kind == "document"] or [
            span for span in range(n_spans) if run.spans[span].kind not in ("sink", "learned_sink")
        ]
        mass = run.mass[..., wanted].sum(axis=-1)
        order = np.argsort(-mass, axis=None, kind="stable")[: max(0, min(_N_CHOSEN, room))]
        return [divmod(int(place), n_heads) for place in order]
    pairs = list(dict.fromkeys((int(layer), int(head)) for layer, head in heads))
    for layer, head in pairs:
        if layer not in run.layers or not 0 <= head < n_heads:
            raise InputError(
                f"head {layer}:{head} is not in the run, which has layers {run.layers[0]} to {run.layers[-1]} "
                f"({n_layers} of them) and heads 0 to {n_heads - 1}"
            )
    if len(pairs) > room:
        raise InputError(
            f"{len(pairs)} heads are asked for, but at {len(run.token_ids):,} tokens a page holds {max(room, 0)} of "
            "them; name fewer"
        )
    return [(run.layers.index(layer), head) for layer, head in pairs]


def _bands(layers: Sequence[int]) -> list[tuple[str, int, int]]:
    """All layers, and their early, middle and late thirds where there are three: names and ranges of indices."""
    bands = [("all layers", 0, len(layers))]
    if len(layers) >= 3:
        for name, part in zip(("early", "middle", "late"), np.array_split(np.arange(len(layers)), 3), strict=True):
            first, last = layers[part[0]], layers[part[-1]]
            numbers = f"layer {first}" if first == last else f"layers {first}-{last}"
            bands.append((f"{name}: {numbers}", int(part[0]), int(part[-1]) + 1))
    return bands


def _stretches(
    mass: np.ndarray, sentences: np.ndarray, pieces: Sequence[Piece], limits: Limits
) -> dict[str, Any] | None:
    """Maps ``[map, token]`` as finely as fits; None where not even one number a piece does."""
    n_maps, n_tokens = mass.shape
    size = 2 * BASE64 * n_maps
    if size * n_tokens <= limits.tokens:
        return {"kind": "token", "edges": None, "mass": mass_text(mass)}
    room = int(limits.sentences / size)
    if len(pieces) > room:
        return None
    edges = coarsened(sentences, room, pieces)
    sums = np.stack([np.add.reduceat(one, edges[:-1], dtype=np.float64) for one in mass])
    kind = "sentence" if len(edges) == len(sentences) else "block"
    return {"kind": kind, "edges": whole_text(edges), "mass": mass_text(sums)}


def _densities(run: Run, limits: Limits) -> dict[str, Any] | None:
    """Density of spans, of heads if they fit or of layers: ``[layer, head, span]`` or ``[layer, span]``.

    Codes of densities / tokens, which are at most 1; 0 where ``seen`` is 0. Markers, which are many, have none.
    """
    density = span_densities(run)
    if density is None:
        return None
    spans = [i for i, span in enumerate(run.spans) if span.kind != "marker"]
    scaled = np.nan_to_num(density[..., spans] / len(run.token_ids), nan=0.0)
    for of, values in (("head", scaled), ("layer", scaled.mean(axis=1))):
        if values.size * 2 * BASE64 <= limits.densities:
            return {"of": of, "spans": spans, "values": mass_text(values)}
    return None


def _learned_sink(run: Run) -> str | None:
    """Mass of the learned sink ``[layer, head]``, which no token has."""
    places = [i for i, span in enumerate(run.spans) if span.kind == "learned_sink"]
    return mass_text(run.mass[..., places[0]]) if places else None
