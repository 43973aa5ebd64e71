"""Whole processes: some started by accelerate, some killed without warning."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grid_jobs
import pytest
from grid_jobs import cells, do

from attnprobe.grid import read_cells

HELPERS = Path(grid_jobs.__file__).parent
ROOT = HELPERS.parent.parent
# What this process may itself have been given by a launcher.
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
ENV = {
    **{name: value for name, value in os.environ.items() if name not in LAUNCHER},
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONPATH": os.pathsep.join([str(HELPERS), str(ROOT), os.environ.get("PYTHONPATH", "")]),
}
# accelerate starts several processes on CPUs with --cpu only through MPI; this is its launcher for several GPUs.
LAUNCH = (
    *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
    *("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0", "-m"),
)
N = 12


def program(folder: Path, launch: tuple[str, ...] = ("-m",), n: int = N, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *launch, "grid_jobs", str(folder), str(n)],
        env=ENV | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return out


def table(folder: Path) -> dict[str, Any]:
    return {key: record["result"] for key, record in sorted(read_cells(folder).items())}


def keys_on_disk(folder: Path) -> Counter[str]:
    lines = [line for path in folder.glob("cells-*.jsonl") for line in path.read_text().splitlines()]
    return Counter(json.loads(line)["key"] for line in lines)


def assert_whole(folder: Path, n: int = N) -> None:
    assert table(folder) == {cell.key: do(cell, 0) for cell in sorted(cells(n), key=lambda cell: cell.key)}
    assert set(keys_on_disk(folder).values()) == {1}


@pytest.mark.slow
def test_a_launch_of_two_of_which_one_is_killed_is_gone_on_with(tmp_path: Path) -> None:
    folder = tmp_path / "grid"
    hands = grid_jobs.hands(N, 2)
    # The second process dies in the middle of its third cell; accelerate then ends the first one.
    killed = program(folder, LAUNCH, GRID_KILL_AT=hands[1][2], GRID_WAIT="0.05")
    _, error = killed.communicate(timeout=120)
    assert killed.returncode != 0
    assert "SIGKILL" in error or "-9" in error
    before = set(read_cells(folder))
    assert set(hands[1][:2]) <= before
    assert hands[1][2] not in before
    assert (folder / "cells-1.jsonl").exists()
    finished(program(tmp_path / "never killed"))
    for name, launch in (("one", ("-m",)), ("two", LAUNCH)):
        resumed = tmp_path / name
        shutil.copytree(folder, resumed)
        said = finished(program(resumed, launch))
        assert_whole(resumed)
        assert table(resumed) == table(tmp_path / "never killed")
        # What was done is not done again.
        again = set((resumed.with_suffix(".log")).read_text().splitlines())
        assert not again & before
        assert "complete=True" in said


@pytest.mark.slow
def test_a_process_killed_again_and_again_loses_and_repeats_nothing(tmp_path: Path) -> None:
    folder, n = tmp_path / "grid", 150
    known: dict[str, Any] = {}
    for kill_at in (15, 60):
        process = program(folder, n=n, GRID_WAIT="0.01")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            size = (folder / "cells-0.jsonl").stat().st_size if (folder / "cells-0.jsonl").exists() else 0
            if size > kill_at * 100:
                break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        now = table(folder)
        assert known.items() <= now.items()
        assert len(known) < len(now) < n
        known = now
    finished(program(folder, n=n))
    assert_whole(folder, n)
    # Nothing ran twice but, at worst, the cell that was under way at each kill.
    assert sum(Counter(folder.with_suffix(".log").read_text().splitlines()).values()) <= n + 2
