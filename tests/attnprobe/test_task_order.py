"""The order of a task's cells, and how chains of cells are dealt over processes."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_tokenizers import metaspace

from attnprobe.grid_processes import Cell, deal
from attnprobe.tasks.filler_control import filler_control
from attnprobe.tasks.items import read_items
from attnprobe.tasks.needle_sweep import needle_sweep
from attnprobe.tasks.niah import niah
from attnprobe.tasks.task_order import ordered

ITEMS = read_items()[:2]
TASKS = {
    "needle_sweep": needle_sweep(ITEMS, 5, trials=2),
    "niah": niah(ITEMS[:1], lengths=[1000, 2400], depths=[0.5, 0.0, 1.0]),
    "filler_control": filler_control(
        ITEMS, lengths=[400, 700, 500], fillers=["prose", "repeated"], placements=["after", "before", "split"]
    ),
}


def shared(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def reused(prompts: list[tuple[int, ...]]) -> int:
    return sum(shared(a, b) for a, b in pairwise(prompts))


@pytest.mark.parametrize("task", TASKS)
def test_hardly_any_order_of_a_chains_prompts_shares_more_tokens(task: str) -> None:
    """Sorted by tokens, as words in a dictionary, neighbours share as much as they can in any order."""
    tokenizer, chains = metaspace(), defaultdict(list)
    cells = ordered(TASKS[task], n_documents=5)
    assert sorted(cell.key for cell in cells) == sorted(spec.key for spec in TASKS[task])
    for cell in cells:
        chains[cell.chain].append(cell.work.build(tokenizer).prompt.encode(tokenizer).token_ids)
    ours = sum(map(reused, chains.values()))
    best = sum(reused(sorted(prompts)) for prompts in chains.values())
    assert ours >= 0.99 * best
    assert ours > 0.2 * sum(len(prompt) for prompts in chains.values() for prompt in prompts)


@pytest.mark.parametrize("task", TASKS)
def test_costs_are_about_the_tokens_fed(task: str) -> None:
    tokenizer, before = metaspace(), {}
    fed: list[tuple[float, float]] = []
    for cell in ordered(TASKS[task], n_documents=5):
        ids = cell.work.build(tokenizer).prompt.encode(tokenizer).token_ids
        fed.append((cell.cost, len(ids) - shared(before.get(cell.chain, ()), ids)))
        before[cell.chain] = ids
    ratio = sum(tokens for _, tokens in fed) / sum(cost for cost, _ in fed)
    longest = max(tokens for _, tokens in fed)
    assert all(abs(tokens - ratio * cost) < longest / 2 for cost, tokens in fed)


@pytest.mark.parametrize("task", TASKS)
def test_what_others_are_compared_with_is_done_first(task: str) -> None:
    for hand in deal(ordered(TASKS[task], n_documents=5), 2):
        conditions = [cell.work.condition for cell in hand]
        first = ["baseline" in one or one.get("filler") == "none" for one in conditions]
        assert first == sorted(first, reverse=True)


GIVEN = st.lists(st.tuples(st.floats(1, 100), st.sampled_from([None, "a", "b", "c"])), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(GIVEN, st.integers(1, 5))
def test_a_chain_is_cut_only_where_it_is_longer_than_an_even_share(given_cells: list[Any], n: int) -> None:
    cells = [Cell(str(i), cost, None, 0, chain) for i, (cost, chain) in enumerate(given_cells)]
    hands = deal(cells, n)
    assert sorted(cell.key for hand in hands for cell in hand) == sorted(cell.key for cell in cells)
    share = sum(cell.cost for cell in cells) / n
    for name in ("a", "b", "c"):
        chain = [cell.key for cell in cells if cell.chain == name]
        holders = [[cell.key for cell in hand if cell.chain == name] for hand in hands]
        if sum(cell.cost for cell in cells if cell.chain == name) <= share or n == 1:
            assert max(holders, key=len) == chain, "whole, and in its order"
        # Parts of it keep their own order, and are no more than it takes: two that follow each other exceed a share.
        cost = sum(cell.cost for cell in cells if cell.chain == name)
        breaks = [chain.index(b) != chain.index(a) + 1 for held in holders for a, b in pairwise(held)]
        assert sum(breaks) + sum(map(bool, holders)) <= 2 * cost / share + 1 + 1e-6
    loads = [sum(cell.cost for cell in hand) for hand in hands]
    assert max(loads) <= 2 * max(share, max(cell.cost for cell in cells)) + 1e-6
