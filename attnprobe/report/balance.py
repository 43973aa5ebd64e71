"""Whether the runs of a folder put every document at every position, as rotations of the same documents do."""

from __future__ import annotations

import hashlib
from collections import Counter

from attnprobe.run import Run

Places = Counter[tuple[bytes, int]]
"""How often each document stood at each position."""


def fingerprint(run: Run, span: int) -> bytes:
    """Tells documents apart by name and tokens, in little room."""
    ids = [id for start, stop in run.spans[span].segments for id in run.token_ids[start:stop]]
    return hashlib.sha256(repr((run.spans[span].name, ids)).encode()).digest()


def times_everywhere(places: Places, n_documents: int) -> int:
    """How often each document stood at each position, where that is the same number for all; else 0.

    A document that stands alone has one position, which says nothing.
    """
    if n_documents < 2:
        return 0
    documents = {document for document, _ in places}
    times = {places[document, position] for document in documents for position in range(n_documents)}
    return times.pop() if len(times) == 1 else 0
