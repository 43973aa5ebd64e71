from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import make_run

from attnprobe.curve import Curve, effective_attention, middle_positions
from attnprobe.errors import InputError
from attnprobe.norms import NORMS
from attnprobe.run import Run

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)
Pairs = list[tuple[int, int]]


def every_pair(run: Run) -> Pairs:
    return [(layer, head) for layer in range(len(run.layers)) for head in range(run.mass.shape[1])]


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.fsum(values) / len(values) if values else math.nan


def by_hand(run: Run, norm: str, pairs: Pairs) -> list[float]:
    """A norm by plain loops over rows, heads and layers, straight from its definition."""
    assert run.row_mass is not None
    spans = [next(i for i, s in enumerate(run.spans) if s.document == k and s.kind == "document") for k in range(99)
             if any(s.document == k and s.kind == "document" for s in run.spans)]  # fmt: skip
    row_mass, visible = run.row_mass.astype(float), run.visible
    n_rows = visible.shape[1]

    def averaged(layer: int, head: int, span: int) -> float:
        return mean(row_mass[layer, head, row, span] for row in range(n_rows))

    values = []
    for span in spans:
        terms = []
        seen = {layer: any(visible[layer, row, span] for row in range(n_rows)) for layer, _ in pairs}
        for layer, head in pairs:
            if norm in ("mass", "share") and any(seen.values()):
                terms.append(averaged(layer, head, span))
            own = []
            if norm == "log_share" and seen[layer]:
                total = math.fsum(averaged(layer, head, other) for other in spans)
                terms.append(math.log(averaged(layer, head, span) / total))
            for row in range(n_rows) if norm in ("density", "advantage") else ():
                n, n_keys = int(visible[layer, row, span]), int(visible[layer, row].sum())
                n_others = sum(int(visible[layer, row, other]) for other in spans if other != span)
                mass = row_mass[layer, head, row, span]
                if norm == "density" and n:
                    own.append(mass / n * n_keys)
                if norm == "advantage" and n and n_others:
                    lse = run.lse[layer, head, row].astype(float)
                    reference = np.logaddexp.reduce([lse[other] for other in spans if other != span])
                    own.append((lse[span] - math.log(n)) - (reference - math.log(n_others)))
            if own:
                terms.append(mean(own))
        values.append(math.exp(mean(terms)) if norm == "log_share" else mean(terms))
    if norm == "share":
        total = math.fsum(value for value in values if not math.isnan(value))
        values = [value / total for value in values]
    return values


