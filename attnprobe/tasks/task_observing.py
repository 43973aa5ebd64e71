"""A task on a model behind a server: replies and their scores, without attention or log-probabilities."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnprobe.errors import InputError
from attnprobe.grid import Cell, run_cells
from attnprobe.grid_folder import GRID, grid_content, same_grid
from attnprobe.grid_processes import this_process
from attnprobe.grid_records import HOW
from attnprobe.render import chat_messages
from attnprobe.tasks.cell import TaskCell
from attnprobe.tasks.endpoint import Endpoint, ask
from attnprobe.tasks.measured import reply_scores
from attnprobe.tasks.outcome import Outcome
from attnprobe.tasks.reply_cache import Reply
from attnprobe.tasks.task_data import TaskData
from attnprobe.tasks.task_folder import TaskFolder
from attnprobe.tasks.task_measuring import grid_config
from attnprobe.tasks.task_options import TaskOptions
from attnprobe.terminal import count, say

REPLIES = "replies.jsonl"

_TRANSPORT = ("key_env", "timeout", "retries", "per_minute", "concurrency", "limit_name")


def observed_task(
    endpoint: Endpoint, tokenizer: str | None, options: TaskOptions, out: Path, *, retry_failed: bool, quiet: bool
) -> TaskData:
    """Ask a server every cell that it has not answered yet, and score the replies.

    Parameters
    ----------
    endpoint
        Whom to ask.
    tokenizer
        The model whose tokens prompts are counted in; None where no length depends on it, and then the results do not
        say how many tokens the prompts have.
    options, out
        The task, and where its results go.
    retry_failed, quiet
        As in :func:`attnprobe.grid.run_cells`.

    Raises
    ------
    InputError
        As :func:`attnprobe.tasks.endpoint.ask`, replies that have arrived being kept; a folder of another task; no
        replies are wanted; more than one process.
    """
    if options.max_new_tokens == 0:
        raise InputError("max_new_tokens is 0, and replies are all that a server gives; raise it")
    if this_process()[1] > 1:
        raise InputError("an endpoint is asked by one process; start the command without accelerate launch")
    counted_in = _tokenizer(tokenizer, options)
    listed = options.listed(counted_in)
    for note in listed.notes:
        say(f"note: {note}", quiet)
    folder = TaskFolder.open(out, endpoint.model)
    whom = {name: value for name, value in asdict(endpoint).items() if name not in _TRANSPORT}
    asked = {"endpoint": whom, "tokenizer": tokenizer}
    config = grid_config(endpoint.model, options, asked)
    if (folder.cells / GRID).exists():  # before anything of it is written over
        same_grid(folder.cells, grid_content(config, [spec.key for spec in listed.specs]), out)
    folder.describe(endpoint.model, options, listed, asked)
    built = [spec.build(counted_in) for spec in listed.specs]
    say(f"{endpoint.model} at {endpoint.host}: {options.task}, {count(len(built), 'cell')}", quiet)
    replies = ask(endpoint, [chat_messages(cell.prompt) for cell in built], folder.path / REPLIES, quiet)

    def do(cell: Cell, relief: int) -> dict[str, Any]:
        return _facts(*cell.work)

    cells = [Cell(cell.key, 1.0, (cell, reply)) for cell, reply in zip(built, replies, strict=True)]
    run_cells(folder.cells, config, cells, do, quiet=True, retry_failed=retry_failed, name=out)
    if unscored := [why for why in map(_not_scored, replies) if why]:
        reasons = ", ".join(f"{why} ({n})" for why, n in Counter(unscored).items())
        say(f"note: {count(len(unscored), 'reply', 'replies')} of {len(replies)} not scored: {reasons}", quiet)
    return folder.load()


def _tokenizer(name: str | None, options: TaskOptions) -> Any:
    from attnprobe.blueprint import blueprint

    if name is None:
        if options.is_of_lengths:
            raise InputError(
                f"the prompts of {options.task} are counted in tokens, and a server does not say what its tokens are; "
                "name a model with the same ones (--tokenizer, or tokenizer in the config's endpoint)"
            )
        return None
    return blueprint(name).lm.tokenizer


def _not_scored(reply: Reply) -> str | None:
    """Why a reply says nothing about the answer, or None."""
    if reply.finish_reason == "content_filter":
        return "the server filtered it"
    return None if reply.text.strip() else "it is empty"


def _facts(cell: TaskCell, reply: Reply) -> dict[str, Any]:
    """What is kept of a cell; a reply that the server withheld or left empty is no answer, and has no scores."""
    is_cut = reply.finish_reason == "length"
    why = _not_scored(reply)
    if why is None:
        strict, lenient, more = reply_scores(cell, reply.text)
    else:
        strict, lenient, more = None, None, {"reply": reply.text, "not_scored": why}
    facts = {
        **cell.facts,
        "needles": cell.needles,
        **more,
        "finish_reason": reply.finish_reason,
        "reply_cut": is_cut,
        "server_tokens": reply.prompt_tokens,
    }
    outcome = Outcome(cell.item, cell.trial, dict(cell.condition), strict=strict, lenient=lenient, facts=facts)
    return {
        "outcome": outcome.to_dict(),
        "n_prompt": cell.facts.get("prompt_tokens"),
        "layers": [],
        "arrays": [],
        "warnings": [
            *(["the reply was cut off at max_tokens"] if is_cut else []),
            *([] if why is None else [f"not scored: {why}"]),
        ],
        HOW: {"server_model": reply.model},
    }
