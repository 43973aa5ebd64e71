"""Why an endpoint gave no reply, in words that name the host and the remedy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnprobe.errors import InputError
from attnprobe.terminal import count

if TYPE_CHECKING:
    from openai import OpenAIError

    from attnprobe.tasks.endpoint import Endpoint


def no_completion(endpoint: Endpoint, what: str) -> InputError:
    """What to raise for an answer that is no chat completion."""
    return InputError(
        f"{endpoint.host} answered with something that {what}; is {endpoint.base_url} the base URL of a server that "
        "speaks OpenAI's chat completions? It mostly ends in /v1"
    )


def refusal(endpoint: Endpoint, error: OpenAIError, secret: str | None) -> InputError:
    """What to raise for an error of ``openai``: in words that name host and remedy, and never the key."""
    return InputError(_explained(endpoint, error, secret))


def _explained(endpoint: Endpoint, error: OpenAIError, secret: str | None) -> str:
    import openai

    host = endpoint.host
    tries = f"at most {count(endpoint.retries + 1, 'try', 'tries')}"
    if isinstance(error, openai.APITimeoutError):
        return f"{host} gave no reply within {endpoint.timeout:g} s, in {tries}; raise timeout, or ask for fewer tokens"
    if isinstance(error, openai.APIConnectionError):
        return (
            f"{host} cannot be reached ({error.__cause__ or error}), in {tries}; is the server running, and is "
            f"{endpoint.base_url} its address?"
        )
    if not isinstance(error, openai.APIStatusError):
        return f"openai could not ask {host}: {error}"
    words = error_words(error.body or error.response.reason_phrase, endpoint, secret)
    said = f"(HTTP {error.status_code}: {words})"
    match error.status_code:
        case 401 | 403 if endpoint.key_env is None:
            return f"{host} refuses requests without a key {said}; put one in an environment variable, named in key_env"
        case 401 | 403:
            return f"the key in ${endpoint.key_env} was refused by {host} {said}; check the key and what it may use"
        case 404:
            return (
                f'{host} knows no model "{endpoint.model}" at {endpoint.base_url} {said}; {endpoint.base_url}/models '
                "lists what it has, and a base URL mostly ends in /v1"
            )
        case 429:
            wait = error.response.headers.get("retry-after")
            remedy = "ask again later" if wait is None else f"ask again after what it says: {wait}"
            return f"{host} refuses more requests for now, in {tries} {said}; {remedy}, or give per_minute"
        case status if status >= 500:
            return f"{host} fails, in {tries} {said}; ask again later"
    return f"{host} refuses the request {said}; change what it names"


def error_words(body: object, endpoint: Endpoint, secret: str | None) -> str:
    """What a server says of an error, on one line, without the key, which some servers repeat."""
    if isinstance(body, Mapping):
        body = body.get("message") or body.get("detail") or json.dumps(body)
    words = " ".join(str(body).split())
    if secret is not None:
        words = words.replace(secret, f"${endpoint.key_env}")
    return words if len(words) <= 300 else f"{words[:297]}..."
