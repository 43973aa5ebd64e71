"""What a context is worth beside closed book and the evidence alone."""

from __future__ import annotations

import pytest

from attnprobe.tasks.baselines import baselines
from attnprobe.tasks.outcome import Outcome


def test_the_evidence_alone_is_compared_with_its_own_wording() -> None:
    """The second wording is far harder to read; what the context costs is a nat in either."""
    outcomes = [
        Outcome(f"item {i}", trial, {"position": 0}, logprob=-2.0 - 5 * (trial % 2) - i, facts={"wording": trial % 2})
        for i in range(6)
        for trial in range(3)
    ]
    alone = [Outcome(f"item {i}", 0, {"baseline": "oracle"}, logprob=-1.0 - i) for i in range(6)]
    closed = [Outcome(f"item {i}", 0, {"baseline": "closed_book"}, logprob=-9.0 - i) for i in range(6)]
    _, memory, evidence = baselines([*outcomes, *alone, *closed], lambda one: "position" in one.condition)
    assert evidence.context_less["logprob"].estimate == pytest.approx(-1.0)
    assert memory.context_less["logprob"].estimate == pytest.approx(7 - 5 / 3), "all wordings"
