"""Measure one model under several RoPE scalings on the same texts: one scaling loaded after the other, cells on disk.

How they lie there: :mod:`attnprobe.rope_folder`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprobe.architecture import implementation_of
from attnprobe.blueprint import Blueprint, blueprint
from attnprobe.errors import InputError
from attnprobe.grid import Cell, run_cells
from attnprobe.grid_folder import GRID, grid_content, same_grid
from attnprobe.plan_study import check_interface
from attnprobe.prefix_cache import keeps_every_key
from attnprobe.rope_cells import measure_text
from attnprobe.rope_data import RopeData, RopePlan
from attnprobe.rope_folder import describe
from attnprobe.rope_needles import NeedleText, needle_text, text_key
from attnprobe.rope_options import UNSCALED, RopeOptions, scaling_names
from attnprobe.rope_read import folder_of, read_rope_data
from attnprobe.run_settings import weights_sample
from attnprobe.study_folder import CellStore, all_done, make_folders
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
    loading = dict(loading or {})
    drawn = scaled_blueprints(model, scalings, loading)
    names, plain = tuple(drawn), drawn[UNSCALED].lm
    assert plain.max_positions is not None
    plan = RopePlan(model, names, options, plain.max_positions)

    @cache
    def text(number: int, length: int) -> NeedleText:
        return needle_text(items, number, length, options, plain.tokenizer)

    for number in range(options.texts):
        text(number, options.lengths[0])  # what cannot be built is said before anything is loaded
    text(0, options.lengths[-1])  # filler of a file may end before that
    items_hash = hashlib.sha256(json.dumps([asdict(item) for item in items]).encode()).hexdigest()
    config = {
        "kind": "rope",
        "model": model,
        "loading": {name: loading[name] for name in _CHANGES_NUMBERS if loading.get(name) is not None},
        "lengths": list(options.lengths),
        "options": options.measured(),
        "items_sha256": items_hash,
    }
    texts = count(len(options.places), "text")
    say(f"{model}: {count(len(names), 'scaling')} x {texts}, window {plan.window:,} tokens", quiet)
    passes = 1 if keeps_every_key(plain.model) else len(options.depths)
    cells = [
        Cell(text_key(length, number), passes * length**1.5, partial(text, number, length))
        for number, length in options.places
    ]
    configs = {name: {**config, "scaling": name} for name in names}
    for name, own in configs.items():  # before anything of it is written over
        there = out / folder_of(name) / "cells"
        if (there / GRID).exists():
            same_grid(there, grid_content(own, [cell.key for cell in cells]), there)
    make_folders(out, *map(folder_of, names))
    describe(out, plan, _asked(plain, loading, items_hash))
    for name, own in configs.items():
        say(f"scaling {name}", quiet)
        folder = out / folder_of(name)
        _measure_scaling(model, name, cells, folder, loading, own, retry_failed=retry_failed, quiet=quiet)
    # only now: another process may have ended a scaling after this one went on to the next
    complete = all(all_done(out / folder_of(name) / "cells") for name in names)
    return read_rope_data(out, plan) if complete else None


def scaled_blueprints(model: str, scalings: Sequence[str], loading: Mapping[str, Any]) -> dict[str, Blueprint]:
    """The model without its weights under every scaling, ``none`` first.

    Raises
    ------
    InputError
        A scaling that the model cannot take; a model without a trained length, or whose attention cannot be watched.
    """
    drawn = {name: blueprint(model, rope=name, **loading) for name in scaling_names(scalings)}
    if drawn[UNSCALED].lm.max_positions is None:
        raise InputError(f"{model} has no trained length, so nothing can be said to lie in or beyond its window")
    check_interface(drawn[UNSCALED].lm)
    return drawn


def _asked(plain: LanguageModel, loading: Mapping[str, Any], items_hash: str) -> dict[str, Any]:
    """How the model is run, and on what."""
    return {
        "class": type(plain.model).__name__,
        "dtype": str(plain.model.dtype).removeprefix("torch."),
        "attn_implementation": implementation_of(plain.model),
        "revision": loading.get("revision"),
        "items_sha256": items_hash,
    }


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
) -> None:
    """Measure this process's cells of one scaling. Weights are loaded when needed."""
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

    run_cells(folder / "cells", config, cells, do, quiet=quiet, retry_failed=retry_failed)
