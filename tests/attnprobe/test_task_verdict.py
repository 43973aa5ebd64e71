"""What a task's verdict may and may not say: no claim that other results of the same cells speak against."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from rich.cells import cell_len
from scipy import stats
from task_data import changed, make_task, only, text_of

from attnprobe.estimates import Interval
from attnprobe.multiplicity import adjust_p_values
from attnprobe.ranks import ranked_cells
from attnprobe.tasks.attention_link import in_context
from attnprobe.tasks.cell import cell_key, item_of_key
from attnprobe.tasks.outcome import Outcome
from attnprobe.tasks.task_summary import TaskSummary, task_summary
from attnprobe.tasks.task_tables import task_tables
from attnprobe.tasks.task_text import task_lines
from attnprobe.told import Table


def table_of(summary: TaskSummary, caption: str) -> Table:
    return next(table for table in task_tables(summary) if table.caption == caption)


def unseen(outcome: Outcome) -> Outcome:
    return replace(outcome, mass=None, advantage=None) if in_context(outcome) else outcome


def test_evidence_outside_the_window_is_said_to_be_there() -> None:
    data = make_task(items=6, trials=1)
    blind = changed(replace(data, needle_mass=data.needle_mass * np.nan), unseen)
    headline = task_summary(blind).verdict.headline
    assert headline.startswith("No layer sees the evidence: in every prompt it stands outside the window")
    assert headline.endswith("so it cannot be said whether the model answers worse where it looks less.")
    some = task_summary(changed(data, lambda one: unseen(one) if one.condition.get("position") == 0 else one))
    assert any("in 6 of 36 prompts no layer sees the evidence" in note for note in some.notes)
    assert not any("no layer sees" in note for note in task_summary(data).notes)


def test_baselines_alone_are_said_to_be_alone() -> None:
    alone = only(make_task(items=6, trials=1), lambda one: "baseline" in one.condition)
    assert task_summary(alone).verdict.headline.startswith("Only baselines are measured, no prompt with other text")


def wrong(outcome: Outcome, margin: float, is_cut: bool = False) -> Outcome:
    foil = None if outcome.logprob is None else min(outcome.logprob - margin, -1e-6)
    return replace(outcome, strict=0, lenient=0, foil_logprob=foil, facts={**outcome.facts, "reply_cut": is_cut})


@pytest.mark.parametrize("task", ["needle_sweep", "niah", "filler_control"])
def test_a_task_is_beyond_the_model_only_where_nothing_speaks_against_it(task: str) -> None:
    def told(items: int, change: Callable[[Outcome], Outcome]) -> str:
        return text_of(task_summary(changed(make_task(task, items=items, trials=1), change)))

    beyond = "The task is beyond the model"
    assert beyond in told(6, lambda one: wrong(one, -1.0))
    few = told(4, lambda one: wrong(one, -1.0))
    assert "4 items cannot tell whether the task is beyond the model." in few
    cut = told(6, lambda one: wrong(one, -1.0, is_cut=one.trial == 0))
    assert "replies were cut off, maybe before the answer: raise max_new_tokens" in cut
    sure = told(6, lambda one: wrong(one, 2.0 + 0.1 * int(one.item.split()[1])))
    assert "The right answer is more probable than a wrong one, by +2.25 (" in sure
    assert "the task is not beyond the model: its replies do not get to the answer" in sure
    assert not any(beyond in text for text in (few, cut, sure))


def test_an_end_with_more_attention_and_no_better_answer_is_named() -> None:
    attention, answer = (2.0, 1.0, 0.0, 0.0, 1.0, 2.0), (0.0, 0.0, 0.0, 0.0, 1.0, 2.0)
    rng = np.random.default_rng(0)

    def planted(outcome: Outcome) -> Outcome:
        place = outcome.condition.get("position")
        if place is None:
            return outcome
        noise = 0.05 * rng.normal(size=2)
        return replace(outcome, advantage=attention[place] + noise[0], logprob=-5.0 + answer[place] + noise[1])

    lines = task_summary(changed(make_task(items=8, trials=2), planted)).verdict.lines
    assert [line for line in lines if "At the " in line[:7]] == [
        "At the first position attention and answer are not shown to go together: the evidence gets more attention "
        "than in the middle, and the answer is not shown to be more probable; at the last they are."
    ]
    reverse = changed(make_task(items=8, trials=2), lambda one: swapped(planted(one)))
    assert any(
        "At the first position attention and answer are not shown to go together: the evidence is not shown to get "
        "more or less attention than in the middle, and the answer is more probable" in line
        for line in task_summary(reverse).verdict.lines
    )
    opposed = changed(make_task(items=8, trials=2), lambda one: turned(planted(one)))
    assert any(
        "At the last position attention and answer go against each other: the evidence gets less attention than in the "
        "middle, and the answer is more probable." in line
        for line in task_summary(opposed).verdict.lines
    )
    alike = changed(make_task(items=8, trials=2), followed)
    assert not any("attention and answer" in line for line in task_summary(alike).verdict.lines)


def followed(outcome: Outcome) -> Outcome:
    """The answer follows attention to the last digit."""
    return outcome if outcome.advantage is None else replace(outcome, logprob=outcome.advantage - 9.0)


def turned(outcome: Outcome) -> Outcome:
    return outcome if outcome.advantage is None else replace(outcome, advantage=-outcome.advantage)


def swapped(outcome: Outcome) -> Outcome:
    if "position" not in outcome.condition:
        return outcome
    return replace(outcome, advantage=outcome.logprob + 5.0, logprob=outcome.advantage - 5.0)


def test_position_may_explain_what_holds_over_positions_alone() -> None:
    every = tuple((layer, head) for layer in range(4) for head in range(5))
    headline = task_summary(make_task(link=0.0, items=30, heads=every)).verdict.headline
    assert headline.startswith("In part: ")
    assert headline.endswith("; so position may explain it.")


def p_of_bounds(interval: Interval) -> float:
    """p of the t behind a jackknife interval on Fisher's scale, read back from its bounds."""
    half = (np.arctanh(interval.high) - np.arctanh(interval.low)) / 2
    error = half / stats.t.ppf(0.5 + interval.level / 2, interval.n - 1)
    return 2 * stats.t.sf(abs(np.arctanh(interval.estimate)) / error, interval.n - 1)


