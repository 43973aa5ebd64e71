"""Forced passes that go on from a prompt fed once: many variants of it, each fed only from where it differs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnprobe.decoding import continues_prefill, forced_logprobs, has_recurrent_layers, left_pad, new_cache
from attnprobe.knockout import KNOCKOUT_CHUNK, Hidden, knocked_out
from attnprobe.models import input_device
from attnprobe.prefix_cache import PrefixCache


@dataclass(frozen=True)
class Variant:
    """One forced pass.

    Parameters
    ----------
    ids
        The token ids of prompt and answer, the answer's last one excepted: no row of it is needed.
    n_shared
        How many leading rows are those of the base, with nothing hidden from them; no row that predicts the answer is
        among them.
    hidden
        What is hidden from the rest.
    """

    ids: tuple[int, ...]
    n_shared: int
    hidden: Hidden | None = None


def forced_variants(
    model: nn.Module,
    base: Sequence[int],
    variants: Sequence[Variant],
    targets: Sequence[int],
    chunk: int | None = None,
    prefix: PrefixCache | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """Log-probability of the targets at the end of each variant of a prompt.

    Variants are run by the rows that they share with the base, which is fed once: a variant goes on from a copy of its
    cache. That is exact for windowed layers, too, whose cache cannot be cut. A model that cannot go on from its cache
    is fed each variant whole.

    Parameters
    ----------
    model
        A causal language model.
    base
        Token ids, answer included, that the variants' first rows share.
    variants
        What to run.
    targets
        Token ids of the answer, predicted by the last rows of each variant.
    chunk
        Tokens fed at a time where nothing is hidden; None for all at once.
    prefix
        Keys and values of the last fed tokens, to go on from and to leave.

    Yields
    ------
    A variant's index and its float32 ``[len(targets)]`` log-probabilities on the CPU, natural log.
    """

    def run(ids: Sequence[int], wanted: Sequence[int], step: int | None, cache: Any, n_before: int) -> Tensor:
        batch = left_pad([ids], 0, input_device(model))
        return forced_logprobs(model, batch, torch.tensor([wanted]), step, cache=cache, n_before=n_before)[0]

    # A state that goes on from another one is rounded in another way.
    shares = not has_recurrent_layers(model) and continues_prefill(model)
    if not shares:
        variants = [replace(variant, n_shared=0) for variant in variants]
    order = sorted(range(len(variants)), key=lambda index: variants[index].n_shared)
    first, last = variants[order[0]].n_shared, variants[order[-1]].n_shared
    lent = nullcontext((None, 0)) if prefix is None else prefix.lend(model, base, first, keep=last)
    with lent as (cache, n_fed):
        if cache is None and shares:
            cache = new_cache(model)
        for index in order:
            variant = variants[index]
            if variant.n_shared > n_fed:
                # The cache grows where it is; what its last row predicts is not asked for.
                run(base[: variant.n_shared], base[variant.n_shared : variant.n_shared + 1], chunk, cache, n_fed)
                n_fed = variant.n_shared
            hidden = variant.hidden
            step = chunk if hidden is None else min(KNOCKOUT_CHUNK, chunk or KNOCKOUT_CHUNK)
            with nullcontext() if hidden is None else knocked_out(model, hidden, n_fed):
                scored = run(variant.ids, targets, step, _copied(cache), n_fed)
            yield index, scored


def _copied(cache: Any) -> Any:
    """A cache that can grow while the given one stays as it is; keys and values are shared where layers allow it."""
    if cache is None:
        return None
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    layers = getattr(cache, "layers", None)
    if layers is None or any(type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers):
        return copy.deepcopy(cache)
    # These layers put new tensors in the place of old ones and write into none.
    copied = copy.copy(cache)
    copied.layers = [copy.copy(layer) for layer in layers]
    return copied
