"""The command line: ``attnprobe measure``, ``study``, ``heads``, ``heatmap``, ``report``, ``check`` and the others.

Results go to standard output, everything else to standard error. Exit status: 0 done, 1 a check failed or a prompt does
not fit, 2 the input or the arguments are wrong, 130 interrupted. torch and transformers are imported by the commands
that need them, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from attnprobe import __version__, cli_grid
from attnprobe.cli_figure import HELP, figure
from attnprobe.cli_heads import heads
from attnprobe.cli_heatmap import heatmap
from attnprobe.cli_input import given_file
from attnprobe.cli_options import (
    Answers,
    AttnImplementation,
    BatchSize,
    BeyondWindow,
    DeviceMap,
    Dtype,
    Force,
    Format,
    Json,
    Layout,
    Limit,
    Markers,
    MaxNewTokens,
    ModelName,
    NoRows,
    PrefillChunk,
    PromptFile,
    Quiet,
    Revision,
    Rope,
    Rows,
    Template,
    TrustRemoteCode,
    chunk_tokens,
    head_numbers,
    layer_numbers,
    listed_names,
    sampling_arguments,
)
from attnprobe.cli_output import Commands, print_json, print_lines, reported
from attnprobe.cli_plan import plan
from attnprobe.cli_report import report
from attnprobe.cli_rope import rope
from attnprobe.cli_study import study
from attnprobe.cli_tasks import filler, needle, niah
from attnprobe.terminal import count, say, speaks_unicode, work_bar

if TYPE_CHECKING:
    from attnprobe.models import LanguageModel

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main() -> None:
    """Run the command line; the entry point."""
    # transformers' own advice would come between the lines of progress.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except Exception:
        # A bug's traceback quotes texts of users.
        for line in traceback.format_exc().rstrip("\n").split("\n"):
            say(line)
        sys.exit(1)


def _version(wanted: bool) -> None:
    if wanted:
        print_lines([f"attnprobe {__version__}"])
        raise typer.Exit


@app.callback()
def _attnprobe(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Measure how much attention each document of a prompt gets while a language model writes its answer."""


