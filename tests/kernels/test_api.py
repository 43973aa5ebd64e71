"""The front door: choice of backend, shapes, messages."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_cases import DEVICE, cut_evenly, draw, queries_and_keys
from torch._subclasses.fake_tensor import FakeTensorMode

from attnprobe_kernels import Segments, column_mass, prefill_map, span_lse
from attnprobe_kernels.backends import MAX_SOFTCAP, choose, import_fault, interpreted, triton_refusal
from attnprobe_kernels.rows import check_blocks, check_devices, check_rows, check_segments, check_tensors

ONE = cut_evenly(20, 1)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"softcap": 0.0}, "softcap must be positive and finite, got 0.0"),
        ({"softcap": float("inf")}, "softcap must be positive and finite, got inf"),
        ({"softcap": float("nan")}, "softcap must be positive and finite, got nan"),
        ({"q_start": -1}, "rows -1 to 2 are outside the 20 keys"),
        ({"q_start": 18}, "rows 18 to 21 are outside the 20 keys"),
        ({"visible": np.zeros((1, 3, 2), np.int32), "window": 3}, "visible replaces q_start and window"),
        (
            {"visible": np.array([[[0, 4], [0, 21], [0, 1]]], np.int32)},
            r"visible has columns outside 0 to 20: row 1 of sample 0 has \[0, 21\]",
        ),
        (
            {"visible": np.array([[[0, 4], [5, 2], [0, 1]]], np.int32)},
            r"visible has an interval that ends before it starts: row 1 of sample 0 has \[5, 2\]",
        ),
        ({"visible": torch.zeros((1, 3, 2))}, "visible must hold integers"),
        ({"visible": np.zeros((1, 3, 2))}, "visible must hold integers, got float64"),
        ({"visible": np.zeros((1, 3, 2), bool)}, "visible must hold integers, got bool"),
        ({"window": 0}, "window must be at least one token, got 0"),
        ({"window": -4}, "window must be at least one token, got -4"),
        ({"scale": float("nan")}, "scale must be finite, got nan"),
        ({"mask": torch.ones((1, 4, 3, 20), dtype=torch.bool), "alibi_slopes": torch.ones(4)}, "alibi_slopes need"),
        (
            {"mask": torch.ones((1, 4, 3, 20), dtype=torch.int64)},
            "mask must hold bools .* or floats .*, got torch.int64",
        ),
        ({"backend": "cuda"}, "backend 'cuda' is unknown; choose one of auto, triton, chunked, naive"),
    ],
)
def test_values_that_are_refused(features, message):
    q, k = queries_and_keys(n_keys=20)
    with pytest.raises(ValueError, match=message):
        span_lse(q, k, ONE, **features)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"q_start": 2.5}, "q_start must be a whole number, got 2.5"),
        ({"q_start": 2.0}, "q_start must be a whole number, got 2.0"),
        ({"q_start": 10**20}, "rows 1000.* are outside the 20 keys"),
        ({"window": 2.5}, "window must be a whole number, got 2.5"),
        ({"window": True}, "window must be a whole number, got True"),
        ({"window": "3"}, "window must be a whole number, got '3'"),
        ({"window": float("nan")}, "window must be a whole number, got nan"),
        ({"window": torch.ones(2)}, "window must be a whole number, got tensor"),
        ({"scale": "x"}, "scale must be a number, got 'x'"),
        ({"scale": 1j}, "scale must be a number, got 1j"),
        ({"scale": torch.ones(2)}, "scale must be a number, got tensor"),
        ({"softcap": "x"}, "softcap must be a number, got 'x'"),
        ({"sinks": torch.ones(4, dtype=torch.bool)}, "sinks must hold floats, got torch.bool"),
        ({"sinks": torch.ones(4, dtype=torch.int32)}, "sinks must hold floats, got torch.int32"),
        ({"alibi_slopes": torch.ones(4, dtype=torch.complex64)}, "alibi_slopes must hold floats, got torch.complex64"),
    ],
)
def test_numbers_of_another_kind_are_refused(features, message):
    q, k = queries_and_keys(n_keys=20)
    on_device = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in features.items()}
    with pytest.raises(ValueError, match=message):
        check_rows(q, k, **on_device)


def test_numbers_of_any_whole_kind_are_taken():
    q, k = queries_and_keys(n_keys=20)
    wanted = check_rows(q, k, q_start=4, window=3).visible
    assert np.array_equal(check_rows(q, k, q_start=np.int64(4), window=np.int32(3)).visible, wanted)
    assert np.array_equal(check_rows(q, k, window=10**20).visible, check_rows(q, k).visible)


@pytest.mark.parametrize("name", ["q", "k"])
def test_tensors_that_are_not_dense_are_refused(name):
    q, k = queries_and_keys(n_keys=20)
    given = {"q": q, "k": k}
    with pytest.raises(ValueError, match=f"{name} is a sparse_coo tensor; give a dense one"):
        check_rows(**(given | {name: given[name].to_sparse()}))
    nested = torch.nested.nested_tensor([torch.ones(2, 3, 64)], layout=torch.jagged)
    with pytest.raises(ValueError, match=f"{name} is a nested tensor; give a dense one"):
        check_rows(**(given | {name: nested}))


def test_shapes_that_do_not_fit():
    q, k = queries_and_keys(n_keys=20)
    with pytest.raises(ValueError, match="4 query heads cannot share 3 key heads"):
        check_rows(q, draw((1, 3, 20, 64), 0))
    with pytest.raises(ValueError, match="differ in samples or head dimension"):
        check_rows(q, k[..., :32])
    with pytest.raises(ValueError, match=r"key_bias must be \[B, Hq or 1, N\]"):
        check_rows(q, k, key_bias=draw((1, 2, 20), 0))
    with pytest.raises(ValueError, match=r"alibi_slopes must be \[Hq\] = \(4,\)"):
        check_rows(q, k, alibi_slopes=draw((2,), 0))
    with pytest.raises(ValueError, match=r"mask must be \[B, Hq or 1, A, N\]"):
        check_rows(q, k, mask=torch.ones((1, 1, 1, 20), dtype=torch.bool))
    with pytest.raises(ValueError, match=r"visible must be \[B, A, 2\] = \(1, 3, 2\), got \(1, 2, 2\)"):
        check_rows(q, k, visible=np.zeros((1, 2, 2), np.int32))


def test_segments_that_do_not_fit():
    q, k = queries_and_keys(n_keys=20)
    with pytest.raises(ValueError, match="the segments cover 21 keys, k has 20"):
        span_lse(q, k, cut_evenly(21, 2))
    with pytest.raises(ValueError, match="2 segment tables for 1 samples"):
        span_lse(q, k, [ONE, ONE])


def test_other_arguments_that_are_refused():
    q, k = queries_and_keys(n_keys=20)
    with pytest.raises(ValueError, match="block must be at least one row, got 0"):
        prefill_map(q, k, ONE, block=0)
    with pytest.raises(Exception, match="block"):  # jaxtyping's where it is installed
        prefill_map(q, k, ONE, block=2.0)
    with pytest.raises(Exception, match="lse_total"):
        column_mass(q, k, torch.zeros((1, 4, 3), dtype=torch.int64, device=DEVICE))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("k", (1, 2, 20, 64)), ("key_bias", (1, 1, 20)), ("alibi_slopes", (4,)), ("mask", (1, 1, 3, 20)), ("sinks", (4,))],
)
def test_tensors_of_another_device_are_named(name, shape):
    q, k = queries_and_keys(n_keys=20)
    given = {"k": k, name: torch.empty(shape, device="meta")}
    with pytest.raises(ValueError, match=rf"^{name} is on meta and q on {q.device}: move {name} to q's device$"):
        span_lse(q, segments=ONE, **given)


def test_tensors_without_numbers_are_refused():
    q, k = (torch.empty((1, 2, 3, 16), device="meta") for _ in range(2))
    with pytest.raises(ValueError, match="q is on the meta device, which holds no numbers: give tensors with data"):
        span_lse(q, k, cut_evenly(3, 1))
    with pytest.raises(ValueError, match=r"q and k must hold floats, got torch.int64 and torch.float32"):
        check_rows(torch.zeros((1, 1, 3, 16), dtype=torch.int64), torch.zeros(1, 1, 3, 16))


def test_intervals_of_another_device_are_named():
    q, k = queries_and_keys(n_keys=20)
    message = f"visible is on meta and q on {q.device}: move visible to q's device"
    with pytest.raises(ValueError, match=message):
        span_lse(q, k, ONE, visible=torch.zeros((1, 3, 2), dtype=torch.int32, device="meta"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"edges": [[0, 3]], "block": 2}, "edges replace block: give one or the other"),
        ({"edges": [[0, 3], [0, 3]]}, "2 lists of edges for 1 samples"),
        ({"edges": [[3]]}, r"edges of sample 0 must be two rows or more from 0 to 3, in ascending order; got \[3\]"),
        ({"edges": [[0, 4]]}, "edges of sample 0 must be"),
        ({"edges": [[-1, 2]]}, "edges of sample 0 must be"),
        ({"edges": [[0, 2, 1]]}, "edges of sample 0 must be"),
        ({"edges": [[0.0, 2.5]]}, "edges must be a list of rows for each sample, got"),
        ({"edges": [0, 3]}, "edges must be a list of rows for each sample, got"),
        ({"edges": 3}, "edges must be a list of rows for each sample, got 3"),
    ],
)
def test_blocks_that_are_refused(given, message):
    args = check_rows(*queries_and_keys(n_keys=20))
    with pytest.raises(ValueError, match=message):
        check_blocks(args, given.get("block"), given["edges"])


def test_a_total_of_another_device_is_named():
    q, k = queries_and_keys(n_keys=20)
    with pytest.raises(ValueError, match="lse_total is on meta"):
        column_mass(q, k, torch.empty((1, 4, 3), device="meta"))


@pytest.mark.skipif("jaxtyping" not in sys.modules, reason="jaxtyping is not installed")
def test_annotated_shapes_are_checked():
    q, k = queries_and_keys(n_keys=20)
    with pytest.raises(Exception, match=r"(?s)span_lse.*k"):
        span_lse(q, k[0], ONE)
    with pytest.raises(Exception, match=r"(?s)column_mass.*lse_total"):
        column_mass(q, k, torch.zeros((1, 4), device=DEVICE))


def test_auto_takes_what_fits():
    q, k = queries_and_keys(n_keys=20)
    expected = "triton_backend" if DEVICE == "cuda" else "chunked"
    assert choose("auto", check_rows(q, k)).__name__ == f"attnprobe_kernels.{expected}"
    mask = torch.ones((1, 1, 3, 20), dtype=torch.bool, device=DEVICE)
    assert choose("auto", check_rows(q, k, mask=mask)).__name__ == "attnprobe_kernels.chunked"
    assert choose("naive", check_rows(q, k)).__name__ == "attnprobe_kernels.naive"


def test_why_triton_cannot_take_some_check_rows():
    q, k = queries_and_keys(n_keys=20)
    mask = torch.ones((1, 1, 3, 20), dtype=torch.bool, device=DEVICE)
    assert triton_refusal(check_rows(q, k, mask=mask)) == "takes intervals of keys, not masks"
    assert "of one dtype, got torch.float64" in str(triton_refusal(check_rows(q.double(), k.double())))
    assert "of one dtype, got torch.float16 and torch.float32" in str(triton_refusal(check_rows(q.half(), k)))
    wide = draw((1, 1, 20, 576), 0)
    assert triton_refusal(check_rows(wide[:, :, :3], wide)) == "takes head dimensions up to 512, got 576"


@pytest.fixture
def fake_gpu(monkeypatch):
    """Tensors that say they are on an NVIDIA device of the capability that this is given."""
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.version, "hip", None)

    def inputs(*capability, head_dim=64, dtype=torch.float32):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        with FakeTensorMode():
            return tuple(
                torch.empty(shape, dtype=dtype, device="cuda:0")
                for shape in ((1, 4, 3, head_dim), (1, 2, 20, head_dim))
            )

    return inputs


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (12, 0)])
def test_triton_takes_devices_from_ampere_on(fake_gpu, capability):
    assert triton_refusal(check_rows(*fake_gpu(*capability))) is None


def test_older_devices_get_chunked(fake_gpu):
    args = check_rows(*fake_gpu(7, 5))
    assert choose("auto", args).__name__ == "attnprobe_kernels.chunked"
    message = 'backend "triton" needs compute capability 8.0 or newer, cuda:0 has 7.5; use "chunked" or "auto"'
    with pytest.raises(ValueError, match=message):
        choose("triton", args)


def test_amd_devices_count_their_architectures_otherwise(fake_gpu, monkeypatch):
    args = check_rows(*fake_gpu(7, 5))
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert triton_refusal(args) is None


@pytest.mark.parametrize(("head_dim", "refused"), [(256, False), (264, True), (512, True)])
def test_long_float32_heads_on_amd_devices_get_chunked(fake_gpu, monkeypatch, head_dim, refused):
    q, k = fake_gpu(9, 0, head_dim=head_dim)
    assert triton_refusal(check_rows(q, k)) is None  # on NVIDIA devices they fit
    monkeypatch.setattr(torch.version, "hip", "7.0")
    args = check_rows(q, k)
    wanted = f"takes float32 head dimensions up to 256 on AMD devices, got {head_dim}" if refused else None
    assert triton_refusal(args) == wanted
    assert choose("auto", args).__name__ == f"attnprobe_kernels.{'chunked' if refused else 'triton_backend'}"
    assert triton_refusal(check_rows(*fake_gpu(9, 0, head_dim=head_dim, dtype=torch.float16))) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_heads_of_far_keys_get_chunked(fake_gpu, dtype):
    q, k = fake_gpu(9, 0, head_dim=512, dtype=dtype)
    far = k.as_strided(k.shape, (0, 0, 2**24, 1))
    refusal = triton_refusal(check_rows(q, far))
    assert refusal is not None
    assert refusal.endswith("span 2 ** 31 elements, got 512")
    assert triton_refusal(check_rows(q, k)) is None
    q = fake_gpu(9, 0, head_dim=256, dtype=dtype)[0]
    assert triton_refusal(check_rows(q, k.as_strided((1, 2, 20, 256), (0, 0, 2**24, 1)))) is None


def test_softcaps_above_the_limit_get_chunked(fake_gpu):
    q, k = fake_gpu(9, 0)
    assert triton_refusal(check_rows(q, k, softcap=MAX_SOFTCAP)) is None
    args = check_rows(q, k, softcap=MAX_SOFTCAP + 1)
    assert choose("auto", args).__name__ == "attnprobe_kernels.chunked"
    with pytest.raises(ValueError, match="takes softcaps up to 50, beyond which its tanh is too coarse, got 51"):
        choose("triton", args)


@pytest.mark.skipif(DEVICE == "cuda", reason="the tensors can be taken")
def test_triton_without_a_gpu_says_so(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    q, k = queries_and_keys(n_keys=20)
    message = 'backend "triton" needs a CUDA or ROCm device, the tensors are on cpu; use "chunked" or "auto"'
    with pytest.raises(ValueError, match=message):
        span_lse(q, k, ONE, backend="triton")


@pytest.mark.parametrize(("value", "interprets"), [("1", True), ("true", True), ("On", True), ("false", False)])
def test_the_interpreter_is_on_where_triton_says_so(monkeypatch, value, interprets):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", value)
    assert interpreted() == interprets


BROKEN = """
import warnings

