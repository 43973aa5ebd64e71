"""What a user would do instead, each with the memory it needs: what does not fit is left out, and said.

``matrix``          the softmax matrix, as eager attention writes it down, summed over spans or rows
``one-hot``         fused attention (SDPA) with one-hot values: column s of the output is the mass of span s
``flex``            the same through FlexAttention, compiled
``compiled``        the plain torch backend's arithmetic, one step of keys compiled by ``torch.compile``
``forward``         a plain fused forward pass of the same shape: gives no masses; a yardstick
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from benchmarks.registry import ROW_BLOCK, Case, Inputs, Operation

STEP_BYTES = 256 * 2**20
"""Logits of one step of ``compiled``."""
SLOW_LOGITS = 2**34
"""Above this, float32 arithmetic without tensor cores takes many seconds."""
SLOW = "would take many seconds"


@dataclass(frozen=True)
class Rival:
    """One alternative.

    Parameters
    ----------
    memory
        Bytes it needs beside q and k, for a case and bytes an element.
    build
        Prepares what is not timed (masks, values) and gives the call: masses as the operation would give them, with
        ``column_mass`` and ``prefill_map`` as they are and ``span_lse`` as masses instead of logs.
    gives_masses
        False for a yardstick, whose result is something else.
    refuses
        Why a case is left out whatever the memory; None if it is not.
    compiles
        Whether it is compiled anew for every shape, which takes many seconds.
    """

    name: str
    operations: tuple[Operation, ...]
    memory: Callable[[Case, int], int]
    build: Callable[[Case, Inputs], Callable[[], Tensor]]
    gives_masses: bool = True
    refuses: Callable[[Case], str | None] = lambda case: None
    compiles: bool = False


def _compiled(function: Callable[..., Any], device: torch.device, **options: Any) -> Callable[..., Any]:
    """Compiled on a GPU; as it is on a CPU, where only the arithmetic is of interest."""
    if device.type != "cuda":
        return function
    # Past its limit of shapes, torch would quietly go on without compiling.
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(function, **options)


def _seen_keys(case: Case, k: Tensor) -> Tensor:
    """The keys that any row sees: nobody would hand over more."""
    return k[:, :, case.first_key :]


def _allowed(case: Case, rows: slice, device: torch.device) -> Tensor:
    """bool ``[rows, seen keys]``."""
    lo, hi = torch.from_numpy(case.visible[rows]).to(device).unbind(-1)
    columns = torch.arange(case.first_key, case.n_keys, device=device)
    return (columns >= lo[:, None]) & (columns < hi[:, None])


def _owners(case: Case, device: torch.device) -> Tensor:
    """Span of each seen key, int64."""
    table = case.segments
    lengths = torch.tensor(table.stops) - torch.tensor(table.starts)
    return torch.repeat_interleave(torch.tensor(table.owners), lengths)[case.first_key :].to(device)


def _one_hot(case: Case, k: Tensor) -> Tensor:
    """Values ``[1, Hkv, seen keys, D]`` whose column s marks the keys of span s: fused kernels want D columns."""
    columns = torch.arange(case.head_dim, device=k.device)
    hot = (_owners(case, k.device)[:, None] == columns).to(k.dtype)
    return hot.expand(1, case.n_kv_heads, -1, -1).contiguous()


def _more_spans_than_columns(case: Case) -> str | None:
    spans = case.segments.n_spans
    return f"{spans} spans, values have {case.head_dim} columns" if spans > case.head_dim else None


def _span_masses(case: Case, out: Tensor) -> Tensor:
    """The operation's result from attention over one-hot values ``[1, Hq, A, D]``."""
    masses = out[..., : case.segments.n_spans].float()
    return _mean_of_blocks(masses) if case.operation == "prefill_map" else masses


