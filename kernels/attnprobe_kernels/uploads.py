"""Small tables on a device. Nothing here waits for it, and no stream reads what another has not yet written."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np
import torch
from torch import Tensor

KEPT_BYTES = 32 * 2**20
"""Bound on all the tables that are kept on devices, each counted as at least one block of the allocator."""
ALLOCATED_BYTES = 512

_kept: OrderedDict[Hashable, tuple[Tensor, ...]] = OrderedDict()
_lock = threading.Lock()


def stream_of(device: torch.device) -> int:
    """The stream that kernels on this device are launched on now; part of the key wherever an upload is cached.

    A table is written, read and, when a cache drops it, given back on one stream: neither the copy nor the memory's
    next owner can then overtake a kernel that reads it.
    """
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


def upload(table: np.ndarray, device: torch.device) -> Tensor:
    """Copy a table to a device, in the order of its current stream."""
    host = torch.from_numpy(table)
    # From pageable memory the host would wait for the copy, and so for everything before it.
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def _bytes(tables: tuple[Tensor, ...]) -> int:
    return sum(max(table.nbytes, ALLOCATED_BYTES) for table in tables)


def upload_once(
    key: Hashable, make: Callable[[], tuple[np.ndarray, ...]], device: torch.device, room: int = KEPT_BYTES
) -> tuple[Tensor, ...]:
    """Tables on a device, uploaded once a stream: the layers of a model share them.

    The ones used longest ago go when all would take more than ``room`` bytes; tables larger than that are not kept.
    """
    place = (key, device, stream_of(device))
    with _lock:
        if place in _kept:
            _kept.move_to_end(place)
            return _kept[place]
    tables = tuple(upload(table, device) for table in make())
    if _bytes(tables) <= room:
        with _lock:
            _kept[place] = tables
            held = sum(map(_bytes, _kept.values()))
            while held > room:
                held -= _bytes(_kept.popitem(last=False)[1])
    return tables
