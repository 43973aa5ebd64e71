"""Read the cells of a comparison of RoPE scalings, once it is known that all scalings read the same texts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnprobe.arguments import generator
from attnprobe.errors import InputError, RunFileError
from attnprobe.extras import distance_edges, n_distance_bins
from attnprobe.grid import read_cells
from attnprobe.heads_selection import halves, highest
from attnprobe.norms import mean_of_defined
from attnprobe.rope_data import RopeData, RopePlan
from attnprobe.rope_needles import text_key
from attnprobe.rope_options import RopeOptions
from attnprobe.study_folder import MEND, CellStore

_BINS = 4  # of the loss, in the shortest length


def folder_of(scaling: str) -> str:
    """A scaling's name as the name of a folder: ``yarn-factor=4.0``; a long one ends in a hash."""
    name = scaling.replace(":", "-").replace(",", "-")
    if len(name) <= 60:
        return name
    return f"{name.partition('-')[0]}-{hashlib.sha256(scaling.encode()).hexdigest()[:12]}"


def read_rope_data(out: Path, plan: RopePlan) -> RopeData:
    """Read every finished cell.

    Raises
    ------
    InputError
        No cell was finished; scalings that were measured on different texts or weights.
    RunFileError
        A cell's arrays are missing or damaged.
    """
    cells, incomplete = _cells(out, plan)
    if not cells:
        key, why = next(iter(incomplete.items()))
        raise InputError(f"nothing was measured; the first cell, {key}: {why}")
    items, weights = _items(cells, plan), _weights(cells)
    options = plan.options
    shape = (len(plan.scalings), len(plan.lengths), options.texts)
    raw: dict[str, Any] = {}
    _, arrays = next(iter(cells.values()))
    for name in ("logprob", "sink", "entropy", "mass", "advantage", "retrieval", "slices"):
        raw[name] = np.full((*shape, *arrays[name].shape), np.nan)
        for place, (_, own) in cells.items():
            raw[name][place] = own[name]
    heads, retrieval = held_out_retrieval(raw["retrieval"], items, options)
    over_heads = {
        name: mean_of_defined(raw[name].reshape(*raw[name].shape[:4], -1), axis=-1) for name in ("mass", "advantage")
    }
    n_bins = n_distance_bins(plan.lengths[-1])
    distance = np.full((*shape, n_bins), np.nan)
    for place, (_, own) in cells.items():
        distance[place][: own["distance"].shape[-1]] = own["distance"].mean(axis=(0, 1), dtype=np.float64)
    edges = _loss_edges(plan)
    by_position = np.full((*shape, len(edges) - 1), np.nan)
    loss = np.full(shape, np.nan)
    for place, (_, own) in cells.items():
        if "loss" in own:
            values = own["loss"].astype(np.float64)
            loss[place], by_position[place] = values.mean(), binned(values, edges)
    return RopeData(
        plan=plan,
        items=items,
        needle={"logprob": raw["logprob"], **over_heads, "retrieval": retrieval},
        text={
            "loss": loss,
            "sink": mean_of_defined(raw["sink"], axis=-1),
            "entropy": mean_of_defined(raw["entropy"], axis=-1),
            "moved": _moved(cells, plan, shape),
        },
        slices=mean_of_defined(raw["slices"], axis=3),
        distance=distance,
        distance_edges=distance_edges(n_bins),
        loss_by_position=by_position,
        loss_edges=edges,
        heads=heads,
        rope=tuple(
            tuple(
                next((cells[s, i, t][0]["rope"] for t in range(shape[2]) if (s, i, t) in cells), None)
                for i in range(shape[1])
            )
            for s in range(shape[0])
        ),
        incomplete=incomplete,
        weights=weights,
        warnings=one_of_each_kind(sorted({warning for facts, _ in cells.values() for warning in facts["warnings"]})),
    )


