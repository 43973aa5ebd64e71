"""Seeded comparisons of RoPE scalings on disk for tests, made without a model."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from attnprobe.extras import n_distance_bins
from attnprobe.grid_folder import grid_content, write_grid
from attnprobe.grid_records import record_line, shard_name
from attnprobe.rope_data import RopePlan
from attnprobe.rope_folder import describe
from attnprobe.rope_needles import text_key
from attnprobe.rope_options import RopeOptions
from attnprobe.rope_read import folder_of
from attnprobe.study_cells import CellResult
from attnprobe.study_folder import CellStore, make_folders

LAYERS, HEADS = 2, 3
SCALINGS = ("none", "linear:factor=2.0", "yarn:factor=2.0")
ASKED = {"class": "TinyLM", "dtype": "float32", "attn_implementation": "sdpa", "items_sha256": "abc"}


def rope_plan(model: str = "tiny", scalings: tuple[str, ...] = SCALINGS, **options: Any) -> RopePlan:
    """Three lengths, the last one beyond the window."""
    chosen = {"lengths": (512, 1024, 2048), "depths": (0.0, 0.5, 1.0), "texts": 6, "n_heads": 2} | options
    return RopePlan(model, scalings, RopeOptions(**chosen), window=1024)


def write_rope(out: Path, plan: RopePlan | None = None, left_out: Collection[tuple[str, int, int]] = ()) -> Path:
    """The folder of a comparison without results; ``left_out``: scaling, length and text of cells that failed.

    The needle loses 5 nats under linear scaling, and beyond the window without scaling.
    """
    plan = rope_plan() if plan is None else plan
    make_folders(out, *map(folder_of, plan.scalings))
    describe(out, plan, ASKED)
    keys = [text_key(length, number) for number, length in plan.options.places]
    for number, scaling in enumerate(plan.scalings):
        folder = out / folder_of(scaling)
        store = CellStore.open(folder)
        lines = []
        for text, length in plan.options.places:
            key = text_key(length, text)
            if (scaling, length, text) in left_out:
                lines.append(record_line({"key": key, "status": "failed", "error": "no <luck>", "seconds": 0.1}))
                continue
            lost = 5.0 if scaling.startswith("linear") or (number == 0 and length > plan.window) else 0.0
            arrays = _arrays(plan, text, length, number, lost)
            store.put(key, CellResult(arrays, {}, {}))
            result = _facts(plan, text, length, number) | {"arrays": sorted(arrays)}
            lines.append(record_line({"key": key, "status": "done", "result": result, "seconds": 0.1}))
        make_folders(folder, "cells")
        (folder / "cells" / shard_name(0)).write_bytes(b"".join(lines))
        write_grid(folder / "cells", grid_content({"kind": "rope", "scaling": scaling}, keys))
    return out


def _arrays(plan: RopePlan, text: int, length: int, scaling: int, lost: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng((text, length, scaling))
    depths = len(plan.options.depths)
    shape = (depths, LAYERS, HEADS)
    slices = np.exp(rng.normal(0, 0.1, (depths, 10)) + np.abs(np.arange(10) - 4.5) / 3)
    arrays = {
        "logprob": rng.normal(-3 - lost, 0.1, depths),
        "mass": np.exp(rng.normal(-3 - lost, 0.1, shape)),
        "advantage": rng.normal(1 - lost / 5, 0.05, shape),
        "retrieval": rng.uniform(0, 1, shape),
        "sink": rng.uniform(0.3, 0.4, depths),
        "entropy": rng.uniform(3, 4, depths),
        "slices": slices / slices.sum(axis=1, keepdims=True),
        "distance": rng.dirichlet(np.ones(n_distance_bins(length)), (LAYERS, HEADS)),
        "loss": rng.normal(3 + lost / 5, 0.1, length - 1),
    }
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def _facts(plan: RopePlan, text: int, length: int, scaling: int) -> dict[str, Any]:
    used = {"rope_type": "default", "attention_scaling": 1.0, "inv_freq": [1.0, 0.01], "sha256": f"{scaling}" * 64}
    return {
        "text": text,
        "length": length,
        "ids_sha256": f"{text} {length}",
        "needles": [{"item": f"item {(text + depth) % 7}"} for depth in range(len(plan.options.depths))],
        "rope": {"model.rotary_emb": used},
        "warnings": [],
        "weights_sample_sha256": "f" * 64,
    }