@app.command()
def measure(
    prompts: PromptFile,
    model: ModelName,
    out: Annotated[Path, typer.Option(help="Folder for runs/, curve.csv and manifest.json; a second call resumes.")],
    answers: Answers = "generate",
    max_new_tokens: MaxNewTokens = 64,
    rows: Rows = "predicting",
    norm: Annotated[
        Literal["share", "log_share", "mass", "density", "advantage"],
        typer.Option(
            help="Unit of the curve: share of the documents' attention (also as a geometric mean), attention "
            "mass, attention a token (1 = even), or against the other documents (nats)."
        ),
    ] = "share",
    layers: Annotated[str | None, typer.Option(help="Layers of the curve, e.g. 0-5,7. [default: all]")] = None,
    heads: Annotated[
        str | None,
        typer.Option(help="Heads of the curve, e.g. 0-3, or layer:head pairs, e.g. 12:3,14:0. [default: all]"),
    ] = None,
    format: Format = "auto",
    limit: Limit = None,
    layout: Layout = "question_last",
    markers: Markers = "xml",
    template: Template = "auto",
    batch_size: BatchSize = 1,
    prefill_chunk: PrefillChunk = "auto",
    capture: Annotated[
        Literal["deferred", "live"],
        typer.Option(help="Reduce once after decoding, or at every step; the numbers are the same."),
    ] = "deferred",
    sample: Annotated[bool, typer.Option("--sample", help="Sample answers instead of greedy decoding.")] = False,
    temperature: Annotated[float | None, typer.Option(help="With --sample. [default: the model's own]")] = None,
    top_p: Annotated[float | None, typer.Option(help="With --sample. [default: the model's own]")] = None,
    seed: Annotated[int, typer.Option(help="With --sample.")] = 0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse tokens that straddle spans and control tokens in texts.")
    ] = False,
    beyond_window: BeyondWindow = False,
    no_rows: NoRows = False,
    extras: Annotated[
        str,
        typer.Option(
            help="More to measure in the same pass: top, columns, keys (together what a heatmap takes), distance, "
            "values, question, prompt."
        ),
    ] = "",
    dtype: Dtype = None,
    device_map: DeviceMap = None,
    attn_implementation: AttnImplementation = None,
    rope: Rope = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure prompts into a folder, and print the curve.

    Each prompt gets a run file as soon as it is measured; the same command goes on where it was interrupted. curve.csv
    holds every curve and their means.

    PROMPTS holds one JSON object a line: {"id", "documents": ["text", ...], "question", "answer"?, "system"?}. Files of
    Lost in the Middle, HotpotQA and SQuAD are read as they are.
    """
    with reported():
        chosen_layers, chosen_heads = layer_numbers(layers), head_numbers(heads)
        chunk = chunk_tokens(prefill_chunk)
        sampling = sampling_arguments(sample, temperature, top_p, seed)
        from attnprobe.readers import read_prompts

        form: dict[str, Any] = {"layout": layout, "markers": markers, "template": template}
        with given_file(prompts) as path:
            read = list(read_prompts(path, format=format, limit=limit, **form))
        from attnprobe.measure_folder import measure_folder
        from attnprobe.run_folder import check_folder, finished_runs
        from attnprobe.summary import Selection
        from attnprobe.summary_text import summary_lines

        check_folder(out, force)
        lm = _load(
            model,
            quiet,
            dtype=dtype,
            device_map=device_map,
            attn_implementation=attn_implementation,
            rope=rope,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
        try:
            result = measure_folder(
                lm,
                read,
                out,
                answers=answers,
                selection=Selection(norm, chosen_layers, chosen_heads),
                batch_size=batch_size,
                force=force,
                settings=form,
                about={"prompts": prompts, "n_prompts": len(read), "model": model},
                quiet=quiet,
                max_new_tokens=max_new_tokens,
                rows=rows,
                capture=capture,
                prefill_chunk=chunk,
                keep_rows=not no_rows,
                extras=listed_names("--extras", extras),
                strict=strict,
                beyond_window=beyond_window,
                **sampling,
            )
        except KeyboardInterrupt:
            n = len(finished_runs(out))
            say(f"interrupted: {count(n, 'run')} kept in {out}; the same command goes on from there")
            raise typer.Exit(130) from None
        known = sum(prompt.answer is not None for prompt in read)
        if known and answers == "generate":
            has = f"{count(known, 'prompt')} with an answer in the file"
            say(f"{has}: generated all the same (--answers file forces it)", quiet)
        if json_:
            print_json(
                {
                    "model": model,
                    "out": str(out),
                    "settings_sha256": result.settings_sha256,
                    "measured": result.n_measured,
                    "reused": len(result.results) - result.n_measured,
                    "seconds": result.seconds,
                    "means": [group.to_dict() for group in result.means],
                    "prompts": [one.to_dict() for one in result.results],
                }
            )
        else:
            print_lines(summary_lines(result.results, result.means, speaks_unicode()))
        say(f"runs, curve.csv and manifest.json in {out}", quiet)


app.command()(study)
app.command()(heads)
app.command()(heatmap)
app.command()(report)
app.command(help=HELP)(figure)
app.command()(plan)
app.command()(needle)
app.command()(niah)
app.command()(filler)
app.add_typer(rope, name="rope")
app.command(name="run")(cli_grid.run)
app.command(name="merge")(cli_grid.merge)


@app.command()
def check(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Alias (smollm2), hub id, folder, or .gguf file.")],
    tokens: Annotated[
        int | None,
        typer.Option(min=16, help="Length of the longest prompt, tokens. [default: 48, or 1.5 short windows]"),
    ] = None,
    dtype: Dtype = None,
    device_map: DeviceMap = None,
    attn_implementation: AttnImplementation = None,
    rope: Rope = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check the capture on a model, layer by layer.

    Masses are compared with an independent reference; exit status 1 where a layer differs.
    """
    with reported():
        lm = _load(
            model,
            quiet,
            dtype=dtype,
            device_map=device_map,
            attn_implementation=attn_implementation,
            rope=rope,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
        from attnprobe.check_text import report_dict, report_lines
        from attnprobe.selfcheck import check as run_check

        with work_bar("checking", None, quiet):
            report = run_check(lm, n_tokens=tokens)
        if json_:
            print_json(report_dict(model, report))
        else:
            print_lines(report_lines(model, report))
        if not report.passed:
            raise typer.Exit(1)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs, pictures and pages.")] = Path("out/demo"),
    model: ModelName = "smollm2",
    dtype: Dtype = None,
    device_map: DeviceMap = None,
    attn_implementation: AttnImplementation = None,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure ten documents at all ten positions.

    Ten short documents and a question, all ten rotations, the curve in the terminal and as a picture, and pages for a
    browser; about half a minute with SmolLM2 on two CPU cores.
    """
    with reported():
        from attnprobe.run_folder import check_folder

        check_folder(out, force)
        lm = _load(
            model,
            quiet,
            dtype=dtype,
            device_map=device_map,
            attn_implementation=attn_implementation,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
        from attnprobe.demo import demo as run_demo
        from attnprobe.demo import demo_lines

        result = run_demo(lm, out, force, quiet)
        if json_:
            print_json({"model": model, **result.to_dict()})
        else:
            print_lines(demo_lines(result, model, speaks_unicode()))
        say(f"all in {out}", quiet)


def _load(model: str, quiet: bool, **options: Any) -> LanguageModel:
    from attnprobe.models import load

    return load(model, progress=not quiet, **options)
