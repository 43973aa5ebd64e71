"""No time without a right result: a sample of what is computed, against dense float64 on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnprobe_kernels import Segments, SpanTop, column_mass, span_lse
from attnprobe_kernels.naive import logits
from attnprobe_kernels.rows import check_rows
from benchmarks.registry import ROW_BLOCK, Case, Inputs

RELATIVE = 1e-4
"""Of a mass, where the mass is at least ``FROM_MASS``: the kernels' contract for bf16 and fp16 inputs."""
ABSOLUTE = 1e-5
"""Of a mass, float32 inputs."""
RIVAL_ABSOLUTE = 2e-2
"""Of a mass, for what a user would do instead: probabilities rounded to bf16 are off by that much."""
FROM_MASS = 1e-6


@dataclass(frozen=True)
class Verdict:
    """Whether a result may be timed, its largest errors, and why not."""

    ok: bool
    absolute: float
    relative: float
    reason: str = ""


def sampled_heads(case: Case) -> list[int]:
    """The first and the last query head: of different key heads where there are several."""
    return sorted({0, case.n_q_heads - 1})


def sampled_rows(case: Case) -> list[int]:
    """A few rows that include both ends."""
    return sorted(set(np.linspace(0, case.n_rows - 1, 6).astype(int).tolist()))


