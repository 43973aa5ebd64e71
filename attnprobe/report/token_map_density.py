"""What a token map needs to set masses against even attention: densities of spans, and what every row sees."""

from __future__ import annotations

import numpy as np

from attnprobe.norms import mean_of_defined
from attnprobe.run import Run


def span_densities(run: Run) -> np.ndarray | None:
    """Density of every span as :func:`attnprobe.norms.document_values` has it of documents; None without rows.

    float64 [layer, head, span]; NaN where no row of the layer sees a token of the span.
    """
    if run.row_mass is None:
        return None
    densities = []
    for mass, visible in zip(run.row_mass, run.visible.astype(np.float64), strict=True):  # layers, to bound memory
        with np.errstate(divide="ignore", invalid="ignore"):
            even = np.where(visible > 0, visible / visible.sum(axis=1, keepdims=True), np.nan)
        densities.append(mean_of_defined(mass / even, axis=1))
    return np.stack(densities)


def visible_tokens(run: Run) -> np.ndarray | None:
    """How many tokens every row sees, int64 [layer, row]: the last ones up to its own, so the number tells which.

    None where a row sees others than the last ones.
    """
    n_visible = run.visible.sum(axis=2, dtype=np.int64)
    first = run.n_prompt - 1 if run.rows == "predicting" else run.n_prompt
    stop = first + 1 + np.arange(n_visible.shape[1])
    start = stop - n_visible
    for i, span in enumerate(run.spans):
        own = sum(np.maximum(np.minimum(stop, b) - np.maximum(start, a), 0) for a, b in span.segments)
        if (run.visible[..., i] != own).any():
            return None
    return n_visible
