"""The kinds of figures and what they show, for the command's help as well; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping

ABOUT: Mapping[str, str] = {
    "curve": "attention by position, and what is uniform",
    "compare": "attention by position of several runs or studies",
    "layers": "share of each document in every layer",
    "heads": "share of each document in the heads of one layer, or in all",
    "answer": "mass of each document for every token of the answer",
    "prompt": 'mass by block of the prompt\'s own rows; extra "prompt"',
    "distance": 'mass by distance from the row, tokens; extra "distance"',
    "sinks": "mass of the sinks in every layer",
    "needle": "a value by length of the context and depth of the needle",
}
