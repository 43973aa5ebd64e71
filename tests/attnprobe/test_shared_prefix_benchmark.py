"""A dry run of the benchmark of shared prefixes, on a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_dry_run_feeds_less_and_finds_the_same_masses(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    script = [sys.executable, ROOT / "benchmarks" / "shared_prefix.py", "--model", "tiny", "--tasks", "niah"]
    subprocess.run([*script, "--lengths", "400", "--json", record], check=True, capture_output=True)
    (task,) = json.loads(record.read_text())["tasks"]
    assert task["cells"] == 7
    assert task["shared"]["fed"] < task["alone"]["fed"] == task["prompt_tokens"]
    assert 0 < task["largest_difference"] < 1e-5
    assert min(task[name][what] for name in ("shared", "alone") for what in ("seconds", "cpu_seconds")) > 0
