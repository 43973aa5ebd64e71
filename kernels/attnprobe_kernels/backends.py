"""Which backend computes a call."""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from importlib.util import find_spec
from typing import Literal, Protocol, get_args

import numpy as np
import torch
from torch import Tensor

from attnprobe_kernels.rows import RowArguments
from attnprobe_kernels.segments import Segments
from attnprobe_kernels.spans import SpanTop
from attnprobe_kernels.tiles import MAX_FLOAT32_HEAD_DIM_AMD, MAX_HEAD_DIM, MAX_HEAD_DIM_WIDE, MAX_TILE

BackendName = Literal["auto", "triton", "chunked", "naive"]
BACKENDS: tuple[str, ...] = get_args(BackendName)
TRITON_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

MAX_SOFTCAP = 50.0
"""The largest that models in use have. Up to here the kernels' tanh leaves float32 masses within 1e-5, with the errors
of the hardware's exponential and reciprocal simulated; the interpreter, whose own are exact, is better."""
MIN_CAPABILITY = (8, 0)
"""Of NVIDIA devices, for Triton."""


class Backend(Protocol):
    """What a backend's module offers."""

    def span_lse(self, args: RowArguments, segments: list[Segments], sinks: Tensor | None, /) -> Tensor:
        """Log-sum-exp of spans ``[B, Hq, A, S]``, then the sink's logit."""

    def span_top(self, args: RowArguments, segments: list[Segments], sinks: Tensor | None, /) -> SpanTop:
        """Log-sum-exp, largest logit and its column, of spans, each ``[B, Hq, A, S]``; then the sink's."""

    def column_mass(self, args: RowArguments, lse_total: Tensor, sinks: Tensor | None, /) -> Tensor:
        """Mean mass of keys ``[B, Hq, N]``; sinks are to be added to the totals."""

    def prefill_map(
        self, args: RowArguments, segments: list[Segments], blocks: np.ndarray, sinks: Tensor | None, /
    ) -> Tensor:
        """Mean span mass ``[B, Hq, R, S]``, then the sink's: block r of sample b is rows ``blocks[b, r : r + 2]``."""


def choose(backend: str, args: RowArguments) -> Backend:
    """Module that computes these arguments.

    Raises
    ------
    ValueError
        An unknown backend, or ``triton`` for arguments that it cannot take.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is unknown; choose one of {', '.join(BACKENDS)}")
    name = backend
    if backend == "auto":
        name = "triton" if args.q.is_cuda and triton_refusal(args) is None else "chunked"
        if args.q.is_cuda and name == "chunked" and (fault := import_fault()) is not None:
            _warn_of(fault)
    elif backend == "triton":
        refusal = triton_refusal(args)
        if refusal is not None:
            raise ValueError(f'backend "triton" {refusal}; use "chunked" or "auto"')
    module = {"triton": "triton_backend", "chunked": "chunked", "naive": "naive"}[name]
    return importlib.import_module(f"attnprobe_kernels.{module}")


def wide_offsets(args: RowArguments) -> bool:
    """Whether two elements of one tile of queries or keys can be 2 ** 31 elements apart."""
    return any(MAX_TILE * x.stride(2) + x.shape[3] * x.stride(3) >= 2**31 for x in (args.q, args.k))


def _has_triton() -> bool:
    try:
        return find_spec("triton") is not None
    except ValueError:  # a module without a specification stands in its place
        return False


@cache
def import_fault() -> str | None:
    """What importing the Triton kernels ends with; ``None`` if they are there, or no triton is installed."""
    if not _has_triton():
        return None
    try:
        importlib.import_module("attnprobe_kernels.triton_backend")
    except Exception as error:  # a broken installation may raise anything
        return f"{type(error).__name__}: {error}"
    return None


@cache
def _warn_of(fault: str) -> None:
    """Once: ``auto`` goes on without the kernels. Counted from the operation's caller, who sees no other sign of it."""
    warnings.warn(f'the Triton kernels cannot be used, and "auto" takes "chunked": {fault}', stacklevel=5)


def interpreted() -> bool:
    """Whether Triton runs its interpreter, as it reads TRITON_INTERPRET itself."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def triton_refusal(args: RowArguments) -> str | None:
    """Why the Triton kernels cannot take these arguments; ``None`` if they can."""
    if args.mask is not None:
        return "takes intervals of keys, not masks"
    if args.q.dtype != args.k.dtype or args.q.dtype not in TRITON_DTYPES:
        return f"takes float32, float16 or bfloat16 q and k of one dtype, got {args.q.dtype} and {args.k.dtype}"
    if args.q.shape[3] > MAX_HEAD_DIM:
        return f"takes head dimensions up to {MAX_HEAD_DIM}, got {args.q.shape[3]}"
    if torch.version.hip and args.q.dtype == torch.float32 and args.q.shape[3] > MAX_FLOAT32_HEAD_DIM_AMD:
        return f"takes float32 head dimensions up to {MAX_FLOAT32_HEAD_DIM_AMD} on AMD devices, got {args.q.shape[3]}"
    if args.q.shape[3] > MAX_HEAD_DIM_WIDE and wide_offsets(args):
        return (
            f"takes head dimensions up to {MAX_HEAD_DIM_WIDE} where 128 rows or keys of one head span 2 ** 31 "
            f"elements, got {args.q.shape[3]}"
        )
    if args.softcap is not None and args.softcap > MAX_SOFTCAP:
        return f"takes softcaps up to {MAX_SOFTCAP:g}, beyond which its tanh is too coarse, got {args.softcap:g}"
    if not _has_triton():
        return "needs the package triton, which is not installed"
    fault = import_fault()
    if fault is not None:
        return f"needs the package triton, which cannot be used here: {fault}"
    if not args.q.is_cuda and not interpreted():
        return f"needs a CUDA or ROCm device, the tensors are on {args.q.device}"
    if args.q.is_cuda and torch.version.hip is None:
        capability = torch.cuda.get_device_capability(args.q.device)
        if capability < MIN_CAPABILITY:
            needed, given = (".".join(map(str, numbers)) for numbers in (MIN_CAPABILITY, capability))
            return f"needs compute capability {needed} or newer, {args.q.device} has {given}"
    return None
