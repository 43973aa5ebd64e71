"""Series of a study: its curves in every norm and view, of every layer and head, and its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from scipy import stats

from attnprobe.errors import InputError
from attnprobe.intervals import MIN_QUESTIONS, end_log_ratios
from attnprobe.norms import NORMS, mean_of_defined
from attnprobe.report.facts import study_facts
from attnprobe.report.series import Curves, Series
from attnprobe.report.sources import StudyOfModel
from attnprobe.report.study_tables import answer_table, decomposition_table, panel_table, questions_table
from attnprobe.report.verdicts import study_verdict
from attnprobe.run import Run
from attnprobe.study import Study
from attnprobe.study_cells import ASKED, VIEWS
from attnprobe.study_curve import AVERAGING, StudyCurve
from attnprobe.study_data import StudyData
from attnprobe.study_text import interval_text
from attnprobe.terminal import count

_LAYERED = ("raw", "apart", "trimmed")
"""Views of which every layer's curve is given."""


def series_of_study(source: StudyOfModel) -> Series:
    """Reduce the study of one model to what a report shows."""
    study = source.study
    data = study.of()
    headline = {norm: study.curve(norm) for norm in AVERAGING}
    panel = study.artefact_panel()
    curves: dict[str, dict[str, Curves]] = {}
    for view in VIEWS:
        norms = [norm for norm in NORMS if f"{ASKED}/{_quantity(norm)}.{view}" in data.arrays]
        if norms:
            curves[view] = {norm: _curves(study, norm, view) for norm in norms}
    profiles = head_profiles(study, "share")
    head, tail = (
        np.stack([[end_log_ratios(one)[end] for one in layer] for layer in profiles]) for end in (0, 1)
    )  # [layer, head, question]
    tables = {"panel": panel_table(panel), "prompts": questions_table(study, headline["share"])}
    if study.can_decompose():
        tables["decomposition"] = decomposition_table(study)
    answer = answer_table(study)
    if answer is not None:
        tables["answer"] = answer
    return Series(
        name=source.name,
        kind="study",
        documents=tuple(map(str, range(data.n_documents))),
        tokens=data.array(ASKED, "tokens").mean(axis=(0, 1)),
        middle=headline["share"].middle,
        model_layers=data.layers,
        n_heads=data.n_heads,
        curves=curves,
        ratios={
            "head_middle": np.exp(mean_of_defined(head, axis=-1)),
            "tail_middle": np.exp(mean_of_defined(tail, axis=-1)),
            "document_mass": np.nansum(data.array(ASKED, "mass.raw"), axis=-1).mean(axis=(0, 1)),
        },
        members=_members(study, headline),
        budget=study.budget(),
        verdict=study_verdict(study, headline, panel),
        tables=tables,
        facts=study_facts(data, study.options, _kept_run(data)),
        warnings=_warnings(data),
    )


def head_profiles(study: Study, norm: str) -> np.ndarray:
    """Profiles of every head's own curve as :meth:`Study.curve` has them, float64 [layer, head, question, position]."""
    data = study.of()
    values = data.arrays[f"{ASKED}/{_quantity(norm)}.raw"]  # [question, order, layer, head, position]
    is_moved = study.options.design == "insertion"
    at_gold = data.gold_positions[:, :, None, None] == np.arange(data.n_documents)
    layers = []
    for number in range(len(data.layers)):
        logs = values[:, :, number].astype(np.float64)  # [question, order, head, position]
        with np.errstate(divide="ignore", invalid="ignore"):
            if norm in ("share", "log_share"):
                logs = logs / np.nansum(logs, axis=-1, keepdims=True)
            if norm != "advantage":
                logs = np.log(logs)
        if is_moved:
            logs = np.where(at_gold, logs, np.nan)
        layers.append(np.moveaxis(mean_of_defined(logs, axis=1), 1, 0))
    return np.stack(layers)


