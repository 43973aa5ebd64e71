"""Norms for each head, trimmed, by rows and with secondary sinks; and budgets: against plain loops over one row."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import make_run

from attnprobe.errors import InputError
from attnprobe.norms import (
    NORMS,
    budget_by_row,
    counterfactual_budget,
    effective_documents,
    head_values,
    top_token_fraction,
)
from attnprobe.run import Run
from attnprobe.spans import SPAN_KINDS

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)


def first_tokens(run: Run) -> tuple[int, ...]:
    """The second token of the first document and the first one of the last."""
    documents = [run.spans[i] for i in run.document_spans]
    return documents[0].segments[0][0] + 1, documents[-1].segments[0][0]


def by_hand(run: Run, norm: str, trimmed: bool, rows: list[int], with_sinks: bool) -> np.ndarray:
    """One number a layer, head and document, from the definitions, entry by entry."""
    assert run.row_mass is not None
    n_layers, n_heads, n_documents = len(run.layers), run.mass.shape[1], len(run.documents)
    kinds = ("document", "sink") if with_sinks else ("document",)
    groups = [
        [i for i, span in enumerate(run.spans) if span.kind in kinds and span.document == k] for k in range(n_documents)
    ]
    out = np.full((n_layers, n_heads, n_documents), np.nan)
    for layer in range(n_layers):
        for head in range(n_heads):
            mass = np.zeros((len(rows), n_documents))
            n = np.zeros((len(rows), n_documents), dtype=int)
            for r, row in enumerate(rows):
                for k, group in enumerate(groups):
                    mass[r, k] = math.fsum(float(run.row_mass[layer, head, row, i]) for i in group)
                    n[r, k] = sum(int(run.visible[layer, row, i]) for i in group)
                    if trimmed:
                        assert run.top_mass is not None
                        mass[r, k] -= max(float(run.top_mass[layer, head, row, i]) for i in group)
                        n[r, k] = max(n[r, k] - 1, 0)
            for k in range(n_documents):
                seen = [r for r in range(len(rows)) if n[r, k]]
                if not seen:
                    continue
                means = mass.mean(axis=0)
                others = [j for j in range(n_documents) if j != k]
                if norm == "mass":
                    out[layer, head, k] = means[k]
                elif norm in ("share", "log_share"):
                    share = means[k] / math.fsum(means[j] for j in range(n_documents) if n[:, j].any())
                    out[layer, head, k] = share if norm == "share" else math.log(share)
                elif norm == "density":
                    n_keys = [int(run.visible[layer, row].sum()) for row in rows]
                    out[layer, head, k] = np.mean([mass[r, k] / n[r, k] * n_keys[r] for r in seen])
                else:
                    terms = [
                        math.log(mass[r, k] / n[r, k]) - math.log(mass[r, others].sum() / n[r, others].sum())
                        for r in seen
                        if n[r, others].sum()
                    ]
                    out[layer, head, k] = np.mean(terms) if terms else np.nan
    return out


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("rows", [None, slice(0, 1), slice(1, None), slice(None, None, 2)])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_head_values_equal_direct_loops(norm: str, trimmed: bool, rows: slice | None, with_sinks: bool) -> None:
    plain = make_run(1, n_answer=5, document_tokens=(4, 6, 3, 5))
    for run in (
        make_run(1, n_answer=5, extras=True, secondary=first_tokens(plain), windows=(None, 16)),
        make_run(2, n_answer=5, extras=True, document_tokens=(1, 0, 4, 2), learned_sink=True),
    ):
        found = head_values(run, norm, trimmed=trimmed, rows=rows, with_sinks=with_sinks)
        assert found.dtype == np.float64
        wanted = by_hand(run, norm, trimmed, list(range(5))[rows or slice(None)], with_sinks)
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("norm", NORMS)
def test_a_curve_is_the_average_of_its_heads(norm: str) -> None:
    run = make_run(3, extras=True, n_heads=4)
    for choice in ({}, {"trimmed": True}, {"rows": slice(1, None)}, {"trimmed": True, "rows": slice(0, 2)}):
        values: Any = head_values(run, "mass" if norm == "share" else norm, **choice)[:, [1, 3]]
        wanted = values.mean(axis=(0, 1))
        wanted = wanted / wanted.sum() if norm == "share" else wanted
        wanted = np.exp(wanted) if norm == "log_share" else wanted
        curve = run.curve(norm, heads=[1, 3], **choice)  # type: ignore[arg-type]
        np.testing.assert_allclose(curve.values, wanted, rtol=1e-12)


@PROPERTY
@given(
    seed=st.integers(0, 10_000),
    tokens=st.lists(st.integers(2, 6), min_size=2, max_size=6),
    trimmed=st.booleans(),
    norm=st.sampled_from(NORMS),
)
def test_splitting_off_sinks_does_not_move_the_raw_curve(
    seed: int, tokens: list[int], trimmed: bool, norm: str
) -> None:
    plain = make_run(seed, document_tokens=tuple(tokens), extras=True)
    split = make_run(seed, document_tokens=tuple(tokens), extras=True, secondary=first_tokens(plain))
    assert len(split.spans) == len(plain.spans) + 2
    np.testing.assert_allclose(
        split.curve(norm, trimmed=trimmed, with_sinks=True).values,
        plain.curve(norm, trimmed=trimmed).values,
        rtol=1e-5,
        atol=1e-6,
    )
    np.testing.assert_allclose(top_token_fraction(split), top_token_fraction(plain), rtol=1e-5)


@PROPERTY
@given(seed=st.integers(0, 10_000), tokens=st.lists(st.integers(1, 6), min_size=1, max_size=8), trimmed=st.booleans())
def test_shares_of_every_head_sum_to_one(seed: int, tokens: list[int], trimmed: bool) -> None:
    share = head_values(make_run(seed, document_tokens=tuple(tokens), extras=True), "share", trimmed=trimmed)
    if max(tokens) > 1 or not trimmed:
        np.testing.assert_allclose(np.nansum(share, axis=-1), 1, atol=1e-12)
    np.testing.assert_array_equal(np.isnan(share[0, 0]), [n <= trimmed for n in tokens])


@PROPERTY
@given(tokens=st.lists(st.integers(2, 9), min_size=2, max_size=8), trimmed=st.booleans())
def test_a_uniform_model_is_even_trimmed_or_not(tokens: list[int], trimmed: bool) -> None:
    """A trimmed document has one token less and its mass; the keys in all stay as they are."""
    run = make_run(5, uniform=True, document_tokens=tuple(tokens), extras=True)
    np.testing.assert_allclose(head_values(run, "density", trimmed=trimmed), 1, atol=1e-6)
    np.testing.assert_allclose(head_values(run, "advantage", trimmed=trimmed), 0, atol=1e-6)
    left = np.array(tokens) - trimmed
    wanted = np.broadcast_to(left / left.sum(), (2, 3, len(tokens)))
    np.testing.assert_allclose(head_values(run, "share", trimmed=trimmed), wanted, atol=1e-6)
    np.testing.assert_allclose(top_token_fraction(run), np.broadcast_to(1 / np.array(tokens), (2, 3, len(tokens))))


def test_what_float32_cannot_tell_from_the_top_token_has_a_log() -> None:
    run = make_run(6, extras=True, document_tokens=(4, 3))
    assert run.row_mass is not None
    top = np.where(run.visible[:, None] > 0, run.row_mass, np.float32(0))
    values = head_values(replace(run, top_mass=top.astype(np.float32)), "log_share", trimmed=True)
    assert np.isfinite(values).all()


def test_top_token_fraction_is_that_of_the_rows() -> None:
    run = make_run(7, extras=True)
    assert run.top_mass is not None
    assert run.row_mass is not None
    for k, i in enumerate(run.document_spans):
        wanted = (run.top_mass[..., i].astype(float) / run.row_mass[..., i]).mean(axis=2)
        np.testing.assert_allclose(top_token_fraction(run)[..., k], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"norm": "entropy"}, "norm 'entropy' is unknown"),
        ({"norm": "mass", "trimmed": True}, r'extras=\("top",\)'),
        ({"norm": "mass", "rows": slice(9, None)}, "selects nothing; the run has 3 rows"),
        ({"norm": "mass", "rows": 0}, "rows must be a slice"),
        ({"norm": "mass", "rows": slice("a", None)}, "is not a slice of row numbers"),
        ({"norm": "density", "rows": slice(3, 1)}, "selects nothing"),
    ],
)
def test_wrong_choices_are_named(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        head_values(make_run(8), **choice)
    with pytest.raises(InputError, match=message):
        make_run(8).curve(**choice)


def test_rows_must_have_been_kept() -> None:
    bare = make_run(9, keep_rows=False, extras=True)
    for call in (
        lambda: head_values(bare, "mass", rows=slice(0, 1)),
        lambda: bare.curve("density"),
        lambda: bare.budget(slice(0, 1)),
        lambda: budget_by_row(bare),
        lambda: counterfactual_budget(bare, 0),
    ):
        with pytest.raises(InputError, match="kept no rows"):
            call()
    with pytest.raises(InputError, match="top-token fractions"):
        top_token_fraction(bare)


def test_effective_number_of_documents() -> None:
    assert effective_documents(np.full(7, 0.3)) == pytest.approx(7, rel=1e-12)
    assert effective_documents(np.array([0, 5.0, 0])) == pytest.approx(1, rel=1e-12)
    assert effective_documents(np.array([1.0, 1.0, np.nan, 0])) == pytest.approx(2, rel=1e-12)
    p = np.array([0.5, 0.25, 0.25])
    assert effective_documents(10 * p) == pytest.approx(2**1.5, rel=1e-12)  # entropy of 1.5 bits
    assert math.isnan(effective_documents(np.zeros(3)))
    assert math.isnan(effective_documents(np.full(3, np.nan)))
    for bad in (np.array([1.0, -0.1]), np.array([np.inf, 1]), np.ones((2, 2))):
        with pytest.raises(InputError, match="effective_documents takes a list"):
            effective_documents(bad)


@PROPERTY
@given(values=st.lists(st.floats(0, 1e6), min_size=1, max_size=12))
def test_effective_documents_lie_between_one_and_all(values: list[float]) -> None:
    found = effective_documents(np.array(values))
    if any(values):
        assert 1 - 1e-9 <= found <= len(values) + 1e-9
    else:
        assert math.isnan(found)


def test_budgets_of_rows_add_up_to_the_budget() -> None:
    run = make_run(10, learned_sink=True, n_answer=4)
    assert run.row_mass is not None
    by_row = budget_by_row(run)
    assert tuple(by_row) == SPAN_KINDS
    np.testing.assert_allclose(sum(by_row.values()), 1, atol=1e-6)
    for kind in SPAN_KINDS:
        own = [i for i, span in enumerate(run.spans) if span.kind == kind]
        for row in range(4):
            wanted = sum(
                float(run.row_mass[layer, head, row, i]) for layer in range(2) for head in range(3) for i in own
            )
            assert by_row[kind][row] == pytest.approx(wanted / 6, abs=1e-9)
        assert by_row[kind].mean() == pytest.approx(run.budget()[kind], abs=1e-6)
        assert run.budget(slice(1, 3))[kind] == pytest.approx(by_row[kind][1:3].mean(), abs=1e-6)
    with pytest.raises(InputError, match="selects nothing"):
        run.budget(slice(7, 9))


def test_counterfactual_budget_is_a_softmax_without_the_span() -> None:
    run = make_run(11, learned_sink=True)
    index = run.document_spans[1]
    lse = run.lse.astype(np.float64)
    lse[..., index] = -np.inf
    weight = np.exp(lse - lse.max(axis=-1, keepdims=True))
    mass = (weight / weight.sum(axis=-1, keepdims=True)).mean(axis=(0, 1, 2))
    found = counterfactual_budget(run, index)
    assert tuple(found) == SPAN_KINDS
    for kind in SPAN_KINDS:
        wanted = sum(mass[i] for i, span in enumerate(run.spans) if span.kind == kind)
        assert found[kind] == pytest.approx(wanted, abs=1e-6)
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    for bad in (-1, len(run.spans), 1.0, True):
        with pytest.raises(InputError, match="span_index"):
            counterfactual_budget(run, bad)  # type: ignore[arg-type]


def test_a_row_that_sees_one_span_alone_has_no_counterfactual() -> None:
    run = make_run(12, layers=(0,), n_heads=1)
    mass = np.zeros_like(run.mass)
    mass[..., 0] = 1
    only = replace(run, mass=mass, row_mass=np.repeat(mass[:, :, None], 3, axis=2))
    assert all(math.isnan(value) for value in counterfactual_budget(only, 0).values())
    assert counterfactual_budget(only, 1)["sink"] == pytest.approx(1)
