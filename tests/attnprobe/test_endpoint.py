from __future__ import annotations

import builtins
import json
import logging
import socket
import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chat_server import Answer, Asked, chat_server, refused, said

from attnprobe.errors import InputError
from attnprobe.prompt import Prompt
from attnprobe.render import chat_messages
from attnprobe.tasks import endpoint as endpoint_module
from attnprobe.tasks.endpoint import Endpoint, ask
from attnprobe.tasks.reply_cache import Reply

pytest.importorskip("openai", reason="the extra `endpoint` is not installed")

KEY = "sk-test-0123456789"


@pytest.fixture(autouse=True)
def _loopback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PROBE_KEY", KEY)


def user(*texts: str) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": text}] for text in texts]


def echo(request: Asked, _: int) -> Answer:
    return said(f"re: {request.last}")


def test_replies_come_in_the_order_of_the_requests_and_the_same_one_is_sent_once() -> None:
    def answer(request: Asked, _: int) -> Answer:
        sent = said(f"re: {request.last}")
        return Answer(sent.status, sent.body, after=0.1 if request.last == "slow" else 0.0)

    with chat_server(answer) as server:
        replies = ask(Endpoint(server.base_url, "tiny"), user("slow", "b", "slow", "c"))
    assert [reply.text for reply in replies] == ["re: slow", "re: b", "re: slow", "re: c"]
    assert replies[0] == Reply("re: slow", "stop", "tiny-0", 7, 2)
    assert sorted(request.last for request in server.asked) == ["b", "c", "slow"]


def test_a_request_holds_what_was_asked_for_and_nothing_else() -> None:
    with chat_server(echo) as server:
        ask(Endpoint(server.base_url, "tiny", max_tokens=5), user("a"))
        ask(
            Endpoint(server.base_url, "tiny", None, None, None, 6, limit_name="max_completion_tokens"),
            user("a"),
        )
    messages = [{"role": "user", "content": "a"}]
    assert server.asked[0].body == {
        "model": "tiny",
        "messages": messages,
        "temperature": 0.0,
        "seed": 0,
        "max_tokens": 5,
    }
    assert server.asked[1].body == {"model": "tiny", "messages": messages, "max_completion_tokens": 6}


def test_a_prompt_is_sent_as_the_messages_that_a_chat_template_gets() -> None:
    prompt = Prompt(["One.", "Two."], "Which?", system="Be brief.")
    assert chat_messages(prompt) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": '<doc id="0">One.</doc>\n<doc id="1">Two.</doc>\n\nQuestion: Which?'},
    ]
    given = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Ho"},
    ]
    assert chat_messages(Prompt.from_messages(given, spans=[("x", 0, 0, 1)])) == given


@pytest.mark.parametrize("prompt", [Prompt.from_text("abc"), Prompt(["a"], "b", template="plain")])
def test_a_prompt_without_messages_is_refused(prompt: Prompt) -> None:
    with pytest.raises(InputError, match="a chat server puts its own template"):
        chat_messages(prompt)


@pytest.mark.parametrize(
    "failure",
    [
        refused(429, "slow down", Retry_After="0.2"),
        refused(500, "oops", Retry_After="0.2"),
        refused(503, "oops", Retry_After="0.2"),
    ],
    ids=lambda failure: str(failure.status),
)
def test_what_fails_in_passing_is_sent_again_after_what_the_server_says(failure: Answer) -> None:
    with chat_server(lambda request, n: failure if n < 2 else said("done")) as server:
        (reply,) = ask(Endpoint(server.base_url, "tiny", retries=2), user("a"))
    assert reply.text == "done"
    times = [request.at for request in server.asked]
    assert len(times) == 3
    assert min(b - a for a, b in pairwise(times)) >= 0.2