def test_p_over_all_prompts_is_that_of_the_interval() -> None:
    summary = task_summary(make_task(items=8, link=0.1))
    for one in summary.link.overall.by_name.values():
        found = one.correlation
        assert p_of_bounds(found.within_position) == pytest.approx(found.p_value, rel=1e-9)
        assert p_of_bounds(found.within_question) == pytest.approx(found.p_within_question, rel=1e-9)
    correlation = summary.link.overall.by_name["advantage"].correlation
    over, p = correlation.within_question, summary.link.p_over_conditions
    assert p == correlation.p_within_question
    assert (p < 0.05) == (over.low > 0 or over.high < 0)
    content = summary.to_dict()["link"]
    assert content["p_over_conditions"] == p
    assert {"within_item", "by_item"} < set(content["overall"]["by_name"]["advantage"]["correlation"])
    assert "question" not in json.dumps(content)
    without = task_summary(make_task(items=4, link=0.1)).link
    assert without.overall.by_name["advantage"].correlation.within_question.low is None
    assert without.p_over_conditions is None


def test_an_interval_of_level_1_less_p_ends_at_0() -> None:
    rng = np.random.default_rng(0)
    tables = []
    for spread in range(2, 10):
        mass = rng.normal(size=30)
        tables.append(np.stack([np.arange(30), mass, mass + spread * rng.normal(size=30)], axis=1))
    p = ranked_cells(tables).p_within_question
    over = ranked_cells(tables, 1 - p).within_question
    assert min(abs(over.low), abs(over.high)) == pytest.approx(0, abs=1e-9)


def test_p_of_ranks_that_all_but_agree_is_not_read_from_bounds_that_round_to_1() -> None:
    tables = []
    for apart in (0, 0, 0, 1, 1100):  # how far apart the two answers are that change places
        answers = np.arange(1200.0)
        answers[[0, apart]] = answers[[apart, 0]]
        tables.append(np.stack([np.arange(1200), np.arange(1200), answers], axis=1))
    found = ranked_cells(tables)
    assert found.within_question.high == 1.0
    narrow = ranked_cells(tables, level=0.2)  # p is the same at every level, and these bounds are not rounded
    assert found.p_within_question == narrow.p_within_question
    assert found.p_within_question == pytest.approx(p_of_bounds(narrow.within_question), rel=1e-9)


