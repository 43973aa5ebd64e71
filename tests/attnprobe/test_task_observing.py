"""Tasks on a model behind a server, and a judge of the replies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import Answer, Asked, ChatServer, chat_server, refused, said
from tiny_folder import save_tiny_model
from typer.testing import CliRunner, Result

from attnprobe import cli
from attnprobe.answer_text import holds_answer
from attnprobe.tasks.items import read_items
from attnprobe.tasks.task_folder import TaskFolder

pytest.importorskip("openai")

ITEMS = {item.question: item for item in read_items()}


@pytest.fixture(autouse=True)
def _loopback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


def ended(text: str, reason: str) -> Answer:
    """A reply that ended for a reason of its own."""
    return said(
        text, choices=[{"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": text}}]
    )


def reads_the_first_third(request: Asked, _: int) -> Answer:
    """Finds a needle in the first third of what it is sent, and makes one up otherwise; as a judge, is right."""
    if request.body["model"] == "judge":
        asked = json.loads(request.last)
        return said("correct" if holds_answer(asked["reply"], asked["accepted_answers"]) else "incorrect")
    item = next(item for question, item in ITEMS.items() if question in request.last)
    seen = request.last[: len(request.last) // 3]
    return said(f"It is {item.answer}." if holds_answer(seen, item.answers) else f"It is {item.foil}.")


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server(reads_the_first_third) as running:
        yield running


def observed(out: Path) -> Any:
    (folder,) = (path for path in out.iterdir() if path.is_dir())
    return TaskFolder.at(folder).load()


def test_replies_are_scored_kept_and_not_asked_for_again(server: ChatServer, tmp_path: Path) -> None:
    command = ("needle", "--endpoint", server.base_url, "--endpoint-model", "far/away", "--out", tmp_path)
    command = (*command, "--only", "ferry,museum", "--n-documents", "6")
    result = run(*command)
    assert result.exit_code == 0, (result.output, result.exception)
    data = observed(tmp_path)
    assert (data.model, data.layers, data.needle_mass, data.document_mass) == ("far/away", (), None, ())
    assert len(server.asked) == len(data.outcomes) == 2 * (6 + 2)
    for outcome in data.outcomes:
        assert (outcome.mass, outcome.logprob) == (None, None)
        assert "prompt_tokens" not in outcome.facts
        if "position" in outcome.condition:
            assert outcome.strict == (outcome.condition["position"] < 2), outcome
            assert outcome.facts["needles"] == [outcome.condition["position"]]
    assert "secret" not in (tmp_path / "far_away" / "task.json").read_text()
    again = run(*command, "--json")
    assert again.exit_code == 0
    assert len(server.asked) == 16
    assert json.loads(again.stdout)["far/away"]["sizes"]["cells"] == 16


def test_a_refused_key_is_said_and_what_arrived_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret-1")
    replies = 3

    def answer(request: Asked, n: int) -> Answer:
        return said("62") if n < replies else refused(401, "bad key sk-secret-1")

    with chat_server(answer) as server:
        command = ("needle", "--endpoint", server.base_url, "--endpoint-model", "m", "--key-env", "MY_KEY")
        command = (*command, "--only", "ferry", "--n-documents", "8", "--out", tmp_path)
        result = run(*command)
        assert result.exit_code == 2
        assert "the key in $MY_KEY was refused by 127.0.0.1" in " ".join(result.stderr.split())
        assert "sk-secret" not in result.output
        n_asked, replies = len(server.asked), 1000
        assert run(*command).exit_code == 0
        assert len(server.asked) == n_asked + 10 - 3
    assert not any("sk-secret" in path.read_text() for path in tmp_path.rglob("*.json*"))


def test_lengths_take_a_tokenizer(server: ChatServer, tmp_path: Path) -> None:
    command = ("niah", "--endpoint", server.base_url, "--endpoint-model", "m", "--out", tmp_path / "out")
    command = (*command, "--lengths", "700", "--depths", "0,1", "--only", "ferry")
    result = run(*command)
    assert result.exit_code == 2
    assert "a server does not say what its tokens are; name a model" in " ".join(result.stderr.split())
    assert "--tokenizer" in result.stderr
    model = save_tiny_model(tmp_path / "model")
    result = run(*command, "--tokenizer", model)
    assert result.exit_code == 0, result.output
    data = observed(tmp_path / "out")
    found = {
        o.condition["depth"]: (o.strict, o.facts["prompt_tokens"]) for o in data.outcomes if "depth" in o.condition
    }
    assert found == {0.0: (1, 700), 1.0: (0, 700)}
    assert data.about["asked"]["tokenizer"] == str(model)


def test_an_endpoint_is_asked_by_one_process(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = run("needle", "--endpoint", server.base_url, "--endpoint-model", "m", "--out", tmp_path)
    assert result.exit_code == 2
    assert "asked by one process" in result.stderr


def config(server: ChatServer, folder: Path, more: str = "") -> Path:
    path = folder / "config.yaml"
    path.write_text(
        "kind: needle_sweep\nmodels: []\nout: out\nonly: [ferry, museum, bakery]\nn_documents: 4\n"
        f"endpoint: {{base_url: {server.base_url}, model: m}}\n"
        f"judge: {{base_url: {server.base_url}, model: judge, sample: 6}}\n{more}"
    )
    return path


def test_a_judge_reads_as_many_replies_of_each_item_and_is_asked_once(server: ChatServer, tmp_path: Path) -> None:
    path = config(server, tmp_path)
    results = [run("run", path), run("run", path, "--json")]
    assert [result.exit_code for result in results] == [0, 0], results[0].output
    asked = [json.loads(one.last) for one in server.asked if one.body["model"] == "judge"]
    assert 1 < len(asked) <= 6, "the same question, answers and reply are judged once"
    found = json.loads(results[1].stdout)["m"]["judge"]
    assert (found["replies"], found["items"]) == (6, 3)
    assert found["agreement"]["estimate"] == 1.0
    assert found["disagreements"] == []
    printed = " ".join(results[0].stdout.split())
    assert "agrees with the lenient rule on 100 % of 6 replies of 3 items (no interval: 3 items; an interval" in printed


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("max_new_tokens: 0\n", "max_new_tokens"),
        ("template: plain\n", 'template="plain"'),
        ("seed: 1\nsystem: 3\n", '"system" must be a text'),
    ],
)
def test_what_a_server_cannot_be_asked(server: ChatServer, tmp_path: Path, more: str, words: str) -> None:
    result = run("run", config(server, tmp_path, more))
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.stderr.split())
    assert not server.asked


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (said(""), "it is empty"),
        (said(None), "it is empty"),
        (ended("I cannot", "content_filter"), "the server filtered it"),
    ],
    ids=["empty", "null", "filtered"],
)
def test_a_reply_that_was_withheld_is_not_wrong(answer: Answer, why: str, tmp_path: Path) -> None:
    with chat_server(lambda request, n: answer if n == 1 else ended("62 cars", "length")) as server:
        command = ("needle", "--endpoint", server.base_url, "--endpoint-model", "m", "--out", tmp_path)
        result = run(*command, "--only", "ferry", "--n-documents", "3")
    assert result.exit_code == 0, result.output
    assert f"1 reply of 5 not scored: {why} (1)" in " ".join(result.stderr.split())
    data = observed(tmp_path)
    scores = [outcome.lenient for outcome in data.outcomes]
    assert sorted(scores, key=str) == [1, 1, 1, 1, None]
    (withheld,) = (outcome for outcome in data.outcomes if outcome.lenient is None)
    assert withheld.strict is None
    assert withheld.facts["not_scored"] == why
    assert {outcome.facts["reply_cut"] for outcome in data.outcomes if outcome.lenient} == {True}


def test_results_are_there_when_the_judge_refuses(tmp_path: Path) -> None:
    def answer(request: Asked, n: int) -> Answer:
        return (
            refused(400, "no judging today") if request.body["model"] == "judge" else reads_the_first_third(request, n)
        )

    with chat_server(answer) as server:
        result = run("run", config(server, tmp_path))
    assert result.exit_code == 2
    said_ = " ".join(result.stderr.split())
    assert "no judging today" in said_
    assert f"the results without a judge are in {tmp_path / 'out' / 'm'}" in said_
    assert json.loads((tmp_path / "out" / "m" / "summary.json").read_text())["sizes"]["cells"] == 3 * 6
    assert (tmp_path / "out" / "m" / "table.csv").exists()
