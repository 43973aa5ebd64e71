"""Findings of a comparison of RoPE scalings, as values and rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from attnprobe.estimates import Band, Interval, json_values
from attnprobe.intervals import end_log_ratios, mean_interval, ratio_interval, simultaneous_band
from attnprobe.rope_data import BY_NEEDLE, BY_TEXT, RopeData
from attnprobe.rope_options import RopeOptions
from attnprobe.rope_verdict import ScalingVerdict, verdicts


@dataclass(frozen=True, eq=False)
class TextCurve:
    """How attention is spread over the documents of the texts of one length under one scaling.

    Parameters
    ----------
    share
        Of ten equal parts of the documents' tokens, geometric mean over texts, with a simultaneous band.
    head_middle, tail_middle
        First and last part over the two central ones, t on the texts' log ratios.
    """

    share: Band
    head_middle: Interval
    tail_middle: Interval

    @property
    def middle(self) -> float:
        """Share of the two central parts, together."""
        centre = len(self.share.estimate) // 2
        return float(self.share.estimate[centre - 1 : centre + 1].sum())


@dataclass(frozen=True, eq=False)
class RopeFindings:
    """What was found.

    Parameters
    ----------
    data
        What it rests on.
    verdicts
        Of every scaling.
    curves
        [scaling][length]: how attention is spread over the documents.
    """

    data: RopeData
    verdicts: tuple[ScalingVerdict, ...]
    curves: tuple[tuple[TextCurve, ...], ...]

    def interval(self, metric: str, scaling: int, length: int, depth: int | None = None) -> Interval:
        """A metric's mean over texts and items, at one depth or all."""
        values = self.data.of(metric)[scaling, length]
        depths = None if depth is None else [depth]
        return self.data.interval(metric, values, depths)

    def table(self) -> list[dict[str, Any]]:
        """One row a scaling, length, metric and place; every metric also over all its places."""
        return list(self._rows())

    def to_dict(self) -> dict[str, Any]:
        """Everything but the table, as JSON values."""
        data = self.data
        plan = data.plan
        found = {
            "model": plan.model,
            "window": plan.window,
            "lengths": list(plan.lengths),
            "options": plan.options.measured() | {"n_heads": plan.options.n_heads, "level": plan.options.level},
            "items": [list(own) for own in data.items],
            "heads": [[list(head) for head in half] for half in data.heads],
            "verdicts": [one.to_dict() for one in self.verdicts],
            "curves": [
                {
                    "scaling": name,
                    "length": length,
                    "share": curve.share.to_dict(),
                    "middle": curve.middle,
                    "head_middle": curve.head_middle.to_dict(),
                    "tail_middle": curve.tail_middle.to_dict(),
                }
                for name, own in zip(plan.scalings, self.curves, strict=True)
                for length, curve in zip(plan.lengths, own, strict=True)
            ],
            "rope": [
                {"scaling": name, "length": length, "in_use": data.rope[s][i]}
                for s, name in enumerate(plan.scalings)
                for i, length in enumerate(plan.lengths)
            ],
            "incomplete": dict(data.incomplete),
            "warnings": list(data.warnings),
        }
        return dict(json_values(found))

    def _rows(self) -> Iterator[dict[str, Any]]:
        plan = self.data.plan
        for s, name in enumerate(plan.scalings):
            for i, length in enumerate(plan.lengths):
                row = {"scaling": name, "length": length, "inside_window": i in plan.inside}
                for metric in (*BY_NEEDLE, *BY_TEXT):
                    yield {**row, "metric": metric, "place": "", **_cells(self.interval(metric, s, i))}
                for metric in BY_NEEDLE:
                    for d, depth in enumerate(plan.options.depths):
                        place = f"depth {depth:g}"
                        yield {**row, "metric": metric, "place": place, **_cells(self.interval(metric, s, i, d))}
                share = self.curves[s][i].share
                for part, estimate in enumerate(share.estimate):
                    low, high = (None if bound is None else float(bound[part]) for bound in (share.low, share.high))
                    own = {"estimate": float(estimate), "low": low, "high": high, "n": share.n}
                    yield {**row, "metric": "share", "place": f"part {part}", **own}
                for metric, values, edges in (
                    ("distance", self.data.distance, self.data.distance_edges),
                    ("loss", self.data.loss_by_position, self.data.loss_edges),
                ):
                    for b, (start, stop) in enumerate(pairwise(edges)):
                        if start < length:
                            found = mean_interval(values[s, i, :, b], plan.options.level)
                            yield {**row, "metric": metric, "place": f"{start} to {stop - 1}", **_cells(found)}


def findings(data: RopeData) -> RopeFindings:
    """Judge what was measured."""
    curves = tuple(tuple(_curve(slices, data.plan.options) for slices in own) for own in data.slices)
    return RopeFindings(data, verdicts(data), curves)


def _curve(slices: np.ndarray, options: RopeOptions) -> TextCurve:
    """From the shares ``[text, part]`` of one length under one scaling."""
    with np.errstate(divide="ignore"):
        logs = np.log(slices)
    head, tail = end_log_ratios(logs)
    return TextCurve(
        simultaneous_band(logs, options.level, options.seed).exp(),
        ratio_interval(head, options.level),
        ratio_interval(tail, options.level),
    )


def _cells(interval: Interval) -> dict[str, Any]:
    return {"estimate": interval.estimate, "low": interval.low, "high": interval.high, "n": interval.n}
