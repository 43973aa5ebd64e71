"""The benchmarks' own arithmetic, their refusal to time what is wrong, and a dry run of everything without a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import benchmarks.__main__ as command
from benchmarks import gpu_check, runner
from benchmarks.registry import CASES, OPERATIONS, QUICK_CASES, Case, bind, make_inputs
from benchmarks.rivals import RIVALS, Rival
from benchmarks.roofline import Peaks, datasheet, floor_of, measure_peaks, work_of
from benchmarks.runner import Settings, failures, run
from benchmarks.table import duration, lines, size
from benchmarks.timing import time_call
from benchmarks.verify import check_own, judge, reference

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
H200 = Peaks(bandwidth=4.3e12, tensor=790e12, exponentials=132 * 16 * 1.98e9)
SETTINGS = Settings(CPU, torch.float32, ("chunked",), Peaks(1e11, 1e11), seconds=0.001)
ids = {"ids": lambda case: case.name.replace(" ", "-")}


def llama(operation: Any, n_keys: int, n_rows: int) -> Case:
    return Case(operation, "llama-3.1-8b", 32, 8, 128, n_keys, n_rows)


def test_registry_holds_the_shapes_that_are_promised() -> None:
    for n_keys in (4096, 32768, 131072, 524288):
        for n_rows in (1, 32, 256, 4096):
            assert llama("span_lse", n_keys, n_rows) in CASES
            assert llama("column_mass", n_keys, n_rows) in CASES
    assert all(llama("prefill_map", n, n) in CASES for n in (4096, 32768, 131072))
    for case in CASES:  # each beside the sums alone
        assert case.operation != "span_top" or replace(case, operation="span_lse") in CASES
    heads = {(case.n_q_heads, case.n_kv_heads, case.head_dim, case.window) for case in CASES}
    assert {(64, 4, 128, None), (32, 32, 128, None)} <= heads
    assert any(case.head_dim == 256 and case.window == 1024 for case in CASES)
    assert {case.operation for case in CASES} == set(OPERATIONS)
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", [*CASES, *QUICK_CASES], **ids)
def test_segments_tile_the_keys_and_suit_one_hot_values(case: Case) -> None:
    table = case.segments  # raises on a gap or an overlap
    assert table.n_keys == case.n_keys
    assert 20 < table.n_spans <= case.head_dim


def test_visible_logits_are_counted() -> None:
    for case in (
        Case("span_lse", "x", 4, 2, 16, 50, 7),
        Case("span_lse", "x", 4, 2, 16, 50, 50),
        Case("span_lse", "x", 4, 2, 16, 50, 20, window=9),
    ):
        rows = range(case.n_keys - case.n_rows, case.n_keys)
        reach = case.window or case.n_keys
        assert case.n_logits == 4 * sum(min(row + 1, reach) for row in rows)


def test_floors_of_the_design() -> None:
    floor = floor_of(llama("span_lse", 131072, 256), H200)
    assert floor.tensor == pytest.approx(0.348e-3, rel=0.01)
    assert floor.exponentials == pytest.approx(0.257e-3, rel=0.01)
    assert floor.bytes == pytest.approx(131072 * 8 * 128 * 2 / 4.3e12, rel=0.05)
    assert (floor.limit, floor.seconds) == ("tensor", floor.tensor)
    assert floor_of(llama("prefill_map", 131072, 131072), H200).seconds == pytest.approx(89e-3, rel=0.01)
    assert floor_of(llama("span_lse", 131072, 1), H200).limit == "bytes"


def test_a_window_bounds_the_work() -> None:
    whole = Case("span_lse", "x", 16, 8, 256, 131072, 256)
    window = replace(whole, window=1024)
    assert window.n_logits == 16 * 256 * 1024
    assert work_of(window).bytes < work_of(whole).bytes / 50


def test_unknown_rates_are_left_out() -> None:
    case = llama("span_lse", 4096, 1)
    assert floor_of(case, Peaks()).seconds is None
    assert floor_of(case, Peaks()).limit is None
    assert floor_of(case, Peaks(bandwidth=1e12)).limit == "bytes"


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA L40", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_datasheet_is_of_the_very_card(name: str, tensor: float | None) -> None:
    assert datasheet(name).tensor == tensor


def test_probe_gives_rates() -> None:
    peaks = measure_peaks(CPU)
    assert peaks.bandwidth is not None
    assert peaks.tensor is not None
    assert 1e8 < peaks.bandwidth < 1e13
    assert peaks.exponentials is None


def test_timing_counts_the_call() -> None:
    timing = time_call(lambda: time.sleep(0.004), CPU, seconds=0.02)
    assert 0.004 <= timing.fastest <= timing.median <= timing.slowest
    assert timing.repeats >= 3


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("case", QUICK_CASES, **ids)
def test_every_rival_and_backend_agrees(case: Case) -> None:
    (record,) = run([case], SETTINGS)
    names = [result["name"] for result in record["results"]]
    assert names == ["chunked", *(rival.name for rival in RIVALS if case.operation in rival.operations)]
    for result in record["results"]:
        assert result.get("seconds", 0) > 0, result
        if result["name"] != "forward":
            assert result["error"]["absolute"] < 1e-5
    assert not failures([record], ("chunked",))


def own_verdict(case: Case, change: Any) -> Any:
    inputs = make_inputs(case, CPU, torch.float32, "chunked")
    call = bind(case, inputs, "chunked")
    return check_own(case, inputs, reference(case, inputs), lambda: change(call()))


@pytest.mark.parametrize("case", QUICK_CASES[::2], **ids)
def test_wrong_results_are_refused(case: Case) -> None:
    assert own_verdict(case, lambda result: result).ok
    assert not own_verdict(case, lambda result: result + 3e-3).ok
    assert not own_verdict(case, lambda result: result[..., :-1]).ok
    assert not own_verdict(case, lambda result: torch.full_like(result, float("nan"))).ok


def test_a_wrong_heaviest_key_is_refused() -> None:
    case = QUICK_CASES[-1]
    assert case.operation == "span_top"
    assert own_verdict(case, lambda result: result).ok
    assert not own_verdict(case, lambda result: result._replace(top_logit=result.top_logit - 0.1)).ok
    assert not own_verdict(case, lambda result: result._replace(lse=result.lse + 0.1)).ok

    def reason(change: Any) -> str:
        return str(own_verdict(case, lambda result: result._replace(top_key=change(result.top_key))).reason)

    assert "is not of the span" in reason(lambda key: key.flip(-1))
    assert "below the largest" in reason(lambda key: torch.where(key == key.max(), key - 1, key))
    assert "where a row sees none" in reason(lambda key: torch.full_like(key, -1))
    assert "is not of the span" in reason(lambda key: key - 2**30)
    calls = iter(range(9))
    assert "differ" in reason(lambda key: key + next(calls))


def test_a_wrong_logit_of_a_faint_span_is_refused() -> None:
    def change(result: Any) -> Any:
        faint = result.top_logit == result.top_logit.amin(-1, keepdim=True)
        return result._replace(top_logit=torch.where(faint, result.top_logit - 0.1, result.top_logit))

    assert "a largest logit is off by 1.0e-01 nats" in own_verdict(QUICK_CASES[-1], change).reason


def test_results_that_change_are_refused() -> None:
    calls = []

    def drift(result: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return result + 1e-7 * len(calls)

    assert "differ" in own_verdict(QUICK_CASES[0], drift).reason


def test_bounds_are_kept() -> None:
    wanted = torch.tensor([0.9, 0.1, 1e-9], dtype=torch.float64)
    assert judge(wanted * (1 + 9e-5), wanted, relative=1e-4, absolute=None).ok
    assert not judge(wanted * (1 + 2e-4), wanted, relative=1e-4, absolute=None).ok
    assert judge(wanted + torch.tensor([0, 0, 1e-8]), wanted, relative=1e-4, absolute=None).ok
    assert not judge(wanted + 2e-5, wanted, relative=None, absolute=1e-5).ok
    # mass where there is none, such as in columns that no row sees
    assert not judge(wanted + torch.tensor([0, 0, 2e-5]), wanted, relative=1e-4, absolute=None).ok


def test_what_is_wrong_gets_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    case = QUICK_CASES[0]

    def build(case: Case, inputs: Any) -> Any:
        shape = (1, case.n_q_heads, case.n_rows, case.segments.n_spans)
        return lambda: torch.full(shape, 1 / case.segments.n_spans)

    monkeypatch.setattr(runner, "RIVALS", (Rival("uniform", OPERATIONS, lambda case, element: 0, build),))
    monkeypatch.setattr(runner, "bind", lambda case, inputs, backend: lambda: bind(case, inputs, backend)() + 1)
    (record,) = run([case], SETTINGS)
    assert [set(result) & {"wrong", "seconds"} for result in record["results"]] == [{"wrong"}, {"wrong"}]
    assert len(failures([record], ("chunked",))) == 1
    assert sum("WRONG" in line for line in lines([record])) == 2


def test_an_error_is_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(case: Case, inputs: Any) -> Any:
        raise torch.OutOfMemoryError("no room\nfor this")

    monkeypatch.setattr(runner, "RIVALS", (Rival("broken", OPERATIONS, lambda case, element: 0, build),))
    (record,) = run(QUICK_CASES[:1], SETTINGS)
    assert record["results"][1]["left_out"] == "OutOfMemoryError: no room"


def test_what_does_not_fit_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    large = Rival("large", OPERATIONS, lambda case, element: 2**60, lambda case, inputs: pytest.fail("was built"))
    monkeypatch.setattr(runner, "RIVALS", (large,))
    (record,) = run(QUICK_CASES[:1], SETTINGS)
    assert "GiB free" in record["results"][1]["left_out"]
    assert any("large: left out: needs" in line for line in lines([record]))
    monkeypatch.setattr(runner, "free_bytes", lambda device: 2**10)
    (record,) = run(QUICK_CASES[:1], SETTINGS)
    assert "needs" in record["left_out"]
    assert not record["results"]


def test_shapes_that_would_each_be_compiled_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Rival("slow", OPERATIONS, lambda case, element: 0, lambda case, inputs: lambda: None, False, compiles=True)
    monkeypatch.setattr(runner, "RIVALS", (slow,))
    case = replace(QUICK_CASES[0], model="other")
    (record,) = run([case], SETTINGS)
    assert "--compile-every-shape" in record["results"][1]["left_out"]
    (record,) = run([case], replace(SETTINGS, compile_every_shape=True))
    assert "seconds" in record["results"][1]


def test_memory_estimates() -> None:
    memory = {rival.name: rival.memory for rival in RIVALS}
    prefill = llama("prefill_map", 131072, 131072)
    assert memory["matrix"](prefill, 2) > 32 * 131072**2 * 4
    assert memory["one-hot"](prefill, 2) < 8 * 2**30
    assert 8 * 2**30 < memory["matrix"](llama("span_lse", 131072, 256), 2) < 16 * 2**30


def test_nothing_starts_after_the_deadline() -> None:
    records = list(run(QUICK_CASES, replace(SETTINGS, deadline=time.monotonic() - 1)))
    assert [record["left_out"] for record in records] == ["time limit"] * len(QUICK_CASES)
    assert not failures(records, ("chunked",))


def test_units_of_the_table() -> None:
    assert [duration(value) for value in (None, 2.5, 0.00123, 4.2e-6)] == ["-", "2.5 s", "1.23 ms", "4.2 us"]
    assert [size(value) for value in (None, 3 * 2**20, 3 * 2**30)] == ["-", "3.0 MiB", "3.00 GiB"]


def test_command_writes_what_was_measured_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out" / "results.json"
    arguments = ["--device", "cpu", "--quick", "--only", "window", "--no-rivals", "--json", str(path)]
    assert command.main(arguments) == 0
    results = json.loads(path.read_text())
    assert results["device"]["type"] == "cpu"
    assert results["versions"]["torch"] == torch.__version__
    assert results["quick"] is True
    assert [record["case"]["name"] for record in results["kernels"]] == ["span_lse tiny-window N=257 A=17"]
    assert "tiny-window" in capsys.readouterr().out


def test_command_fails_when_a_kernel_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "bind", lambda case, inputs, backend: lambda: bind(case, inputs, backend)() + 1)
    arguments = ["--device", "cpu", "--quick", "--only", "A=1$", "--no-rivals", "--json", str(tmp_path / "r.json")]
    assert command.main(arguments) == 1


@pytest.mark.parametrize(
    "arguments", [[], ["--device", "cpu"], ["--device", "cpu", "--quick", "--only", "nothing like this"]]
)
def test_command_refuses(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main(arguments) == 2


def test_gpu_check_says_that_there_is_no_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main([]) == 2
    assert "no CUDA or ROCm device" in capsys.readouterr().err


@pytest.mark.parametrize(("outcome", "status"), [({"status": 0}, 0), ({"status": 1}, 1), ({"left_out": "x"}, 1)])
def test_gpu_check_keeps_within_its_budget(
    outcome: dict[str, Any], status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: dict[str, float] = {}

    def run_stage(stage: gpu_check.Stage, seconds: float) -> dict[str, Any]:
        given[stage.name] = seconds
        return {"seconds": 1.0, "results": [], **outcome}

    monkeypatch.setattr(gpu_check, "run_stage", run_stage)
    assert gpu_check.main(["--device", "cpu", "--quick", "--budget", "100", "--out", str(tmp_path)]) == status
    assert list(given) == ["tests", "kernels", "llama-tiny"]
    assert given["tests"] < given["kernels"] < given["llama-tiny"] <= 100
    (path,) = tmp_path.glob("cpu-*.json")
    assert list(json.loads(path.read_text())["stages"]) == list(given)


def test_every_stage_has_its_part_of_the_budget() -> None:
    names = [stage.name for stage in gpu_check.stages("cuda", quick=False)]
    assert names == list(gpu_check.SHARES)
    ends = list(gpu_check.SHARES.values())
    assert ends == sorted(set(ends))
    assert ends[-1] == 1.0


HANGS = """
import sys, time
from pathlib import Path
Path(sys.argv[sys.argv.index("--json") + 1]).write_text('{"runs": [{"tokens": 5}, {"left_out": "x"}]}')
time.sleep(60)
"""


def test_stages_that_hang_are_cut_and_leave_what_they_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hanging = [gpu_check.Stage("alone", ("-c", HANGS)), gpu_check.Stage("several", ("-c", HANGS), processes=2)]
    monkeypatch.setattr(gpu_check, "stages", lambda device, quick: [*hanging, gpu_check.Stage("late", ("-c", ""))])
    monkeypatch.setattr(gpu_check, "SHARES", {"alone": 0.5, "several": 1.0, "late": 1.0})
    monkeypatch.setattr(gpu_check, "SPARE_SECONDS", 0.3)
    assert gpu_check.main(["--device", "cpu", "--quick", "--budget", "4", "--out", str(tmp_path)]) == 1
    (path,) = tmp_path.glob("cpu-*.json")
    alone, several, late = json.loads(path.read_text())["stages"].values()
    assert alone["results"] == [{"runs": [{"tokens": 5}, {"left_out": "x"}]}]
    assert len(several["results"]) == 2
    assert late == {"left_out": "time limit"}
    said = capsys.readouterr().out
    assert "alone: CUT by the time limit, 2 s, 1 of 2 cases left out" in said
    assert "several: CUT by the time limit, 2 s, 2 of 4 cases left out" in said
    assert "late: NOT RUN: time limit" in said


TESTS = """
import time, pytest

