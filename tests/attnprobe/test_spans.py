import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprobe.spans import Span, Straddler, assign_tokens, check_partition, token_runs


def assign(ranges, segments, joints=()):
    """Assign token ranges to segments, given as (owner, length)."""
    starts, stops = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
    lengths = [length for _, length in segments]
    owners = np.array([owner for owner, _ in segments], dtype=np.int64)
    bounds = np.concatenate(([0], np.cumsum(lengths)))
    assigned, straddlers = assign_tokens(starts, stops, bounds, owners, np.array(joints, dtype=np.int64))
    return assigned.tolist(), straddlers


def test_majority_and_tie_to_the_earlier():
    assert assign([(0, 3), (3, 8), (8, 10)], [(0, 5), (1, 5)]) == ([0, 1, 1], [Straddler(1, 1, 0)])
    assert assign([(0, 3), (3, 7), (7, 10)], [(1, 5), (0, 5)]) == ([1, 1, 0], [Straddler(1, 1, 0)])


def test_majority_counts_all_segments_of_an_owner():
    assert assign([(0, 5)], [(0, 2), (1, 2), (0, 1)])[0] == [0]
    assert assign([(0, 7)], [(0, 2), (1, 3), (0, 2)]) == ([0], [Straddler(0, 0, 1)])


def test_pieces_of_one_character_stay_together():
    # " 😀": the space is the marker's; all four byte pieces go where most of the characters are.
    assert assign([(0, 4), (4, 6), (5, 6), (5, 6), (6, 8)], [(0, 5), (1, 3)])[0] == [0, 1, 1, 1, 1]
    assert assign([(0, 2), (2, 3), (2, 3), (2, 4), (4, 5)], [(0, 3), (1, 2)])[0] == [0, 0, 0, 0, 1]


def test_joint_does_not_count_beside_text():
    assert assign([(0, 4), (4, 6)], [(0, 5), (1, 1)], joints=[4]) == ([0, 1], [])
    assert assign([(0, 4), (4, 5), (5, 6)], [(0, 5), (1, 1)], joints=[4])[0] == [0, 0, 1]


def test_empty_range_takes_the_owner_at_its_place():
    assert assign([(0, 0), (0, 3), (3, 3), (3, 6), (6, 6)], [(0, 3), (1, 3)]) == ([0, 0, 1, 1, 1], [])


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.data())
def test_agrees_with_counting_characters(lengths, data):
    owners = [data.draw(st.integers(0, 3)) for _ in lengths]
    characters = [owner for owner, length in zip(owners, lengths, strict=True) for _ in range(length)]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(characters)))) | {len(characters)})
    ranges = list(zip([0, *cuts[:-1]], cuts, strict=True))
    assigned, straddlers = assign(ranges, list(zip(owners, lengths, strict=True)))
    for token, (start, stop) in enumerate(ranges):
        own = characters[start:stop]
        best = max(dict.fromkeys(own), key=own.count)
        assert assigned[token] == best
        assert (token in {item.token for item in straddlers}) == (len(set(own)) > 1)


def test_token_runs():
    assert token_runs(np.array([2, 2, 0, 2])) == [(2, 0, 2), (0, 2, 3), (2, 3, 4)]
    assert token_runs(np.array([], dtype=np.int64)) == []


@pytest.mark.parametrize(
    "segments",
    [[(0, 2)], [(0, 2), (1, 4)], [(0, 5)], [(0, 2), (2, 2), (2, 4)], [(-1, 4)], [(0, 2), (3, 4)]],
    ids=str,
)
def test_broken_partition_raises(segments):
    with pytest.raises(RuntimeError):
        check_partition([Span("other", str(item), None, (item,)) for item in segments], 4)


def test_partition_with_empty_span():
    check_partition(
        [Span("sink", "sink", None, ((0, 1),)), Span("document", "0", 0), Span("other", "r", None, ((1, 4),))], 4
    )
