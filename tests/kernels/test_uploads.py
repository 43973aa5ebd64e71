"""Cached tables belong to the stream that uploaded them."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from kernel_cases import cut_evenly, queries_and_keys

from attnprobe_kernels import pieces, rows, units
from attnprobe_kernels.rows import check_rows
from attnprobe_kernels.uploads import stream_of, upload

CPU = torch.device("cpu")
NAMES = ("scale", "q_start", "window", "softcap", "key_bias", "alibi_slopes", "visible", "mask")


def visible():
    return check_rows(*queries_and_keys(n_keys=20), **dict.fromkeys(NAMES)).visible_on_device()


TABLES = {
    "units": (units, lambda: units.unit_table((cut_evenly(40, 3),), 16, CPU)),
    "pieces": (pieces, lambda: pieces.piece_table(40, 16, 32, CPU)),
    "visible": (rows, visible),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_stream_has_its_own_table(monkeypatch, name):
    module, table = TABLES[name]

    @contextmanager
    def stream(number):
        with monkeypatch.context() as patch:
            patch.setattr(module, "stream_of", lambda device: number)
            yield

    with stream(1):
        first = table()
        assert table() is first
    with stream(2):
        assert table() is not first
    with stream(1):
        assert table() is first


def test_layers_share_more_intervals_than_a_layer_has_distances(monkeypatch):
    uploaded = []
    monkeypatch.setattr(rows, "upload", lambda table, device: uploaded.append(table) or upload(table, device))
    rows._upload.cache_clear()
    q, k = queries_and_keys(n_keys=20)
    for _ in range(2):
        for distance in range(20):
            intervals = np.tile(np.array([0, distance], dtype=np.int32), (1, 3, 1))
            given = {**dict.fromkeys(NAMES), "visible": intervals}
            assert check_rows(q, k, **given).visible_on_device().tolist() == intervals.tolist()
    assert len(uploaded) == 20


def test_uploads_on_a_cpu_are_plain():
    table = np.array([[1, 2], [3, 4]], dtype=np.int32)
    assert stream_of(CPU) == 0
    assert torch.equal(upload(table, CPU), torch.tensor([[1, 2], [3, 4]], dtype=torch.int32))
