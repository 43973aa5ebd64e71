"""Launches of the Triton kernels. Nothing here waits for the device, and nothing of the inputs is copied."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
import triton
from torch import Tensor

from attnprobe_kernels.rows import RowArguments
from attnprobe_kernels.segments import Segments
from attnprobe_kernels.tiles import (
    Tiles,
    choose_unit,
    column_tiles,
    compiler_options,
    device_of,
    merge_tile,
    span_tiles,
    split_head_dim,
)
from attnprobe_kernels.triton_column_mass import column_mass_kernel, row_bounds_kernel
from attnprobe_kernels.triton_prefill_map import block_mass_kernel
from attnprobe_kernels.triton_span_lse import merge_units_kernel, unit_lse_kernel
from attnprobe_kernels.units import UnitTable, unit_table

BOUND_BLOCK = 128
WORKSPACE_BYTES = 64 * 2**20
"""Bound on the unit log-sum-exps of one chunk of rows in ``prefill_map``, which is at least one block of rows."""
MAX_PROGRAMS = 2**31 - 1


def uses_ptx(device: torch.device) -> bool:
    """Whether kernels on this device may use NVIDIA's instructions."""
    return device.type == "cuda" and torch.version.hip is None


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Make the tensors' device the current one: Triton launches there, and a model may be spread over several."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _scattered(args: RowArguments) -> bool:
    return args.q.shape[3] > 1 and (args.q.stride(3) != 1 or args.k.stride(3) != 1)


def late_scale(args: RowArguments) -> bool:
    """Whether the maximum of logits can be taken before their last factor: it must be positive and really the last."""
    return args.key_bias is None and args.alibi_slopes is None and (args.scale > 0 or args.softcap is not None)


def _grid(*axes: int) -> tuple[int]:
    programs = 1
    for axis in axes:
        programs *= axis
    if programs > MAX_PROGRAMS:
        raise ValueError(f"{programs} programs in one launch: hand over fewer rows or fewer segments at a time")
    return (programs,)


def _features(args: RowArguments) -> dict[str, object]:
    """Launch arguments that say what a logit is made of, the same for every kernel."""
    bias = args.key_bias
    head_stride = 0 if bias is None or bias.shape[1] == 1 else bias.stride(1)
    first, second = split_head_dim(args.q.shape[3])
    return {
        "q": args.q,
        "k": args.k,
        "visible": args.visible_on_device(),
        "slopes": None if args.alibi_slopes is None else args.alibi_slopes.contiguous(),
        "bias": bias,
        "scale": args.scale,
        "softcap": 0.0 if args.softcap is None else float(args.softcap),
        "n_rows": args.q.shape[2],
        "n_kv_heads": args.k.shape[1],
        **{f"stride_q{axis}": stride for axis, stride in zip("bhad", args.q.stride(), strict=True)},
        **{f"stride_k{axis}": stride for axis, stride in zip("bhnd", args.k.stride(), strict=True)},
        "stride_bb": 0 if bias is None else bias.stride(0),
        "stride_bh": head_stride,
        "stride_bn": 0 if bias is None else bias.stride(2),
        "G": args.q.shape[1] // args.k.shape[1],
        "D": args.q.shape[3],
        "D1": first,
        "D2": second,
        "SOFTCAP": 0 if args.softcap is None else 2 if uses_ptx(args.q.device) else 1,
        "ALIBI": args.alibi_slopes is not None,
        "PRECISION": "tf32" if args.allow_tf32 else "ieee",
    }


def _plan(args: RowArguments, segments: list[Segments]) -> tuple[Tiles, UnitTable]:
    """Tiles for these rows, and the segments cut into units that suit them."""
    group = args.q.shape[1] // args.k.shape[1]
    packed_rows = args.q.shape[2] * group
    device = device_of(args.q.device)
    tiles = span_tiles(
        device,
        args.q.dtype,
        args.q.shape[3],
        packed_rows,
        per_head_bias=args.key_bias is not None and args.key_bias.shape[1] > 1,
        scattered=_scattered(args),
    )
    n_programs = triton.cdiv(packed_rows, tiles.rows) * args.k.shape[1]
    unit = choose_unit(device, tuple(segments), tiles, n_programs)
    return tiles, unit_table(tuple(segments), unit, args.q.device)


def _unit_lse(args: RowArguments, tiles: Tiles, table: UnitTable) -> Tensor:
    """Log-sum-exp of every unit, float32 ``[U, Hkv, A * G]``."""
    n_kv_heads, n_units = args.k.shape[1], table.units.shape[0]
    packed_rows = args.q.shape[2] * args.q.shape[1] // n_kv_heads
    n_blocks = triton.cdiv(packed_rows, tiles.rows)
    lse = torch.empty((n_units, n_kv_heads, packed_rows), dtype=torch.float32, device=args.q.device)
    if lse.numel():
        unit_lse_kernel[_grid(n_blocks, n_kv_heads, n_units)](
            units=table.units,
            out=lse,
            n_blocks=n_blocks,
            BM=tiles.rows,
            BN=tiles.keys,
            BE=tiles.edge,
            BIAS=0 if args.key_bias is None else 1 if args.key_bias.shape[1] == 1 else 2,
            LATE_SCALE=late_scale(args),
            **compiler_options(nvidia=uses_ptx(args.q.device), tiles=tiles),
            **_features(args),
        )
    return lse


