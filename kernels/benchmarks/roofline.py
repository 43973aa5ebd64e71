"""The least time that a device could need for a case, from three things that cannot be left out.

For P visible logits (pairs of query head, row and key that the row sees), head dimension D and elements of b bytes:

bytes
    Every visible key is read once, and so are the queries; the output is written once in float32:
    ``b D (Hkv N + Hq A) + 4 |out|``. One pass over the keys is enough, because a log-sum-exp merges.
tensor
    A logit is a dot product of D terms, hence ``2 D P`` floating-point operations on the tensor cores. There is no
    product with values. (A forward pass of attention needs twice as many.)
exponentials
    Each logit goes through exp once: P of them, in a unit that does 16 a clock on every multiprocessor. The running
    maximum's own exponentials are one a tile and row and do not count.

The floor is the largest of the three: they can overlap. Issue slots are a fourth limit, but one of the compiled code
and not of the problem; it is left out, so a percentage here is never flattered.

Rates: bandwidth and matrix rate are measured in the run by a large copy and a large product on random data, since
datasheet rates are not reached by anything. The datasheet's are kept beside them, and used where nothing was measured.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from benchmarks.registry import ROW_BLOCK, Case
from benchmarks.timing import time_call


@dataclass(frozen=True)
class Peaks:
    """Rates of a device: bytes/s of memory, dense bf16 FLOP/s of the tensor cores, exponentials/s; None = unknown."""

    bandwidth: float | None = None
    tensor: float | None = None
    exponentials: float | None = None
    source: str = "unknown"


def _exponentials(processors: int, boost_mhz: int) -> float:
    return processors * 16 * boost_mhz * 1e6


DATASHEETS = {
    "H200": Peaks(4.80e12, 989e12, _exponentials(132, 1980), "datasheet, SXM"),
    "H100": Peaks(3.35e12, 989e12, _exponentials(132, 1980), "datasheet, SXM"),
    "A100": Peaks(2.04e12, 312e12, _exponentials(108, 1410), "datasheet, SXM, 80 GB"),
    "L40S": Peaks(0.864e12, 362e12, _exponentials(142, 2520), "datasheet"),
    "B200": Peaks(8.00e12, 2250e12, _exponentials(148, 1965), "datasheet"),
}
"""By a part of the name that the driver gives; dense rates, without sparsity."""


def datasheet(name: str) -> Peaks:
    """Rates of a device by name; all None for one that is not in the table."""
    # Other cards of a family (H100 PCIe, NVL, A100 40 GB) have other rates: measured ones are used for them.
    if any(other in name for other in ("PCIe", "NVL", "A100-SXM4-40GB", "GH200", "MIG")):
        return Peaks()
    return next((peaks for part, peaks in DATASHEETS.items() if part in name), Peaks())


def measure_peaks(device: torch.device) -> Peaks:
    """Copy bandwidth (bytes read plus bytes written) and matrix rate of this device, by a probe of under a second."""
    on_gpu = device.type == "cuda"
    generator = torch.Generator(device).manual_seed(0)
    n_bytes = 2**30 if on_gpu else 2**22
    source = torch.empty(n_bytes, dtype=torch.uint8, device=device).random_(generator=generator)
    target = torch.empty_like(source)
    copy = time_call(lambda: target.copy_(source), device, seconds=0.1)
    size, dtype = (8192, torch.bfloat16) if on_gpu else (256, torch.float32)
    a, b = (torch.randn(size, size, generator=generator, device=device, dtype=dtype) for _ in range(2))
    product = time_call(lambda: a @ b, device, seconds=0.2)
    return Peaks(2 * n_bytes / copy.median, 2 * size**3 / product.median, source="measured in this run")


def ceilings(device: torch.device, name: str) -> tuple[Peaks, Peaks]:
    """The rates that floors are computed with, and the datasheet's for comparison."""
    listed, measured = datasheet(name), measure_peaks(device)
    return replace(measured, exponentials=listed.exponentials), listed


@dataclass(frozen=True)
class Work:
    """What a case cannot do without."""

    bytes: int
    flops: int
    exponentials: int


def output_elements(case: Case) -> int:
    """Elements of the operation's result, four bytes each."""
    n_spans = case.segments.n_spans
    elements = {
        "span_lse": case.n_rows * n_spans,
        "span_top": 3 * case.n_rows * n_spans,
        "column_mass": case.n_keys,
        "prefill_map": -(-case.n_rows // ROW_BLOCK) * n_spans,
    }
    return case.n_q_heads * elements[case.operation]


def work_of(case: Case, element_bytes: int = 2) -> Work:
    """Bytes, floating-point operations and exponentials of a case, as the module's text derives them."""
    keys = case.n_kv_heads * (case.n_keys - case.first_key)
    vectors = keys + case.n_q_heads * case.n_rows
    totals = case.n_q_heads * case.n_rows if case.operation == "column_mass" else 0
    return Work(
        bytes=element_bytes * case.head_dim * vectors + 4 * (output_elements(case) + totals),
        flops=2 * case.head_dim * case.n_logits,
        exponentials=case.n_logits,
    )


@dataclass(frozen=True)
class Floor:
    """Seconds each limit alone would take; None where the device's rate is unknown."""

    bytes: float | None
    tensor: float | None
    exponentials: float | None

    @property
    def seconds(self) -> float | None:
        """The largest known one; None if there is none."""
        known = [value for value in (self.bytes, self.tensor, self.exponentials) if value is not None]
        return max(known, default=None)

    @property
    def limit(self) -> str | None:
        """Which of them is the largest."""
        known = {name: value for name, value in asdict(self).items() if value is not None}
        return max(known, key=lambda name: known[name]) if known else None

    def record(self) -> dict[str, Any]:
        """As written to the results."""
        return {**asdict(self), "seconds": self.seconds, "limit": self.limit}


def floor_of(case: Case, peaks: Peaks, element_bytes: int = 2) -> Floor:
    """The floor of a case on a device."""
    work = work_of(case, element_bytes)

    def seconds(amount: int, rate: float | None) -> float | None:
        return None if rate is None else amount / rate

    return Floor(
        bytes=seconds(work.bytes, peaks.bandwidth),
        tensor=seconds(work.flops, peaks.tensor),
        exponentials=seconds(work.exponentials, peaks.exponentials),
    )
