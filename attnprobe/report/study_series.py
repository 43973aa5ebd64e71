"""Series of a study: its curves in every norm and view, of every layer and head, and its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnprobe.errors import InputError
from attnprobe.intervals import end_log_ratios
from attnprobe.norms import NORMS, mean_of_defined
from attnprobe.report.asked import asked_of_study
from attnprobe.report.facts import study_facts
from attnprobe.report.series import Curves, Series
from attnprobe.report.sources import StudyOfModel
from attnprobe.report.study_layers import head_curves, layer_curves
from attnprobe.report.study_tables import answer_table, decomposition_table, panel_table, questions_table
from attnprobe.report.verdicts import study_verdict
from attnprobe.run import Run
from attnprobe.study import Study
from attnprobe.study_cells import ASKED, VIEWS
from attnprobe.study_curve import StudyCurve
from attnprobe.study_data import StudyData, quantity_of
from attnprobe.study_text import interval_text, ratio_text
from attnprobe.terminal import count

_UNLAYERED = ("first", "later", "question", "weighted")
"""Views of which no layer's curve is given."""


def series_of_study(source: StudyOfModel) -> Series:
    """Reduce the study of one model to what a report shows."""
    study = source.study
    data = study.of()
    panel = study.artefact_panel()
    headline = panel[0].curves
    known = {(curve.norm, curve.view, curve.variant): curve for row in panel for curve in row.curves.values()}
    curves: dict[str, dict[str, Curves]] = {}
    for name, choice in _choices(data).items():
        key = f"{choice.get('variant', ASKED)}/{{}}.{choice.get('view', 'raw')}"
        norms = [norm for norm in NORMS if key.format(quantity_of(norm)) in data.arrays]
        curves[name] = {norm: _curves(study, norm, name, choice, known) for norm in norms}
    profiles = study.head_profiles("share")
    head, tail = (
        np.stack([[end_log_ratios(one)[end] for one in layer] for layer in profiles]) for end in (0, 1)
    )  # [layer, head, question]
    tables = {"panel": panel_table(panel), "prompts": questions_table(study, headline["share"])}
    if study.can_decompose():
        tables["decomposition"] = decomposition_table(study)
    gold = study.gold_logprob()
    if gold is not None:
        tables["answer"] = answer_table(gold)
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
        verdict=study_verdict(study, headline, panel, gold),
        asked=asked_of_study(len(data.questions), study.agreement()),
        tables=tables,
        facts=study_facts(data, study.options, _kept_run(data)),
        warnings=_warnings(data),
    )


def _choices(data: StudyData) -> dict[str, dict[str, Any]]:
    """Arguments of :meth:`Study.curve` by the name of the view: what of the prompts, other variants, and calibrated."""
    found: dict[str, dict[str, Any]] = {view: {"view": view} for view in VIEWS if f"{ASKED}/mass.{view}" in data.arrays}
    found |= {variant: {"variant": variant} for variant in data.variants if variant != ASKED}
    return found | ({"calibrated": {"calibrated": True}} if "null" in data.variants else {})


def _key(norm: str, view: str = "raw", variant: str = ASKED, calibrated: bool = False) -> tuple[str, str, str]:
    """Norm, view and variant that the curve of a choice says of itself."""
    return norm, view, f"{variant}, calibrated" if calibrated else variant


def _curves(
    study: Study,
    norm: str,
    name: str,
    choice: Mapping[str, Any],
    known: Mapping[tuple[str, str, str], StudyCurve],
) -> Curves:
    data = study.of()
    curve = known.get(_key(norm, **choice)) or study.curve(norm, **choice)
    is_log = norm != "advantage"
    end_words = ratio_text if is_log else interval_text
    band = curve.scaled()
    ends = (curve.head_middle, curve.tail_middle) if is_log else (curve.head_minus_middle, curve.tail_minus_middle)
    layers = np.full((len(data.layers), data.n_documents), np.nan)
    layer_bounds = heads = head_bounds = None
    if name not in _UNLAYERED:
        layers, layer_bounds = layer_curves(study, norm, is_whole=curve.is_whole, **choice)
    if name == "raw":
        heads, head_bounds = head_curves(study, norm, is_whole=curve.is_whole)
    return Curves(
        values=band.estimate,
        layers=layers,
        heads=heads,
        low=band.low,
        high=band.high,
        layer_bounds=layer_bounds,
        head_bounds=head_bounds,
        uniform=_uniform(study, norm, name),
        head_text=end_words(ends[0]),
        tail_text=end_words(ends[1]),
    )


def _uniform(study: Study, norm: str, name: str) -> np.ndarray | None:
    """The curve if attention were uniform; None where it is not known: the dummy has a length of its own."""
    n_documents = study.of().n_documents
    if norm == "advantage":
        return np.zeros(n_documents)
    if norm == "density" or name == "calibrated":
        return np.ones(n_documents)
    return None if norm == "mass" or name == "dummy" else study.uniform()


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
