"""What is known of every span of keys in every query row."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class SpanTop(NamedTuple):
    """Log-sum-exp of each span, and its heaviest key.

    Parameters
    ----------
    lse
        float32 ``[B, Hq, A, S]``, natural log, as :func:`attnprobe_kernels.span_lse` gives it.
    top_logit
        float32 ``[B, Hq, A, S]``: the largest logit of a key of the span that the row sees; ``-inf`` where it sees
        none, nan where ``lse`` is. ``exp(top_logit - logsumexp(lse, -1))`` is the mass of the heaviest key.
    top_key
        int32 ``[B, Hq, A, S]``: that key's column, the lowest one on ties; -1 where ``top_logit`` is ``-inf`` or nan.
    """

    lse: Tensor
    top_logit: Tensor
    top_key: Tensor


def with_sinks(per_span: Tensor, sinks: Tensor | None) -> Tensor:
    """``[B, Hq, A, S]`` and, with sinks, one more column that holds the sink's logit."""
    if sinks is None:
        return per_span
    column = sinks.to(per_span.device, per_span.dtype)[None, :, None, None].expand(*per_span.shape[:3], 1)
    return torch.cat([per_span, column], dim=-1)


def totals_with_sinks(total: Tensor, sinks: Tensor | None) -> Tensor:
    """Totals over the keys ``[B, Hq, A]``, with the sink's weight added where there is one."""
    return total if sinks is None else torch.logaddexp(total, sinks.to(total)[None, :, None])


def top_with_sinks(found: SpanTop, sinks: Tensor | None) -> SpanTop:
    """The same of the heaviest keys: a sink is none."""
    if sinks is None:
        return found
    no_key = found.top_key.new_full((*found.top_key.shape[:3], 1), -1)
    return SpanTop(
        with_sinks(found.lse, sinks), with_sinks(found.top_logit, sinks), torch.cat([found.top_key, no_key], dim=-1)
    )


def settle(lse: Tensor, top: Tensor, key: Tensor) -> SpanTop:
    """The result where no span without weight, and none without a sum, has a heaviest key."""
    undefined = torch.isnan(lse)
    none = undefined | (top == float("-inf"))
    return SpanTop(lse, top.masked_fill(undefined, float("nan")), key.masked_fill(none, -1))
