"""Everything that needs a GPU, in one go and in bounded time: tests, kernel times, whole generations.

``python -m benchmarks.gpu_check`` from the repository's root, with ``PYTHONPATH=.:kernels``; nothing has to be
installed beside torch, triton, transformers, accelerate, numpy and pytest. Each stage is a process of its own, so that
a lost device in one leaves the others' results. The results of all are one JSON file, which holds what a stage that was
cut had done by then.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import ROOT, default_path, describe, unwritable, write
from benchmarks.outcomes import NOT_RUN

SHARES = {"tests": 0.45, "kernels": 0.7, "llama-1b": 0.78, "llama-8b": 1.0}
"""At which share of the budget each stage must have ended; what one leaves over goes to those after it."""
SPARE_SECONDS = 12.0
"""What a stage is told to stop before it is stopped: a call that has begun is finished."""

TIMED_OUT = 124
"""Status of a stage that did not stop by itself."""

TEST_PROCESSES = 4
"""Processes that share the tests; compiling their kernels, on one processor each, takes most of the time."""


@dataclass(frozen=True)
class Stage:
    """A program that takes ``--budget`` and ``--json``, and writes there as it goes; several take ``--share`` too."""

    name: str
    arguments: tuple[str, ...]
    processes: int = 1


def stages(device: str, quick: bool) -> list[Stage]:
    """The stages, in order."""
    tests = ("-m", "pytest", "tests/gpu", "-m", "gpu", "-q", "-p", "no:cacheprovider", "-p", "benchmarks.outcomes")
    kernels = ("-m", "benchmarks", "--device", device, *(["--quick"] if quick else []))
    listed = [Stage("tests", tests, 1 if quick else TEST_PROCESSES), Stage("kernels", kernels)]
    for model in ("llama-tiny",) if quick else ("llama-1b", "llama-8b"):
        lengths = ("64",) if quick else ("32768", "131072")
        rows, pairs = ("4", "1") if quick else ("64", "3")
        arguments = ("benchmarks/overhead.py", "--model", model, "--device", device, "--tokens", *lengths)
        listed.append(Stage(model, (*arguments, "--rows", rows, "--pairs", pairs)))
    return listed


def run_stage(stage: Stage, seconds: float) -> dict[str, Any]:
    """Run a stage for at most so long; its status, and what each of its processes wrote until then.

    The output of a lone process is shown as it comes, that of several one after the other.
    """
    if seconds < SPARE_SECONDS:
        return {"left_out": "time limit"}
    begin = time.monotonic()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")]),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
    }
    # Tests elsewhere run the kernels in Triton's interpreter; here they must be compiled.
    environment.pop("TRITON_INTERPRET", None)
    print(f"\n== {stage.name}: at most {seconds:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        paths = [folder / f"{index}.json" for index in range(stage.processes)]
        alone = stage.processes == 1
        outputs = [None if alone else stack.enter_context((folder / f"{path.stem}.txt").open("w")) for path in paths]
        processes = []
        try:
            for index, (path, output) in enumerate(zip(paths, outputs, strict=True)):
                command = [sys.executable, *stage.arguments, "--budget", f"{seconds - SPARE_SECONDS:.0f}"]
                command += ["--json", str(path), *([] if alone else ["--share", str(index), str(stage.processes)])]
                # A session of its own: its compilers end with it, and an interrupt comes through us.
                options: dict[str, Any] = {"cwd": ROOT, "env": environment, "start_new_session": True}
                processes.append(subprocess.Popen(command, stdout=output, stderr=output, **options))
            statuses = [_wait(process, begin + seconds) for process in processes]
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for output in outputs:
            if output is not None:
                print(Path(output.name).read_text(encoding="utf-8", errors="replace"), flush=True)
        return {
            "status": next((status for status in statuses if status), 0),
            "seconds": time.monotonic() - begin,
            "results": [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.is_file()],
        }


def _stop(*_: Any) -> None:
    """End as an interrupt does, so that no stage goes on alone."""
    raise KeyboardInterrupt


def _wait(process: subprocess.Popen[bytes], until: float) -> int:
    """The status of a process, ``TIMED_OUT`` if it has none by then."""
    try:
        return process.wait(timeout=max(until - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        return TIMED_OUT


def report(outcome: dict[str, dict[str, Any]]) -> list[str]:
    """One line a stage."""
    lines = []
    for name, result in outcome.items():
        if "left_out" in result:
            lines.append(f"{name}: NOT RUN: {result['left_out']}")
            continue
        tests = [test for part in result["results"] for test in part.get("tests", {}).values()]
        n_left, n_skipped = tests.count(NOT_RUN), tests.count("skipped")
        none_run = bool(tests) and n_skipped == len(tests)
        words = [f"{result['seconds']:.0f} s"]
        if tests:
            n_failed = sum(test.startswith("failed") for test in tests)
            skipped = f", {n_skipped} skipped" if n_skipped else ""
            words.append(f"{len(tests) - n_left - n_skipped} of {len(tests)} tests run, {n_failed} failed{skipped}")
        records = [record for part in result["results"] for key in ("kernels", "runs") for record in part.get(key, [])]
        n_out = sum("left_out" in record for record in records)
        if n_out:
            words.append(f"{n_out} of {len(records)} cases left out")
        if result["status"] == TIMED_OUT or n_left:
            word = "CUT by the time limit"
        else:
            word = f"FAILED, exit {result['status']}" if result["status"] else "NONE RUN" if none_run else "ok"
        lines.append(f"{name}: {word}, {', '.join(words)}")
    return lines


def main(argv: list[str] | None = None) -> int:
    """Run all stages; 0 if all are well, 1 if one failed or was cut, 2 if there is no device."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run, with --quick")
    parser.add_argument("--quick", action="store_true", help="tiny shapes")
    parser.add_argument("--budget", type=float, default=340.0, help="seconds for everything")
    parser.add_argument("--out", type=Path, help="folder for the results; default: kernels/benchmarks/results")
    args = parser.parse_args(argv)
    begin = time.monotonic()
    if args.device == "cuda" and not torch.cuda.is_available():
        print(
            "gpu-check: torch finds no CUDA or ROCm device here, so nothing was run; "
            "`python -m benchmarks.gpu_check --device cpu --quick` is a dry run",
            file=sys.stderr,
        )
        return 2
    if args.device == "cpu" and not args.quick:
        print("gpu-check: the real shapes take hours on a CPU; add --quick", file=sys.stderr)
        return 2
    device = torch.device(args.device)
    path = default_path(device)
    path = path if args.out is None else args.out / path.name
    if refusal := unwritable(path):
        print(f"gpu-check: {refusal}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _stop)  # what `timeout` sends
    results: dict[str, Any] = {**describe(device), "quick": args.quick, "stages": {}}
    for stage in stages(args.device, args.quick):
        until = args.budget * SHARES.get(stage.name, 1.0)
        results["stages"][stage.name] = run_stage(stage, begin + until - time.monotonic())
        write(path, results)
    print("", *report(results["stages"]), f"written to {path}", sep="\n")
    return int(any(result.get("status") != 0 for result in results["stages"].values()))


if __name__ == "__main__":
    sys.exit(main())
