"""Sources of reports on disk, made without or with tiny models, and hostile names to fill them with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from planted_models import additive_lm
from runs import make_run

import attnprobe as ap
from attnprobe.run import Run
from attnprobe.run_folder import run_name, write_manifest
from attnprobe.study import Study

HOSTILE = (
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 2</script>",
    '"><img src=x onerror="window.hacked = 3">',
    "<!--<script>",
    "&lt;b&gt; 'quoted' \u202egnp.exe\u2066\u2028 | `code` [link](javascript:alert(1)) %{x} <b>bold</b> "
    "<a href='x'>y</a>",
    "=cmd|' /C calc'!A0",
)
_COLOURS = ("red", "blue", "green", "grey")
_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", *_COLOURS, "north", "west", "page", "holds")


def write_folder(folder: Path, runs: Sequence[Run], finished: bool = True) -> Path:
    """A folder as ``measure`` leaves it."""
    (folder / "runs").mkdir(parents=True)
    listed = []
    for number, run in enumerate(runs):
        id = run.prompt_id or str(number)
        file = f"runs/{run_name(number, id)}"
        run.save(folder / file)
        listed.append({"number": number, "id": id, "file": file})
    write_manifest(folder, {"rows": "predicting"}, {}, listed if finished else None)
    return folder


def write_study(folder: Path, names: Sequence[str] = ("tiny",), n_questions: int = 6, **options: Any) -> Study:
    """A study of models that see words only, four documents a question, one after the other by name."""
    rng = np.random.default_rng(3)
    prompts = []
    for number in range(n_questions):
        documents = [" ".join(rng.choice(_WORDS[:12], 5)) for _ in range(4)]
        documents[number % 4] += " north"
        prompts.append(ap.Prompt(documents, "which page", answer="north", id=f"q{number}"))
    logits = {word: float(rng.normal(0, 0.7)) for word in _WORDS}
    lm = additive_lm(list(_WORDS), np.linspace(1, 0, 40), logits, position_layers={0, 2})
    lms = [replace(lm, source=replace(lm.source, name=name)) for name in names]
    choices: dict[str, Any] = {"variants": ("null", "preamble"), "answers": ["north west"] * n_questions} | options
    return ap.rotate(lms, prompts, out=folder, **choices)


def hostile_run(**changes: Any) -> Run:
    """A run whose every text tries to leave its place."""
    return make_run(
        names=HOSTILE[:4],
        answer=HOSTILE[1],
        prompt_id=HOSTILE[4],
        prompt_text=HOSTILE[0],
        warnings=(HOSTILE[0], HOSTILE[2]),
        manifest={"model": {"name": HOSTILE[1], "revision": HOSTILE[2]}, HOSTILE[0]: HOSTILE[3]},
        **changes,
    )
