"""What a comparison of RoPE scalings concludes, on data of known truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attnprobe import rope_findings
from attnprobe.estimates import Interval
from attnprobe.intervals import simultaneous_band
from attnprobe.report.rope_matrix_figure import rope_matrix, save_rope_figures
from attnprobe.rope_data import RopeData, RopePlan
from attnprobe.rope_findings import findings
from attnprobe.rope_options import Margins, RopeOptions
from attnprobe.rope_read import binned, held_out_retrieval, total_variation
from attnprobe.rope_text import rope_lines
from attnprobe.rope_verdict import state_of, verdicts

LENGTHS = (2048, 8192, 16384, 32768)
SCALINGS = ("none", "linear:factor=4.0", "yarn:factor=4.0")
DEPTHS = (0.0, 0.5, 1.0)
N_TEXTS = 8


def data_of(
    change: dict[str, Any] | None = None, noise: float = 0.05, texts: int = N_TEXTS, **options: Any
) -> RopeData:
    """Every text with items of its own; ``change``: by metric, what is added [scaling, length]."""
    rng = np.random.default_rng(0)
    plan = RopePlan("model", SCALINGS, RopeOptions(LENGTHS, DEPTHS, texts=texts, **options), window=8192)
    shape = (len(SCALINGS), len(LENGTHS), texts)

    def values(metric: str, *more: int) -> np.ndarray:
        level = rng.normal(-5, 2, (1, 1, texts, *more))  # what an item or text is like under all of them
        added = np.asarray((change or {}).get(metric, np.zeros(shape[:2])), dtype=np.float64)
        return level + noise * rng.normal(size=(*shape, *more)) + added.reshape(*shape[:2], *[1] * (1 + len(more)))

    slices = np.exp(rng.normal(0, 0.1, (*shape, 10)))
    edges = np.arange(0, 32768 + 512, 512)
    by_position = np.where(edges[1:] <= np.array(LENGTHS)[None, :, None, None], values("position", 64), np.nan)
    return RopeData(
        plan=plan,
        items=tuple(tuple(f"t{t}d{d}" for d in range(len(DEPTHS))) for t in range(texts)),
        needle={name: values(name, len(DEPTHS)) for name in ("logprob", "advantage", "mass", "retrieval")},
        text={name: values(name) for name in ("loss", "sink", "entropy", "moved")},
        slices=slices / slices.sum(axis=-1, keepdims=True),
        distance=np.full((*shape, 16), 1 / 16),
        distance_edges=(0, *(2**b for b in range(16))),
        loss_by_position=by_position,
        loss_edges=edges,
        heads=(((1, 2),), ((0, 3),)),
        rope=tuple(tuple(None for _ in LENGTHS) for _ in SCALINGS),
        incomplete={},
        weights="0" * 64,
        warnings=(),
    )


@pytest.mark.parametrize(
    ("low", "high", "state"),
    [
        (-0.2, 0.3, "kept"),
        (0.1, 0.3, "kept"),  # better, but by less than the margin
        (0.1, 1.5, "gained"),
        (-0.5, 2.0, "kept"),
        (-1.5, 0.5, "unclear"),
        (-1.5, -0.5, "lowered"),
        (-3.0, -1.2, "lost"),
        (-1.0, 0.5, "unclear"),  # the margin itself is not ruled out
        (None, None, "unknown"),
    ],
)
def test_states(low: float | None, high: float | None, state: str) -> None:
    interval = Interval(0.0, low, high, 0.95, 9, "t", None if low is not None else "too few")
    assert state_of(interval, 1.0) == state
    mirrored = Interval(0.0, None if high is None else -high, None if low is None else -low, 0.95, 9, "t")
    assert state_of(mirrored, 1.0, higher_is_better=False) == state


def test_cost_and_gain_are_told_apart() -> None:
    """Linear scaling costs 3 nats everywhere and yarn nothing inside; beyond, the unscaled model falls by 5."""
    change = np.array([[0, 0, -5, -5], [-3, -3, -3, -3], [0, 0, 0, -9]])
    none, linear, yarn = verdicts(data_of({"logprob": change, "loss": -change / 10}))
    assert none.cost == ()
    assert [(one.metric, one.state) for one in linear.cost] == [
        ("logprob", "lost"), ("advantage", "kept"), ("loss", "lost"),
    ]  # fmt: skip
    assert [one.state for one in yarn.cost] == ["kept"] * 3
    assert linear.cost[0].interval.estimate == pytest.approx(-3, abs=0.1)
    by_length = [[(one.metric, one.state) for one in at.same_length] for at in linear.lengths]
    assert [states[0][1] for states in by_length] == ["lost", "lost", "gained", "gained"]
    assert [states[2][1] for states in by_length] == ["lost", "lost", "gained", "gained"]
    # Beyond the window each is held against the unscaled model inside: yarn is as good at 16k, lost at 32k.
    assert [at.middle_state for at in yarn.lengths] == ["kept", "kept", "kept", "lost"]
    assert (yarn.reach, yarn.fails_at) == (16384, 32768)
    assert (none.reach, none.fails_at) == (8192, 16384)
    assert (linear.reach, linear.fails_at) == (None, 2048)
    assert [at.inside for at in none.lengths] == [True, True, False, False]


def test_reach_takes_advantage_and_logprob_and_no_mass() -> None:
    falls = np.array([[0, -1, -2, -3]] * 3)
    assert [one.reach for one in verdicts(data_of({"mass": 100 * falls}))] == [32768] * 3
    assert [one.reach for one in verdicts(data_of({"advantage": falls}))] == [8192] * 3
    # Only the needles in the middle count.
    data = data_of()
    ends = data.needle["advantage"].copy()
    ends[2, :, :, [0, 2]] -= 9
    found = verdicts(replace(data, needle={**data.needle, "advantage": ends}))
    assert found[2].reach == 32768
    assert found[2].cost[1].state == "lost"
    # A length that fails ends it, whatever longer ones do.
    assert verdicts(data_of({"logprob": np.array([[0, 0, -9, 0]] * 3)}))[1].reach == 8192


def test_intervals_are_those_of_paired_differences() -> None:
    data = data_of(noise=0.4)
    contrast = verdicts(data)[2].lengths[2].middle[0]
    difference = data.needle["logprob"][2, 2, :, 1] - data.needle["logprob"][0, 1, :, 1]
    low, high = stats.t.interval(0.95, N_TEXTS - 1, difference.mean(), stats.sem(difference))
    assert (contrast.interval.low, contrast.interval.high) == pytest.approx((low, high))
    assert contrast.interval.n == N_TEXTS
    assert contrast.interval.reason is None  # items at other depths are not missing
    # An item that stands in several texts is one cluster, and so is a text.
    same = replace(data, items=(*data.items[:7], data.items[6]))
    assert verdicts(same)[2].lengths[2].middle[0].interval.n == N_TEXTS - 1
    of_text = np.random.default_rng(1).normal(size=(N_TEXTS, 1))
    shifted = data.needle["logprob"].copy()
    shifted[2] += of_text  # every needle of a text has the text's own level
    wide = verdicts(replace(data, needle={**data.needle, "logprob": shifted}))[2].cost[0].interval
    by_text = (shifted[2, :2] - shifted[0, :2]).mean(axis=(0, 2))
    low, high = stats.t.interval(0.95, N_TEXTS - 1, by_text.mean(), stats.sem(by_text))
    assert (wide.low, wide.high) == pytest.approx((low, high), rel=0.02)


def test_few_texts_and_missing_ones_give_no_verdict_that_they_do_not_bear() -> None:
    few = verdicts(data_of(texts=4))
    assert [one.state for one in few[1].cost] == ["unknown"] * 3
    assert few[1].reach is None
    assert [at.middle_state for at in few[1].lengths] == ["unknown"] * 4
    data = data_of({"logprob": np.array([[0] * 4, [-3] * 4, [0] * 4])})
    gap = data.needle["logprob"].copy()
    gap[1, 0, :3] = np.nan  # what is missing in one is left out in both
    found = verdicts(replace(data, needle={**data.needle, "logprob": gap}))[1]
    assert found.lengths[0].same_length[0].interval.n == 5
    assert found.cost[0].interval.estimate == pytest.approx(-3, abs=0.1)
    outside = replace(data, plan=replace(data.plan, window=1000))
    assert [one.cost for one in verdicts(outside)] == [()] * 3
    assert verdicts(outside)[2].reach is None


def test_margins_are_the_users() -> None:
    change = {"logprob": np.array([[0] * 4, [-2] * 4, [0] * 4])}
    for margin, state in ((1.0, "lost"), (3.0, "kept")):
        assert verdicts(data_of(change, margins=Margins(logprob=margin)))[1].cost[0].state == state


def test_heads_are_chosen_on_the_other_half() -> None:
    """A head that fires for one item alone is chosen for the other half, never for its own."""
    items = [[f"t{t}d{d}" for d in range(2)] for t in range(4)]
    raw = np.zeros((1, 1, 4, 2, 1, 9))
    for number in range(8):
        raw[0, 0, number // 2, number % 2, 0, number] = 1.0  # each item has a head of its own
    raw[..., 8] = 0.05  # and one head fires a little for all
    heads, scores = held_out_retrieval(raw, items, RopeOptions((1,), (0.0, 1.0), texts=4, n_heads=9))
    assert all(len(half) == 5 for half in heads)
    np.testing.assert_allclose(scores, 0.05 / 5)


def test_distance_and_bins_by_hand() -> None:
    one = np.array([[[2.0, 2.0, 0.0, 4.0]]])
    other = np.array([[[1.0, 0.0, 0.0]]])
    assert total_variation(one, other) == 0.5  # over the bins that both have
    assert total_variation(one, 3 * one) == 0
    np.testing.assert_allclose(binned(np.arange(1.0, 7.0), np.array([0, 2, 4, 6, 8])), [1, 2.5, 4.5, 6])


def test_every_band_is_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[np.ndarray] = []

    def band(logs: np.ndarray, level: float, seed: int) -> Any:
        drawn.append(logs)
        return simultaneous_band(logs, level, seed)

    monkeypatch.setattr(rope_findings, "simultaneous_band", band)
    data = data_of()
    found = findings(data)
    table, summary = found.table(), found.to_dict()
    rope_lines(found)
    save_rope_figures(found, tmp_path)
    np.testing.assert_allclose(np.exp(drawn), data.slices.reshape(-1, N_TEXTS, 10))
    wanted = np.exp(np.log(data.slices[2, 1]).mean(axis=0))  # the geometric mean over texts
    (own,) = (one for one in summary["curves"] if (one["scaling"], one["length"]) == (SCALINGS[2], LENGTHS[1]))
    np.testing.assert_allclose(own["share"]["estimate"], wanted)
    rows = [
        row["estimate"]
        for row in table
        if (row["scaling"], row["length"], row["metric"]) == (SCALINGS[2], LENGTHS[1], "share")
    ]
    np.testing.assert_allclose(rows, wanted)


def test_lines_and_pictures(tmp_path: Path) -> None:
    change = np.array([[0, 0, -5, -5], [-3, -3, -3, -3], [0, 0, 0, -9]])
    found = findings(data_of({"logprob": change}))
    lines = rope_lines(found)
    assert all(len(line) <= 80 for line in lines)
    text = " ".join(" ".join(lines).split())
    assert "yarn:4 kept" in text
    assert "16,384 (32,768 lost)" in text  # reach of yarn, and what comes then
    assert "8,192 (16,384 lost)" in text
    assert "linear:4 lost -3.0" in text
    assert "middle needles: 2,048 kept, 8,192 kept, 16,384 kept, 32,768 lost" in text
    assert "loss: 4 texts; an interval needs at least 5" in " ".join(rope_lines(findings(data_of(texts=4))))
    warned = replace(found, data=replace(found.data, warnings=("one", "two", "three", "four", "five")))
    assert rope_lines(warned)[-4:] == ["note: one", "note: two", "note: three", "note: 2 more warnings in summary.json"]
    paths = save_rope_figures(found, tmp_path)
    assert [path.name for path in paths] == ["scalings.png", "scaling-needles.png", "scaling-losses.png"]
    drawn: list[tuple[int, int]] = []

    def panel(axes: Any, scaling: int, length: int) -> None:
        drawn.append((scaling, length))
        axes.plot([0, 1], [scaling, length])

    figure = rope_matrix(found, panel, "x", "y", "Title", "Note")
    assert drawn == [(s, i) for s in range(3) for i in range(4)]
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in figure.axes}) == 1  # the same axes in all
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["2,048 tokens", "8,192 tokens", "16,384 tokens (beyond)", "32,768 tokens (beyond)"]