def test_a_slow_server_is_asked_again() -> None:
    again = threading.Event()

    def answer(_: Asked, n: int) -> Answer:
        again.wait(30) if n == 0 else again.set()
        return said("done")

    with chat_server(answer) as server:
        (reply,) = ask(Endpoint(server.base_url, "tiny", timeout=0.5, retries=5), user("a"))
    assert reply.text == "done"
    assert len(server.asked) >= 2


def test_a_server_that_stays_silent_is_given_up() -> None:
    over = threading.Event()

    def answer(_: Asked, n: int) -> Answer:
        over.wait(30)
        return said("late")

    with chat_server(answer) as server:
        with pytest.raises(InputError, match=r"127\.0\.0\.1:\d+ gave no reply within 0\.1 s, in at most 2 tries"):
            ask(Endpoint(server.base_url, "tiny", timeout=0.1, retries=1), user("a"))
        over.set()


@pytest.mark.parametrize(
    ("answer", "key_env", "message"),
    [
        (
            refused(401, f"Incorrect key {KEY}."),
            "PROBE_KEY",
            r"the key in \$PROBE_KEY was refused by 127\.0\.0\.1:\d+ \(HTTP 401: Incorrect key \$PROBE_KEY\.\)",
        ),
        (refused(403, "not yours"), "PROBE_KEY", r"the key in \$PROBE_KEY was refused by .* \(HTTP 403: not yours\)"),
        (refused(401, "no key"), None, r"refuses requests without a key .*named in key_env"),
        (refused(404, "no such model"), None, r'knows no model "tiny" at http://127.* \(HTTP 404: no such model\)'),
        (Answer(404, '{"detail": "Not Found"}'), None, r"HTTP 404: Not Found"),
        (Answer(400, '{"error": {"message": "8192 tokens\\nat most"}}'), None, r"HTTP 400: 8192 tokens at most"),
        (refused(429, "slow down"), None, r"refuses more requests for now, in at most 1 try \(HTTP 429: slow down\)"),
        (Answer(502, "<html>bad</html>"), None, r"fails, in at most 1 try \(HTTP 502: <html>bad</html>\)"),
        (Answer(body='{"choices": ['), None, r"answered with something that is not JSON"),
        (Answer(body="<html>", headers={"Content-Type": "text/html"}), None, r"something that has no message in it"),
        (Answer(body="[1, 2]"), None, r"something that has no message in it"),
        (said(None, choices=[]), None, r"something that has no message in it"),
        (said(["part"]), None, r"something that has no message in it"),  # type: ignore[arg-type]
    ],
)
def test_a_refusal_names_the_host_and_the_remedy(answer: Answer, key_env: str | None, message: str) -> None:
    with chat_server(lambda request, n: answer) as server:
        endpoint = Endpoint(server.base_url, "tiny", key_env, retries=0)
        with pytest.raises(InputError, match=message) as caught:
            ask(endpoint, user("a"))
    assert "127.0.0.1" in str(caught.value)
    assert caught.value.__cause__ is None or isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (refused(400, "no"), "HTTP 400: no"),
        (refused(429, "tomorrow", Retry_After="86400"), r"HTTP 429: tomorrow\); ask again after what it says: 86400"),
    ],
)
def test_what_will_not_pass_soon_is_not_sent_again(answer: Answer, message: str) -> None:
    with chat_server(lambda request, n: answer) as server, pytest.raises(InputError, match=message):
        ask(Endpoint(server.base_url, "tiny", retries=3), user("a"))
    assert len(server.asked) == 1


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(InputError, match=rf"127\.0\.0\.1:{port} cannot be reached .*is the server running"):
        ask(Endpoint(f"http://127.0.0.1:{port}/v1", "tiny", retries=0), user("a"))


def test_a_reply_without_text_is_empty_and_says_why() -> None:
    choices = [{"index": 0, "finish_reason": "content_filter", "message": {"role": "assistant", "content": None}}]
    with chat_server(lambda request, n: said(None, choices=choices, usage=None)) as server:
        assert ask(Endpoint(server.base_url, "tiny"), user("a")) == [Reply("", "content_filter", "tiny-0", None, None)]


