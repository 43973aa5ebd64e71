"""Plan a measurement without loading weights: tokens, what fits the window, memory, disk and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from attnprobe.architecture import implementation_of
from attnprobe.batch import prefill_chunk_of
from attnprobe.blueprint import Blueprint
from attnprobe.errors import InputError
from attnprobe.estimate import ModelShape, Rates, Workload, memory, model_shape, probe, run_file_bytes, seconds
from attnprobe.prompt import Prompt, encode_answer
from attnprobe.spans import SPAN_KINDS
from attnprobe.terminal import work_bar


@dataclass(frozen=True)
class PlannedPrompt:
    """One prompt as the model will read it.

    Parameters
    ----------
    id
        Of the prompt.
    n_prompt, n_answer
        Tokens of the prompt, and of its answer: the forced one's, else the most that are generated.
    kinds
        Tokens of each kind of span.
    spans
        Tokens of every span, by name, in prompt order.
    documents, document_tokens
        Names and tokens of the documents.
    n_over
        Tokens beyond the model's window; 0 where prompt and answer fit.
    warnings
        Of the encoding.
    """

    id: str
    n_prompt: int
    n_answer: int
    kinds: dict[str, int]
    spans: dict[str, int]
    documents: tuple[str, ...]
    document_tokens: tuple[int, ...]
    n_over: int
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What measuring the prompts will take.

    Parameters
    ----------
    model, n_parameters, dtype, device, attn_implementation
        What would be loaded, and where.
    max_positions
        The model's window, tokens; None without limit.
    is_converted
        False for a GGUF file that the first load has to convert.
    prompts
        In the file's order.
    memory
        Bytes at the peak of the batch that needs most, by what needs them (``estimate.memory``).
    disk
        Bytes of all run files.
    seconds
        Of all prompts, the loading of the model apart; answers as long as allowed. An estimate: two rates probed on
        this machine, times a fixed efficiency. SmolLM2 on two quiet CPU cores, six runs of 650 to 2,200 tokens, took
        0.95 to 1.13 times the estimate; where other programs compete for the cores it took up to 8 times as long.
    rates
        The probed rates.
    """

    model: str
    n_parameters: int
    dtype: str
    device: str
    attn_implementation: str
    max_positions: int | None
    is_converted: bool
    prompts: tuple[PlannedPrompt, ...]
    memory: dict[str, float]
    disk: int
    seconds: float
    rates: Rates

    @property
    def too_long(self) -> tuple[PlannedPrompt, ...]:
        """Prompts that do not fit the model's window."""
        return tuple(prompt for prompt in self.prompts if prompt.n_over)

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's terms."""
        return {**asdict(self), "fits": not self.too_long, "peak_bytes": sum(self.memory.values())}


def plan(
    blueprint: Blueprint,
    prompts: Sequence[Prompt],
    *,
    answers: Literal["generate", "file"] = "generate",
    max_new_tokens: int = 64,
    batch_size: int = 1,
    prefill_chunk: int | Literal["auto"] | None = "auto",
    keep_rows: bool = True,
    quiet: bool = True,
) -> Plan:
    """Plan the measurement of prompts on a model.

    Parameters
    ----------
    blueprint
        The model without weights.
    prompts, answers, max_new_tokens, batch_size, prefill_chunk, keep_rows
        As for ``measure_folder``.
    quiet
        Show no progress.

    Raises
    ------
    InputError
        When a prompt cannot be encoded, or has no answer to force.
    """
    lm = blueprint.lm
    planned: list[PlannedPrompt] = []
    works: list[Workload] = []
    with work_bar("reading", len(prompts), quiet) as advance:
        for number, prompt in enumerate(prompts):
            one, n_spans = _planned(blueprint, number, prompt, answers, max_new_tokens)
            planned.append(one)
            chunk = prefill_chunk_of(lm, one.n_prompt, batch_size > 1, prefill_chunk)
            is_forced = answers == "file"
            works.append(Workload(one.n_prompt, one.n_answer, n_spans, 1, is_forced, chunk, keep_rows))
            advance(number + 1, f"{number + 1}/{len(prompts)}")
    shape = model_shape(lm)
    rates = probe(shape, lm.model.dtype, blueprint.device)
    batches = _batches(works, batch_size)
    needs = [memory(lm, shape, batch) for batch in batches]
    return Plan(
        **about_model(blueprint, shape),
        prompts=tuple(planned),
        memory=max(needs, key=lambda need: sum(need.values())),
        disk=sum(run_file_bytes(shape, work) for work in works),
        seconds=sum(seconds(shape, batch, rates) for batch in batches),
        rates=rates,
    )


def about_model(blueprint: Blueprint, shape: ModelShape) -> dict[str, Any]:
    """What every plan says about its model: the first fields of :class:`Plan`."""
    lm = blueprint.lm
    return {
        "model": lm.source.name,
        "n_parameters": shape.n_parameters,
        "dtype": str(lm.source.dtype),
        "device": blueprint.device,
        "attn_implementation": implementation_of(lm.model),
        "max_positions": lm.max_positions,
        "is_converted": blueprint.is_converted,
    }


def _planned(
    blueprint: Blueprint, number: int, prompt: Prompt, answers: str, max_new_tokens: int
) -> tuple[PlannedPrompt, int]:
    """The prompt, and how many spans its run will have."""
    lm, id = blueprint.lm, str(number) if prompt.id is None else prompt.id
    try:
        encoded = prompt.encode(lm.tokenizer)
        n_answer, warnings = max_new_tokens, encoded.warnings
        if answers == "file":
            if not prompt.answer:
                raise InputError('it has no answer to force; give it an "answer", or let the model generate')
            ids, more = encode_answer(encoded, lm.tokenizer, prompt.answer)
            n_answer, warnings = len(ids), (*warnings, *more)
    except InputError as error:
        raise InputError(f'prompt "{id}": {error}') from error
    kinds = {kind: sum(s.n_tokens for s in encoded.spans if s.kind == kind) for kind in SPAN_KINDS}
    documents = sorted((s for s in encoded.spans if s.kind == "document"), key=lambda s: s.document or 0)
    over = encoded.n_tokens + n_answer - (lm.max_positions or encoded.n_tokens + n_answer)
    planned = PlannedPrompt(
        id=id,
        n_prompt=encoded.n_tokens,
        n_answer=n_answer,
        kinds={kind: n for kind, n in kinds.items() if n},
        spans={span.name: span.n_tokens for span in encoded.spans},
        documents=tuple(span.name for span in documents),
        document_tokens=tuple(span.n_tokens for span in documents),
        n_over=max(over, 0),
        warnings=warnings,
    )
    return planned, len(encoded.spans) + 1


def _batches(works: Sequence[Workload], batch_size: int) -> list[Workload]:
    """Batches as ``measure_many`` makes them, longest first; each as long as its longest prompt."""
    ordered = sorted(works, key=lambda work: -(work.n_prompt + work.n_answer))
    groups = [ordered[start : start + batch_size] for start in range(0, len(ordered), batch_size)]
    return [
        Workload(
            max(work.n_prompt for work in group),
            max(work.n_answer for work in group),
            max(work.n_spans for work in group),
            len(group),
            group[0].is_forced,
            group[0].prefill_chunk,
            group[0].keep_rows,
        )
        for group in groups
    ]
