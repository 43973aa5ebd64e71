"""Bands: which values of citation and accuracy signals are healthy, to be watched, suspect or confirmed.

The table is the context-rot article's "Numbers that matter". Where it leaves a hole between healthy and suspect
(an average K from 4 to 5, a gap of 5 to 10 points) the band is ``watch``; between suspect and confirmed (an
average K from 8 to 9) it stays ``suspect``. The article calls its numbers starting thresholds; none of them
was derived from attention, so attention ratios have no bands here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from itertools import pairwise
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attnprobe.errors import InputError
from attnprobe.estimates import Interval

BAND_NAMES = ("healthy", "watch", "suspect", "confirmed")

# Unit of every signal. Fractions are 0.12, not 12; a table may be written in percent points.
UNITS = MappingProxyType(
    {
        "average_k": "documents",
        "p95_prompt_tokens": "tokens",
        "citation_head_middle_ratio": "ratio",
        "accuracy_best_worst_ratio": "ratio",
        "context_rot_gap": "fraction",
    }
)
_LEAST = {"documents": 0.0, "tokens": 0.0, "ratio": 0.0, "fraction": -1.0}
_MOST = {"documents": math.inf, "tokens": math.inf, "ratio": math.inf, "fraction": 1.0}

_ARTICLE: dict[str, dict[str, dict[str, float]]] = {
    "average_k": {
        "healthy": {"under": 4},
        "watch": {"from": 4, "under": 5},
        "suspect": {"from": 5, "under": 9},
        "confirmed": {"from": 9},
    },
    "p95_prompt_tokens": {
        "healthy": {"under": 4000},
        "suspect": {"from": 4000, "to": 16000},
        "confirmed": {"over": 16000},
    },
    "citation_head_middle_ratio": {
        "healthy": {"under": 2},
        "suspect": {"from": 2, "to": 4},
        "confirmed": {"over": 4},
    },
    "accuracy_best_worst_ratio": {
        "healthy": {"under": 1.5},
        "suspect": {"from": 1.5, "to": 3},
        "confirmed": {"over": 3},
    },
    "context_rot_gap": {
        "healthy": {"under": 0.05},
        "watch": {"from": 0.05, "under": 0.10},
        "suspect": {"from": 0.10, "to": 0.20},
        "confirmed": {"over": 0.20},
    },
}


@dataclass(frozen=True)
class ValueRange:
    """Values from ``low`` to ``high``; ``holds_low`` and ``holds_high`` say whether an edge belongs to it."""

    name: str
    low: float
    high: float
    holds_low: bool = True
    holds_high: bool = False

    def holds(self, value: float) -> bool:
        """Whether the value lies in the band."""
        above = value > self.low or (self.holds_low and value == self.low)
        return above and (value < self.high or (self.holds_high and value == self.high))


@dataclass(frozen=True)
class BandTable:
    """The bands of every signal, ascending and without gap or overlap; made by ``band_table``."""

    signals: Mapping[str, tuple[ValueRange, ...]]

    def band(self, signal: str, value: float) -> str:
        """Name of the band that holds a value, in the signal's unit (see ``UNITS``)."""
        check_signal(signal)
        unit = UNITS[signal]
        value = round(value, 9)  # 0.9 - 0.8 is a gap of 0.1, though floats put it a hair below
        for band in self.signals[signal]:
            if band.holds(value):
                return band.name
        hint = f"; a fraction of 1 is expected, {value / 100:g} for {value:g} %" if unit == "fraction" else ""
        raise InputError(f"{signal} is {value:g}, outside {_LEAST[unit]:g} to {_MOST[unit]:g} ({unit}){hint}")


