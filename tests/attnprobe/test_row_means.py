"""Mean masses of stretches of rows, as far as one call of a model holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kernel_cases import torch_operations

from attnprobe import row_means
from attnprobe.row_block import RowBlock, SampleSpans


def test_shares_of_rows_are_no_tables_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copying a table waits for the device; a number of the host's does not."""
    slots = np.arange(4, 8)
    samples = [SampleSpans(pad, 10, (), question=question) for pad, question in ((0, (2, 10)), (3, (1, 4)), (0, None))]
    query, key = torch.zeros(3, 2, 4, 16), torch.zeros(3, 2, 8, 16)
    block = RowBlock(query, key, None, slots, 0, np.zeros((3, 4, 2), np.int32), None, None, None)
    kernel = torch.ones(3, 2, 1, 5)
    asked: list[Any] = []

    def prefill_map(*args: Any, edges: Any, **kwargs: Any) -> torch.Tensor:
        asked.append(edges)
        return kernel

    monkeypatch.setattr(row_means, "prefill_map", prefill_map)
    names = torch_operations(
        lambda: row_means.mean_masses(block, [], torch.zeros(2), samples, "question", backend="auto")
    )
    assert asked == [[[0, 4], [0, 3], [0, 0]]]  # slots 2-10, 4-7 and none, of 4-8
    assert kernel[:, 0, 0, 0].tolist() == [0.5, 1.0, 1.0]
    assert [name for name in names if "copy" in name] == []
