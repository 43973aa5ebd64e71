"""The lines that a terminal shows of a model's rotary frequencies."""

from __future__ import annotations

from attnprobe.rope_angles import (
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
    rows = []
    for at in found.scaled:
        below = first_below_random(at)
        rows.append(
            (
                fit(short_name(at.scaling), _NAME),
                f"{at.length:,}",
                decimal(at.attention_scaling**2, 3),
                decimal(float(found.slowdown(at).max())),
                str(never_turning(at.inv_freq, at.length)),
                str(found.new_angles(at)),
                decimal(float(found.farthest(at).max())),
                "-" if below is None else f"{below:,}",
            )
        )
    header = ("scaling", "length", "logits x", "slowed", "no turn", "new", "farthest", "below 0")
    return [
        *table(header, rows, (False, *(True,) * 7)),
        *wrapped(
            "logits x: square of the rotary attention scaling; slowed: the slowest pair, times; no turn: pairs that do "
            "not complete one within the length; new: pairs that reach angles which training never showed; farthest: "
            "the largest angle over the largest seen; below 0: the first distance at which a key like the query is "
            "expected to score below a random one (Men et al. 2024)"
        ),
    ]


def _decay_table(found: RopeInspection) -> list[str]:
    """Of every scaling at its longest length, the expected score by distance."""
    shown = found.at_longest
    last = max(at.length for at in shown)
    starts = octaves(last)[:-1][::-1][::2][:_MOST_COLUMNS][::-1]
    rows = []
    for at in shown:
        edges = octaves(at.length)
        values = dict(zip(edges[:-1], decay(at, edges).tolist(), strict=True))
        rows.append((fit(short_name(at.scaling), _NAME), *(decimal(values.get(start)) for start in starts)))
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
    slow, width = [found.slowdown(at) for at in shown], 9 if len(shown) > 2 else _NAME
    rows = [
        (
            str(pair),
            f"{length:,.1f}",
            decimal(found.original / length),
            *(decimal(float(one[pair])) for one in slow),
        )
        for pair, length in enumerate(wavelengths(found.inv_freq))
    ]
    header = ("pair", "wavelength", "turns", *(fit(short_name(at.scaling), width).rstrip() for at in shown))
    left = len(found.at_longest) - len(shown)
    more = f"; {count(left, 'more scaling')}: --json" if left else ""
    return [
        *table(header, rows, (True,) * len(header)),
        *wrapped(
            f"wavelength in positions and turns in {found.original:,}, without scaling; then how many times slower "
            f"each scaling turns the pair, at its longest length{more}"
        ),
    ]
