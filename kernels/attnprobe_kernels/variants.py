"""Which variants of the kernels to compile for which targets, and their compile-time arguments."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from attnprobe_kernels.tiles import (
    BOUND_BLOCK,
    MAX_FLOAT32_HEAD_DIM_AMD,
    MAX_HEAD_DIM,
    MAX_HEAD_DIM_WIDE,
    PIECE_TILE,
    Device,
    Tiles,
    column_tiles,
    loaded_tiles,
    map_tile,
    map_tiles,
    merge_tile,
    span_tiles,
    split_head_dim,
)

KIB = 1024


@dataclass(frozen=True)
class Target:
    """A device to compile for, and the limits that its programs must keep."""

    name: str
    device: Device
    warp: int
    max_threads: int  # of one processor
    registers: int  # of one processor (NVIDIA), or of one thread of a lone wave (AMD)


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("sm_80", Device(108, 163 * KIB, 164 * KIB, 8), 32, 2048, 65536),
        Target("sm_86", Device(84, 99 * KIB, 100 * KIB, 8), 32, 1536, 65536),
        Target("sm_89", Device(128, 99 * KIB, 100 * KIB, 8), 32, 1536, 65536),
        Target("sm_90", Device(132, 227 * KIB, 228 * KIB, 9), 32, 2048, 65536),
        Target("sm_100", Device(148, 227 * KIB, 228 * KIB, 10), 32, 2048, 65536),
        Target("sm_120", Device(170, 99 * KIB, 100 * KIB, 8), 32, 1536, 65536),
        Target("gfx942", Device(304, 64 * KIB, 64 * KIB, 0), 64, 2048, 512),
    )
}

DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "tf32": torch.float32,
}
HEAD_DIMS = (16, 40, 64, 80, 96, 128, 192, 256, 512)
FEATURES: dict[str, frozenset[str]] = {
    "plain": frozenset(),
    "softcap": frozenset({"softcap"}),
    "bias": frozenset({"bias"}),
    "head bias": frozenset({"head_bias"}),
    "alibi": frozenset({"alibi"}),
    "all": frozenset({"softcap", "head_bias", "alibi"}),
}
ROWS = {"decode": (1, 4), "few": (9, 8), "many": (1024, 4)}  # query rows, query heads a key head
KERNELS = ("span_lse", "span_top", "column_mass", "prefill_map", "wide_map")  # the last: 64-bit offsets within a tile
LAYOUTS = ("contiguous", "scattered", "keys last")  # of the elements of the head dimension


@dataclass(frozen=True)
class Variant:
    """One kernel with one set of compile-time arguments, for one target."""

    kernel: str
    target: str
    dtype: str
    head_dim: int
    rows: str
    features: str
    layout: str

    @property
    def tiles(self) -> Tiles:
        """The tiles that a launch of this variant would use."""
        device, dtype = TARGETS[self.target].device, DTYPES[self.dtype]
        n_rows, group = ROWS[self.rows]
        scattered = self.layout != "contiguous"
        if self.kernel == "column_mass":
            return column_tiles(device, dtype, self.head_dim, n_rows, scattered=scattered)
        if self.kernel in ("prefill_map", "wide_map"):
            biased = bool(FEATURES[self.features] & {"bias", "head_bias", "alibi"})
            wide = self.kernel == "wide_map"
            return map_tiles(device, dtype, self.head_dim, n_rows, biased=biased, scattered=scattered, wide=wide)
        per_head_bias = "head_bias" in FEATURES[self.features]
        return (loaded_tiles if self.kernel == "span_top" else span_tiles)(
            device, dtype, self.head_dim, n_rows * group, per_head_bias=per_head_bias, scattered=scattered
        )

    def constants(self) -> dict[str, object]:
        """Compile-time arguments by name; ``None`` for an array that is not there."""
        features, tiles = FEATURES[self.features], self.tiles
        group = ROWS[self.rows][1]
        if self.kernel in ("merge_units", "merge_tops"):
            across, units = merge_tile(ROWS[self.rows][0] * group)
            top = self.kernel == "merge_tops"
            absent = {} if top else dict.fromkeys(("top_units", "key_units", "top", "key"))
            return {"G": group, "BR": across, "BU": units, "TOP": top, "SINKS": True, "stride_sink": 1} | absent
        if self.kernel == "add_pieces":
            return {"BP": PIECE_TILE[0], "BC": PIECE_TILE[1]}
        if self.kernel == "row_bounds":
            return {"BR": tiles.rows, "SINKS": True, "stride_vc": 1, "stride_sink": 1}
        first, second = split_head_dim(self.head_dim)
        bias = 2 if "head_bias" in features else int("bias" in features)
        softcap = 0 if "softcap" not in features else 2 if TARGETS[self.target].device.generation else 1
        constants: dict[str, object] = {
            "G": group,
            "D": self.head_dim,
            "D1": first,
            "D2": second,
            "SOFTCAP": softcap,
            "BIAS": bias,
            "ALIBI": "alibi" in features,
            "PRECISION": "tf32" if self.dtype == "tf32" else "ieee",
            "BN": tiles.keys,
            "stride_vc": 1,
            "stride_sink": 1,
            "stride_slope": 1,
        }
        late_scale = not bias and "alibi" not in features
        if self.kernel in ("span_lse", "span_top"):
            top = self.kernel == "span_top"
            constants |= {"BM": tiles.rows, "BE": tiles.edge, "LATE_SCALE": late_scale, "TOP": top}
            if not top:
                constants |= {"top": None, "key": None}
        elif self.kernel in ("prefill_map", "wide_map"):
            across, columns = map_tile(tiles.rows, tiles.rows)
            constants |= {"BM": tiles.rows, "BE": tiles.edge, "LATE_SCALE": late_scale, "BIAS": int(bias > 0)}
            constants |= {"BR": across, "BS": columns, "SINKS": True, "WIDE": self.kernel == "wide_map"}
        else:
            constants |= {"BR": tiles.rows, "BE": tiles.edge, "BB": BOUND_BLOCK, "BIAS": bias > 0}
        if not bias:
            constants |= {"bias": None}
        if "alibi" not in features:
            constants |= {"slopes": None}
        if self.layout == "contiguous":
            constants |= {"stride_qd": 1, "stride_kd": 1} | ({"stride_bn": 1} if bias else {})
        elif self.layout == "keys last":
            constants |= {"stride_kn": 1}
        return constants


FACTORS: dict[str, Sequence[object]] = {
    "kernel": KERNELS,
    "target": tuple(TARGETS),
    "dtype": tuple(DTYPES),
    "head_dim": HEAD_DIMS,
    "rows": tuple(ROWS),
    "features": tuple(FEATURES),
    "layout": LAYOUTS,
}


def cover(factors: Mapping[str, Sequence[object]], strength: int = 2, seed: int = 0) -> Iterator[dict[str, object]]:
    """Assignments that hold every combination of ``strength`` factors' values at least once, few of them (greedy)."""
    names = list(factors)
    missing = {
        combination
        for group in itertools.combinations(names, strength)
        for combination in itertools.product(*([(name, value) for value in factors[name]] for name in group))
    }

    def gain(chosen: dict[str, object]) -> int:
        pairs = [(name, chosen[name]) for name in names if name in chosen]
        return sum(combination in missing for combination in itertools.combinations(pairs, strength))

    order = sorted(missing, key=repr)
    random.Random(seed).shuffle(order)
    for wanted in order:
        if wanted in missing:
            chosen = dict(wanted)
            for name in names:
                if name not in chosen:
                    chosen[name] = max(factors[name], key=lambda value: gain({**chosen, name: value}))
            row = {name: chosen[name] for name in names}
            missing -= set(itertools.combinations(row.items(), strength))
            yield row


