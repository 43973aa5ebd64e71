"""What a figure was measured on: device, versions, commit; and where results are written."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).resolve().parent / "results"


def device_name(device: torch.device) -> str:
    """The driver's name of a GPU, or the processor's architecture."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu {platform.machine()}"


def git_commit() -> str | None:
    """The commit of this checkout, marked if files differ from it; None outside version control."""
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + (" with changes" if changed else "")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe(device: torch.device) -> dict[str, Any]:
    """Device, versions and commit, as written into every result."""
    figures: dict[str, Any] = {"name": device_name(device), "type": device.type}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        figures |= {
            "capability": [properties.major, properties.minor],
            "processors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
        }
    return {
        "device": figures,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
            **{name: _version(name) for name in ("triton", "transformers", "numpy")},
        },
        "commit": git_commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def default_path(device: torch.device) -> Path:
    """``results/<device>-<date>.json``."""
    slug = re.sub(r"[^a-z0-9]+", "-", device_name(device).lower()).strip("-")
    return RESULTS / f"{slug}-{datetime.date.today().isoformat()}.json"


def unwritable(path: Path) -> str | None:
    """Why no file can be written at a path, or None; its folder is made if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            return f"{path} is a folder; give the name of a file"
        with tempfile.TemporaryFile(dir=path.parent):
            return None
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}; give another place for the results"


def write(path: Path, results: dict[str, Any]) -> None:
    """Write results so that a run that is stopped leaves the last whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(part, path)