@pytest.mark.parametrize("number", range(5))
def test_some(number):
    time.sleep(0.2)
    assert number != 1

@pytest.mark.skip
def test_none(): pass
"""


@pytest.fixture
def few_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """How to run some tests as a stage."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "test_few.py").write_text(TESTS)
    return ("-m", "pytest", str(tmp_path), "-q", "-p", "no:cacheprovider", "-p", "benchmarks.outcomes")


def test_tests_are_shared_out_and_their_outcomes_kept(few_tests: tuple[str, ...]) -> None:
    result = gpu_check.run_stage(gpu_check.Stage("tests", few_tests, processes=2), 300)
    assert len(result["results"]) == 2
    assert result["status"] == 1
    found = [(name.split("::")[1], how[:6]) for part in result["results"] for name, how in part["tests"].items()]
    hows = ("passed", "failed", "passed", "passed", "passed")
    assert sorted(found) == [("test_none", "skippe"), *((f"test_some[{i}]", how) for i, how in enumerate(hows))]
    (line,) = gpu_check.report({"tests": result})
    assert line.startswith("tests: FAILED, exit 1, ")
    assert line.endswith(" s, 5 of 6 tests run, 1 failed, 1 skipped")


def test_tests_stop_at_the_time_limit(few_tests: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "SPARE_SECONDS", 300.0)  # the budget of the tests is no time at all
    result = gpu_check.run_stage(gpu_check.Stage("tests", few_tests), 300.01)
    assert list(result["results"][0]["tests"].values()) == ["passed", *["not run"] * 5]
    assert result["status"] != 0
    (line,) = gpu_check.report({"tests": result})
    assert line.startswith("tests: CUT by the time limit, ")
    assert line.endswith(" s, 1 of 6 tests run, 0 failed")


