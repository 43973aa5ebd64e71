"""What a token map knows of single answer tokens, as much of it as fits limits in bytes of base64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnprobe.report.quantised import BASE64, mass_text, whole_text
from attnprobe.run import Run


def heaviest_tokens(run: Run, limit: int) -> dict[str, Any] | None:
    """The heaviest tokens of every answer token and layer: ``[layer, row, k]``, fewer of them where rows are many."""
    if run.key_mass is None or run.key_token is None:
        return None
    n_layers, n_rows, k = run.key_mass.shape
    kept = min(k, int(limit / (6 * BASE64 * n_layers * n_rows)))
    if kept == 0:
        return None
    return {
        "k": kept,
        "mass": mass_text(run.key_mass[..., :kept]),
        "token": whole_text(run.key_token[..., :kept]),
    }


def span_rows(run: Run, bands: Sequence[tuple[str, int, int]], limit: int) -> dict[str, Any] | None:
    """Mass of every span in every row, mean over heads: of layers if they fit, or of bands, ``[layer, row, span]``."""
    if run.row_mass is None:
        return None
    n_layers, _, n_rows, n_spans = run.row_mass.shape
    by_layer = run.row_mass.mean(axis=1, dtype=np.float64)
    if n_layers * n_rows * n_spans * 2 * BASE64 <= limit:
        return {"of": "layer", "mass": mass_text(by_layer)}
    if len(bands) * n_rows * n_spans * 2 * BASE64 <= limit:
        return {"of": "band", "mass": mass_text(np.stack([by_layer[a:b].mean(axis=0) for _, a, b in bands]))}
    return None


def head_rows(run: Run, chosen: Sequence[tuple[int, int]], limit: int, limit_of_all: int) -> dict[str, Any] | None:
    """Span masses and heaviest tokens of all heads, or of as many chosen ones as fit: ``[head, row, span]``."""
    if run.top_mass is None or run.top_token is None or run.row_mass is None:
        return None
    n_layers, n_heads, n_rows, n_spans = run.row_mass.shape
    size = n_rows * n_spans * 8 * BASE64
    every = [(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    heads = every if len(every) * size <= max(limit, limit_of_all) else list(chosen)[: int(limit / size)]
    if not heads:
        return None
    index = tuple(np.array(heads).T)
    return {
        "heads": heads,
        "mass": mass_text(run.row_mass[index]),
        "top_mass": mass_text(run.top_mass[index]),
        "top_token": whole_text(run.top_token[index]),
    }
