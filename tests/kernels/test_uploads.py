"""Cached tables belong to the stream that uploaded them."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from kernel_cases import cut_evenly, queries_and_keys

from attnprobe_kernels import pieces, units, uploads
from attnprobe_kernels.rows import check_rows
from attnprobe_kernels.uploads import ALLOCATED_BYTES, stream_of, upload, upload_once

CPU = torch.device("cpu")
TABLES = {
    "units": lambda: units.unit_table((cut_evenly(40, 3),), 16, CPU).units,
    "pieces": lambda: pieces.piece_table(np.array([[0, 16, 40]], np.int32), 40, 32, CPU).pieces,
    "visible": lambda: check_rows(*queries_and_keys(n_keys=20)).visible_on_device(),
}


@pytest.fixture
def uploaded(monkeypatch):
    """The tables that were uploaded, with nothing kept before."""
    tables = []
    monkeypatch.setattr(uploads, "_kept", OrderedDict())
    monkeypatch.setattr(uploads, "upload", lambda table, device: tables.append(table) or upload(table, device))
    return tables


@pytest.mark.parametrize("name", TABLES)
def test_every_stream_has_its_own_table(monkeypatch, name):
    table = TABLES[name]

    @contextmanager
    def stream(number):
        with monkeypatch.context() as patch:
            patch.setattr(uploads, "stream_of", lambda device: number)
            yield

    with stream(1):
        first = table()
        assert table() is first
    with stream(2):
        assert table() is not first
    with stream(1):
        assert table() is first


def test_layers_share_an_interval_a_row(uploaded):
    q, k = queries_and_keys(n_rows=1, n_keys=400)
    for _ in range(2):
        for row in range(400):
            intervals = np.array([[[0, row]]], dtype=np.int32)
            assert check_rows(q, k, visible=intervals).visible_on_device().tolist() == intervals.tolist()
            units.unit_table(units.narrowed((cut_evenly(400, 3),), ((0, row),)), 16, CPU)
    assert len(uploaded) == 400 + 2 * 400  # a unit table is two arrays
    assert units.narrowed.cache_info().maxsize >= 400


def test_what_is_kept_is_bounded_by_bytes(uploaded):
    def ask(name, n_bytes):
        return upload_once(name, lambda: (np.zeros(n_bytes, dtype=np.int8),), CPU, room=4000)[0]

    ask("a", 1500), ask("b", 1500)
    ask("a", 1500)  # used again, so b is the oldest
    ask("c", 1500)
    assert len(uploaded) == 3
    assert ask("a", 1500) is ask("a", 1500)
    assert len(uploaded) == 3
    ask("b", 1500)
    assert len(uploaded) == 4
    ask("large", 4001)
    assert ask("large", 4001).nbytes == 4001
    assert len(uploaded) == 6  # it was not kept, and drove out nothing
    ask("a", 1500), ask("b", 1500)
    assert len(uploaded) == 6


def test_small_tables_count_as_what_the_allocator_takes(uploaded):
    for name in range(100):
        upload_once(name, lambda: (np.zeros(1, dtype=np.int8),), CPU, room=10 * ALLOCATED_BYTES)
    assert len(uploads._kept) == 10


def test_uploads_on_a_cpu_are_plain():
    table = np.array([[1, 2], [3, 4]], dtype=np.int32)
    assert stream_of(CPU) == 0
    assert torch.equal(upload(table, CPU), torch.tensor([[1, 2], [3, 4]], dtype=torch.int32))
