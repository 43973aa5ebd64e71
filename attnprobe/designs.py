"""Designs: in which orders the documents of one question are shown, so that position is not content."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnprobe.arguments import Seed, generator, whole_number
from attnprobe.errors import InputError

DESIGNS = ("williams", "cyclic", "insertion")


@dataclass(frozen=True)
class Order:
    """One order of a question's documents.

    Parameters
    ----------
    base
        Number of the base order that it is made from.
    number
        Its number within that base.
    permutation
        ``permutation[position]`` is the document there, in the prompt's own numbering.
    """

    base: int
    number: int
    permutation: tuple[int, ...]


def orders(
    design: str,
    n_documents: int,
    *,
    bases: int = 1,
    seed: Seed = 0,
    needle: int | None = None,
) -> tuple[Order, ...]:
    """Orders in which a design shows the documents.

    - ``williams``: every document once at every position, and every ordered pair of neighbours equally often, so
      that what stands before a document is balanced too. An even number K of documents takes K orders; an odd one
      takes two squares, 2K orders (3 documents: all six), except that 1 document has one order.
    - ``cyclic``: the K rotations of the base order. Every document once at every position, but its neighbours
      travel with it, so that position is measured well and the difference of two documents poorly.
    - ``insertion``: one document, the needle, is moved through the others, whose order stays; order i has it at
      position i. It shows what position does to that document, and is no square: the others hardly move.

    The base orders are random, base 0 too. No two of them give the same set of orders, and those of a square are
    linked: from any order one gets to any other over orders that have a document at the same position, without which
    what a document does at a position could not be told from what differs between prompts (about 1 in 100 pairs of
    bases of 10 documents are not linked, 1 in 5 of 4). The first bases do not depend on how many are drawn. In a study
    give each question a seed of its own, as in ``seed=(seed, question)``.

    Parameters
    ----------
    design
        One of ``DESIGNS``.
    n_documents
        Documents of the prompt, K >= 1.
    bases
        Number of base orders, at least 1.
    seed
        What draws the base orders: an int >= 0, or several.
    needle
        Number of the document that ``insertion`` moves.

    Returns
    -------
    tuple of Order
        Base by base.

    Raises
    ------
    InputError
        When an argument is out of range, when the needle is missing or has no use, or when the documents allow
        fewer base orders than asked for.

    References
    ----------
    E. J. Williams, Experimental designs balanced for the estimation of residual effects of treatments,
    Australian Journal of Scientific Research A 2 (1949).
    """
    if design not in DESIGNS:
        raise InputError(f"design {design!r} is unknown; expected one of {', '.join(DESIGNS)}")
    K = whole_number("n_documents", n_documents, 1)
    wanted = whole_number("bases", bases, 1)
    needle = _needle(design, K, needle)
    available = _distinct_bases(design, K)
    if wanted > available:
        raise InputError(
            f"bases={wanted}, but the {design} design of {K} document{'s' if K > 1 else ''} has no more than "
            f"{available} different base order{'s' if available > 1 else ''}; use at most {available}"
        )
    rng = generator(seed)
    found: list[list[tuple[int, ...]]] = []
    seen: set[frozenset[tuple[int, ...]]] = set()
    while len(found) < wanted:
        square = _square(design, [int(document) for document in rng.permutation(K)], needle)
        linked = not found or design == "insertion" or _linked([order for base in (*found, square) for order in base])
        if linked and frozenset(square) not in seen:
            seen.add(frozenset(square))
            found.append(square)
    return tuple(
        Order(base, number, permutation)
        for base, square in enumerate(found)
        for number, permutation in enumerate(square)
    )


def _square(design: str, base: list[int], needle: int | None) -> list[tuple[int, ...]]:
    K = len(base)
    if design == "insertion":
        others = [document for document in base if document != needle]
        return [(*others[:place], needle, *others[place:]) for place in range(K)]  # type: ignore[arg-type]
    if design == "cyclic":
        return [tuple(base[(shift + place) % K] for place in range(K)) for shift in range(K)]
    # 0, 1, K-1, 2, K-2, ...: the steps between neighbours are all different, so that K shifts of it hold every
    # ordered pair of neighbours once. For an odd K the steps come in pairs of which the mirror image has the rest.
    zigzag = [(place + 1) // 2 if place % 2 else (K - place // 2) % K for place in range(K)]
    rows = [zigzag] if K % 2 == 0 or K == 1 else [zigzag, zigzag[::-1]]
    return [tuple(base[(step + shift) % K] for step in row) for row in rows for shift in range(K)]


def _linked(square: list[tuple[int, ...]]) -> bool:
    waiting, apart = square[:1], square[1:]
    while waiting:
        order = waiting.pop()
        near = [other for other in apart if any(a == b for a, b in zip(order, other, strict=True))]
        apart = [other for other in apart if other not in near]
        waiting += near
    return not apart


def _distinct_bases(design: str, K: int) -> int:
    """How many sets of orders the K! base orders give.

    Rotating a base gives the same square again, and so does mirroring it in a Williams design of two squares; the
    place of the needle in the base has no meaning.
    """
    mirrored = design == "williams" and K % 2 == 1 and K > 1
    return math.factorial(K - 1) // (2 if mirrored else 1)


def _needle(design: str, K: int, needle: int | None) -> int | None:
    if design != "insertion":
        if needle is not None:
            raise InputError(f"needle={needle!r} is the document that the insertion design moves; {design} moves all")
        return None
    if needle is None:
        raise InputError("the insertion design moves one document through the others: say which with needle=")
    number = whole_number("needle", needle, 0)
    if number >= K:
        raise InputError(f"needle={number} is not a document; the documents are 0 to {K - 1}")
    return number