@dataclass(frozen=True)
class Verdict:
    """What the bands say of a signal.

    Parameters
    ----------
    signal, unit
        The signal and the unit of its values.
    verdict
        The band that holds both bounds of the interval; ``"inconclusive"`` where they lie in different bands or
        there are none; ``"undefined"`` for a value that is. Of a value without interval, its band.
    band
        The point estimate's band; None where it is undefined.
    low_band, high_band
        The bounds' bands; None without bounds.
    value, low, high
        The estimate and the bounds, None where there are none.
    reason
        Why the verdict is no band, or what it rests on; None when an interval lies in one band.
    """

    signal: str
    unit: str
    verdict: str
    band: str | None
    low_band: str | None
    high_band: str | None
    value: float | None
    low: float | None
    high: float | None
    reason: str | None

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms; ``"inf"`` where infinite."""
        return {
            key: str(value) if isinstance(value, float) and math.isinf(value) else value
            for key, value in asdict(self).items()
        }


def judge(signal: str, value: float | Interval | None, table: BandTable | None = None) -> Verdict:
    """Judge a signal by the bounds of its interval.

    Parameters
    ----------
    signal
        A key of ``UNITS``.
    value
        An interval, or a number without one, in the signal's unit; None or NaN where it is undefined.
    table
        Bands other than the article's.

    Raises
    ------
    InputError
        For an unknown signal, a signal of attention, and a value outside the signal's range (a gap of 12 for
        12 %).
    """
    check_signal(signal)
    table = ARTICLE_BANDS if table is None else table
    if isinstance(value, Interval):
        estimate, given = value.estimate, value
    else:
        estimate, given = _number(signal, value), None
    if estimate is None or math.isnan(estimate):
        reason: str | None = (given and given.reason) or "the value is undefined"
        return Verdict(signal, UNITS[signal], "undefined", None, None, None, None, None, None, reason)
    band = table.band(signal, estimate)
    if given is None:
        reason = "a point estimate without interval"
        return Verdict(signal, UNITS[signal], band, band, None, None, estimate, None, None, reason)
    if given.low is None or given.high is None:
        reason = given.reason or "the interval has no bounds"
        return Verdict(signal, UNITS[signal], "inconclusive", band, None, None, estimate, None, None, reason)
    # A t interval may reach past what the signal can be (a ratio below 0), which says nothing of its bands.
    low_band, high_band = (table.band(signal, _clipped(signal, bound)) for bound in (given.low, given.high))
    one = low_band == high_band
    reason = given.reason if one else f"between {low_band} and {high_band}"
    return Verdict(
        signal, UNITS[signal], low_band if one else "inconclusive", band, low_band, high_band,
        estimate, given.low, given.high, reason,
    )  # fmt: skip


def _number(signal: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{signal} is {value!r}; give an Interval, a number ({UNITS[signal]}), or None")
    return float(value)


def _clipped(signal: str, bound: float) -> float:
    return min(max(bound, _LEAST[UNITS[signal]]), _MOST[UNITS[signal]])


def check_signal(signal: str) -> None:
    """Raise InputError unless there is evidence for bands of this signal."""
    if signal in UNITS:
        return
    known = ", ".join(UNITS)
    plain = str(signal).casefold().replace("-", "_")
    if "attention" in plain or plain in _ATTENTION:
        raise InputError(
            f"{signal!r} is a signal of attention, which has no bands: the thresholds are for citations and "
            f"accuracy, and there is no evidence behind any for attention. Bands exist for {known}"
        )
    near = get_close_matches(plain, UNITS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {known}"
    raise InputError(f"signal {signal!r} is unknown; {hint}")


_ATTENTION = frozenset(
    {
        "head_middle", "tail_middle", "head_minus_middle", "tail_minus_middle", "head_middle_ratio",
        "tail_middle_ratio", "middle_mass", "share", "log_share", "mass", "density", "advantage", "alpha",
    }
)  # fmt: skip


def band_table(given: Mapping[str, Any]) -> BandTable:
    """The article's table with some signals' bands replaced.

    Parameters
    ----------
    given
        For every signal to replace, an edge or two for each of its bands, which must be in the order of
        ``BAND_NAMES`` and meet: ``{"healthy": {"under": 3}, "suspect": {"from": 3, "to": 5}, "confirmed":
        {"over": 5}}``. ``from`` and ``to`` belong to the band, ``over`` and ``under`` do not. Bands may be left
        out. ``"unit": "percent_points"`` beside them says that a fraction's edges are written in percent points
        (they are kept, and values are given, as fractions).

    Raises
    ------
    InputError
        Naming the signal and the band: unknown names, edges that are no numbers or outside the signal's range,
        bands out of order, a gap or an overlap between them.
    """
    if not isinstance(given, Mapping):
        raise InputError(f"a table of bands maps signals to bands; this is {type(given).__name__}")
    signals = {signal: _bands(signal, bands) for signal, bands in _ARTICLE.items()}
    for signal, bands in given.items():
        check_signal(signal)
        signals[signal] = _bands(signal, bands)
    return BandTable(MappingProxyType(signals))


def read_band_table(path: str | os.PathLike[str]) -> BandTable:
    """Read a YAML (or JSON) file of what ``band_table`` takes; raises InputError as it does, naming the file."""
    import yaml

    file = Path(path)
    try:
        given = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not valid YAML: {error}") from error
    try:
        return band_table(given)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def _bands(signal: str, given: Any) -> tuple[ValueRange, ...]:
    if not isinstance(given, Mapping):
        raise InputError(f"{signal}: its bands must be a mapping of names to edges, not {type(given).__name__}")
    scale = _scale(signal, given.get("unit", UNITS[signal]))
    names = [name for name in given if name != "unit"]
    for name in names:
        if name not in BAND_NAMES:
            near = get_close_matches(str(name), (*BAND_NAMES, "unit"), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"bands are {', '.join(BAND_NAMES)}"
            raise InputError(f"{signal}: unknown band {name!r}; {hint}")
    if not names:
        raise InputError(f"{signal} has no bands; give at least one of {', '.join(BAND_NAMES)}")
    if names != [name for name in BAND_NAMES if name in names]:
        raise InputError(f"{signal}: the bands must be in the order {', '.join(BAND_NAMES)}, not {', '.join(names)}")
    bands = tuple(_band(signal, name, given[name], scale) for name in names)
    _check_cover(signal, bands)
    return bands


def _scale(signal: str, unit: Any) -> float:
    if unit == UNITS[signal]:
        return 1.0
    if unit == "percent_points" and UNITS[signal] == "fraction":
        return 100.0
    allowed = UNITS[signal] + (" or percent_points" if UNITS[signal] == "fraction" else "")
    raise InputError(f"{signal}: unit {unit!r} does not fit; it is measured in {allowed}")


def _band(signal: str, name: str, edges: Any, scale: float) -> ValueRange:
    where = f"{signal}, band {name}"
    if not isinstance(edges, Mapping) or not edges:
        raise InputError(f'{where}: give its edges, such as {{"from": 2, "under": 4}}')
    for key, edge in edges.items():
        if key not in ("from", "over", "to", "under"):
            raise InputError(f"{where}: unknown edge {key!r}; edges are from (>=), over (>), to (<=), under (<)")
        if isinstance(edge, bool) or not isinstance(edge, int | float) or not math.isfinite(edge):
            raise InputError(f"{where}: {key} is {edge!r}; give a finite number")
    for pair in (("from", "over"), ("to", "under")):
        if all(key in edges for key in pair):
            raise InputError(f"{where}: both {pair[0]} and {pair[1]} are given; keep one of them")
    least, most = _LEAST[UNITS[signal]], _MOST[UNITS[signal]]
    lower = edges.get("from", edges.get("over"))
    upper = edges.get("to", edges.get("under"))
    low = least if lower is None else lower / scale
    high = most if upper is None else upper / scale
    if not (least <= low <= most and least <= high <= most):
        hint = '; say "unit": "percent_points" if the edges are meant so' if most == 1 and scale == 1 else ""
        raise InputError(f"{where}: its edges must be within {least:g} and {most:g}{hint}")
    band = ValueRange(name, low, high, "over" not in edges, upper is None or "to" in edges)
    if low > high or (low == high and not (band.holds_low and band.holds_high)):
        raise InputError(f"{where}: it runs from {low:g} to {high:g} and holds no value")
    return band


def _check_cover(signal: str, bands: tuple[ValueRange, ...]) -> None:
    """Every value of the signal's range lies in one band."""
    least, most = _LEAST[UNITS[signal]], _MOST[UNITS[signal]]
    first, last = bands[0], bands[-1]
    if first.low > least or not first.holds_low:
        raise InputError(
            f"{signal}: no band holds values below {first.low:g}; leave out the lower edge of {first.name}"
        )
    if last.high < most or not last.holds_high:
        raise InputError(f"{signal}: no band holds values above {last.high:g}; leave out the upper edge of {last.name}")
    for before, after in pairwise(bands):
        meet = f"{before.name} (to {before.high:g}) and {after.name} (from {after.low:g})"
        if before.high > after.low or (before.high == after.low and before.holds_high and after.holds_low):
            raise InputError(f"{signal}: {meet} overlap; let one end where the other begins, with under and from")
        if before.high < after.low or not (before.holds_high or after.holds_low):
            raise InputError(f"{signal}: a gap lies between {meet}; let one end where the other begins")


ARTICLE_BANDS = band_table({})
