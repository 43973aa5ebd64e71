"""Rotary frequencies under scalings, and what follows from them: wavelengths, angles never seen, decay with distance.

A pair of dimensions turns by ``omega`` radians a position, so its wavelength is 2 pi / omega.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

_AT_A_TIME = 2**15  # distances


@dataclass(frozen=True)
class RopeAt:
    """One scaling at one prompt length.

    Parameters
    ----------
    scaling
        The override in canonical form, or ``as configured``.
    rope_type
        In transformers' terms.
    window
        Positions that the scaled model is made for.
    length
        Of the prompt, tokens.
    attention_scaling
        Factor of sines and cosines; the part of a logit that comes from rotating dimensions is multiplied by its
        square. What a class multiplies logits by elsewhere (DeepSeek's ``mscale``) is not in it.
    inv_freq
        Of the pairs that turn, radians a position, fastest first as the model has them.
    """

    scaling: str
    rope_type: str
    window: int | None
    length: int
    attention_scaling: float
    inv_freq: tuple[float, ...]


@dataclass(frozen=True)
class RopeInspection:
    """A model's rotary frequencies without scaling, and under each scaling at each length.

    Parameters
    ----------
    model, model_type
        Name as given, and transformers' name of the architecture.
    layers
        The layer type inspected, where RoPE parameters are kept by layer type; else None.
    theta
        Base of the frequencies.
    n_still
        Pairs of the rotary module that never turn (partial rotation).
    original
        Positions that the model was trained on before any scaling.
    inv_freq
        Without scaling, as in :class:`RopeAt`.
    scaled
        By scaling, then by length.
    """

    model: str
    model_type: str
    layers: str | None
    theta: float
    n_still: int
    original: int
    inv_freq: tuple[float, ...]
    scaled: tuple[RopeAt, ...]

    @property
    def critical_dimension(self) -> int:
        """Dimensions whose pair completes a turn within the trained length; the others never showed all their angles.

        Liu et al. 2024, Scaling Laws of RoPE-based Extrapolation: 2 ceil(d/2 log_theta(L / 2 pi)), counted here on the
        frequencies themselves.
        """
        return 2 * (len(self.inv_freq) - never_turning(self.inv_freq, self.original))

    @property
    def at_longest(self) -> tuple[RopeAt, ...]:
        """Of every scaling the entry of its longest length."""
        return tuple({at.scaling: at for at in self.scaled}.values())

    def slowdown(self, at: RopeAt) -> np.ndarray:
        """float64 [pair]: how many times slower each pair turns than without scaling; the interpolation ramp."""
        return np.divide(self.inv_freq, at.inv_freq)

    def kept(self, at: RopeAt) -> np.ndarray | None:
        """float64 [pair]: the ramp as YaRN writes it: 1 for a pair left alone, 0 for one slowed down the most.

        With s the largest slowdown: (omega_scaled / omega - 1/s) / (1 - 1/s). None where nothing is slowed down.
        """
        slow = self.slowdown(at)
        least = 1 / slow.max()
        return None if math.isclose(least, 1.0, rel_tol=1e-5) else (1 / slow - least) / (1 - least)

    def farthest(self, at: RopeAt) -> np.ndarray:
        """float64 [pair]: the largest angle at this length over the largest in training, of pairs that never completed
        a turn there; 0 for the others, whose angles were all seen. Above 1, angles are new to the model.
        """
        never = 2 * math.pi / np.array(self.inv_freq) > self.original
        return np.where(never, at.length * np.array(at.inv_freq) / (self.original * np.array(self.inv_freq)), 0.0)

    def new_angles(self, at: RopeAt) -> int:
        """Pairs that reach angles at this length which training never showed."""
        return int((self.farthest(at) > 1 + 1e-5).sum())

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {
            "model": self.model,
            "model_type": self.model_type,
            "layers": self.layers,
            "rope_theta": self.theta,
            "rotating_dimensions": 2 * len(self.inv_freq),
            "still_dimensions": 2 * self.n_still,
            "original_positions": self.original,
            "critical_dimension": self.critical_dimension,
            "inv_freq": list(self.inv_freq),
            "wavelength": wavelengths(self.inv_freq).tolist(),
            "scalings": [self._at_dict(at) for at in self.scaled],
        }

    def _at_dict(self, at: RopeAt) -> dict[str, Any]:
        edges, kept = octaves(at.length), self.kept(at)
        return {
            "scaling": at.scaling,
            "rope_type": at.rope_type,
            "window": at.window,
            "length": at.length,
            "attention_scaling": at.attention_scaling,
            "inv_freq": list(at.inv_freq),
            "wavelength": wavelengths(at.inv_freq).tolist(),
            "slowdown": self.slowdown(at).tolist(),
            "kept": None if kept is None else kept.tolist(),
            "never_turning": never_turning(at.inv_freq, at.length),
            "new_angles": self.new_angles(at),
            "farthest_angle": float(self.farthest(at).max()),
            "decay_distances": [[low, high - 1] for low, high in pairwise(edges)],
            "decay": decay(at, edges).tolist(),
            "first_below_random": first_below_random(at),
        }


def wavelengths(inv_freq: Sequence[float]) -> np.ndarray:
    """float64 [pair]: positions that a full turn takes."""
    return 2 * math.pi / np.array(inv_freq)


def never_turning(inv_freq: Sequence[float], length: int) -> int:
    """Pairs that do not complete a turn within ``length`` positions."""
    return int((wavelengths(inv_freq) > length).sum())


def octaves(length: int) -> list[int]:
    """Edges of distances 1, 2-3, 4-7, ... up to the longest in a prompt."""
    return [*(2**k for k in range((length - 1).bit_length()) if 2**k < length), length]


def decay(at: RopeAt, edges: Sequence[int]) -> np.ndarray:
    """How much more a key like the query scores than a random one, by distance m; 1 at distance 0 without scaling.

    Mean over each range of distances of attention_scaling^2 * mean over pairs of cos(m omega): Men et al. 2024, Base of
    RoPE Bounds Context Length, for queries and keys of independent, equally distributed components, whose expected
    score is proportional to that sum. Pairs that never turn are left out.

    Parameters
    ----------
    at
        A scaling at a length.
    edges
        Of ranges of distances, ascending; a range goes up to the next edge, without it.

    Returns
    -------
    np.ndarray
        float64 [range].
    """
    half = np.array(at.inv_freq) / 2
    # the sum of cos(m w) from a to b - 1 is (sin((2b - 1) w/2) - sin((2a - 1) w/2)) / (2 sin(w/2))
    sums = np.sin((2 * np.array(edges)[:, None] - 1) * half) / (2 * np.sin(half))
    means = np.diff(sums, axis=0).mean(axis=1) / np.diff(edges)
    return np.asarray(at.attention_scaling**2 * means)


def first_below_random(at: RopeAt) -> int | None:
    """The first distance at which a key like the query is expected to score below a random one; None within length.

    The condition of Men et al. 2024 for a base that is large enough: the sum over pairs of cos(m omega) is not negative
    at any distance.
    """
    frequencies = np.array(at.inv_freq)
    for start in range(1, at.length, _AT_A_TIME):
        distances = np.arange(start, min(start + _AT_A_TIME, at.length))
        below = np.flatnonzero(np.cos(distances[:, None] * frequencies).sum(axis=1) < 0)
        if below.size:
            return int(distances[below[0]])
    return None