def _mean_of_blocks(masses: Tensor) -> Tensor:
    """Mean over blocks of rows: ``[1, Hq, A, S]`` to ``[1, Hq, blocks, S]``."""
    n_rows = masses.shape[2]
    n_blocks = -(-n_rows // ROW_BLOCK)
    sums = pad(masses, (0, 0, 0, n_blocks * ROW_BLOCK - n_rows)).unflatten(2, (n_blocks, ROW_BLOCK)).sum(3)
    sizes = torch.full((n_blocks,), float(ROW_BLOCK), device=masses.device)
    sizes[-1] = n_rows - (n_blocks - 1) * ROW_BLOCK
    return sums / sizes[:, None]


def _matrix(case: Case, inputs: Inputs) -> Callable[[], Tensor]:
    k = _seen_keys(case, inputs.k)
    hidden = ~_allowed(case, slice(None), k.device)
    owners = _owners(case, k.device)
    n_spans = case.segments.n_spans

    def call() -> Tensor:
        keys = k.repeat_interleave(case.group, dim=1)
        z = torch.matmul(inputs.q, keys.transpose(2, 3)) * case.head_dim**-0.5
        weights = z.masked_fill(hidden, float("-inf")).softmax(-1, dtype=torch.float32)
        if case.operation == "column_mass":
            return pad(weights.mean(2), (case.first_key, 0))
        masses = weights.new_zeros((*weights.shape[:3], n_spans)).index_add_(3, owners, weights)
        return _mean_of_blocks(masses) if case.operation == "prefill_map" else masses

    return call


def _matrix_bytes(case: Case, element: int) -> int:
    pairs = case.n_rows * (case.n_keys - case.first_key)
    # The product, its scaled and its masked copy, the float32 softmax; the mask; the repeated keys.
    return pairs * (case.n_q_heads * (3 * element + 4) + 1) + element * case.n_q_heads * case.n_keys * case.head_dim


@contextmanager
def _fused(device: torch.device) -> Iterator[None]:
    """Fused kernels only: the plain one would silently build the matrix."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if device.type != "cuda":
        yield
        return
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        yield


def _fused_call(case: Case, inputs: Inputs, v: Tensor) -> Callable[[], Tensor]:
    """Fused attention over the seen keys: without a mask, with a causal one, or with the window's."""
    from torch.nn.attention.bias import causal_lower_right

    q, k = inputs.q, _seen_keys(case, inputs.k)
    arguments: dict[str, Any] = {"enable_gqa": case.group > 1}
    if case.window is not None and case.n_rows > 1:
        # Fused kernels take a mask only with as many key heads as query heads.
        k, v = (tensor.repeat_interleave(case.group, dim=1) for tensor in (k, v))
        arguments = {"attn_mask": _allowed(case, slice(None), q.device)}
    elif case.n_rows == k.shape[2]:
        arguments["is_causal"] = True
    elif case.n_rows > 1:
        arguments["attn_mask"] = causal_lower_right(case.n_rows, k.shape[2])

    def call() -> Tensor:
        with _fused(q.device):
            return scaled_dot_product_attention(q, k, v, **arguments)

    return call


def _fused_bytes(case: Case, element: int) -> int:
    keys = case.n_keys - case.first_key
    masked = case.window is not None and case.n_rows > 1
    copies = 2 * case.n_q_heads + case.n_kv_heads if masked else case.n_kv_heads
    out = case.n_q_heads * case.n_rows * case.head_dim * (element + 4)
    return element * copies * keys * case.head_dim + out + (case.n_rows * keys * 3 if masked else 0)


def _with_one_hot(case: Case, inputs: Inputs) -> Callable[[], Tensor]:
    attend = _fused_call(case, inputs, _one_hot(case, _seen_keys(case, inputs.k)))
    return lambda: _span_masses(case, attend())


def _forward(case: Case, inputs: Inputs) -> Callable[[], Tensor]:
    return _fused_call(case, inputs, torch.randn_like(_seen_keys(case, inputs.k)))


@lru_cache(maxsize=1)
def _flex_attention(kind: str) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return _compiled(flex_attention, torch.device(kind), dynamic=False)


def _flex(case: Case, inputs: Inputs) -> Callable[[], Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask

    q, k = inputs.q, _seen_keys(case, inputs.k)
    n_keys = k.shape[2]
    offset, window = n_keys - case.n_rows, case.window or n_keys + 1

    def sees(b: Tensor, h: Tensor, row: Tensor, key: Tensor) -> Tensor:
        distance = row + offset - key
        return (distance >= 0) & (distance < window)

    on_gpu = q.device.type == "cuda"
    mask = create_block_mask(sees, None, None, case.n_rows, n_keys, device=q.device, _compile=on_gpu)
    v = _one_hot(case, k)
    attend = _flex_attention(q.device.type)
    return lambda: _span_masses(case, attend(q, k, v, block_mask=mask, enable_gqa=case.group > 1))


def _flex_bytes(case: Case, element: int) -> int:
    keys = case.n_keys - case.first_key
    blocks = -(-case.n_rows // 128) * -(-keys // 128)
    out = case.n_q_heads * case.n_rows * case.head_dim * (element + 4)
    return element * case.n_kv_heads * keys * case.head_dim + out + 32 * blocks


def _step_logits(q: Tensor, k: Tensor, lo: Tensor, hi: Tensor, start: Tensor) -> Tensor:
    """float32 logits ``[Hkv, G, A, C]`` of packed, scaled queries ``[Hkv, G, A, D]`` and one step of keys."""
    z = torch.einsum("hgad,hcd->hgac", q, k.float())
    columns = start + torch.arange(k.shape[1], device=k.device)
    return z.masked_fill((columns < lo[:, None]) | (columns >= hi[:, None]), float("-inf"))


def _step_lse(q: Tensor, k: Tensor, lo: Tensor, hi: Tensor, start: Tensor) -> Tensor:
    return torch.logsumexp(_step_logits(q, k, lo, hi, start), -1)


def _step_columns(q: Tensor, k: Tensor, lo: Tensor, hi: Tensor, start: Tensor, total: Tensor) -> Tensor:
    return torch.exp(_step_logits(q, k, lo, hi, start) - total[..., None]).mean(2)


@lru_cache(maxsize=2)
def _step(operation: str, kind: str) -> Callable[..., Tensor]:
    function = _step_columns if operation == "column_mass" else _step_lse
    return _compiled(function, torch.device(kind), dynamic=True)


def _step_length(case: Case) -> int:
    return max(256, STEP_BYTES // (4 * case.n_q_heads * case.n_rows))


def _compiled_steps(case: Case, inputs: Inputs) -> Callable[[], Tensor]:
    device = inputs.k.device
    step = _step(case.operation, device.type)
    lo, hi = torch.from_numpy(case.visible).to(device).unbind(-1)
    table, length = case.segments, _step_length(case)
    pieces = [
        (owner, start, min(start + length, stop))
        for owner, first, stop in zip(table.owners, table.starts, table.stops, strict=True)
        for start in range(max(first, case.first_key), stop, length)
    ]
    starts = torch.tensor([start for _, start, _ in pieces], device=device)
    q = inputs.q[0].unflatten(0, (case.n_kv_heads, case.group))

    def lse() -> Tensor:
        scaled = q.float() * case.head_dim**-0.5
        out = scaled.new_full((*q.shape[:3], table.n_spans), float("-inf"))
        for number, (owner, start, stop) in enumerate(pieces):
            part = step(scaled, inputs.k[0, :, start:stop], lo, hi, starts[number])
            out[..., owner] = torch.logaddexp(out[..., owner], part)
        return torch.softmax(out, -1).flatten(0, 1)[None]

    def columns() -> Tensor:
        assert inputs.total is not None
        scaled = q.float() * case.head_dim**-0.5
        total = inputs.total[0].unflatten(0, (case.n_kv_heads, case.group))
        out = total.new_zeros((*q.shape[:2], case.n_keys))
        for number, (_, start, stop) in enumerate(pieces):
            out[..., start:stop] = step(scaled, inputs.k[0, :, start:stop], lo, hi, starts[number], total)
        return out.flatten(0, 1)[None]

    return columns if case.operation == "column_mass" else lse


def _compiled_bytes(case: Case, element: int) -> int:
    step = min(_step_length(case), case.n_keys)
    return 4 * (3 * case.n_q_heads * case.n_rows * step + case.n_q_heads * case.n_rows * case.head_dim)


def _too_slow(case: Case) -> str | None:
    return SLOW if case.n_logits > SLOW_LOGITS else None


MASSES: tuple[Operation, ...] = ("span_lse", "column_mass", "prefill_map")

RIVALS = (
    Rival("matrix", MASSES, _matrix_bytes, _matrix),
    Rival("one-hot", ("span_lse", "prefill_map"), _fused_bytes, _with_one_hot, refuses=_more_spans_than_columns),
    Rival("flex", ("span_lse", "prefill_map"), _flex_bytes, _flex, refuses=_more_spans_than_columns, compiles=True),
    Rival("compiled", ("span_lse", "column_mass"), _compiled_bytes, _compiled_steps, refuses=_too_slow),
    Rival("forward", MASSES, _fused_bytes, _forward, gives_masses=False),
)
