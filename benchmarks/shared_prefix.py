"""What it saves that prompts of a task go on from one another: tokens fed, seconds, and whether masses stay the same.

    python benchmarks/shared_prefix.py                         # SmolLM2; one needle in each task, about five minutes
    python benchmarks/shared_prefix.py --tasks needle_sweep --items 3 --json results.json
    python benchmarks/shared_prefix.py --model tiny --lengths 300 600

Every cell is measured twice in turn, in one process: going on from the cell before it, and alone. In both, the foil
(and the reply, with --max-new-tokens) goes on from its own prompt. Exit status 1 where a mass differs by more than
1e-5.
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from overhead import load, write

TASKS = ("needle_sweep", "niah", "filler_control")
MOST = 1e-5


def specs_of(task: str, n_items: int, lengths: list[int]) -> Any:
    from attnprobe.tasks.filler_control import filler_control
    from attnprobe.tasks.items import read_items
    from attnprobe.tasks.needle_sweep import needle_sweep
    from attnprobe.tasks.niah import niah

    items = read_items()[:n_items]
    if task == "needle_sweep":
        return needle_sweep(items, 10)
    if task == "niah":
        return niah(items, lengths=lengths, depths=[0.0, 0.25, 0.5, 0.75, 1.0])
    fillers, placements = ("repeated", "prose", "same_domain"), ("after", "before", "split")
    return filler_control(items, lengths=lengths, fillers=fillers, placements=placements)


def compare(lm: Any, task: str, args: argparse.Namespace) -> dict[str, Any]:
    """One task's cells, both ways."""
    import attnprobe as ap
    from attnprobe.tasks.measured import measure_cell
    from attnprobe.tasks.task_order import ordered

    shared = ap.PrefixCache()
    found: dict[str, Any] = {name: {"fed": 0, "seconds": 0.0, "cpu_seconds": 0.0} for name in ("shared", "alone")}
    n_prompt, difference, cells = 0, 0.0, ordered(specs_of(task, args.items, args.lengths), 10)
    for number, cell in enumerate(cells):
        built = cell.work.build(lm.tokenizer)
        masses = {}
        # In turn first and second, so that neither always finds a warm machine.
        for name in ("shared", "alone") if number % 2 else ("alone", "shared"):
            wall, cpu = time.perf_counter(), time.process_time()
            prefix = shared if name == "shared" else ap.PrefixCache()
            _, run = measure_cell(lm, built, prefix=prefix, max_new_tokens=args.max_new_tokens)
            found[name]["seconds"] += time.perf_counter() - wall
            found[name]["cpu_seconds"] += time.process_time() - cpu
            found[name]["fed"] += run.n_prompt - run.manifest["capture"]["reused_tokens"]
            masses[name] = run.row_mass
        n_prompt += run.n_prompt
        difference = max(difference, float(np.abs(masses["shared"] - masses["alone"]).max()))
    return {"task": task, "cells": len(cells), "prompt_tokens": n_prompt, **found, "largest_difference": difference}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="alias or path; tiny: a random two-layer model")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--items", type=int, default=1, help="needles of each task")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[500, 1000], help="of niah and filler_control, tokens"
    )
    parser.add_argument("--max-new-tokens", type=int, default=0, help="of a reply after each cell")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    lm = load(args.model, max(args.lengths))
    record: dict[str, Any] = {
        "model": args.model,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "lengths": args.lengths,
        "max_new_tokens": args.max_new_tokens,
        "tasks": [],
    }
    for task in args.tasks:
        one = compare(lm, task, args)
        record["tasks"].append(one)
        write(args.json, record)
        shared, alone = one["shared"], one["alone"]
        print(
            f"{task}: {one['cells']} cells, fed {shared['fed']:,} of {alone['fed']:,} prompt tokens "
            f"({shared['fed'] / alone['fed']:.0%}); {shared['seconds']:.1f} s instead of {alone['seconds']:.1f} s "
            f"({shared['seconds'] / alone['seconds']:.0%}; CPU {shared['cpu_seconds'] / alone['cpu_seconds']:.0%}); "
            f"masses differ by {one['largest_difference']:.1e} at most",
            flush=True,
        )
    if max(one["largest_difference"] for one in record["tasks"]) > MOST:
        raise SystemExit(f"a mass differs by more than {MOST:g}")


if __name__ == "__main__":
    main()
