"""Replies from chat completion servers that speak OpenAI's protocol: for behaviour without attention.

The ``openai`` package (the extra ``endpoint``) sends the requests and repeats those that fail in passing. A key is read
from an environment variable when requests are sent, and is in no value, file or message of this module.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from attnprobe.arguments import positive_number, whole_number
from attnprobe.document import check_choice
from attnprobe.errors import InputError
from attnprobe.tasks.endpoint_errors import error_words, no_completion, refusal
from attnprobe.tasks.reply_cache import Reply, opened_cache, request_key
from attnprobe.terminal import work_bar

if TYPE_CHECKING:
    from openai import OpenAI

Messages = Sequence[Mapping[str, str]]
"""``{"role": ..., "content": ...}``, as ``attnprobe.render.chat_messages`` makes them of a prompt."""

LimitName = Literal["max_tokens", "max_completion_tokens"]


@dataclass(frozen=True)
class Endpoint:
    """A model on a server, and how it is asked.

    Parameters
    ----------
    base_url
        Such as ``http://127.0.0.1:8000/v1``; without a key in it.
    model
        The model's name on the server.
    key_env
        Name of the environment variable that holds the key; None for a server without keys.
    temperature
        0 asks for the likeliest token each time. Few servers keep that promise to the bit. None leaves it out.
    seed
        For servers that sample; None leaves it out, as some refuse it.
    max_tokens
        Most tokens of a reply.
    limit_name
        What the server calls ``max_tokens``; OpenAI's newer models take ``max_completion_tokens`` only.
    timeout
        Seconds to wait for one reply.
    retries
        How often a request is sent again after 408, 409, 429, 5xx, a timeout or a lost connection: after what the
        server's Retry-After says, up to two minutes, else after 0.5 to 8 s.
    per_minute
        Most requests a minute, repeated ones included, evenly spaced; None for no limit.
    concurrency
        Most requests at a time.
    """

    base_url: str
    model: str
    key_env: str | None = None
    temperature: float | None = 0.0
    seed: int | None = 0
    max_tokens: int = 64
    limit_name: LimitName = "max_tokens"
    timeout: float = 120.0
    retries: int = 5
    per_minute: float | None = None
    concurrency: int = 4

    def __post_init__(self) -> None:
        url = urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise InputError(
                f'base_url "{self.base_url}" is no http address; give one such as http://127.0.0.1:8000/v1'
            )
        if url.username or url.password or url.query:
            raise InputError(
                f"base_url of {url.hostname} holds a user, a password or a query, which would end up in files; "
                "put the key in an environment variable and name that in key_env"
            )
        if not self.model:
            raise InputError("model is empty; give the model's name on the server")
        check_choice(self.limit_name, LimitName, "limit_name")
        whole_number("max_tokens", self.max_tokens, 1)
        whole_number("retries", self.retries, 0)
        whole_number("concurrency", self.concurrency, 1)
        positive_number("timeout", self.timeout)
        if self.per_minute is not None:
            positive_number("per_minute", self.per_minute)

    @property
    def host(self) -> str:
        """Host and port, which messages name."""
        return urlsplit(self.base_url).netloc

    def request(self, messages: Messages) -> dict[str, Any]:
        """The body of a request."""
        options = {"temperature": self.temperature, "seed": self.seed}
        return {
            "model": self.model,
            "messages": [dict(message) for message in messages],
            self.limit_name: self.max_tokens,
            **{name: value for name, value in options.items() if value is not None},
        }


def ask(
    endpoint: Endpoint, requests: Sequence[Messages], cache: str | Path | None = None, quiet: bool = False
) -> list[Reply]:
    """Send messages and return the replies in their order; the same messages are sent once.

    After Ctrl-C, no more is sent, and what is under way is waited for and kept.

    Parameters
    ----------
    endpoint
        Whom to ask, and how.
    requests
        Messages, one list a request.
    cache
        A file of JSON lines to which each reply is added as it arrives. A reply in it to the same messages, with the
        same base URL, model and parameters, is taken instead of asking. None keeps nothing.
    quiet
        Show no progress on standard error.

    Raises
    ------
    InputError
        When ``openai`` is not installed, the environment variable is not set, the server cannot be reached, refuses
        the key, the model or a request, fails more often than ``retries``, or answers with something else than a chat
        completion; or the cache cannot be used. Replies that have arrived are in the cache by then.
    """
    bodies = [endpoint.request(messages) for messages in requests]
    keys = [request_key({"base_url": endpoint.base_url.rstrip("/"), **body}) for body in bodies]
    with opened_cache(cache) as (known, keep):
        wanted = {key: body for key, body in zip(keys, bodies, strict=True) if key not in known}
        if wanted:
            known |= _sent(endpoint, wanted, keep, quiet)
    return [known[key] for key in keys]


def _sent(
    endpoint: Endpoint,
    bodies: Mapping[str, Mapping[str, Any]],
    keep: Callable[[str, Reply], None],
    quiet: bool,
) -> dict[str, Reply]:
    secret = _secret(endpoint)
    replies = {}
    with (
        _client(endpoint, secret) as client,
        ThreadPoolExecutor(endpoint.concurrency) as pool,
        work_bar(f"asking {endpoint.host}", len(bodies), quiet) as advance,
    ):

        def send(key: str) -> tuple[str, Reply]:
            reply = _reply(client, endpoint, bodies[key], secret)
            keep(key, reply)
            return key, reply

        futures = [pool.submit(send, key) for key in bodies]
        try:
            for future in as_completed(futures):
                key, reply = future.result()
                replies[key] = reply
                advance(len(replies), "")
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return replies


def _secret(endpoint: Endpoint) -> str | None:
    if endpoint.key_env is None:
        return None
    secret = os.environ.get(endpoint.key_env, "").strip()
    if not secret:
        raise InputError(
            f"the environment variable {endpoint.key_env} is not set; put the key for {endpoint.host} in it, "
            "or leave key_env out for a server without keys"
        )
    if not (secret.isascii() and secret.isprintable()):
        raise InputError(f"the key in ${endpoint.key_env} holds characters that no key has; copy it anew")
    return secret


def _client(endpoint: Endpoint, secret: str | None) -> OpenAI:
    try:
        import openai
    except ImportError as error:
        raise InputError(
            "asking an endpoint needs the package openai; run `pip install attnprobe[endpoint]`"
        ) from error
    hooks: dict[str, list[Callable[[Any], None]]] = {}
    if endpoint.per_minute is not None:
        # A hook of the transport, so that requests that are sent again count as well.
        hooks["request"] = [_spaced(60 / endpoint.per_minute)]
    return openai.OpenAI(
        base_url=endpoint.base_url,
        api_key=secret or "none",
        timeout=endpoint.timeout,
        max_retries=endpoint.retries,
        http_client=openai.DefaultHttpxClient(event_hooks=hooks),
    )


def _spaced(seconds: float) -> Callable[[Any], None]:
    """A function that returns at most once in so many seconds, in whatever threads it is called."""
    lock = threading.Lock()
    free = time.monotonic()

    def wait(_: Any) -> None:
        nonlocal free
        with lock:
            start = max(free, time.monotonic())
            free = start + seconds
        time.sleep(max(start - time.monotonic(), 0))

    return wait


def _reply(client: OpenAI, endpoint: Endpoint, body: Mapping[str, Any], secret: str | None) -> Reply:
    import openai

    try:
        completion: Any = client.chat.completions.create(**body)
    except openai.OpenAIError as error:
        # Not chained: the cause holds the request, and the request the key.
        raise refusal(endpoint, error, secret) from None
    except ValueError as error:  # from the JSON reader, as openai lets it through
        raise no_completion(endpoint, f"is not JSON: {error}") from None
    try:
        choice, usage = completion.choices[0], completion.usage
        text = choice.message.content
        # openai's values are not checked when they are made of a reply.
        if not isinstance(text, str | None):
            raise TypeError
        return Reply(
            # Half a surrogate pair, which JSON can hold, is no text that could be sent to a judge.
            text=(text or "").encode("utf-8", "replace").decode(),
            finish_reason=choice.finish_reason,
            model=completion.model,
            prompt_tokens=getattr(usage, "prompt_tokens", None),
            completion_tokens=getattr(usage, "completion_tokens", None),
        )
    except (AttributeError, IndexError, TypeError):
        said = getattr(completion, "error", None)
        why = "" if said is None else f" but an error: {error_words(said, endpoint, secret)}"
        raise no_completion(endpoint, f"has no message in it{why}") from None
