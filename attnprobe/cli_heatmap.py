"""The command ``attnprobe heatmap``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from attnprobe.cli_input import given_file
from attnprobe.cli_options import (
    Answers,
    AttnImplementation,
    BeyondWindow,
    DeviceMap,
    Dtype,
    Format,
    Json,
    Layout,
    Limit,
    Markers,
    MaxNewTokens,
    PrefillChunk,
    Quiet,
    Revision,
    Rope,
    Template,
    TrustRemoteCode,
    chunk_tokens,
    head_numbers,
)
from attnprobe.cli_output import print_json, print_lines, reported
from attnprobe.errors import InputError


def heatmap(
    prompts: Annotated[
        str, typer.Argument(metavar="PROMPTS", help="Prompt file, - for standard input, or a saved run (.safetensors).")
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Alias (smollm2), hub id, folder, or .gguf file; not for a saved run."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page (.html), or a folder for a page a prompt.")] = Path(
        "out/heatmap"
    ),
    prompt: Annotated[
        str | None, typer.Option(help="This prompt only: its id, or its number in the file from 0. [default: all]")
    ] = None,
    answers: Answers = "generate",
    max_new_tokens: MaxNewTokens = 64,
    rows: Annotated[
        Literal["predicting", "answer"],
        typer.Option(help="Query rows shown: those that predict the answer's tokens, or the answer's own."),
    ] = "predicting",
    heads: Annotated[
        str | None,
        typer.Option(
            help="Heads kept token by token at any length: layer:head pairs, e.g. 12:3,14:0. [default: those that give "
            "documents most]"
        ),
    ] = None,
    format: Format = "auto",
    limit: Limit = None,
    layout: Layout = "question_last",
    markers: Markers = "xml",
    template: Template = "auto",
    prefill_chunk: PrefillChunk = "auto",
    beyond_window: BeyondWindow = False,
    dtype: Dtype = None,
    device_map: DeviceMap = None,
    attn_implementation: AttnImplementation = None,
    rope: Rope = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show a prompt's text with every token shaded by the attention it got.

    Writes one page a prompt that works offline and can be mailed: choose layers and heads, pick an answer token,
    search. Each page is written as soon as its prompt is measured. A second call measures all of its prompts again; to
    go on after an interruption, keep runs with measure --extras columns,keys,top, which resumes, and give those: a
    saved run with these extras needs no model.
    """
    with reported():
        pairs = _pairs(heads)
        chunk = chunk_tokens(prefill_chunk)
        from attnprobe.heatmap_command import heatmap_of_run, heatmaps_of_prompts

        if prompts.endswith(".safetensors"):
            if model is not None or prompt is not None:
                raise InputError(
                    f"{prompts} is a saved run, which needs no --model and has no other prompts; leave out "
                    f"--{'prompt' if model is None else 'model'}"
                )
            pages = [heatmap_of_run(Path(prompts), out, pairs)]
        else:
            if model is None:
                raise InputError(f"{prompts} is no saved run (.safetensors), so give --model to measure its prompts")
            with given_file(prompts) as path:
                pages = heatmaps_of_prompts(
                    path,
                    model,
                    out,
                    prompt=prompt,
                    heads=pairs,
                    answers=answers,
                    reading={
                        "format": format,
                        "limit": limit,
                        "layout": layout,
                        "markers": markers,
                        "template": template,
                    },
                    loading={
                        "dtype": dtype,
                        "device_map": device_map,
                        "attn_implementation": attn_implementation,
                        "rope": rope,
                        "revision": revision,
                        "trust_remote_code": trust_remote_code,
                    },
                    quiet=quiet,
                    max_new_tokens=max_new_tokens,
                    rows=rows,
                    prefill_chunk=chunk,
                    beyond_window=beyond_window,
                )
        if json_:
            print_json({"pages": [page.to_dict() for page in pages]})
        else:
            print_lines([page.line() for page in pages])


def _pairs(text: str | None) -> list[tuple[int, int]] | None:
    """``--heads`` as (layer, head) pairs; plain head numbers name no layer."""
    chosen: list[Any] | None = head_numbers(text)
    if chosen is not None and not all(isinstance(entry, tuple) for entry in chosen):
        raise InputError(f'--heads is "{text}"; give layer:head pairs like 12:3,14:0')
    return chosen
