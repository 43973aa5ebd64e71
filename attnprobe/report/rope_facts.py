"""How scalings of RoPE were compared: facts and the frequencies in use, as tables that people read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from attnprobe.report.facts import text_of
from attnprobe.rope_data import RopeData
from attnprobe.rope_options import short_name
from attnprobe.terminal import percent
from attnprobe.told import Table

_SHOWN = 12  # characters of a hash of frequencies, which only tells them apart


def rope_facts_table(about: Mapping[str, Any], data: RopeData) -> Table:
    """What was measured and how.

    Parameters
    ----------
    about
        What ``rope.json`` says.
    data
        What was measured.
    """
    plan, options = data.plan, data.plan.options
    margins = options.margins
    asked = about["asked"] if isinstance(about.get("asked"), Mapping) else {}
    versions = about["versions"] if isinstance(about.get("versions"), Mapping) else {}
    facts = {
        "model": plan.model,
        "class": asked.get("class"),
        "revision": asked.get("revision"),
        "dtype": asked.get("dtype"),
        "attention implementation": asked.get("attn_implementation"),
        "weights, SHA-256 of a sample": data.weights,
        "trained window": f"{plan.window:,} tokens",
        "scalings": ", ".join(map(short_name, plan.scalings)),
        "lengths": f"{', '.join(f'{length:,}' for length in plan.lengths)} tokens of prompt and answer",
        "texts of each length": str(options.texts),
        "depths of the needles": ", ".join(f"{depth:g}" for depth in options.depths),
        "items": ", ".join(sorted({name for own in data.items for name in own})),
        "items, SHA-256": asked.get("items_sha256"),
        "filler": _filler(options.filler),
        "seed": str(options.seed),
        "margins": f"logprob {margins.logprob:g} nats, advantage {margins.advantage:g} nats, "
        f"loss {margins.loss:g} nats a token",
        "level of intervals": percent(options.level, 0),
        "retrieval heads, layer-head": "; ".join(
            f"{', '.join(f'{layer}-{head}' for layer, head in half) or 'none'} (for half {number} of the items)"
            for number, half in enumerate(data.heads, start=1)
        ),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    rows = tuple((label, text_of(value)) for label, value in facts.items() if value not in (None, ""))
    return Table("How it was measured", ("", "value"), rows, (False, False))


def frequencies_table(data: RopeData) -> Table:
    """The rotary frequencies that every scaling used; lengths at which they are the same share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, own in zip(data.plan.scalings, data.rope, strict=True):
        for length, used in zip(data.plan.lengths, own, strict=True):
            for module, one in (used or {}).items():
                rows.setdefault((short_name(name), module, *_frequencies(one)), []).append(f"{length:,}")
    lines = tuple((name, ", ".join(lengths), *rest) for (name, *rest), lengths in rows.items())
    header = ("scaling", "tokens", "module", "type", "attention scaling", "radians a token", "SHA-256")
    note = f"As the live modules hold them after the first text of a length. SHA-256: its first {_SHOWN} characters."
    return Table("Frequencies in use", header, lines, (False, True, False, False, True, False, False), note)


def _frequencies(used: Mapping[str, Any]) -> tuple[str, ...]:
    values = used["inv_freq"]
    span = f"{len(values)} from {values[0]:.3g} to {values[-1]:.3g}"
    return str(used["rope_type"]), f"{used['attention_scaling']:.4g}", span, str(used["sha256"])[:_SHOWN]


def _filler(filler: str) -> str:
    """Of a user's file its name alone: a folder of the one who measured is nobody else's business."""
    kind, _, path = filler.partition(":")
    return f"{kind}:{PurePath(path).name}" if path else filler
