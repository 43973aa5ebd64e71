"""Which tiles a kernel uses and how long its units are: a small cost model instead of an autotuner.

It needs nothing but the shapes and four figures of the device, so it can be read, tested without a GPU, and gives the
same choice in every run. The limits on tiles come from the compilers: no variant may spill registers or need more
shared memory than the device has (``python -m attnprobe_kernels.targets`` checks that).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from attnprobe_kernels.segments import HIDDEN, Segments

MAX_HEAD_DIM = 512
MAX_TILE = 128  # rows or keys
MAX_REGISTERS = 255  # of a thread on NVIDIA devices; ptxas spills a few for the sake of occupancy unless it is told
MAX_FLOAT32_HEAD_DIM_AMD = 256  # beyond it AMD's compiler spills, whatever the tile
MAX_HEAD_DIM_WIDE = 256  # where offsets within a tile take 64 bits: beyond it Triton 3.6 spills


@dataclass(frozen=True)
class Device:
    """What the cost model knows of a device.

    Parameters
    ----------
    processors
        Streaming multiprocessors or compute units.
    shared
        Shared memory that one program may use, bytes.
    shared_total
        Shared memory of one processor, bytes.
    generation
        Tensor cores of an NVIDIA device: 8 (Ampere's; those of compute capability 12 are their like), 9 (Hopper's)
        or 10 (Blackwell's); 0 for any other device.
    """

    processors: int
    shared: int
    shared_total: int
    generation: int


INTERPRETER = Device(processors=1, shared=96 * 1024, shared_total=96 * 1024, generation=0)
"""Few, long units: the interpreter pays by the program."""


@lru_cache(maxsize=16)
def device_of(device: torch.device) -> Device:
    """Figures of a torch device."""
    if device.type == "cpu":
        return INTERPRETER
    figures = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return Device(figures.multi_processor_count, 64 * 1024, 64 * 1024, generation=0)
    shared = getattr(figures, "shared_memory_per_block_optin", 99 * 1024)
    total = getattr(figures, "shared_memory_per_multiprocessor", shared + 1024)
    generation = 8 if figures.major == 12 else figures.major
    return Device(figures.multi_processor_count, shared, total, generation)


@dataclass(frozen=True)
class Tiles:
    """Tile sizes of one launch; ``rows`` x ``keys`` logits a step, ``edge`` keys a step where masks are needed.

    ``registers`` bounds those of a thread on NVIDIA devices; 0 leaves them to ptxas, which minds occupancy then.
    """

    rows: int
    keys: int
    edge: int
    warps: int
    stages: int
    registers: int = MAX_REGISTERS


def split_head_dim(head_dim: int) -> tuple[int, int]:
    """Two powers of two, the second possibly 0, that hold the head dimension with little padding: 192 is 128 + 64."""
    if not 1 <= head_dim <= MAX_HEAD_DIM:
        raise ValueError(f"head dimension {head_dim} is outside 1 to {MAX_HEAD_DIM}")
    whole = max(16, 1 << (head_dim - 1).bit_length())
    first = whole // 2
    second = max(16, 1 << (head_dim - first - 1).bit_length()) if first >= 16 else whole
    return (whole, 0) if first + second >= whole else (first, second)


def _shared_bytes(device: Device, stationary: int, streamed: int, stages: int, vector: int) -> int:
    if not device.generation:
        # AMD's compiler passes the stationary tile through shared memory into registers, before the loop starts.
        return vector * max(stationary, stages * streamed)
    return vector * (stationary + stages * streamed)


def _fit(device: Device, vector: int, stationary: int, streamed: int, stages: int) -> tuple[int, int, int]:
    """Shrink (stationary, streamed, stages) until tiles of so many vectors of ``vector`` bytes fit shared memory."""
    while _shared_bytes(device, stationary, streamed, stages, vector) > device.shared - 2048:
        if stages > 2:
            stages -= 1
        elif streamed > 32:
            streamed //= 2
        elif stationary > 16:
            stationary //= 2
        elif streamed > 16:
            streamed //= 2
        else:
            stages -= 1
    return stationary, streamed, stages


def _power(number: int, lowest: int, highest: int) -> int:
    return min(max(1 << max(number - 1, 0).bit_length(), lowest), highest)


def _few_elements(vectors: int, elements: int, width: int) -> int:
    """Largest power of two of vectors, at least 16 and at most ``vectors``, that hold so many elements or fewer."""
    while vectors > 16 and vectors * width > elements:
        vectors //= 2
    return vectors


def span_tiles(
    device: Device,
    dtype: torch.dtype,
    head_dim: int,
    packed_rows: int,
    *,
    per_head_bias: bool = False,
    scattered: bool = False,
) -> Tiles:
    """Tiles of ``span_lse``: the rows stay, the keys stream.

    Parameters
    ----------
    packed_rows
        Query rows times query heads a key head.
    per_head_bias
        Every query head has its own key bias, so every logit loads one.
    scattered
        The head dimension is not contiguous: every element is loaded through a pointer of its own.
    """
    width = sum(split_head_dim(head_dim))
    vector = width * dtype.itemsize
    if dtype == torch.float32:
        # No tensor cores: the operands live in registers, so tiles are small.
        rows, keys = _power(packed_rows, 16, 16 if 128 <= width < 256 else 32), 64 if width <= 64 else 32
        if not device.generation:
            rows, keys = _few_elements(rows, 4096, width), _few_elements(keys, 4096, width)
    else:
        rows = _power(packed_rows, 16, 128 if width <= (256 if device.generation else 128) else 64)
        # Two programs a processor hide each other's exponentials: their registers bound the tile. Accumulators of the
        # oldest tensor cores share the registers with both operands.
        keys = 64 if width > 128 or (rows > 64 and device.generation == 8) else 128
        if per_head_bias and rows > 64:
            keys = 64 if width <= 128 and device.generation > 8 else 32
    if scattered:
        rows, keys = (
            _few_elements(rows, 16384 // dtype.itemsize, width),
            _few_elements(keys, 8192 // dtype.itemsize, width),
        )
    stages = 2 if rows > 64 or scattered or dtype == torch.float32 else 3
    rows, keys, stages = _fit(device, vector, rows, keys, stages)
    wide = dtype == torch.float32 or scattered or rows * keys >= 8192
    return Tiles(
        rows, keys, min(keys, 32), 8 if wide else 4, stages, MAX_REGISTERS if scattered else _registers(rows * keys)
    )


def _registers(logits: int) -> int:
    # The large tensor-core tiles want ptxas's eye on occupancy: two programs of eight warps have 128 registers each.
    return 0 if logits >= 8192 else MAX_REGISTERS


def loaded_tiles(
    device: Device,
    dtype: torch.dtype,
    head_dim: int,
    packed_rows: int,
    *,
    per_head_bias: bool = False,
    scattered: bool = False,
) -> Tiles:
    """Tiles of ``span_top``: those of ``span_lse``, for programs that carry more beside them.

    With full tiles a program takes up to 220 registers a thread, and a processor holds one. On Hopper tiles half as
    wide leave room for two, at 128 each; for the other devices' compilers they are too few.
    """
    tiles = span_tiles(device, dtype, head_dim, packed_rows, per_head_bias=per_head_bias, scattered=scattered)
    half = dtype != torch.float32 and not scattered
    if not device.generation and half and tiles.rows > 64:
        return replace(tiles, rows=64, keys=min(tiles.keys, 64), warps=4)
    if device.generation == 9 and half and not per_head_bias and tiles.rows == 128 and tiles.keys == 128:
        return replace(tiles, keys=64, registers=128)
    if device.generation == 9 and half and head_dim > 256 and tiles.rows == 64:
        # The addresses of so long keys take registers as well: twice the warps share them out.
        return replace(tiles, rows=128, keys=32, warps=8, registers=MAX_REGISTERS)
    if device.generation == 9 and half and per_head_bias and head_dim < 64:
        tiles = replace(tiles, keys=min(tiles.keys, 32))  # else Triton 3.6 spills
    if device.generation == 8 and tiles.rows < 64:
        tiles = replace(tiles, keys=min(tiles.keys, 64))
    # A load a logit beside all that: a thread must hold fewer of them.
    warps = 8 if per_head_bias and tiles.rows > 64 else tiles.warps
    return replace(tiles, warps=warps, registers=MAX_REGISTERS)


def map_tiles(
    device: Device,
    dtype: torch.dtype,
    head_dim: int,
    n_rows: int,
    *,
    biased: bool = False,
    scattered: bool = False,
    wide: bool = False,
) -> Tiles:
    """Tiles of ``prefill_map``: those of ``span_top``, unless it needs registers for more.

    Parameters
    ----------
    biased
        Logits have a key bias or ALiBi: with Triton 3.6 two programs of a Hopper processor would spill, and so would
        float32 tiles with edges of 32.
    wide
        Offsets within a tile take 64 bits: twice the registers for addresses, so the tiles of scattered elements.
    """
    tiles = loaded_tiles(device, dtype, head_dim, n_rows, scattered=scattered or wide)
    oldest = device.generation == 8 and dtype != torch.float32 and 128 < sum(split_head_dim(head_dim)) < 256
    if oldest or (wide and dtype == torch.float32 and device.generation):
        tiles = replace(tiles, stages=1)  # with a tile on its way Triton 3.6 spills
    if not biased:
        return tiles
    if device.generation == 9 and dtype != torch.float32 and tiles.rows < 64:
        tiles = replace(tiles, keys=min(tiles.keys, 64))  # else Triton 3.6 spills
    edge = min(tiles.edge, 16) if dtype == torch.float32 else tiles.edge
    return replace(tiles, edge=edge, registers=MAX_REGISTERS)


def column_tiles(device: Device, dtype: torch.dtype, head_dim: int, rows: int, *, scattered: bool = False) -> Tiles:
    """Tiles of ``column_mass``: the keys stay, the rows stream, ``edge`` of them at a time where masks are needed."""
    width = sum(split_head_dim(head_dim))
    vector = width * dtype.itemsize
    if dtype == torch.float32:
        keys, streamed = 32, _power(rows, 16, 64 if width <= 64 else 32)
        if not device.generation:
            keys, streamed = _few_elements(keys, 4096, width), _few_elements(streamed, 4096, width)
    else:
        keys = 128 if width <= 128 or (width <= 256 and device.generation > 8) else 64
        keys = keys if device.generation else keys // 2
        streamed = _power(rows, 16, 128 if width <= 128 else 64)
    if scattered:
        keys, streamed = (
            _few_elements(keys, 16384 // dtype.itemsize, width),
            _few_elements(streamed, 8192 // dtype.itemsize, width),
        )
    keys, streamed, stages = _fit(device, vector, keys, streamed, 2)
    wide = dtype == torch.float32 or scattered or keys * max(streamed, width // 2) >= 8192
    # On the oldest tensor cores two programs of the widest tiles do not fit, whatever ptxas tries.
    registers = MAX_REGISTERS if device.generation == 8 and width > 96 else _registers(streamed * keys)
    return Tiles(streamed, keys, min(streamed, 32), 8 if wide else 4, stages, registers)


def compiler_options(*, nvidia: bool, tiles: Tiles | None = None) -> dict[str, object]:
    """Options of a launch, said outright: their defaults differ between versions of Triton."""
    options: dict[str, object] = {"enable_fp_fusion": True}
    if tiles is not None:
        options |= {"num_warps": tiles.warps, "num_stages": tiles.stages}
    registers = MAX_REGISTERS if tiles is None else tiles.registers
    if nvidia and registers:
        options["maxnreg"] = registers
    return options


BOUND_BLOCK = 128
"""Row blocks whose bounds ``column_mass`` reads at a time."""
PIECE_TILE = (32, 64)
"""Pieces and columns of one step of the kernel that adds pieces into blocks."""


def merge_tile(rows: int) -> tuple[int, int]:
    """Rows and units of one step of the merging kernels: 2048 values."""
    across = _power(rows, 4, 256)
    return across, min(64, 2048 // across)


def map_tile(tile_rows: int, longest: int) -> tuple[int, int]:
    """Rows and spans of a step from log-sum-exps to masses in ``prefill_map``: 512 values, as it has few registers.

    Each width is a build of the kernel, so there are two, whatever the rows of the ``longest`` block.
    """
    across = 16 if longest <= 16 else tile_rows
    return across, min(64, 512 // across)


MAP_WORKSPACE_BYTES = 128 * 2**20
"""Bound on the scratch of all programs of ``prefill_map``, which is at least one program a head."""
MAP_WAVES = 8
"""Programs of ``prefill_map``, in terms of those that the device holds at a time."""


@lru_cache(maxsize=64)
def map_shares(device: Device, tile_rows: int, n_heads: int, n_tiles: int, n_spans: int) -> int:
    """How many programs of ``prefill_map`` share out the tiles of one head: several full waves in all.

    Parameters
    ----------
    n_heads
        Samples times query heads.
    n_tiles
        Tiles of one head.
    """
    slots = 2 * device.processors
    affordable = MAP_WORKSPACE_BYTES // (4 * tile_rows * max(n_spans, 1))
    most = max(1, min(n_tiles, min(MAP_WAVES * slots, affordable) // n_heads))

    def filled(shares: int) -> float:
        return n_heads * shares / (slots * -(-n_heads * shares // slots))

    return max(range(1, most + 1), key=lambda shares: (filled(shares), shares))


@lru_cache(maxsize=1024)
def choose_unit(device: Device, segments: tuple[Segments, ...], tiles: Tiles, row_programs: int) -> int:
    """Keys a unit: long enough to be worth a program, short enough that the programs fill the device evenly.

    A program costs about two tiles before its first logit; programs run in waves of two a processor, and the last
    wave is as long as its longest unit. The estimate counts every segment's own units, so prompts of many short spans
    get the unit that suits them.

    Parameters
    ----------
    row_programs
        Programs a unit: blocks of packed rows x key heads.
    """
    lengths = np.concatenate(
        [
            np.asarray(table.stops, dtype=np.int64)[owned] - np.asarray(table.starts, dtype=np.int64)[owned]
            for table in segments
            for owned in [np.asarray(table.owners, dtype=np.int64) != HIDDEN]
        ]
    )
    lengths = lengths[lengths > 0]
    slots = 2 * device.processors
    best, best_cost = tiles.keys, float("inf")
    unit = tiles.keys
    while True:
        n_units = -(-lengths // unit)
        programs = int(n_units.sum()) * row_programs
        work = float((n_units * 2).sum() + (-(-lengths // tiles.keys)).sum()) * row_programs  # tiles in all
        longest = 2 + min(unit, int(lengths.max(initial=1))) / tiles.keys
        cost = work / min(slots, max(programs, 1)) + longest / 2
        if cost <= best_cost:
            best, best_cost = unit, cost
        if unit >= lengths.max(initial=1):
            return best
        unit *= 2