def sampled_blocks(case: Case) -> list[int]:
    """The first, a middle and the last block of rows."""
    last = -(-case.n_rows // ROW_BLOCK) - 1
    return sorted({0, last // 2, last})


def _head_inputs(case: Case, inputs: Inputs, head: int, rows: Sequence[int]) -> tuple[Tensor, Tensor, np.ndarray]:
    """Queries, keys and intervals of one query head, from the first key on that any row sees."""
    kv_head = head // case.group
    first = case.first_key
    keys = inputs.k[:, kv_head : kv_head + 1, first:]
    queries = inputs.q[:, head : head + 1, list(rows)]
    return queries, keys, case.visible[None, list(rows)] - np.int32(first)


def _head_lse(case: Case, inputs: Inputs, head: int, rows: Sequence[int]) -> Tensor:
    """float64 ``[len(rows), S]`` of one query head, by the definition."""
    queries, keys, visible = _head_inputs(case, inputs, head, rows)
    segments: Segments = case.segments.clip(case.first_key, case.n_keys - case.first_key)
    return span_lse(queries, keys, segments, visible=visible, backend="naive")[0, 0]


def _head_logits(case: Case, inputs: Inputs, head: int, rows: Sequence[int]) -> Tensor:
    """float64 ``[len(rows), N]`` of one query head, by the definition; ``-inf`` where a row does not see a key."""
    queries, keys, visible = _head_inputs(case, inputs, head, rows)
    z = logits(check_rows(queries, keys, visible=visible))[0, 0]
    return torch.nn.functional.pad(z, (case.first_key, 0), value=float("-inf"))


def _column_reference(case: Case, inputs: Inputs, head: int) -> Tensor:
    """float64 ``[N]`` of one query head, in blocks of rows."""
    assert inputs.total is not None
    kv_head = head // case.group
    first = case.first_key
    keys = inputs.k[:, kv_head : kv_head + 1, first:]
    out = torch.zeros(case.n_keys, dtype=torch.float64, device=keys.device)
    for start in range(0, case.n_rows, 64):
        rows = slice(start, min(start + 64, case.n_rows))
        queries, total = inputs.q[:, head : head + 1, rows], inputs.total[:, head : head + 1, rows]
        visible = case.visible[None, rows] - np.int32(first)
        part = column_mass(queries, keys, total, visible=visible, backend="naive")
        out[first:] += part[0, 0] * (queries.shape[2] / case.n_rows)
    return out


@dataclass(frozen=True)
class Expected:
    """What a sample of a result must be, and how to take it.

    Parameters
    ----------
    masses
        float64.
    totals
        Of the rows, in nats, of what gives logs.
    logits
        float64 ``[heads, rows, N]``, of what names keys.
    """

    masses: Tensor
    totals: Tensor | None
    sample: Callable[[Tensor], Tensor]
    logits: Tensor | None = None


def reference(case: Case, inputs: Inputs) -> Expected:
    """What the sampled part of a result must be."""
    heads = sampled_heads(case)
    if case.operation in ("span_lse", "span_top"):
        rows = sampled_rows(case)
        lse = torch.stack([_head_lse(case, inputs, head, rows) for head in heads])
        z = None
        if case.operation == "span_top":
            z = torch.stack([_head_logits(case, inputs, head, rows) for head in heads])
        totals = torch.logsumexp(lse, -1)
        return Expected(torch.softmax(lse, -1), totals, lambda found: found[0][heads][:, rows], z)
    if case.operation == "column_mass":
        masses = torch.stack([_column_reference(case, inputs, head) for head in heads])
        return Expected(masses, None, lambda found: found[0][heads])
    blocks = sampled_blocks(case)
    ranges = [range(b * ROW_BLOCK, min((b + 1) * ROW_BLOCK, case.n_rows)) for b in blocks]
    means = [
        torch.stack([torch.softmax(_head_lse(case, inputs, head, rows), -1).mean(0) for rows in ranges])
        for head in heads
    ]
    return Expected(torch.stack(means), None, lambda found: found[0][heads][:, blocks])


def _failed(reason: str) -> Verdict:
    return Verdict(False, float("inf"), float("inf"), reason)


def judge(found: Tensor, wanted: Tensor, *, relative: float | None, absolute: float | None) -> Verdict:
    """Compare masses with the reference; a bound of None is not asked for. NaN never passes.

    With a relative bound, masses too faint for one are held to ``ABSOLUTE``: where there is none, none may be found.
    """
    if found.shape != wanted.shape:
        return _failed(f"shape {tuple(found.shape)} instead of {tuple(wanted.shape)}")
    gap = (found.double() - wanted).abs()
    big = wanted >= FROM_MASS
    worst = float(gap.max())
    worst_relative = float((gap[big] / wanted[big]).max()) if bool(big.any()) else 0.0
    worst_faint = float(gap[~big].max()) if not bool(big.all()) else 0.0
    reasons = []
    if not np.isfinite(worst):
        reasons.append("not finite")
    if absolute is not None and not worst <= absolute:
        reasons.append(f"a mass is off by {worst:.1e}; {absolute:.0e} is allowed")
    if relative is not None and not worst_relative <= relative:
        reasons.append(f"a mass is off by {worst_relative:.1e} of itself; {relative:.0e} is allowed")
    if relative is not None and not worst_faint <= ABSOLUTE:
        reasons.append(f"a mass of next to nothing is off by {worst_faint:.1e}; {ABSOLUTE:.0e} is allowed")
    return Verdict(not reasons, worst, worst_relative, "; ".join(reasons))


def _fault_of_top(segments: Segments, z: Tensor, logit: Tensor, key: Tensor) -> str:
    """What is wrong with largest logits and their keys ``[heads, rows, S]``, beside all logits; empty if nothing is."""
    columns = torch.arange(z.shape[-1], device=z.device)
    for owner, (start, stop) in enumerate(zip(segments.starts, segments.stops, strict=True)):
        of_span = z[..., start:stop]
        largest = of_span.amax(-1) if stop > start else z.new_full(z.shape[:-1], float("-inf"))
        found, named = logit[..., owner].double(), key[..., owner].long()
        none = largest == float("-inf")
        if not torch.equal(found == float("-inf"), none) or not torch.equal(named == -1, none):
            return f"span {owner}: a heaviest key where a row sees none, or none where it sees some"
        if bool(none.all()):
            continue
        if not bool(torch.isin(named[~none], columns[start:stop]).all()):
            return f"span {owner}: a heaviest key is not of the span"
        gap = float((found - largest)[~none].abs().max())
        if not gap <= RELATIVE:
            return f"span {owner}: a largest logit is off by {gap:.1e} nats"
        there = z.gather(-1, named.clamp(min=0)[..., None])[..., 0]
        gap = float((largest - there)[~none].max())
        if not gap <= RELATIVE:
            return f"span {owner}: the logit of a heaviest key is {gap:.1e} nats below the largest"
    return ""


def _parts(result: Tensor | SpanTop) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def check_own(case: Case, inputs: Inputs, expected: Expected, call: Callable[[], Tensor | SpanTop]) -> Verdict:
    """Judge an operation of this package: tight bounds, every element written, and the same bits when repeated."""
    parts = _parts(call())
    poison = [torch.full_like(part, float("nan") if part.is_floating_point() else -(2**30)) for part in parts]
    del poison  # its memory is what the next result is likely to be given
    if not all(map(torch.equal, parts, _parts(call()))):
        return _failed("two calls on the same inputs differ, or left an element out")
    found, *top = (expected.sample(part) for part in parts)
    found = found.double()
    if expected.totals is not None:
        # Masses alone would not show a constant added to a whole row.
        totals = torch.logsumexp(found, -1)
        gap = float((totals - expected.totals).abs().max())
        if not gap <= RELATIVE:
            return _failed(f"a row's total is off by {gap:.1e} nats")
        found = torch.exp(found - totals[..., None])
    if expected.logits is not None:
        fault = _fault_of_top(case.segments, expected.logits, *top)
        if fault:
            return _failed(fault)
    if inputs.q.dtype == torch.float32:
        return judge(found, expected.masses, relative=None, absolute=ABSOLUTE)
    return judge(found, expected.masses, relative=RELATIVE, absolute=None)


def check_rival(expected: Expected, call: Callable[[], Tensor]) -> Verdict:
    """Judge masses that come from elsewhere, by a bound that bf16 probabilities can meet."""
    return judge(expected.sample(call()), expected.masses, relative=None, absolute=RIVAL_ABSOLUTE)
