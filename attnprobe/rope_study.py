"""Measure one model under several RoPE scalings on the same texts: one scaling loaded after the other, cells on disk.

<out>/<scaling>/cells/     a grid: grid.json, cells-*.jsonl
<out>/<scaling>/arrays/    one file a cell
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprobe.blueprint import blueprint
from attnprobe.errors import InputError
from attnprobe.grid import Cell, run_cells
from attnprobe.prefix_cache import keeps_every_key
from attnprobe.rope_cells import measure_text
from attnprobe.rope_data import RopeData, RopePlan
from attnprobe.rope_needles import NeedleText, needle_text, text_key
from attnprobe.rope_options import UNSCALED, RopeOptions, scaling_names
from attnprobe.rope_read import folder_of, read_rope_data
from attnprobe.run_settings import weights_sample
from attnprobe.study_folder import CellStore
from attnprobe.tasks.items import NeedleItem
from attnprobe.terminal import count, say

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel

_CHANGES_NUMBERS = ("dtype", "attn_implementation", "revision")
"""Arguments of ``load`` that two sittings must have in common."""


def measure_scalings(
    model: str,
    scalings: Sequence[str],
    options: RopeOptions,
    items: Sequence[NeedleItem],
    out: Path,
    *,
    loading: Mapping[str, Any] | None = None,
    retry_failed: bool = False,
    quiet: bool = False,
) -> RopeData | None:
    """Measure every text under every scaling.

    Parameters
    ----------
    model
        Alias, hub id, folder or file.
    scalings
        As :func:`attnprobe.rope_parse.parse_rope` reads them; ``none``, with which they are compared, is always
        measured.
    options
        What is measured.
    items
        The needles.
    out
        A folder that keeps every finished cell; a second call goes on from it. Scalings may be added later.
    loading
        Arguments of :func:`attnprobe.load`, but for ``rope``.
    retry_failed, quiet
        As in :func:`attnprobe.grid.run_cells`.

    Returns
    -------
    RopeData or None
        None where other processes are still measuring.

    Raises
    ------
    InputError
        A scaling that the model cannot take, before anything is measured; options or texts that do not fit; a folder of
        another comparison.
    """
    names, loading = scaling_names(scalings), dict(loading or {})
    plain = blueprint(model, rope=UNSCALED, **loading).lm
    for name in names[1:]:
        blueprint(model, rope=name, **loading)  # a scaling that the model cannot take is refused before anything
    if plain.max_positions is None:
        raise InputError(f"{model} has no trained length, so nothing can be said to lie in or beyond its window")
    plan = RopePlan(model, names, options, plain.max_positions)

    @cache
    def text(number: int, length: int) -> NeedleText:
        return needle_text(items, number, length, options, plain.tokenizer)

    places = [(number, length) for number in range(options.texts) for length in options.lengths]
    for number in range(options.texts):
        text(number, options.lengths[0])  # what cannot be built is said before anything is loaded
    config = {
        "kind": "rope",
        "model": model,
        "loading": {name: loading[name] for name in _CHANGES_NUMBERS if loading.get(name) is not None},
        "options": options.measured(),
        "items_sha256": hashlib.sha256(json.dumps([asdict(item) for item in items]).encode()).hexdigest(),
    }
    say(f"{model}: {count(len(names), 'scaling')} x {count(len(places), 'text')}, window {plan.window:,} tokens", quiet)
    passes = 1 if keeps_every_key(plain.model) else len(options.depths)
    cells = [
        Cell(text_key(length, number), passes * length**1.5, partial(text, number, length)) for number, length in places
    ]
    complete = True
    for name in names:
        say(f"scaling {name}", quiet)
        own, folder = {**config, "scaling": name}, out / folder_of(name)
        done = _measure_scaling(model, name, cells, folder, loading, own, retry_failed=retry_failed, quiet=quiet)
        complete = done and complete
    return read_rope_data(out, plan) if complete else None


def _measure_scaling(
    model: str,
    scaling: str,
    cells: Sequence[Cell],
    folder: Path,
    loading: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    retry_failed: bool,
    quiet: bool,
) -> bool:
    """Measure the cells of one scaling; whether those of all processes are done. Weights are loaded when needed."""
    from attnprobe.models import load

    store = CellStore.open(folder)
    loaded: list[tuple[LanguageModel, str]] = []

    def do(cell: Cell, relief: int) -> dict[str, Any]:
        if not loaded:
            lm = load(model, rope=scaling, progress=not quiet, **loading)
            loaded.append((lm, weights_sample(lm.model)))
        lm, weights = loaded[0]
        result = measure_text(lm, cell.work(), relief)
        store.put(cell.key, result)
        return {**result.facts, "weights_sample_sha256": weights}

    return run_cells(folder / "cells", config, cells, do, quiet=quiet, retry_failed=retry_failed).complete
