"""Time the kernels beside what a user would do instead: ``python -m benchmarks`` (``--help`` for the options)."""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import default_path, describe, device_name, unwritable, write
from benchmarks.registry import CASES, QUICK_CASES
from benchmarks.roofline import ceilings
from benchmarks.runner import DeviceLost, Settings, failures, run
from benchmarks.table import lines

NO_DEVICE = "no CUDA or ROCm device here; `--device cpu --quick` is a dry run of everything but the speed"


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny shapes: a dry run")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name matches; --list shows the names")
    parser.add_argument("--list", action="store_true", help="names of the cases, and nothing else")
    parser.add_argument("--budget", type=float, default=600.0, metavar="SECONDS", help="start nothing new after this")
    parser.add_argument(
        "--backends",
        nargs="+",
        choices=("naive", "chunked", "triton"),
        help="default: triton chunked; on a CPU chunked",
    )
    parser.add_argument("--no-rivals", action="store_true", help="this package's backends alone")
    parser.add_argument("--compile-every-shape", action="store_true", help="FlexAttention on every case: many minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="default: results/<device>-<date>.json")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run; 0 if everything was right, 1 if a kernel was wrong or failed, 2 for bad arguments or no device."""
    begin = time.monotonic()
    args = parse(argv)
    try:
        cases = [case for case in (QUICK_CASES if args.quick else CASES) if re.search(args.only, case.name)]
    except re.error as error:
        print(f"--only {args.only!r} is no regular expression: {error}", file=sys.stderr)
        return 2
    if args.list:
        print("\n".join(case.name for case in cases))
        return 0
    if not cases:
        print(f"no case matches --only {args.only!r}; --list shows the names", file=sys.stderr)
        return 2
    if args.device == "cuda" and not torch.cuda.is_available():
        print(NO_DEVICE, file=sys.stderr)
        return 2
    if args.device == "cpu" and not args.quick:
        print("the real shapes take hours on a CPU; add --quick", file=sys.stderr)
        return 2
    device = torch.device(args.device)
    path = args.json or default_path(device)
    if refusal := unwritable(path):
        print(refusal, file=sys.stderr)
        return 2
    on_gpu = device.type == "cuda"
    backends = tuple(args.backends or (("triton", "chunked") if on_gpu else ("chunked",)))
    peaks, listed = ceilings(device, device_name(device))
    settings = Settings(
        device=device,
        dtype=torch.bfloat16 if on_gpu else torch.float32,
        backends=backends,
        peaks=peaks,
        seconds=0.3 if on_gpu else 0.01,
        deadline=begin + args.budget,
        rivals=not args.no_rivals,
        compile_every_shape=args.compile_every_shape,
    )
    results: dict[str, Any] = {
        **describe(device),
        "dtype": str(settings.dtype),
        "quick": args.quick,
        "peaks": asdict(peaks),
        "datasheet": asdict(listed),
        "kernels": [],
    }
    print(f"{results['device']['name']}, torch {torch.__version__}, {settings.dtype}, commit {results['commit']}")
    print(f"measured: {peaks.bandwidth or 0:.3g} bytes/s copied, {peaks.tensor or 0:.3g} FLOP/s of matrix products")
    lost = None
    try:
        for record in run(cases, settings):
            results["kernels"].append(record)
            print("\n".join(lines([record])), flush=True)
            write(path, results)
    except DeviceLost as error:
        lost = f"the device was lost: {error}"
        results["lost"] = lost
        write(path, results)
    problems = failures(results["kernels"], backends) + ([lost] if lost else [])
    where = [] if args.json else [f"written to {path}"]
    print("", *(f"PROBLEM  {problem}" for problem in problems), *where, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