def one_of_each_kind(warnings: Sequence[str]) -> tuple[str, ...]:
    """Warnings that differ in numbers alone before their first colon are of a kind: the first, and how many more."""
    kinds: dict[str, list[str]] = {}
    for warning in warnings:
        kinds.setdefault(re.sub(r"\d+", "#", warning.partition(":")[0]), []).append(warning)
    return tuple(first + (f" ({len(more)} more like this)" if more else "") for first, *more in kinds.values())


_Cells = dict[tuple[int, int, int], tuple[dict[str, Any], dict[str, np.ndarray]]]


def _cells(out: Path, plan: RopePlan) -> tuple[_Cells, dict[str, str]]:
    """Facts and arrays by numbers of scaling, length and text; and what is missing."""
    cells: _Cells = {}
    incomplete: dict[str, str] = {}
    for scaling, name in enumerate(plan.scalings):
        folder = out / folder_of(name)
        records = read_cells(folder / "cells") if (folder / "cells").is_dir() else {}  # not begun yet
        store = CellStore(folder / "arrays", folder / "arrays")
        for i, length in enumerate(plan.lengths):
            for number in range(plan.options.texts):
                record = records.get(text_key(length, number))
                if record is None or record["status"] != "done":
                    why = "not measured" if record is None else str(record["error"])
                    incomplete[f"{name}, {length} tokens, text {number}"] = why
                else:
                    facts, arrays = record["result"], store.get(record["key"])
                    _, first = next(iter(cells.values()), (facts, arrays))
                    try:
                        _check_cell(facts, arrays, first, plan.options, (number, length))
                    except (AttributeError, KeyError, TypeError, ValueError) as error:
                        file = store.arrays / f"{record['key']}.safetensors"
                        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
                        raise RunFileError(f"{file} or its cell's line in cells/ is damaged: {why}; {MEND}") from error
                    cells[scaling, i, number] = facts, arrays
    return cells, incomplete


def _check_cell(
    facts: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    first: Mapping[str, np.ndarray],
    options: RopeOptions,
    place: tuple[int, int],
) -> None:
    """Refuse what is no cell of this text, in the form of the first one's arrays: ValueError, KeyError or the like."""
    if lacking := sorted({*facts["arrays"], *first} - {*arrays, "loss"}):
        raise ValueError(f"it lacks {', '.join(lacking)}")
    depths, heads = len(options.depths), first["mass"].shape[1:]
    wanted = dict.fromkeys(("logprob", "sink", "entropy"), (depths,))
    wanted |= dict.fromkeys(("mass", "advantage", "retrieval"), (depths, *heads))
    wanted |= {"slices": (depths, *first["slices"].shape[1:]), "distance": (*heads, n_distance_bins(place[1]))}
    if "loss" in facts["arrays"]:
        wanted["loss"] = (max(arrays["loss"].size, 1),)
    for name, shape in wanted.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{name} has the shape {list(arrays[name].shape)}, not {list(shape)}")
    if (facts["text"], facts["length"]) != place:
        raise ValueError(f"it is text {facts['text']} of {facts['length']} tokens")
    if len(facts["needles"]) != depths:
        raise ValueError(f"it has {len(facts['needles'])} needles, not {depths}")
    in_use = list(facts["rope"].values())
    texts = [needle["item"] for needle in facts["needles"]] + [used["sha256"] for used in in_use]
    texts += [facts["ids_sha256"], facts["weights_sample_sha256"], *facts["warnings"]]
    numbers = [number for used in in_use for number in (used["attention_scaling"], *used["inv_freq"][:1])]
    if not all(isinstance(text, str) for text in texts) or not all(
        isinstance(number, int | float) for number in numbers
    ):
        raise TypeError("a text or a number is none")


def _items(cells: _Cells, plan: RopePlan) -> tuple[tuple[str, ...], ...]:
    """The needles of each text, once it is known that all scalings read the same."""
    known: dict[tuple[int, int], tuple[str, str]] = {}
    items: list[tuple[str, ...]] = [()] * plan.options.texts
    for (scaling, length, number), (facts, _) in cells.items():
        name = plan.scalings[scaling]
        first, ids = known.setdefault((length, number), (name, facts["ids_sha256"]))
        if facts["ids_sha256"] != ids:
            raise InputError(
                f"text {number} of {plan.lengths[length]} tokens is not the same under {first} and {name}; was the "
                "tokenizer changed? Measure in a new folder"
            )
        items[number] = tuple(needle["item"] for needle in facts["needles"])
    return tuple(items)


