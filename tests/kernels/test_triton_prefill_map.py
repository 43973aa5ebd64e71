from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_cases import count_products, cut_evenly, draw, feature_table, queries_and_keys

from attnprobe_kernels import Segments, prefill_map, span_lse

pytestmark = [
    pytest.mark.usefixtures("triton_ready", "poisoned"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning"),
]


def compare(q, k, segments, block, **features):
    got = prefill_map(q, k, segments, block=block, backend="triton", **features)
    expected = prefill_map(q, k, segments, block=block, backend="naive", **features)
    assert got.dtype == torch.float32
    assert got.shape == expected.shape
    assert (got - expected).abs().max() <= 1e-5
    return got


@pytest.mark.parametrize(("n_keys", "block"), [(1, 1), (63, 16), (111, 111), (200, 64), (70, 1000), (40, 7)])
def test_every_row_of_a_prompt(n_keys, block):
    q, k = queries_and_keys(heads=(2, 1), n_rows=n_keys, n_keys=n_keys, head_dim=16)
    mass = compare(q, k, cut_evenly(n_keys, 4), block)
    torch.testing.assert_close(mass.sum(-1), torch.ones_like(mass[..., 0]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("feature", list(feature_table(2, 6, 21, 60)))
def test_one_feature(feature):
    q, k = queries_and_keys(2, (6, 2), n_rows=21, n_keys=60, head_dim=16)
    compare(q, k, cut_evenly(60, 4), 8, **feature_table(2, 6, 21, 60)[feature])


def test_blocks_of_more_rows_than_one_program_takes():
    q, k = queries_and_keys(heads=(1, 1), n_rows=600, n_keys=600, head_dim=16, dtype=torch.float16)
    compare(q, k, cut_evenly(600, 2), 520)


@pytest.mark.parametrize("block", [1, 13, 16, 48, 64, 100, 130, 10**9])
def test_tiles_and_blocks_need_not_agree(monkeypatch, block):
    from attnprobe_kernels import triton_backend

    real = triton_backend.map_tiles
    monkeypatch.setattr(triton_backend, "map_tiles", lambda *a, **k: replace(real(*a, **k), rows=32, keys=32))
    q, k = queries_and_keys(heads=(2, 1), n_rows=130, n_keys=150, head_dim=16, dtype=torch.float16)
    mass = compare(q, k, cut_evenly(150, 6), block, sinks=draw((2,), 5))
    torch.testing.assert_close(mass.sum(-1), torch.ones_like(mass[..., 0]), atol=1e-5, rtol=0)


OWN_BLOCKS = {
    "two samples": [[0, 20, 33, 75], [5, 6, 70]],
    "blocks of no rows": [[0, 0, 40, 40, 75, 75], [10, 10]],
    "whole tiles": [[0, 16, 32, 48, 64, 75]] * 2,
    "no rows at all": [[0, 0], [75, 75]],
}


@pytest.mark.parametrize("backend", ["chunked", "triton"])
@pytest.mark.parametrize("edges", OWN_BLOCKS.values(), ids=list(OWN_BLOCKS))
def test_samples_with_blocks_of_their_own(monkeypatch, backend, edges):
    from attnprobe_kernels import chunked, triton_backend

    real = triton_backend.map_tiles
    monkeypatch.setattr(triton_backend, "map_tiles", lambda *a, **k: replace(real(*a, **k), rows=16, keys=32))
    monkeypatch.setattr(chunked, "MAX_ROWS", 32)
    q, k = queries_and_keys(2, (2, 1), n_rows=75, n_keys=75, head_dim=16)
    sinks, segments = draw((2,), 3), cut_evenly(75, 3)
    found = prefill_map(q, k, segments, edges=edges, sinks=sinks, backend=backend)
    rows = torch.softmax(span_lse(q, k, segments, sinks=sinks, backend="naive"), -1)
    assert found.shape == (2, 2, max(map(len, edges)) - 1, 4)
    for backend_found in (found, prefill_map(q, k, segments, edges=edges, sinks=sinks, backend="naive")):
        for sample, own in enumerate(edges):
            for index in range(found.shape[2]):
                start, stop = own[index : index + 2] if index < len(own) - 1 else (0, 0)
                wanted = rows[sample, :, start:stop].sum(dim=1) / max(stop - start, 1)
                assert (backend_found[sample, :, index] - wanted).abs().max() <= 1e-6


@pytest.mark.parametrize("shares", [1, 2, 3, 5])
def test_programs_share_out_the_tiles_of_a_head(monkeypatch, shares):
    from attnprobe_kernels import triton_backend

    real = triton_backend.map_tiles
    monkeypatch.setattr(triton_backend, "map_tiles", lambda *a, **k: replace(real(*a, **k), rows=16, keys=32))
    monkeypatch.setattr(triton_backend, "map_shares", lambda *_: shares)
    q, k = queries_and_keys(2, (2, 1), n_rows=75, n_keys=75, head_dim=16)
    compare(q, k, [cut_evenly(75, 3), Segments.from_spans([[(0, 9), (40, 75)], [(9, 40)]], 75)], 16)


def test_blocks_that_are_whole_pieces_take_one_launch(monkeypatch):
    from triton.runtime.interpreter import InterpretedFunction

    launches = []
    real = InterpretedFunction.run
    monkeypatch.setattr(InterpretedFunction, "run", lambda self, *a, **k: launches.append(1) or real(self, *a, **k))
    q, k = queries_and_keys(2, (2, 1), n_rows=200, n_keys=200, head_dim=16, dtype=torch.float16)
    for block, n_launches in ((64, 1), (32, 1), (100, 2), (200, 2)):  # tiles of 64 rows
        launches.clear()
        prefill_map(q, k, cut_evenly(200, 4), block=block, backend="triton")
        assert len(launches) == n_launches


def test_strides_are_taken_as_they_are():
    keys_last = draw((2, 2, 24, 77), 1).transpose(2, 3)
    compare(draw((40, 2, 4, 24), 2).permute(1, 2, 0, 3), keys_last, cut_evenly(77, 3), 16)


@pytest.mark.parametrize("head_dim", [80, 128, 192, 512])
def test_head_dimensions(head_dim):
    q, k = queries_and_keys(heads=(2, 1), n_rows=20, n_keys=75, head_dim=head_dim, dtype=torch.float16)
    compare(q, k, cut_evenly(75, 3), 8)


def test_samples_with_segments_of_their_own_and_an_empty_document():
    q, k = queries_and_keys(2, (2, 1), n_rows=30, n_keys=30, head_dim=16)
    tables = [Segments.from_bounds([(0, 4), (4, 4), (4, 30)], 30), cut_evenly(30, 5)]
    mass = compare(q, k, tables, 8)
    assert (mass[0, :, :, 1] == 0).all()


def test_the_same_call_gives_the_same_bits():
    q, k = queries_and_keys(n_rows=50, n_keys=50, dtype=torch.bfloat16)
    first = prefill_map(q, k, cut_evenly(50, 3), block=16, backend="triton")
    assert torch.equal(first, prefill_map(q, k, cut_evenly(50, 3), block=16, backend="triton"))


def test_tiles_of_rows_that_see_nothing_are_skipped(monkeypatch):
    q, k = torch.randn(1, 1, 256, 16), torch.randn(1, 1, 256, 16)
    segments = cut_evenly(256, 4)

    def products(visible):
        return count_products(monkeypatch, lambda: prefill_map(q, k, segments, visible=visible, backend="triton"))

    causal = torch.stack([torch.zeros(256), torch.arange(1, 257)], dim=-1).int()[None]
    padded = causal.clone()
    padded[:, :128] = 0
    assert products(torch.zeros_like(causal)) == 0
    assert products(padded) < products(causal)


def test_rows_of_no_block_take_no_part(monkeypatch):
    q, k = torch.randn(1, 1, 256, 16), torch.randn(1, 1, 256, 16)

    def products(edges):
        return count_products(
            monkeypatch, lambda: prefill_map(q, k, cut_evenly(256, 4), edges=[edges], backend="triton")
        )

    whole = products([0, 256])
    assert products([0, 0]) == products([100, 100, 100]) == 0
    assert 0 < products([0, 1]) < whole / 20
    assert 0 < products([248, 256]) < whole / 4  # one tile of rows in several, which sees most of the keys


@pytest.mark.parametrize("backend", ["naive", "chunked", "triton"])
@pytest.mark.parametrize("sink", [float("nan"), float("inf")])
def test_a_block_of_no_rows_has_no_mass_whatever_the_sink(backend, sink):
    q, k = queries_and_keys(heads=(1, 1), n_rows=4, n_keys=40, head_dim=16)
    sinks = torch.full((1,), sink, device=q.device)
    blocks = prefill_map(q, k, cut_evenly(40, 2), edges=[[0, 0, 2, 2]], sinks=sinks, backend=backend)
    assert (blocks[:, :, [0, 2]] == 0).all()
    assert torch.isnan(blocks[:, :, 1, -1]).all()


def test_few_builds_whatever_the_blocks(monkeypatch):
    from triton.runtime.interpreter import InterpretedFunction

    builds = set()
    monkeypatch.setattr(InterpretedFunction, "run", lambda self, *a, **k: builds.add(k.get("BR")))
    for n_rows in (5, 64, 100, 127, 130):
        q, k = queries_and_keys(heads=(1, 1), n_rows=n_rows, n_keys=130, head_dim=16, dtype=torch.float16)
        for size in (1, 3, 16, 17, 40, 64, 100):
            prefill_map(q, k, cut_evenly(130, 2), block=size, backend="triton")
    assert builds - {None} == {16, 64}