def test_the_key_is_sent_and_kept_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with chat_server(
        lambda request, n: refused(500, KEY, Retry_After="0.01") if n == 0 else echo(request, n)
    ) as server:
        endpoint = Endpoint(server.base_url, "tiny", "PROBE_KEY")
        ask(endpoint, user("a"), tmp_path / "replies.jsonl")
    assert {request.headers["Authorization"] for request in server.asked} == {f"Bearer {KEY}"}
    files = [path.read_text() for path in tmp_path.iterdir()]
    assert any("re: a" in text for text in files)
    assert not any(KEY in text for text in (*files, caplog.text, repr(endpoint), *capsys.readouterr()))


def test_without_key_env_no_key_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, KEY)
    with chat_server(echo) as server:
        ask(Endpoint(server.base_url, "tiny"), user("a"))
    assert not any(KEY in value for value in server.asked[0].headers.values())


def test_a_key_that_is_not_set_or_cannot_be_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = Endpoint("http://127.0.0.1:9/v1", "tiny", "PROBE_KEY")
    monkeypatch.setenv("PROBE_KEY", "clé")
    with pytest.raises(InputError, match=r"the key in \$PROBE_KEY holds characters that no key has"):
        ask(endpoint, user("a"))
    monkeypatch.delenv("PROBE_KEY")
    with pytest.raises(InputError, match="the environment variable PROBE_KEY is not set"):
        ask(endpoint, user("a"))


