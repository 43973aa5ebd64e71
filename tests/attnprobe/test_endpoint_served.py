"""A real server: the one that comes with transformers, on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import attnprobe as ap
from attnprobe import cli
from attnprobe.errors import InputError
from attnprobe.gguf_cache import alias_file, cached_model
from attnprobe.render import chat_messages
from attnprobe.tasks import score_answer
from attnprobe.tasks.endpoint import Endpoint, ask
from attnprobe.tasks.items import read_items
from attnprobe.tasks.measured import measure_cell
from attnprobe.tasks.needle_sweep import needle_sweep
from attnprobe.tasks.task_folder import TaskFolder, task_parts

for name in ("openai", "fastapi", "uvicorn", "gguf"):
    pytest.importorskip(name)

READY_SECONDS = 120


@contextmanager
def served(folder: Path, log: Path) -> Iterator[str]:
    """The base URL of ``transformers serve`` with a model on 127.0.0.1, until the end of the context."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder)]
    command += ["--host", "127.0.0.1", "--port", port, "--device", "cpu", "--dtype", "float32"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=env) as server:
        try:
            _wait_until_ready(server, f"http://127.0.0.1:{port}/health", log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()


def _wait_until_ready(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            with opener.open(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"transformers serve did not start:\n{log.read_text(errors='replace')[-3000:]}")


@pytest.mark.slow
def test_replies_are_those_of_greedy_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    try:
        gguf = alias_file("smollm2")
    except InputError as error:
        pytest.skip(str(error))
    folder = cached_model(gguf).folder
    prompts = [
        ap.Prompt(["The ferry costs 47 crowns.", "The bus is free."], "What does the ferry cost?", system="Be brief."),
        ap.Prompt(["Ada plays the cello.", "Bo plays chess."], "Who plays chess?", markers="numbered"),
    ]
    cache = tmp_path / "replies.jsonl"
    with served(folder, tmp_path / "log") as base_url:
        endpoint = Endpoint(base_url, str(folder), max_tokens=12, concurrency=1)
        replies = ask(endpoint, [chat_messages(prompt) for prompt in prompts], cache)
        with pytest.raises(InputError, match=r"127\.0\.0\.1:\d+ (refuses the request|knows no model)"):
            ask(Endpoint(base_url, "another-model"), [chat_messages(prompts[0])])
    # The server has ended: these come from the file.
    assert ask(endpoint, [chat_messages(prompt) for prompt in prompts], cache) == replies

    lm = ap.load(str(folder), dtype="float32", device_map="cpu", progress=False)
    for prompt, reply in zip(prompts, replies, strict=True):
        ids = torch.tensor([prompt.encode(lm.tokenizer).token_ids])
        with torch.inference_mode():
            made = lm.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        assert reply.prompt_tokens == ids.shape[1]
        assert reply.text == lm.tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
    assert score_answer(replies[0].text, "47").strict == 1


@pytest.mark.slow
def test_a_task_on_a_server_gets_the_replies_of_the_same_model_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    try:
        folder = cached_model(alias_file("smollm2")).folder
    except InputError as error:
        pytest.skip(str(error))
    choices = (
        "--only",
        "ferry",
        "--n-documents",
        "3",
        "--positions",
        "0,2",
        "--no-baselines",
        "--max-new-tokens",
        "12",
    )
    with served(folder, tmp_path / "log") as base_url:
        server = ("--endpoint", base_url, "--endpoint-model", str(folder), "--tokenizer", str(folder))
        result = CliRunner().invoke(cli.app, ["needle", *server, "--out", str(tmp_path / "out"), *choices])
    assert result.exit_code == 0, result.output
    (part,) = task_parts(tmp_path / "out")
    data = TaskFolder.at(part).load()
    lm = ap.load(str(folder), dtype="float32", device_map="cpu", progress=False)
    specs = needle_sweep(read_items(ids=["ferry"]), 3, positions=[0, 2], with_baselines=False)
    for spec, outcome in zip(specs, data.outcomes, strict=True):
        own, _ = measure_cell(lm, spec.build(lm.tokenizer), max_new_tokens=12)
        for name in ("reply", "reply_cut", "prompt_tokens"):
            assert outcome.facts[name] == own.facts[name]
        assert (outcome.strict, outcome.lenient) == (own.strict, own.lenient)
        assert outcome.facts["server_tokens"] == own.facts["prompt_tokens"]
