"""The lines that a terminal shows of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnprobe.power import PlannedQuestions
from attnprobe.rope_options import short_name
from attnprobe.spans import SPAN_KINDS
from attnprobe.terminal import count, decimal, duration, fit, named, percent, size, table, wrapped

if TYPE_CHECKING:
    from attnprobe.plan import Plan, PlannedPrompt
    from attnprobe.plan_study import StudyPlan
    from attnprobe.rope_plan import PlannedScalings
    from attnprobe.tasks.task_plan import TaskPlan

    AnyPlan = Plan | StudyPlan | TaskPlan | PlannedScalings

_MOST_PROMPTS = 10
_MOST_DOCUMENTS = 20


def plan_lines(plan: Plan) -> list[str]:
    """What ``attnprobe plan`` prints."""
    lines = [*_model_lines(plan), "", *_prompt_table(plan), "", *_kind_table(plan), ""]
    if len(plan.prompts) == 1:
        lines += [*_document_table(plan.prompts[0]), ""]
    for prompt in plan.too_long[:_MOST_PROMPTS]:
        lines += wrapped(
            f'! prompt "{fit(prompt.id, 40).rstrip()}" is {count(prompt.n_over, "token")} too long with its answer of '
            f"up to {count(prompt.n_answer, 'token')}",
            indent="  ",
        )
    longest = max(prompt.n_answer for prompt in plan.prompts)
    answers = f"{count(len(plan.prompts), 'prompt')} (answers of up to {count(longest, 'token')}"
    return [
        *lines,
        *_memory_lines(plan),
        *wrapped(f"disk: {size(plan.disk)} of run files", indent="  "),
        *wrapped(f"time: about {duration(plan.seconds)} for {answers}; loading apart). {_rates(plan)}", indent="  "),
    ]


def study_plan_lines(plan: StudyPlan) -> list[str]:
    """What ``attnprobe plan --study`` prints."""
    rows = [(name, f"{n:,}") for name, n in plan.cells.items()]
    n_cells = sum(plan.cells.values())
    lines = [
        *_model_lines(plan),
        "",
        *wrapped(
            f"{count(plan.questions, 'question')} of {count(plan.documents, 'document')} in "
            f"{count(plan.orders, 'order')} each; the longest prompt and answer: {count(plan.longest, 'token')}"
        ),
        "",
        *table(("cells", "number"), [*rows, ("all", f"{n_cells:,}")], (False, True)),
        *wrapped(
            "own: the model writes its own answer; asked: the prompts as they are, with the null variant where it is "
            "measured; others: variants"
        ),
        "",
    ]
    if plan.too_long:
        lines += wrapped(
            f"! {count(len(plan.too_long), 'question')} too long for the model's window: {named(plan.too_long)}",
            indent="  ",
        )
    return [
        *lines,
        *wrapped(f"tokens: {plan.tokens:,} to feed", indent="  "),
        *_memory_lines(plan),
        *wrapped(f"disk: {size(plan.disk['arrays'])} of arrays, {size(plan.disk['runs'])} of whole runs", indent="  "),
        *wrapped(
            f"time: about {duration(plan.seconds)} for {count(n_cells, 'cell')}; loading apart. {_rates(plan)}",
            indent="  ",
        ),
    ]


def task_plan_lines(plan: TaskPlan) -> list[str]:
    """What ``attnprobe plan`` prints of a task's config."""
    lines = [
        *_model_lines(plan),
        "",
        *wrapped(
            f"{plan.task}: {count(plan.cells, 'cell')} of {count(plan.items, 'item')}; the longest prompt: "
            f"{count(plan.longest, 'token')}"
        ),
        "",
    ]
    if plan.too_long:
        lines += wrapped(
            f"! {count(len(plan.too_long), 'cell')} too long for the model's window: {named(plan.too_long)}",
            indent="  ",
        )
    return [
        *lines,
        *wrapped(f"tokens: {plan.tokens:,} to feed, of {plan.prompt_tokens:,} in prompts", indent="  "),
        *_memory_lines(plan),
        *wrapped(f"disk: {size(plan.disk)} of arrays", indent="  "),
        *wrapped(f"time: about {duration(plan.seconds)}; loading apart. {_rates(plan)}", indent="  "),
    ]


def scalings_plan_lines(plan: PlannedScalings) -> list[str]:
    """What ``attnprobe plan`` prints of a config that compares RoPE scalings."""
    n_each = plan.cells // len(plan.scalings)
    rows = [
        (
            short_name(one.scaling),
            "-" if one.window is None else f"{one.window:,}",
            f"{n_each:,}",
            f"{one.tokens:,}",
            duration(one.seconds),
        )
        for one in plan.scalings
    ]
    rows.append(("all", "", f"{plan.cells:,}", f"{plan.tokens:,}", duration(plan.seconds)))
    lengths = ", ".join(f"{length:,}" for length in plan.lengths)
    beyond = f"beyond the unscaled model's window of {plan.max_positions:,}: "
    beyond += ", ".join(f"{length:,}" for length in plan.beyond) if plan.beyond else "none of the lengths"
    return [
        *_model_lines(plan),
        "",
        *wrapped(
            f"{count(len(plan.scalings), 'scaling')} x {count(n_each, 'text')}, a cell each: {plan.texts:,} of "
            f"each length ({lengths} tokens), {count(plan.questions, 'question')} each; the longest prompt and answer: "
            f"{count(plan.longest, 'token')}; {beyond}"
        ),
        "",
        *table(("scaling", "window", "cells", "tokens to feed", "time"), rows, (False, True, True, True, True)),
        "",
        *wrapped(f"tokens: {plan.tokens:,} to feed, of {plan.prompt_tokens:,} in prompts and answers", indent="  "),
        *_memory_lines(plan),
        *wrapped(f"disk: {size(plan.disk)} of arrays", indent="  "),
        *wrapped(f"time: about {duration(plan.seconds)}; loading apart. {_rates(plan)}", indent="  "),
    ]


