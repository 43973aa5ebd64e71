"""The texts that a report shows shaded by attention: of the first few runs that hold what it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from attnprobe.report.page import json_text
from attnprobe.report.token_map import Limits, token_map
from attnprobe.report.token_map_rows import head_rows
from attnprobe.run import Run
from attnprobe.terminal import count

MOST_TEXTS = 3
MOST_BYTES = 7_000_000
"""Of all texts of a page: with plotly.js and the curves, 15 MB. One text is shown even if it is longer than that."""

_COARSE = replace(
    Limits(), tokens=500_000, sentences=1_900_000, chosen=1_200_000, keys=500_000, rows=250_000, heads=0, elements=4_000
)
"""For texts that do not fit as a page of their own would show them; those of 100,000 tokens do then."""


@dataclass
class TextMaps:
    """Payloads of token maps, gathered while runs are read."""

    names: list[str] = field(default_factory=list)
    payloads: list[dict[str, Any]] = field(default_factory=list)
    bytes: int = 0
    n_fit: int = 0

    def watched(self, name: str, runs: Iterator[Run]) -> Iterator[Run]:
        """The runs as they come; the first few that hold masses of single tokens are kept as texts."""
        for run in runs:
            if run.column_mass is not None and run.token_chars is not None:
                self.n_fit += 1
                if len(self.payloads) < MOST_TEXTS:
                    self._take(f"{name}: {run.prompt_id}" if run.prompt_id else name, run)
            yield run

    def note(self) -> str:
        """Which texts are not there, and how to get them."""
        if not self.n_fit:
            return (
                "No run here holds masses of single tokens: measure with --extras columns,keys,top, or let attnprobe "
                "heatmap PROMPTS --model MODEL measure and show one."
            )
        if len(self.payloads) < self.n_fit:
            left = self.n_fit - len(self.payloads)
            return f"{count(left, 'more run')} could be shown; report them alone, or use attnprobe heatmap."
        return ""

    def _take(self, name: str, run: Run) -> None:
        for payload in _maps(run):
            size = len(json_text(payload).encode())
            if self.bytes + size <= MOST_BYTES:
                break
        else:
            if self.payloads:
                return
        self.names.append(name)
        self.payloads.append(payload)
        self.bytes += size


def _maps(run: Run) -> Iterator[dict[str, Any]]:
    """A run's maps, ever smaller: as a page of its own has it, without the rows of all heads, and coarse."""
    full = token_map(run, limits=Limits())
    yield full
    yield {**full, "row_heads": head_rows(run, full["chosen"], Limits().rows, 0)}
    yield token_map(run, limits=_COARSE)
