"""Span masses of attention rows from q and k alone, without the N x N matrix.

``span_lse`` gives the log-sum-exp of every span of keys for every query row; a softmax over spans is the span
mass. ``span_top`` gives the heaviest key of every span beside it, ``column_mass`` the mean mass of every single key,
``prefill_map`` the span masses of blocks of rows.
``naive.py`` is the definition (dense float64).
"""

from attnprobe_kernels.api import column_mass, prefill_map, span_lse, span_top
from attnprobe_kernels.backends import BACKENDS
from attnprobe_kernels.rows import unseen
from attnprobe_kernels.segments import HIDDEN, Segments
from attnprobe_kernels.spans import SpanTop
from attnprobe_kernels.visible import visible_intervals

__all__ = [
    "BACKENDS",
    "HIDDEN",
    "Segments",
    "SpanTop",
    "column_mass",
    "prefill_map",
    "span_lse",
    "span_top",
    "unseen",
    "visible_intervals",
]
