"""Plan a task without loading weights: its cells, the tokens that they feed, time, memory and disk."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from attnprobe.blueprint import Blueprint
from attnprobe.estimate import Rates, Workload, memory, model_shape, probe
from attnprobe.grid_processes import deal
from attnprobe.plan import about_model
from attnprobe.plan_study import CELL_SECONDS, OWN, Pass, pass_seconds
from attnprobe.prefix_cache import keeps_every_key, n_common
from attnprobe.prompt import encode_answer
from attnprobe.rope import changes_with_length
from attnprobe.tasks.task_options import TaskOptions
from attnprobe.tasks.task_order import ordered
from attnprobe.terminal import work_bar


@dataclass(frozen=True)
class TaskPlan:
    """What a task will take.

    Parameters
    ----------
    model, n_parameters, dtype, device, attn_implementation, max_positions, is_converted, rates
        As in :class:`attnprobe.plan.Plan`.
    task
        Which one.
    items, cells
        How many.
    prompt_tokens
        Of all prompts.
    tokens
        Of them, those that are fed: what a prompt begins with as the one before it does is not.
    longest
        Tokens of the longest prompt.
    too_long
        Keys of the cells that do not fit the model's window with their reply.
    memory
        Bytes at the peak, by what needs them.
    disk
        Bytes of the arrays; tables and pictures apart.
    seconds
        Loading apart; replies as long as allowed. An estimate, as in :class:`attnprobe.plan.Plan`.
    """

    model: str
    n_parameters: int
    dtype: str
    device: str
    attn_implementation: str
    max_positions: int | None
    is_converted: bool
    task: str
    items: int
    cells: int
    prompt_tokens: int
    tokens: int
    longest: int
    too_long: tuple[str, ...]
    memory: dict[str, float]
    disk: int
    seconds: float
    rates: Rates

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {**asdict(self), "fits": not self.too_long, "peak_bytes": sum(self.memory.values())}


def plan_task(blueprint: Blueprint, options: TaskOptions, quiet: bool = True) -> TaskPlan:
    """Plan a task on a model, done by one process; every prompt is built.

    Raises
    ------
    InputError
        As the task itself, as far as that can be told without weights.
    """
    lm = blueprint.lm
    (cells,) = deal(ordered(options.listed(lm.tokenizer).specs, options.n_documents), 1)
    reuses = keeps_every_key(lm.model) and not changes_with_length(lm.model.config)
    passes: list[Pass] = []
    too_long: list[str] = []
    before = np.empty(0, dtype=np.int64)
    prompt_tokens = tokens = n_documents = 0
    with work_bar("building", len(cells), quiet) as advance:
        for number, planned in enumerate(cells):
            cell = planned.work.build(lm.tokenizer)
            encoded = cell.prompt.encode(lm.tokenizer)
            n_prompt, n_spans, ids = encoded.n_tokens, len(encoded.spans) + 1, np.asarray(encoded.token_ids)
            n_reused = min(n_common(before, ids), n_prompt - 1) if reuses else 0
            again = n_prompt - 1 if reuses else 0
            answers = [len(encode_answer(encoded, lm.tokenizer, text)[0]) for text in (cell.gold, cell.foil) if text]
            passes.append(Pass(n_prompt, answers[0], n_spans, n_reused))
            passes += [Pass(n_prompt, n_answer, n_spans, again) for n_answer in answers[1:]]
            if options.max_new_tokens:
                passes.append(Pass(n_prompt, options.max_new_tokens, n_spans, again, OWN))
            if n_prompt + max(*answers, options.max_new_tokens) > (lm.max_positions or n_prompt * 2):
                too_long.append(cell.key)
            prompt_tokens += n_prompt
            tokens += n_prompt - n_reused
            n_documents += len(cell.prompt.documents)
            before = ids
            advance(number + 1, f"{number + 1}/{len(cells)}")
    shape = model_shape(lm)
    rates = probe(shape, lm.model.dtype, blueprint.device)
    longest = max(passes, key=lambda one: one.n_tokens)
    heads = sum(layer.n_heads for layer in shape.layers)
    return TaskPlan(
        **about_model(blueprint, shape),
        task=options.task,
        items=len({cell.work.item for cell in cells}),
        cells=len(cells),
        prompt_tokens=prompt_tokens,
        tokens=tokens,
        longest=max(one.n_prompt for one in passes),
        too_long=tuple(too_long),
        memory=memory(lm, shape, Workload(longest.n_prompt, longest.n_answer, longest.n_spans)),
        disk=4 * heads * (n_documents + 2 * len(cells)),
        seconds=sum(pass_seconds(shape, one, rates) for one in passes) + CELL_SECONDS * len(cells),
        rates=rates,
    )
