"""``attnprobe heads`` from prompts to table and picture, and a planted head through all of it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from planted_models import retrieval_lm
from tiny_folder import save_tiny_model, write_prompts
from tiny_models import tiny_model
from toy_tokenizers import bytelevel
from typer.testing import CliRunner, Result

import attnprobe as ap
from attnprobe import heads_cells
from attnprobe.cli_heads import heads
from attnprobe.heads_cells import random_orders
from attnprobe.heads_command import measure_heads
from attnprobe.heads_options import SCORES, HeadsOptions
from attnprobe.heads_selection import select
from attnprobe.heads_text import heads_lines
from attnprobe.readers import PromptRecord
from attnprobe.secondary_sinks import SecondarySink

WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "islet", "jetty", "knoll", "ledge")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("model")))


def records(n_questions: int) -> list[dict[str, Any]]:
    """Questions whose answer is a word of their second document."""
    return [
        {
            "id": f"q{number}",
            "documents": [f"A dull page, {number}.", f"Take the {WORDS[number]} road. It is long.", "Nothing here."],
            "question": f"Which road, {number}?",
            "answer": WORDS[number],
        }
        for number in range(n_questions)
    ]


def run(*arguments: Any) -> Result:
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(heads)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def counted(monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None) -> list[str]:
    """Ids of the prompts that are measured from now on; interrupts after so many of them."""
    measured: list[str] = []
    original: Callable[..., ap.Run] = heads_cells.measure

    def measure(lm: Any, prompt: ap.Prompt, **options: Any) -> ap.Run:
        if len(measured) == stop_after:
            raise KeyboardInterrupt
        measured.append(str(prompt.id))
        return original(lm, prompt, **options)

    monkeypatch.setattr(heads_cells, "measure", measure)
    return measured


def test_forced_answers_from_prompts_to_picture(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", records(12))
    out = tmp_path / "out"
    arguments = (prompts, "-m", model, "--out", out, "--answers", "file", "--orders", "2", "--no-sinks", "--top", "4")
    measured = counted(monkeypatch, stop_after=5)
    stopped = run(*arguments)
    assert stopped.exit_code == 130, stopped.output
    assert f"interrupted: every finished cell is kept in {out}" in stopped.stderr
    monkeypatch.undo()
    rest = counted(monkeypatch)
    result = run(*arguments, "--by", "in_needle")
    assert result.exit_code == 0, result.output
    assert (len(measured), len(rest)) == (5, 19)  # 12 questions x 2 orders, none twice
    lines = result.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    text = " ".join(lines)
    assert "12 questions x 2 random orders; needle: the answer's words in the gold document." in text
    assert "(6 and 6 questions)" in text
    for column in ("in_needle: ", "sink: ", "locality: ", "Brackets: ", "p: "):
        assert column in text
    found = json.loads((out / "heads.json").read_text())
    assert found["selection"]["by"] == "in_needle"
    assert [q["recalled"] for q in found["questions"]] == [2] * 12
    with (out / "heads.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(int(row["layer"]), int(row["head"])) for row in table] == [(x, y) for x in range(3) for y in range(4)]
    chosen = [row for row in table if row["chosen"] == "True"]
    assert len(chosen) == len(found["selection"]["heads"])
    for row in table:
        assert 0 <= float(row["sink"]) <= 1
        assert (row["p"] == "") is (row["chosen"] == "False")
    assert (out / "heads.png").read_bytes().startswith(b"\x89PNG")

    rest.clear()
    again = run(*arguments, "--by", "sink", "--json", "-q")
    assert again.exit_code == 0, again.output
    assert rest == []
    assert again.stderr == ""
    content = json.loads(again.stdout)
    with (out / "heads.csv").open() as file:
        table = list(csv.DictReader(file))
    best = max(table, key=lambda row: float(row["chosen_on"] or 0))
    first = content["selection"]["heads"][0]
    assert (first["layer"], first["head"]) == (int(best["layer"]), int(best["head"]))
    halves = float(best["chosen_on"]) + float(best["held_out"])
    assert float(best["sink"]) == pytest.approx(halves / 2, rel=1e-4)
    assert len(content["selection"]["heads"]) == 4

    other = run(*arguments, "--needle", "document")
    assert other.exit_code == 2
    assert "options" in other.stderr or "config" in other.stderr


def test_answers_that_recall_nothing_leave_no_heads(model: str, tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", records(2))
    arguments = (prompts, "-m", model, "--out", tmp_path / "out", "--orders", "1", "--max-new-tokens", "3", "-q")
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "Answers are the model's own; 0 of 2 recall the needle" in text
    assert "no question has a defined retrieval score: no answer recalls its needle" in text
    assert (tmp_path / "out" / "heads.png").exists()
    by_sink = run(*arguments, "--by", "sink")
    assert "0 questions" not in by_sink.stdout
    assert "1 question held out; intervals and p values need at least 5" in by_sink.stdout


def test_the_planted_head_through_everything(tmp_path: Path) -> None:
    planted = retrieval_lm()
    asked = [PromptRecord(replace(planted.prompt, id=f"q{i}"), (planted.answer,), (), f"line {i}") for i in range(10)]
    options = HeadsOptions(needle="answer", orders=2, max_new_tokens=5, n_heads=3)
    result = measure_heads(planted.lm, asked, options, tmp_path)
    assert result is not None
    assert result.scores.n_recalled.tolist() == [2] * 10
    wanted = np.zeros((3, 4))
    wanted[planted.head], wanted[planted.gazing] = 1, 0.2
    np.testing.assert_allclose(result.scores.retrieval, np.broadcast_to(wanted, (10, 3, 4)), atol=1e-6)
    assert [(one.layer, one.head) for one in result.selection.heads] == [planted.head, planted.gazing]
    best = result.selection.heads[0]
    assert best.held_out.estimate == pytest.approx(1)
    assert best.p is not None
    assert best.p < 1e-4
    assert result.answers["q3"] == planted.answer


def test_few_questions_are_named_and_promise_no_brackets(tmp_path: Path) -> None:
    planted = retrieval_lm()
    prompts = [replace(planted.prompt, id=f"q{i}") for i in range(6)]
    asked = [PromptRecord(prompt, (planted.answer,), (), f"line {i}") for i, prompt in enumerate(prompts)]
    options = HeadsOptions(needle="answer", orders=1, max_new_tokens=5, n_heads=2)
    result = measure_heads(planted.lm, asked, options, tmp_path)
    assert result is not None
    recalled = np.array([0, 1, 1, 0, 1, 1])
    retrieval = np.where(recalled[:, None, None] > 0, result.scores.retrieval, np.nan)
    scores = replace(result.scores, retrieval=retrieval, n_recalled=recalled)
    chosen = select(scores, n_heads=2)
    text = " ".join(heads_lines(replace(result, scores=scores, selection=chosen)))
    assert "without a retrieval score: 2 of 6 questions, as no answer of theirs recalls the needle: q0, q3" in text
    assert "2 questions held out; intervals and p values need at least 5" in text
    assert "in_needle: " in text
    assert "p: against heads" not in text
    assert ("Brackets: " in text) is ("[" in text)


def test_models_and_numbers_of_heads_are_refused_before_any_cell(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = counted(monkeypatch)
    prompts = write_prompts(tmp_path / "prompts.jsonl", records(2))
    without = tmp_path / "bloom"
    tokenizer = bytelevel()
    tiny_model("bloom", vocab_size=len(tokenizer)).save_pretrained(without)
    tokenizer.save_pretrained(without)
    for name, top, message in (
        (str(without), "2", "BloomForCausalLM does not use transformers' attention interface; heads are scored"),
        (model, "13", "n_heads is 13, but "),
    ):
        result = run(prompts, "-m", name, "--out", tmp_path / "out", "--top", top, "-q")
        assert result.exit_code == 2
        assert message in result.stderr
    assert "has 12 heads in all; choose fewer (--top)" in result.stderr
    assert measured == []
    assert not (tmp_path / "out").exists()


def test_secondary_sinks_are_taken_apart(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = ap.load(model, progress=False)
    asked = [
        PromptRecord(ap.Prompt(r["documents"], r["question"], id=r["id"]), (r["answer"],), (1,), "") for r in records(1)
    ]
    seen: list[dict[str, Any]] = []
    original: Callable[..., ap.Run] = heads_cells.measure

    def measure(lm: Any, prompt: ap.Prompt, **given: Any) -> ap.Run:
        seen.append({"question": prompt.question, **given})
        return original(lm, prompt, **given)

    monkeypatch.setattr(heads_cells, "measure", measure)
    monkeypatch.setattr(
        heads_cells,
        "find_secondary_sinks",
        lambda null: [SecondarySink(0, position, None, 0, 0.5, 99.0) for position in (7, null.n_prompt - 1)],
    )
    measure_heads(lm, asked, HeadsOptions(orders=1, max_new_tokens=2), tmp_path)
    null, own = seen
    assert (null["question"], null["answer"]) == ("N/A", "N/A")
    assert own["answer"] is None
    assert own["secondary_sinks"][0] == 7


@pytest.mark.parametrize(("rope", "wanted"), [("none", ["auto", 2048, 512]), ("dynamic:2", ["auto"] * 3)])
def test_out_of_memory_feeds_smaller_chunks_if_the_model_takes_them(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rope: str, wanted: list[Any]
) -> None:
    lm = ap.load(model, rope=rope, progress=False)
    asked = [
        PromptRecord(ap.Prompt(r["documents"], r["question"], id=r["id"]), (r["answer"],), (1,), "") for r in records(1)
    ]
    chunks: list[Any] = []
    original: Callable[..., ap.Run] = heads_cells.measure

    def measure(lm: Any, prompt: ap.Prompt, **given: Any) -> ap.Run:
        chunks.append(given["prefill_chunk"])
        if len(chunks) < 3:
            raise MemoryError("no room")
        return original(lm, prompt, **given)

    monkeypatch.setattr(heads_cells, "measure", measure)
    result = measure_heads(lm, asked, HeadsOptions(orders=1, max_new_tokens=2, sinks=False), tmp_path)
    assert chunks == wanted
    assert result is not None


def test_a_failed_cell_leaves_its_question_out(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = ap.load(model, progress=False)
    prompts = [
        PromptRecord(ap.Prompt(r["documents"], r["question"], id=r["id"]), (r["answer"],), (1,), "") for r in records(3)
    ]
    original: Callable[..., ap.Run] = heads_cells.measure

    def measure(lm: Any, prompt: ap.Prompt, **given: Any) -> ap.Run:
        if prompt.id == "q1":
            raise ap.InputError("a bad prompt")
        return original(lm, prompt, **given)

    monkeypatch.setattr(heads_cells, "measure", measure)
    options = HeadsOptions(orders=1, max_new_tokens=2, sinks=False)
    result = measure_heads(lm, prompts, options, tmp_path)
    assert result is not None
    assert result.scores.questions == ("q0", "q2")
    assert result.incomplete == {"q1": "InputError: a bad prompt"}
    monkeypatch.undo()
    retried = measure_heads(lm, prompts, options, tmp_path, retry_failed=True)
    assert retried is not None
    assert retried.scores.questions == ("q0", "q1", "q2")


def test_wrong_inputs_get_one_line(model: str, tmp_path: Path) -> None:
    good = records(3)
    unanswered = [{k: v for k, v in r.items() if k != "answer"} for r in good]
    elsewhere = [{**r, "answer": "zinc"} for r in good]
    split = [{**r, "documents": [*r["documents"][:2], f"Also {r['answer']}."]} for r in good]
    spelled = [{**r, "documents": ["x.", "It takes forty-seven days.", "y."], "answer": "47 days"} for r in good]
    for name, content, more, message in (
        ("unanswered", unanswered, ("--answers", "file"), "3 of 3 questions have no answer to force, e.g. 'q0'"),
        ("elsewhere", elsewhere, (), "none or several of the documents hold the answer"),
        ("split", split, (), "none or several of the documents hold the answer"),
        ("spelled", spelled, ("--needle", "answer"), "question 'q0': document 1 does not hold the answer \"47 days\""),
    ):
        prompts = write_prompts(tmp_path / f"{name}.jsonl", content)
        result = run(prompts, "-m", model, "--out", tmp_path / name, *more)
        assert result.exit_code == 2, result.output
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1
        assert message in errors[0]
        assert result.stdout == ""
    assert run("nowhere.jsonl", "-m", model, "--out", tmp_path / "x").exit_code == 2


def test_some_questions_without_a_needle_are_left_out(model: str, tmp_path: Path) -> None:
    content = records(3)
    content[1]["answer"] = "zinc"
    prompts = write_prompts(tmp_path / "prompts.jsonl", content)
    result = run(
        prompts, "-m", model, "--out", tmp_path / "out", "--orders", "1", "--max-new-tokens", "2", "--no-sinks"
    )
    assert result.exit_code == 0, result.output
    assert (
        "note: 1 of 3 questions left out, as none or several of their documents hold the answer: q1\n" in result.stderr
    )
    assert ": 2 questions x 1 random order\n" in result.stderr
    assert [q["id"] for q in json.loads((tmp_path / "out" / "heads.json").read_text())["questions"]] == ["q0", "q2"]


def test_random_orders_are_different_and_of_the_seed() -> None:
    orders = random_orders(4, 20, (0, 1))
    assert len({order.permutation for order in orders}) == 20
    assert all(sorted(order.permutation) == [0, 1, 2, 3] for order in orders)
    assert [order.number for order in orders] == list(range(20))
    assert orders == random_orders(4, 20, (0, 1))
    assert orders[:3] == random_orders(4, 3, (0, 1))
    assert orders != random_orders(4, 20, (0, 2))
    assert len(random_orders(2, 5, (0,))) == 2
    assert len(random_orders(30, 5, (0,))) == 5


def test_help_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    result = run("--help")
    assert result.exit_code == 0
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert all(score in result.stdout for score in SCORES)


def test_wrong_options_are_named() -> None:
    for options, message in (
        ({"needle": "word"}, "needle is 'word'; expected one of document, sentence, answer"),
        ({"answers": "none"}, "answers is 'none'"),
        ({"by": "luck"}, "by is 'luck'"),
        ({"orders": 0}, "orders must be at least 1"),
        ({"level": 2}, "level must lie between"),
    ):
        with pytest.raises(ap.InputError, match=message):
            HeadsOptions(**options)  # type: ignore[arg-type]
