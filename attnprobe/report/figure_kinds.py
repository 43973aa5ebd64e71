"""The kinds of figures, what they show and how each is asked for; imports nothing heavy, as help shows it."""

from __future__ import annotations

from collections.abc import Mapping

ABOUT: Mapping[str, str] = {
    "curve": "attention by position, and what is uniform",
    "compare": "attention by position of several runs or studies",
    "layers": "share of each document in every layer",
    "heads": "share of each document in every head, or those of one layer",
    "answer": "mass of each document for every token of the answer",
    "prompt": 'mass by block of the prompt\'s own rows; extra "prompt"',
    "distance": 'mass by distance from the row, tokens; extra "distance"',
    "sinks": "mass of the sinks in every layer",
    "needle": "a value by length of the context and depth of the needle",
    "depths": "answer and attention by depth of the needle, a line a length",
    "answers": "answer and attention by position of the evidence",
    "published": "accuracy by position beside published curves",
    "fillers": "what each filler costs, by length",
    "parts": "what filler costs, taken apart",
    "link": "attention to the evidence against the answer, by layer",
    "scatter": "attention to the evidence against the answer, by prompt",
    "scalings": "attention over the documents, by RoPE scaling and length",
    "scaling-needles": "advantage of needles by depth, RoPE scaling and length",
    "scaling-losses": "loss by position, RoPE scaling and length",
}

EXAMPLES: Mapping[str, str] = {
    "curve": "curve study -o curve.pdf",
    "compare": "compare a b --label base --label YaRN -o rope.pdf",
    "layers": "layers runs -o layers.pdf",
    "heads": "heads run.safetensors --width page -o heads.pdf",
    "answer": "answer run.safetensors --layer 12 -o answer.pdf",
    "prompt": "prompt run.safetensors -o prompt.svg",
    "distance": "distance runs --layer 12 -o distance.png",
    "sinks": "sinks study -o sinks.pdf",
    "needle": "needle recall.json -o needle.pdf",
    "depths": "depths niah -o depths.pdf",
    "answers": "answers sweep -o answers.pdf",
    "published": "published sweep -o published.pdf",
    "fillers": "fillers control -o fillers.pdf",
    "parts": "parts control -o parts.pdf",
    "link": "link sweep -o link.pdf",
    "scatter": "scatter sweep -o scatter.pdf",
    "scalings": "scalings rope --width page -o scalings.pdf",
    "scaling-needles": "scaling-needles rope -o needles.pdf",
    "scaling-losses": "scaling-losses rope -o losses.pdf",
}
"""What follows ``attnprobe figure``, by kind."""

_SWEEPS = ("needle_sweep", "multi_doc")
TASKS_OF: Mapping[str, tuple[str, ...]] = {
    "needle": ("niah",),
    "depths": ("niah",),
    "answers": (*_SWEEPS, "niah"),
    "published": _SWEEPS,
    "fillers": ("filler_control",),
    "parts": ("filler_control",),
    "link": (*_SWEEPS, "niah", "filler_control"),
    "scatter": (*_SWEEPS, "niah", "filler_control"),
}
"""The tasks of whose folders a kind is drawn."""

NEEDLE_FILE = (
    '{"lengths": [2000, 8000], "depths": [0, 0.5, 1],',
    ' "values": [[98, 91, 97], [90, null, 88]], "label": "recall", "unit": "%"}',
)
"""A file that a needle's figure is drawn from, in lines."""
