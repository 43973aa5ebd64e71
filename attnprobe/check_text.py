"""A check's report as a table in the terminal, and in JSON's terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnprobe.terminal import count, table, wrapped

if TYPE_CHECKING:
    from attnprobe.selfcheck import CheckReport


def report_dict(model: str, report: CheckReport) -> dict[str, Any]:
    """A report in JSON's terms."""
    return {
        "model": model,
        "attn_implementation": report.implementation,
        "reference": report.reference,
        "tolerance": report.tolerance,
        "passed": report.passed,
        "layers": [
            {
                "layer": row.layer,
                "differences": {
                    name: float(value) if value < float("inf") else "inf"
                    for name, value in zip(report.scenarios, row.differences, strict=True)
                },
                "passed": max(row.differences) <= report.tolerance,
            }
            for row in report.rows
        ],
    }


def report_lines(model: str, report: CheckReport) -> list[str]:
    """A row a layer: the largest difference of a span's mass from the reference, in each scenario."""
    rows = [
        (
            str(row.layer),
            *(f"{difference:.1e}" for difference in row.differences),
            "ok" if max(row.differences) <= report.tolerance else "DIFFERS",
        )
        for row in report.rows
    ]
    failed = sum(row[-1] != "ok" for row in rows)
    verdict = (
        f"all {count(len(rows), 'layer')} agree"
        if not failed
        else f"{failed} of {count(len(rows), 'layer')} differ: do not trust measurements on them"
    )
    return [
        *wrapped(
            f"{model}, {report.implementation} attention: largest difference of a span's mass from "
            f"{report.reference} (tolerance {report.tolerance:.0e})"
        ),
        "",
        *table(
            ("layer", *report.scenarios, "verdict"), rows, (*(True for _ in range(len(report.scenarios) + 1)), False)
        ),
        "",
        verdict,
    ]
