"""The command ``attnprobe study``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

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
    Quiet,
    RetryFailed,
    Revision,
    Rope,
    Rows,
    Template,
    TrustRemoteCode,
    kept_bytes,
    listed_names,
)
from attnprobe.cli_output import reported
from attnprobe.errors import InputError


def study(
    prompts: Annotated[Path, typer.Argument(metavar="PROMPTS", help="Prompt file, one question a prompt.")],
    model: Annotated[
        list[str], typer.Option("--model", "-m", help="Alias, hub id, folder, or .gguf file; may be repeated.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for every finished cell and the results; a second call resumes.")],
    answers: Annotated[
        Literal["file", "generate"],
        typer.Option(help="Force the file's answers, or the model's own most frequent answer to each question."),
    ] = "file",
    design: Annotated[
        Literal["williams", "cyclic", "insertion"],
        typer.Option(
            help="Every document at every position, neighbours balanced or rotated; or only the document with the "
            "answer moved."
        ),
    ] = "williams",
    bases: Annotated[int, typer.Option(min=1, help="Random base orders of each question.")] = 1,
    seed: Annotated[int, typer.Option(help="Draws base orders and distractors.")] = 0,
    n_documents: Annotated[
        int | None,
        typer.Option(min=2, help="Fill questions up to so many documents with distractors from the file's others."),
    ] = None,
    gold_only: Annotated[
        bool, typer.Option("--gold-only", help="With --n-documents: keep of each question the marked evidence only.")
    ] = False,
    limit: Limit = None,
    variants: Annotated[
        str,
        typer.Option(
            help='Measured beside the prompts: null, preamble, dummy, or one change, e.g. "markers=numbered"; none.'
        ),
    ] = "null,preamble",
    preamble: Annotated[str | None, typer.Option(help="The sentence of the variant preamble.")] = None,
    length_matched: Annotated[
        bool, typer.Option("--length-matched", help="Fill shorter documents up to the longest one's tokens.")
    ] = False,
    extras: Annotated[
        str, typer.Option(help="More to measure: distance, values, effects (of hiding each document).")
    ] = "",
    rows: Rows = "predicting",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer to generate, tokens.")] = 32,
    keep_runs: Annotated[str, typer.Option(help="Whole run files to keep, as a size.")] = "2 GB",
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
    """Study attention by position: every question's documents at all positions.

    Prints the curve with intervals over questions, what is left of it without known artefacts, and how much of the
    variation is position. Every finished cell is kept in OUT at once; the same command goes on where it was
    interrupted.
    """
    with reported("n_documents", "gold_only", kept=out):
        from attnprobe.study_command import StudyInput, print_study, run_study
        from attnprobe.study_options import StudyOptions, check_changes

        kept = kept_bytes(keep_runs)
        choices: dict[str, Any] = {"preamble": preamble} if preamble is not None else {}
        form = {"layout": layout, "markers": markers, "template": template}
        given = StudyInput(
            models=tuple(model),
            prompts=prompts,
            answers=answers,
            n_documents=n_documents,
            gold_only=gold_only,
            limit=limit,
            form=form,
            loading={
                "dtype": dtype,
                "device_map": device_map,
                "attn_implementation": attn_implementation,
                "rope": rope,
                "revision": revision,
                "trust_remote_code": trust_remote_code,
            },
        )
        options = StudyOptions(
            design=design,
            bases=bases,
            seed=seed,
            variants=listed_names("--variants", variants),
            length_matched=length_matched,
            extras=listed_names("--extras", extras),
            rows=rows,
            max_new_tokens=max_new_tokens,
            beyond_window=beyond_window,
            **choices,
        )
        if preamble is not None and "preamble" not in options.variants:
            raise InputError(
                f'--preamble has no effect with --variants "{variants}"; add preamble to them, or leave --preamble out'
            )
        check_changes(options.variants, form)
        result = run_study(given, options, out, keep_runs=kept, retry_failed=retry_failed, quiet=quiet)
        if result is not None and print_study(result, json_):
            raise typer.Exit(1)
