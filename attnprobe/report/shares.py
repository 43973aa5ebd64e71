"""Shares of the documents' mass by layer and by head, of whatever was measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnprobe.norms import averaged, head_values, mean_of_defined
from attnprobe.report.drawn import Facts, Source, about_runs, about_sinks, about_study, about_study_sinks, runs_of
from attnprobe.study import Study
from attnprobe.study_cells import ASKED


@dataclass(frozen=True, eq=False)
class Shares:
    """Share of the documents' mass that each document gets, or each position where documents moved.

    Parameters
    ----------
    layers, heads
        float64 [layer, document] and [layer, head, document]: of the layer's mass, summed over heads, and of each
        head's own; the mean over prompts. NaN where undefined: no row sees the document, or no document gets any mass.
    model_layers
        The model's numbers of the layers.
    documents
        Names; None where documents differ from prompt to prompt.
    about
        What was measured, for a note.
    """

    layers: np.ndarray
    heads: np.ndarray
    model_layers: tuple[int, ...]
    documents: tuple[str, ...] | None
    about: str


def shares_of(source: Source, drawn: str) -> Shares:
    """Shares by layer and head; secondary sinks that runs set apart are left out.

    Parameters
    ----------
    source
        What was measured.
    drawn
        For the note: which layers and heads are drawn.

    Raises
    ------
    InputError
        As :func:`attnprobe.report.drawn.runs_of`.
    """
    if isinstance(source, Study):
        data = source.of()
        layers, heads = (
            mean_of_defined(part.reshape(-1, *part.shape[2:]), axis=0) for part in _both(data.array(ASKED, "mass.raw"))
        )
        return Shares(layers, heads, data.layers, None, f"{about_study(source, drawn)} {about_study_sinks(source)}")
    facts: list[Facts] = []
    names: list[tuple[str, ...]] = []
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    for run, fact in runs_of(source):
        facts.append(fact)
        names.append(run.documents)
        parts.append(_both(head_values(run, "mass", with_sinks=False)))
    layers, heads = (mean_of_defined(np.stack(part), axis=0) for part in zip(*parts, strict=True))
    same = len(set(names)) == 1
    about = f"{about_runs(facts, drawn)} {about_sinks(facts)}"
    return Shares(layers, heads, facts[0].layers, names[0] if same else None, about)


def _both(mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares [..., layer, document] and [..., layer, head, document] of mass [..., layer, head, document]."""
    return averaged(mass, "share"), averaged(mass[..., None, :], "share")
