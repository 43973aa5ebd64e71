"""One cell of a task, measured and reduced to what is kept of it; and back."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import numpy as np

from attnprobe.grid_records import HOW
from attnprobe.study_cells import CellResult, relieved_chunk
from attnprobe.tasks.cell import CellSpec
from attnprobe.tasks.measured import evidence_arrays, measure_cell
from attnprobe.tasks.task_options import TaskOptions

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel
    from attnprobe.prefix_cache import PrefixCache
    from attnprobe.run import Run

MASS, NEEDLE_MASS, NEEDLE_ADVANTAGE = "mass", "needle_mass", "needle_advantage"
ARRAYS = (MASS, NEEDLE_MASS, NEEDLE_ADVANTAGE)
"""float32 ``[layer, head, document]`` and twice ``[layer, head]``; see :class:`attnprobe.tasks.task_data.TaskData`."""


def measured_cell(
    lm: LanguageModel, spec: CellSpec, options: TaskOptions, prefix: PrefixCache, relief: int = 0
) -> CellResult:
    """Build and measure one cell.

    Parameters
    ----------
    lm
        The model.
    spec
        The cell.
    options
        Of the task.
    prefix
        Keys and values of the cell before this one, to go on from.
    relief
        How often this cell ran out of memory; see :func:`attnprobe.study_cells.relieved_chunk`.
    """
    cell = spec.build(lm.tokenizer)
    outcome, run = measure_cell(
        lm,
        cell,
        prefix=prefix,
        max_new_tokens=options.max_new_tokens,
        beyond_window=options.beyond_window,
        prefill_chunk=relieved_chunk(lm, relief),
    )
    arrays = dict(zip(ARRAYS, (_document_mass(run), *evidence_arrays(run, cell.needles)), strict=True))
    facts = {
        "outcome": outcome.to_dict(),
        "n_prompt": run.n_prompt,
        "layers": list(run.layers),
        "residual": run.residual,
        "arrays": sorted(arrays),
        "warnings": list(run.warnings),
        HOW: {"fed": run.n_prompt - run.manifest["capture"]["reused_tokens"]},
    }
    return CellResult({name: np.asarray(array, dtype=np.float32) for name, array in arrays.items()}, facts, {})


def _document_mass(run: Run) -> np.ndarray:
    """Mass of each document, NaN in a layer that does not see it from any row."""
    documents = list(run.document_spans)
    sees = np.any(run.visible[:, :, documents], axis=1, keepdims=True)  # [layer, 1, document]
    return np.where(sees, run.mass[..., documents], np.nan)


def file_name(key: str) -> str:
    """A cell's key as the name of its file, without an ending: what can be read of it, and a hash of all of it."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", key.partition("/")[2])[:80]
    return f"{safe}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"
