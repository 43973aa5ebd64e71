from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprobe.designs import Order, orders
from attnprobe.errors import InputError

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
SQUARES = st.sampled_from(["williams", "cyclic"])


def by_base(found: tuple[Order, ...]) -> list[list[tuple[int, ...]]]:
    bases = sorted({order.base for order in found})
    assert [order.number for order in found] == [i for base in bases for i in range(len(found) // len(bases))]
    return [[order.permutation for order in found if order.base == base] for base in bases]


@given(SQUARES, st.integers(4, 14), st.integers(1, 3), st.integers(0, 10**6))
@PROPERTY
def test_every_document_stands_equally_often_at_every_position(design: str, K: int, bases: int, seed: int) -> None:
    for square in by_base(orders(design, K, bases=bases, seed=seed)):
        n = 2 * K if design == "williams" and K % 2 else K
        assert len(set(square)) == len(square) == n
        assert all(sorted(order) == list(range(K)) for order in square)
        assert Counter((d, p) for order in square for p, d in enumerate(order)) == dict.fromkeys(
            ((d, p) for d in range(K) for p in range(K)), n // K
        )


@given(st.integers(2, 15), st.integers(0, 10**6))
@PROPERTY
def test_williams_holds_every_ordered_pair_of_neighbours_equally_often(K: int, seed: int) -> None:
    pairs = Counter(pair for order in orders("williams", K, seed=seed) for pair in pairwise(order.permutation))
    assert pairs == dict.fromkeys(permutations(range(K), 2), 2 if K % 2 else 1)


@given(st.integers(2, 12), st.integers(0, 10**6))
@PROPERTY
def test_cyclic_orders_are_the_rotations_of_their_base(K: int, seed: int) -> None:
    square = by_base(orders("cyclic", K, seed=seed))[0]
    assert square == [square[0][shift:] + square[0][:shift] for shift in range(K)]


@given(st.integers(1, 12), st.integers(0, 10**6), st.data())
@PROPERTY
def test_insertion_moves_the_needle_and_nothing_else(K: int, seed: int, data: st.DataObject) -> None:
    needle = data.draw(st.integers(0, K - 1))
    square = by_base(orders("insertion", K, seed=seed, needle=needle))[0]
    assert [order.index(needle) for order in square] == list(range(K))
    assert len({tuple(d for d in order if d != needle) for order in square}) == 1
    assert all(sorted(order) == list(range(K)) for order in square)


@pytest.mark.parametrize("design", ["williams", "cyclic", "insertion"])
@pytest.mark.parametrize("K", [1, 2, 3, 4, 5])
def test_bases_are_distinct_and_as_many_as_there_are(design: str, K: int) -> None:
    needle = 0 if design == "insertion" else None
    available = {
        frozenset(order.permutation for order in orders(design, K, seed=seed, needle=needle)) for seed in range(400)
    }
    found = orders(design, K, bases=len(available), needle=needle)
    assert {frozenset(square) for square in by_base(found)} == available
    with pytest.raises(
        InputError, match=rf"has no more than {len(available)} different base order{'s' if len(available) > 1 else ''};"
    ):
        orders(design, K, bases=len(available) + 1, needle=needle)


@pytest.mark.parametrize("design", ["williams", "cyclic"])
@pytest.mark.parametrize("K", [4, 6, 8])
def test_bases_are_linked(design: str, K: int) -> None:
    """As a matrix: orders that have a document at the same position; its powers reach every order."""
    for seed in range(80):
        shown = np.array([order.permutation for order in orders(design, K, bases=2, seed=seed)])
        near = (shown[:, None] == shown[None]).any(axis=2)
        assert (np.linalg.matrix_power(near.astype(float), len(near)) > 0).all()


def test_few_documents() -> None:
    assert [order.permutation for order in orders("williams", 1)] == [(0,)]
    assert {order.permutation for order in orders("williams", 2)} == {(0, 1), (1, 0)}
    assert {order.permutation for order in orders("williams", 3)} == set(permutations(range(3)))
    assert len(orders("cyclic", 3)) == 3


def test_the_base_is_random_and_the_seed_fixes_it() -> None:
    assert orders("williams", 8, bases=2, seed=5) == orders("williams", 8, bases=2, seed=5)
    assert orders("williams", 8, bases=3, seed=5)[:16] == orders("williams", 8, bases=2, seed=5)
    first = Counter(orders("cyclic", 4, seed=(1, question))[0].permutation[0] for question in range(400))
    assert all(abs(first[document] - 100) < 4 * math.sqrt(75) for document in range(4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"design": "latin"}, "design 'latin' is unknown; expected one of williams, cyclic, insertion"),
        ({"n_documents": 0}, "n_documents must be at least 1, not 0"),
        ({"n_documents": 2.5}, "n_documents must be an int, not 2.5"),
        ({"bases": 0}, "bases must be at least 1"),
        ({"seed": -1}, "seed must be an int >= 0"),
        ({"seed": None}, "seed must be an int >= 0"),
        ({"needle": 1}, "needle=1 is the document that the insertion design moves; williams moves all"),
        ({"design": "insertion"}, "say which with needle="),
        ({"design": "insertion", "needle": 4}, "needle=4 is not a document; the documents are 0 to 3"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        orders(**{"design": "williams", "n_documents": 4, **arguments})