import torch

from attnprobe_kernels import Segments, span_lse


class OnGpu(torch.Tensor):
    is_cuda = True


on_gpu, segments = torch.ones(1, 1, 3, 16).as_subclass(OnGpu), Segments.from_bounds([(0, 3)], 3)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        span_lse(on_gpu, on_gpu, segments, backend="triton")
    except ValueError as error:
        print(error)
    print(len(caught), "warnings")
    for _ in range(3):
        print(tuple(span_lse(on_gpu, on_gpu, segments).shape))
for warning in caught:
    print(warning.filename, warning.message)
"""


def test_a_broken_triton_is_told_once_and_done_without(tmp_path):
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text('raise OSError("libtriton.so: no such file")')
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", BROKEN],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    fault = "OSError: libtriton.so: no such file"
    assert done.stdout.splitlines() == [
        f'backend "triton" needs the package triton, which cannot be used here: {fault}; use "chunked" or "auto"',
        "0 warnings",
        *["(1, 1, 3, 1)"] * 3,
        f'<string> the Triton kernels cannot be used, and "auto" takes "chunked": {fault}',
    ], done.stderr


def test_a_module_in_the_place_of_triton_counts_as_none(monkeypatch):
    import_fault.cache_clear()
    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    try:
        refusal = triton_refusal(check_rows(torch.ones(1, 1, 3, 16), torch.ones(1, 1, 3, 16)))
    finally:
        import_fault.cache_clear()
    assert refusal == "needs the package triton, which is not installed"


@pytest.mark.skipif(DEVICE == "cuda", reason="runs the interpreter")
@pytest.mark.usefixtures("triton_ready")
def test_a_launch_that_fails_names_the_way_round_it(monkeypatch):
    from triton.runtime.interpreter import InterpretedFunction

    def run(*args, **kwargs):
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    monkeypatch.setattr(InterpretedFunction, "run", run)
    q, k = queries_and_keys(n_keys=20)
    message = 'cannot be compiled or launched on cpu; use backend="chunked" .RuntimeError: Failed to find C compiler'
    with pytest.raises(RuntimeError, match=message):
        span_lse(q, k, ONE, backend="triton")


def test_triton_that_is_not_installed(monkeypatch):
    monkeypatch.setattr("attnprobe_kernels.backends.find_spec", lambda name: None)
    q, k = queries_and_keys(n_keys=20)
    with pytest.raises(ValueError, match="needs the package triton, which is not installed"):
        span_lse(q, k, ONE, backend="triton")


@pytest.mark.parametrize("backend", ["chunked", "naive"])
def test_no_gradient_is_kept(backend):
    q, k = queries_and_keys(n_keys=20)
    assert not span_lse(q.requires_grad_(), k, ONE, backend=backend).requires_grad


def test_importing_the_package_imports_no_triton():
    code = "import sys, attnprobe_kernels; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_same_intervals_are_uploaded_once():
    q, k = queries_and_keys(n_keys=20)
    first = check_rows(q, k).visible_on_device()
    assert check_rows(q, k).visible_on_device() is first
    assert first.tolist() == [[[0, 18], [0, 19], [0, 20]]]


def test_empty_segments_need_no_keys():
    q, k = queries_and_keys(n_keys=20)
    lse = span_lse(q, k, Segments.from_bounds([(0, 0), (0, 20), (20, 20)], 20))
    assert torch.isneginf(lse[..., [0, 2]]).all()


def test_keys_that_a_row_sees_need_an_owner():
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 1, 10, 8)
    hidden = Segments.from_spans([[(0, 4)], [(6, 10)]], 10, hidden=[(4, 6)])
    for operation in (span_lse, prefill_map):
        with pytest.raises(ValueError, match="belong to no span"):
            operation(q, k, hidden)


def test_sinks_are_one_a_query_head():
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 1, 10, 8)
    segments = Segments.from_bounds([(0, 10)], 10)
    with pytest.raises(Exception, match=r"sinks|Hq"):
        prefill_map(q, k, segments, sinks=torch.zeros(1))


def test_a_mask_says_all_that_rows_see():
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 1, 10, 8)
    with pytest.raises(ValueError, match="mask says what rows see"):
        span_lse(q, k, Segments.from_bounds([(0, 10)], 10), mask=torch.ones(1, 1, 3, 10, dtype=torch.bool), window=3)


def test_autocast_does_not_coarsen_the_result():
    q, k = torch.randn(1, 2, 3, 64), torch.randn(1, 1, 100, 64)
    segments = Segments.from_bounds([(0, 50), (50, 100)], 100)
    wanted = span_lse(q, k, segments)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(span_lse(q, k, segments), wanted)


def test_a_mask_shows_no_key_of_no_span():
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 1, 10, 8)
    segments = Segments.from_spans([[(0, 4)], [(6, 10)]], 10, hidden=[(4, 6)])
    mask = torch.ones(1, 2, 3, 10, dtype=torch.bool)
    mask[..., 4:6] = False
    wanted = span_lse(q, k, segments, mask=mask)
    mask[:, 1, 1:, 5] = True  # one head of two
    for given in (mask, torch.where(mask, 0.0, float("-inf"))):
        with pytest.raises(ValueError, match="row 1 sees 1 keys that belong to no span"):
            span_lse(q, k, segments, mask=given)
        beside = np.array([[[0, 10], [0, 5], [6, 10]]], dtype=np.int32)
        assert torch.equal(span_lse(q, k, segments, mask=given, visible=beside)[:, :, 0], wanted[:, :, 0])


def test_the_readme_runs() -> None:
    text = (Path(__file__).parents[2] / "kernels" / "README.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["mass"].sum(-1).allclose(torch.ones(()), atol=1e-5)
    assert names["columns"].sum(-1).allclose(torch.ones(()), atol=1e-5)
    assert names["blocks"].shape == (1, 8, 4, 3)


def test_tables_and_tensors_of_another_type_are_named() -> None:
    args = check_rows(torch.zeros(1, 1, 2, 16), torch.zeros(1, 1, 5, 16))
    with pytest.raises(ValueError, match=r"segments holds \(0, 2\); give Segments"):
        check_segments(args, [(0, 2), (2, 5)])  # type: ignore[list-item]
    for given, kind in ((None, "None"), (3, "of type int")):
        with pytest.raises(ValueError, match=rf"segments is {kind}; give Segments .*, or one a sample"):
            check_segments(args, given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="key_bias is of type ndarray; give a torch tensor"):
        check_devices(torch.zeros(1), key_bias=np.zeros(3))  # type: ignore[arg-type]
    for name in ("alibi_slopes", "mask", "sinks"):
        with pytest.raises(ValueError, match=f"{name} is of type list; give a torch tensor"):
            check_rows(args.q, args.k, **{name: [1.0]})
    with pytest.raises(ValueError, match=r"visible is of type list; give integers .* as a torch tensor or numpy array"):
        check_rows(args.q, args.k, visible=[[[0, 5], [0, 5]]])  # type: ignore[arg-type]
    for given, kind in ((None, "None"), ([[1.0]], "of type list")):
        with pytest.raises(ValueError, match=f"q is {kind}; give a torch tensor"):
            check_rows(given, args.k)
        with pytest.raises(ValueError, match=f"k is {kind}; give a torch tensor"):
            check_rows(args.q, given)
        with pytest.raises(ValueError, match=f"lse_total is {kind}; give a torch tensor"):
            check_tensors(lse_total=given)
    as_lists = Segments(starts=[0, 2], stops=[2, 5], owners=[0, 1], n_keys=5, n_spans=2)  # type: ignore[arg-type]
    assert as_lists == Segments.from_bounds([(0, 2), (2, 5)], 5)
    assert isinstance(hash(as_lists), int)
