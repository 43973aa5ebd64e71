"""Options of the command line: their types and help, and the small languages that some of them are written in."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import typer

from attnprobe.errors import InputError
from attnprobe.terminal import bytes_of

ModelName = Annotated[str, typer.Option("--model", "-m", help="Alias (smollm2), hub id, folder, or .gguf file.")]
Dtype = Annotated[
    str | None,
    typer.Option(help="float32, bfloat16, float16, or auto. [default: float32 on a CPU, else the checkpoint's own]"),
]
DeviceMap = Annotated[
    str | None, typer.Option(help="cpu, cuda:1, auto, ... [default: the first CUDA device, else the CPU]")
]
AttnImplementation = Annotated[
    str | None, typer.Option(help="sdpa, eager, flash_attention_2, ... [default: transformers' choice]")
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Measure cells again that failed.")]
Rope = Annotated[str | None, typer.Option(help='RoPE override, e.g. "yarn:factor=4". [default: the model\'s own]')]
Scalings = Annotated[
    list[str] | None,
    typer.Option(
        "--scaling",
        help='RoPE scaling, e.g. none, linear:4, dynamic:4, "yarn:factor=4"; may be repeated.',
    ),
]
Lengths = Annotated[str | None, typer.Option(help="Prompt lengths, tokens, e.g. 2k,8k,16k; k is 1024.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id. [default: main]")]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")]

PromptFile = Annotated[str, typer.Argument(metavar="PROMPTS", help="Prompt file, or - for standard input.")]
Format = Annotated[
    Literal["auto", "prompts", "lost_in_the_middle", "hotpotqa", "squad"],
    typer.Option(help="Format of PROMPTS; auto tells by content."),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Read so many prompts only. [default: all]")]
Layout = Annotated[
    Literal["question_last", "question_first", "question_both"],
    typer.Option(help="Where the question stands."),
]
Markers = Annotated[Literal["xml", "numbered", "none"], typer.Option(help="What is written around documents.")]
Template = Annotated[
    Literal["auto", "chat", "plain"], typer.Option(help="Chat template, plain text, or chat where there is one.")
]
Answers = Annotated[
    Literal["generate", "file"],
    typer.Option(
        "--answers",
        "--answer",
        help='Let the model write its answer, or force the "answer" of each prompt of the file.',
    ),
]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Longest answer to generate, tokens.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Prompts run together.")]
PrefillChunk = Annotated[str, typer.Option(help="Tokens of the prompt fed at a time: a number, none (all), or auto.")]
BeyondWindow = Annotated[
    bool, typer.Option("--beyond-window", help="Allow prompts longer than the model was made for.")
]
Rows = Annotated[
    Literal["predicting", "answer"],
    typer.Option(help="Query rows averaged: those that predict the answer's tokens, or the answer's own."),
]
NoRows = Annotated[bool, typer.Option("--no-rows", help="Keep means over rows only; smaller files.")]
Json = Annotated[bool, typer.Option("--json", help="Print results as JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No messages or progress on standard error.")]
Force = Annotated[bool, typer.Option("--force", help="Measure again what is in the folder already.")]


def chunk_tokens(text: str) -> int | Literal["auto"] | None:
    """``--prefill-chunk`` as ``measure`` takes it."""
    if text == "auto":
        return "auto"
    if text == "none":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f'--prefill-chunk is "{text}"; give a number of tokens, none, or auto')
    return int(text)


def sampling_arguments(sample: bool, temperature: float | None, top_p: float | None, seed: int) -> dict[str, Any]:
    """Arguments of ``measure`` that say how answers are drawn."""
    given = {"temperature": temperature, "top_p": top_p}
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen and not sample:
        raise InputError(f"--{next(iter(chosen)).replace('_', '-')} has no effect without --sample; add it")
    if temperature is not None and not 0 < temperature < float("inf"):
        raise InputError(f"--temperature is {temperature}; give a number above 0, or leave out --sample")
    if top_p is not None and not 0 < top_p <= 1:
        raise InputError(f"--top-p is {top_p}; give a number above 0, up to 1")
    return {"do_sample": True, "seed": seed, **chosen} if sample else {}


def layer_numbers(text: str | None) -> list[int] | None:
    """``--layers 0-5,7`` as layer numbers."""
    return None if text is None else listed_numbers("--layers", text)


def head_numbers(text: str | None) -> list[int] | list[tuple[int, int]] | None:
    """``--heads 0-3`` as head numbers, ``--heads 12:3,14:0`` as (layer, head) pairs."""
    if text is None or ":" not in text:
        return None if text is None else listed_numbers("--heads", text)
    pairs = [re.fullmatch(r"\s*(\d+):(\d+)\s*", part) for part in text.split(",")]
    if not all(pairs):
        raise InputError(f'--heads is "{text}"; give heads like 0-3,5, or layer:head pairs like 12:3,14:0')
    return [(int(pair[1]), int(pair[2])) for pair in pairs if pair]


def listed_numbers(option: str, text: str) -> list[int]:
    """``0-5,7`` as a list of numbers, each once, ascending."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise InputError(f'{option} is "{text}"; give numbers and ranges like 0-5,7')
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(numbers)


def kept_bytes(text: str) -> int:
    """``--keep-runs 2 GB`` as bytes."""
    try:
        return bytes_of(text)
    except ValueError as error:
        raise InputError(f'--keep-runs is "{text}"; it {error}') from error


def prompt_lengths(text: str | None) -> list[int]:
    """``--lengths 2k,8192`` as tokens, each once, ascending; k is 1024."""
    if text is None:
        return []
    parts = [re.fullmatch(r"\s*(\d{1,9})(k?)\s*", part) for part in text.lower().split(",")]
    lengths = {int(part[1]) * (1024 if part[2] else 1) for part in parts if part}
    if not all(parts) or 0 in lengths:
        raise InputError(f'--lengths is "{text}"; give numbers of tokens like 2k,8k,16000 (k is 1024)')
    return sorted(lengths)


def depth_parts(text: str) -> tuple[float, ...]:
    """``--depths 0,0.5,1`` as parts of a text, in the order given."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f'--depths is "{text}"; give numbers from 0 (start) to 1 (end) like 0,0.5,1') from error


def listed_names(option: str, text: str) -> tuple[str, ...]:
    """``--variants null,preamble`` as names; ``none`` or nothing as no names."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if "none" not in names:
        return names
    if len(names) > 1:
        raise InputError(f'{option} is "{text}"; none stands alone: leave it out, or the others')
    return ()