def variants(targets: Sequence[str] = tuple(TARGETS), *, exhaustive: bool = False) -> list[Variant]:
    """The shapes that matter most on every target, and a cover of all pairs of values (of all triples: exhaustive)."""
    common = [
        Variant(kernel, target, "bf16", head_dim, rows, "plain", "contiguous")
        for target in targets
        for kernel, head_dim, rows in (
            ("span_lse", 128, "many"),
            ("span_lse", 128, "decode"),
            ("span_lse", 256, "many"),
            ("span_top", 128, "many"),
            ("column_mass", 128, "many"),
            ("prefill_map", 128, "many"),
            ("merge_units", 128, "many"),
            ("merge_tops", 128, "many"),
            ("row_bounds", 128, "many"),
            ("add_pieces", 128, "many"),
        )
    ]
    factors = {**FACTORS, "target": tuple(targets)}
    covering = [Variant(**row) for row in cover(factors, 3 if exhaustive else 2)]  # type: ignore[arg-type]
    # A variant that is refused may hold pairs that no other one does: its neighbours hold them.
    nearby = [
        replace(variant, **change)
        for variant in covering
        if not _supported(variant)
        for change in ({"dtype": "bf16"}, {"head_dim": MAX_HEAD_DIM_WIDE}, {"kernel": "prefill_map"})
    ]
    return [variant for variant in dict.fromkeys(common + covering + nearby) if _supported(variant)]


def _supported(variant: Variant) -> bool:
    if variant.kernel == "wide_map" and variant.head_dim > MAX_HEAD_DIM_WIDE:
        return False
    on_amd = not TARGETS[variant.target].device.generation
    longest = MAX_FLOAT32_HEAD_DIM_AMD if on_amd else MAX_HEAD_DIM
    return DTYPES[variant.dtype] != torch.float32 or variant.head_dim <= longest