def summarised(profiles: np.ndarray, is_log: bool, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the questions that have all positions, and t bounds of the curve's shape at each position alone.

    Parameters
    ----------
    profiles
        float64 [..., question, position], nats.
    is_log
        Whether to give their exponentials.
    level
        Of the bounds.

    Returns
    -------
    (numpy.ndarray, numpy.ndarray)
        float64 [..., position] and [2, ..., position]; bounds are NaN with fewer than five questions.
    """
    kept = ~np.isnan(profiles).any(axis=-1, keepdims=True)  # [..., question, 1]
    n = kept.sum(axis=-2)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(kept, profiles, 0.0).sum(axis=-2) / n
        shape = np.where(kept, profiles - profiles.mean(axis=-1, keepdims=True), 0.0)
        stray = np.where(kept, shape - (shape.sum(axis=-2) / n)[..., None, :], 0.0)
        reach = np.sqrt((stray**2).sum(axis=-2) / (n - 1) / n) * stats.t.isf((1 - level) / 2, np.maximum(n - 1, 1))
    reach = np.where(n >= MIN_QUESTIONS, reach, np.nan)
    bounds = np.stack([mean - reach, mean + reach])
    return (np.exp(mean), np.exp(bounds)) if is_log else (mean, bounds)


def _quantity(norm: str) -> str:
    return norm if norm in ("density", "advantage") else "mass"


def _curves(study: Study, norm: str, view: str) -> Curves:
    data = study.of()
    curve = study.curve(norm, view=view)
    is_log = norm != "advantage"
    scaled = curve.is_whole
    band = curve.scaled()
    ends = (curve.head_middle, curve.tail_middle) if is_log else (curve.head_minus_middle, curve.tail_minus_middle)
    layers = np.full((len(data.layers), data.n_documents), np.nan)
    layer_bounds = heads = head_bounds = None
    if view in _LAYERED:
        layers, layer_bounds = _as_shown(*summarised(study.layer_profiles(norm, view=view), is_log), scaled)
    if view == "raw":
        heads, head_bounds = _as_shown(*summarised(head_profiles(study, norm), is_log), scaled)
    uniform = {"density": np.ones(data.n_documents), "advantage": np.zeros(data.n_documents), "mass": None}
    return Curves(
        values=band.estimate,
        layers=layers,
        heads=heads,
        low=band.low,
        high=band.high,
        layer_bounds=layer_bounds,
        head_bounds=head_bounds,
        uniform=uniform.get(norm, study.uniform()),
        head_text=interval_text(ends[0]),
        tail_text=interval_text(ends[1]),
    )


def _as_shown(values: np.ndarray, bounds: np.ndarray, scaled: bool) -> tuple[np.ndarray, np.ndarray]:
    """Curves of shares scaled to sum to 1, as :meth:`StudyCurve.scaled` does."""
    if not scaled:
        return values, bounds
    total = values.sum(axis=-1, keepdims=True)
    return values / total, bounds / total


def _members(study: Study, headline: Mapping[str, StudyCurve]) -> tuple[tuple[str, dict[str, np.ndarray]], ...]:
    """Every question's own curve, scaled as the mean is."""
    members = []
    for q, id in enumerate(study.of().questions[:50]):
        own = {}
        for norm, curve in headline.items():
            values = np.exp(curve.profiles[q])
            own[norm] = values / values.sum() if curve.is_whole else values
        members.append((id, own))
    return tuple(members)


def _kept_run(data: StudyData) -> Run | None:
    """One of the whole runs that the study kept, if there is one that can be read."""
    for *_, file in data.kept_runs()[:1]:
        try:
            return Run.load(file)
        except InputError:
            return None
    return None


def _warnings(data: StudyData) -> tuple[str, ...]:
    found: Counter[str] = Counter()
    for facts in data.facts.values():
        found.update(warning for row in facts for fact in row for warning in fact["warnings"])
    left_out = [
        f"question {id} is left out, as a cell failed or is missing: {why}" for id, why in data.incomplete.items()
    ]
    return (*left_out, *(f"{text} ({count(n, 'cell')})" for text, n in found.items()))
