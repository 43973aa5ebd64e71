"""What was measured and how, as labels and values that people read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from attnprobe.run import Run
from attnprobe.study_data import StudyData
from attnprobe.study_options import StudyOptions
from attnprobe.terminal import count

Facts = tuple[tuple[str, str], ...]

QUERY_ROWS = {"predicting": "those that predict the answer's tokens", "answer": "the answer's own tokens"}
"""The rows that are measured, by their name."""
_LONGEST = 300
_NUMBER = re.compile(r"(\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)( [a-z]+)?")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d")


def run_facts(run: Run) -> Facts:
    """Facts of one run: its size, and what its manifest says of model, capture, generation and versions."""
    return (
        ("tokens of the prompt", f"{run.n_prompt:,}"),
        ("tokens of the answer", f"{len(run.answer_ids):,}"),
        ("documents", str(len(run.documents))),
        ("layers, heads", f"{run.mass.shape[0]}, {run.mass.shape[1]}"),
        ("query rows", QUERY_ROWS[run.rows] + ("" if run.row_mass is not None else " (means only were kept)")),
        ("largest residual", f"{run.residual:.1e} nats"),
        *manifest_facts(run.manifest),
    )


def model_name(manifest: Mapping[str, Any]) -> str:
    """The model's name, with its RoPE override if there is one; empty where a manifest does not say it."""
    model = manifest.get("model")
    if not isinstance(model, Mapping):
        return model if isinstance(model, str) else ""
    name = str(model.get("name") or "")
    return f"{name}, RoPE {model['rope']}" if name and model.get("rope") else name


def manifest_facts(manifest: Mapping[str, Any]) -> Facts:
    """A manifest as labels and values; what has no words of its own keeps its key."""
    left = {key: value for key, value in manifest.items() if key not in ("number",)}
    facts: list[tuple[str, str]] = []
    model = left.pop("model", None)
    if isinstance(model, Mapping):
        model = dict(model)
        for key, label in (
            ("name", "model"),
            ("revision", "revision"),
            ("class", "class"),
            ("dtype", "dtype"),
            ("attn_implementation", "attention implementation"),
            ("device", "device"),
            ("max_positions", "positions it was made for"),
            ("original_positions", "positions before RoPE scaling"),
            ("rope", "RoPE override"),
        ):
            facts.append((label, text_of(model.pop(key, None))))
        place = model.pop("resolved", None)
        if place is not None:  # a folder of the one who measured is nobody else's business
            facts.append(("weights from", PurePath(str(place)).name))
        facts += [(f"model {key.replace('_', ' ')}", text_of(value)) for key, value in model.items()]
    rope = left.pop("rope", None)
    if isinstance(rope, Mapping):
        facts += [(f"RoPE in use ({module})", _rope(used)) for module, used in rope.items()]
    capture = left.pop("capture", None)
    if isinstance(capture, Mapping):
        capture = dict(capture)
        for key, label in (("answer", "answer"), ("backend", "backend"), ("mode", "capture")):
            facts.append((label, text_of(capture.pop(key, None))))
        seconds = capture.pop("seconds", None)
        facts.append(("time in capture", "-" if seconds is None else f"{seconds:.2f} s"))
        facts += [(key.replace("_", " "), text_of(value)) for key, value in capture.items()]
    for key in ("generation", "tokenizer"):
        part = left.pop(key, None)
        if isinstance(part, Mapping):
            facts += [(f"{key}: {name.replace('_', ' ')}", text_of(value)) for name, value in part.items()]
    versions = left.pop("versions", None)
    if isinstance(versions, Mapping):
        facts.append(("versions", ", ".join(f"{name} {value}" for name, value in versions.items())))
    return (*facts, *((key.replace("_", " "), text_of(value)) for key, value in left.items()))


def study_facts(data: StudyData, options: StudyOptions, runs: Run | None) -> Facts:
    """Facts of a study; those of model and versions from one of its whole runs, where any was kept."""
    own = data.own_answers
    facts = [
        ("model", data.model),
        ("questions", str(len(data.questions))),
        ("orders of each question", f"{len(data.orders[0])} ({options.design}, {count(options.bases, 'base order')})"),
        ("documents", str(data.n_documents)),
        ("layers, heads", f"{len(data.layers)}, {data.n_heads}"),
        ("query rows", QUERY_ROWS[options.rows]),
        ("measured beside", ", ".join(options.variants) or "nothing"),
        ("preamble", options.preamble if "preamble" in options.variants else "-"),
        ("documents filled up to one length", "yes" if options.length_matched else "no"),
        ("extras", ", ".join(options.extras) or "-"),
        ("seed", str(options.seed)),
        ("own answers kept", str(sum(map(len, own.values())))),
    ]
    if runs is None:
        return tuple(facts)
    known = {label for label, _ in facts}
    prompt = ("answer", "reused tokens", "time in capture", "created", "padding", "batch", "extras")
    return (*facts, *(fact for fact in manifest_facts(runs.manifest) if fact[0] not in {*known, *prompt}))


def merged(parts: Iterable[Facts]) -> Facts:
    """Facts of several runs: those that differ with the number of their values and the first ones."""
    values: dict[str, dict[str, None]] = {}
    for facts in parts:
        for label, value in facts:
            values.setdefault(label, {})[value] = None
    return tuple((label, _joined(list(found))) for label, found in values.items())


def _joined(values: list[str]) -> str:
    if len(values) == 1:
        return values[0]
    numbers = [_NUMBER.fullmatch(value) for value in values]
    if all(numbers) and len({match[2] for match in numbers if match}) == 1:
        ordered = sorted(values, key=lambda value: float(_NUMBER.fullmatch(value)[1].replace(",", "")))  # type: ignore[index]
        return f"{ordered[0]} to {ordered[-1]}"
    if all(_TIME.match(value) for value in values):
        return f"{min(values)} to {max(values)}"
    shown = "; ".join(values[:3])
    return shown if len(values) <= 3 else f"{shown}; and {len(values) - 3} more"


def text_of(value: Any) -> str:
    """A manifest's value on one line; long ones are cut."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"


def _rope(used: Any) -> str:
    if not isinstance(used, Mapping):
        return text_of(used)
    frequencies = used.get("inv_freq")
    rest = ", ".join(f"{key.replace('_', ' ')} {text_of(value)}" for key, value in used.items() if key != "inv_freq")
    if not isinstance(frequencies, list) or not frequencies:
        return rest
    return f"{rest}, {len(frequencies)} frequencies from {frequencies[0]:.6g} to {frequencies[-1]:.6g}"