def test_few_items_have_no_curve_beside_published_ones_and_no_dash_in_a_sentence() -> None:
    few = task_summary(make_task(items=4))
    assert "Beside published curves" not in [table.caption for table in task_tables(few)]
    assert "Beside published curves" in [table.caption for table in task_tables(task_summary(make_task(items=5)))]
    for items in (1, 2):
        summary = task_summary(make_task(items=items, trials=1))
        for sentence in (summary.verdict.headline, *summary.verdict.lines):
            assert not {"-", "-,", "-;", "-."} & set(sentence.split()), sentence


@pytest.mark.parametrize("nats", [0.0, 1e2, 1e5])  # narrow enough, too wide for the last p alone, for both ends
def test_a_p_stays_beside_its_value_in_a_wide_table(nats: float) -> None:
    def far(outcome: Outcome) -> Outcome:
        if outcome.condition.get("position") not in (0, 5):
            return outcome
        return replace(outcome, logprob=outcome.logprob - nats * (1 + int(outcome.item.split()[1])))

    lines = task_lines(task_summary(changed(make_task(items=8), far)))
    heads = [line.split() for line in lines if " less middle  " in line]
    assert sum(head.count("p") for head in heads) == 2
    assert all(head.count("middle") == head.count("p") for head in heads)
    assert max(map(cell_len, lines)) <= 80


def test_the_articles_bands_are_printed() -> None:
    note = table_of(task_summary(make_task(items=6, trials=1)), "Context rot").note
    assert "Of a gap: healthy below 5 points, watch 5 to 10, suspect 10 to 20, confirmed above;" in note
    assert "of best/worst: healthy below 1.5, suspect 1.5 to 3, confirmed above." in note


def test_losses_of_several_fillers_are_one_family_of_tests() -> None:
    summary = task_summary(make_task("filler_control", items=9, trials=1, link=0.3))
    lengths = summary.findings.lengths
    assert len(lengths) == 6
    raw = [one.curves["logprob"].per_doubling.p for one in lengths]
    assert [one.p["logprob"] for one in lengths] == pytest.approx(adjust_p_values(raw).tolist())
    assert min(one.p["logprob"] for one in lengths) >= min(1.0, 6 * min(raw)) - 1e-12
    table = table_of(summary, "Loss by length: log-probability")
    assert table.header[-1] == "items"
    assert {row[-1] for row in table.rows} == {"9"}
    heads = [line for line in task_lines(summary) if "per doubling" in line and "growth" in line]
    assert [head.split()[-1] for head in heads] == ["items", "items"]
    assert len(json.loads(json.dumps(summary.to_dict()))["findings"]["lengths"][0]["p"]) == 4


def test_a_knee_without_intervals_is_not_determined() -> None:
    summary = task_summary(make_task("niah", items=1, trials=1))
    table = table_of(summary, "Knees: how long a context may be")
    assert {row[3] for row in table.rows} == {"not determined"}
    assert any("not determined: 1 item" in line for line in summary.verdict.lines)
    assert "no knee" not in text_of(summary)
    assert any("lies" in line and "fails at" in line for line in task_lines(summary))


def test_missing_cells_are_counted_by_item() -> None:
    keys = [
        cell_key("needle_sweep", item, {"position": 0}, trial) for item, trial in (("a/b", 0), ("a/b", 1), ("c", 0))
    ]
    assert [item_of_key(key) for key in keys] == ["a/b", "a/b", "c"]
    summary = task_summary(replace(make_task(items=6, trials=1), missing=dict.fromkeys(keys, "not measured yet")))
    assert "missing: 3 cells, of a/b 2, c 1; e.g. needle_sweep/a/b/position=0/0: not measured yet" in text_of(summary)


@cache
def link_note() -> str:
    return table_of(task_summary(make_task(items=6, trials=2)), "Attention and answer: rank correlations").note


@pytest.mark.parametrize("head", ["At one place: ", "over an item's: ", "over all: "])
def test_heads_of_columns_are_explained(head: str) -> None:
    assert head in link_note()
