"""Study: attention by position as a measured result, with intervals over questions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnprobe.curve import Heads, Layers, choose_heads, middle_positions
from attnprobe.decompose import Decomposition, decompose
from attnprobe.errors import InputError
from attnprobe.estimates import Interval, json_values
from attnprobe.flatness import MIN_QUESTIONS as MIN_FLATNESS
from attnprobe.intervals import end_log_ratios, mean_interval, simultaneous_band
from attnprobe.multiplicity import sign_flip_max_t
from attnprobe.norms import effective_documents, mean_of_defined
from attnprobe.ranks import RankCorrelation, rank_correlation
from attnprobe.run import Run
from attnprobe.study_cells import ASKED, KINDS
from attnprobe.study_curve import AVERAGING, StudyCurve, claim, question_profiles, study_curve
from attnprobe.study_data import StudyData
from attnprobe.study_findings import GoldLogprob, KeptRun, PanelRow, Robustness, robustness
from attnprobe.study_folder import ABOUT, StudyFolder, study_parts
from attnprobe.study_options import StudyOptions

_VIEW_NAMES = {
    "first": "first row",
    "later": "later rows",
    "question": "question rows",
    "weighted": "value-weighted",
}
_WITHOUT = ("trimmed", "sinks apart", "preamble")
_ABOUT = {"preamble": "a sentence before the documents", "dummy": "a document without content"}


@dataclass(frozen=True, eq=False)
class Study:
    """What :func:`attnprobe.rotate` measured; made of one :class:`StudyData` a model.

    Every method takes ``model``, which may be left out where there is one model only.
    """

    data: Mapping[str, StudyData]
    options: StudyOptions

    def __repr__(self) -> str:
        one = next(iter(self.data.values()))
        return (
            f"Study({', '.join(self.data)}: {len(one.questions)} questions x {len(one.orders[0])} orders, "
            f"{one.n_documents} documents, {self.options.design})"
        )

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models."""
        return tuple(self.data)

    def of(self, model: str | None = None) -> StudyData:
        """The arrays of one model.

        Raises
        ------
        InputError
            An unknown model, or none named where there are several.
        """
        if model is None:
            if len(self.data) > 1:
                raise InputError(f"the study has several models; name one: {', '.join(self.data)}")
            return next(iter(self.data.values()))
        if model not in self.data:
            raise InputError(f"the study has no model {model!r}; it has {', '.join(self.data)}")
        return self.data[model]

    def curve(
        self,
        norm: str = "share",
        *,
        view: str = "raw",
        variant: str = ASKED,
        calibrated: bool = False,
        layers: Layers = None,
        heads: Heads = None,
        level: float = 0.95,
        middle: str = "default",
        model: str | None = None,
    ) -> StudyCurve:
        """Attention by position, geometric over questions, with a simultaneous band.

        With the ``insertion`` design, the moved document's alone; else that of all documents.

        Parameters
        ----------
        norm
            ``share``, ``log_share``, ``mass``, ``density`` or ``advantage``.
        view
            What of a run: ``raw``, ``apart`` (without secondary sinks), ``trimmed`` (without each document's heaviest
            token), ``first`` or ``later`` answer rows, ``question`` rows, ``weighted`` by what keys write.
        variant
            ``asked`` (the prompts as they are) or another variant of the study.
        calibrated
            Divide by the ``null`` variant's value in the same order. This assumes that what the model does with no
            question is bias and adds, in logs, to what it does with one.
        layers, heads
            As in :meth:`attnprobe.Run.curve`.
        level
            Of the intervals.
        middle
            See :func:`attnprobe.curve.middle_positions`.
        model
            Which model.
        """
        chosen: dict[str, Any] = {"view": view, "layers": layers, "heads": heads}
        return study_curve(
            self._order_values(norm, variant, calibrated, model, **chosen),
            norm=norm,
            view=view,
            variant=f"{variant}, calibrated" if calibrated else variant,
            level=level,
            middle=middle,
            seed=self.options.seed,
            is_whole=self.options.design != "insertion" and variant != "dummy" and not calibrated,
        )

    def _order_values(self, norm: str, variant: str, calibrated: bool, model: str | None, **chosen: Any) -> np.ndarray:
        """What a curve averages, float64 [question, order, position], nats; NaN where it takes no part."""
        data = self.of(model)
        values = data.log_values(norm, variant=variant, **chosen)
        if self.options.design == "insertion":
            values = _at_gold(values, data)
        if calibrated:
            values = values - data.log_values(norm, variant="null", **chosen)
        return _at_dummy(values, data) if variant == "dummy" else values

    def layer_profiles(
        self,
        norm: str = "log_share",
        *,
        view: str = "raw",
        variant: str = ASKED,
        calibrated: bool = False,
        model: str | None = None,
    ) -> np.ndarray:
        """Profiles of every layer's own curve, float64 [layer, question, position], nats; arguments as in curve."""
        layers = self.of(model).layers
        return np.stack(
            [
                question_profiles(self._order_values(norm, variant, calibrated, model, view=view, layers=layer))
                for layer in layers
            ]
        )

    def head_profiles(self, norm: str = "log_share", *, model: str | None = None) -> np.ndarray:
        """Profiles of every head's own curve as measured, float64 [layer, head, question, position], nats."""
        data = self.of(model)
        layers = []
        for layer in data.layers:
            values = np.moveaxis(data.head_log_values(norm, layer), 2, 0)  # [head, question, order, position]
            layers.append(question_profiles(_at_gold(values, data) if self.options.design == "insertion" else values))
        return np.stack(layers)

    def interval(
        self, level: float = 0.95, norm: str = "share", end: str = "head", model: str | None = None, **selection: Any
    ) -> Interval:
        """Interval of head/middle, or with ``end="tail"`` of tail/middle; other arguments as in :meth:`curve`.

        For ``advantage``, whose values are logs, that of head minus middle or tail minus middle, nats.

        Raises
        ------
        InputError
            Two documents or fewer have no middle.
        """
        if end not in ("head", "tail"):
            raise InputError(f'end is {end!r}; give "head" or "tail"')
        curve = self.curve(norm, level=level, model=model, **selection)
        found = getattr(curve, f"{end}_minus_middle" if norm == "advantage" else f"{end}_middle")
        if found is None:
            raise InputError("two documents have no middle; a ratio takes three or more")
        interval: Interval = found
        return interval

    def can_decompose(self, model: str | None = None) -> bool:
        """Whether position and content can be told apart: not with an insertion design, nor with two documents."""
        return self.options.design != "insertion" and self.of(model).n_documents > 2

    def decompose(self, norm: str = "log_share", model: str | None = None, **selection: Any) -> Decomposition:
        """How much of the variation of log values is position, content, their interaction, and the rest.

        Raises
        ------
        InputError
            For the insertion design, in which documents do not stand everywhere.
        """
        if self.options.design == "insertion":
            raise InputError("an insertion design moves one document only, so content cannot be told from position; "
                             "use williams or cyclic")  # fmt: skip
        data = self.of(model)
        values = data.log_values(norm, **_without_dummy(selection))
        n_bases = len(set(data.bases.tolist()))
        shape = (len(values), n_bases, -1, data.n_documents)
        return decompose(values.reshape(shape), data.permutations.reshape(shape))

    def artefact_panel(self, model: str | None = None) -> tuple[PanelRow, ...]:
        """The raw curve, and the same with each known artefact taken out, in both orders of averaging."""
        data = self.of(model)
        rows: list[tuple[str, str, dict[str, Any]]] = [("raw", "as measured", {})]
        rows.append(("trimmed", "without each document's heaviest token", {"view": "trimmed"}))
        if "null" in data.variants:
            rows.append(("sinks apart", "without the secondary sinks of the null runs", {"view": "apart"}))
            rows.append(("null", 'question and answer both "N/A"', {"variant": "null"}))
            rows.append(("calibrated", "raw over null, order by order", {"calibrated": True}))
        for variant in data.variants:
            if variant not in (ASKED, "null"):
                rows.append((variant, _ABOUT.get(variant, "the prompt in another form"), {"variant": variant}))
        if "preamble" in data.variants:
            rows.append(("preamble, trimmed", "both", {"variant": "preamble", "view": "trimmed"}))
        for view, what in (
            ("first", "the row that predicts the answer's first token"),
            ("later", "all later answer rows"),
            ("question", "the question's own rows"),
            ("weighted", "mass times the norm of what each key writes"),
        ):
            if f"{ASKED}/mass.{view}" in data.arrays:
                rows.append((_VIEW_NAMES[view], what, {"view": view}))
        return tuple(
            PanelRow(
                name,
                about,
                {norm: self.curve(norm, model=model, **choice) for norm in AVERAGING},
                removes_artefact=name in _WITHOUT,
            )
            for name, about, choice in rows
        )

    def uniform(self, model: str | None = None) -> np.ndarray:
        """Share of each position if all tokens of the documents got the same, float64 [position].

        With the ``insertion`` design, that of the document that was moved. NaN where it is undefined.
        """
        data = self.of(model)
        tokens = data.array(ASKED, "tokens")
        with np.errstate(invalid="ignore"):
            shares = tokens / tokens.sum(axis=-1, keepdims=True)
        if self.options.design == "insertion":
            shares = _at_gold(shares, data)
        return mean_of_defined(shares.reshape(-1, data.n_documents), axis=0)

    def claim(self, model: str | None = None) -> str:
        """What the study shows of the raw curve: the verdict that both orders of averaging give, or that they differ.

        The orders of averaging are called *pooled* (norm ``share``: over heads and layers, then the share) and *per
        head* (norm ``log_share``: each head's log share, then the mean). They can contradict each other, so that
        only what both show is claimed; else it is "depends on the order of averaging (pooled: ..., per head: ...)".

        The verdict of a curve is made from the 95 % t intervals, over questions, of head/middle and tail/middle. An
        end is *even* if its whole interval lies inside 0.8 to 1.25, even where it excludes 1; else *raised* if the
        interval lies above 1, *lowered* if it lies below 1, and *unclear* if it holds 1.

        ======================  ==============================================================
        verdict                 head and tail
        ======================  ==============================================================
        ``U``                   both raised
        ``head``                head raised, tail even or lowered
        ``tail``                tail raised, head even or lowered
        ``head or U``           head raised, tail unclear
        ``tail or U``           tail raised, head unclear
        ``flat``                both even
        ``inverted``            both lowered
        ``weak head``           head lowered, tail even
        ``weak tail``           tail lowered, head even
        ``inconclusive``        anything else
        ``too few questions``   there are no intervals: fewer than five questions
        ``undefined``           there is no ratio, as with two documents
        ======================  ==============================================================

        Whether it holds without the known artefacts is another question: :meth:`claim_without_artefacts`.
        """
        return claim({norm: self.curve(norm, model=model) for norm in AVERAGING})

    def claim_without_artefacts(self, model: str | None = None) -> Robustness:
        """Whether the claim holds in the lines of the artefact panel that take a known artefact out, end by end."""
        return robustness(self.artefact_panel(model))

    def runs(self, model: str | None = None) -> Iterator[KeptRun]:
        """Whole runs that were kept, read one at a time: by question, order and variant, with every row.

        Their ``curve()`` is that of :meth:`table`, in which secondary sinks count to their documents; ``run.curve()``
        leaves them out where they were set apart.

        A study keeps them under ``out``, as many as ``keep_runs`` has room for, in the order in which they were
        measured; those that are not there are passed over.

        Raises
        ------
        InputError
            None was kept.
        """
        kept = self.of(model).kept_runs()
        if not kept:
            raise InputError("no whole run of this study was kept; measure it with out= and a larger keep_runs "
                             "(--keep-runs)")  # fmt: skip
        return (KeptRun(question, order, variant, Run.load(path)) for question, order, variant, path in kept)

    def gold_logprob(self, level: float = 0.95, model: str | None = None) -> GoldLogprob | None:
        """Log-probability of the answer by the position of its document.

        None where no such document is known, or no question's answer was a right one (the model's own may be wrong).
        """
        data = self.of(model)
        places, logprob = data.gold_positions, data.answer_logprob
        usable = [
            q
            for q in range(len(places))
            if set(places[q]) == set(range(data.n_documents)) and data.facts[ASKED][q][0]["answer_is_accepted"]
        ]
        if not usable:
            return None
        profiles = np.stack([[logprob[q][places[q] == p].mean() for p in range(data.n_documents)] for q in usable])
        profiles = profiles - profiles.mean(axis=1, keepdims=True)
        middle = list(middle_positions(data.n_documents))

        def against(end: int) -> Interval | None:
            if not middle:
                return None
            return mean_interval(profiles[:, end] - profiles[:, middle].mean(axis=1), level=level)

        return GoldLogprob(
            profiles.mean(axis=0),
            simultaneous_band(profiles, level=level, seed=self.options.seed),
            against(0),
            against(-1),
            len(usable),
        )

    def budget(self, model: str | None = None, variant: str = ASKED) -> dict[str, float]:
        """Mean mass of each kind of span; ``secondary_sink`` apart from the first token's ``sink``. Sums to 1.

        Secondary sinks are set apart in the prompts as they are, by the null runs. In other variants, and without
        null runs, they are in the kinds of their spans, and ``secondary_sink`` is 0.
        """
        mean = self.of(model).array(variant, "budget").mean(axis=(0, 1, 2))
        return dict(zip(KINDS, mean.tolist(), strict=True))

    def budget_by_row(self, model: str | None = None, variant: str = ASKED) -> dict[str, np.ndarray]:
        """The budget of every answer row, float64 [row]: mean over the questions whose answer is so long."""
        rows = np.nanmean(self.of(model).array(variant, "budget_rows"), axis=(0, 1))
        return dict(zip(KINDS, rows, strict=True))

    def effective_documents(self, model: str | None = None) -> float:
        """Effective number of documents of a prompt, exp of the entropy of its shares: the mean over all prompts."""
        shares = np.exp(self.of(model).log_values("share"))
        return float(np.mean([effective_documents(one) for one in shares.reshape(-1, shares.shape[-1])]))

    def layer_tests(self, norm: str = "log_share", model: str | None = None, **selection: Any) -> list[dict[str, Any]]:
        """Head/middle and tail/middle of every layer, with p values adjusted over all of them.

        Sign flips of whole questions, max-T (:func:`attnprobe.multiplicity.sign_flip_max_t`); None with fewer than six
        questions, or where a value is undefined in some question.

        Returns
        -------
        list of dict
            By layer: ``layer``, ``head_middle``, ``tail_middle`` (geometric means over questions), ``head_p``,
            ``tail_p``. Other arguments as in :meth:`layer_profiles`.
        """
        data = self.of(model)
        profiles = self.layer_profiles(norm, model=model, **selection)
        ratios = np.stack([end_log_ratios(one) for one in profiles])  # [layer, end, question]
        flat = ratios.reshape(2 * len(data.layers), -1).T
        tested = np.isfinite(flat).all(axis=0)
        p = np.full(flat.shape[1], np.nan)
        if len(flat) >= MIN_FLATNESS and tested.any():
            p[tested] = sign_flip_max_t(flat[:, tested], seed=self.options.seed)
        found = np.exp(flat.mean(axis=0))
        return [
            {
                "layer": layer,
                "head_middle": _json(found[2 * number]),
                "tail_middle": _json(found[2 * number + 1]),
                "head_p": _json(p[2 * number]),
                "tail_p": _json(p[2 * number + 1]),
            }
            for number, layer in enumerate(data.layers)
        ]

    def mass_and_effect(
        self, norm: str = "share", level: float = 0.95, model: str | None = None, **selection: Any
    ) -> RankCorrelation:
        """Rank correlation of a document's attention and its effect on the answer; takes the extra ``effects``.

        The effect is the answer's log-probability less that with the document hidden from the answer's rows. The
        headline is the correlation within question and position. Other arguments as in :meth:`curve`.

        Raises
        ------
        InputError
            The study did not measure effects.
        """
        data = self.of(model)
        effect = data.array(ASKED, "effect")
        return rank_correlation(data.log_values(norm, **_without_dummy(selection)), effect, data.permutations, level)

    def distance(
        self, layers: Layers = None, heads: Heads = None, model: str | None = None
    ) -> tuple[np.ndarray, tuple[int, ...]]:
        """Mass by distance from the row, mean over all questions and orders; takes the extra ``distance``.

        Returns
        -------
        (numpy.ndarray, tuple of int)
            float64 [bin], and the edges of the bins in tokens, one more than bins: bin b holds keys at distances from
            ``edges[b]`` to ``edges[b + 1] - 1``. Sinks are left out.

        Raises
        ------
        InputError
            The study did not measure it.
        """
        data = self.of(model)
        chosen, _, _ = choose_heads(data.layers, data.n_heads, layers, heads)
        # Shorter prompts have fewer bins: there is nothing at larger distances.
        mass = np.nan_to_num(data.array(ASKED, "distance"))[:, :, chosen].mean(axis=(0, 1, 2))
        edges = np.nanmax(data.array(ASKED, "distance_edges"), axis=(0, 1))
        return mass, tuple(int(edge) for edge in edges)

    def top_fraction(self, model: str | None = None) -> np.ndarray:
        """How much of a document's mass its heaviest token of each row holds, by position, float64.

        Of the mass pooled over heads, layers, orders and questions, as the pooled curve is.
        """
        data = self.of(model)
        raw, trimmed = (
            np.nan_to_num(data.array(ASKED, f"mass.{view}")).mean(axis=(0, 1, 2, 3)) for view in ("raw", "trimmed")
        )
        with np.errstate(divide="ignore", invalid="ignore"):  # a position that gets nothing has no heaviest token
            return np.asarray(1 - trimmed / raw)

    def agreement(self, model: str | None = None) -> float | None:
        """How often the model's own answers in a question's orders are its most frequent one; None if one was taken."""
        own = self.of(model).own_answers
        shares = [Counter(texts).most_common(1)[0][1] / len(texts) for texts in own.values() if len(texts) > 1]
        return float(np.mean(shares)) if shares else None

    def table(self, model: str | None = None) -> list[dict[str, Any]]:
        """One row a question, order and position: the document there, its values, and the order's log-probability.

        Values are in the unit of their norm in :meth:`curve`: ``log_share`` is a share, too, the geometric mean over
        heads; ``advantage`` is in nats. ``share_trimmed`` and ``share_apart`` are the share in that view,
        ``share_null`` and ``share_preamble`` that of the variant. ``is_gold`` says whether the document is known to
        hold the answer; ``answer_logprob``, nats, is the sum over the answer's tokens, the same in all rows of an
        order.
        """
        data = self.of(model)
        columns = {
            "mass": np.exp(data.log_values("mass")),
            "share": np.exp(data.log_values("share")),
            "log_share": np.exp(data.log_values("log_share")),
            "share_trimmed": np.exp(data.log_values("share", view="trimmed")),
            "density": np.exp(data.log_values("density")),
            "advantage": data.log_values("advantage"),
        }
        if "null" in data.variants:
            columns["share_apart"] = np.exp(data.log_values("share", view="apart"))
        for variant in ("null", "preamble"):
            if variant in data.variants:
                columns[f"share_{variant}"] = np.exp(data.log_values("share", variant=variant))
        rows = []
        for q, id in enumerate(data.questions):
            for o, order in enumerate(data.orders[q]):
                fact = data.facts[ASKED][q][o]
                for position, document in enumerate(fact["documents"]):
                    rows.append(
                        {
                            "question": id,
                            "base": order.base,
                            "order": order.number,
                            "position": position,
                            "document": document,
                            "is_gold": fact["gold_position"] == position,
                            **{name: _json(values[q, o, position]) for name, values in columns.items()},
                            "answer_logprob": float(data.answer_logprob[q, o]),
                        }
                    )
        return rows

    def to_dict(self, model: str | None = None) -> dict[str, Any]:
        """The findings as JSON values: null where undefined, ``"inf"`` or ``"-inf"`` where infinite."""
        data = self.of(model)
        gold = self.gold_logprob(model=model)
        panel = self.artefact_panel(model)
        not_apart: dict[str, Any] = {"secondary_sink": None}
        findings = {
            "model": data.model,
            "options": self.options.to_dict(),
            "n_questions": len(data.questions),
            "n_orders": len(data.orders[0]),
            "n_documents": data.n_documents,
            "incomplete": dict(data.incomplete),
            "claim": self.claim(model),
            "claim_without_artefacts": robustness(panel).to_dict(),
            "uniform": self.uniform(model).tolist(),
            "budget": self.budget(model) | ({} if "null" in data.variants else not_apart),
            "budget_null": self.budget(model, "null") | not_apart if "null" in data.variants else None,
            "top_fraction": self.top_fraction(model).tolist(),
            "effective_documents": self.effective_documents(model),
            "layers": self.layer_tests(model=model) if data.n_documents > 2 else None,
            "fit": self._fits(model),
            "distance": self._distance(model),
            "panel": [
                {
                    "name": row.name,
                    "about": row.about,
                    "verdict": row.verdict,
                    **{norm: curve.to_dict() for norm, curve in row.curves.items()},
                }
                for row in panel
            ],
            "decomposition": self.decompose(model=model).to_dict() if self.can_decompose(model) else None,
            "gold_logprob": None if gold is None else gold.to_dict(),
            "mass_and_effect": {norm: self.mass_and_effect(norm, model=model).to_dict() for norm in AVERAGING}
            if "effects" in self.options.extras
            else None,
            "agreement": self.agreement(model),
            "own_answers": {id: list(texts) for id, texts in data.own_answers.items()},
        }
        plain: dict[str, Any] = json_values(findings)
        return plain

    def _fits(self, model: str | None) -> dict[str, Any] | None:
        """Fits of the pooled curve by model, None of one that takes more documents; None where none can be fitted."""
        curve = self.curve(model=model)
        if not curve.can_fit("symmetric"):
            return None
        return {name: curve.fit(name).to_dict() if curve.can_fit(name) else None for name in ("symmetric", "two_sided")}

    def _distance(self, model: str | None) -> dict[str, Any] | None:
        if "distance" not in self.options.extras:
            return None
        mass, edges = self.distance(model=model)
        return {"edges": list(edges), "mass": mass.tolist()}

    @classmethod
    def load(cls, folder: str | Path) -> Study:
        """Read a study that :func:`attnprobe.rotate` wrote, finished or not; no model is loaded.

        Parameters
        ----------
        folder
            What was given as ``out``; or the folder of one model in it, for that model alone.

        Raises
        ------
        InputError
            The folder holds no study, or no question of it is complete.
        RunFileError
            A file is damaged.
        """
        parts = study_parts(folder)
        data = [StudyFolder.at(part).load() for part in parts]
        content = json.loads((parts[0] / ABOUT).read_text(encoding="utf-8"))
        return cls({one.model: one for one in data}, StudyOptions.of(content["options"]))


def _without_dummy(selection: dict[str, Any]) -> dict[str, Any]:
    if selection.get("variant") == "dummy":
        raise InputError("the dummy stands for another document in each order, so its values belong to no document")
    return selection


def _at_gold(values: np.ndarray, data: StudyData) -> np.ndarray:
    """Only the position of the document with the answer, order by order; the rest is undefined."""
    is_gold = data.gold_positions[:, :, None] == np.arange(data.n_documents)
    return np.where(is_gold, values, np.nan)


def _at_dummy(values: np.ndarray, data: StudyData) -> np.ndarray:
    """Only the position where the dummy stood, order by order; the rest is undefined."""
    out = np.full_like(values, np.nan)
    for o, order in enumerate(data.orders[0]):
        position = order.number % data.n_documents
        out[:, o, position] = values[:, o, position]
    return out


def _json(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
