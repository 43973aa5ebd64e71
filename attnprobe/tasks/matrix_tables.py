"""Tables of a length by depth matrix: one a metric, the knees, both axes for themselves."""

from __future__ import annotations

from attnprobe.tasks.accuracy import PositionAccuracy
from attnprobe.tasks.knee_text import knee_cells
from attnprobe.tasks.matrix_findings import Matrix, MatrixFindings
from attnprobe.tasks.position_means import PositionMeans
from attnprobe.tasks.published import BY_LENGTH
from attnprobe.tasks.sweep_tables import ends_table, positions_table
from attnprobe.tasks.task_numbers import TEXTS, accuracy_cell, difference_cell, place_text, value_text
from attnprobe.terminal import count, p_text, percent
from attnprobe.told import Table

_AXES = {"depth": "depth by tokens of the prompt", "tokens": "tokens of the prompt by depth"}


def matrix_tables(findings: MatrixFindings) -> list[Table]:
    """The tables of a needle in a haystack."""
    tables = [_matrix_table(one) for one in findings.matrices.values()]
    depths = next(iter(findings.matrices.values())).depths if findings.matrices else ()
    by_depth: list[PositionAccuracy | PositionMeans] = [*findings.accuracy.values(), *findings.means.values()]
    ends = next((one.ends for one in by_depth if one.ends is not None), None)
    middle = () if ends is None else tuple(depths[place] for place in ends.middle)
    tables += positions_table("By depth, over all lengths", "depth", depths, findings.accuracy, findings.means)
    tables += ends_table(findings.accuracy, findings.means, middle)
    return [
        *_contest_table(findings),
        *tables,
        *_knee_table(findings),
        *_length_table(findings),
        *_published_table(findings),
    ]


def _matrix_table(one: Matrix) -> Table:
    """Depths down, as pictures have them; lengths down where there are more of them, so that the lines are short."""
    text = TEXTS[one.metric]
    lengths, depths = [f"{length:,}" for length in one.lengths], [place_text(depth) for depth in one.depths]
    corner, rows, columns, values = "depth", depths, lengths, one.values.T
    if len(lengths) > len(depths):
        corner, rows, columns, values = "tokens", lengths, depths, one.values
    return Table(
        f"{text.label[0].upper()}{text.label[1:]} ({text.value_unit}): {_AXES[corner]}",
        (corner, *columns),
        tuple((row, *(value_text(one.metric, float(x)) for x in own)) for row, own in zip(rows, values, strict=True)),
        tuple([True] * (1 + len(columns))),
        f"{count(one.n, 'item')} with every cell" + (f"; {one.note}." if one.note else "."),
    )


def _contest_table(findings: MatrixFindings) -> list[Table]:
    if not findings.contests:
        return []
    rows = tuple(
        (
            place_text(one.depth),
            accuracy_cell(one.wins),
            difference_cell("margin", one.margin),
        )
        for one in findings.contests
    )
    note = (
        f"{count(findings.contests[0].margin.n, 'item')}. Depth of the gold statement; the foil stands at 1 less it. "
        "Wins: prompts in which the gold answer is more probable than the foil, 95 %, items as clusters; by: gold less "
        "foil, nats, 95 % t intervals. Neither is true."
    )
    header = ("depth", "gold wins", "by")
    return [Table("Which of two statements wins", header, rows, (True, True, True), note)]


def _knee_table(findings: MatrixFindings) -> list[Table]:
    rows = [knee_cells(knee) for knees in findings.knees.values() for knee in knees.found]
    if not rows:
        return []
    note = (
        "Tokens. length: the middle depths against those of the shortest prompt; position: against the first and last "
        "depth of the same length. A length holds if it is shown to: the lower bound of its comparison, with all "
        "bounds right at once, reaches what is asked. So with few items a knee comes early. Fails at: the first length "
        "that is shown not to hold."
    )
    header = ("knee", "of", "asked", "lies", "fails at")
    return [Table("Knees: how long a context may be", header, tuple(rows), (False, False, False, True, True), note)]


def _length_table(findings: MatrixFindings) -> list[Table]:
    rows = []
    for name, curve in findings.by_length.items():
        if curve.is_beyond:
            continue
        trend, steep = curve.per_doubling, curve.steepening
        rows.append(
            (
                TEXTS[name].name,
                TEXTS[name].unit,
                difference_cell(name, trend.loss),
                p_text(trend.p),
                "-" if steep is None else difference_cell(name, steep.loss),
                "-" if steep is None else p_text(steep.p),
            )
        )
    if not rows:
        return []
    header = ("", "in", "per doubling", "p", "growth of it", "p")
    note = "Lost for twice the tokens, mean over depths; growth: by how much more with every doubling."
    right = (False, False, True, True, True, True)
    return [Table("Loss by length", header, tuple(rows), right, note)]


def _published_table(findings: MatrixFindings) -> list[Table]:
    if not findings.accuracy:
        return []
    rows = []
    for one in BY_LENGTH:
        base = "-" if one.base is None else percent(one.base)
        values = ", ".join(f"{n:,}: {percent(a)}" for n, a in zip(one.tokens, one.accuracy, strict=True))
        rows.append((one.model, one.source.split(":")[0].split(" et al.,")[-1].strip(), base, values))
    note = "Accuracy by tokens in published tests of other tasks: for orientation, levels are not comparable."
    header = ("model", "test", "short prompt", "by tokens")
    return [Table("Published by length", header, tuple(rows), (False, False, True, False), note)]
