"""Keys and values of the last prompt fed, so that the next one feeds only the tokens behind what both begin with."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from attnprobe.architecture import decoder_of, uses_interface
from attnprobe.decoding import AUTO_CHUNK, forward_parameters, has_recurrent_layers, new_cache, takes_chunks
from attnprobe.errors import InputError
from attnprobe.rope import changes_with_length, original_positions


@dataclass(frozen=True, eq=False)
class _Kept:
    """What one pass left: the tokens whose keys ``cache`` holds, and the model in the state that made them."""

    model: weakref.ref[nn.Module]
    state: tuple[tuple[int, int], ...]
    ids: np.ndarray
    cache: Any
    turned_for: int
    """See :func:`turned_for`."""


class PrefixCache:
    """Keys and values that one forced measurement leaves for the next: ``measure(lm, prompt, answer=..., prefix=it)``.

    The next measurement feeds only the tokens after the longest common beginning, and always those whose rows are
    captured. That is exact, up to the rounding of a matrix product of another shape, and so it is done only where every
    layer keeps a key for each token: full attention in every layer, no recurrent layers, positions that the model is
    told. Where RoPE frequencies depend on the length, both must be within the original length, or equally long, and
    little may be left to feed (:func:`n_taken_over`). Everything is fed again otherwise;
    ``run.manifest["capture"]["reused_tokens"]`` says how much was not.

    It holds the keys and values of one prompt on the model's device until it is cleared or let go. It empties itself
    when a measurement fails or is interrupted, and for another model or changed weights. Adapters switched on or off
    without a change of weights are not noticed: call :meth:`clear`.
    """

    def __init__(self) -> None:
        self._kept: list[_Kept] = []  # one or none: taking it out is atomic, so that two threads never share a cache

    def __repr__(self) -> str:
        return f"PrefixCache({self.n_tokens} tokens)"

    @property
    def n_tokens(self) -> int:
        """Tokens whose keys and values are held."""
        return sum(len(kept.ids) for kept in self._kept)

    def clear(self) -> None:
        """Let everything go."""
        self._kept.clear()

    @contextmanager
    def lend(
        self, model: nn.Module, ids: Sequence[int], limit: int, keep: int | None = None
    ) -> Iterator[tuple[Any, int]]:
        """Lend a cache for one forced pass, and take it back with what the pass added unless it failed.

        Parameters
        ----------
        model
            The model that will run.
        ids
            All token ids of the pass.
        limit
            Tokens from here on are fed whatever is held: rows that are wanted, or run in another way than before.
        keep
            Keep the keys of this many tokens only: those behind are not what a plain pass would give. None: all.

        Yields
        ------
        (transformers.Cache or None, int)
            The cache to give to the model, and how many tokens it holds; ``(None, 0)`` where the model cannot go on
            from a cut cache exactly.
        """
        kept = self._take(model)
        if not goes_on_exactly(model):
            yield None, 0
            return
        given, config = np.asarray(ids, dtype=np.int64), decoder_of(model).config
        turns = turned_for(config, len(given))
        n_before = n_taken_over(config, kept.ids, kept.turned_for, given, limit) if kept is not None else 0
        if kept is None or n_before == 0:
            cache = new_cache(model)
        else:
            cache = kept.cache
            _cut(cache, n_before)
        yield cache, n_before
        given = given[:keep]
        _cut(cache, len(given))
        if _n_held(cache) == len(given):
            self._kept[:] = [_Kept(weakref.ref(model), _state_of(model), given, cache, turns)]

    def _take(self, model: nn.Module) -> _Kept | None:
        """Take out what is held, if this model made it as it is now."""
        try:
            kept = self._kept.pop()
        except IndexError:
            return None
        return kept if kept.model() is model and kept.state == _state_of(model) else None


def lent(
    prefix: PrefixCache | None, model: nn.Module, ids: Sequence[int], limit: int
) -> AbstractContextManager[tuple[Any, int]]:
    """:meth:`PrefixCache.lend`, or nothing to go on from where there is none."""
    return nullcontext((None, 0)) if prefix is None else prefix.lend(model, ids, limit)


def check_prefix(prefix: Any) -> None:
    """Raise InputError unless ``prefix`` is a :class:`PrefixCache` or None."""
    if not (prefix is None or isinstance(prefix, PrefixCache)):
        raise InputError(f"prefix is {prefix!r}; give attnprobe.PrefixCache(), one for all prompts that begin alike")


def goes_on_exactly(model: nn.Module) -> bool:
    """Whether a cache of this model can be cut to any length and gone on from as if nothing had been cut."""
    return keeps_every_key(model) and takes_chunks(model)


def keeps_every_key(model: nn.Module) -> bool:
    """Whether that can be so by the model's build, which its weights are not needed for."""
    return (
        uses_interface(model)
        and "position_ids" in forward_parameters(model)
        and not has_recurrent_layers(model)
        and _is_plain(new_cache(model))
    )


def n_taken_over(config: Any, before: np.ndarray, turned: int, given: np.ndarray, limit: int) -> int:
    """How many tokens a pass takes over from the one before, of a model that can go on exactly.

    0 where a mask of more than ``AUTO_CHUNK`` rows would be needed: frequencies that depend on the length are of all
    that is fed, so the rest cannot be fed in chunks; from the start it is fed without a mask.

    Parameters
    ----------
    config
        Of the decoder.
    before, turned
        Token ids whose keys are held, and what :func:`turned_for` gave for the pass that made them.
    given
        All token ids of the pass.
    limit
        Tokens from here on are fed whatever is held.
    """
    if turned != turned_for(config, len(given)):
        return 0
    n_tokens = min(n_common(before, given), limit)
    return 0 if changes_with_length(config) and len(given) - n_tokens > AUTO_CHUNK else n_tokens


def turned_for(config: Any, n_tokens: int) -> int:
    """Passes of an equal number turn equal positions alike: 0, or how many tokens RoPE frequencies were scaled for."""
    if not changes_with_length(config):
        return 0
    original = original_positions(config)
    return 0 if original is not None and n_tokens <= original else n_tokens


def _is_plain(cache: Any) -> bool:
    """Whether every layer keeps the keys of all tokens as they came: no windows, no states, no quantisation."""
    from transformers.cache_utils import DynamicLayer

    return all(type(layer) is DynamicLayer for layer in cache.layers)


def _cut(cache: Any, n_tokens: int) -> None:
    """Forget the keys and values from ``n_tokens`` on. (What ``Cache.crop`` counts differs between versions.)"""
    for layer in cache.layers:
        if layer.is_initialized:
            layer.keys = layer.keys[..., :n_tokens, :]
            layer.values = layer.values[..., :n_tokens, :]


def _n_held(cache: Any) -> int | None:
    """How many tokens' keys every layer holds; None where they differ, or a layer is not what it should be."""
    lengths = {int(layer.keys.shape[-2]) if layer.is_initialized else 0 for layer in cache.layers}
    return lengths.pop() if len(lengths) == 1 and _is_plain(cache) else None


def n_common(first: np.ndarray, second: np.ndarray) -> int:
    """Length of the longest common beginning of two sequences of token ids."""
    shorter = min(len(first), len(second))
    different = np.flatnonzero(first[:shorter] != second[:shorter])
    return int(different[0]) if different.size else shorter


def _state_of(model: nn.Module) -> tuple[tuple[int, int], ...]:
    """Changes whenever a weight is replaced or written to in place."""
    tensors = (*model.parameters(), *model.buffers())
    return tuple((id(tensor), 0 if tensor.is_inference() else tensor._version) for tensor in tensors)
