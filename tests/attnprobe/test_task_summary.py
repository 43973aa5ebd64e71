"""Summaries of tasks: what was planted is found, in words, tables and JSON; what cannot be said is said."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from scipy import stats
from task_data import HEADS, LAYERS, changed, make_task, only, text_of

from attnprobe.errors import InputError
from attnprobe.ranks import RankCorrelation
from attnprobe.report.link_figure import link_figure
from attnprobe.tasks.accuracy import EndContrast
from attnprobe.tasks.attention_link import AttentionLink, attention_link, in_context, state
from attnprobe.tasks.baselines import baselines, item_means
from attnprobe.tasks.filler_findings import FillerFindings, block_prices, filler_findings
from attnprobe.tasks.held_out_heads import held_out_heads
from attnprobe.tasks.knee import Knee
from attnprobe.tasks.knee_text import knee_text
from attnprobe.tasks.matrix_findings import MatrixFindings, matrix
from attnprobe.tasks.outcome import Outcome
from attnprobe.tasks.sweep_findings import SweepFindings, sweep_findings
from attnprobe.tasks.task_data import TASKS
from attnprobe.tasks.task_summary import TaskSummary, task_summary
from attnprobe.tasks.task_tables import task_tables
from attnprobe.tasks.task_text import task_lines
from attnprobe.tasks.task_verdict import task_verdict


@cache
def summary_of(task: str = "needle_sweep", **options: Any) -> TaskSummary:
    return task_summary(make_task(task, **options))


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_json_a_table_and_lines_that_fit_a_terminal(task: str) -> None:
    data = make_task(task, items=6, trials=2)
    summary = task_summary(data)
    content = json.loads(json.dumps(summary.to_dict(), allow_nan=False))
    assert (content["task"], content["sizes"]["items"]) == (task, 6)
    rows = summary.table()
    assert len(rows) == len(data.outcomes)
    assert rows[1]["logprob"] == data.outcomes[1].logprob
    assert rows[1]["margin"] == pytest.approx(data.outcomes[1].logprob - data.outcomes[1].foil_logprob)
    assert all(type(row["strict"]) is int for row in rows)
    for unicode in (True, False):
        lines = task_lines(summary, unicode)
        assert max(map(cell_len, lines)) <= 80
        assert not any("…" in line for line in lines)  # nothing is cut
        assert unicode or "\n".join(lines).isascii()


@pytest.mark.parametrize("task", TASKS)
def test_a_planted_link_is_found_at_one_and_the_same_place(task: str) -> None:
    summary = summary_of(task)
    assert summary.link.at_one_condition == "together"
    assert summary.verdict.headline.startswith("Yes: also at one and the same ")
    assert "no effect" in summary.verdict.lines[-1]


def test_the_other_way_round_and_by_position_alone_are_told_apart() -> None:
    every_head = tuple((layer, head) for layer in LAYERS for head in range(HEADS))
    opposed = summary_of(link=-1.0, heads=every_head)
    assert "other way round" in opposed.verdict.headline
    by_position = summary_of(link=0.0, items=30, heads=every_head)
    assert by_position.link.over_conditions == "together"
    assert by_position.link.at_one_condition in ("unclear", "unrelated")
    assert by_position.verdict.headline.startswith("In part: ")


def test_the_link_has_no_part_for_baselines() -> None:
    data = make_task(items=6)
    alone = only(data, in_context)
    assert json.dumps(attention_link(data).to_dict()) == json.dumps(attention_link(alone).to_dict())
    # The oracle's mass is that of the only document: with it, the pooled correlation would be another.
    found = attention_link(data).overall.by_name["mass"].correlation.pooled.estimate
    masses, answers = zip(*((o.mass, o.logprob) for o in alone.outcomes), strict=True)
    assert found == pytest.approx(stats.spearmanr(masses, answers).statistic, abs=1e-12)


def test_layers_that_were_planted_stand_out() -> None:
    layers = summary_of().link.layers.by_name
    p = [layers[f"layer {layer}"].p_adjusted for layer in LAYERS]
    assert [value < 0.05 for value in p] == [False, True, True, False]


def test_retrieval_heads_are_chosen_on_other_items_and_judged_on_held_out_ones() -> None:
    data = make_task(items=12, heads=((3, 4),))
    kept = [place for place, outcome in enumerate(data.outcomes) if in_context(outcome)]
    outcomes = [data.outcomes[place] for place in kept]
    found = held_out_heads(outcomes, data.needle_advantage[kept], data.layers)
    assert found.heads == ((3, 4),)
    assert sorted((*found.chosen_on, *found.held_out)) == sorted(data.items)
    assert found.chosen.correlation.n_cells == sum(outcome.item in found.held_out for outcome in outcomes)
    assert found.chosen.correlation.within_position.low > 0.5
    assert abs(found.others.correlation.within_position.estimate) < 0.25
    # Noise on the items to choose on must not flatter the others: pure noise there finds nothing.
    noise = np.random.default_rng(1).normal(size=(len(kept), len(LAYERS), HEADS))
    chance = held_out_heads(outcomes, noise, data.layers).chosen.correlation.within_position
    assert abs(chance.estimate) < 0.25
    with pytest.raises(InputError, match="no head has an advantage above 0"):
        held_out_heads(outcomes, -np.abs(noise) - 1, data.layers)
    with pytest.raises(InputError, match="choosing heads takes two halves"):
        held_out_heads(outcomes, np.full_like(noise, np.nan), data.layers)


def test_one_trial_an_item_is_no_evidence_beyond_position() -> None:
    summary = summary_of(trials=1)
    assert summary.link.at_one_condition == "untested"
    assert "There is no interval: an item has one prompt there." in text_of(summary)
    assert not summary.verdict.headline.startswith("Yes")
    assert any(
        line.startswith("One trial an item: attention and position are not told") for line in summary.verdict.lines
    )


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ((0.05, 0.4), "together"),
        ((-0.4, -0.05), "opposed"),
        ((-0.09, 0.09), "unrelated"),
        ((0.01, 0.08), "unrelated"),
        ((-0.2, 0.3), "unclear"),
        ((None, None), "untested"),
    ],
)
def test_states_of_a_correlation(bounds: tuple[float | None, float | None], said: str) -> None:
    interval = summary_of().link.overall.by_name["mass"].correlation.pooled
    assert state(replace(interval, low=bounds[0], high=bounds[1])) == said


def test_behaviour_alone_says_so_and_keeps_the_rest() -> None:
    summary = summary_of(behaviour_only=True)
    assert summary.link is None
    assert "not measured together" in summary.verdict.headline
    assert set(summary.findings.means) == {"logprob", "margin"}
    assert "Log-probability: first less middle" in text_of(summary)
    assert "advantage" not in text_of(summary)


def test_heads_judged_on_few_items_are_no_finding() -> None:
    few, enough = summary_of(items=6, trials=2), summary_of(items=10, trials=2)
    assert len(few.link.heads.held_out) == 3
    assert not any("chosen on other items" in line for line in few.verdict.lines)
    assert "chosen heads" not in text_of(few)
    assert "3 items on which they were not chosen cannot tell how they go with the answer (5 are needed)" in text_of(
        few
    )
    assert any("chosen on other items" in line for line in enough.verdict.lines)
    assert "on the other 5." in text_of(enough)
    drawn = [[text.get_text() for text in link_figure(one).axes[0].get_legend().texts] for one in (few, enough)]
    assert [any("chosen heads" in name for name in names) for names in drawn] == [False, True]


def test_few_items_have_no_intervals_and_it_is_said() -> None:
    summary = summary_of(items=4, trials=1)
    assert "With 4 items there are no intervals (5 are needed) and no sign-flip tests (6)" in text_of(summary)
    assert "It cannot be told" in summary.verdict.headline
    five = text_of(summary_of(items=5, trials=1))
    assert "sign-flip tests are not made (6 are needed)" in five
    assert "not tested" in five
    assert "nats, not tested" in five
    assert "nats, not told apart" not in five
    assert "sign-flip tests cannot give a p below 0.03" in text_of(summary_of(items=6, trials=1))
    assert "sign-flip tests cannot give a p below 0.0001" in text_of(summary_of(items=20, trials=1))


def test_a_task_beyond_the_model_gets_no_healthy_gap() -> None:
    data = changed(make_task(trials=1), lambda outcome: replace(outcome, strict=0, lenient=0))
    summary = task_summary(data)
    assert "the task is beyond the model" in text_of(summary).lower()
    assert "healthy" not in text_of(summary)
    assert "Context rot" not in [table.caption for table in task_tables(summary)]


@pytest.mark.parametrize("task", ["niah", "filler_control"])
def test_no_loss_is_told_of_an_accuracy_that_there_is_not(task: str) -> None:
    data = changed(make_task(task, items=6, trials=1), lambda outcome: replace(outcome, strict=0, lenient=0))
    summary = task_summary(data)
    assert "the task is beyond the model" in text_of(summary).lower()
    (loss,) = [table for table in task_tables(summary) if table.caption.startswith("Loss by length")]
    assert not any("strict" in cell or "lenient" in cell for row in loss.rows for cell in (loss.caption, *row))
    assert len(loss.rows) == {"niah": 2, "filler_control": 6}[task]


def test_positions_have_the_means_of_their_items() -> None:
    data = make_task(items=6, trials=2)
    findings = task_summary(data).findings
    assert isinstance(findings, SweepFindings)
    assert (findings.positions, findings.middle, findings.documents) == (tuple(range(6)), (2, 3), 6)
    at = [outcome for outcome in data.outcomes if outcome.condition.get("position") == 2]
    assert findings.accuracy["strict"].cells[2].accuracy == pytest.approx(np.mean([one.strict for one in at]))
    assert findings.means["mass"].band.estimate[2] == pytest.approx(np.mean([one.mass for one in at]))
    rest = [outcome for outcome in data.outcomes if outcome.condition.get("position") in (2, 3)]
    context, closed, _ = findings.baselines
    assert context.values["logprob"].estimate == pytest.approx(np.mean([one.logprob for one in rest]))
    alone = {one.item: one.logprob for one in data.outcomes if one.condition.get("baseline") == "closed_book"}
    gains = [np.mean([one.logprob for one in rest if one.item == item]) - alone[item] for item in data.items]
    expected = stats.ttest_1samp(gains, 0).confidence_interval()
    found = closed.context_less["logprob"]
    assert (found.estimate, found.low, found.high) == pytest.approx((np.mean(gains), *expected))


def test_published_curves_stand_beside_the_positions_that_were_tested() -> None:
    outcomes = [
        Outcome(f"item {i}", 0, {"position": place}, lenient=int(i < hits), facts={"n_documents": 20})
        for place, hits in zip((0, 4, 9, 14, 19), (10, 6, 5, 6, 9), strict=True)
        for i in range(10)
    ]
    row = sweep_findings(outcomes).published[0]
    assert row.yours == (1.0, 0.6, 0.5, 0.6, 0.9)
    assert row.tested == (True,) * 5
    assert row.not_comparable == ("scored by lenient, not best_subspan_em",)
    mixed = [replace(one, facts={"n_documents": 20 + i % 2}) for i, one in enumerate(outcomes)]
    assert sweep_findings(mixed).published == ()


def test_one_trial_an_item_is_tested_in_pairs() -> None:
    right = {0: 14, 1: 6, 2: 4, 3: 4, 4: 6, 5: 14}  # of 14 items; in the middle the first ones alone

    def scored(outcome: Outcome) -> Outcome:
        place = outcome.condition.get("position")
        return outcome if place is None else replace(outcome, strict=int(int(outcome.item.split()[1]) < right[place]))

    summary = task_summary(changed(make_task(items=14, trials=1), scored))
    pair = summary.findings.accuracy["strict"].paired.pairs[0]
    assert (pair.first, pair.second, pair.only_first, pair.only_second) == (0, 2, 10, 0)
    assert pair.p == pytest.approx(2 / 2**10)
    text = text_of(summary)
    assert "strict: Cochran's Q" in text.replace("Strict", "strict")
    assert "McNemar 0 against 2: right in one alone 10 to 0, p = 0.008 (smallest of 4, Holm)" in text


def test_documents_that_do_harm_are_called_so() -> None:
    def harmed(outcome: Outcome) -> Outcome:
        is_closed = outcome.condition.get("baseline") == "closed_book"
        return replace(outcome, logprob=-0.1) if is_closed else outcome

    data = make_task(items=8, trials=1)
    assert "Documents do harm there." in text_of(task_summary(changed(data, harmed)))
    assert "do harm" not in text_of(task_summary(data))


def test_matrices_hold_the_means_and_leave_items_without_a_cell_out() -> None:
    data = make_task("niah", items=6, trials=2)
    findings = task_summary(data).findings
    assert isinstance(findings, MatrixFindings)
    strict = findings.matrices["strict"]
    assert (strict.lengths, strict.depths, strict.n) == ((500, 1000, 2000), (0.0, 0.5, 1.0), 6)
    at = [one for one in data.outcomes if one.condition == {"length": 1000, "depth": 0.5}]
    assert strict.values[1, 1] == pytest.approx(np.mean([one.strict for one in at]))
    logprob = findings.matrices["logprob"]
    assert logprob.values.mean() == pytest.approx(0, abs=1e-12)
    own = {
        item: np.mean([one.logprob for one in data.outcomes if one.item == item and "depth" in one.condition])
        for item in data.items
    }
    assert logprob.values[1, 1] == pytest.approx(np.mean([one.logprob - own[one.item] for one in at]))
    short = [one for one in data.outcomes if not (one.item == "item 0" and one.condition == at[0].condition)]
    for metric in ("logprob", "strict"):
        less = matrix(short, metric)
        full = matrix([one for one in data.outcomes if one.item != "item 0"], metric)
        assert less.n == full.n == 5
        assert less.values == pytest.approx(full.values)
    half = [
        one
        for one in data.outcomes
        if not (one.item == "item 0" and one.trial == 1 and one.condition == at[0].condition)
    ]
    assert matrix(half, "strict").n == 6
    assert matrix(half, "strict").note == (
        "8 cells of the other items left out, as what they would be compared with is missing"
    )
    with pytest.raises(InputError, match="no outcome has lenient"):
        matrix([replace(one, lenient=None) for one in data.outcomes], "lenient")


def test_wide_matrices_are_told_in_blocks() -> None:
    lengths, depths = [1000 * n for n in range(1, 13)], [n / 12 for n in range(13)]
    outcomes = tuple(
        Outcome(f"item {i}", 0, {"length": length, "depth": depth}, strict=int(length < 6500), facts={})
        for i in range(5)
        for length in lengths
        for depth in depths
    )
    data = replace(make_task("niah", items=2, behaviour_only=True), outcomes=outcomes)
    lines = task_lines(task_summary(data))
    assert max(map(cell_len, lines)) <= 80
    heads = [line.split() for line in lines if line.split()[:1] == ["depth"] and "," in line]
    assert [name for head in heads for name in head if name != "depth"] == [f"{length:,}" for length in lengths]
    assert not any("…" in line for line in lines)


def test_knees_and_loss_by_length_are_in_words() -> None:
    text = text_of(summary_of("niah", items=24, trials=1, link=0.1))
    assert re.search(r"Per doubling of the prompt log-probability lost \+0\.\d\d", text)
    assert "Length knee (log-probability at the middle depths at most 0.69 nats below that of the shortest" in text
    assert "shown to fail at 2,000 tokens" in text  # planted: 1 nat lost from 500 to 2,000
    assert "Knees: how long a context may be" in text
    one_length = only(make_task("niah"), lambda one: one.condition.get("length") in (500, None))
    assert "No knee: the lengths are 500; a knee needs two or more" in text_of(task_summary(one_length))


def test_what_filler_costs_adds_up_and_is_priced() -> None:
    data = make_task("filler_control", items=12, link=0.0)
    findings = task_summary(data).findings
    assert isinstance(findings, FillerFindings)
    none = findings.cells[0]
    assert (none.filler, none.loss) == ("none", {})
    for loss in findings.decompositions["logprob"].losses:
        cell = next(
            c
            for c in findings.cells
            if (c.filler, c.placement, c.length) == ("same_domain", loss.placement, loss.length)
        )
        total = sum(one.loss.estimate for one in loss.components)
        assert total == pytest.approx(loss.total.estimate)
        assert total == pytest.approx(cell.loss["logprob"].estimate)
        planted = (2.0 + 0.5 * math.log2(loss.length / 500) - 0.5 + 1.0, 0.25, 0.75)  # none: a nat better than 0
        assert [one.loss.estimate for one in loss.components] == pytest.approx((planted[0] - 1.0, 0.25, 0.75), abs=0.35)
    own = next(one for one in findings.lengths if (one.filler, one.placement) == ("prose", "after"))
    assert own.curves["logprob"].per_doubling.loss.estimate == pytest.approx(0.5, abs=0.15)
    assert [(price.at, price.added) for price in own.prices["logprob"]] == [(500, 500), (1000, 500)]
    steps = own.curves["logprob"].steps
    assert own.prices["logprob"][0].loss.estimate == pytest.approx(steps[0].loss.estimate)  # 500 to 1,000: a doubling
    half = own.prices["logprob"][1].loss.estimate
    assert half == pytest.approx(math.log2(1.5) * steps[1].loss.estimate)


def test_a_control_without_a_kind_of_filler_says_what_is_missing() -> None:
    data = make_task("filler_control", items=6, trials=1)
    few = filler_findings([one for one in data.outcomes if one.condition.get("filler") != "repeated"])
    assert few.decompositions == {}
    assert few.notes == ("not taken apart, as there is no filler of the kind repeated",)
    unfinished = filler_findings([one for one in data.outcomes if one.condition.get("filler") != "none"])
    assert unfinished.notes[0].startswith("nothing is compared yet: the prompts without filler are not measured")
    renamed = {"prose": "file:a.txt", "repeated": "repeated:a.txt"}
    files = [
        replace(
            one, condition={**one.condition, "filler": renamed.get(one.condition["filler"], one.condition["filler"])}
        )
        for one in data.outcomes
        if "filler" in one.condition
    ]
    assert json.dumps(filler_findings(files).decompositions["logprob"].to_dict()) == json.dumps(
        filler_findings(data.outcomes).decompositions["logprob"].to_dict()
    )


def test_baselines_of_several_trials_are_clustered_and_may_be_absent() -> None:
    outcomes = [Outcome(f"item {i}", t, {"position": 0}, strict=int(i < 3)) for i in range(6) for t in range(4)]
    assert baselines(outcomes, lambda one: True) == ()
    closed = [Outcome(f"item {i}", 0, {"baseline": "closed_book"}, strict=0) for i in range(6)]
    context, alone = baselines([*outcomes, *closed], lambda one: "position" in one.condition)
    assert context.values["strict"].estimate == 0.5
    # Trials of an item agree fully, so 24 of them are worth the 6 items.
    assert context.values["strict"].high - context.values["strict"].low > 0.6
    assert set(alone.values) == {"strict"}


def test_nothing_finished_and_missing_cells() -> None:
    data = make_task(items=6, trials=1)
    unmeasured = {"needle_sweep/ferry/position=0/0": "not measured yet"}
    empty = replace(only(data, lambda one: False), missing=unmeasured)
    with pytest.raises(InputError, match="no cell of needle_sweep on tiny is finished; the first, needle_sweep/ferry"):
        task_summary(empty)
    some = task_summary(replace(data, missing={"needle_sweep/ferry/position=0/0": "too long \x1b[31m"}))
    assert "missing: 1 cell, of ferry 1; e.g. needle_sweep/ferry/position=0/0: too long" in text_of(some)
    assert "\x1b" not in text_of(some)
    assert "1 cell missing" in text_of(some)


def test_two_positions_baselines_only_and_replies_only_are_no_crash() -> None:
    two = text_of(summary_of(places=2, items=6))
    assert "Ends against the middle" not in two
    assert "By position of the needle" in two
    data = make_task(items=6, trials=1)
    replies = changed(data, lambda o: replace(o, logprob=None, foil_logprob=None))
    assert task_summary(replies).link.metric == "strict"
    silent = task_summary(changed(data, lambda o: replace(o, strict=None, lenient=None)))
    assert silent.findings.accuracy == {}
    assert "strict" not in " ".join(" ".join(table.header) for table in task_tables(silent))
    alone = only(data, lambda one: "baseline" in one.condition)
    assert "closed book" in text_of(task_summary(alone))


def test_prices_stay_inside_what_was_tested() -> None:
    curve = summary_of("filler_control", items=6).findings.lengths[0].curves["logprob"]
    uneven = replace(curve, tokens=np.array([500.4, 999.6, 2000.2]))
    prices = block_prices(uneven)
    assert [(price.at, price.added) for price in prices] == [(501, 500), (1000, 500)]


def test_baselines_average_what_all_conditions_have() -> None:
    """An item that lacks the hardest place would look better than it is."""
    value = {0: -1.0, 1: -5.0}
    outcomes = [
        Outcome(f"item {i}", t, {"position": k}, logprob=value[k]) for i in range(6) for t in range(2) for k in (0, 1)
    ]
    short = [
        one for one in outcomes if not (one.item == "item 0" and one.trial == 1 and one.condition["position"] == 1)
    ]
    assert item_means(short, "logprob") == {f"item {i}": -3.0 for i in range(6)}
    none = [one for one in outcomes if not (one.item == "item 0" and one.condition["position"] == 1)]
    assert "item 0" not in item_means(none, "logprob")


def test_a_loss_to_filler_pairs_the_same_trials() -> None:
    level = {0: -1.0, 1: -9.0}  # trials differ by far more than filler costs
    none = {"filler": "none", "placement": None, "length": None}
    filled = {"filler": "prose", "placement": "after", "length": 500}
    outcomes = [
        Outcome(f"item {i}", t, condition, logprob=level[t] - (condition is filled))
        for i in range(6)
        for t in range(2)
        for condition in (none, filled)
        if not (i < 3 and t == 1 and condition is filled)
    ]
    assert filler_findings(outcomes).cells[1].loss["logprob"].estimate == pytest.approx(1.0)


def test_heads_are_chosen_on_one_half_and_judged_on_the_other() -> None:
    """Head 0 looks at the evidence in the first half alone, head 1 in the other alone."""
    data = make_task(items=12)
    kept = [place for place, outcome in enumerate(data.outcomes) if in_context(outcome)]
    outcomes = [data.outcomes[place] for place in kept]
    first = held_out_heads(outcomes, np.ones((len(kept), 1, 2)), (0,)).chosen_on  # the halves depend on the seed alone
    is_first = np.array([outcome.item in first for outcome in outcomes])
    advantage = np.where(is_first[:, None], [3.0, -3.0], [-3.0, 3.0])[:, None, :]
    found = held_out_heads(outcomes, advantage, (0,), n_heads=1)
    assert (found.chosen_on, found.heads) == (first, ((0, 0),))


def test_the_headline_goes_by_the_interval_that_it_shows() -> None:
    found = summary_of().link.overall.by_name["advantage"].correlation
    low = replace(found.within_position, low=0.05, estimate=0.35, high=0.6)
    link = with_headline(summary_of().link, replace(found, within_position=low, p_value=0.03))
    assert link.at_one_condition == "together"
    across = replace(low, low=-0.05)
    assert with_headline(link, replace(found, within_position=across, p_value=0.07)).at_one_condition == "unclear"


def with_headline(link: AttentionLink, correlation: RankCorrelation) -> AttentionLink:
    one = replace(link.overall.by_name[link.predictor], correlation=correlation)
    return replace(link, overall=replace(link.overall, by_name={**link.overall.by_name, link.predictor: one}))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_perfect_link_is_found_without_an_interval(sign: int) -> None:
    data = make_task(items=8)
    change = {i: sign * 0.5 * t for i, t in enumerate(one.trial for one in data.outcomes)}
    outcomes = tuple(
        replace(one, logprob=-5.0 + change[i], advantage=None if one.advantage is None else float(one.trial))
        for i, one in enumerate(data.outcomes)
    )
    summary = task_summary(replace(data, outcomes=outcomes))
    correlation = summary.link.overall.by_name["advantage"].correlation
    assert correlation.within_position.low is None
    assert correlation.p_value == pytest.approx(2 / 2**8)
    assert summary.verdict.headline.startswith("Yes: also" if sign > 0 else "No, the other way round")
    assert "p is that of items' signs" in text_of(summary)


def test_the_strongest_layer_may_be_negative_and_its_p_is_adjusted() -> None:
    opposed = summary_of(link=-1.0, heads=tuple((1, head) for head in range(HEADS)))
    note = next(table for table in task_tables(opposed) if table.caption.startswith("Attention and answer")).note
    layer = opposed.link.layers.by_name["layer 1"]
    assert f"is layer 1: {layer.correlation.within_position.estimate:.2f}, adjusted p" in note


def test_the_longest_filler_is_the_one_of_most_tokens_whatever_the_order() -> None:
    data = make_task("filler_control", items=6, trials=1)
    backwards = replace(
        data,
        outcomes=data.outcomes[::-1],
        needle_mass=data.needle_mass[::-1],
        needle_advantage=data.needle_advantage[::-1],
        document_mass=data.document_mass[::-1],
    )
    for lines in (task_summary(data).verdict.lines, task_summary(backwards).verdict.lines):
        assert sum("2000 tokens" in line for line in lines) == 2
        assert not any("500 tokens" in line for line in lines)


def test_the_audit_is_of_the_longest_prompts() -> None:
    summary = summary_of("filler_control", items=6, trials=1)
    audit = next(table for table in task_tables(summary) if table.caption == "Token audit")
    assert {row[2:4] for row in audit.rows} == {("2,000", "1,920")}


@pytest.mark.parametrize(
    ("contrast", "said"),
    [
        ((0.5, 0.1, 0.9, 0.01), "higher"),
        ((-0.5, -0.9, -0.1, 0.01), "lower"),
        ((0.5, 0.1, 0.9, 0.2), "not told apart"),
        ((0.5, -0.1, 0.9, 0.01), "not told apart"),
        ((0.5, 0.1, 0.9, None), "not tested"),
    ],
)
def test_an_end_is_higher_only_where_interval_and_test_say_so(
    contrast: tuple[float, float, float, float | None], said: str
) -> None:
    estimate, low, high, p = contrast
    summary = summary_of(items=6, trials=1)
    mean = summary.findings.means["logprob"]
    interval = replace(mean.head_minus_middle.interval, estimate=estimate, low=low, high=high)
    changed_mean = replace(mean, head_minus_middle=EndContrast(interval, p))
    findings = replace(summary.findings, means={"logprob": changed_mean})
    line = task_verdict(make_task(items=6, trials=1), findings, None, summary.sizes).lines[0]
    assert line.split("last less")[0].rstrip(", ").endswith(said)


def test_chance_is_the_threshold_and_not_the_median() -> None:
    summary = summary_of(items=8, trials=1)
    table = next(table for table in task_tables(summary) if table.caption == "Context rot")
    gap = summary.findings.accuracy["strict"].gap_max
    assert gap.threshold > gap.null_median + 0.01
    assert table.rows[0][3] == f"{100 * gap.threshold:.0f}"


def test_knees_in_words_say_on_which_side_they_lie() -> None:
    base = Knee("length", "strict", 0.9, None, None, None, None, (), 9, ())
    assert knee_text(replace(base, censored="below", before=2000.0)).startswith("below 2,000 tokens")
    assert knee_text(replace(base, censored="above", length=4000.0)).startswith("4,000 tokens or above")
    between = replace(base, length=1000.0, before=2000.0, shown_to_fail=4000.0)
    assert knee_text(between) == (
        "from 1,000, which is shown to hold, to 2,000 tokens, which is not; shown to fail at 4,000 tokens"
    )


def test_what_is_odd_about_prompts_and_replies_reaches_the_reader() -> None:
    def odd(outcome: Outcome) -> Outcome:
        if outcome.item != "item 0" or outcome.condition.get("length") != 500:
            return outcome
        flagged = {"verdict": "flag", "findings": [{"kind": "date", "verdict": "flag", "count": 1, "texts": []}]}
        facts = {
            "length": 503,
            "filler_check": flagged,
            "filler_repeated_sentences": 4,
            "server_tokens": 512,
            "reply_cut": True,
            "reply": " ",
        }
        return replace(outcome, facts={**outcome.facts, **facts})

    summary = task_summary(changed(make_task("niah", items=6, trials=1), odd))
    for said in (
        "3 of 3 prompts miss the length asked for, by 3 tokens at most",
        "the filler of 3 of 3 prompts could be taken for the task: date in 3",
        "the filler of 3 of 3 prompts repeats sentences, 4 at most",
        "other tokens than the tokenizer that lengths are of, in 3 of 3 prompts, by 12 at most",
        "3 of 3 replies were cut off at the longest reply allowed",
        "3 of 66 replies are blank",
    ):
        assert any(said in note for note in summary.notes), said
        assert said in text_of(summary).replace("The filler", "the filler").replace("The server", "the server")
    assert summary.to_dict()["notes"] == list(summary.notes)
    few = task_summary(make_task("niah", items=4, trials=1))
    assert any("length knee" in note and "4 items; an interval needs" in note for note in few.notes)
    assert task_summary(make_task(items=6, trials=1)).notes == ()


def test_statements_that_conflict_win_or_lose_and_none_is_right() -> None:
    def conflicting(outcome: Outcome) -> Outcome:
        if "depth" not in outcome.condition:
            return outcome
        margin = {0.0: 2.0, 0.5: 0.5, 1.0: -1.0}[outcome.condition["depth"]] + (outcome.item == "item 0")
        facts = {**outcome.facts, "mode": "conflicting"}
        return replace(outcome, foil_logprob=-40.0, logprob=-40.0 + margin, facts=facts)

    summary = task_summary(changed(make_task("niah", items=8, trials=2), conflicting))
    found = summary.findings.contests
    assert [one.depth for one in found] == [0.0, 0.5, 1.0]
    assert [one.wins.estimate for one in found] == [1.0, 1.0, 0.0]
    assert [one.margin.estimate for one in found] == pytest.approx([2.125, 0.625, -0.875])
    assert (summary.findings.knees, summary.findings.by_length) == ({}, {})
    text = text_of(summary)
    assert "Which of two statements wins" in text
    assert "Two statements conflict; the gold one wins in 100 % of prompts at depth 0 (by +2.12" in text
    for word in ("right answer is less probable", "replies are right", "answers worse", "knee ("):
        assert word not in text
    assert summary_of("niah", items=6, trials=1).findings.contests == ()