RUNS: dict[str, Callable[[], Run]] = {
    "plain": lambda: make_run(1),
    "answer-rows": lambda: make_run(2, rows="answer"),
    "learned-sink": lambda: make_run(3, learned_sink=True),
    "empty-document": lambda: make_run(4, document_tokens=(3, 0, 5, 2)),
    "windows": lambda: make_run(5, windows=(None, 21), n_answer=8),
    "all-windowed": lambda: make_run(6, windows=(21, 14), n_answer=8),
    "one": lambda: make_run(7, document_tokens=(4,)),
    "two": lambda: make_run(8, document_tokens=(4, 9)),
    "ten": lambda: make_run(9, document_tokens=(3, 1, 4, 1, 5, 9, 2, 6, 5, 3), layers=(3, 7, 11)),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", RUNS)
def test_norms_equal_direct_loops(name: str, norm: str) -> None:
    run = RUNS[name]()
    curve = run.curve(norm)
    assert curve.values.dtype == np.float64
    assert curve.documents == run.documents
    np.testing.assert_allclose(curve.values, by_hand(run, norm, every_pair(run)), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_chosen_layers_and_heads_equal_direct_loops(norm: str) -> None:
    run = make_run(10, layers=(3, 7, 11), n_heads=4)
    chosen = run.curve(norm, layers=[11, 3], heads=slice(1, 3))
    assert chosen.layers == (11, 3)
    assert chosen.heads == (1, 2)
    expected = by_hand(run, norm, [(0, 1), (0, 2), (2, 1), (2, 2)])
    np.testing.assert_allclose(chosen.values, expected, rtol=2e-6, atol=1e-6)

    pairs = run.curve(norm, heads=[(7, 0), (3, 2)])
    assert pairs.layers == (3, 7)
    assert pairs.heads == ((7, 0), (3, 2))
    np.testing.assert_allclose(pairs.values, by_hand(run, norm, [(0, 2), (1, 0)]), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (None, (3, 7, 11)),
        (7, (7,)),
        (np.int64(7), (7,)),
        ([11, 7], (11, 7)),
        (np.array([3]), (3,)),
        (slice(4, 12), (7, 11)),
        (slice(None, 8), (3, 7)),
        (slice(-1, None), (11,)),
        (slice(3, None, 8), (3, 11)),
    ],
)
def test_layers_are_the_models_numbers(layers: Any, expected: tuple[int, ...]) -> None:
    run = make_run(11, layers=(3, 7, 11))
    assert run.curve(layers=layers).layers == expected


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"layers": 4}, "layer 4 is not in this run; available layers: 3, 7, 11"),
        ({"layers": -1}, "layer -1 is not"),
        ({"layers": [3, 3]}, "names a layer twice"),
        ({"layers": []}, "selects nothing"),
        ({"layers": slice(4, 7)}, "selects nothing; available layers: 3, 7, 11"),
        ({"layers": slice("a", None)}, "is not a slice of layer numbers"),
        ({"layers": 1.5}, "layer must be an int, not 1.5"),
        ({"layers": True}, "layer must be an int, not True"),
        ({"layers": "3"}, "layer must be an int, not '3'"),
        ({"heads": 3}, "head 3 is not in this run; available heads: 0 to 2"),
        ({"heads": [(3, 3)]}, "head 3 is not"),
        ({"heads": [(0, 1)]}, "layer 0 is not"),
        ({"heads": [(3, 1), (3, 1)]}, r"the pair \(3, 1\) twice"),
        ({"heads": [(3, 1, 2)]}, "pairs"),
        ({"heads": [1, (3, 1)]}, "pairs"),
        ({"heads": [(3, 1)], "layers": 3}, "leave layers out"),
        ({"norm": "entropy"}, "norm 'entropy' is unknown; expected one of share,"),
        ({"middle": "edge"}, "middle 'edge' is unknown"),
    ],
)
def test_unknown_choices_name_what_there_is(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_run(12, layers=(3, 7, 11)).curve(**choice)


@pytest.mark.parametrize("norm", ["density", "advantage"])
def test_row_norms_need_rows(norm: str) -> None:
    with pytest.raises(InputError, match=f'norm "{norm}".*keep_rows=True'):
        make_run(13, keep_rows=False).curve(norm)


@pytest.mark.parametrize("norm", ["mass", "share", "log_share"])
def test_other_norms_do_not(norm: str) -> None:
    run = make_run(14)
    bare = replace(run, row_mass=None, row_total=None)
    np.testing.assert_array_equal(bare.curve(norm).values, run.curve(norm).values)


def test_a_run_without_documents_has_no_curve() -> None:
    with pytest.raises(InputError, match="no document spans"):
        make_run(15, document_tokens=()).curve()


@pytest.mark.parametrize("K", [1, 2, 3, 4, 5, 10])
def test_a_uniform_model_reads_evenly(K: int) -> None:
    run = make_run(16, uniform=True, document_tokens=tuple(range(1, K + 1)), windows=(None, 9), n_answer=4)
    seen = run.visible[:, :, list(run.document_spans)].any(axis=(0, 1))
    density = run.curve("density").values
    assert seen.all()
    np.testing.assert_allclose(density, 1, atol=1e-6)
    if K > 1:
        np.testing.assert_allclose(run.curve("advantage").values, 0, atol=1e-6)
    full = run.curve("share", layers=0).values
    np.testing.assert_allclose(full, np.arange(1, K + 1) / (K * (K + 1) / 2), atol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_an_invisible_document_is_undefined_not_zero(norm: str) -> None:
    run = make_run(17, document_tokens=(4, 5, 0, 6, 4), windows=(None, 14))
    curve = run.curve(norm)
    assert math.isnan(curve.values[2])
    assert np.isfinite(np.delete(curve.values, 2)).all()
    assert curve.middle == (1, 2, 3)
    assert curve.middle_mass is None
    assert curve.head_middle is None
    assert curve.to_dict()["values"][2] is None
    assert curve.table()[2] == {"position": 2, "document": "d2", "value": None, "middle": True}

    windowed = run.curve(norm, layers=1)
    assert math.isnan(windowed.values[0])
    assert not run.visible[1, :, run.document_spans[0]].any()


def test_one_document_has_no_reference() -> None:
    assert math.isnan(make_run(18, document_tokens=(4,)).curve("advantage").values[0])


def test_advantage_is_exact_beside_a_dominant_document() -> None:
    # Taking the document's own mass off the total would leave 0 here: 1 - 1e-9 is 1 in float32.
    run = make_run(19, document_tokens=(1, 1, 1), layers=(0,), n_heads=1, n_answer=1)
    mass = np.zeros_like(run.mass)
    mass[..., list(run.document_spans)] = [1.0, 2e-30, 6e-30]
    changed = replace(run, mass=mass, row_mass=mass[:, :, None].copy())
    expected = [math.log(1 / 4e-30), math.log(2e-30 / 0.5), math.log(6e-30 / 0.5)]
    np.testing.assert_allclose(changed.curve("advantage").values, expected, rtol=1e-6)


def test_advantage_of_an_underflowed_document_is_minus_infinity() -> None:
    run = make_run(20, document_tokens=(1, 1, 1), layers=(0,), n_heads=1, n_answer=1)
    mass = np.zeros_like(run.mass)
    mass[..., list(run.document_spans)] = [0.5, 0.0, 0.5]
    curve = replace(run, mass=mass, row_mass=mass[:, :, None].copy()).curve("advantage")
    assert curve.values[1] == -math.inf
    assert curve.head_minus_middle == math.inf
    assert curve.to_dict()["values"][1] == "-inf"
    assert curve.to_dict()["head_minus_middle"] == "inf"


def test_log_share_leaves_out_a_head_that_reads_no_document() -> None:
    run = make_run(22, keep_rows=False, layers=(0,), n_heads=3)
    mass = run.mass.copy()
    mass[0, 1] = 0
    mass[0, 1, 0] = 1
    curve = replace(run, mass=mass).curve("log_share")
    np.testing.assert_allclose(curve.values, run.curve("log_share", heads=[0, 2]).values, rtol=1e-12)
    assert np.isnan(replace(run, mass=mass).curve("log_share", heads=1).values).all()
    assert np.isnan(replace(run, mass=mass).curve("share", heads=1).values).all()


@PROPERTY
@given(seed=st.integers(0, 10_000), order=st.permutations(range(4)), norm=st.sampled_from(NORMS))
def test_the_order_of_heads_does_not_matter(seed: int, order: list[int], norm: str) -> None:
    run = make_run(seed, n_heads=4)
    assert run.row_mass is not None
    assert run.row_total is not None
    turned = replace(run, mass=run.mass[:, order], row_mass=run.row_mass[:, order], row_total=run.row_total[:, order])
    np.testing.assert_allclose(turned.curve(norm).values, run.curve(norm).values, rtol=1e-12, atol=1e-12)


@PROPERTY
@given(seed=st.integers(0, 10_000), tokens=st.lists(st.integers(0, 6), min_size=1, max_size=8))
def test_share_sums_to_one(seed: int, tokens: list[int]) -> None:
    curve = make_run(seed, document_tokens=tuple(tokens), windows=(None, 12)).curve()
    np.testing.assert_array_equal(np.isnan(curve.values), [n == 0 for n in tokens])
    if any(tokens):
        assert np.nansum(curve.values) == pytest.approx(1, abs=1e-12)
        assert (curve.values[~np.isnan(curve.values)] > 0).all()


@PROPERTY
@given(seed=st.integers(0, 10_000))
def test_ratios_of_share_and_mass_agree(seed: int) -> None:
    run = make_run(seed, document_tokens=(3, 4, 2, 5, 6))
    assert run.curve("share").head_middle == pytest.approx(run.curve("mass").head_middle, rel=1e-12)
    assert run.curve("share").tail_middle == pytest.approx(run.curve("mass").tail_middle, rel=1e-12)


def curve_from(values: list[float], norm: str = "share", middle: str = "default") -> Curve:
    names = tuple(f"d{i}" for i in range(len(values)))
    return Curve(np.array(values), norm, names, middle_positions(len(values), middle), (0,), (0,))


@pytest.mark.parametrize(
    ("values", "middle", "head", "tail"),
    [
        ([0.7], None, None, None),
        ([0.7, 0.3], None, None, None),
        ([0.6, 0.1, 0.3], 0.1, 6.0, 3.0),
        ([0.5, 0.1, 0.1, 0.3], 0.1, 5.0, 3.0),
        ([0.4, 0.1, 0.15, 0.05, 0.3], 0.1, 4.0, 3.0),
        ([0.3, 9, 9, 9, 0.1, 0.3, 9, 9, 9, 0.6], 0.2, 1.5, 3.0),
        ([0.5, 0.0, 0.5], 0.0, math.inf, math.inf),
        ([0.0, 0.0, 1.0], 0.0, None, math.inf),
        ([math.nan, 0.1, 0.3], 0.1, None, 3.0),
        ([0.5, math.nan, 0.3], None, None, None),
        ([0.5, 1e-9, 0.3], 1e-9, 5e8, 3e8),
    ],
)
def test_ratios(values: list[float], middle: float | None, head: float | None, tail: float | None) -> None:
    curve = curve_from(values)
    for found, expected in ((curve.middle_mass, middle), (curve.head_middle, head), (curve.tail_middle, tail)):
        assert (found is None) == (expected is None)
        assert found is None or found == pytest.approx(expected, rel=1e-12)
    assert curve.head_minus_middle is None
    assert curve.tail_minus_middle is None


def test_advantage_has_differences_instead_of_ratios() -> None:
    curve = curve_from([1.0, -0.5, 0.5], norm="advantage")
    assert curve.head_middle is None
    assert curve.tail_middle is None
    assert curve.head_minus_middle == 1.5
    assert curve.tail_minus_middle == 1.0


def test_source_middle_is_the_articles() -> None:
    curve = curve_from([0.5, 0.1, 0.1, 0.3], middle="source")
    assert curve.middle == (1, 2, 3)
    assert curve.head_middle == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("K", "default", "source"),
    [
        (1, (), ()),
        (2, (), ()),
        (3, (1,), (0, 1, 2)),
        (4, (1, 2), (1, 2, 3)),
        (5, (1, 2, 3), (1, 2, 3)),
        (6, (2, 3), (2, 3, 4)),
        (7, (2, 3, 4), (2, 3, 4)),
        (10, (4, 5), (4, 5, 6)),
    ],
)
def test_middle_positions(K: int, default: tuple[int, ...], source: tuple[int, ...]) -> None:
    assert middle_positions(K) == default
    assert middle_positions(K, "source") == source


@pytest.mark.parametrize("K", [0, -1, 2.0, True, "3", None])
def test_document_counts_are_checked(K: Any) -> None:
    with pytest.raises(InputError, match="K must be"):
        middle_positions(K)
    with pytest.raises(InputError, match="K must be"):
        effective_attention(K)


def test_to_dict_is_strict_json_and_carries_everything() -> None:
    run = make_run(21, document_tokens=(3, 0, 4), layers=(3, 7))
    curve = run.curve("share", heads=[(7, 1)])
    text = json.dumps(curve.to_dict(), allow_nan=False)
    assert json.loads(text) == curve.to_dict()
    assert curve.to_dict()["heads"] == [[7, 1]]
    assert curve_from([0.5, 0.0, 0.5]).to_dict()["head_middle"] == "inf"
    rows = run.curve("mass").table()
    assert [row["value"] for row in rows] == run.curve("mass").to_dict()["values"]
    assert [row["document"] for row in rows] == list(run.documents)


def test_values_are_read_only_and_checked() -> None:
    curve = curve_from([0.5, 0.2, 0.3])
    with pytest.raises(ValueError, match="read-only"):
        curve.values[0] = 1
    with pytest.raises(InputError, match="values has shape"):
        replace(curve, documents=("a",))


def test_effective_attention_is_the_articles_curve() -> None:
    values = effective_attention(10, alpha=0.45)
    assert values.dtype == np.float64
    raw = [math.exp(-0.45 * i) + math.exp(-0.45 * (9 - i)) for i in range(10)]
    np.testing.assert_allclose(values, np.array(raw) / sum(raw), rtol=1e-14)
    np.testing.assert_allclose(values, values[::-1], rtol=1e-14)
    assert values[0] / values[4:6].mean() == pytest.approx(3.76, abs=0.005)


@pytest.mark.parametrize("K", [1, 2, 3, 50])
def test_effective_attention_sums_to_one(K: int) -> None:
    assert effective_attention(K).sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(effective_attention(K, alpha=0), 1 / K)
    assert np.isfinite(effective_attention(K, alpha=1e6)).all()


@pytest.mark.parametrize("alpha", [-0.1, math.inf, math.nan, "steep", None])
def test_effective_attention_checks_alpha(alpha: Any) -> None:
    with pytest.raises(InputError, match="alpha must be a finite number >= 0"):
        effective_attention(10, alpha=alpha)