def span_lse(args: RowArguments, segments: list[Segments]) -> Tensor:
    """Log-sum-exp of each span's logits, float32 ``[B, Hq, A, S]``; ``-inf`` where a row sees none of a span."""
    n_samples, n_q_heads, n_rows, _ = args.q.shape
    n_kv_heads = args.k.shape[1]
    n_spans = max(table.n_spans for table in segments)
    out = torch.empty((n_samples, n_q_heads, n_rows, n_spans), dtype=torch.float32, device=args.q.device)
    if not out.numel():
        return out
    rows, units = merge_tile(n_rows * n_q_heads // n_kv_heads)
    n_blocks = triton.cdiv(n_rows * n_q_heads // n_kv_heads, rows)
    with _on(args.q.device):
        tiles, table = _plan(args, segments)
        merge_units_kernel[_grid(n_blocks, n_kv_heads, n_samples, n_spans)](
            _unit_lse(args, tiles, table),
            table.edges,
            out,
            n_rows,
            n_blocks,
            n_kv_heads,
            n_spans,
            G=n_q_heads // n_kv_heads,
            BR=rows,
            BU=units,
            **compiler_options(nvidia=uses_ptx(args.q.device)),
        )
    return out


def column_mass(args: RowArguments, lse_total: Tensor) -> Tensor:
    """Mean over rows of each key's share of exp(lse_total), float32 ``[B, Hq, N]``."""
    n_samples, n_q_heads, n_rows, head_dim = args.q.shape
    n_keys = args.k.shape[2]
    device = device_of(args.q.device)
    out = torch.empty((n_samples, n_q_heads, n_keys), dtype=torch.float32, device=args.q.device)
    if not n_rows or not out.numel():
        return out.fill_(float("nan"))  # a mean over no rows
    tiles = column_tiles(device, args.q.dtype, head_dim, n_rows, scattered=_scattered(args))
    n_blocks, n_tiles = triton.cdiv(n_rows, tiles.rows), triton.cdiv(n_keys, tiles.keys)
    features = _features(args)
    bounds = torch.empty((n_samples, n_blocks, 4), dtype=torch.int32, device=args.q.device)
    total2 = torch.empty((n_samples, n_q_heads, n_blocks * tiles.rows), dtype=torch.float32, device=args.q.device)
    with _on(args.q.device):
        row_bounds_kernel[_grid(n_blocks, n_q_heads, n_samples)](
            features["visible"],
            lse_total.float().contiguous(),
            bounds,
            total2,
            n_rows,
            n_blocks,
            n_q_heads,
            BR=tiles.rows,
            **compiler_options(nvidia=uses_ptx(args.q.device)),
        )
        column_mass_kernel[_grid(n_tiles, n_q_heads, n_samples)](
            bounds=bounds,
            total2=total2,
            out=out,
            n_blocks=n_blocks,
            n_keys=n_keys,
            n_tiles=n_tiles,
            BN=tiles.keys,
            BR=tiles.rows,
            BE=tiles.edge,
            BB=BOUND_BLOCK,
            BIAS=args.key_bias is not None,
            **compiler_options(nvidia=uses_ptx(args.q.device), tiles=tiles),
            **features,
        )
    return out


def prefill_map(args: RowArguments, segments: list[Segments], block: int, sinks: Tensor | None) -> Tensor:
    """Mean span mass of every block of rows, float32 ``[B, Hq, ceil(A / block), S]``, one more column with sinks."""
    n_samples, n_q_heads, n_rows, _ = args.q.shape
    n_columns = max(table.n_spans for table in segments) + (sinks is not None)
    n_blocks = triton.cdiv(n_rows, block)
    out = torch.empty((n_samples, n_q_heads, n_blocks, n_columns), dtype=torch.float32, device=args.q.device)
    if not out.numel():
        return out
    with _on(args.q.device):
        tiles, table = _plan(args, segments)
        args = replace(args, visible=args.visible_on_device())  # uploaded once; chunks of rows are cut on the device
        row_bytes = 4 * n_q_heads * max(table.units.shape[0], 1)
        chunk = max(1, WORKSPACE_BYTES // (row_bytes * block))  # blocks at a time
        for first in range(0, n_blocks, chunk):
            rows = args.rows(first * block, min((first + chunk) * block, n_rows))
            out[:, :, first : first + chunk] = _block_mass(rows, tiles, table, block, sinks, n_columns)
    return out


def _block_mass(
    args: RowArguments, tiles: Tiles, table: UnitTable, block: int, sinks: Tensor | None, n_columns: int
) -> Tensor:
    n_samples, n_q_heads, n_rows, _ = args.q.shape
    rows, units = merge_tile(block)
    n_blocks, n_parts = triton.cdiv(n_rows, block), triton.cdiv(block, rows)
    out = torch.empty((n_samples, n_q_heads, n_blocks, n_parts, n_columns), dtype=torch.float32, device=args.q.device)
    block_mass_kernel[_grid(n_parts, n_blocks, n_q_heads, n_samples)](
        _unit_lse(args, tiles, table),
        table.edges,
        None if sinks is None else sinks.contiguous(),
        out,
        n_rows,
        n_blocks,
        n_parts,
        n_q_heads,
        n_columns - (sinks is not None),
        block,
        G=n_q_heads // args.k.shape[1],
        BR=rows,
        BU=units,
        SINKS=sinks is not None,
        **compiler_options(nvidia=uses_ptx(args.q.device)),
    )
    return out.sum(dim=3) if n_parts > 1 else out[:, :, :, 0]
