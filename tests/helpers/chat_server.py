"""A chat completion server on 127.0.0.1 that answers as a test tells it to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What the server sends back: a status, headers, a body, and after how many seconds."""

    status: int = 200
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    after: float = 0.0


@dataclass(frozen=True)
class Asked:
    """A request that arrived: when, with what headers and body."""

    at: float
    headers: Message
    body: dict[str, Any]

    @property
    def last(self) -> str:
        """Content of the last message."""
        return str(self.body["messages"][-1]["content"])


def said(text: str | None, **fields: Any) -> Answer:
    """A chat completion of one message."""
    completion = {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "tiny-0",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
    }
    return Answer(body=json.dumps(completion | fields))


def refused(status: int, message: str, **headers: str) -> Answer:
    """An error in the form that OpenAI gives it."""
    return Answer(status, json.dumps({"error": {"message": message, "type": "x", "code": None}}), headers)


@dataclass(frozen=True)
class ChatServer:
    """A running server: its base URL and the requests so far."""

    base_url: str
    asked: list[Asked]


@contextmanager
def chat_server(answer: Callable[[Asked, int], Answer]) -> Iterator[ChatServer]:
    """Serve while inside; ``answer(request, n)`` gives the answer to the n-th request, from 0."""
    asked: list[Asked] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            request = Asked(time.monotonic(), self.headers, body)
            with lock:
                asked.append(request)
                number = len(asked) - 1
            sent = answer(request, number)
            time.sleep(sent.after)
            data = sent.body.encode()
            try:
                self.send_response(sent.status)
                for name, value in {"Content-Type": "application/json", **sent.headers}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                pass  # the client has gone, which is what slow answers are for

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield ChatServer(f"http://127.0.0.1:{server.server_address[1]}/v1", asked)
        finally:
            server.shutdown()
            thread.join()
