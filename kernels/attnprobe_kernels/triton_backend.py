"""Launches of the Triton kernels. Nothing here waits for the device, and nothing of the inputs is copied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import numpy as np
import torch
import triton
from torch import Tensor

from attnprobe_kernels.backends import wide_offsets
from attnprobe_kernels.pieces import piece_table
from attnprobe_kernels.rows import RowArguments
from attnprobe_kernels.segments import Segments
from attnprobe_kernels.spans import SpanTop
from attnprobe_kernels.tiles import (
    BOUND_BLOCK,
    PIECE_TILE,
    Tiles,
    choose_unit,
    column_tiles,
    compiler_options,
    device_of,
    loaded_tiles,
    map_shares,
    map_tile,
    map_tiles,
    merge_tile,
    span_tiles,
    split_head_dim,
)
from attnprobe_kernels.triton_column_mass import column_mass_kernel, row_bounds_kernel
from attnprobe_kernels.triton_prefill_map import add_pieces_kernel, prefill_map_kernel
from attnprobe_kernels.triton_span_lse import merge_units_kernel, unit_lse_kernel
from attnprobe_kernels.units import UnitTable, narrowed, seen_columns, unit_table

MAX_LATE_SCALE = 2000.0
MAX_PROGRAMS = 2**31 - 1


def uses_ptx(device: torch.device) -> bool:
    """Whether kernels on this device may use NVIDIA's instructions."""
    return device.type == "cuda" and torch.version.hip is None


@contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Make the tensors' device the current one: Triton launches there, and a model may be spread over several.

    What compiling or launching ends with is told with the way round it: a machine may lack a compiler, say.
    """
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield
    except (ValueError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise RuntimeError(
            f'the Triton kernels cannot be compiled or launched on {device}; use backend="chunked" '
            f"({type(error).__name__}: {error})"
        ) from error


def _scattered(args: RowArguments) -> bool:
    return args.q.shape[3] > 1 and (args.q.stride(3) != 1 or args.k.stride(3) != 1)


def late_scale(args: RowArguments) -> bool:
    """Whether the maximum of logits can be taken before their last factor.

    It must be positive, really the last, and small enough to leave the running maximum's start finite.
    """
    factor = args.scale if args.softcap is None else 2 * args.softcap
    return args.key_bias is None and args.alibi_slopes is None and 0 < factor <= MAX_LATE_SCALE


def _grid(*axes: int) -> tuple[int]:
    programs = 1
    for axis in axes:
        programs *= axis
    if programs > MAX_PROGRAMS:
        raise ValueError(f"{programs} programs in one launch: hand over fewer rows or fewer segments at a time")
    return (programs,)


def _features(args: RowArguments) -> dict[str, object]:
    """Launch arguments that say what a logit is made of, the same for every kernel."""
    bias, slopes, visible = args.key_bias, args.alibi_slopes, args.visible_on_device()
    head_stride = 0 if bias is None or bias.shape[1] == 1 else bias.stride(1)
    first, second = split_head_dim(args.q.shape[3])
    return {
        "q": args.q,
        "k": args.k,
        "visible": visible,
        "slopes": slopes,
        "bias": bias,
        "scale": args.scale,
        "softcap": 0.0 if args.softcap is None else float(args.softcap),
        **{f"stride_q{axis}": stride for axis, stride in zip("bhad", args.q.stride(), strict=True)},
        **{f"stride_k{axis}": stride for axis, stride in zip("bhnd", args.k.stride(), strict=True)},
        **{f"stride_v{axis}": stride for axis, stride in zip("bac", visible.stride(), strict=True)},
        "stride_bb": 0 if bias is None else bias.stride(0),
        "stride_bh": head_stride,
        "stride_bn": 0 if bias is None else bias.stride(2),
        "stride_slope": 0 if slopes is None else slopes.stride(0),
        "G": args.q.shape[1] // args.k.shape[1],
        "D": args.q.shape[3],
        "D1": first,
        "D2": second,
        "SOFTCAP": 0 if args.softcap is None else 2 if uses_ptx(args.q.device) else 1,
        "ALIBI": args.alibi_slopes is not None,
        "PRECISION": "tf32" if args.allow_tf32 else "ieee",
    }


def _plan(args: RowArguments, segments: list[Segments], *, top: bool) -> tuple[Tiles, UnitTable]:
    """Tiles for these rows, and what they see of the segments, cut into units that suit them."""
    group = args.q.shape[1] // args.k.shape[1]
    packed_rows = args.q.shape[2] * group
    device = device_of(args.q.device)
    tiles = (loaded_tiles if top else span_tiles)(
        device,
        args.q.dtype,
        args.q.shape[3],
        packed_rows,
        per_head_bias=args.key_bias is not None and args.key_bias.shape[1] > 1,
        scattered=_scattered(args),
    )
    owned = tuple(segments)
    if isinstance(args.visible, np.ndarray):  # else all keys: looking would wait for the device
        owned = narrowed(owned, seen_columns(args.visible))
    n_programs = triton.cdiv(packed_rows, tiles.rows) * args.k.shape[1]
    unit = choose_unit(device, owned, tiles, n_programs)
    return tiles, unit_table(owned, unit, args.q.device)


def _span_passes(
    args: RowArguments, segments: list[Segments], sinks: Tensor | None, *, top: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Both launches: log-sum-exp of units, then of spans; largest logits and their columns are empty without ``top``.

    Returns
    -------
    float32, float32 and int32 ``[B, Hq, A, S]``, one more column with sinks.
    """
    n_samples, n_q_heads, n_rows, _ = args.q.shape
    n_kv_heads, n_spans = args.k.shape[1], max(table.n_spans for table in segments)
    group = n_q_heads // n_kv_heads
    floats = partial(torch.empty, dtype=torch.float32, device=args.q.device)
    integers = partial(torch.empty, dtype=torch.int32, device=args.q.device)

    def outputs(shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
        return floats(shape), floats(shape if top else 0), integers(shape if top else 0)

    n_columns = n_spans + (sinks is not None)
    lse, logit, key = outputs((n_samples, n_q_heads, n_rows, n_columns))
    if not lse.numel():
        return lse, logit, key
    with _on(args.q.device):
        tiles, table = _plan(args, segments, top=top)
        n_units = table.units.shape[0]
        n_blocks = triton.cdiv(n_rows * group, tiles.rows)
        unit_lse, unit_logit, unit_key = outputs((n_units, n_kv_heads, n_rows * group))
        if n_units:
            unit_lse_kernel[_grid(n_blocks, n_kv_heads, n_units)](
                units=table.units,
                out=unit_lse,
                top=unit_logit if top else None,
                key=unit_key if top else None,
                n_rows=n_rows,
                n_blocks=n_blocks,
                n_kv_heads=n_kv_heads,
                BM=tiles.rows,
                BN=tiles.keys,
                BE=tiles.edge,
                BIAS=0 if args.key_bias is None else 1 if args.key_bias.shape[1] == 1 else 2,
                LATE_SCALE=late_scale(args),
                TOP=top,
                **compiler_options(nvidia=uses_ptx(args.q.device), tiles=tiles),
                **_features(args),
            )
        rows, units = merge_tile(n_rows * group)
        n_blocks = triton.cdiv(n_rows * group, rows)
        merge_units_kernel[_grid(n_blocks, n_kv_heads, n_samples, n_columns)](
            unit_lse,
            table.edges,
            sinks,
            lse,
            unit_logit if top else None,
            unit_key if top else None,
            logit if top else None,
            key if top else None,
            n_rows,
            n_blocks,
            n_kv_heads,
            n_spans,
            0 if sinks is None else sinks.stride(0),
            G=group,
            BR=rows,
            BU=units,
            TOP=top,
            SINKS=sinks is not None,
            **compiler_options(nvidia=uses_ptx(args.q.device)),
        )
    return lse, logit, key


def span_lse(args: RowArguments, segments: list[Segments], sinks: Tensor | None) -> Tensor:
    """Log-sum-exp of each span's logits, float32 ``[B, Hq, A, S]``, then the sink's logit; ``-inf`` where a row sees
    none of a span."""
    return _span_passes(args, segments, sinks, top=False)[0]


def span_top(args: RowArguments, segments: list[Segments], sinks: Tensor | None) -> SpanTop:
    """Log-sum-exp, largest logit and its lowest column of each span, each ``[B, Hq, A, S]``; then the sink's."""
    return SpanTop(*_span_passes(args, segments, sinks, top=True))


def column_mass(args: RowArguments, lse_total: Tensor, sinks: Tensor | None) -> Tensor:
    """Mean over rows of each key's share of exp(lse_total) and the sink's weight, float32 ``[B, Hq, N]``."""
    n_samples, n_q_heads, n_rows, head_dim = args.q.shape
    n_keys = args.k.shape[2]
    device = device_of(args.q.device)
    out = torch.empty((n_samples, n_q_heads, n_keys), dtype=torch.float32, device=args.q.device)
    if not out.numel():
        return out
    tiles = column_tiles(device, args.q.dtype, head_dim, n_rows, scattered=_scattered(args))
    n_blocks, n_tiles = triton.cdiv(n_rows, tiles.rows), triton.cdiv(n_keys, tiles.keys)
    features = _features(args)
    bounds = torch.empty((n_samples, n_q_heads, n_blocks, 4), dtype=torch.int32, device=args.q.device)
    total2 = torch.empty((n_samples, n_q_heads, n_blocks * tiles.rows), dtype=torch.float32, device=args.q.device)
    with _on(args.q.device):
        row_bounds_kernel[_grid(n_blocks, n_q_heads, n_samples)](
            features["visible"],
            lse_total,
            sinks,
            bounds,
            total2,
            n_rows,
            n_blocks,
            n_q_heads,
            *(features[f"stride_v{axis}"] for axis in "bac"),
            *lse_total.stride(),
            0 if sinks is None else sinks.stride(0),
            BR=tiles.rows,
            SINKS=sinks is not None,
            **compiler_options(nvidia=uses_ptx(args.q.device)),
        )
        column_mass_kernel[_grid(n_tiles, n_q_heads, n_samples)](
            bounds=bounds,
            total2=total2,
            out=out,
            n_rows=n_rows,
            n_blocks=n_blocks,
            n_keys=n_keys,
            n_tiles=n_tiles,
            n_kv_heads=args.k.shape[1],
            BN=tiles.keys,
            BR=tiles.rows,
            BE=tiles.edge,
            BB=BOUND_BLOCK,
            BIAS=args.key_bias is not None,
            **compiler_options(nvidia=uses_ptx(args.q.device), tiles=tiles),
            **features,
        )
    return out


def prefill_map(args: RowArguments, segments: list[Segments], blocks: np.ndarray, sinks: Tensor | None) -> Tensor:
    """Mean span mass of every block of rows, float32 ``[B, Hq, R, S]``, one more column with sinks."""
    n_samples, n_q_heads, n_rows, head_dim = args.q.shape
    n_spans = max(table.n_spans for table in segments)
    n_columns = n_spans + (sinks is not None)
    n_heads, n_blocks = n_samples * n_q_heads, blocks.shape[1] - 1
    floats = partial(torch.empty, dtype=torch.float32, device=args.q.device)
    out = floats((n_samples, n_q_heads, n_blocks, n_columns))
    if not out.numel() or not n_rows:
        return out.zero_()
    device = device_of(args.q.device)
    wide = wide_offsets(args)
    tiles = map_tiles(
        device,
        args.q.dtype,
        head_dim,
        n_rows,
        biased=args.key_bias is not None or args.alibi_slopes is not None,
        scattered=_scattered(args),
        wide=wide,
    )
    n_tiles = triton.cdiv(n_rows, tiles.rows)
    shares = map_shares(device, tiles.rows, n_heads, n_tiles, n_spans)
    across, columns = map_tile(tiles.rows, int(np.diff(blocks).max()))
    with _on(args.q.device):
        table = unit_table(tuple(segments), max(args.k.shape[2], 1), args.q.device)
        rows = piece_table(blocks, n_rows, tiles.rows, args.q.device)
        n_pieces = rows.pieces.shape[0]
        whole = n_pieces == n_samples * n_blocks  # each piece is a block
        sums = out if whole else floats((n_q_heads, n_pieces, n_columns))
        prefill_map_kernel[_grid(n_heads, shares)](
            units=table.units,
            unit_edges=table.edges,
            pieces=rows.pieces,
            tile_edges=rows.tile_edges,
            sinks=sinks,
            scratch=floats((n_heads * shares, n_spans, tiles.rows)),
            out=sums,
            n_tiles=n_tiles,
            n_q_heads=n_q_heads,
            n_spans=n_spans,
            n_shares=shares,
            # Where pieces are blocks, those of the samples before lie between this one's heads.
            stride_ob=(n_q_heads - 1) * n_blocks * n_columns if whole else 0,
            stride_oh=(n_blocks if whole else n_pieces) * n_columns,
            stride_sink=0 if sinks is None else sinks.stride(0),
            BM=tiles.rows,
            BN=tiles.keys,
            BE=tiles.edge,
            BR=across,
            BS=columns,
            BIAS=int(args.key_bias is not None),
            LATE_SCALE=late_scale(args),
            SINKS=sinks is not None,
            WIDE=wide,
            **compiler_options(nvidia=uses_ptx(args.q.device), tiles=tiles),
            **_features(args),
        )
        if not whole:
            add_pieces_kernel[_grid(n_blocks, n_heads)](
                sums,
                rows.block_edges,
                out,
                n_pieces,
                n_blocks,
                n_q_heads,
                n_columns,
                BP=PIECE_TILE[0],
                BC=PIECE_TILE[1],
                **compiler_options(nvidia=uses_ptx(args.q.device)),
            )
    return out
