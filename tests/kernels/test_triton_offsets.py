"""Rows, keys and biases so far apart that their offsets need 64 bits."""

from __future__ import annotations

import mmap

import pytest
import torch
from kernel_cases import DEVICE, compare_all, cut_evenly, draw

from attnprobe_kernels.backends import wide_offsets
from attnprobe_kernels.rows import check_rows

pytestmark = [
    pytest.mark.usefixtures("triton_ready"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning"),
]

N_TOKENS = 34
APART = 2**27 + 8  # elements from token to token: the 17th is beyond 2 ** 31


def far_apart(values):
    """``[1, H, tokens, ...]`` with tokens far apart: 9 GB of addresses, of which a page a token is touched."""
    n_elements = (N_TOKENS - 1) * APART + values[0].numel()
    if DEVICE == "cpu":
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
        storage = torch.frombuffer(mmap.mmap(-1, 2 * n_elements, flags=flags), dtype=torch.float16)
    else:
        storage = torch.empty(n_elements, dtype=torch.float16, device=DEVICE)
    heads, tail = values.shape[1], values.shape[3:]
    within = tail.numel()
    view = storage.as_strided(values.shape, (0, within, APART, *((1,) if tail else ())))
    assert heads * within < APART
    return view.copy_(values)


@pytest.mark.parametrize("far", ["q", "k", "key_bias"])
def test_offsets_beyond_31_bits(far):
    given = {
        "q": draw((1, 2, N_TOKENS, 16), 0, torch.float16),
        "k": draw((1, 1, N_TOKENS, 16), 1, torch.float16),
        "key_bias": draw((1, 2, N_TOKENS), 2, torch.float16),
    }
    given[far] = far_apart(given[far])
    q, k, bias = given.values()
    assert wide_offsets(check_rows(q, k)) == (far != "key_bias")
    compare_all("triton", q, k, cut_evenly(N_TOKENS, 3), key_bias=bias)