@pytest.fixture(scope="module")
def generation() -> ModuleType:
    """The module beside the script of the end-to-end benchmark, which is no package."""
    spec = importlib.util.spec_from_file_location("generation", ROOT / "benchmarks" / "generation.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("chunk", [None, 32])
def test_generation_is_compared(chunk: int | None, generation: ModuleType) -> None:
    model = generation.random_llama("llama-tiny", CPU, torch.float32)
    run = generation.compare(model, 100, 5, 2, prefill_chunk=chunk, backend="chunked")
    assert run["same_tokens"]
    assert run["residual"] < 1e-5
    assert len(run["ratios"]) == 2
    assert run["cache_bytes"] == 2 * 2 * 2 * 16 * 4 * (100 + 5 - 1)
    assert "instrumented" in generation.line("llama-tiny", run)


def test_llamas_have_their_published_sizes(generation: ModuleType) -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig

    billions = {}
    for name in ("llama-1b", "llama-8b"):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(LlamaConfig(**generation.SIZES[name]))
        billions[name] = sum(parameter.numel() for parameter in model.parameters()) / 1e9
    assert billions["llama-8b"] == pytest.approx(8.03, abs=0.01)
    assert billions["llama-1b"] == pytest.approx(1.50, abs=0.01)  # its head and embedding share weights as published


WITHOUT = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    names = {"jaxtyping", "beartype", "gguf", "plotly", "duckdb", "pydantic"}

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
import importlib.metadata
from benchmarks.__main__ import main
assert main(["--device", "cpu", "--quick", "--only", "A=1$", "--no-rivals", "--json", sys.argv[1]]) == 0
sys.path.insert(0, "benchmarks")
import overhead
sys.argv[1:] = ["--model", "llama-tiny", "--tokens", "40", "--rows", "3", "--pairs", "1", "--json", sys.argv[1] + ".2"]
overhead.main()
assert not Blocked.names & set(sys.modules)
"""


def test_runs_with_few_packages(tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": os.pathsep.join([".", "kernels"]), "HF_HUB_OFFLINE": "1"}
    code = [sys.executable, "-c", WITHOUT, str(tmp_path / "results.json")]
    done = subprocess.run(code, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert np.isfinite(json.loads((tmp_path / "results.json.2").read_text())["runs"][0]["ratio"])


@pytest.mark.slow
def test_dry_run_of_everything(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", "cpu", "--quick", "--out", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([".", "kernels"])}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (path,) = tmp_path.glob("cpu-*.json")
    stages = json.loads(path.read_text())["stages"]
    assert {name: stage["status"] for name, stage in stages.items()} == {"tests": 0, "kernels": 0, "llama-tiny": 0}
    assert set(stages["tests"]["results"][0]["tests"].values()) == {"skipped"}
    assert [line for line in done.stdout.splitlines() if "written to" in line] == [f"written to {path}"]
    assert len(stages["kernels"]["results"][0]["kernels"]) == len(QUICK_CASES)
    assert stages["llama-tiny"]["results"][0]["runs"][0]["same_tokens"]


def test_results_that_cannot_be_written_are_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert command.main(["--device", "cpu", "--quick", "--json", str(tmp_path / "file" / "x.json")]) == 2
    assert "x.json cannot be written" in capsys.readouterr().err
    assert gpu_check.main(["--device", "cpu", "--quick", "--out", str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert command.main(["--device", "cpu", "--quick", "--only", "("]) == 2
    assert "no regular expression" in capsys.readouterr().err


def test_skipped_tests_are_not_counted_as_run() -> None:
    results = [{"tests": {"a": "passed", "b": "skipped", "c": "skipped"}}]
    lines = gpu_check.report({"tests": {"status": 0, "seconds": 6.0, "results": results}})
    assert lines == ["tests: ok, 6 s, 1 of 3 tests run, 0 failed, 2 skipped"]


def test_a_stage_of_which_nothing_ran_is_not_called_well() -> None:
    results = [{"tests": {"a": "skipped", "b": "skipped"}}]
    lines = gpu_check.report({"tests": {"status": 0, "seconds": 6.0, "results": results}})
    assert lines == ["tests: NONE RUN, 6 s, 0 of 2 tests run, 0 failed, 2 skipped"]
