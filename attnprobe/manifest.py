"""What a run says about the model and the software that made it."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from dataclasses import asdict
from datetime import datetime, timezone
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprobe.architecture import implementation_of
from attnprobe.rope import original_positions
from attnprobe.rope_frequencies import rope_in_use

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel

_PACKAGES = ("attnprobe", "torch", "transformers", "tokenizers", "accelerate", "numpy", "triton", "safetensors")


def describe(lm: LanguageModel) -> dict[str, Any]:
    """Model, tokenizer, RoPE frequencies in use, package versions and time, as plain JSON values."""
    return {
        "model": {
            **asdict(lm.source),
            "class": type(lm.model).__name__,
            "config_sha256": _sha256(json.dumps(lm.model.config.to_dict(), sort_keys=True, default=str)),
            "attn_implementation": implementation_of(lm.model),
            "max_positions": lm.max_positions,
            "original_positions": original_positions(lm.model.config),
            "device": str(lm.model.device),
        },
        "tokenizer": {
            "class": type(lm.tokenizer).__name__,
            "vocabulary": len(lm.tokenizer),
            "chat_template_sha256": _sha256(json.dumps(lm.tokenizer.chat_template, sort_keys=True)),
        },
        "rope": rope_in_use(lm.model),
        "versions": package_versions(),
        "git_commit": _git_commit(),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=1)
def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers depend on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # an optional package, or attnprobe run from its source folder
    return found


@lru_cache(maxsize=1)
def _git_commit() -> str | None:
    """Commit of attnprobe's own source folder, where it is a git checkout."""
    folder = Path(__file__).resolve().parent.parent
    if not (folder / ".git").exists():
        return None
    result = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return result.stdout.strip() or None
