"""Ctrl-C must not arrive half-way through installing or removing hooks."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold SIGINT back inside the context and deliver it right after; only the main thread ever gets one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, Any]] = []
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):  # ignored, or not set from Python
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            before(*held[0])


@contextmanager
def forward_hook(module: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    """Have ``hook(module, args, output)`` called after every forward call inside the context."""
    handles: list[Any] = []

    def remove() -> None:
        with uninterrupted():
            for handle in handles:
                handle.remove()

    # Removing twice: an interrupt may arrive on the way into the first.
    try:
        try:
            with uninterrupted():
                handles.append(module.register_forward_hook(hook))
            yield
        finally:
            remove()
    finally:
        remove()