def test_without_openai_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_openai(name: str, *rest: Any, **more: Any) -> Any:
        if name == "openai":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_openai)
    with pytest.raises(InputError, match=r"pip install attnprobe\[endpoint\]"):
        ask(Endpoint("http://127.0.0.1:9/v1", "tiny"), user("a"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": "localhost:8000"}, "is no http address"),
        ({"base_url": f"https://{KEY}@host/v1"}, "base_url of host holds a user, a password or a query"),
        ({"base_url": f"https://host/v1?key={KEY}"}, "base_url of host holds a user, a password or a query"),
        ({"model": ""}, "model is empty"),
        ({"limit_name": "max_new_tokens"}, "limit_name"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"retries": -1}, "retries must be at least 0"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"timeout": 0}, "timeout must be a finite number above 0"),
        ({"per_minute": -1.0}, "per_minute must be a finite number above 0"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Endpoint(**{"base_url": "http://127.0.0.1:9/v1", "model": "tiny", **options})
    assert KEY not in str(caught.value)


def test_requests_are_spaced_and_those_sent_again_count(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(endpoint_module, "time", SimpleNamespace(monotonic=lambda: 5.0, sleep=slept.append))

    def answer(request: Asked, n: int) -> Answer:
        return refused(500, "no", Retry_After="0.01") if n == 0 else echo(request, n)

    with chat_server(answer) as server:
        ask(Endpoint(server.base_url, "tiny", per_minute=120), user("a", "b", "c"))
    # While the clock stands still, each request has to wait half a second longer than the one before.
    assert len(server.asked) == 4
    assert sorted(slept) == [0.0, 0.5, 1.0, 1.5]


def test_no_more_requests_than_concurrency_are_open() -> None:
    pair, lock, now, most = threading.Barrier(2, timeout=30), threading.Lock(), 0, 0

    def answer(request: Asked, _: int) -> Answer:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        pair.wait()
        with lock:
            now -= 1
        pair.wait()
        return said("done")

    with chat_server(answer) as server:
        ask(Endpoint(server.base_url, "tiny", concurrency=2), user(*"abcdef"))
    assert most == 2


def test_half_a_surrogate_pair_in_a_reply_becomes_a_question_mark(tmp_path: Path) -> None:
    with chat_server(lambda request, n: said("a\ud800b")) as server:
        for _ in range(2):
            (reply,) = ask(Endpoint(server.base_url, "tiny"), user("a"), tmp_path / "replies.jsonl")
            assert reply.text == "a?b"


def test_kept_replies_are_not_asked_for_again(tmp_path: Path) -> None:
    cache = tmp_path / "new" / "replies.jsonl"
    with chat_server(echo) as server:
        endpoint = Endpoint(server.base_url, "tiny")
        first = ask(endpoint, user("a", "é 東"), cache)
        assert ask(endpoint, user("é 東", "b", "a"), cache) == [
            first[1],
            Reply("re: b", "stop", "tiny-0", 7, 2),
            first[0],
        ]
        assert sorted(request.last for request in server.asked) == ["a", "b", "é 東"]
        for change in ({"model": "other"}, {"max_tokens": 9}, {"temperature": 0.5}, {"seed": 1}):
            ask(Endpoint(**{"base_url": server.base_url, "model": "tiny", **change}), user("a"), cache)
        assert len(server.asked) == 7


def test_what_arrived_before_a_failure_is_kept_and_the_rest_is_asked_for_later(tmp_path: Path) -> None:
    cache = tmp_path / "replies.jsonl"
    with chat_server(lambda request, n: refused(400, "no") if n == 2 else echo(request, n)) as server:
        endpoint = Endpoint(server.base_url, "tiny", concurrency=1)
        with pytest.raises(InputError, match="HTTP 400"):
            ask(endpoint, user(*"abcde"), cache)
        assert [request.last for request in server.asked][:3] == ["a", "b", "c"]
        before = len(server.asked)
        assert [reply.text for reply in ask(endpoint, user(*"abcde"), cache)] == [f"re: {x}" for x in "abcde"]
        again = [request.last for request in server.asked][before:]
    assert "c" in again
    assert not {"a", "b"} & set(again)


def test_a_line_that_was_cut_off_is_asked_for_again(tmp_path: Path) -> None:
    cache = tmp_path / "replies.jsonl"
    with chat_server(echo) as server:
        endpoint = Endpoint(server.base_url, "tiny", concurrency=1)
        whole = ask(endpoint, user("a", "b"), cache)
        data = cache.read_bytes()
        cache.write_bytes(data[:-10])
        assert ask(endpoint, user("a", "b"), cache) == whole
        assert [request.last for request in server.asked] == ["a", "b", "b"]
    assert cache.read_bytes() == data


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"key": "k", "text": "t"}', "\ufeff"])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    cache = tmp_path / "replies.jsonl"
    whole = {"key": "k", "text": "", "finish_reason": None, "model": None, "prompt_tokens": 1, "completion_tokens": 1}
    cache.write_text(f"{json.dumps(whole)}\n{line}\n{json.dumps(whole)}\n")
    before = cache.read_bytes()
    with pytest.raises(InputError, match=r"replies\.jsonl:2 is no kept reply; delete that line"):
        ask(Endpoint("http://127.0.0.1:9/v1", "tiny"), user("a"), cache)
    assert cache.read_bytes() == before


def test_a_cache_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    from filelock import FileLock

    endpoint = Endpoint("http://127.0.0.1:9/v1", "tiny")
    with pytest.raises(InputError, match="cannot be used"):
        ask(endpoint, user("a"), tmp_path)
    cache = tmp_path / "replies.jsonl"
    with FileLock(f"{cache}.lock"), pytest.raises(InputError, match="is in use by another run"):
        ask(endpoint, user("a"), cache)


def test_an_error_in_place_of_a_completion_is_told_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret-1")
    body = json.dumps({"error": {"message": "the key sk-secret-1 has no credit left", "code": 402}})
    with chat_server(lambda request, n: Answer(body=body)) as server:
        endpoint = Endpoint(server.base_url, "m", key_env="MY_KEY")
        with pytest.raises(InputError, match=r"no message in it but an error: the key \$MY_KEY has no credit left"):
            ask(endpoint, [[{"role": "user", "content": "Hello"}]])
