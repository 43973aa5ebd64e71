"""The page of supported models says what the tests prove."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import transformers
from tiny_models import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "supported-models.md"


def test_the_page_is_what_the_tool_writes() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "supported_models.py"), "--print"],
        capture_output=True,
        text=True,
        check=True,
    )
    made_with = re.search(r"with transformers (\S+);", PAGE.read_text(encoding="utf-8"))
    assert made_with is not None
    if made_with[1] == transformers.__version__:
        assert done.stdout == PAGE.read_text(encoding="utf-8")
    else:
        assert f"with transformers {transformers.__version__};" in done.stdout
    for name in FAMILIES:
        assert f"| {name} |" in done.stdout
