"""The machine code of the kernels for devices that are not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from attnprobe_kernels.disassembly import Code, read_amdgcn

JOBS = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")


def run_targets(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: nothing compiles inside the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-m", "attnprobe_kernels.targets", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def findings():
    pytest.importorskip("triton")
    done = run_targets("--json", "--processes", "2" if JOBS == "1" else "1")
    assert done.returncode in (0, 1), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_no_variant_spills_or_misses_the_tensor_cores(findings):
    assert len(findings) >= 80
    assert [(f["variant"], f["faults"]) for f in findings if f["faults"]] == []


@pytest.mark.slow
def test_instructions_a_logit_stay_low(findings):
    """Bounds a tenth above what the compilers of 2026 give; a change that doubles the inner loop must not pass."""
    bounds = {
        ("sm_90", "span_lse"): 6.7,
        ("sm_100", "span_lse"): 5.3,
        ("sm_80", "span_lse"): 11.6,
        ("sm_90", "column_mass"): 6.5,
        ("sm_100", "column_mass"): 4.5,
        ("sm_90", "span_top"): 12.4,
        ("sm_100", "span_top"): 9.1,
        ("sm_90", "prefill_map"): 8.7,
        ("sm_100", "prefill_map"): 5.3,
    }
    common = {
        (f["variant"]["target"], f["variant"]["kernel"]): f["per_logit"]
        for f in reversed(findings)
        if f["variant"]
        | {"dtype": "bf16", "head_dim": 128, "rows": "many", "features": "plain", "layout": "contiguous"}
        == f["variant"]
    }
    for key, bound in bounds.items():
        assert 3.0 <= common[key] <= bound, (key, common[key])


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["span_lse", "span_top", "prefill_map", "column_mass"])
def test_two_programs_share_a_processor_on_hopper(findings, kernel):
    (found,) = (
        f
        for f in findings
        if f["variant"]
        == {
            "kernel": kernel,
            "target": "sm_90",
            "dtype": "bf16",
            "head_dim": 128,
            "rows": "many",
            "features": "plain",
            "layout": "contiguous",
        }
    )
    assert found["occupancy"] == 16
    assert found["registers"] <= 128


@pytest.mark.slow
def test_hopper_and_blackwell_use_their_own_matrix_units(findings):
    for finding in findings:
        variant = finding["variant"]
        if (
            variant["rows"] == "many"
            and variant["dtype"] != "fp32"
            and finding["per_logit"]
            and variant["head_dim"] == 128
        ):
            wanted = {"sm_90": "HGMMA", "sm_100": "UTC", "gfx942": "v_mfma"}.get(variant["target"], "HMMA")
            assert wanted in finding["matrix"], finding


def test_an_unknown_kernel_is_refused():
    done = run_targets("--kernel", "foo")
    assert done.returncode == 2
    assert "--kernel foo: no such kernel; choose from span_lse, " in done.stderr


def test_the_interpreter_is_refused():
    done = subprocess.run(
        [sys.executable, "-m", "attnprobe_kernels.targets"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "TRITON_INTERPRET is set" in done.stderr


AMDGCN = """
kernel:
\tv_mov_b32_e32 v0, 0
.LBB0_1:                                ; %loop
\tv_mfma_f32_32x32x8_bf16_1k a[0:15], v[0:1], v[2:3], a[0:15]
\tv_exp_f32_e32 v1, v1
\ts_cbranch_scc1 .LBB0_1
\ts_endpgm
    .private_segment_fixed_size: 8
    .sgpr_spill_count: 3
    .vgpr_count:     42
    .vgpr_spill_count: 2
"""


def test_amd_assembly_is_read():
    code = read_amdgcn(AMDGCN)
    assert (code.registers, code.stack, code.spills) == (42, 8, 2)
    assert code.matrix == {"v_mfma_f32_32x32x8_bf16_1k"}
    assert [len(loop) for loop in code.loops] == [3]
    assert len(code.inner_loop(1)) == 3
    assert code.inner_loop(2) == ()


def test_the_shortest_loop_with_enough_exponentials_counts():
    loops = (("MUFU.EX2",) * 4 + ("FSEL",) * 9, ("MUFU.EX2",) * 4, ("MUFU.EX2",))
    assert Code(0, 0, 0, loops, frozenset()).inner_loop(3) == ("MUFU.EX2",) * 4
