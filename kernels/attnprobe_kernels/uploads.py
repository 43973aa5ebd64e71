"""Small tables on a device. Nothing here waits for it, and no stream reads what another has not yet written."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


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
