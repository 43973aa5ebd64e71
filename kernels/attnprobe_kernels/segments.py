"""Segments: which span owns each key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from attnprobe_kernels.whole import whole

HIDDEN = -1


def _ranges(name: str, given: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Half-open ranges of keys, by name."""
    try:
        pairs = [(whole("a key", start), whole("a key", stop)) for start, stop in given]
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a list of ranges (first key, end) in integers, got {given!r}") from None
    for start, stop in pairs:
        if stop < start:
            raise ValueError(f"{name}: segment ({start}, {stop}) ends before it starts")
    return pairs


@dataclass(frozen=True)
class Segments:
    """Contiguous key ranges that cover ``range(n_keys)`` exactly once, each owned by one span.

    Build one with :meth:`from_bounds` or :meth:`from_spans`; both check the cover in integers.

    Parameters
    ----------
    starts, stops, owners
        One entry a segment, ascending: half-open key range and the index of the owning span. Owner ``-1`` marks keys
        of no span (left padding, unused slots of a static cache); a visible key may not be one of them.
    n_keys
        Number of keys.
    n_spans
        Number of spans, including spans without any key.
    """

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    owners: tuple[int, ...]
    n_keys: int
    n_spans: int

    def __post_init__(self) -> None:
        for name in ("n_keys", "n_spans"):
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        for name in ("starts", "stops", "owners"):  # tables are looked up by their content
            object.__setattr__(self, name, tuple(whole(f"every one of {name}", x) for x in getattr(self, name)))
        edge = 0
        for start, stop, owner in zip(self.starts, self.stops, self.owners, strict=True):
            if start != edge:
                kind = "gap" if start > edge else "overlap"
                raise ValueError(
                    f"{kind} at key {min(start, edge)}: a segment starts at {start}, the keys before it end at {edge}"
                )
            if stop < start:
                raise ValueError(f"segment ({start}, {stop}) ends before it starts")
            if not HIDDEN <= owner < self.n_spans:
                raise ValueError(f"segment ({start}, {stop}) has owner {owner}; there are {self.n_spans} spans")
            edge = stop
        if edge != self.n_keys:
            raise ValueError(f"the segments end at key {edge}, but there are {self.n_keys} keys")

    @classmethod
    def from_bounds(cls, bounds: Iterable[tuple[int, int]], n_keys: int) -> Segments:
        """Contiguous segments, each its own span: the owner of a segment is its index.

        Raises
        ------
        ValueError
            The bounds leave a gap, overlap, or do not end at ``n_keys``. Empty segments are allowed.
        """
        pairs = _ranges("bounds", bounds)
        return cls(
            starts=tuple(start for start, _ in pairs),
            stops=tuple(stop for _, stop in pairs),
            owners=tuple(range(len(pairs))),
            n_keys=n_keys,
            n_spans=len(pairs),
        )

    @classmethod
    def from_spans(
        cls,
        spans: Iterable[Iterable[tuple[int, int]]],
        n_keys: int,
        hidden: Iterable[tuple[int, int]] = (),
    ) -> Segments:
        """Segments of spans that may have several ranges each; the owner of a range is its span's index.

        Parameters
        ----------
        spans
            One list of half-open key ranges a span, in any order; a span may have none.
        n_keys
            Number of keys that the ranges must cover exactly once.
        hidden
            Ranges that no row sees and no span owns.

        Raises
        ------
        ValueError
            The ranges are no pairs of integers, one ends before it starts, or they do not cover the keys exactly once.
        """
        listed = [_ranges(f"span {owner}", ranges) for owner, ranges in enumerate(spans)]
        owned = [*enumerate(listed), (HIDDEN, _ranges("hidden", hidden))]
        rows = sorted((a, b, owner) for owner, ranges in owned for a, b in ranges if b > a)
        return cls(
            starts=tuple(row[0] for row in rows),
            stops=tuple(row[1] for row in rows),
            owners=tuple(row[2] for row in rows),
            n_keys=n_keys,
            n_spans=len(listed),
        )

    def clip(self, offset: int, n_keys: int) -> Segments:
        """The same spans in the coordinates of a key tensor that holds keys ``[offset, offset + n_keys)``."""
        rows = [
            (max(a - offset, 0), min(b - offset, n_keys), owner)
            for a, b, owner in zip(self.starts, self.stops, self.owners, strict=True)
        ]
        rows = [row for row in rows if row[1] > row[0]]
        edge = rows[-1][1] if rows else 0
        if edge < n_keys:
            rows.append((edge, n_keys, HIDDEN))
        return Segments(
            starts=tuple(row[0] for row in rows),
            stops=tuple(row[1] for row in rows),
            owners=tuple(row[2] for row in rows),
            n_keys=n_keys,
            n_spans=self.n_spans,
        )

    def check_owned(self, visible: np.ndarray) -> None:
        """Refuse intervals ``[row, 2]`` that hold a key of no span; takes a few integers a row, whatever the segments.

        Raises
        ------
        ValueError
            A row sees a key that no span owns, so the spans would not share out that row's whole mass.
        """
        # Ascending edges of stretches that are owned or not; what lies outside the cover is not.
        edges = np.array([np.iinfo(np.int32).min, *self.starts, self.n_keys], dtype=np.int64)
        unowned = np.array([True, *(owner == HIDDEN for owner in self.owners), True])
        before = np.concatenate([[0], np.cumsum(np.diff(edges) * unowned[:-1])])  # unowned keys before an edge

        def unowned_before(columns: np.ndarray) -> np.ndarray:
            stretch = np.searchsorted(edges, columns, side="right") - 1
            return before[stretch] + (columns - edges[stretch]) * unowned[stretch]

        missing = unowned_before(visible[:, 1]) - unowned_before(visible[:, 0])  # [row]
        if (missing > 0).any():
            row = int(np.flatnonzero(missing > 0)[0])
            raise ValueError(f"row {row} sees {int(missing[row])} keys that belong to no span")

    def visible_counts(self, visible: np.ndarray) -> np.ndarray:
        """How many keys of each span each row sees: int64 ``[row, span]`` for intervals ``[row, 2]``.

        Raises
        ------
        ValueError
            As in :meth:`check_owned`.
        """
        self.check_owned(visible)
        lo, hi = visible[:, :1].astype(np.int64), visible[:, 1:].astype(np.int64)  # [row, 1]
        starts, stops = np.asarray(self.starts, dtype=np.int64), np.asarray(self.stops, dtype=np.int64)
        owners = np.asarray(self.owners, dtype=np.int64)
        seen = np.maximum(np.minimum(hi, stops) - np.maximum(lo, starts), 0)  # [row, segment]
        counts = np.zeros((len(visible), self.n_spans), dtype=np.int64)
        owned = owners >= 0
        np.add.at(counts.T, owners[owned], seen.T[owned])
        return counts
