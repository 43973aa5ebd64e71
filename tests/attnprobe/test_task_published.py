from __future__ import annotations

import json

import numpy as np
import pytest

from attnprobe.errors import InputError
from attnprobe.tasks.context_rot import context_rot_gap
from attnprobe.tasks.ends import Ends
from attnprobe.tasks.published import BY_LENGTH, BY_POSITION, beside_published


def test_the_curves_are_what_their_sources_say_of_them() -> None:
    by_model = {curve.model: curve for curve in BY_POSITION}
    gpt = by_model["GPT-3.5-Turbo"]
    # The paper's abstract claim: in the middle it does worse than without any document.
    assert min(gpt.accuracy) < gpt.closed_book < gpt.accuracy[0] < gpt.oracle
    assert [model for model, curve in by_model.items() if min(curve.accuracy) < curve.closed_book] == ["GPT-3.5-Turbo"]
    assert all(0 < value < 1 for curve in (*BY_POSITION, *BY_LENGTH) for value in curve.accuracy)
    assert gpt.relative == (0, 4 / 19, 9 / 19, 14 / 19, 1)
    assert float(context_rot_gap(np.array(gpt.accuracy), Ends(0, 4, (1, 2, 3)))) == pytest.approx(
        0.758 - (0.572 + 0.538 + 0.554) / 3
    )
    assert all(curve.accuracy[0] > curve.accuracy[-1] and "20" in curve.source for curve in BY_LENGTH)


def test_the_same_documents_and_metric_are_comparable() -> None:
    own = np.linspace(0.9, 0.5, 20)
    row = beside_published(own.tolist(), "best_subspan_em")[0]
    assert row.not_comparable == ()
    assert row.tested == (True,) * 5
    assert row.yours == pytest.approx(own[[0, 4, 9, 14, 19]].tolist())
    json.dumps(row.to_dict(), allow_nan=False)


def test_other_documents_and_metrics_are_flagged_and_interpolated() -> None:
    rows = beside_published([1.0, 0.0, 1.0], "strict")
    assert len(rows) == len(BY_POSITION)
    for row in rows:
        assert row.not_comparable == ("3 documents, not 20", "scored by strict, not best_subspan_em")
        assert row.tested == (True, False, False, False, True)
        assert row.yours == pytest.approx([abs(2 * x - 1) for x in row.published.relative])
        assert "not comparable" in repr(row)


def test_the_user_s_own_positions_and_documents_count() -> None:
    own = [0.75, 0.57, 0.53, 0.55, 0.63]
    row = beside_published(own, "best_subspan_em", [0, 4, 9, 14, 19], 20)[0]
    assert row.not_comparable == ()
    assert (row.yours, row.tested) == (tuple(own), (True,) * 5)
    row = beside_published([0.2, 0.8], "best_subspan_em", [4, 14], 20)[0]
    assert row.yours == (None, pytest.approx(0.2), pytest.approx(0.5), pytest.approx(0.8), None)
    assert "- 0.2" in repr(row)
    json.dumps(row.to_dict(), allow_nan=False)
    with pytest.raises(InputError, match="ascending, 0 to 9"):
        beside_published([0.2, 0.8], "strict", [4, 14], 10)


def test_the_figures_are_those_of_the_sources() -> None:
    """Transcribed apart from the module: percent, as printed."""
    table = """
        GPT-3.5-Turbo 75.8 57.2 53.8 55.4 63.2 56.1 88.3
        Claude-1.3 59.9 55.9 56.8 57.2 60.1 48.3 76.1
        MPT-30B-Instruct 53.7 51.8 52.2 52.7 56.3 31.5 81.9
        LongChat-13B-16k 68.6 57.4 55.3 52.5 55.0 35.0 83.4
        Llama-2-70B-chat 56.8 53.3 54.1 59.7 69.5 35.3 84.7
    """
    for curve, line in zip(BY_POSITION, table.strip().splitlines(), strict=True):
        model, *figures = line.split()
        assert curve.model == model
        assert [*curve.accuracy, curve.closed_book, curve.oracle] == pytest.approx([float(x) / 100 for x in figures])
    nolima, ruler = BY_LENGTH
    assert {curve.model for curve in BY_LENGTH} == {"Llama-3.1-8B"}
    assert "NoLiMa" in nolima.source
    assert (nolima.base, nolima.tokens, nolima.accuracy) == (0.767, (1_000, 32_000), (0.657, 0.142))
    assert "RULER" in ruler.source
    assert (ruler.tokens, ruler.accuracy) == ((4_000, 128_000), (0.955, 0.770))


@pytest.mark.parametrize("bad", [[0.5], [50.0, 60.0], [0.5, float("nan")], [[0.5, 0.5]]])
def test_what_is_no_curve_is_refused(bad: list[float]) -> None:
    with pytest.raises(InputError, match="give two fractions or more, one a position"):
        beside_published(bad, "strict")
