"""Time of a call on a device: warmed up, with a cold cache, the median of several."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

FLUSH_BYTES = 256 * 2**20
"""More than the L2 of any GPU in the table of peaks."""
MAX_REPEATS = 50


@dataclass(frozen=True)
class Timing:
    """Seconds: median, fastest and slowest of ``repeats`` calls; and the first call's, compilation included."""

    median: float
    fastest: float
    slowest: float
    repeats: int
    first: float
    peak_bytes: int | None  # allocated during a call beyond what was there before; None on a CPU


def time_call(call: Callable[[], Any], device: torch.device, seconds: float = 0.5) -> Timing:
    """Time ``call`` for about so many seconds, at least three times (once, where a single call takes longer).

    On a GPU each call is timed by events, after the L2 cache was overwritten: in a model, other layers ran in between.
    """
    on_gpu = device.type == "cuda"
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device) if on_gpu else None

    def once() -> float:
        if flush is None:
            begin = time.perf_counter()
            call()
            return time.perf_counter() - begin
        flush.zero_()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize(device)
        return start.elapsed_time(stop) / 1e3

    begin = time.perf_counter()
    once()
    first = time.perf_counter() - begin
    peak = None
    if on_gpu:
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    estimate = once()
    if on_gpu:
        peak = torch.cuda.max_memory_allocated(device) - before
    repeats = min(max(3, int(seconds / max(estimate, 1e-6))), MAX_REPEATS)
    taken = [estimate] if estimate > seconds else [once() for _ in range(repeats)]
    return Timing(statistics.median(taken), min(taken), max(taken), len(taken), first, peak)
