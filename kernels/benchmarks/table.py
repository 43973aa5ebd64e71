"""Results as a table of plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

COLUMNS = ("what", "time", "spread", "of floor", "TFLOP/s", "TB/s", "memory", "error", "times ours")


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def duration(seconds: float | None) -> str:
    """Seconds in the unit that fits."""
    if seconds is None:
        return "-"
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def size(n_bytes: int | None) -> str:
    """Bytes in MiB or GiB."""
    if n_bytes is None:
        return "-"
    return f"{n_bytes / 2**30:.2f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.1f} MiB"


def _row(result: dict[str, Any], first_seconds: float | None) -> list[str]:
    seconds = result["seconds"]
    share, error = result["floor_share"], result["error"]
    return [
        result["name"],
        duration(seconds),
        f"{result['fastest'] / seconds - 1:+.0%} {result['slowest'] / seconds - 1:+.0%}",
        "-" if share is None else f"{share:.0%}",
        f"{result['flops_per_second'] / 1e12:.3g}",
        f"{result['bytes_per_second'] / 1e12:.3g}",
        size(result["peak_bytes"]),
        "-" if error is None else f"{error['absolute']:.0e}",
        "-" if first_seconds is None else f"{seconds / first_seconds:.2f}x",
    ]


def lines(records: Iterable[dict[str, Any]]) -> list[str]:
    """One block a case: the operation first, then what a user would do instead, then what was left out and why."""
    out = []
    for record in records:
        floor = record["floor"]
        limit = f"floor {duration(floor['seconds'])} ({floor['limit']})" if floor["limit"] else "no floor known"
        out += ["", f"{record['case']['name']}: {limit}"]
        if "left_out" in record:
            out.append(f"  left out: {record['left_out']}")
            continue
        results = record["results"]
        timed = [result for result in results if "seconds" in result]
        first = results[0].get("seconds") if results else None
        if timed:
            out += ["  " + line for line in align([COLUMNS, *(_row(result, first) for result in timed)])]
        for result in results:
            if "wrong" in result:
                out.append(f"  {result['name']}: WRONG, not timed: {result['wrong']}")
            elif "left_out" in result:
                out.append(f"  {result['name']}: left out: {result['left_out']}")
    return out
