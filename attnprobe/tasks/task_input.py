"""Who does a task: models that are measured, or a server that is observed. Light, for configs and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnprobe.tasks.endpoint import Endpoint
from attnprobe.tasks.task_judge import Judging


@dataclass(frozen=True)
class TaskInput:
    """Who does a task.

    Parameters
    ----------
    models
        Aliases, hub ids, folders or files.
    loading
        Arguments of :func:`attnprobe.load`.
    endpoint
        A model on a server instead, of which behaviour alone is observed.
    tokenizer
        The model whose tokens the endpoint's prompts are counted in.
    judge
        A model on a server that compares replies with the answers.
    """

    models: tuple[str, ...] = ()
    loading: Mapping[str, Any] = field(default_factory=dict)
    endpoint: Endpoint | None = None
    tokenizer: str | None = None
    judge: Judging | None = None
