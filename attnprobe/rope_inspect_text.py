"""The lines that a terminal shows of a model's rotary frequencies."""

from __future__ import annotations

from collections.abc import Sequence

from attnprobe.rope_angles import (
    RopeAt,
    RopeInspection,
    decay,
    first_below_random,
    never_turning,
    octaves,
    wavelengths,
)
from attnprobe.rope_options import short_name
from attnprobe.terminal import count, decimal, fit, table, wrapped

_NAME = 18  # cells of a scaling's name
_MOST_COLUMNS = 5
_LARGE = 1e10  # from here on a number is written with an exponent, so that its column keeps its width


def inspect_lines(found: RopeInspection) -> list[str]:
    """What ``attnprobe rope inspect`` prints."""
    n_dims = 2 * len(found.inv_freq)
    still = f"; {2 * found.n_still} more dimensions never turn" if found.n_still else ""
    layers = f", {found.layers.replace('_', '-')} layers" if found.layers else ""
    return [
        *wrapped(
            f"{found.model} ({found.model_type}{layers}): {n_dims} rotating dimensions in {len(found.inv_freq)} "
            f"pairs, base {found.theta:,.10g}{still}; trained on {found.original:,} positions, in which "
            f"{found.critical_dimension} dimensions complete a turn (the critical dimension)"
        ),
        "",
        *_scaling_table(found),
        "",
        *_decay_table(found),
        "",
        *_pair_table(found),
    ]


def _scaling_table(found: RopeInspection) -> list[str]:
    rows, names = [], _names(found.at_longest, _NAME)
    for at in found.scaled:
        below = first_below_random(at)
        rows.append(
            (
                names[at.scaling],
                f"{at.length:,}",
                _short(at.attention_scaling**2, 3),
                _short(found.slowdown(at).max()),
                str(never_turning(at.inv_freq, at.length)),
                str(found.new_angles(at)),
                _short(found.farthest(at).max()),
                "-" if below is None else f"{below:,}",
            )
        )
    header = ("scaling", "length", "logits x", "slowed", "no turn", "new", "farthest", "below 0")
    return [
        *table(header, rows, (False, *(True,) * 7)),
        *wrapped(
            "logits x: square of the rotary attention scaling, for the part of a logit that rotates; slowed: how many "
            "times slower the pair turns that is slowed the most; no turn: pairs that do not complete one within the "
            "length; new: pairs that reach angles which training never showed; farthest: of pairs that completed no "
            "turn in training, the largest angle over the largest seen there; below 0: the first distance at which a "
            "key like the query is expected to score below a random one (Men et al. 2024)"
        ),
    ]


def _decay_table(found: RopeInspection) -> list[str]:
    """Of every scaling at its longest length, the expected score by distance."""
    shown = found.at_longest
    last = max(at.length for at in shown)
    starts = octaves(last)[:-1][::-1][::2][:_MOST_COLUMNS][::-1]
    rows, names = [], _names(shown, _NAME)
    for at in shown:
        edges = octaves(at.length)
        values = dict(zip(edges[:-1], decay(at, edges).tolist(), strict=True))
        rows.append((names[at.scaling], *(_short(values.get(start)) for start in starts)))
    header = ("decay of q.k", *(f"{start:,}-" for start in starts))
    return [
        *table(header, rows, (False, *(True,) * len(starts))),
        *wrapped(
            "How much more a key like the query is expected to score than a random one; 1 at distance 0, unscaled: "
            "mean over pairs of cos(distance x frequency), x logits; mean over distances from the given one to twice "
            "it, or the end"
        ),
    ]


def _pair_table(found: RopeInspection) -> list[str]:
    """Every pair: wavelength, turns in training, and how much each scaling slows it down."""
    shown = found.at_longest[:_MOST_COLUMNS]
    slow, names = [found.slowdown(at) for at in shown], _names(shown, 9 if len(shown) > 2 else _NAME)
    rows = [
        (
            str(pair),
            f"{length:,.1f}" if length < _LARGE else _short(length),
            _short(found.original / length),
            *(_short(one[pair]) for one in slow),
        )
        for pair, length in enumerate(wavelengths(found.inv_freq))
    ]
    header = ("pair", "wavelength", "turns", *(names[at.scaling].rstrip() for at in shown))
    left = len(found.at_longest) - len(shown)
    more = f"; {count(left, 'more scaling')}: --json" if left else ""
    return [
        *table(header, rows, (True,) * len(header)),
        *wrapped(
            f"wavelength in positions and turns in {found.original:,}, without scaling; then how many times slower "
            f"each scaling turns the pair, at its longest length{more}"
        ),
    ]


def _names(shown: Sequence[RopeAt], width: int) -> dict[str, str]:
    """Names of ``width`` cells by scaling; numbered in their order where they would be cut to the same."""
    long = [short_name(at.scaling) for at in shown]
    if len({fit(name, width) for name in long}) < len(long):
        long = [f"{number}: {name}" for number, name in enumerate(long, 1)]
    return {at.scaling: fit(name, width) for at, name in zip(shown, long, strict=True)}


def _short(value: float | None, digits: int = 2) -> str:
    """A number in few cells, whatever its size; ``-`` where undefined."""
    return decimal(value, digits) if value is None or abs(value) < 1e5 else f"{value:.1e}"
