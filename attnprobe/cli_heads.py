"""The command ``attnprobe heads``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from attnprobe.cli_options import (
    AttnImplementation,
    BeyondWindow,
    DeviceMap,
    Dtype,
    Json,
    Layout,
    Limit,
    Markers,
    ModelName,
    Quiet,
    RetryFailed,
    Revision,
    Rope,
    Template,
    TrustRemoteCode,
)
from attnprobe.cli_output import print_json, print_lines, reported


def heads(
    prompts: Annotated[Path, typer.Argument(metavar="PROMPTS", help="Prompt file, one question a prompt.")],
    model: ModelName,
    out: Annotated[Path, typer.Option(help="Folder for every finished cell and the results; a second call resumes.")],
    needle: Annotated[
        Literal["document", "sentence", "answer"],
        typer.Option(
            help="What is to be copied: the whole gold document, its sentence that holds the answer, or the answer's "
            "own words in it, as in the published code."
        ),
    ] = "answer",
    answers: Annotated[
        Literal["generate", "file"],
        typer.Option(help="The model's own answers, of which those that recall the needle count; or force the file's."),
    ] = "generate",
    orders: Annotated[int, typer.Option(min=1, help="Random orders of each question's documents.")] = 3,
    by: Annotated[
        Literal["retrieval", "in_needle", "advantage", "sink", "locality", "distance"],
        typer.Option(help="Choose heads by this score; may be changed without measuring again."),
    ] = "retrieval",
    top: Annotated[int, typer.Option(min=1, help="Heads to choose.")] = 10,
    split: Annotated[
        Literal["random", "alternate"],
        typer.Option(help="Halves of the questions: drawn from the seed, or every second one."),
    ] = "random",
    seed: Annotated[int, typer.Option(min=0, help="Draws orders, halves and distractors.")] = 0,
    n_documents: Annotated[
        int | None,
        typer.Option(min=2, help="Fill questions up to so many documents with distractors from the file's others."),
    ] = None,
    limit: Limit = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer to generate, tokens.")] = 32,
    no_sinks: Annotated[
        bool, typer.Option("--no-sinks", help="Do not look for secondary sinks: half the time, first token only.")
    ] = False,
    beyond_window: BeyondWindow = False,
    layout: Layout = "question_last",
    markers: Markers = "xml",
    template: Template = "auto",
    dtype: Dtype = None,
    device_map: DeviceMap = None,
    attn_implementation: AttnImplementation = None,
    rope: Rope = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    retry_failed: RetryFailed = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the heads that retrieve: whose heaviest key is the needle's token that is written next.

    Heads are chosen on one half of the questions and judged on the other. Writes every head's scores (heads.csv), a
    picture (heads.png) and a summary (heads.json). Every finished cell is kept in OUT at once; the same command goes on
    where it was interrupted.
    """
    with reported(kept=out):
        from attnprobe.heads_command import run_heads
        from attnprobe.heads_options import HeadsOptions
        from attnprobe.heads_text import heads_lines

        options = HeadsOptions(
            needle=needle,
            answers=answers,
            orders=orders,
            sinks=not no_sinks,
            seed=seed,
            max_new_tokens=max_new_tokens,
            beyond_window=beyond_window,
            by=by,
            n_heads=top,
            split=split,
        )
        result = run_heads(
            model,
            prompts,
            options,
            out,
            n_documents=n_documents,
            limit=limit,
            form={"layout": layout, "markers": markers, "template": template},
            loading={
                "dtype": dtype,
                "device_map": device_map,
                "attn_implementation": attn_implementation,
                "rope": rope,
                "revision": revision,
                "trust_remote_code": trust_remote_code,
            },
            retry_failed=retry_failed,
            quiet=quiet,
        )
        if result is None:
            return
        if json_:
            print_json(result.to_dict())
        else:
            print_lines(heads_lines(result))