def _weights(cells: _Cells) -> str:
    """The hash of the weights, once it is known that all cells have the same."""
    first, *others = {facts["weights_sample_sha256"] for facts, _ in cells.values()}
    if others:
        raise InputError("the scalings were measured on different weights; measure in a new folder")
    return str(first)


def held_out_retrieval(
    raw: np.ndarray, items: Sequence[Sequence[str]], options: RopeOptions
) -> tuple[tuple[tuple[tuple[int, int], ...], ...], np.ndarray]:
    """Heads chosen on the unscaled model at the shortest length, and their mean score for every needle.

    The heads of a needle's half of the items are chosen on the other half.
    """
    n_heads = raw.shape[-1]
    flat = raw.reshape(*raw.shape[:4], -1)  # [scaling, length, text, depth, head]
    names = sorted({name for own in items for name in own})
    means = np.stack(
        [
            mean_of_defined(
                np.stack([flat[0, 0, t, d] for t, own in enumerate(items) for d, one in enumerate(own) if one == name]),
                axis=0,
            )
            for name in names
        ]
    )  # [item, head]
    usable = np.flatnonzero(np.isfinite(means).all(axis=1))
    parts = halves(usable, "random", generator(options.seed))
    scores = np.full(flat.shape[:4], np.nan)
    chosen: list[tuple[tuple[int, int], ...]] = []
    for own, other in (parts, parts[::-1]):
        places = highest(means[other], options.n_heads)
        chosen.append(tuple((int(place // n_heads), int(place % n_heads)) for place in places))
        mine = {names[i] for i in own}
        for t, asked in enumerate(items):
            for d, name in enumerate(asked):
                if name in mine and len(places):
                    scores[:, :, t, d] = flat[:, :, t, d][..., places].mean(axis=-1)
    return tuple(chosen), scores


def _moved(cells: _Cells, plan: RopePlan, shape: tuple[int, int, int]) -> np.ndarray:
    found = np.full(shape, np.nan)
    for (scaling, length, number), (_, arrays) in cells.items():
        reference = plan.reference(length)
        other = None if reference is None else cells.get((0, reference, number))
        if other is not None:
            found[scaling, length, number] = total_variation(arrays["distance"], other[1]["distance"])
    return found


def total_variation(first: np.ndarray, second: np.ndarray) -> float:
    """Half the sum of absolute differences of two [layer, head, bin], each made up to 1 over the bins that both have.

    Mean over heads; those without mass in either are left out.
    """
    n_bins = min(first.shape[-1], second.shape[-1])
    with np.errstate(invalid="ignore", divide="ignore"):
        one, two = (
            array[..., :n_bins].astype(np.float64) / array[..., :n_bins].sum(axis=-1, keepdims=True, dtype=np.float64)
            for array in (first, second)
        )
    return float(mean_of_defined((np.abs(one - two).sum(axis=-1) / 2).ravel(), axis=0))


def _loss_edges(plan: RopePlan) -> np.ndarray:
    width = max(plan.lengths[0] // _BINS, 1)
    return np.arange(0, plan.lengths[-1] + width, width)


def binned(losses: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Mean loss of the tokens at positions between two edges; ``losses[i]`` is that of position i + 1."""
    bins = np.searchsorted(edges, np.arange(1, len(losses) + 1), side="right") - 1
    sums = np.bincount(bins, weights=losses, minlength=len(edges) - 1)
    counts = np.bincount(bins, minlength=len(edges) - 1)
    with np.errstate(invalid="ignore"):
        mean: np.ndarray = np.where(counts > 0, sums / counts, np.nan)
    return mean[: len(edges) - 1]