def _model_lines(plan: AnyPlan) -> list[str]:
    window = "no limit of positions" if plan.max_positions is None else f"window {plan.max_positions:,} tokens"
    lines = wrapped(
        f"{plan.model}: {plan.n_parameters:,} parameters, {plan.dtype} on {plan.device}, "
        f"{plan.attn_implementation} attention, {window}"
    )
    if not plan.is_converted:
        lines += wrapped(
            "This GGUF file has not been converted yet; the first load does that once, and keeps "
            f"{size(4 * plan.n_parameters)} in the cache folder."
        )
    return lines


def _rates(plan: AnyPlan) -> str:
    return (
        f"An estimate from {plan.rates.flops / 1e9:,.0f} GFLOP/s and {plan.rates.bytes / 1e9:,.0f} GB/s, probed on "
        "this machine now; other programs make it longer."
    )


def power_lines(planned: PlannedQuestions, is_pilot: bool) -> list[str]:
    """What ``attnprobe plan --power`` prints."""
    low, high = planned.interval
    source = "as given" if is_pilot else "assumed; give a pilot study's with --sd-log"
    rows = [[f"{n:,}", decimal(planned.half_widths[n]), decimal(planned.detectable[n])] for n in planned.half_widths]
    return [
        *wrapped(
            f"A ratio of {planned.ratio:g} with a 95 % interval of about {low:.3g} to {high:.3g}: "
            f"{count(planned.n_typical, 'question')} typically, {planned.n_assured:,} to be 80 % sure."
        ),
        "",
        *table(["questions", "half-width", "smallest ratio told from 1 (power 0.8)"], rows, [True, True, True]),
        "",
        *wrapped(f"Standard deviation of the log ratio between questions: {planned.sd_log:g} ({source})."),
    ]


def _prompt_table(plan: Plan) -> list[str]:
    """The first few prompts: documents, their lengths, and how much of the window is used."""
    shown = plan.prompts[:_MOST_PROMPTS]
    longest = min(max(len(prompt.id) for prompt in shown), 24)
    rows = []
    for prompt in shown:
        total = prompt.n_prompt + prompt.n_answer
        used = None if plan.max_positions is None else total / plan.max_positions
        each = prompt.document_tokens
        ends = "-" if not each else f"{min(each):,}" if min(each) == max(each) else f"{min(each):,} - {max(each):,}"
        cells = (str(len(each)), ends, f"{prompt.n_prompt:,}", f"{prompt.n_answer:,}", percent(used))
        rows.append((fit(prompt.id, longest), *cells))
    header = ("prompt", "documents", "tokens each", "prompt", "answer", "of window")
    lines = table(header, rows, (False, True, True, True, True, True))
    if len(plan.prompts) > len(shown):
        lines.append(f"... {count(len(plan.prompts) - len(shown), 'prompt')} more")
    return lines


def _kind_table(plan: Plan) -> list[str]:
    """Tokens of all prompts by kind of span."""
    totals = {kind: sum(prompt.kinds.get(kind, 0) for prompt in plan.prompts) for kind in SPAN_KINDS}
    n_tokens = sum(totals.values())
    rows = [(kind, f"{n:,}", percent(n / n_tokens)) for kind, n in totals.items() if n]
    rows.append(("all", f"{n_tokens:,}", percent(1.0)))
    return table(("span kind", "tokens", "share"), rows, (False, True, True))


def _document_table(prompt: PlannedPrompt) -> list[str]:
    if not prompt.documents:
        return ["no documents: there will be no curve"]
    rows = [
        (str(position), f"{tokens:,}", name)
        for position, (name, tokens) in enumerate(zip(prompt.documents, prompt.document_tokens, strict=True))
    ]
    lines = table(("position", "tokens", "document"), rows[:_MOST_DOCUMENTS], (True, True, False))
    if len(rows) > _MOST_DOCUMENTS:
        lines.append(f"... {count(len(rows) - _MOST_DOCUMENTS, 'document')} more")
    return lines


def _memory_lines(plan: AnyPlan) -> list[str]:
    parts = ", ".join(f"{name} {size(n_bytes)}" for name, n_bytes in plan.memory.items())
    return wrapped(
        f"memory: about {size(sum(plan.memory.values()))} at the peak ({parts}), and what Python and torch take "
        "themselves, some 0.7 GB",
        indent="  ",
    )
