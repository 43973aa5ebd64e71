"""Everything that needs a GPU, in one go and in bounded time: tests, kernel times, whole generations.

``python -m benchmarks.gpu_check`` from the repository's root, with ``PYTHONPATH=.:kernels``; nothing has to be
installed beside torch, triton, transformers, accelerate, numpy and pytest. Each stage is a process of its own, so that
a lost device in one leaves the others' results. The results of all are one JSON file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import ROOT, default_path, describe, write

SHARES = {"tests": 0.45, "kernels": 0.7, "llama-1b": 0.78, "llama-8b": 1.0}
"""At which share of the budget each stage must have ended; what one leaves over goes to those after it."""
SPARE_SECONDS = 12.0
"""What a stage is told to stop before it is stopped: a call that has begun is finished."""

TIMED_OUT = 124
"""Status of a stage that did not stop by itself."""


@dataclass(frozen=True)
class Stage:
    """A process to run; ``json`` is where it writes its results, if it does."""

    name: str
    arguments: tuple[str, ...]
    json: Path | None = None
    takes_budget: bool = True


def stages(device: str, quick: bool, folder: Path) -> list[Stage]:
    """The processes, in order."""
    tests = ("-m", "pytest", "tests/gpu", "-m", "gpu", "-q", "-p", "no:cacheprovider", "--durations=5")
    kernels = folder / "kernels.json"
    run = ("-m", "benchmarks", "--device", device, *(["--quick"] if quick else []), "--json", str(kernels))
    listed = [Stage("tests", tests, takes_budget=False), Stage("kernels", run, kernels)]
    for model in ("llama-tiny",) if quick else ("llama-1b", "llama-8b"):
        path = folder / f"{model}.json"
        lengths = ("64",) if quick else ("32768", "131072")
        rows, pairs = ("4", "1") if quick else ("64", "3")
        arguments = ("benchmarks/overhead.py", "--model", model, "--device", device, "--tokens", *lengths)
        listed.append(Stage(model, (*arguments, "--rows", rows, "--pairs", pairs, "--json", str(path)), path))
    return listed


def run_stage(stage: Stage, seconds: float) -> dict[str, Any]:
    """Run a stage for at most so long, its output shown as it comes; its status, and what it wrote."""
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
    budget = ("--budget", f"{seconds - SPARE_SECONDS:.0f}") if stage.takes_budget else ()
    command = [sys.executable, *stage.arguments, *budget]
    print(f"\n== {stage.name}: at most {seconds:.0f} s", flush=True)
    result: dict[str, Any] = {}
    try:
        result["status"] = subprocess.run(command, cwd=ROOT, env=environment, timeout=seconds, check=False).returncode
    except subprocess.TimeoutExpired:
        result |= {"status": TIMED_OUT, "left_out": f"stopped after {seconds:.0f} s"}
    result["seconds"] = time.monotonic() - begin
    if stage.json is not None and stage.json.is_file():
        result["results"] = json.loads(stage.json.read_text(encoding="utf-8"))
    return result


def report(outcome: dict[str, dict[str, Any]]) -> list[str]:
    """One line a stage."""
    lines = []
    for name, result in outcome.items():
        if "left_out" in result:
            lines.append(f"{name}: not finished: {result['left_out']}")
        else:
            word = "ok" if result["status"] == 0 else f"FAILED, exit {result['status']}"
            lines.append(f"{name}: {word}, {result['seconds']:.0f} s")
    return lines


def main(argv: list[str] | None = None) -> int:
    """Run all stages; 0 if none failed, 1 if one did, 2 if there is no device."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run, with --quick")
    parser.add_argument("--quick", action="store_true", help="tiny shapes")
    parser.add_argument("--budget", type=float, default=345.0, help="seconds for everything")
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
    results: dict[str, Any] = {**describe(device), "quick": args.quick, "stages": {}}
    with tempfile.TemporaryDirectory() as folder:
        for stage in stages(args.device, args.quick, Path(folder)):
            until = args.budget * SHARES.get(stage.name, 1.0)
            results["stages"][stage.name] = run_stage(stage, begin + until - time.monotonic())
            write(path, results)
    print("", *report(results["stages"]), f"written to {path}", sep="\n")
    return int(any(result.get("status", 0) != 0 for result in results["stages"].values()))


if __name__ == "__main__":
    sys.exit(main())
